/* worker_optimizer.c - the optimizer step of a worker, or of its shard. */
#include <math.h>

#include "ops/ops.h"
#include "workers/worker.h"

const struct cld_tensor *cld_worker_shard_place(const struct cld_worker *w, size_t j)
{
    return j ? &w->drafter.shard_in : &w->drafter.shard_sum;
}

enum cld_status cld_worker_add_shard(struct cld_worker *w, size_t j,
                                     enum cld_gradient_source source, size_t first, size_t n,
                                     struct cld_error *err)
{
    bool own = source == CLD_GRADIENT_OWN;
    struct cld_drafter *d = &w->drafter;
    struct cld_tensor mine = cld_tensor_cols(&d->grads, first, n);
    struct cld_tensor sum = cld_tensor_cols(&d->shard_sum, first - d->shard_first, n);
    struct cld_tensor in = cld_tensor_cols(&d->shard_in, first - d->shard_first, n);
    if (!j && !own)
        return CLD_OK; /* it was put where the sum begins */
    if (!j)
        return cld_add_tensors(w->q, &mine, NULL, &sum, err);
    return cld_add_tensors(w->q, &sum, own ? &mine : &in, &sum, err);
}

/* What the optimizer of this worker sees of the gradient. */
static const struct cld_tensor *gradient_of(const struct cld_drafter *d)
{
    return cld_drafter_is_sharded(d) ? &d->shard_sum : &d->grads;
}

enum cld_status cld_worker_squares(struct cld_worker *w, double *sum, struct cld_error *err)
{
    return cld_sum_squares(w->q, gradient_of(&w->drafter), w->drafter.scratch, sum, err);
}

enum cld_status cld_worker_update_part(struct cld_worker *w, double norm, double learning_rate,
                                       size_t step, size_t first, size_t n, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_drafter *d = &w->drafter;
    size_t at = first - d->shard_first;
    struct cld_tensor grad = cld_tensor_cols(gradient_of(d), at, n);
    struct cld_tensor m = cld_tensor_cols(&d->m, at, n), v = cld_tensor_cols(&d->v, at, n);
    struct cld_tensor master = cld_tensor_cols(&d->master, at, n);
    struct cld_tensor weights = cld_tensor_cols(&d->weights, first, n);
    size_t decays = d->n_decay > first ? d->n_decay - first : 0;
    double clip = w->cfg->train.clip;
    /* The published trainers' rule: min(1, clip / (norm + 1e-6)). */
    double scale = clip > 0 ? fmin(1, clip / (norm + 1e-6)) : 1;
    struct cld_adamw adamw = {.grad = &grad,
                              .m = &m,
                              .v = &v,
                              .master = &master,
                              .weight = &weights,
                              .n_decay = cld_min(decays, n),
                              .learning_rate = (float)learning_rate,
                              .beta1 = (float)w->cfg->train.beta1,
                              .beta2 = (float)w->cfg->train.beta2,
                              .epsilon = (float)w->cfg->train.epsilon,
                              .weight_decay = (float)w->cfg->train.weight_decay,
                              .grad_scale = (float)scale,
                              .step = step};
    if ((s = cld_adamw_step(w->q, &adamw, err)) || !d->options.ema)
        return s;
    /* The first steps count for less than a mean of many would give them. */
    double decay = fmin(w->cfg->train.ema, (1 + (double)step) / (10 + (double)step));
    struct cld_tensor ema = cld_tensor_cols(&d->ema, at, n);
    return cld_ema_step(w->q, &ema, &master, (float)(1 - decay), err);
}

enum cld_status cld_worker_update(struct cld_worker *w, double norm, double learning_rate,
                                  size_t step, struct cld_error *err)
{
    struct cld_drafter *d = &w->drafter;
    enum cld_status s = isfinite(norm) ? cld_worker_update_part(w, norm, learning_rate, step,
                                                                d->shard_first, d->shard_n, err)
                                       : CLD_OK;
    return s ? s : cld_drafter_forget_grads(d, err);
}

enum cld_status cld_worker_optimize(struct cld_worker *w, double learning_rate, size_t step,
                                    double *norm, bool *skipped, struct cld_error *err)
{
    double sum = 0;
    enum cld_status s = cld_drafter_finish_grads(&w->drafter, err);
    if (s || (s = cld_worker_squares(w, &sum, err)))
        return s;
    *norm = sqrt(sum);
    *skipped = !isfinite(*norm);
    return cld_worker_update(w, *norm, learning_rate, step, err);
}
