/* cmd_report.c - one HTML page of one run or of several. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/file.h"
#include "cli/cmd.h"
#include "report/report.h"
#include "report/run_reader.h"

/* --out; else report.html, in the run's directory where there is one run. */
static char *place(const struct cld_args *a)
{
    const char *out = cld_args_value(a, "out");
    if (out)
        return cld_format("%s", out);
    return cld_args_n(a) == 1 ? cld_format("%s/report.html", cld_args_at(a, 0))
                              : cld_format("report.html");
}

/* The page does not go over a file that it is made from. */
static enum cld_status check_place(const struct cld_args *a, const char *path,
                                   struct cld_error *err)
{
    static const char *const files[] = {"metrics.jsonl", "status.json", "devices.json",
                                        "config.resolved.ini", "log.txt"};
    struct stat out, in;
    if (!*path)
        return cld_fail(err, CLD_E_USAGE, "name a file", "--out names no file");
    if (stat(path, &out))
        return CLD_OK;
    for (size_t i = 0; i < cld_args_n(a); i++)
        for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
            char *file = cld_format("%s/%s", cld_args_at(a, i), files[k]);
            bool same =
                file && !stat(file, &in) && in.st_dev == out.st_dev && in.st_ino == out.st_ino;
            free(file);
            if (same)
                return cld_fail(err, CLD_E_USAGE, "name another file",
                                "--out %s is a file of the run", path);
        }
    return CLD_OK;
}

enum cld_status cld_cmd_report(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = cld_args_n(a), n_read = 0, n_bytes = 0;
    struct cld_run_data *runs = calloc(n, sizeof *runs);
    char *page = NULL, *path = place(a);
    if (!runs || !path) {
        s = cld_fail_memory(err, "a report");
        goto done;
    }
    s = check_place(a, path, err);
    while (n_read < n && !s) {
        s = cld_run_reader_read(cld_args_at(a, n_read), &runs[n_read], err);
        n_read++;
    }
    if (s || (s = cld_report_text(runs, n, &page, &n_bytes, err)) ||
        (s = cld_file_write(path, page, n_bytes, err)))
        goto done;
    printf("%s\n", path);
done:
    for (size_t i = 0; i < n_read; i++)
        cld_run_data_free(&runs[i]);
    free(runs);
    free(page);
    free(path);
    return s;
}
