/* bench_tune.c - tunes what a configuration runs on one device, and writes the table of it. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "bench/bench_subject.h"
#include "check/self_test.h"
#include "opencl/cache.h"
#include "ops/tuning.h"
#include "ops/verdicts.h"
#include "workers/worker_set.h"

struct run {
    const struct cld_tune_options *o;
    struct cld_tune_shapes shapes;
    struct cld_queue *q;
    struct cld_tuned_result records[CLD_N_TUNED * cld_tuned_classes];
    size_t n_records;
    struct cld_error left_out; /* why a class was, last */
    double begun_ms;
};

static void put_result(struct run *t, const struct cld_tune_result *r)
{
    const struct cld_tuned_result *m = &r->record;
    const struct cld_tunable_kernel *f = cld_tunable_kernel(m->family);
    struct cld_tuned_row standard = f->defaults(t->shapes.bench.device);
    char values[160];
    cld_tuned_row_text(f, &m->row, &standard, values, sizeof values);
    fprintf(t->o->to,
            "| %s | %s | %s | %.4f | %.4f | %+.1f %% | %.1f %% | %s | %zu (%zu, %zu, %zu)%s |\n",
            f->name, f->classes[m->class], m->of, m->default_ms, m->ms,
            100 * (1 - m->ms / m->default_ms), 100 * m->noise, *values ? values : "default",
            r->n_candidates, r->n_filtered, r->n_wrong, r->n_slower,
            r->complete ? "" : ", in part");
    fflush(t->o->to);
}

/* A subject whose operands exist. */
static enum cld_status tune_subject(struct run *t, const struct cld_tune_subject *subject,
                                    double deadline_ms, struct cld_error *err)
{
    struct cld_tune_result result;
    const struct cld_tune_limits limits = {.repeats = t->shapes.bench.cfg->bench.repeats,
                                           .min_ms = t->shapes.bench.cfg->bench.min_ms,
                                           .deadline_ms = deadline_ms};
    enum cld_status s =
        cld_tune_class(t->q, subject, &limits, t->o->verbose ? stderr : NULL, &result, err);
    if (s)
        return s;
    put_result(t, &result);
    /* Without a candidate no row won: writing the default would hide a row that was measured
     * before. */
    if (result.n_candidates)
        t->records[t->n_records++] = result.record;
    else
        cld_warn("%s/%s keeps the row that it had: there was no time for a candidate",
                 cld_tunable_kernel(subject->family)->name,
                 cld_tunable_kernel(subject->family)->classes[subject->class]);
    return CLD_OK;
}

/* What does not fit, or does not run, is left out. */
static enum cld_status tune_class(struct run *t, enum cld_tuned family, size_t class,
                                  double deadline_ms, struct cld_error *err)
{
    const struct cld_tunable_kernel *f = cld_tunable_kernel(family);
    struct cld_check_op quick[2], whole[2];
    struct cld_tune_subject subject = {
        .family = family, .class = class, .quick = quick, .whole = whole};
    bool any = false;
    cld_tuned_check(family, false, quick);
    cld_tuned_check(family, true, whole);
    enum cld_status s = cld_tune_subject_make(&t->shapes, t->q, &subject, &any, err);
    if (!s && any)
        s = tune_subject(t, &subject, deadline_ms, err);
    else if (!s)
        cld_info("%s/%s: the configuration has no such shape", f->name, f->classes[class]);
    cld_tune_subject_free(&subject);
    if (s == CLD_E_MEMORY || s == CLD_E_DEVICE) {
        cld_warn("%s/%s is left out: %s", f->name, f->classes[class], err->what);
        t->left_out = *err;
        *err = (struct cld_error)CLD_ERROR_INIT;
        s = CLD_OK;
    }
    return s;
}

static bool is_wanted(const struct run *t, enum cld_tuned family, size_t class)
{
    return !t->o->skip[family] && cld_tunable_kernel(family)->works(t->q) &&
           class < cld_tuned_n_classes(cld_tunable_kernel(family)) &&
           cld_tune_subject_may_be(&t->shapes, family, class);
}

