#include "workers/worker.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "check/self_test.h"
#include "model/visibility.h"
#include "opencl/cache.h"
#include "ops/ops.h"
#include "ops/verdicts.h"
#include "workers/checkpoint.h"

size_t cld_worker_budget_bytes(const struct cld_config *cfg, const struct cld_device_info *device)
{
    if (cfg->memory.limit_gib.n)
        return cld_config_gib(cfg->memory.limit_gib.v[0]);
    size_t reserve = cld_config_gib(cfg->memory.reserve_gib);
    return device->global_bytes > reserve ? device->global_bytes - reserve : 0;
}

size_t cld_worker_max_buffer_bytes(const struct cld_config *cfg,
                                   const struct cld_device_info *device)
{
    return cfg->memory.max_buffer_gib > 0 ? cld_config_gib(cfg->memory.max_buffer_gib)
                                          : device->max_alloc_bytes;
}

size_t cld_worker_feature_bytes(const struct cld_worker *w)
{
    return cld_mul3(w->setup->n_features, w->setup->target.hidden,
                    cld_dtype_bytes(w->cfg->runtime.precision));
}

static void plan_slots(struct cld_worker *w, size_t n_slots, size_t n_tokens)
{
    size_t n_bytes = cld_mul(n_tokens, cld_worker_feature_bytes(w));
    for (size_t i = 0; i < n_slots; i++)
        cld_plan_pinned(w->plan, &w->slots[i].buf, &w->slots[i].host, n_bytes,
                        w->device.host_memory, CLD_FOR_RING, "slot %zu of features", i);
}

/* The second buffer of features. */
static void plan_double_buffer(struct cld_worker *w, bool double_buffered)
{
    const struct cld_tensor *t = &w->target.taps;
    if (double_buffered)
        cld_plan_tensor(w->plan, &w->other_features, t->type, t->n_rows, t->n_cols, CLD_FOR_INPUT,
                        "features in the other buffer");
}

/* Host memory for the exchange between drafters. */
static void plan_exchange(struct cld_worker *w, size_t n_remote)
{
    const struct cld_drafter *d = &w->drafter;
    if (!cld_drafter_is_sharded(d))
        return;
    cld_plan_pinned(w->plan, &w->stage.buf, &w->stage.host, cld_mul(d->n_elems, sizeof(float)),
                    w->device.host_memory, CLD_FOR_STAGING, "staging of gradients and weights");
    if (n_remote)
        cld_plan_pinned(w->plan, &w->arrivals.buf, &w->arrivals.host,
                        cld_mul(n_remote, cld_mul(d->shard_n, sizeof(float))),
                        w->device.host_memory, CLD_FOR_STAGING,
                        "gradients of the shard from other machines");
}

/* Host memory for a checkpoint: master weights and moments of all drafters. */
static void plan_snapshot(struct cld_worker *w)
{
    size_t n_bytes = cld_mul(w->drafter.n_elems, sizeof(float));
    cld_plan_pinned(w->plan, &w->snapshot.buf, &w->snapshot.host,
                    cld_mul(n_bytes, cld_checkpoint_n_arrays(&w->drafter)), w->device.host_memory,
                    CLD_FOR_STAGING, "snapshot for checkpoints");
}

static struct cld_image image_of(const struct cld_worker *w)
{
    float *at = w->snapshot.host;
    size_t n = w->drafter.n_elems;
    if (!at)
        return (struct cld_image){0};
    return (struct cld_image){at, at + n, at + 2 * n, w->drafter.options.ema ? at + 3 * n : NULL};
}

enum cld_status cld_worker_cache_dir(const struct cld_config *cfg,
                                     const struct cld_device_info *device, char **out,
                                     const char **why, struct cld_error *err)
{
    *out = NULL;
    *why = "off";
    /* Only a directory that is named overrides what is known about the driver. */
    if (!cfg->runtime.cache_dir && device->quirks & CLD_QUIRK_DEAR_BINARY) {
        *why = "off: quirk dear-binary";
        return CLD_OK;
    }
    return cld_cache_dir(cfg->runtime.cache_dir, out, err);
}

