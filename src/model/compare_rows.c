#include "model/compare_rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"

/* Host memory for a piece of one of them. */
static const size_t piece_bytes = (size_t)8 << 20;

enum cld_status cld_compare_rows(const struct cld_safetensors *a, const struct cld_safetensor *x,
                                 const struct cld_safetensors *b, const struct cld_safetensor *y,
                                 size_t *row, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    /* A copy in bf16 is the same matrix. */
    bool same = x->readable && y->readable && x->dtype == y->dtype;
    enum cld_dtype as = same ? x->dtype : CLD_BF16;
    size_t row_bytes = cld_mul(x->shape[1], cld_dtype_bytes(as));
    size_t n_at_once = cld_max(1, piece_bytes / cld_max(1, row_bytes));
    char *rows = malloc(cld_max(1, cld_mul3(2, n_at_once, row_bytes)));
    char *others = rows ? rows + n_at_once * row_bytes : NULL;
    *row = SIZE_MAX;
    if (!rows)
        return cld_fail_memory(err, "%zu rows of %zu", n_at_once, x->shape[1]);
    for (size_t at = 0; at < x->shape[0] && *row == SIZE_MAX; at += n_at_once) {
        size_t n = cld_min(n_at_once, x->shape[0] - at);
        if ((s = cld_safetensors_read_rows(a, x, at, n, as, rows, err)) ||
            (s = cld_safetensors_read_rows(b, y, at, n, as, others, err)))
            break;
        for (size_t i = 0; i < n && *row == SIZE_MAX; i++)
            if (memcmp(rows + i * row_bytes, others + i * row_bytes, row_bytes))
                *row = at + i;
    }
    free(rows);
    return s;
}
