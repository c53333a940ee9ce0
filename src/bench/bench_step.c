/* bench_step.c - whole training steps of the configured target and drafter: with the target at
 * work, and from precomputed features; where the time of a step goes. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "bench/bench.h"
#include "ops/ops.h"
#include "workers/step.h"

/* A worker that takes steps, and how far it is. */
struct stepper {
    const struct cld_bench *b;
    struct cld_worker w;
    struct cld_step step;
    size_t n_updates, n_done; /* n_done: measured steps of the last call of take_steps */
    double tokens;            /* of the measured steps */
    double first_ms, cpu_ms;  /* cpu_ms: of a measured step, on average */
};

static enum cld_status open_stepper(struct stepper *t, const struct cld_bench *b, bool with_target,
                                    bool profile, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_worker_options options = {.name = "bench",
                                         .train = true,
                                         .profile = profile,
                                         .role = with_target ? CLD_ROLE_BOTH
                                                             : CLD_ROLE_DRAFTER_WITHOUT_RING,
                                         .n_rows = b->cfg->train.micro_rows};
    memset(t, 0, sizeof *t);
    t->b = b;
    t->step.w = &t->w;
    if ((s = cld_worker_plan(&t->w, b->cfg, b->setup, b->device, &options, err)) ||
        (s = cld_worker_check(&t->w, err)) || (s = cld_worker_create(&t->w, err)) ||
        (!with_target && (s = cld_worker_make_up_features(&t->w, err))) ||
        (s = cld_drafter_init(&t->w.drafter, (uint64_t)b->cfg->run.seed, b->cfg->drafter.init_std,
                              err)))
        return s;
    return cld_worker_warm_up(&t->w, err);
}

static void close_stepper(struct stepper *t)
{
    cld_step_free(&t->step);
    cld_worker_close(&t->w);
}

/* Step number `at` of the feed, until the device is done. */
static enum cld_status take_step(struct stepper *t, size_t at, double *ms,
                                 struct cld_step_result *r, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_document *docs = NULL;
    size_t n_docs = 0;
    double begun = cld_clock_ms();
    if ((s = cld_feed_step(t->b->feed, at, &docs, &n_docs, err)))
        return s;
    double fed = cld_clock_ms();
    if ((s = cld_step_run(&t->step, docs, n_docs, t->b->cfg->train.learning_rate, ++t->n_updates, r,
                          err)) ||
        (s = cld_queue_finish(t->w.q, err)))
        return s;
    *ms = cld_clock_ms() - begun;
    r->part_ms[CLD_STEP_BATCH] += fed - begun;
    return cld_drafter_check_tiles(&t->w.drafter, err);
}

/* Warm-up and measured steps, the same ones of the feed at every call. ms: [repeats], and part_ms
 * [CLD_N_STEP_PARTS * repeats]; t->n_done of each are set. */
static enum cld_status take_steps(struct stepper *t, double *ms, double *part_ms,
                                  struct cld_error *err)
{
    size_t n_warm = t->b->cfg->bench.warmup, n = t->b->cfg->bench.repeats;
    double cpu_begun = 0, begun = 0;
    t->tokens = 0;
    t->n_done = 0;
    for (size_t i = 0; i < n_warm + n && !(t->n_done && cld_bench_is_over(t->b, begun)); i++) {
        if (i == n_warm) {
            cpu_begun = cld_cpu_ms();
            begun = cld_clock_ms();
        }
        struct cld_step_result r;
        double step_ms = 0;
        enum cld_status s = cld_bench_go_on(err);
        if (s || (s = take_step(t, i, &step_ms, &r, err)))
            return s;
        if (!i)
            t->first_ms = step_ms;
        if (i + 1 == n_warm)
            cld_queue_times_reset(t->w.q);
        if (i < n_warm)
            continue;
        ms[t->n_done] = step_ms;
        t->tokens += (double)r.n_tokens;
        for (size_t p = 0; p < CLD_N_STEP_PARTS; p++)
            part_ms[p * n + t->n_done] = r.part_ms[p];
        t->n_done++;
    }
    t->tokens /= (double)t->n_done;
    t->cpu_ms = (cld_cpu_ms() - cpu_begun) / (double)t->n_done;
    return CLD_OK;
}

void cld_bench_step_result(const struct cld_bench *b, const char *what, const char *name,
                           double *ms, size_t n, double tokens, struct cld_bench_result *r)
{
    const struct cld_config *cfg = b->cfg;
    const struct cld_drafter_config *d = &b->setup->drafter;
    *r = (struct cld_bench_result){.what = what, .tokens = tokens};
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->storage, sizeof r->storage, "%s",
             cfg->runtime.precision == CLD_BF16 ? "bf16" : "fp32");
    cld_bench_dim(r, "batch_rows", cfg->train.batch_rows);
    cld_bench_dim(r, "micro_rows", cfg->train.micro_rows);
    cld_bench_dim(r, "max_length", cfg->data.max_length);
    cld_bench_dim(r, "anchors", cfg->train.anchors);
    cld_bench_dim(r, "block", d->block_size);
    cld_bench_dim(r, "layers", d->n_layers);
    cld_bench_dim(r, "hidden", d->hidden);
    cld_bench_dim(r, "vocab", d->vocab);
    cld_bench_times(r, ms, n, 1);
}

