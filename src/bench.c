#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "crew.h"
#include "log.h"
#include "worker.h"

/* Runs of a repeat at most, however quick they are. */
static const size_t max_runs = 100000;

void cld_bench_dim(struct cld_bench_record *r, const char *name, size_t n)
{
    if (r->n_dims < cld_bench_max_dims)
        r->shape[r->n_dims++] = (struct cld_bench_dim){name, n};
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void cld_bench_times(struct cld_bench_record *r, double *ms, size_t n, size_t runs)
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
static enum cld_status find_runs(struct cld_queue *q, cld_bench_fn *run, void *arg, double least_ms,
                                 size_t *runs, struct cld_error *err)
{
    *runs = 1;
    for (;;) {
        double ms = 0;
        enum cld_status s = time_runs(q, run, arg, *runs, &ms, err);
        if (s || ms >= least_ms || *runs >= max_runs)
            return s;
        /* In steps: the first runs are slower, so a look ahead overshoots. */
        double more = fmin(8, fmax(1.1, 1.1 * least_ms / fmax(ms, 1e-6)));
        *runs = cld_min(max_runs, (size_t)ceil((double)*runs * more));
    }
}

enum cld_status cld_bench_measure(const struct cld_bench *b, struct cld_queue *q, cld_bench_fn *run,
                                  void *arg, struct cld_bench_record *r, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = b->cfg->bench.repeats, runs = 1;
    double unused = 0, *ms = malloc(cld_mul(n, sizeof *ms));
    if (!ms) {
        s = cld_fail(err, CLD_E_MEMORY, "", "no host memory for %zu times", n);
        goto done;
    }
    if ((s = time_runs(q, run, arg, b->cfg->bench.warmup, &unused, err)) ||
        (s = find_runs(q, run, arg, b->cfg->bench.least_ms, &runs, err)))
        goto done;
    for (size_t i = 0; i < n && !s; i++)
        s = time_runs(q, run, arg, runs, &ms[i], err);
    if (s)
        goto done;
    cld_bench_times(r, ms, n, runs);
    r->device_bytes = cld_queue_held_bytes(q);
    s = cld_bench_write(b->sink, r, err);
done:
    free(ms);
    return s;
}

/* --- what the configuration asks for ---------------------------------------------------------- */

static bool asks_for(const struct cld_config *cfg, enum cld_bench_what what)
{
    for (size_t i = 0; i < cfg->bench.what.n; i++)
        if (cfg->bench.what.v[i] == (int)what)
            return true;
    return false;
}

static enum cld_status run_operations(const struct cld_bench *b, struct cld_error *err)
{
    static const struct {
        enum cld_bench_what what;
        enum cld_status (*run)(const struct cld_bench *b, struct cld_queue *q,
                               struct cld_error *err);
    } all[] = {{CLD_BENCH_GEMM, cld_bench_gemm},
               {CLD_BENCH_ATTENTION, cld_bench_attention},
               {CLD_BENCH_LOSS, cld_bench_loss},
               {CLD_BENCH_ELEMENTWISE, cld_bench_elementwise}};
    struct cld_queue *q = NULL;
    struct cld_queue_options options = {
        .name = "bench",
        .budget_bytes = cld_worker_budget_bytes(b->cfg, b->device),
        .programs = {.source = b->cfg->runtime.program, .modules = b->cfg->runtime.modules}};
    enum cld_status s = cld_queue_open(b->device, &options, &q, err);
    for (size_t i = 0; i < sizeof all / sizeof *all && !s; i++)
        if (asks_for(b->cfg, all[i].what))
            s = all[i].run(b, q, err);
    cld_queue_close(q);
    return s;
}

enum cld_status cld_bench_point(const struct cld_bench *b, struct cld_error *err)
{
    enum cld_status s = run_operations(b, err);
    if (!s && asks_for(b->cfg, CLD_BENCH_TARGET))
        s = cld_bench_target(b, err);
    if (!s && asks_for(b->cfg, CLD_BENCH_STEP))
        s = cld_bench_step(b, err);
    if (!s && asks_for(b->cfg, CLD_BENCH_PIPELINE))
        s = cld_bench_pipeline(b, err);
    return s;
}

enum cld_status cld_bench_run(const struct cld_config *cfg, const char *device,
                              enum cld_bench_format format, bool kernel_times, FILE *to,
                              struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_devices *devices = NULL;
    struct cld_device_info picked;
    struct cld_feed *feed = NULL;
    struct cld_setup setup;
    struct cld_bench_sink sink = {.to = to, .format = format, .device = &picked};
    struct cld_bench b = {
        .cfg = cfg, .device = &picked, .sink = &sink, .kernel_times = kernel_times};
    int64_t mask_token = -1;
    if ((s = cld_devices_open(&devices, err)) ||
        (s = cld_crew_pick(devices, cfg, device, &picked, err)))
        goto done;
    cld_info("device %zu: %s (%s, driver %s)", picked.index, picked.name, picked.platform,
             picked.driver);
    for (size_t i = 0; i < cfg->bench.what.n && !b.setup; i++)
        if (cfg->bench.what.v[i] != CLD_BENCH_GEMM)
            b.setup = &setup;
    if (b.setup && ((s = cld_feed_open(cfg, &feed, err)) ||
                    (s = cld_feed_mask_token(feed, &mask_token, err)) ||
                    (s = cld_setup_read(cfg, mask_token, &setup, err))))
        goto done;
    b.devices = devices;
    if (asks_for(cfg, CLD_BENCH_STEP) || asks_for(cfg, CLD_BENCH_PIPELINE)) {
        if ((s = cld_feed_load(feed, setup.target.vocab, true, err)))
            goto done;
        b.feed = feed;
    }
    cld_bench_begin(&sink);
    s = cld_bench_point(&b, err);
    struct cld_error ending = CLD_ERROR_INIT;
    if (cld_bench_end(&sink, &ending) && !s) {
        *err = ending;
        s = ending.status;
    }
done:
    cld_feed_close(feed);
    cld_devices_close(devices);
    return s;
}
