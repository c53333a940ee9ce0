/* bench_tune.c - tunes what a configuration runs on one device, and writes the table of it.
 *
 * Subjects (tune.h) are passes over matrix products, class by class, norms and attention. */
#include <stdlib.h>
#include <string.h>

#include "bench_case.h"
#include "cache.h"
#include "clock.h"
#include "crew.h"
#include "file.h"
#include "grow.h"
#include "log.h"
#include "ops.h"
#include "self_test.h"
#include "tune.h"

enum { max_shapes = 3 }; /* of a class: those with most work */

/* --- what the configuration runs -------------------------------------------------------------- */

/* The rows and columns of the drafter's norms; 0 rows: it has none. */
struct norm_shape {
    size_t n_rows, n_cols;
    float eps;
};

/* Those of bench.shapes, as a training step stores them. */
static enum cld_status add_given(const struct cld_config *cfg, struct cld_products *all,
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    enum cld_dtype storage = cfg->runtime.precision;
    for (size_t i = 0; i < cfg->bench.shapes.n; i++)
        for (int kind = CLD_GEMM_NT; kind <= CLD_GEMM_TN; kind++) {
            const struct cld_shape *z = &cfg->bench.shapes.v[i];
            if (z->kind >= 0 && z->kind != kind)
                continue;
            if ((s = cld_grow(&all->at, &all->cap, all->n + 1, sizeof *all->at, err)))
                return s;
            all->at[all->n++] = (struct cld_product){(enum cld_gemm_kind)kind,
                                                     z->m,
                                                     z->n,
                                                     z->k,
                                                     storage,
                                                     storage,
                                                     kind == CLD_GEMM_TN ? CLD_F32 : storage,
                                                     1};
        }
    return s;
}

/* Those that a worker of the configuration plans scratch for. */
static enum cld_status add_planned(const struct cld_config *cfg,
                                   const struct cld_device_info *device, struct cld_products *all,
                                   struct norm_shape *norm, struct cld_setup *setup,
                                   struct cld_error *err)
{
    struct cld_feed *feed = NULL;
    struct cld_worker w = {0};
    int64_t mask_token = -1;
    const struct cld_worker_options options = {.name = "plan",
                                               .train = true,
                                               .decode = cfg->eval.decode_rows > 0,
                                               .n_rows = cfg->train.micro_rows,
                                               .products = all};
    enum cld_status s = cld_config_check(cfg, CLD_CONFIG_PLAN, err);
    if (s || (s = cld_feed_open(cfg, &feed, err)) ||
        (s = cld_feed_mask_token(feed, &mask_token, err)) ||
        (s = cld_setup_read(cfg, mask_token, setup, err)) ||
        (s = cld_worker_plan(&w, cfg, setup, device, &options, err)))
        goto done;
    *norm = (struct norm_shape){cld_mul(w.limits.n_blocks, setup->drafter.block_size),
                                setup->drafter.hidden, (float)setup->drafter.rms_norm_eps};
    if (all->lost)
        s = cld_fail(err, CLD_E_MEMORY, "", "no host memory for a list of products");
done:
    cld_worker_close(&w);
    cld_feed_close(feed);
    return s;
}

/* What the configuration runs; where it has no more than products to measure, those. */
static enum cld_status find_shapes(const struct cld_config *cfg,
                                   const struct cld_device_info *device, struct cld_products *all,
                                   struct norm_shape *norm, struct cld_setup *setup,
                                   struct cld_error *err)
{
    return cfg->target.dir ? add_planned(cfg, device, all, norm, setup, err)
                           : add_given(cfg, all, err);
}

/* --- a class of products ---------------------------------------------------------------------- */

static double work_of(const struct cld_product *p)
{
    return (double)p->m * (double)p->n * (double)p->k * (double)p->n_asked;
}

static int more_work_first(const void *a, const void *b)
{
    double x = work_of(a), y = work_of(b);
    return (x < y) - (x > y);
}

/* The products of a class at work. */
struct products {
    struct cld_bench_case cases[max_shapes];
    struct cld_gemm g[max_shapes];
    struct cld_buf **scratch[max_shapes];
    size_t n;
};

