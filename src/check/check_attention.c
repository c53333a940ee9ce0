/* check_attention.c - attention, sparse and dense, forward and backward, against double precision.
 */
#include "check/check_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/size.h"
#include "ops/op_attention.h"

enum kind { DRAFT, CAUSAL };
/* What may be odd about a draft case's blocks. */
enum { AT_START = 1, PADDING = 2, ALL_PADDING = 4, UNSORTED = 8 };

/* Rows and keys. DRAFT: n_ctx context tokens in n_docs documents, and blocks. CAUSAL: n_ctx tokens.
 */
struct shape {
    enum kind kind;
    size_t n_ctx, n_docs, n_blocks, block_size, window;
    bool causal;
    int odd;
};

struct geometry {
    size_t n_heads, n_kv_heads, head_dim;
};

/* The case at work. */
struct work {
    struct shape shape;
    struct geometry geo;
    size_t n_q, n_keys;
    struct cld_span *spans;
    struct cld_attention_plan plan;
    struct cld_attention_mask mask;
    struct cld_buf *scratch;
    struct cld_check_tensor *q, *k, *v, *o, *lse, *d_o, *d_q, *d_k, *d_v, *visited;
    double *want_o, *want_lse, *want_dq, *want_dk, *want_dv,
        *row; /* row: weights, their gradients */
};

static void work_free(struct work *w)
{
    cld_attention_mask_free(&w->mask);
    cld_buf_free(w->mask.buf);
    cld_buf_free(w->scratch);
    free(w->spans);
    free(w->want_o);
    free(w->want_lse);
    free(w->want_dq);
    free(w->want_dk);
    free(w->want_dv);
    free(w->row);
}

/* --- the reference ---------------------------------------------------------------------------- */

static bool sees(const struct cld_span *s, size_t key)
{
    int32_t k = (int32_t)key;
    return (s->lo <= k && k < s->hi) || (s->own_lo <= k && k < s->own_hi);
}

