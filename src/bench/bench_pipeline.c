/* bench_pipeline.c - steps of all workers that the configuration names, through the pipeline as
 * training uses it, beside the steps of one worker that does everything. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/size.h"
#include "bench/bench.h"
#include "workers/pipeline.h"

/* A pipeline that takes steps. */
struct runner {
    struct cld_config cfg; /* shares the lists of the given one */
    struct cld_worker_set set;
    struct cld_machines machines;
    struct cld_pipeline *pipeline;
    size_t n_updates, n_done; /* n_done: measured steps */
    double tokens, cpu_ms;    /* of a measured step, on average, as below */
    struct cld_pipeline_waits waits;
};

/* Without a target drafters have features as they are. */
static enum cld_status leave_target_out(struct runner *t, struct cld_error *err)
{
    if (t->cfg.bench.target)
        return CLD_OK;
    if (t->set.n_targets)
        return cld_fail(err, CLD_E_USAGE, "name no devices.targets, or set bench.target = yes",
                        "bench.target is no, and there are %zu target workers", t->set.n_targets);
    for (size_t i = 0; i < t->set.n_drafters; i++)
        t->set.workers[i].options.role = CLD_ROLE_DRAFTER_WITHOUT_RING;
    return CLD_OK;
}

static enum cld_status open_runner(struct runner *t, const struct cld_bench *b,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    memset(t, 0, sizeof *t);
    t->cfg = *b->cfg;
    /* Jobs for one step more: no evaluation comes, and targets work ahead to the end. */
    t->cfg.train.steps = b->cfg->bench.warmup + b->cfg->bench.repeats + 1;
    t->cfg.train.evaluate_every = 0;
    t->cfg.features.mode = CLD_FEATURES_ONLINE;
    if ((s = cld_worker_set_make(&t->set, &t->cfg, b->devices, err)) ||
        (s = leave_target_out(t, err)) ||
        (s = cld_machines_join(&t->machines, NULL, t->set.n_drafters, &t->cfg, err)) ||
        (s = cld_worker_set_probe(&t->set, &t->cfg, err)) ||
        (s = cld_worker_set_plan(&t->set, &t->cfg, b->setup, NULL, err)) ||
        (s = cld_pipeline_open(&t->cfg, b->setup, &t->set, &t->machines, b->feed, NULL, NULL, 0,
                               &t->pipeline, err)))
        return s;
    return cld_pipeline_begin(t->pipeline, NULL, NULL, err);
}

static enum cld_status close_runner(struct runner *t, struct cld_error *err)
{
    enum cld_status s = cld_pipeline_close(t->pipeline, NULL, err);
    cld_machines_free(&t->machines);
    cld_worker_set_free(&t->set);
    return s;
}

static enum cld_status take_steps(struct runner *t, const struct cld_bench *b, double *ms,
                                  struct cld_error *err)
{
    size_t n_warm = t->cfg.bench.warmup, n = t->cfg.bench.repeats;
    double cpu_begun = 0, measured_from = 0;
    for (size_t i = 0; i < n_warm + n && !(t->n_done && cld_bench_is_over(b, measured_from)); i++) {
        if (i == n_warm) {
            cpu_begun = cld_cpu_ms();
            measured_from = cld_clock_ms();
        }
        struct cld_step_result r;
        struct cld_pipeline_waits w;
        double begun = cld_clock_ms();
        enum cld_status s = cld_bench_go_on(err);
        if (s || (s = cld_pipeline_step(t->pipeline, t->cfg.train.learning_rate, ++t->n_updates, &r,
                                        &w, err)))
            return s;
        if (i < n_warm)
            continue;
        ms[t->n_done++] = cld_clock_ms() - begun;
        t->tokens += (double)r.n_tokens;
        t->waits.slot_ms += w.slot_ms;
        t->waits.features_ms += w.features_ms;
        t->waits.exchange_ms += w.exchange_ms;
        t->waits.exchange_whole_ms += w.exchange_whole_ms;
    }
    double *const sums[] = {&t->tokens, &t->waits.slot_ms, &t->waits.features_ms,
                            &t->waits.exchange_ms, &t->waits.exchange_whole_ms};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        *sums[i] /= (double)t->n_done;
    t->cpu_ms = (cld_cpu_ms() - cpu_begun) / (double)t->n_done;
    return CLD_OK;
}

static enum cld_status write_steps(const struct runner *t, const struct cld_bench *b, double *ms,
                                   double *median_ms, struct cld_error *err)
{
    const struct cld_worker_facts *f = cld_pipeline_facts(t->pipeline, t->set.n_targets);
    struct cld_bench_result r;
    char name[48];
    snprintf(name, sizeof name, "%zu targets, %zu drafters", t->set.n_targets, t->set.n_drafters);
    cld_bench_step_result(b, "pipeline", name, ms, t->n_done, t->tokens, &r);
    r.device_bytes = f->held_bytes;
    snprintf(r.variant, sizeof r.variant, "attention %s; gemm %s", f->attention, f->gemm);
    *median_ms = r.median_ms;
    cld_info(
        "waits of a step, means over workers: %.3f ms for slots, %.3f ms for features, %.3f ms "
        "for reduce-scatter and all-gather, which were under way for %.3f ms",
        t->waits.slot_ms, t->waits.features_ms, t->waits.exchange_ms, t->waits.exchange_whole_ms);
    for (size_t i = 0; i < t->set.n_targets + t->set.n_drafters; i++) {
        const struct cld_worker_facts *w = cld_pipeline_facts(t->pipeline, i);
        cld_info("%s on %s: %.3f GiB planned, %.3f GiB held, %.3f GiB of pinned host memory",
                 w->name, w->device.name, cld_gib((double)w->planned_bytes),
                 cld_gib((double)w->held_bytes), cld_gib((double)w->pinned_bytes));
    }
    return cld_bench_write(b->sink, &r, err);
}

static enum cld_status measure(const struct cld_bench *b, double *ms, double *median_ms,
                               double *cpu_ms, struct cld_error *err)
{
    struct runner t;
    struct cld_error closing = CLD_ERROR_INIT;
    enum cld_status s = CLD_OK;
    if (!(s = open_runner(&t, b, err)) && !(s = take_steps(&t, b, ms, err)))
        s = write_steps(&t, b, ms, median_ms, err);
    *cpu_ms = t.cpu_ms;
    if (close_runner(&t, &closing) && !s) {
        *err = closing;
        s = closing.status;
    }
    return s;
}

enum cld_status cld_bench_pipeline(const struct cld_bench *b, struct cld_error *err)
{
    size_t n = b->cfg->bench.repeats;
    double *ms = calloc(n, sizeof *ms), together_ms = 0, cpu_ms = 0, alone_cpu_ms = 0;
    struct cld_bench_result alone;
    enum cld_status s = CLD_OK;
    if (!ms) {
        s = cld_fail_memory(err, "%zu times", n);
        goto done;
    }
    if ((s = measure(b, ms, &together_ms, &cpu_ms, err)) ||
        (s = cld_bench_one_worker(b, &alone, &alone_cpu_ms, err)))
        goto done;
    cld_info(
        "a step of the pipeline takes %.3f ms, one worker's %.3f ms (%+.1f%%); in processor time "
        "%.3f and %.3f ms (%+.1f%%)",
        together_ms, alone.median_ms, 100 * (together_ms / alone.median_ms - 1), cpu_ms,
        alone_cpu_ms, 100 * (cpu_ms / alone_cpu_ms - 1));
    s = cld_bench_write(b->sink, &alone, err);
done:
    free(ms);
    return s;
}
