/* worker_warm_up.c - runs every kernel variant of a worker once, then seals its queue. */
#include "model/visibility.h"
#include "ops/ops.h"
#include "workers/worker.h"

/* A made-up micro-batch of 1 / shrink of what the plan allows; *smallest: there is no smaller one,
 * it is a document with one anchor. */
static enum cld_status made_up_batch(struct cld_worker *w, size_t shrink, struct cld_batch *b,
                                     bool *smallest, struct cld_error *err)
{
    const struct cld_drafter_limits *most = &w->limits;
    size_t length = cld_min(w->cfg->data.max_length, most->n_ctx);
    size_t n_docs = cld_max(1, cld_min(most->n_ctx / length, most->n_blocks) / shrink);
    size_t n_anchors = cld_max(1, cld_min(most->n_blocks / shrink / n_docs, length));
    *smallest = n_docs == 1 && n_anchors == 1;
    return cld_batch_make_up(b, n_docs, length, n_anchors, &w->setup->rules, err);
}

/* The operations on single buckets of the shard: variants depend on sizes. */
static enum cld_status warm_shard(struct cld_worker *w, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_drafter *d = &w->drafter;
    for (size_t b = 0; b < cld_drafter_n_buckets(d) && !s; b++) {
        size_t first, n = cld_drafter_bucket_part(d, b, d->options.shard, &first);
        if (n && ((s = cld_worker_add_shard(w, 0, CLD_GRADIENT_OWN, first, n, err)) ||
                  (s = cld_worker_add_shard(w, 1, CLD_GRADIENT_OWN, first, n, err)) ||
                  (s = cld_worker_add_shard(w, 1, CLD_GRADIENT_ARRIVED, first, n, err))))
            return s;
        if (n)
            s = cld_worker_update_part(w, 0, 0, 1, first, n, err);
    }
    return s;
}

static enum cld_status warm_optimizer(struct cld_worker *w, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_drafter *d = &w->drafter;
    double norm = 0;
    bool skipped = false;
    d->grads_are_old = true; /* those of made-up batches */
    if ((s = cld_drafter_finish_grads(d, err)) ||
        (cld_drafter_is_sharded(d) && (s = warm_shard(w, err))))
        return s;
    if ((s = cld_worker_optimize(w, 0, 1, &norm, &skipped, err)) || !d->options.ema)
        return s;
    return (s = cld_drafter_begin_ema(d, err)) || (s = cld_drafter_show_ema(d, err))
               ? s
               : cld_drafter_hide_ema(d, err);
}

/* All operations of a micro-batch. */
static enum cld_status warm_batch(struct cld_worker *w, const struct cld_batch *b,
                                  struct cld_error *err)
{
    struct cld_drafter *d = &w->drafter;
    struct cld_score score = {0};
    enum cld_status s = cld_worker_features(w, b, err);
    if (s)
        return s;
    if (!cld_worker_has_drafter(w->role)) {
        s = cld_worker_send_features(w, b->n_ctx, w->slots[0].host, err);
        return s ? s : cld_worker_features_moved(w, err);
    }
    if ((s = cld_drafter_forward(d, b, err)) ||
        (s = cld_drafter_loss(d, b, 0, CLD_LOSS_SCORE, &score, err)) || !d->options.train)
        return s;
    s = cld_drafter_loss(d, b, 0, CLD_LOSS_GRADIENT, &score, err);
    return s ? s : cld_drafter_backward(d, b, err);
}

/* Two blocks in a short document, the second one in its middle. */
static enum cld_status check_visibility(struct cld_worker *w, struct cld_batch *b,
                                        struct cld_error *err)
{
    size_t length = cld_min(cld_min(w->cfg->data.max_length, w->limits.n_ctx), 32);
    if (w->limits.n_blocks < 2 || cld_queue_lists(w->q))
        return CLD_OK;
    enum cld_status s = cld_batch_make_up(b, 1, length, 2, &w->setup->rules, err);
    return s ? s : cld_drafter_check_visibility(&w->drafter, b, err);
}

enum cld_status cld_worker_warm_up(struct cld_worker *w, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_batch b = {0};
    bool train = cld_worker_has_drafter(w->role) && w->drafter.options.train;
    bool smallest = w->role == CLD_ROLE_READER;
    if (train && (s = cld_drafter_init(&w->drafter, 0, w->cfg->drafter.init_std, err)))
        return s;
    /* The largest first: some drivers handle growing grids badly. Then smaller ones, since a GEMM
     * of few rows may need another variant than one of many. */
    for (size_t shrink = 1; !smallest && !s; shrink *= 2)
        if (!(s = made_up_batch(w, shrink, &b, &smallest, err)))
            s = warm_batch(w, &b, err);
    if (s || (train && ((s = check_visibility(w, &b, err)) || (s = warm_optimizer(w, err)))) ||
        (cld_worker_has_drafter(w->role) && !cld_queue_lists(w->q) &&
         (s = cld_drafter_check_tiles(&w->drafter, err))) ||
        (s = cld_queue_finish(w->q, err)))
        goto done;
    cld_queue_seal(w->q);
done:
    cld_batch_free(&b);
    return s;
}