enum cld_status cld_worker_plan(struct cld_worker *w, const struct cld_config *cfg,
                                const struct cld_setup *setup, const struct cld_device_info *device,
                                const struct cld_worker_options *options, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_tokens = cld_mul(cld_max(1, options->n_rows), cfg->data.max_length);
    size_t n_block = cld_rules_drafted(&setup->rules) + 1;
    enum cld_objective objective = cfg->train.objective;
    bool soft = objective == CLD_OBJECTIVE_SOFT;
    size_t n_cached = options->decode
                          ? cld_decode_cached(cfg->data.max_length, cfg->eval.new_tokens, n_block)
                          : 0;
    size_t n_positions = cld_max(cfg->data.max_length, n_cached);
    memset(w, 0, sizeof *w);
    w->setup = setup;
    w->cfg = cfg;
    w->device = *device;
    w->given_features = options->given_features;
    cld_overrides_of(cfg, &w->overrides);
    w->no_drafter = options->no_drafter;
    w->reads = options->reads;
    w->budget_bytes =
        options->budget_bytes ? options->budget_bytes : cld_worker_budget_bytes(cfg, device);
    w->max_buffer_bytes = cld_worker_max_buffer_bytes(cfg, device);
    struct cld_queue_options queue = {.name = options->name,
                                      .budget_bytes = w->budget_bytes,
                                      .profile = options->profile,
                                      .programs = cld_overrides_programs(cfg, &w->overrides),
                                      .tuning = &w->tuning,
                                      .gemm_uses = options->gemm_uses,
                                      .list = options->list,
                                      .plans_only = options->plans_only,
                                      .instruction_sets = options->instruction_sets};
    struct cld_target_options target = {.storage = cfg->runtime.precision,
                                        .attention = cfg->attention.backend,
                                        .n_tokens = n_tokens,
                                        .n_positions = n_positions,
                                        .taps = setup->taps,
                                        .n_taps = setup->n_features,
                                        .norm = soft && !options->no_drafter,
                                        .no_head = options->no_drafter,
                                        .given_taps = options->given_features,
                                        .n_logits = options->decode ? n_block : 0,
                                        .n_cached = n_cached};
    struct cld_drafter_limits limits = {n_tokens,
                                        cld_max(1, cld_mul(options->n_rows, cfg->train.anchors)),
                                        cfg->train.loss_chunk, n_positions + n_block, n_cached};
    struct cld_drafter_options drafter = {
        .storage = cfg->runtime.precision,
        .attention = cfg->attention.backend,
        .train = options->train,
        .ema = options->train && cfg->train.ema > 0,
        .recompute = cfg->train.recompute,
        .shard = options->shard,
        .n_shards = options->n_shards,
        .features = &w->target.taps,
        .objective = {.dpace = objective == CLD_OBJECTIVE_DPACE,
                      .soft = soft,
                      .dpace_alpha = (float)cfg->train.dpace_alpha,
                      .soft_share = (float)cfg->train.soft_weight,
                      .soft_temperature = (float)cfg->train.soft_temperature,
                      .state_at = setup->state_tap * setup->target.hidden,
                      .norm = &w->target.norm}};
    char *cache_dir = NULL;
    if (!(w->plan = cld_plan_new()))
        return cld_fail_memory(err, "a plan");
    if ((s = cld_tuning_of(cfg, device, &w->tuning, err)) ||
        (s = cld_worker_cache_dir(cfg, device, &cache_dir, &w->no_cache, err)))
        return s;
    queue.cache_dir = cache_dir;
    s = options->plans_only ? cld_queue_open(device, &queue, &w->q, err)
                            : cld_queue_open_probed(device, &queue, &w->q, err);
    free(cache_dir);
    if (s)
        return s;
    w->limits = limits;
    if (options->no_drafter)
        plan_slots(w, options->n_slots, n_tokens);
    if (options->reads)
        return CLD_OK;
    if ((s = cld_target_describe(&w->target, &setup->target, &target, w->q, w->plan, err)))
        return s;
    plan_double_buffer(w, options->double_buffered);
    if (options->no_drafter)
        return CLD_OK;
    if ((s = cld_drafter_describe(&w->drafter, &setup->drafter, &limits, &drafter, w->q,
                                  &w->target.embed, &w->target.head, w->plan, err)))
        return s;
    w->limits = w->drafter.limits;
    if (options->decode)
        cld_decoder_describe(&w->decoder, &w->target, &w->drafter, &setup->rules, w->plan);
    plan_exchange(w, options->n_remote);
    if (options->snapshot)
        plan_snapshot(w);
    return CLD_OK;
}

