/* cmd_report.c - one HTML page of one run or of several. */
#include <stdio.h>
#include <stdlib.h>

#include "cmd.h"
#include "file.h"
#include "report.h"

/* --out; else report.html, in the run's directory where there is one run. */
static char *place(const struct cld_args *a)
{
    const char *out = cld_args_value(a, "out");
    if (out)
        return cld_format("%s", out);
    return cld_args_n(a) == 1 ? cld_format("%s/report.html", cld_args_at(a, 0))
                              : cld_format("report.html");
}

enum cld_status cld_cmd_report(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = cld_args_n(a), n_read = 0, n_bytes = 0;
    struct cld_record *runs = calloc(n, sizeof *runs);
    char *page = NULL, *path = place(a);
    if (!runs || !path) {
        s = cld_fail(err, CLD_E_MEMORY, "", "no host memory for a report");
        goto done;
    }
    while (n_read < n && !s) {
        s = cld_record_read(cld_args_at(a, n_read), &runs[n_read], err);
        n_read++;
    }
    if (s || (s = cld_report_text(runs, n, &page, &n_bytes, err)) ||
        (s = cld_file_write(path, page, n_bytes, err)))
        goto done;
    printf("%s\n", path);
done:
    for (size_t i = 0; i < n_read; i++)
        cld_record_free(&runs[i]);
    free(runs);
    free(page);
    free(path);
    return s;
}