/* A candidate may want more scratch than the default. */
static enum cld_status make_scratch(struct cld_queue *q, struct cld_buf **scratch, size_t n_bytes,
                                    struct cld_error *err)
{
    if (!n_bytes || (*scratch && cld_buf_bytes(*scratch) >= n_bytes))
        return CLD_OK;
    cld_buf_free(*scratch);
    *scratch = NULL;
    return cld_buf_create(q, "scratch", n_bytes, scratch, err);
}

static enum cld_status build_products(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct products *p = arg;
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < p->n && !s; i++) {
        s = make_scratch(q, p->scratch[i], cld_gemm_scratch_bytes(q, &p->g[i]), err);
        if (!s)
            s = cld_gemm_build(q, &p->g[i], err);
    }
    return s;
}

static enum cld_status run_products(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct products *p = arg;
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < p->n && !s; i++)
        s = cld_gemm(q, &p->g[i], *p->scratch[i], err);
    return s;
}

/* The products of a class with most work, declared but not created; p->n = 0: there are none. */
static enum cld_status choose_products(struct cld_queue *q, const struct cld_products *all,
                                       struct cld_tune_subject *subject, struct products *p,
                                       struct cld_error *err)
{
    static const char *const kinds[] = {"NT", "NN", "TN"};
    size_t at = 0, n_bytes = sizeof subject->of;
    for (size_t i = 0; i < all->n && p->n < max_shapes; i++) {
        const struct cld_product *z = &all->at[i];
        struct cld_bench_case *c = &p->cases[p->n];
        struct cld_gemm *g = &p->g[p->n];
        size_t own = 0;
        enum cld_status s = cld_bench_case_open(c, q, err);
        if (s)
            return s;
        *g = (struct cld_gemm){.bf16_products = z->a == CLD_BF16};
        cld_bench_product(c, z, g, &p->scratch[p->n]);
        if (cld_gemm_tuned(q, g, &own) != subject->family || own != subject->class) {
            cld_bench_case_close(c);
            continue;
        }
        at += (size_t)snprintf(subject->of + at, n_bytes - at, "%s%s %zux%zux%zu %s",
                               p->n ? ", " : "", kinds[z->kind], z->m, z->n, z->k,
                               cld_bench_storage_name(z->a));
        at = cld_min(at, n_bytes - 1);
        p->n++;
    }
    return CLD_OK;
}

/* --- norms ------------------------------------------------------------------------------------ */

struct norms {
    struct cld_bench_case c;
    float eps;
    const struct cld_tensor *x, *w, *y, *rstd, *dy, *dx, *dw;
    struct cld_buf **scratch;
};

static void declare_norms(const struct norm_shape *z, enum cld_dtype storage,
                          struct cld_tune_subject *subject, struct norms *p)
{
    size_t n = z->n_rows, c = z->n_cols;
    p->eps = z->eps;
    p->x = cld_bench_operand(&p->c, storage, n, c, "x");
    p->w = cld_bench_operand(&p->c, storage, 1, c, "w");
    p->y = cld_bench_operand(&p->c, storage, n, c, "y");
    p->rstd = cld_bench_operand(&p->c, CLD_F32, 1, n, "rstd");
    p->dy = cld_bench_operand(&p->c, storage, n, c, "dy");
    p->dx = cld_bench_operand(&p->c, storage, n, c, "dx");
    p->dw = cld_bench_operand(&p->c, CLD_F32, 1, c, "dw");
    p->scratch = cld_bench_buffer(&p->c, cld_norm_scratch_bytes(p->c.q, c), "scratch");
    snprintf(subject->of, sizeof subject->of, "forward and backward %zux%zu %s", n, c,
             cld_bench_storage_name(storage));
}

static enum cld_status run_norms(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct norms *p = arg;
    enum cld_status s = cld_rmsnorm_forward(q, p->x, p->w, p->eps, p->y, p->rstd, err);
    return s ? s
             : cld_rmsnorm_backward(q, p->x, p->w, p->rstd, p->dy, NULL, p->dx, p->dw, *p->scratch,
                                    err);
}

