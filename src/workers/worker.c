/* worker.c - plans, creates and closes a worker; its features. */
#include "workers/worker.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "check/self_test.h"
#include "opencl/cache.h"
#include "ops/ops.h"
#include "ops/verdicts.h"
#include "workers/checkpoint.h"

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
static void plan_double_buffer(struct cld_worker *w)
{
    const struct cld_tensor *t = &w->target.taps;
    if (cld_worker_has_double_buffer(w->role))
        cld_plan_tensor(w->plan, &w->other_features, t->type, t->n_rows, t->n_cols, CLD_FOR_INPUT,
                        "features in the other buffer");
}

/* Host memory through which gradients and weights travel between drafters. */
static void plan_staging(struct cld_worker *w, size_t n_remote)
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

/* What the sizes of both models follow from. */
struct sizes {
    size_t n_tokens, n_positions, n_block, n_cached;
};

static struct sizes sizes_of(const struct cld_worker *w, const struct cld_worker_options *o)
{
    const struct cld_config *cfg = w->cfg;
    struct sizes z = {.n_tokens = cld_mul(cld_max(1, o->n_rows), cfg->data.max_length),
                      .n_block = cld_rules_drafted(&w->setup->rules) + 1};
    if (o->role == CLD_ROLE_DECODER)
        z.n_cached = cld_decode_cached(cfg->data.max_length, cfg->eval.new_tokens, z.n_block);
    z.n_positions = cld_max(cfg->data.max_length, z.n_cached);
    return z;
}

static struct cld_target_options target_options(const struct cld_worker *w, const struct sizes *z)
{
    const struct cld_config *cfg = w->cfg;
    bool drafts = cld_worker_has_drafter(w->role);
    return (struct cld_target_options){.storage = cfg->runtime.precision,
                                       .attention = cfg->attention.backend,
                                       .n_tokens = z->n_tokens,
                                       .n_positions = z->n_positions,
                                       .taps = w->setup->taps,
                                       .n_taps = w->setup->n_features,
                                       .norm = drafts && cfg->train.objective == CLD_OBJECTIVE_SOFT,
                                       .head = drafts,
                                       .given_taps = !cld_worker_runs_target(w->role),
                                       .n_logits = w->role == CLD_ROLE_DECODER ? z->n_block : 0,
                                       .n_cached = z->n_cached};
}

static struct cld_drafter_options drafter_options(const struct cld_worker *w,
                                                  const struct cld_worker_options *o)
{
    const struct cld_config *cfg = w->cfg;
    return (struct cld_drafter_options){
        .storage = cfg->runtime.precision,
        .attention = cfg->attention.backend,
        .train = o->train,
        .ema = o->train && cfg->train.ema > 0,
        .recompute = cfg->train.recompute,
        .shard = o->shard,
        .n_shards = o->n_shards,
        .features = &w->target.taps,
        .objective = {.dpace = cfg->train.objective == CLD_OBJECTIVE_DPACE,
                      .soft = cfg->train.objective == CLD_OBJECTIVE_SOFT,
                      .dpace_alpha = (float)cfg->train.dpace_alpha,
                      .soft_share = (float)cfg->train.soft_weight,
                      .soft_temperature = (float)cfg->train.soft_temperature,
                      .state_at = w->setup->state_tap * w->setup->target.hidden,
                      .norm = &w->target.norm}};
}

static enum cld_status open_queue(struct cld_worker *w, const struct cld_worker_options *o,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *cache_dir = NULL;
    struct cld_queue_options queue = {.name = o->name,
                                      .budget_bytes = w->budget_bytes,
                                      .profile = o->profile,
                                      .programs = cld_overrides_programs(w->cfg, &w->overrides),
                                      .tuning = &w->tuning,
                                      .gemm_uses = o->gemm_uses,
                                      .list = o->list,
                                      .plans_only = o->plans_only,
                                      .instruction_sets = o->instruction_sets};
    if ((s = cld_tuning_of(w->cfg, &w->device, &w->tuning, err)) ||
        (s = cld_worker_cache_dir(w->cfg, &w->device, &cache_dir, &w->no_cache, err)))
        return s;
    queue.cache_dir = cache_dir;
    s = o->plans_only ? cld_queue_open(&w->device, &queue, &w->q, err)
                      : cld_queue_open_probed(&w->device, &queue, &w->q, err);
    free(cache_dir);
    return s;
}