enum cld_status cld_worker_check(const struct cld_worker *w, struct cld_error *err)
{
    return cld_plan_check(w->plan, cld_queue_name(w->q), w->budget_bytes, w->max_buffer_bytes, err);
}

enum cld_status cld_worker_create(struct cld_worker *w, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (!cld_queue_lists(w->q) &&
        ((s = cld_overrides_check(&w->overrides, w->cfg, &w->device, err)) ||
         (s = cld_tuning_check(w->q, w->cfg, &w->device, NULL, err))))
        return s;
    if ((s = cld_plan_create(w->plan, w->q, err)) ||
        (!w->no_drafter && (s = cld_drafter_prepare(&w->drafter, err))))
        return s;
    w->staging = w->stage.host;
    w->inbox = w->arrivals.host;
    w->image = image_of(w);
    if (w->reads)
        return CLD_OK;
    if (w->cfg->target.random_weights >= 0) {
        cld_warn(
            "the target's weights are random (target.random_weights = %lld): this run measures "
            "speed and memory, it trains nothing useful",
            (long long)w->cfg->target.random_weights);
        return cld_target_random(&w->target, (uint64_t)w->cfg->target.random_weights, err);
    }
    return cld_target_load(&w->target, w->cfg->target.dir, err);
}

enum cld_status cld_worker_features(struct cld_worker *w, const struct cld_batch *b,
                                    struct cld_error *err)
{
    if (w->given_features)
        return CLD_OK;
    return cld_target_forward(&w->target, b->ctx_ids, b->positions, b->ctx_doc, b->n_ctx, err);
}

enum cld_status cld_worker_read_features(struct cld_worker *w, size_t n_ctx, void *to,
                                         struct cld_error *err)
{
    return cld_buf_read(w->target.taps.buf, 0, to, cld_mul(n_ctx, cld_worker_feature_bytes(w)),
                        err);
}

enum cld_status cld_worker_write_features(struct cld_worker *w, size_t n_ctx, const void *from,
                                          struct cld_error *err)
{
    return cld_buf_write(w->target.taps.buf, 0, from, cld_mul(n_ctx, cld_worker_feature_bytes(w)),
                         err);
}

enum cld_status cld_worker_make_up_features(struct cld_worker *w, struct cld_error *err)
{
    return cld_fill_normal(w->q, &w->target.taps, (uint64_t)w->cfg->run.seed, 0, 1.0f, err);
}

/* The buffers of features change places; kernels that were enqueued before use the old one. */
static enum cld_status turn(struct cld_worker *w, struct cld_error *err)
{
    struct cld_tensor *taps = &w->target.taps;
    struct cld_buf *now = w->other_features.buf;
    enum cld_status s = cld_event_after_kernels(w->q, &w->idle, err);
    w->other_features.buf = taps->buf;
    taps->buf = now;
    for (size_t i = 0; i < w->setup->n_features; i++)
        w->target.tap_parts[i].buf = now;
    if (!w->no_drafter)
        w->drafter.features.buf = w->drafter.state.buf = now;
    return s;
}

enum cld_status cld_worker_send_features(struct cld_worker *w, size_t n_ctx, void *to,
                                         struct cld_error *err)
{
    enum cld_status s = turn(w, err);
    return s ? s
             : cld_transfer_read(w->other_features.buf, 0, to,
                                 cld_mul(n_ctx, cld_worker_feature_bytes(w)), &w->idle, &w->moving,
                                 err);
}

