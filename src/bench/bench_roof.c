#include "bench/bench_roof.h"

#include <math.h>
#include <stdio.h>

#include "base/log.h"
#include "bench/bench_case.h"

/* A product that takes so long hides launches and fills the device; larger ones gain nothing. */
static const double long_ms = 25;
static const size_t largest = 8192;
static const size_t copied_bytes = (size_t)256 << 20;

/* Keeps the best of what it is given: from the least time, since a bound is what is possible. */
struct best {
    double gflops, gb_per_s, min_ms;
};

static enum cld_status keep_best(void *arg, const struct cld_bench_result *r, struct cld_error *err)
{
    struct best *best = arg;
    (void)err;
    best->min_ms = r->min_ms;
    if (r->min_ms > 0) {
        best->gflops = fmax(best->gflops, r->flop / (r->min_ms * 1e6));
        best->gb_per_s = fmax(best->gb_per_s, r->bytes / (r->min_ms * 1e6));
    }
    return CLD_OK;
}

/* `b` with the settings names[n] = values[n], its records going to *best. `cfg` is to be freed. */
static enum cld_status aside(const struct cld_bench *b, const char *const *names,
                             const char *const *values, size_t n, struct cld_config *cfg,
                             struct cld_bench_sink *sink, struct best *best, struct cld_bench *out,
                             struct cld_error *err)
{
    *best = (struct best){0};
    *sink = (struct cld_bench_sink){.put = keep_best, .arg = best};
    *out = *b;
    out->cfg = cfg;
    out->sink = sink;
    return cld_config_with(b->cfg, names, values, n, cfg, err);
}

enum cld_status cld_bench_roof_copy(const struct cld_bench *b, double *gb_per_s,
                                    struct cld_error *err)
{
    static const char *const names[] = {"bench.repeats", "bench.warmup", "bench.min_ms"};
    static const char *const values[] = {"5", "2", "0"};
    struct cld_config cfg;
    struct cld_bench_sink sink;
    struct cld_bench one;
    struct best best;
    struct cld_queue *q = NULL;
    enum cld_status s = CLD_OK;
    *gb_per_s = 0;
    if ((s = aside(b, names, values, 3, &cfg, &sink, &best, &one, err)) ||
        (s = cld_bench_open_queue(&one, false, &q, err)) ||
        (s = cld_bench_device_copy(&one, q, cld_min(copied_bytes, cld_queue_budget_bytes(q) / 8),
                                   err)))
        goto done;
    *gb_per_s = best.gb_per_s;
done:
    cld_queue_close(q);
    cld_config_free(&cfg);
    return s;
}

static enum cld_status square(const struct cld_bench *b, enum cld_dtype storage, size_t n,
                              struct best *best, struct cld_error *err)
{
    static const char *const names[] = {"bench.repeats", "bench.warmup",  "bench.min_ms",
                                        "bench.gemm",    "bench.storage", "bench.shapes"};
    char shape[64];
    const char *const values[] = {"3", "1", "5", "auto", cld_bench_storage_name(storage), shape};
    struct cld_config cfg;
    struct cld_bench_sink sink;
    struct cld_bench one;
    snprintf(shape, sizeof shape, "%zux%zux%zu", n, n, n);
    enum cld_status s = aside(b, names, values, 6, &cfg, &sink, best, &one, err);
    if (!s)
        s = cld_bench_kind(&one, CLD_BENCH_GEMM, err);
    cld_config_free(&cfg);
    return s;
}

enum cld_status cld_bench_roof_gemm(const struct cld_bench *b, enum cld_dtype storage,
                                    double *gflops, struct cld_error *err)
{
    *gflops = 0;
    for (size_t n = 512; n <= largest; n *= 2) {
        struct best best;
        enum cld_status s = square(b, storage, n, &best, err);
        if (s == CLD_E_MEMORY && *gflops > 0)
            break; /* what fitted counts */
        if (s)
            return s;
        *gflops = fmax(*gflops, best.gflops);
        if (best.min_ms > long_ms)
            break;
    }
    cld_info("the best GEMM in %s reaches %.1f GFLOP/s", cld_bench_storage_name(storage), *gflops);
    return CLD_OK;
}