/* Target, drafter and what belongs to them, as the role asks. */
static enum cld_status plan_models(struct cld_worker *w, const struct cld_worker_options *o,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_setup *setup = w->setup;
    const struct sizes z = sizes_of(w, o);
    const struct cld_target_options target = target_options(w, &z);
    const struct cld_drafter_options drafter = drafter_options(w, o);
    w->limits = (struct cld_drafter_limits){
        .n_ctx = z.n_tokens,
        .n_blocks = cld_max(1, cld_mul(o->n_rows, w->cfg->train.anchors)),
        .loss_chunk = w->cfg->train.loss_chunk,
        .n_positions = z.n_positions + z.n_block,
        .n_cached = z.n_cached};
    if (!cld_worker_has_drafter(w->role))
        plan_slots(w, o->n_slots, z.n_tokens);
    if (w->role == CLD_ROLE_READER)
        return CLD_OK;
    if ((s = cld_target_describe(&w->target, &setup->target, &target, w->q, w->plan, err)))
        return s;
    plan_double_buffer(w);
    if (!cld_worker_has_drafter(w->role))
        return CLD_OK;
    if ((s = cld_drafter_describe(&w->drafter, &setup->drafter, &w->limits, &drafter, w->q,
                                  &w->target.embed, &w->target.head, w->plan, err)))
        return s;
    w->limits = w->drafter.limits;
    if (w->role == CLD_ROLE_DECODER)
        cld_decoder_describe(&w->decoder, &w->target, &w->drafter, &setup->rules, w->plan);
    plan_staging(w, o->n_remote);
    if (o->snapshot)
        plan_snapshot(w);
    return CLD_OK;
}

enum cld_status cld_worker_plan(struct cld_worker *w, const struct cld_config *cfg,
                                const struct cld_setup *setup, const struct cld_device_info *device,
                                const struct cld_worker_options *options, struct cld_error *err)
{
    memset(w, 0, sizeof *w);
    w->setup = setup;
    w->cfg = cfg;
    w->device = *device;
    w->role = options->role;
    cld_overrides_of(cfg, &w->overrides);
    w->budget_bytes =
        options->budget_bytes ? options->budget_bytes : cld_plan_budget_bytes(cfg, device);
    w->max_buffer_bytes = cld_plan_max_buffer_bytes(cfg, device);
    if (!(w->plan = cld_plan_new()))
        return cld_fail_memory(err, "a plan");
    enum cld_status s = open_queue(w, options, err);
    return s ? s : plan_models(w, options, err);
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
        (cld_worker_has_drafter(w->role) && (s = cld_drafter_prepare(&w->drafter, err))))
        return s;
    w->staging = w->stage.host;
    w->inbox = w->arrivals.host;
    w->image = image_of(w);
    if (w->role == CLD_ROLE_READER)
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
    if (!cld_worker_runs_target(w->role))
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

/* Exchanges the two buffers of features; kernels that were enqueued before use the old one. */
static enum cld_status swap_buffers(struct cld_worker *w, struct cld_error *err)
{
    struct cld_tensor *taps = &w->target.taps;
    struct cld_buf *now = w->other_features.buf;
    enum cld_status s = cld_event_after_kernels(w->q, &w->idle, err);
    w->other_features.buf = taps->buf;
    taps->buf = now;
    for (size_t i = 0; i < w->setup->n_features; i++)
        w->target.tap_parts[i].buf = now;
    if (cld_worker_has_drafter(w->role))
        w->drafter.features.buf = w->drafter.state.buf = now;
    return s;
}

enum cld_status cld_worker_send_features(struct cld_worker *w, size_t n_ctx, void *to,
                                         struct cld_error *err)
{
    enum cld_status s = swap_buffers(w, err);
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
    return s ? s : swap_buffers(w, err);
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
