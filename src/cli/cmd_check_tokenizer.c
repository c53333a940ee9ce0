#include <stdio.h>
#include <stdlib.h>

#include "check/check_tokenizer.h"
#include "cli/cmd.h"

enum cld_status cld_cmd_check_tokenizer(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s;
    struct cld_check_counts counts = {0, 0};
    size_t n = cld_args_n(a);
    if (n < 2)
        return cld_fail(err, CLD_E_USAGE, "cldraft check-tokenizer DIR FILE.jsonl...",
                        "%zu arguments, a directory and at least one file are needed", n);
    const char **files = calloc(n, sizeof *files);
    if (!files)
        return cld_fail_memory(err, "%zu file names", n);
    for (size_t i = 1; i < n; i++)
        files[i - 1] = cld_args_at(a, i);
    s = cld_check_tokenizer(cld_args_at(a, 0), files, n - 1, stdout, &counts, err);
    free(files);
    if (s)
        return s;
    printf("%zu passed, %zu failed\n", counts.n_passed, counts.n_failed);
    return counts.n_failed ? cld_fail(err, CLD_E_CHECK, "the lines above say what differs",
                                      "%zu of %zu golden lines failed", counts.n_failed,
                                      counts.n_passed + counts.n_failed)
                           : CLD_OK;
}