static void make_record(const struct stepper *t, const char *what, const char *name, double *ms,
                        size_t n, double tokens, struct cld_bench_result *r)
{
    cld_bench_step_result(t->b, what, name, ms, n, tokens, r);
    r->device_bytes = cld_queue_peak_bytes(t->w.q);
    snprintf(r->variant, sizeof r->variant, "attention %s; gemm %s", t->w.drafter.attention.variant,
             cld_gemm_backend_name(t->w.q, t->w.drafter.gemm));
}

static enum cld_status write_record(struct stepper *t, const char *name, double *ms, size_t n,
                                    double tokens, struct cld_error *err)
{
    struct cld_bench_result r;
    make_record(t, "step", name, ms, n, tokens, &r);
    return cld_bench_write(t->b->sink, &r, err);
}

/* The first step beside the others: the warm-up is to leave nothing to it. */
static enum cld_status write_first(struct stepper *t, const char *kind, const double *ms,
                                   struct cld_error *err)
{
    char name[48];
    double median_ms = ms[t->n_done / 2]; /* sorted by the record of all */
    snprintf(name, sizeof name, "first step, %s", kind);
    cld_info("%s: %.3f ms, %.2f times the median of later ones", name, t->first_ms,
             median_ms > 0 ? t->first_ms / median_ms : 0);
    return write_record(t, name, &t->first_ms, 1, 0, err);
}

/* First the step as training takes it, then once more with a wait after each part. */
static enum cld_status measure(const struct cld_bench *b, bool with_target, double *ms,
                               double *part_ms, struct cld_error *err)
{
    struct stepper t;
    size_t n = b->cfg->bench.repeats;
    const char *kind = with_target ? "target online" : "precomputed features";
    enum cld_status s = open_stepper(&t, b, with_target, false, err);
    if (s || (s = take_steps(&t, ms, part_ms, err)) ||
        (s = write_record(&t, kind, ms, t.n_done, t.tokens, err)) ||
        (s = write_first(&t, kind, ms, err)))
        goto done;
    t.step.split = true;
    if ((s = take_steps(&t, ms, part_ms, err)))
        goto done;
    /* The target's part is known from the run that has one, the others from the run without. */
    for (size_t p = 0; p < CLD_N_STEP_PARTS && !s; p++) {
        char name[48];
        snprintf(name, sizeof name, "part: %s", cld_step_part_name((enum cld_step_part)p));
        if ((p == CLD_STEP_TARGET) == with_target)
            s = write_record(&t, name, part_ms + p * n, t.n_done, 0, err);
    }
done:
    close_stepper(&t);
    return s;
}

enum cld_status cld_bench_one_worker(const struct cld_bench *b, struct cld_bench_result *r,
                                     double *cpu_ms, struct cld_error *err)
{
    struct stepper t;
    size_t n = b->cfg->bench.repeats;
    double *ms = calloc(n, sizeof *ms), *part_ms = calloc(n, CLD_N_STEP_PARTS * sizeof *part_ms);
    enum cld_status s = open_stepper(&t, b, b->cfg->bench.target, false, err);
    if (!s && (!ms || !part_ms))
        s = cld_fail_memory(err, "%zu times", n);
    if (!s && !(s = take_steps(&t, ms, part_ms, err))) {
        make_record(&t, "pipeline", "one worker, no threads", ms, t.n_done, t.tokens, r);
        *cpu_ms = t.cpu_ms;
    }
    close_stepper(&t);
    free(ms);
    free(part_ms);
    return s;
}

/* Steps from precomputed features once more, on a queue that times every kernel by events. */
static enum cld_status log_kernels(const struct cld_bench *b, double *ms, double *part_ms,
                                   struct cld_error *err)
{
    struct stepper t;
    double wall_ms = 0;
    enum cld_status s = open_stepper(&t, b, false, true, err);
    if (!s && !(s = take_steps(&t, ms, part_ms, err))) {
        for (size_t i = 0; i < t.n_done; i++)
            wall_ms += ms[i];
        s = cld_bench_log_kernels(t.w.q, "a step from precomputed features", (double)t.n_done,
                                  wall_ms, err);
    }
    close_stepper(&t);
    return s;
}

enum cld_status cld_bench_step(const struct cld_bench *b, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = b->cfg->bench.repeats;
    double *ms = calloc(n, sizeof *ms), *part_ms = calloc(n, CLD_N_STEP_PARTS * sizeof *part_ms);
    if (!ms || !part_ms)
        s = cld_fail_memory(err, "%zu times", n);
    if (!s && !(s = measure(b, true, ms, part_ms, err)) &&
        !(s = measure(b, false, ms, part_ms, err)) && b->kernel_times)
        s = log_kernels(b, ms, part_ms, err);
    free(ms);
    free(part_ms);
    return s;
}