enum cld_status cld_worker_fetch_features(struct cld_worker *w, size_t n_ctx, const void *from,
                                          struct cld_error *err)
{
    return cld_transfer_write(w->other_features.buf, 0, from,
                              cld_mul(n_ctx, cld_worker_feature_bytes(w)), &w->idle, &w->moving,
                              err);
}

enum cld_status cld_worker_features_moved(struct cld_worker *w, struct cld_error *err)
{
    return cld_event_wait(&w->moving, err);
}

enum cld_status cld_worker_take_features(struct cld_worker *w, struct cld_error *err)
{
    enum cld_status s = cld_worker_features_moved(w, err);
    return s ? s : turn(w, err);
}

const struct cld_tensor *cld_worker_shard_place(const struct cld_worker *w, size_t j)
{
    return j ? &w->drafter.shard_in : &w->drafter.shard_sum;
}

enum cld_status cld_worker_add_shard(struct cld_worker *w, size_t j, bool own, size_t first,
                                     size_t n, struct cld_error *err)
{
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

/* A made-up micro-batch of 1 / shrink of what the plan allows; *smallest tells that there is no
 * smaller one: a document with one anchor. */
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

/* What is done to the shard bucket by bucket. Sizes decide on variants. */
static enum cld_status warm_shard(struct cld_worker *w, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_drafter *d = &w->drafter;
    for (size_t b = 0; b < cld_drafter_n_buckets(d) && !s; b++) {
        size_t first, n = cld_drafter_bucket_part(d, b, d->options.shard, &first);
        if (n && ((s = cld_worker_add_shard(w, 0, true, first, n, err)) ||
                  (s = cld_worker_add_shard(w, 1, true, first, n, err)) ||
                  (s = cld_worker_add_shard(w, 1, false, first, n, err))))
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
    return (s = cld_drafter_begin_ema(d, err)) || (s = cld_drafter_show_ema(d, true, err))
               ? s
               : cld_drafter_show_ema(d, false, err);
}

/* Everything that a micro-batch sets in motion. */
static enum cld_status warm_batch(struct cld_worker *w, const struct cld_batch *b,
                                  struct cld_error *err)
{
    struct cld_drafter *d = &w->drafter;
    struct cld_score score = {0};
    enum cld_status s = cld_worker_features(w, b, err);
    if (s)
        return s;
    if (w->no_drafter) {
        s = cld_worker_send_features(w, b->n_ctx, w->slots[0].host, err);
        return s ? s : cld_worker_features_moved(w, err);
    }
    if ((s = cld_drafter_forward(d, b, err)) ||
        (s = cld_drafter_loss(d, b, 0, false, &score, err)) || !d->options.train)
        return s;
    s = cld_drafter_loss(d, b, 0, true, &score, err);
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
    bool train = !w->no_drafter && w->drafter.options.train, smallest = w->reads;
    if (train && (s = cld_drafter_init(&w->drafter, 0, w->cfg->drafter.init_std, err)))
        return s;
    /* The largest first: a driver may mind grids that grow. Smaller ones after it, since a product
     * of few rows may want another variant than one of many. */
    for (size_t shrink = 1; !smallest && !s; shrink *= 2)
        if (!(s = made_up_batch(w, shrink, &b, &smallest, err)))
            s = warm_batch(w, &b, err);
    if (s || (train && ((s = check_visibility(w, &b, err)) || (s = warm_optimizer(w, err)))) ||
        (!w->no_drafter && !cld_queue_lists(w->q) &&
         (s = cld_drafter_check_tiles(&w->drafter, err))) ||
        (s = cld_queue_finish(w->q, err)))
        goto done;
    cld_queue_seal(w->q);
done:
    cld_batch_free(&b);
    return s;
}

void cld_worker_close(struct cld_worker *w)
{
    if (!w)
        return;
    cld_event_release(&w->idle);
    cld_event_release(&w->moving);
    cld_plan_free(w->plan);
    cld_queue_close(w->q);
    cld_decoder_free(&w->decoder);
    cld_target_free(&w->target);
    cld_drafter_free(&w->drafter);
    memset(w, 0, sizeof *w);
}
