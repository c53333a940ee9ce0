/* drafter_ema.c - the moving mean of a drafter's weights, and when it replaces them. */
#include "model/drafter.h"
#include "ops/ops.h"

enum cld_status cld_drafter_begin_ema(struct cld_drafter *d, struct cld_error *err)
{
    return d->options.ema ? cld_add_tensors(d->q, &d->master, NULL, &d->ema, err) : CLD_OK;
}

/* F32 runs have no other copy of the weights: they wait in the arena of gradients, which is free
 * between steps. */
static struct cld_tensor aside_of(const struct cld_drafter *d)
{
    return cld_tensor_cols(&d->grads, d->shard_first, d->shard_n);
}

enum cld_status cld_drafter_show_ema(struct cld_drafter *d, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_tensor own = cld_tensor_cols(&d->weights, d->shard_first, d->shard_n);
    struct cld_tensor aside = aside_of(d);
    if (d->options.storage == CLD_F32 && (s = cld_add_tensors(d->q, &own, NULL, &aside, err)))
        return s;
    return cld_add_tensors(d->q, &d->ema, NULL, &own, err);
}

enum cld_status cld_drafter_hide_ema(struct cld_drafter *d, struct cld_error *err)
{
    struct cld_tensor own = cld_tensor_cols(&d->weights, d->shard_first, d->shard_n);
    struct cld_tensor aside = aside_of(d);
    if (d->options.storage != CLD_F32)
        return cld_add_tensors(d->q, &d->master, NULL, &own, err);
    enum cld_status s = cld_add_tensors(d->q, &aside, NULL, &own, err);
    return s ? s : cld_drafter_forget_grads(d, err);
}
