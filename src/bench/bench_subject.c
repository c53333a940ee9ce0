/* bench_subject.c - passes over matrix products, class by class, over the drafter's attention, and
 * over operations that are bound by memory, for the tuner. */
#include "bench/bench_subject.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "ops/ops.h"
#include "workers/worker.h"

enum { max_shapes = 3 }; /* of products of a class: those with most work */

/* --- what the configuration runs -------------------------------------------------------------- */

/* Those of bench.shapes, as a training step stores them. */
static enum cld_status add_given(const struct cld_config *cfg, struct cld_gemm_uses *all,
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
            all->at[all->n++] = (struct cld_gemm_use){(enum cld_gemm_kind)kind,
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
                                   const struct cld_device_info *device, struct cld_gemm_uses *all,
                                   struct cld_setup *setup, struct cld_error *err)
{
    struct cld_feed *feed = NULL;
    struct cld_worker w = {0};
    int64_t mask_token = -1;
    const struct cld_worker_options options = {.name = "plan",
                                               .role = cfg->eval.decode_rows ? CLD_ROLE_DECODER
                                                                             : CLD_ROLE_BOTH,
                                               .train = true,
                                               .n_rows = cfg->train.micro_rows,
                                               .gemm_uses = all};
    enum cld_status s = cld_config_check(cfg, CLD_CONFIG_PLAN, err);
    if (s || (s = cld_feed_open(cfg, &feed, err)) ||
        (s = cld_feed_mask_token(feed, &mask_token, err)) ||
        (s = cld_setup_read(cfg, mask_token, setup, err)) ||
        (s = cld_worker_plan(&w, cfg, setup, device, &options, err)))
        goto done;
    if (all->lost)
        s = cld_fail_memory(err, "a list of products");
done:
    cld_worker_close(&w);
    cld_feed_close(feed);
    return s;
}

static double work_of(const struct cld_gemm_use *p)
{
    return (double)p->m * (double)p->n * (double)p->k * (double)p->n_asked;
}

static int more_work_first(const void *a, const void *b)
{
    double x = work_of(a), y = work_of(b);
    return (x < y) - (x > y);
}

enum cld_status cld_tune_shapes_read(struct cld_tune_shapes *z, struct cld_error *err)
{
    const struct cld_config *cfg = z->bench.cfg;
    bool plans = cfg->target.dir != NULL;
    enum cld_status s = plans ? add_planned(cfg, z->bench.device, &z->gemm_uses, &z->setup, err)
                              : add_given(cfg, &z->gemm_uses, err);
    if (s)
        return s;
    qsort(z->gemm_uses.at, z->gemm_uses.n, sizeof *z->gemm_uses.at, more_work_first);
    z->bench.setup = plans ? &z->setup : NULL;
    return plans ? cld_bench_batch(&z->bench, &z->batch, err) : CLD_OK;
}

void cld_tune_shapes_free(struct cld_tune_shapes *z)
{
    cld_batch_free(&z->batch);
    free(z->gemm_uses.at);
}

/* --- a class of products ---------------------------------------------------------------------- */

/* The products of a class at work. */
struct gemm_uses {
    struct cld_bench_case cases[max_shapes];
    struct cld_gemm g[max_shapes];
    struct cld_buf **scratch[max_shapes];
    size_t n;
};

static enum cld_status build_gemms(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct gemm_uses *p = arg;
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < p->n && !s; i++) {
        s = cld_bench_scratch(q, p->scratch[i], cld_gemm_scratch_bytes(q, &p->g[i]), err);
        if (!s)
            s = cld_gemm_build(q, &p->g[i], err);
    }
    return s;
}

static enum cld_status run_gemms(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct gemm_uses *p = arg;
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < p->n && !s; i++)
        s = cld_gemm(q, &p->g[i], *p->scratch[i], err);
    return s;
}

static void free_gemms(void *arg)
{
    struct gemm_uses *p = arg;
    for (size_t i = 0; i < max_shapes; i++)
        cld_bench_case_close(&p->cases[i]);
}