/* Each class gets an equal part of the time that is left. */
static enum cld_status tune_all(struct run *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_left = 0, n_skipped = 0;
    for (size_t i = 0; i < CLD_N_TUNED * cld_tuned_classes; i++)
        n_left += is_wanted(t, (enum cld_tuned)(i / cld_tuned_classes), i % cld_tuned_classes);
    for (int f = 0; f < CLD_N_TUNED; f++)
        n_skipped += t->o->skip[f];
    for (int f = 0; n_skipped && f < CLD_N_TUNED; f++)
        if (!t->o->skip[f] && !cld_tunable_kernel((enum cld_tuned)f)->works(t->q))
            cld_warn("%s is left out: %s does not run it",
                     cld_tunable_kernel((enum cld_tuned)f)->name, t->shapes.bench.device->name);
    if (!n_left)
        return cld_fail(err, CLD_E_USAGE, "leave --only out, or name others",
                        "this device runs none of the kernels asked for");
    fprintf(t->o->to,
            "| kernel | class | shapes | default ms | best ms | gain | noise | parameters | "
            "candidates (filtered, wrong, not faster) |\n|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < CLD_N_TUNED * cld_tuned_classes && !s; i++) {
        enum cld_tuned family = (enum cld_tuned)(i / cld_tuned_classes);
        size_t class = i % cld_tuned_classes;
        if (!is_wanted(t, family, class))
            continue;
        double now = cld_clock_ms(), end = t->begun_ms + t->o->limit_s * 1e3;
        double deadline = now + (end - now) / (double)n_left--;
        if (t->o->limit_s > 0 && now > end) {
            cld_warn("time is up: %s/%s and later classes are skipped",
                     cld_tunable_kernel(family)->name, cld_tunable_kernel(family)->classes[class]);
            break;
        }
        s = tune_class(t, family, class, t->o->limit_s > 0 ? deadline : 0, err);
    }
    return s;
}

/* Where the table goes; freed with free(). */
static enum cld_status table_path(const struct run *t, char **out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *dir = NULL;
    struct cld_cache *cache = NULL;
    if (t->o->out) {
        if (!(s = cld_tuning_writable(t->o->out, CLD_TUNING_NAMED, t->shapes.bench.device, err)))
            *out = cld_format("%s", t->o->out);
    } else if (!(s = cld_cache_dir(t->shapes.bench.cfg->runtime.cache_dir, &dir, err)) && dir &&
               (cache = cld_cache_open(dir, CLD_CACHE_CAP_BYTES))) {
        *out = cld_tuning_path(dir, t->shapes.bench.device);
        if (*out)
            s = cld_tuning_writable(*out, CLD_TUNING_AUTOMATIC, t->shapes.bench.device, err);
    } else if (!s) {
        s = cld_fail(err, CLD_E_USAGE, "add --out FILE, or set runtime.cache_dir",
                     "there is no directory for the table of tuned kernels");
    }
    if (!s && !*out)
        s = cld_fail_memory(err, "a path");
    cld_cache_close(cache);
    free(dir);
    return s;
}

/* Writes what there is, however the tuning ended; *err is of that, or else of the writing. */
static enum cld_status keep_records(const struct run *t, const char *path, enum cld_status s,
                                    struct cld_error *err)
{
    struct cld_error failed = CLD_ERROR_INIT;
    if (s == CLD_E_INTERRUPTED)
        s = cld_fail(err, s, "", "stopped by a signal after %zu classes were tuned", t->n_records);
    if (!t->n_records && !s) {
        *err = t->left_out;
        s = err->status;
    }
    if (!t->n_records && !s)
        return cld_fail(err, CLD_E_USAGE,
                        "give --seconds more time, or name shapes in bench.shapes",
                        "nothing was tuned, so no table is written");
    if (!t->n_records)
        return s;
    if (!cld_tuning_save(path, t->shapes.bench.device, t->records, t->n_records, &failed))
        cld_info("%s: %zu rows of tuned parameters", path, t->n_records);
    else if (!s)
        *err = failed;
    else
        cld_warn("the table is not written: %s", failed.what);
    return s ? s : failed.status;
}

enum cld_status cld_tune_run(const struct cld_config *cfg, const struct cld_tune_options *o,
                             struct cld_error *err)
{
    struct cld_devices *devices = NULL;
    struct cld_device_info device;
    struct run t = {.o = o, .left_out = CLD_ERROR_INIT, .begun_ms = cld_clock_ms()};
    struct cld_queue_options queue = {
        .name = "tuner",
        .profile = true,
        .programs = {.source = cfg->runtime.program, .modules = cfg->runtime.modules}};
    char *path = NULL;
    enum cld_status s = cld_devices_open(&devices, err);
    if (s || (s = cld_worker_find_device(devices, cfg, o->device, &device, err)))
        goto done;
    t.shapes.bench = (struct cld_bench){.cfg = cfg, .device = &device, .devices = devices};
    queue.budget_bytes = cld_plan_budget_bytes(cfg, &device);
    cld_info("device %zu: %s (%s, driver %s)", device.index, device.name, device.platform,
             device.driver);
    if ((s = table_path(&t, &path, err)) || (s = cld_tune_shapes_read(&t.shapes, err)) ||
        (s = cld_queue_open_probed(&device, &queue, &t.q, err)))
        goto done;
    s = tune_all(&t, err);
    s = keep_records(&t, path, s, err);
done:
    free(path);
    cld_tune_shapes_free(&t.shapes);
    cld_queue_close(t.q);
    cld_devices_close(devices);
    return s;
}
