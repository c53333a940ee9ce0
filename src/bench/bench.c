#include "bench/bench.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "check/self_test.h"
#include "ops/verdicts.h"
#include "workers/worker.h"

/* Runs of a repeat at most, however quick they are. */
static const size_t max_runs = 100000;

void cld_bench_dim(struct cld_bench_result *r, const char *name, size_t n)
{
    if (r->n_dims < cld_bench_max_dims)
        r->shape[r->n_dims++] = (struct cld_bench_dim){name, n};
}

enum cld_status cld_bench_write(struct cld_bench_sink *sink, const struct cld_bench_result *r,
                                struct cld_error *err)
{
    return sink->put(sink->arg, r, err);
}

enum cld_status cld_bench_go_on(struct cld_error *err)
{
    return cld_signals_stop_asked() ? cld_fail(err, CLD_E_INTERRUPTED, "", "stopped by a signal")
                                    : CLD_OK;
}

bool cld_bench_is_over(const struct cld_bench *b, double begun_ms)
{
    double limit_s = b->cfg->bench.limit_s;
    return limit_s > 0 && cld_clock_ms() - begun_ms > limit_s * 1e3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void cld_bench_times(struct cld_bench_result *r, double *ms, size_t n, size_t runs)
{
    double each = 1.0 / (double)runs;
    qsort(ms, n, sizeof *ms, by_value);
    r->repeats = n;
    r->runs = runs;
    r->min_ms = ms[0] * each;
    r->max_ms = ms[n - 1] * each;
    r->median_ms = (ms[(n - 1) / 2] + ms[n / 2]) * 0.5 * each;
}

/* Host time from the first enqueue until the device is done. */
static enum cld_status time_runs(struct cld_queue *q, cld_bench_fn *run, void *arg, size_t n,
                                 double *ms, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    double begun = cld_clock_ms();
    for (size_t i = 0; i < n && !s; i++)
        s = run(q, arg, err);
    if (!s)
        s = cld_queue_finish(q, err);
    *ms = cld_clock_ms() - begun;
    return s;
}

/* Grows the number of runs until they last long enough that launching and waiting do not count. */
static enum cld_status find_runs(struct cld_queue *q, cld_bench_fn *run, void *arg, double min_ms,
                                 size_t *runs, struct cld_error *err)
{
    *runs = 1;
    for (;;) {
        double ms = 0;
        enum cld_status s = time_runs(q, run, arg, *runs, &ms, err);
        if (s || ms >= min_ms || *runs >= max_runs)
            return s;
        /* In steps: the first runs are slower, so a look ahead overshoots. */
        double more = fmin(8, fmax(1.1, 1.1 * min_ms / fmax(ms, 1e-6)));
        *runs = cld_min(max_runs, (size_t)ceil((double)*runs * more));
    }
}

enum cld_status cld_bench_measure(const struct cld_bench *b, struct cld_queue *q, cld_bench_fn *run,
                                  void *arg, struct cld_bench_result *r, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = b->cfg->bench.repeats, runs = 1, done = 0;
    double unused = 0, begun = 0, *ms = malloc(cld_mul(n, sizeof *ms));
    if (!ms) {
        s = cld_fail_memory(err, "%zu times", n);
        goto done;
    }
    if ((s = time_runs(q, run, arg, b->cfg->bench.warmup, &unused, err)) ||
        (s = find_runs(q, run, arg, b->cfg->bench.min_ms, &runs, err)))
        goto done;
    begun = cld_clock_ms();
    do {
        if ((s = cld_bench_go_on(err)) || (s = time_runs(q, run, arg, runs, &ms[done++], err)))
            goto done;
    } while (done < n && !cld_bench_is_over(b, begun));
    cld_bench_times(r, ms, done, runs);
    r->device_bytes = cld_queue_held_bytes(q);
    s = cld_bench_write(b->sink, r, err);
done:
    free(ms);
    return s;
}

/* --- kinds ------------------------------------------------------------------------------------ */

enum cld_status cld_bench_open_queue(const struct cld_bench *b, bool profile,
                                     struct cld_queue **out, struct cld_error *err)
{
    struct cld_tuning tuning;
    struct cld_queue_options options = {
        .name = "bench",
        .profile = profile,
        .budget_bytes = cld_plan_budget_bytes(b->cfg, b->device),
        .tuning = &tuning,
        .programs = {.source = b->cfg->runtime.program, .modules = b->cfg->runtime.modules}};
    enum cld_status s = cld_tuning_of(b->cfg, b->device, &tuning, err);
    if (s || (s = cld_queue_open_probed(b->device, &options, out, err)))
        return s;
    if ((s = cld_tuning_check(*out, b->cfg, b->device, NULL, err))) {
        cld_queue_close(*out);
        *out = NULL;
    }
    return s;
}

static int longer_first(const void *a, const void *b)
{
    double x = ((const struct cld_kernel_time *)a)->ms, y = ((const struct cld_kernel_time *)b)->ms;
    return (x < y) - (x > y);
}

enum cld_status cld_bench_log_kernels(struct cld_queue *q, const char *of, double n_runs,
                                      double wall_ms, struct cld_error *err)
{
    struct cld_kernel_time *times = NULL;
    size_t n = 0;
    double sum = 0;
    enum cld_status s = cld_queue_times(q, &times, &n, err);
    if (s)
        return s;
    qsort(times, n, sizeof *times, longer_first);
    for (size_t i = 0; i < n; i++)
        sum += times[i].ms;
    cld_debug("kernels of %s: %.3f ms of %.3f ms, which this takes while kernels are timed:", of,
              sum / n_runs, wall_ms / n_runs);
    for (size_t i = 0; i < n; i++)
        cld_debug("%9.3f ms %5.1f%% %6.1f launches  %s", times[i].ms / n_runs,
                  sum > 0 ? 100 * times[i].ms / sum : 0, (double)times[i].n / n_runs,
                  times[i].name);
    free(times);
    return CLD_OK;
}

typedef enum cld_status on_queue(const struct cld_bench *b, struct cld_queue *q,
                                 struct cld_error *err);

static enum cld_status measure_transfers(const struct cld_bench *b, struct cld_queue *q,
                                         struct cld_error *err)
{
    enum cld_status s = cld_bench_transfer(b, q, err);
    return s ? s : cld_bench_ring(b, q, err);
}

static const struct {
    on_queue *on_queue; /* or it opens queues of its own: */
    enum cld_status (*alone)(const struct cld_bench *b, struct cld_error *err);
    bool needs_setup, needs_rows;
    enum cld_bench_bound bound;
} kinds[CLD_N_BENCH_WHAT] = {
    [CLD_BENCH_GEMM] = {cld_bench_gemm, NULL, false, false, CLD_BENCH_BY_BOTH},
    [CLD_BENCH_ATTENTION] = {cld_bench_attention, NULL, true, false, CLD_BENCH_BY_BOTH},
    [CLD_BENCH_LOSS] = {cld_bench_loss, NULL, true, false, CLD_BENCH_BY_BOTH},
    [CLD_BENCH_ELEMENTWISE] = {cld_bench_elementwise, NULL, true, false, CLD_BENCH_BY_COPIES},
    [CLD_BENCH_TARGET] = {NULL, cld_bench_target, true, false, CLD_BENCH_BY_BOTH},
    [CLD_BENCH_STEP] = {NULL, cld_bench_step, true, true, CLD_BENCH_UNBOUND},
    [CLD_BENCH_PIPELINE] = {NULL, cld_bench_pipeline, true, true, CLD_BENCH_UNBOUND},
    [CLD_BENCH_TRANSFER] = {measure_transfers, NULL, false, false, CLD_BENCH_BY_COPIES},
    [CLD_BENCH_BUILD] = {NULL, cld_bench_build, true, false, CLD_BENCH_UNBOUND}};

enum cld_bench_bound cld_bench_bound(enum cld_bench_what what)
{
    return kinds[what].bound;
}

bool cld_bench_needs_setup(enum cld_bench_what what)
{
    return kinds[what].needs_setup;
}

bool cld_bench_needs_rows(enum cld_bench_what what)
{
    return kinds[what].needs_rows;
}

enum cld_status cld_bench_kind(const struct cld_bench *b, enum cld_bench_what what,
                               struct cld_error *err)
{
    struct cld_queue *q = NULL;
    if (kinds[what].alone)
        return kinds[what].alone(b, err);
    enum cld_status s = cld_bench_open_queue(b, false, &q, err);
    if (!s)
        s = kinds[what].on_queue(b, q, err);
    cld_queue_close(q);
    return s;
}
