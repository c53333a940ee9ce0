/* bench_target.c - the target's forward pass over the configured micro-batch: all of its layers,
 * and up to the last tap, which is what training runs. */
#include "base/clock.h"
#include "bench/bench.h"
#include "bench/bench_case.h"
#include "model/target.h"
#include "workers/worker.h"

struct pass {
    struct cld_target target;
    struct cld_batch batch;
};

static enum cld_status run_pass(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct pass *t = arg;
    (void)q;
    return cld_target_forward(&t->target, t->batch.ctx_ids, t->batch.positions, t->batch.ctx_doc,
                              t->batch.n_ctx, err);
}

static enum cld_status weights(const struct cld_bench *b, struct cld_target *t,
                               struct cld_error *err)
{
    int64_t seed = b->cfg->target.random_weights;
    return seed >= 0 ? cld_target_random(t, (uint64_t)seed, err)
                     : cld_target_load(t, b->cfg->target.dir, err);
}

/* Weights of the products of the layers. */
static double n_weights(const struct cld_target *t)
{
    const struct cld_model_config *c = &t->config;
    double h = (double)c->hidden, d = (double)c->head_dim;
    double a_layer = h * d * (2 * (double)c->n_heads + 2 * (double)c->n_kv_heads) +
                     3 * h * (double)c->intermediate;
    return (double)t->n_layers * a_layer;
}

/* Passes on a queue that times every kernel: where the time goes. */
static enum cld_status log_kernels(const struct cld_bench *b, struct cld_queue *q, struct pass *t,
                                   const char *name, struct cld_error *err)
{
    enum cld_status s = run_pass(q, t, err); /* builds */
    size_t n = b->cfg->bench.repeats;
    char of[64];
    if (s || (s = cld_queue_finish(q, err)))
        return s;
    cld_queue_times_reset(q);
    double begun = cld_clock_ms();
    for (size_t i = 0; i < n; i++)
        if ((s = cld_bench_go_on(err)) || (s = run_pass(q, t, err)))
            return s;
    if ((s = cld_queue_finish(q, err)))
        return s;
    snprintf(of, sizeof of, "the target, %s", name);
    return cld_bench_log_kernels(q, of, (double)n, cld_clock_ms() - begun, err);
}

static enum cld_status measure(const struct cld_bench *b, struct cld_queue *q, bool profile,
                               const char *name, const int *taps, size_t n_taps,
                               struct cld_error *err)
{
    struct cld_bench_case c = {0};
    struct pass t = {0};
    struct cld_target_options options = {.storage = b->cfg->runtime.precision,
                                         .attention = b->cfg->attention.backend,
                                         .n_positions = b->cfg->data.max_length,
                                         .taps = taps,
                                         .n_taps = n_taps};
    struct cld_bench_result r = {.what = "target"};
    enum cld_status s = cld_bench_batch(b, &t.batch, err);
    options.n_tokens = t.batch.n_ctx;
    if (s || (s = cld_bench_case_open(&c, q, err)) ||
        (s = cld_target_describe(&t.target, &b->setup->target, &options, q, c.plan, err)) ||
        (s = cld_bench_case_create(&c, b, err)) || (s = weights(b, &t.target, err)))
        goto done;
    if (profile) {
        s = log_kernels(b, q, &t, name, err);
        goto done;
    }
    r.tokens = (double)t.batch.n_ctx;
    /* Multiplications and additions of the products; attention comes on top. Weights are read once.
     */
    r.flop = 2 * (double)t.batch.n_ctx * n_weights(&t.target);
    r.bytes = n_weights(&t.target) * (double)cld_dtype_bytes(options.storage);
    snprintf(r.name, sizeof r.name, "%s", name);
    snprintf(r.storage, sizeof r.storage, "%s", cld_bench_storage_name(options.storage));
    snprintf(r.variant, sizeof r.variant, "attention %s; gemm %s", t.target.attention.variant,
             cld_gemm_backend_name(q, t.target.gemm));
    cld_bench_dim(&r, "tokens", t.batch.n_ctx);
    cld_bench_dim(&r, "layers", t.target.n_layers);
    cld_bench_dim(&r, "hidden", t.target.config.hidden);
    s = cld_bench_measure(b, q, run_pass, &t, &r, err);
done:
    cld_bench_case_close(&c);
    cld_target_free(&t.target);
    cld_batch_free(&t.batch);
    return s;
}

enum cld_status cld_bench_target(const struct cld_bench *b, struct cld_error *err)
{
    const int last[] = {(int)b->setup->target.n_layers - 1};
    const struct {
        const char *name;
        const int *taps;
        size_t n_taps;
    } passes[] = {{"all layers", last, 1}, {"to the last tap", b->setup->taps, b->setup->n_taps}};
    enum cld_status s = CLD_OK;
    for (int profile = 0; profile <= b->kernel_times; profile++)
        for (size_t i = 0; i < 2 && !s; i++) {
            struct cld_queue *q = NULL; /* a new one each time: the last's weights go with it */
            if (!(s = cld_bench_open_queue(b, profile, &q, err)))
                s = measure(b, q, profile, passes[i].name, passes[i].taps, passes[i].n_taps, err);
            cld_queue_close(q);
        }
    return s;
}
