/* main.c - finds the command, runs it, reports its error, ends with its status. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/args.h"

static cld_cmd_fn *const commands[] = {
    [CLD_CMD_DEVICES] = cld_cmd_devices,
    [CLD_CMD_PLAN] = cld_cmd_plan,
    [CLD_CMD_TRAIN] = cld_cmd_train,
    [CLD_CMD_STATUS] = cld_cmd_status,
    [CLD_CMD_REPORT] = cld_cmd_report,
    [CLD_CMD_EVAL] = cld_cmd_eval,
    [CLD_CMD_GENERATE] = cld_cmd_generate,
    [CLD_CMD_EXPORT] = cld_cmd_export,
    [CLD_CMD_IMPORT] = cld_cmd_import,
    [CLD_CMD_CHECK_KERNELS] = cld_cmd_check_kernels,
    [CLD_CMD_CHECK_CASE] = cld_cmd_check_case,
    [CLD_CMD_CHECK_TARGET] = cld_cmd_check_target,
    [CLD_CMD_CHECK_TOKENIZER] = cld_cmd_check_tokenizer,
    [CLD_CMD_BENCH] = cld_cmd_bench,
    [CLD_CMD_SPIRV] = cld_cmd_spirv,
    [CLD_CMD_COMPLETION] = cld_cmd_completion,
    [CLD_CMD_MAN] = cld_cmd_man,
    [CLD_CMD_HELP] = cld_cmd_help,
};

static enum cld_status run(const struct cld_args *a, struct cld_error *err)
{
    cld_log_set_level(cld_args_log_level(a, CLD_LOG_INFO));
    switch (cld_args_wish(a)) {
    case CLD_ARGS_VERSION:
        printf("cldraft %s\n", CLD_VERSION);
        return CLD_OK;
    case CLD_ARGS_HELP:
        if (cld_args_has_command(a))
            cld_args_write_help(cld_args_command(a), stdout);
        else
            cld_args_write_usage(stdout);
        return CLD_OK;
    case CLD_ARGS_RUN:
        break;
    }
    return commands[cld_args_command(a)](a, err);
}

static bool reader_left(void)
{
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

/* What was asked for must have arrived, unless the reader had enough (`cldraft help | head`). */
static enum cld_status flush_stdout(enum cld_status s, struct cld_error *err)
{
    errno = 0;
    if ((fflush(stdout) || ferror(stdout)) && !s && !reader_left())
        s = cld_fail(err, CLD_E_IO, cld_io_hint(errno), "writing to stdout failed: %s",
                     errno ? strerror(errno) : "earlier output");
    return s;
}

/* A file opened later would get the number of a closed stream, and messages would go into it. */
static bool fill_closed_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            return false;
    return true;
}

int main(int argc, char **argv)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_args *args = NULL;
    if (!fill_closed_streams())
        return CLD_E_IO; /* nowhere to say why */
    /* A closed pipe is an error of the write, not the death of a training run. */
    signal(SIGPIPE, SIG_IGN);
    enum cld_status s = cld_args_parse(argc, argv, &args, &err);
    if (!s)
        s = run(args, &err);
    s = flush_stdout(s, &err);
    if (s && err.what[0])
        fprintf(stderr, "cldraft: %s\n", err.what);
    if (s && err.hint[0])
        fprintf(stderr, "  hint: %s\n", err.hint);
    cld_args_free(args);
    return s;
}
