#include "base/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Reads all that comes, and keeps the begin of it: compilers say the cause first. */
static void read_messages(int fd, char *text, size_t n_bytes)
{
    char more[512];
    size_t n = 0;
    ssize_t got = 0;
    while ((got = read(fd, more, sizeof more)) > 0 || (got < 0 && errno == EINTR)) {
        size_t take = got > 0 && n + 1 < n_bytes ? (size_t)got : 0;
        if (take > n_bytes - 1 - n)
            take = n_bytes - 1 - n;
        memcpy(text + n, more, take);
        n += take;
    }
    text[n] = 0;
}

enum cld_status cld_tool_run(const char *const *argv, const char *hint, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    posix_spawn_file_actions_t actions;
    int ends[2], status = 0;
    char text[400];
    pid_t pid = 0;
    if (pipe(ends))
        return cld_fail(err, CLD_E_IO, "raise the limit of open files (ulimit -n)",
                        "%s: no pipe: %s", argv[0], strerror(errno));
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    int failed =
        posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failed) {
        s = cld_fail(err, CLD_E_INPUT, hint, "%s cannot be run: %s", argv[0], strerror(failed));
        goto done;
    }
    read_messages(ends[0], text, sizeof text);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        s = cld_fail(err, CLD_E_INPUT,
                     "run the tool by hand to see why; cldraft needs it for this command only",
                     "%s failed (%s %d): %s", argv[0], WIFEXITED(status) ? "status" : "signal",
                     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), text);
done:
    close(ends[0]);
    return s;
}
