/* check_tokenizer.h - golden lines against a tokenizer: what `cldraft check-tokenizer` does.
 *
 * A line is {"text", "ids"} or {"template", "messages", "rendered", "ids", "loss_mask"}; other keys
 * say nothing. One thread. */
#ifndef CLD_CHECK_CHECK_TOKENIZER_H
#define CLD_CHECK_CHECK_TOKENIZER_H

#include <stddef.h>
#include <stdio.h>

#include "base/error.h"

struct cld_check_counts {
    size_t n_passed, n_failed;
};

/* Checks all lines of the files with dir/tokenizer.json and adds to *counts. A line that differs
 * is printed to `out` with what was wanted and what came; a file closes with a summary. A line
 * that cannot be understood counts as failed. Errors: an unreadable file or tokenizer, no line
 * at all. */
enum cld_status cld_check_tokenizer(const char *dir, const char *const *files, size_t n_files,
                                    FILE *out, struct cld_check_counts *counts,
                                    struct cld_error *err);

#endif
