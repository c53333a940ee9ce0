#include "ops/op_gemm.h"

#include <stdio.h>

#include "base/grow.h"
#include "base/size.h"
#include "ops/gemm_backend.h"

/* In the order in which AUTO prefers them. */
static const struct cld_gemm_ops *const backends[] = {
    &cld_gemm_sm90a, &cld_gemm_sm80, &cld_gemm_gpu, &cld_gemm_cpu, &cld_gemm_clblast};

enum { n_backends = sizeof backends / sizeof *backends };

static const char *const kind_names[] = {"NT", "NN", "TN"};
static const char *const backend_names[] = {"auto", "portable", "clblast", "sm80", "sm90a"};

/* The first that can; NULL if none. */
static const struct cld_gemm_ops *choose(const struct cld_queue *q, enum cld_gemm_backend b,
                                         const struct cld_gemm *g)
{
    for (size_t i = 0; i < n_backends; i++)
        if ((b == CLD_GEMM_AUTO || backends[i]->backend == b) && backends[i]->supports(q, g))
            return backends[i];
    return NULL;
}

static const char *needs(enum cld_gemm_backend b)
{
    for (size_t i = 0; i < n_backends; i++)
        if (backends[i]->backend == b)
            return backends[i]->needs;
    return "another device";
}

static void note_gemm(struct cld_gemm_uses *all, const struct cld_gemm *g)
{
    struct cld_error ignored;
    struct cld_gemm_size z = cld_gemm_size(g);
    for (size_t i = 0; i < all->n; i++) {
        struct cld_gemm_use *p = &all->at[i];
        if (p->kind == g->kind && p->m == z.m && p->n == z.n && p->k == z.k && p->a == g->a->type &&
            p->b == g->b->type && p->c == g->c->type) {
            p->n_asked++;
            return;
        }
    }
    if (cld_grow(&all->at, &all->cap, all->n + 1, sizeof *all->at, &ignored)) {
        all->lost = true;
        return;
    }
    all->at[all->n++] =
        (struct cld_gemm_use){g->kind, z.m, z.n, z.k, g->a->type, g->b->type, g->c->type, 1};
}

size_t cld_gemm_scratch_bytes(const struct cld_queue *q, const struct cld_gemm *g)
{
    const struct cld_gemm_ops *ops = choose(q, g->backend, g);
    struct cld_gemm_size size = cld_gemm_size(g);
    if (cld_queue_gemm_uses(q) && size.m && size.n && size.k)
        note_gemm(cld_queue_gemm_uses(q), g);
    return ops && size.m && size.n ? ops->scratch_bytes(q, g) : 0;
}

enum cld_tuned cld_gemm_tuned(const struct cld_queue *q, const struct cld_gemm *g, size_t *class)
{
    const struct cld_gemm_ops *ops = choose(q, g->backend, g);
    *class = cld_gemm_class(cld_gemm_size(g));
    return ops ? ops->tuned : CLD_N_TUNED;
}

bool cld_gemm_makes_swiglu(const struct cld_queue *q, const struct cld_gemm *g)
{
    const struct cld_gemm_ops *ops = choose(q, g->backend, g);
    return ops && ops->swiglu && cld_gemm_size(g).n % 16 == 0 && cld_gemm_size(g).k;
}

const char *cld_gemm_backend_name(const struct cld_queue *q, enum cld_gemm_backend b)
{
    const struct cld_gemm_ops *ops = choose(q, b, NULL);
    return ops ? ops->name(q) : "none";
}

/* Rows of elements that lie in the tensor's buffer and do not overlap. */
static bool is_placed(const struct cld_tensor *t)
{
    if (!t || !cld_tensor_elems(t))
        return true;
    size_t last = cld_add(cld_mul(t->n_rows - 1, t->ld), t->n_cols);
    size_t end_bytes = cld_mul(cld_add(t->offset, last), cld_dtype_bytes(t->type));
    return t->ld >= t->n_cols && t->buf && end_bytes <= cld_buf_bytes(t->buf);
}

static bool is_stored(const struct cld_tensor *t)
{
    return !t || t->type == CLD_F32 || t->type == CLD_BF16;
}

static bool has_shape(const struct cld_tensor *t, size_t n_rows, size_t n_cols)
{
    return !t || (t->n_rows == n_rows && t->n_cols == n_cols);
}

