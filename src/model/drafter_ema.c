/* drafter_ema.c - the moving mean of a drafter's weights, and where it stands in for them. */
#include "model/drafter.h"
#include "ops/ops.h"

enum cld_status cld_drafter_begin_ema(struct cld_drafter *d, struct cld_error *err)
{
    return d->options.ema ? cld_add_tensors(d->q, &d->master, NULL, &d->ema, err) : CLD_OK;
}

enum cld_status cld_drafter_show_ema(struct cld_drafter *d, bool show, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_tensor own = cld_tensor_cols(&d->weights, d->shard_first, d->shard_n);
    if (d->options.storage != CLD_F32)
        return cld_add_tensors(d->q, show ? &d->ema : &d->master, NULL, &own, err);
    /* The weights are the masters: they wait where gradients are between steps not needed. */
    struct cld_tensor aside = cld_tensor_cols(&d->grads, d->shard_first, d->shard_n);
    if (!show)
        return (s = cld_add_tensors(d->q, &aside, NULL, &own, err))
                   ? s
                   : cld_drafter_forget_grads(d, err);
    s = cld_add_tensors(d->q, &own, NULL, &aside, err);
    return s ? s : cld_add_tensors(d->q, &d->ema, NULL, &own, err);
}