/* A run builds: operands are there, and no value of theirs matters. */
static enum cld_status build_norms(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct norms *p = arg;
    enum cld_status s = make_scratch(q, p->scratch, cld_norm_scratch_bytes(q, p->x->n_cols), err);
    return s ? s : run_norms(q, arg, err);
}

/* --- attention -------------------------------------------------------------------------------- */

/* That of the drafter's layers: over all keys, over a window, or both. */
struct attentions {
    struct cld_bench_case cases[2];
    struct cld_bench_attention t[2];
    size_t n;
};

/* Tiles follow from the row, and mask and scratch from the tiles. */
static enum cld_status fit_attention(struct cld_queue *q, struct cld_bench_attention *t,
                                     struct cld_error *err)
{
    struct cld_attention_plan *p = &t->plan, now;
    enum cld_status s =
        cld_attention_plan(q, p->backend, p->n_q_max, p->n_keys_max, p->n_heads, p->n_kv_heads,
                           p->head_dim, p->type, p->grad_type, p->backward, &now, err);
    if (s || !strcmp(now.options, p->options))
        return s;
    if ((s = make_scratch(q, t->mask_buf, now.mask_bytes, err)) ||
        (s = make_scratch(q, t->scratch, now.scratch_bytes, err)))
        return s;
    *p = now;
    t->mask.buf = *t->mask_buf;
    t->a.scratch = *t->scratch;
    return cld_attention_mask_set(q, p, t->spans, t->mask.n_q, t->mask.n_keys, &t->mask, err);
}

/* A run builds, as with norms. */
static enum cld_status run_attentions(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct attentions *p = arg;
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < p->n && !s; i++)
        if (!(s = fit_attention(q, &p->t[i], err)) &&
            !(s = cld_bench_attention_forward(q, &p->t[i], err)))
            s = cld_bench_attention_backward(q, &p->t[i], err);
    return s;
}

static enum cld_status make_attentions(struct cld_queue *q, const struct cld_bench *b,
                                       struct cld_tune_subject *subject, struct attentions *p,
                                       struct cld_error *err)
{
    const struct cld_drafter_config *d = &b->setup->drafter;
    struct cld_batch batch = {0};
    size_t windows[2], n = cld_bench_windows(d, windows), at = 0;
    enum cld_status s = cld_bench_batch(b, &batch, err);
    for (; p->n < n && !s; p->n++) {
        size_t i = p->n;
        if (!(s = cld_bench_case_open(&p->cases[i], q, err)))
            s = cld_bench_attention_make(b, &p->cases[i], &batch, windows[i], subject->storage,
                                         &p->t[i], err);
        at += (size_t)snprintf(subject->of + at, sizeof subject->of - at,
                               "%s%zu x %zu rows over %zu tokens, window %zu", i ? ", " : "",
                               batch.n_blocks, batch.block_size, batch.n_ctx, windows[i]);
        at = cld_min(at, sizeof subject->of - 1);
    }
    snprintf(subject->of + at, sizeof subject->of - at,
             ", %zu/%zu heads of %zu, forward and backward %s", d->n_heads, d->n_kv_heads,
             d->head_dim, cld_bench_storage_name(subject->storage));
    cld_batch_free(&batch);
    return s;
}

/* --- all of it -------------------------------------------------------------------------------- */

struct run {
    const struct cld_config *cfg;
    const struct cld_tune_options *o;
    struct cld_bench bench; /* what cases need to know */
    struct cld_queue *q;
    struct cld_products all; /* most work first */
    struct norm_shape norm;
    struct cld_setup setup; /* with a target */
    struct cld_tuned_record records[CLD_N_TUNED * cld_tuned_classes];
    size_t n_records;
    struct cld_error left_out; /* why a class was, last */
    double begun_ms;
};