/* "a [2, 3] ld 3 F32 at 0" appended. */
static void describe(char *to, size_t n_bytes, size_t *at, const char *role,
                     const struct cld_tensor *t)
{
    if (t && *at < n_bytes)
        *at += (size_t)snprintf(to + *at, n_bytes - *at, "%s%s '%.40s' [%zu, %zu] ld %zu %s at %zu",
                                *at ? ", " : "", role, t->name, t->n_rows, t->n_cols, t->ld,
                                cld_dtype_name(t->type), t->offset);
}

static enum cld_status fail(const struct cld_queue *q, const struct cld_gemm *g, const char *why,
                            struct cld_error *err)
{
    char tensors[560] = "";
    size_t at = 0;
    describe(tensors, sizeof tensors, &at, "A", g->a);
    describe(tensors, sizeof tensors, &at, "B", g->b);
    describe(tensors, sizeof tensors, &at, "C", g->c);
    describe(tensors, sizeof tensors, &at, "bias", g->bias);
    describe(tensors, sizeof tensors, &at, "R", g->residual);
    return cld_fail(err, CLD_E_INTERNAL, "report it", "%s: gemm %s, %s: %s: %s", cld_queue_name(q),
                    kind_names[g->kind], backend_names[g->backend], why, tensors);
}

/* Which class a shape is of depends on its rows, and a run has passes with fewer than the warm-up
 * tried: so that none of them builds, all classes are built with the first. */
static enum cld_status build_classes(struct cld_queue *q, const struct cld_gemm_ops *ops,
                                     const struct cld_gemm *g, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_kernel *k = NULL;
    for (int c = 0; c < CLD_N_GEMM_CLASSES && ops->build && cld_gemm_size(g).k && !s; c++)
        s = ops->build(q, g, (enum cld_gemm_class)c, &k, err);
    return s;
}

enum cld_status cld_gemm_build(struct cld_queue *q, const struct cld_gemm *g, struct cld_error *err)
{
    const struct cld_gemm_ops *ops = choose(q, g->backend, g);
    return ops ? build_classes(q, ops, g, err) : CLD_OK;
}

enum cld_status cld_gemm(struct cld_queue *q, const struct cld_gemm *g, struct cld_buf *scratch,
                         struct cld_error *err)
{
    const struct cld_tensor *const all[] = {g->a, g->b, g->c, g->bias, g->residual};
    struct cld_gemm_size size = cld_gemm_size(g);
    size_t m = size.m, n = size.n, k = size.k;
    if (!has_shape(g->b, g->kind == CLD_GEMM_NT ? n : k, g->kind == CLD_GEMM_NT ? k : n) ||
        !has_shape(g->c, m, g->swiglu ? n / 2 : n) || !has_shape(g->bias, 1, n) ||
        !has_shape(g->residual, m, n))
        return fail(q, g, "shapes do not fit", err);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!is_stored(all[i]))
            return fail(q, g, "a tensor is neither F32 nor BF16", err);
        if (!is_placed(all[i]))
            return fail(q, g, "a tensor does not lie inside its buffer", err);
    }
    const struct cld_gemm_ops *ops = choose(q, g->backend, g);
    if (!ops)
        return cld_fail(err, CLD_E_DEVICE, "choose another GEMM back-end",
                        "%s: the GEMM back-end '%s' does not support this GEMM; it needs %s",
                        cld_queue_name(q), backend_names[g->backend], needs(g->backend));
    if (!m || !n)
        return CLD_OK;
    if (g->swiglu && (!cld_gemm_makes_swiglu(q, g) || g->c->type != CLD_BF16 || g->c->ld % 8 ||
                      g->c->offset % 8 || g->bias || g->residual))
        return fail(q, g, "it does not make SwiGLU", err);
    size_t need = ops->scratch_bytes(q, g), have = scratch ? cld_buf_bytes(scratch) : 0;
    if (need > have) {
        char why[96];
        snprintf(why, sizeof why, "scratch holds %zu of %zu bytes", have, need);
        return fail(q, g, why, err);
    }
    enum cld_status s = ops->run(q, g, scratch, err);
    return s || cld_queue_is_sealed(q) ? s : build_classes(q, ops, g, err);
}