static double dot(const double *a, const double *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void add_scaled(double *to, double factor, const double *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += factor * from[i];
}

/* One row of one head: o, lse, and its part of d_q, d_k, d_v. */
static void reference_row(struct work *w, size_t h, size_t r)
{
    size_t d = w->geo.head_dim, cols = w->geo.n_heads * d, kv_cols = w->geo.n_kv_heads * d;
    size_t at = r * cols + h * d, kv_at = h / (w->geo.n_heads / w->geo.n_kv_heads) * d;
    double scale = 1 / sqrt((double)d), top = -INFINITY, sum = 0, *p = w->row;
    const double *q = w->q->value + at, *d_o = w->d_o->value + at;
    for (size_t k = 0; k < w->n_keys; k++)
        if (sees(&w->spans[r], k))
            top = fmax(top, p[k] = scale * dot(q, w->k->value + k * kv_cols + kv_at, d));
    for (size_t k = 0; k < w->n_keys; k++)
        sum += p[k] = sees(&w->spans[r], k) ? exp(p[k] - top) : 0;
    if (!(sum > 0))
        return;
    w->want_lse[h * w->n_q + r] = top + log(sum);
    for (size_t k = 0; k < w->n_keys; k++)
        if (p[k] != 0)
            add_scaled(w->want_o + at, p[k] /= sum, w->v->value + k * kv_cols + kv_at, d);
    double delta = dot(d_o, w->want_o + at, d);
    for (size_t k = 0; k < w->n_keys; k++) {
        size_t key = k * kv_cols + kv_at;
        if (p[k] == 0)
            continue;
        double ds = scale * p[k] * (dot(d_o, w->v->value + key, d) - delta);
        add_scaled(w->want_dv + key, p[k], d_o, d);
        add_scaled(w->want_dk + key, ds, q, d);
        add_scaled(w->want_dq + at, ds, w->k->value + key, d);
    }
}

static enum cld_status reference(struct work *w, struct cld_error *err)
{
    size_t rows = w->n_q * w->geo.n_heads * w->geo.head_dim + 1;
    size_t keys = w->n_keys * w->geo.n_kv_heads * w->geo.head_dim + 1;
    w->want_o = calloc(rows, sizeof(double));
    w->want_dq = calloc(rows, sizeof(double));
    w->want_dk = calloc(keys, sizeof(double));
    w->want_dv = calloc(keys, sizeof(double));
    w->want_lse = calloc(w->n_q * w->geo.n_heads + 1, sizeof(double));
    w->row = calloc(w->n_keys + 1, sizeof(double));
    if (!w->want_o || !w->want_dq || !w->want_dk || !w->want_dv || !w->want_lse || !w->row)
        return cld_fail_memory(err, "the reference of attention");
    for (size_t h = 0; h < w->geo.n_heads; h++)
        for (size_t r = 0; r < w->n_q; r++)
            reference_row(w, h, r);
    return CLD_OK;
}

/* --- masks ------------------------------------------------------------------------------------ */

static uint64_t draw(const struct cld_check *c, size_t i, uint64_t below)
{
    return cld_random_below(cld_random_u64(c->seed, CLD_RANDOM_TEST, c->n_random, i, 1), below);
}

static int by_anchor(const void *a, const void *b)
{
    const struct cld_block *x = a, *y = b;
    return (x->anchor > y->anchor) - (x->anchor < y->anchor);
}

/* Documents of about equal length; document i starts at token i * n / n_docs. */
static int32_t document_of(const struct shape *p, size_t token)
{
    size_t doc = 0;
    for (size_t i = 1; i < p->n_docs; i++)
        if (i * p->n_ctx / p->n_docs <= token)
            doc = i * p->n_ctx / p->n_docs;
    return (int32_t)doc;
}

static enum cld_status make_spans(struct cld_check *c, struct work *w, struct cld_error *err)
{
    const struct shape *p = &w->shape;
    enum cld_status s = CLD_OK;
    struct cld_block *blocks = calloc(p->n_blocks + 1, sizeof *blocks);
    int32_t *doc = calloc(p->n_ctx + 1, sizeof *doc);
    w->n_q = p->kind == CAUSAL ? p->n_ctx : p->n_blocks * p->block_size;
    w->n_keys = p->kind == CAUSAL ? p->n_ctx : p->n_ctx + w->n_q;
    w->spans = calloc(w->n_q + 1, sizeof *w->spans);
    if (!blocks || !doc || !w->spans) {
        s = cld_fail_memory(err, "%zu spans", w->n_q);
        goto done;
    }
    for (size_t i = 0; i < p->n_ctx; i++)
        doc[i] = document_of(p, i);
    for (size_t b = 0; b < p->n_blocks; b++) {
        size_t at = p->n_ctx ? draw(c, b, p->n_ctx) : 0;
        blocks[b] = (struct cld_block){document_of(p, at), (int32_t)at};
        if (p->odd & AT_START && b % 3 == 0)
            blocks[b].anchor = blocks[b].doc;
    }
    if (!(p->odd & UNSORTED))
        qsort(blocks, p->n_blocks, sizeof *blocks, by_anchor);
    for (size_t b = 0; b < p->n_blocks; b++)
        if (p->odd & ALL_PADDING || (p->odd & PADDING && b % 3 == 1))
            blocks[b].anchor = -1;
    if (p->kind == CAUSAL)
        cld_mask_causal(doc, p->n_ctx, w->spans);
    else
        cld_mask_draft(blocks, p->n_blocks, p->block_size, p->n_ctx, p->window, p->causal,
                       w->spans);
done:
    free(blocks);
    free(doc);
    return s;
}

/* --- one case --------------------------------------------------------------------------------- */

static enum cld_status make_tensors(struct cld_check *c, struct work *w, enum cld_dtype grads,
                                    double size, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t cols = w->geo.n_heads * w->geo.head_dim, kv_cols = w->geo.n_kv_heads * w->geo.head_dim;
    const double zeros[4] = {0};
    if ((s = cld_check_input(c, "q", c->storage, w->n_q, cols, size, &w->q, err)) ||
        (s = cld_check_input(c, "k", c->storage, w->n_keys, kv_cols, size, &w->k, err)) ||
        (s = cld_check_input(c, "v", c->storage, w->n_keys, kv_cols, 1, &w->v, err)) ||
        (s = cld_check_input(c, "d_o", grads, w->n_q, cols, 1, &w->d_o, err)) ||
        (s = cld_check_output(c, "o", c->storage, w->n_q, cols, &w->o, err)) ||
        (s = cld_check_output(c, "lse", CLD_F32, w->geo.n_heads, w->n_q, &w->lse, err)) ||
        (s = cld_check_output(c, "d_q", grads, w->n_q, cols, &w->d_q, err)) ||
        (s = cld_check_output(c, "d_k", grads, w->n_keys, kv_cols, &w->d_k, err)) ||
        (s = cld_check_output(c, "d_v", grads, w->n_keys, kv_cols, &w->d_v, err)) ||
        (s = cld_check_values(c, "visited", CLD_I32, 1, 4, zeros, &w->visited, err)))
        return s;
    w->visited->output = true;
    return CLD_OK;
}

static enum cld_status plan_and_mask(struct cld_check *c, struct work *w,
                                     enum cld_attention_backend backend, enum cld_dtype grads,
                                     struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if ((s = cld_attention_plan(c->q, backend, w->n_q, w->n_keys, w->geo.n_heads, w->geo.n_kv_heads,
                                w->geo.head_dim, c->storage, grads, true, &w->plan, err)) ||
        (s = cld_buf_create(c->q, "mask", w->plan.mask_bytes, &w->mask.buf, err)) ||
        (s = cld_buf_create(c->q, "scratch", w->plan.scratch_bytes, &w->scratch, err)))
        return s;
    return cld_attention_mask_set(c->q, &w->plan, w->spans, w->n_q, w->n_keys, &w->mask, err);
}

/* Forward and backward. Scratch is full of NaN before each: nothing may be left from a call before.
 */
static enum cld_status body(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct work *w = arg;
    enum cld_status s = CLD_OK;
    const struct cld_attention a = {&w->plan, &w->mask,   &w->q->t,       &w->k->t,  &w->v->t,
                                    &w->o->t, &w->lse->t, &w->visited->t, w->scratch};
    if ((s = cld_buf_fill(w->scratch, 0, cld_buf_bytes(w->scratch), UINT32_MAX, err)) ||
        (s = cld_attention_forward(c->q, &a, err)) ||
        (s = cld_buf_fill(w->scratch, 0, cld_buf_bytes(w->scratch), UINT32_MAX, err)))
        return s;
    return cld_attention_backward(c->q, &a, &w->d_o->t, &w->d_q->t, &w->d_k->t, &w->d_v->t, err);
}

/* Storage of o in bf16 rounds delta = d_o * o too: 2^-9 of the terms of a difference. On tensor
 * cores weights and their gradients are rounded alike before they are summed up. */
static enum cld_status compare(struct cld_check *c, const struct work *w, double size,
                               struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    bool exact = c->storage == CLD_F32 && w->d_q->t.type == CLD_F32;
    bool steep = size > 4;
    enum cld_check_bound of_o = !exact  ? CLD_BOUND_BF16
                                : steep ? CLD_BOUND_F32_STEEP
                                        : CLD_BOUND_F32_SOFTMAX;
    enum cld_check_bound of_grads = exact ? (steep ? CLD_BOUND_F32_STEEP_GRAD : CLD_BOUND_F32_LONG)
                                    : steep ? CLD_BOUND_BF16_STEEP_GRAD
                                            : CLD_BOUND_BF16_SOFTMAX_GRAD;
    double n = (double)w->mask.tiles.n_listed;
    const double want_visited[4] = {n, n, n, 0};
    enum cld_check_bound of_lse = steep ? CLD_BOUND_F32_LONG : CLD_BOUND_F32;
    if ((s = cld_check_compare(c, w->lse, w->want_lse, of_lse, err)) ||
        (s = cld_check_compare(c, w->o, w->want_o, of_o, err)) ||
        (s = cld_check_compare(c, w->d_q, w->want_dq, of_grads, err)) ||
        (s = cld_check_compare(c, w->d_k, w->want_dk, of_grads, err)) ||
        (s = cld_check_compare(c, w->d_v, w->want_dv, of_grads, err)))
        return s;
    return cld_check_compare(c, w->visited, want_visited, CLD_BOUND_EXACT, err);
}

/* `size` is the deviation of q's and k's elements: scores deviate by size^2. */
static enum cld_status check_case(struct cld_check *c, const struct shape *shape,
                                  const struct geometry *geo, enum cld_attention_backend backend,
                                  enum cld_dtype grads, double size, struct cld_error *err)
{
    struct work w = {.shape = *shape, .geo = *geo};
    enum cld_status s = CLD_OK;
    cld_check_begin(c,
                    "attention %s %s ctx %zu/%zu blocks %zu x %zu window %zu%s odd %d, %zu/%zu "
                    "heads of %zu, grads %s, size %g",
                    backend == CLD_ATTENTION_DENSE ? "dense" : "sparse",
                    shape->kind == CAUSAL ? "causal" : "draft", shape->n_ctx, shape->n_docs,
                    shape->n_blocks, shape->block_size, shape->window,
                    shape->causal ? " causal" : "", shape->odd, geo->n_heads, geo->n_kv_heads,
                    geo->head_dim, cld_dtype_name(grads), size);
    /* Rows apart, and beginnings off the alignment of vectors; some keep to it. */
    c->pad = shape->n_ctx % 4 ? shape->n_ctx % 3 * 5 : 8;
    c->skew = shape->n_ctx % 2 * 3;
    if (c->skip || (s = make_spans(c, &w, err)) || (s = make_tensors(c, &w, grads, size, err)) ||
        (s = plan_and_mask(c, &w, backend, grads, err)) || (s = reference(&w, err)) ||
        (s = cld_check_twice(c, body, &w, err)) || (s = compare(c, &w, size, err)))
        goto done;
    cld_check_end(c);
done:
    work_free(&w);
    return s;
}

/* --- the cases -------------------------------------------------------------------------------- */

static const struct shape shapes[] = {
    {CAUSAL, 1, 1, 0, 0, 0, false, 0},
    {CAUSAL, 15, 1, 0, 0, 0, false, 0},
    {CAUSAL, 16, 1, 0, 0, 0, false, 0},
    {CAUSAL, 17, 2, 0, 0, 0, false, 0},
    {CAUSAL, 31, 1, 0, 0, 0, false, 0},
    {CAUSAL, 32, 3, 0, 0, 0, false, 0},
    {CAUSAL, 33, 1, 0, 0, 0, false, 0},
    {CAUSAL, 63, 1, 0, 0, 0, false, 0},
    {CAUSAL, 64, 5, 0, 0, 0, false, 0},
    {CAUSAL, 65, 1, 0, 0, 0, false, 0},
    {CAUSAL, 131, 2, 0, 0, 0, false, 0},
    {CAUSAL, 0, 1, 0, 0, 0, false, 0},      /* nothing at all */
    {DRAFT, 37, 1, 0, 8, 0, false, 0},      /* keys without rows: their gradients are zeros */
    {DRAFT, 0, 1, 1, 2, 0, false, PADDING}, /* rows without context */
    {DRAFT, 1, 1, 1, 2, 0, false, 0},
    {DRAFT, 97, 1, 11, 8, 0, false, AT_START},
    {DRAFT, 150, 4, 9, 16, 0, false, PADDING | AT_START},
    {DRAFT, 101, 2, 5, 8, 0, false, ALL_PADDING},
    {DRAFT, 89, 1, 7, 10, 24, true, 0}, /* sliding */
    {DRAFT, 211, 3, 9, 6, 33, false, PADDING},
    {DRAFT, 128, 1, 2, 64, 64, true, AT_START},
    {DRAFT, 71, 1, 29, 2, 2, true, 0},
    {DRAFT, 127, 2, 13, 7, 0, false, UNSORTED},
    {DRAFT, 1, 1, 1, 2, 0, false, ALL_PADDING}, /* no tile is listed; small enough for Oclgrind */
};

/* All shapes run with the first, the others with those of odd[]. The first n_few are enough where
 * head_dim changes little: in bf16, which is a matter of loads and stores, and for dense, whose
 * loops are plain. Building a variant takes seconds on some devices. */
static const struct geometry geometries[] = {
    {3, 1, 64}, {8, 2, 128}, {1, 1, 8},  {2, 1, 16},  {4, 2, 24},
    {7, 1, 40}, {5, 1, 72},  {8, 1, 96}, {2, 2, 256},
};
static const size_t n_few = 3;
/* With gradients in bf16: groups of heads in all splits, for both head_dim that tensor cores take.
 */
static const struct geometry narrow[] = {
    {8, 2, 128}, {8, 1, 64}, {3, 1, 128}, {6, 1, 128}, {4, 2, 64}, {4, 1, 24},
};
/* The same for the other widths that tensor cores compute with, and heads that are padded to one:
 * only on queues that have such kernels, as a width changes nothing in the portable ones. */
static const struct geometry padded[] = {
    {4, 1, 256}, {4, 1, 80},  {6, 2, 96},  {4, 1, 112},  {16, 1, 128}, {8, 2, 192},
    {2, 1, 40},  {8, 1, 104}, {3, 1, 136}, {16, 1, 248}, {1, 1, 8},
};
static const size_t odd[] = {9, 10, 16, 18, 19};
static const struct shape timed_shape = {DRAFT, 256, 1, 16, 16, 0, false, 0};

/* Key tiles that so many query tiles see that their lists may be cut. */
static const struct shape long_lists = {DRAFT, 72, 1, 40, 16, 0, false, 0};
static const struct geometry long_lists_geometry[] = {{4, 1, 64}, {4, 1, 256}};

static enum cld_status check_geometry(struct cld_check *c, const struct geometry *geo, bool all,
                                      enum cld_attention_backend backend, enum cld_dtype grads,
                                      struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = all ? sizeof shapes / sizeof *shapes : sizeof odd / sizeof *odd;
    for (size_t i = 0; i < n && !s; i++)
        s = check_case(c, &shapes[all ? i : odd[i]], geo, backend, grads, 1, err);
    return s;
}

static enum cld_status check_padded(struct cld_check *c, enum cld_attention_backend b,
                                    struct cld_error *err)
{
    enum cld_status s = check_case(c, &long_lists, &long_lists_geometry[1], b, CLD_BF16, 1, err);
    for (size_t i = 0; i < sizeof padded / sizeof *padded && !s; i++)
        s = check_geometry(c, &padded[i], i == 0, b, CLD_BF16, err);
    if (!s) /* softmax close to one-hot */
        s = check_case(c, &shapes[10], &padded[0], b, CLD_BF16, 10, err);
    return s;
}

static enum cld_status check_backend(struct cld_check *c, enum cld_attention_backend b,
                                     size_t n_geometries, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct geometry *geo = &geometries[0];
    if (cld_check_takes(c, true) &&
        (s = check_case(c, &timed_shape, &narrow[0], b, c->storage, 1, err)))
        return s;
    if (!cld_check_takes(c, false))
        return CLD_OK;
    for (size_t i = 0; i < n_geometries && !s; i++)
        s = check_geometry(c, &geometries[i], i == 0, b, CLD_F32, err);
    if (b == CLD_ATTENTION_SPARSE && c->storage == CLD_BF16) {
        for (size_t i = 0; i < sizeof narrow / sizeof *narrow && !s; i++)
            s = check_geometry(c, &narrow[i], i < 2, b, CLD_BF16, err);
        if (!s)
            s = check_case(c, &long_lists, &long_lists_geometry[0], b, CLD_BF16, 1, err);
        if (!s && cld_queue_has_ptx(c->q))
            s = check_padded(c, b, err);
    }
    /* scores of 100 and of 1000: softmax close to one-hot */
    if (s || (s = check_case(c, &shapes[15], geo, b, CLD_F32, 10, err)) ||
        (s = check_case(c, &shapes[10], geo, b, CLD_F32, 30, err)) ||
        (s = check_case(c, &shapes[10], &narrow[0], b, CLD_BF16, 10, err)))
        return s;
    return check_case(c, &shapes[16], geo, b, CLD_BF16, 1, err);
}

enum cld_status cld_check_attention(struct cld_check *c, struct cld_error *err)
{
    size_t n = c->storage == CLD_BF16 ? n_few : sizeof geometries / sizeof *geometries;
    return check_backend(c, CLD_ATTENTION_SPARSE, n, err);
}

enum cld_status cld_check_attention_quick(struct cld_check *c, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < 2 && !s; i++)
        s = check_geometry(c, &geometries[i], false, CLD_ATTENTION_SPARSE, c->storage, err);
    return s;
}

enum cld_status cld_check_attention_dense(struct cld_check *c, struct cld_error *err)
{
    return check_backend(c, CLD_ATTENTION_DENSE, n_few, err);
}