static void put_result(struct run *t, const struct cld_tune_result *r)
{
    const struct cld_tuned_record *m = &r->record;
    const struct cld_tuned_family *f = cld_tuned_family(m->family);
    struct cld_tuned_row standard = f->defaults(t->bench.device);
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
    const struct cld_tune_limits limits = {.repeats = t->cfg->bench.repeats,
                                           .least_ms = t->cfg->bench.least_ms,
                                           .deadline_ms = deadline_ms};
    enum cld_status s =
        cld_tune_class(t->q, subject, &limits, t->o->verbose ? stderr : NULL, &result, err);
    if (s)
        return s;
    put_result(t, &result);
    /* Where nothing was tried nothing won: such a row would hide one that was measured before. */
    if (result.n_candidates)
        t->records[t->n_records++] = result.record;
    else
        cld_warn("%s/%s keeps the row that it had: there was no time for a candidate",
                 cld_tuned_family(subject->family)->name,
                 cld_tuned_family(subject->family)->classes[subject->class]);
    return CLD_OK;
}

static enum cld_status tune_products(struct run *t, struct cld_tune_subject *subject,
                                     double deadline_ms, bool *any, struct cld_error *err)
{
    struct products p = {.n = 0};
    subject->arg = &p;
    subject->build = build_products;
    subject->pass = run_products;
    enum cld_status s = choose_products(t->q, &t->all, subject, &p, err);
    *any = p.n > 0;
    for (size_t i = 0; i < p.n && !s; i++)
        s = cld_bench_case_create(&p.cases[i], &t->bench, err);
    if (!s && p.n)
        s = tune_subject(t, subject, deadline_ms, err);
    for (size_t i = 0; i < max_shapes; i++)
        cld_bench_case_close(&p.cases[i]);
    return s;
}

static enum cld_status tune_norms(struct run *t, struct cld_tune_subject *subject,
                                  double deadline_ms, bool *any, struct cld_error *err)
{
    struct norms p = {.eps = 0};
    subject->arg = &p;
    subject->build = build_norms;
    subject->pass = run_norms;
    *any = t->norm.n_rows > 0 && subject->class == (subject->storage == CLD_BF16);
    if (!*any)
        return CLD_OK;
    enum cld_status s = cld_bench_case_open(&p.c, t->q, err);
    if (!s) {
        declare_norms(&t->norm, t->cfg->runtime.precision, subject, &p);
        if (!(s = cld_bench_case_create(&p.c, &t->bench, err)))
            s = tune_subject(t, subject, deadline_ms, err);
    }
    cld_bench_case_close(&p.c);
    return s;
}

static enum cld_status tune_attention(struct run *t, struct cld_tune_subject *subject,
                                      double deadline_ms, bool *any, struct cld_error *err)
{
    struct attentions p = {.n = 0};
    subject->arg = &p;
    subject->build = run_attentions;
    subject->pass = run_attentions;
    *any = t->bench.setup && t->cfg->attention.backend == CLD_ATTENTION_SPARSE &&
           subject->class == (subject->storage == CLD_BF16);
    if (!*any)
        return CLD_OK;
    enum cld_status s = make_attentions(t->q, &t->bench, subject, &p, err);
    if (!s)
        s = tune_subject(t, subject, deadline_ms, err);
    for (size_t i = 0; i < p.n; i++) {
        cld_bench_attention_free(&p.t[i]);
        cld_bench_case_close(&p.cases[i]);
    }
    return s;
}

/* What does not fit, or does not run, is left out. */
static enum cld_status tune_class(struct run *t, enum cld_tuned family, size_t class,
                                  double deadline_ms, struct cld_error *err)
{
    const struct cld_tuned_family *f = cld_tuned_family(family);
    struct cld_tune_subject subject = {.family = family,
                                       .class = class,
                                       .storage = t->cfg->runtime.precision,
                                       .quick = cld_tuned_check(family, false),
                                       .whole = cld_tuned_check(family, true)};
    bool any = false;
    enum cld_status s =
        family == CLD_TUNED_RMSNORM         ? tune_norms(t, &subject, deadline_ms, &any, err)
        : family == CLD_TUNED_ATTENTION_CPU ? tune_attention(t, &subject, deadline_ms, &any, err)
                                            : tune_products(t, &subject, deadline_ms, &any, err);
    if (!s && !any)
        cld_info("%s/%s: the configuration has no such shape", f->name, f->classes[class]);
    if (s == CLD_E_MEMORY || s == CLD_E_DEVICE) {
        cld_warn("%s/%s is left out: %s", f->name, f->classes[class], err->what);
        t->left_out = *err;
        *err = (struct cld_error)CLD_ERROR_INIT;
        s = CLD_OK;
    }
    return s;
}

