#include "model/visibility.h"

#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"
#include "ops/tensor_io.h"

/* Output of the last block, with features [first, end) of the context at one value. */
static enum cld_status look(struct cld_drafter *d, const struct cld_batch *b, size_t first,
                            size_t end, float *z, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_tensor all = cld_tensor_rows(&d->features, 0, b->n_ctx);
    struct cld_tensor changed = cld_tensor_rows(&d->features, first, end - first);
    if ((s = cld_fill_normal(d->q, &all, 1, 0, 1.0f, err)) ||
        (end > first && (s = cld_fill(d->q, &changed, 3.0f, err))) ||
        (s = cld_drafter_forward(d, b, err)))
        return s;
    return cld_tensor_read(&d->z, b->n_draft - b->block_size, b->block_size, z, err);
}

enum cld_status cld_drafter_check_visibility(struct cld_drafter *d, const struct cld_batch *b,
                                             struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = b->block_size * d->config.hidden;
    /* Not from b->blocks: the masks are made from those. One document: its tokens are the context.
     */
    size_t anchor = (size_t)b->positions[b->n_ctx + b->n_draft - b->block_size];
    float *z = malloc(cld_mul(3 * sizeof *z, n));
    if (!z)
        return cld_fail_memory(err, "a block");
    if ((s = look(d, b, 0, 0, z, err)) || (s = look(d, b, anchor, b->n_ctx, z + n, err)) ||
        (s = look(d, b, 0, anchor, z + 2 * n, err)))
        goto done;
    if (memcmp(z, z + n, n * sizeof *z))
        s = cld_fail(
            err, CLD_E_NUMERIC,
            "decoding has no such state: this is a bug in the mask or in an attention kernel",
            "%s: the output of a block at position %zu changes with the target's state at "
            "or after that position",
            cld_queue_name(d->q), anchor);
    else if (!memcmp(z, z + 2 * n, n * sizeof *z))
        s = cld_fail(err, CLD_E_NUMERIC, "this is a bug in the mask or in an attention kernel",
                     "%s: the output of a block at position %zu does not change with the target's "
                     "states before that position",
                     cld_queue_name(d->q), anchor);
done:
    free(z);
    return s;
}
