/* bench_build.c - how long the kernels of a training worker take to build: with nothing kept, and
 * from the binaries of an earlier start. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "bench/bench.h"
#include "bench/bench_case.h"
#include "workers/worker.h"

/* A start of a worker as training has it, up to its warm-up, which asks for every kernel; the steps
 * that it takes do not count. */
static enum cld_status start(const struct cld_bench *b, const struct cld_config *cfg, double *ms,
                             struct cld_bench_result *r, struct cld_error *err)
{
    struct cld_worker w;
    struct cld_worker_options options = {.name = "bench",
                                         .train = true,
                                         .role = cfg->bench.target ? CLD_ROLE_BOTH
                                                                   : CLD_ROLE_DRAFTER_WITHOUT_RING,
                                         .n_rows = cfg->train.micro_rows};
    enum cld_status s = CLD_OK;
    if ((s = cld_worker_plan(&w, cfg, b->setup, b->device, &options, err)) ||
        (s = cld_worker_check(&w, err)) || (s = cld_worker_create(&w, err)) ||
        (!cfg->bench.target && (s = cld_worker_make_up_features(&w, err))) ||
        (s = cld_worker_warm_up(&w, err)))
        goto done;
    struct cld_queue_counts counts = cld_queue_counts(w.q);
    *ms = counts.build_ms;
    r->n_dims = 0;
    cld_bench_dim(r, "built", counts.n_builds);
    cld_bench_dim(r, "from_cache", counts.n_cached);
    cld_bench_dim(r, "from_modules", counts.n_modules);
    cld_bench_dim(r, "kernels", counts.n_kernels);
    r->device_bytes = cld_queue_peak_bytes(w.q);
    snprintf(r->variant, sizeof r->variant, "%s", cld_queue_program_origin(w.q));
done:
    cld_worker_close(&w);
    return s;
}

/* At most n starts with programs kept in `dir` ("off": nowhere), ms[n] each; the record of them. */
static enum cld_status measure(const struct cld_bench *b, const char *name, const char *dir,
                               double *ms, size_t n, bool keep, struct cld_error *err)
{
    static const char *const names[] = {"runtime.cache_dir"};
    struct cld_bench_result r = {.what = "build"};
    struct cld_config cfg;
    double begun = cld_clock_ms();
    size_t done = 0;
    enum cld_status s = cld_config_with(b->cfg, names, &dir, 1, &cfg, err);
    while (!s && done < n && !(done && cld_bench_is_over(b, begun)))
        if (!(s = cld_bench_go_on(err)))
            s = start(b, &cfg, &ms[done++], &r, err);
    if (!s && keep) {
        snprintf(r.name, sizeof r.name, "%s", name);
        snprintf(r.storage, sizeof r.storage, "%s", cld_bench_storage_name(cfg.runtime.precision));
        cld_bench_times(&r, ms, done, 1);
        s = cld_bench_write(b->sink, &r, err);
    }
    cld_config_free(&cfg);
    return s;
}

enum cld_status cld_bench_build(const struct cld_bench *b, struct cld_error *err)
{
    const char *root = getenv("TMPDIR");
    size_t n = b->cfg->bench.repeats;
    double *ms = calloc(n, sizeof *ms), once;
    char *dir = cld_format("%s/cldraft-bench-XXXXXX", root && *root ? root : "/tmp");
    bool made = false;
    enum cld_status s = CLD_OK;
    if (!ms || !dir) {
        s = cld_fail_memory(err, "%zu times", n);
        goto done;
    }
    if (!(made = mkdtemp(dir) != NULL)) {
        s = cld_fail(err, CLD_E_IO, "set TMPDIR to a directory that can be written",
                     "cannot make %s", dir);
        goto done;
    }
    if (!(s = measure(b, "nothing kept", "off", ms, n, true, err)) &&
        !(s = measure(b, "filling", dir, &once, 1, false, err)))
        s = measure(b, "from kept binaries", dir, ms, n, true, err);
done:
    if (made) {
        struct cld_error unused = CLD_ERROR_INIT;
        cld_dir_remove(dir, &unused);
    }
    free(dir);
    free(ms);
    return s;
}