/* Each class gets an equal part of the time that is left. */
static enum cld_status tune_all(struct run *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_left = 0;
    for (int f = 0; f < CLD_N_TUNED; f++)
        n_left += cld_tuned_family((enum cld_tuned)f)->works(t->q)
                      ? cld_tuned_n_classes(cld_tuned_family((enum cld_tuned)f))
                      : 0;
    fprintf(t->o->to,
            "| family | class | shapes | default ms | best ms | gain | noise | parameters | "
            "candidates (filtered, wrong, not faster) |\n|---|---|---|---|---|---|---|---|---|\n");
    for (int f = 0; f < CLD_N_TUNED; f++) {
        const struct cld_tuned_family *family = cld_tuned_family((enum cld_tuned)f);
        for (size_t c = 0; family->works(t->q) && c < cld_tuned_n_classes(family); c++, n_left--) {
            double now = cld_clock_ms(), end = t->begun_ms + t->o->limit_s * 1e3;
            double deadline = now + (end - now) / (double)n_left;
            if (t->o->limit_s > 0 && now > end) {
                cld_warn("the time is up: %s/%s and what follows is left out", family->name,
                         family->classes[c]);
                return CLD_OK;
            }
            if ((s = tune_class(t, (enum cld_tuned)f, c, t->o->limit_s > 0 ? deadline : 0, err)))
                return s;
        }
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
        if (!(s = cld_tuning_writable(t->o->out, t->bench.device, err)))
            *out = cld_format("%s", t->o->out);
    } else if (!(s = cld_cache_dir(t->cfg->runtime.cache_dir, &dir, err)) && dir &&
               (cache = cld_cache_open(dir, CLD_CACHE_CAP_BYTES))) {
        *out = cld_tuning_path(dir, t->bench.device);
    } else if (!s) {
        s = cld_fail(err, CLD_E_USAGE, "add --out FILE, or set runtime.cache_dir",
                     "there is no directory for the table of tuned kernels");
    }
    if (!s && !*out)
        s = cld_fail(err, CLD_E_MEMORY, "", "no host memory for a path");
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
    if (!cld_tuning_save(path, t->bench.device, t->records, t->n_records, &failed))
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
    struct run t = {.cfg = cfg, .o = o, .left_out = CLD_ERROR_INIT, .begun_ms = cld_clock_ms()};
    struct cld_queue_options queue = {
        .name = "tuner",
        .profile = true,
        .programs = {.source = cfg->runtime.program, .modules = cfg->runtime.modules}};
    char *path = NULL;
    enum cld_status s = cld_devices_open(&devices, err);
    if (s || (s = cld_crew_pick(devices, cfg, o->device, &device, err)))
        goto done;
    t.bench = (struct cld_bench){.cfg = cfg, .device = &device, .devices = devices};
    queue.budget_bytes = cld_worker_budget_bytes(cfg, &device);
    cld_info("device %zu: %s (%s, driver %s)", device.index, device.name, device.platform,
             device.driver);
    if ((s = table_path(&t, &path, err)) ||
        (s = find_shapes(cfg, &device, &t.all, &t.norm, &t.setup, err)) ||
        (s = cld_queue_open(&device, &queue, &t.q, err)))
        goto done;
    t.bench.setup = cfg->target.dir ? &t.setup : NULL;
    qsort(t.all.at, t.all.n, sizeof *t.all.at, more_work_first);
    s = tune_all(&t, err);
    s = keep_records(&t, path, s, err);
done:
    free(path);
    free(t.all.at);
    cld_queue_close(t.q);
    cld_devices_close(devices);
    return s;
}