/* The products of a class with most work, declared but not created; p->n = 0: there are none. */
static enum cld_status choose_gemms(struct cld_queue *q, const struct cld_gemm_uses *all,
                                    struct cld_tune_subject *subject, struct gemm_uses *p,
                                    struct cld_error *err)
{
    static const char *const kinds[] = {"NT", "NN", "TN"};
    size_t at = 0, n_bytes = sizeof subject->of;
    for (size_t i = 0; i < all->n && p->n < max_shapes; i++) {
        const struct cld_gemm_use *z = &all->at[i];
        struct cld_bench_case *c = &p->cases[p->n];
        struct cld_gemm *g = &p->g[p->n];
        size_t own = 0;
        enum cld_status s = cld_bench_case_open(c, q, err);
        if (s)
            return s;
        *g = (struct cld_gemm){.round_to_bf16 = z->a == CLD_BF16};
        cld_bench_gemm_case(c, z, g, &p->scratch[p->n]);
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

static enum cld_status make_gemms(struct cld_tune_shapes *z, struct cld_queue *q,
                                  struct cld_tune_subject *subject, bool *any,
                                  struct cld_error *err)
{
    struct gemm_uses *p = subject->arg;
    enum cld_status s = choose_gemms(q, &z->gemm_uses, subject, p, err);
    *any = p->n > 0;
    for (size_t i = 0; i < p->n && !s; i++)
        s = cld_bench_case_create(&p->cases[i], &z->bench, err);
    return s;
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
    if ((s = cld_bench_scratch(q, t->mask_buf, now.mask_bytes, err)) ||
        (s = cld_bench_scratch(q, t->scratch, now.scratch_bytes, err)))
        return s;
    *p = now;
    t->mask.buf = *t->mask_buf;
    t->a.scratch = *t->scratch;
    return cld_attention_mask_set(q, p, t->spans, t->mask.n_q, t->mask.n_keys, &t->mask, err);
}

/* A run builds: operands are there, and no value of theirs matters. */
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

static void free_attentions(void *arg)
{
    struct attentions *p = arg;
    for (size_t i = 0; i < p->n; i++) {
        cld_bench_attention_free(&p->t[i]);
        cld_bench_case_close(&p->cases[i]);
    }
}

static enum cld_status make_attentions(struct cld_tune_shapes *z, struct cld_queue *q,
                                       struct cld_tune_subject *subject, bool *any,
                                       struct cld_error *err)
{
    const struct cld_bench *b = &z->bench;
    const struct cld_batch *batch = &z->batch;
    struct attentions *p = subject->arg;
    enum cld_status s = CLD_OK;
    *any = b->setup && b->cfg->attention.backend == CLD_ATTENTION_SPARSE;
    if (!*any)
        return CLD_OK;
    const struct cld_drafter_config *d = &b->setup->drafter;
    size_t windows[2], n = cld_bench_windows(d, windows), at = 0;
    for (; p->n < n && !s; p->n++) {
        size_t i = p->n;
        if (!(s = cld_bench_case_open(&p->cases[i], q, err)))
            s = cld_bench_attention_make(b, &p->cases[i], batch, windows[i], subject->storage,
                                         &p->t[i], err);
        if (!s && p->t[i].plan.tuned != subject->family) /* tensor cores, in this storage */
            *any = false;
        at += (size_t)snprintf(subject->of + at, sizeof subject->of - at,
                               "%s%zu x %zu rows over %zu tokens, window %zu", i ? ", " : "",
                               batch->n_blocks, batch->block_size, batch->n_ctx, windows[i]);
        at = cld_min(at, sizeof subject->of - 1);
    }
    snprintf(subject->of + at, sizeof subject->of - at,
             ", %zu/%zu heads of %zu, forward and backward %s", d->n_heads, d->n_kv_heads,
             d->head_dim, cld_bench_storage_name(subject->storage));
    return s;
}

/* --- operations that are bound by memory ------------------------------------------------------ */

enum { max_works = 2 };

struct works {
    struct cld_bench_work at[max_works];
    size_t n;
};

static enum cld_status run_works(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct works *p = arg;
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < p->n && !s; i++)
        s = cld_bench_work_run(q, &p->at[i], err);
    return s;
}

static void free_works(void *arg)
{
    struct works *p = arg;
    for (size_t i = 0; i < p->n; i++)
        cld_bench_work_free(&p->at[i]);
}

static const char *const *names_of(const struct cld_tune_subject *subject);

static enum cld_status make_works(struct cld_tune_shapes *z, struct cld_queue *q,
                                  struct cld_tune_subject *subject, bool *any,
                                  struct cld_error *err)
{
    struct works *p = subject->arg;
    const char *const *names = names_of(subject);
    struct cld_bench_result r = {.n_dims = 0};
    enum cld_status s = CLD_OK;
    *any = z->bench.setup != NULL;
    if (!*any || (!z->n_params && (s = cld_bench_count_params(&z->bench, q, &z->n_params, err))))
        return s;
    for (; p->n < max_works && names[p->n] && !s; p->n++) {
        struct cld_bench_work *w = &p->at[p->n];
        *w = (struct cld_bench_work){.b = &z->bench,
                                     .batch = &z->batch,
                                     .storage = subject->storage,
                                     .n_params = z->n_params};
        r.n_dims = 0;
        s = cld_bench_work_make(w, names[p->n], q, &r, err);
    }
    snprintf(subject->of, sizeof subject->of, "%s%s%s %zux%zu %s", names[0],
             p->n > 1 ? " and " : "", p->n > 1 ? names[1] : "", r.shape[0].n, r.shape[1].n,
             cld_bench_storage_name(subject->storage));
    return s;
}

/* --- all of them ------------------------------------------------------------------------------ */

/* How a subject's operands are made, in zeroed memory of its own, and what is done with them. */
struct maker {
    size_t n_arg_bytes;
    enum cld_status (*make)(struct cld_tune_shapes *z, struct cld_queue *q,
                            struct cld_tune_subject *subject, bool *any, struct cld_error *err);
    cld_bench_fn *build, *pass;
    void (*free)(void *arg);
};

static const struct maker gemm_uses = {sizeof(struct gemm_uses), make_gemms, build_gemms, run_gemms,
                                       free_gemms};
static const struct maker attentions = {sizeof(struct attentions), make_attentions, run_attentions,
                                        run_attentions, free_attentions};
static const struct maker works = {sizeof(struct works), make_works, run_works, run_works,
                                   free_works};

static const struct {
    const struct maker *maker;
    bool by_storage; /* its classes are fp32 and bf16; the configuration has one */
    /* Operations of bench_elementwise.c that are a pass, by class; of a family by storage in the
     * place of its first. */
    const char *names[cld_tuned_classes][max_works];
} families[CLD_N_TUNED] = {
    [CLD_TUNED_GEMM_CPU] = {&gemm_uses, false, {{NULL}}},
    [CLD_TUNED_GEMM_GPU] = {&gemm_uses, false, {{NULL}}},
    [CLD_TUNED_GEMM_SM90A] = {&gemm_uses, false, {{NULL}}},
    [CLD_TUNED_RMSNORM] = {&works, true, {{"rmsnorm forward", "rmsnorm backward"}}},
    [CLD_TUNED_QKNORM_ROPE] = {&works, true, {{"qknorm_rope forward", "qknorm_rope backward"}}},
    [CLD_TUNED_SWIGLU] = {&works, true, {{"swiglu forward", "swiglu backward"}}},
    [CLD_TUNED_CROSS_ENTROPY] = {&works, false, {{"cross-entropy alone"}, {"cross-entropy"}}},
    [CLD_TUNED_ATTENTION_CPU] = {&attentions, true, {{NULL}}},
    [CLD_TUNED_ATTENTION_GPU] = {&attentions, true, {{NULL}}}};

static const char *const *names_of(const struct cld_tune_subject *subject)
{
    bool by_storage = families[subject->family].by_storage;
    return families[subject->family].names[by_storage ? 0 : subject->class];
}

bool cld_tune_subject_may_be(const struct cld_tune_shapes *z, enum cld_tuned family, size_t class)
{
    return !families[family].by_storage || class == (z->bench.cfg->runtime.precision == CLD_BF16);
}

enum cld_status cld_tune_subject_make(struct cld_tune_shapes *z, struct cld_queue *q,
                                      struct cld_tune_subject *subject, bool *any,
                                      struct cld_error *err)
{
    const struct maker *m = families[subject->family].maker;
    subject->storage = z->bench.cfg->runtime.precision;
    subject->build = m->build;
    subject->pass = m->pass;
    *any = false;
    if (!(subject->arg = calloc(1, m->n_arg_bytes)))
        return cld_fail_memory(err, "what is tuned");
    return m->make(z, q, subject, any, err);
}

void cld_tune_subject_free(struct cld_tune_subject *subject)
{
    if (subject->arg)
        families[subject->family].maker->free(subject->arg);
    free(subject->arg);
    subject->arg = NULL;
}
