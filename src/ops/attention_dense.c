/* attention_dense.c - attention with stored scores: an oracle and an explicit setting. */
#include "ops/attention_private.h"

#include <stdio.h>

#include "base/size.h"

size_t cld_attention_dense_bytes(size_t n_q, size_t n_keys, size_t n_heads)
{
    return cld_mul(cld_mul3(n_heads, n_q, n_keys), sizeof(float));
}

/* Scratch holds the scores of all heads, then, at a whole number of floats, delta. */
static enum cld_status shape(const struct cld_queue *q, struct cld_attention_plan *p,
                             struct cld_error *err)
{
    (void)err;
    p->heads_together = 1;
    p->local = 1;
    if (cld_queue_class(q) == CLD_CLASS_GPU)
        p->local = cld_min(128, cld_queue_device(q)->max_group);
    p->mask_bytes = cld_mul(p->n_q_max, sizeof(struct cld_span));
    p->scratch_bytes = cld_attention_dense_bytes(p->n_q_max, p->n_keys_max, p->n_heads);
    if (p->backward)
        p->scratch_bytes =
            cld_add(p->scratch_bytes, cld_mul3(p->n_heads, p->n_q_max, sizeof(float)));
    snprintf(p->options, sizeof p->options, "-DX=%s -DY=%s", p->type == CLD_BF16 ? "bf16" : "f32",
             p->grad_type == CLD_BF16 ? "bf16" : "f32");
    snprintf(p->variant, sizeof p->variant, "dense, scores of %zu heads x %zu rows x %zu keys",
             p->n_heads, p->n_q_max, p->n_keys_max);
    return CLD_OK;
}

static enum cld_status run(struct cld_queue *q, const struct cld_attention_plan *p,
                           const char *kernel, size_t n_items, const struct cld_arg *args,
                           size_t n_args, struct cld_error *err)
{
    const struct cld_kernel_spec spec = {"attention_dense.cl", kernel, p->options, p->local};
    return cld_run(q, &spec, cld_div_up(n_items, p->local), args, n_args, err);
}
#define RUN(q, p, kernel, n_items, err, ...)                                                       \
    run((q), (p), (kernel), (n_items), (const struct cld_arg[]){__VA_ARGS__},                      \
        sizeof((const struct cld_arg[]){__VA_ARGS__}) / sizeof(struct cld_arg), (err))

struct sizes {
    size_t n_heads, group, n_q, n_keys, head_dim, n_scores;
};
#define SIZE_ARGS(z)                                                                               \
    CLD_U64((z).n_heads), CLD_U64((z).group), CLD_U64((z).n_q), CLD_U64((z).n_keys),               \
        CLD_U64((z).head_dim)

static struct sizes sizes_of(const struct cld_attention *a)
{
    const struct cld_attention_plan *p = a->plan;
    return (struct sizes){p->n_heads,   p->n_heads / p->n_kv_heads,
                          a->mask->n_q, a->mask->n_keys,
                          p->head_dim,  cld_mul3(p->n_heads, a->mask->n_q, a->mask->n_keys)};
}

static enum cld_status run_scores(struct cld_queue *q, const struct cld_attention *a,
                                  const struct cld_tensor *lse, struct cld_error *err)
{
    const struct sizes z = sizes_of(a);
    const struct cld_tensor none = {0};
    return RUN(q, a->plan, "dense_scores", z.n_scores, err, CLD_TENSOR_ARGS(a->q),
               CLD_TENSOR_ARGS(a->k), CLD_TENSOR_ARGS(lse ? lse : &none), CLD_BUF(a->mask->buf),
               CLD_BUF(a->scratch), SIZE_ARGS(z), CLD_FLOAT(a->plan->scale));
}

static enum cld_status forward(struct cld_queue *q, const struct cld_attention *a,
                               struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_attention_plan *p = a->plan;
    const struct sizes z = sizes_of(a);
    if ((s = run_scores(q, a, NULL, err)) ||
        (s = RUN(q, p, "dense_softmax", z.n_heads * z.n_q, err, CLD_BUF(a->scratch),
                 CLD_BUF(a->mask->buf), CLD_TENSOR_ARGS(a->lse), CLD_U64(z.n_heads), CLD_U64(z.n_q),
                 CLD_U64(z.n_keys))))
        return s;
    return RUN(q, p, "dense_o", z.n_q * z.n_heads * z.head_dim / 8, err, CLD_BUF(a->scratch),
               CLD_TENSOR_ARGS(a->v), CLD_TENSOR_ARGS(a->o), SIZE_ARGS(z));
}

static enum cld_status backward(struct cld_queue *q, const struct cld_attention *a,
                                const struct cld_attention_grads *g, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_attention_plan *p = a->plan;
    const struct sizes z = sizes_of(a);
    size_t n_rows = z.n_q * z.n_heads * z.head_dim / 8;
    size_t n_keys = z.n_keys * p->n_kv_heads * z.head_dim / 8;
    const struct cld_arg weights = CLD_BUF(a->scratch), delta_at = CLD_U64(z.n_scores);
    if ((s = RUN(q, p, "dense_delta", z.n_heads * z.n_q, err, CLD_TENSOR_ARGS(a->o),
                 CLD_TENSOR_ARGS(g->d_o), weights, delta_at, CLD_U64(z.n_heads), CLD_U64(z.n_q),
                 CLD_U64(z.head_dim))) ||
        (s = run_scores(q, a, a->lse, err)) ||
        (s = RUN(q, p, "dense_dv", n_keys, err, weights, CLD_TENSOR_ARGS(g->d_o),
                 CLD_TENSOR_ARGS(g->d_v), SIZE_ARGS(z))) ||
        (s = RUN(q, p, "dense_dscores", z.n_scores, err, weights, CLD_TENSOR_ARGS(a->v),
                 CLD_TENSOR_ARGS(g->d_o), delta_at, SIZE_ARGS(z), CLD_FLOAT(p->scale))) ||
        (s = RUN(q, p, "dense_dq", n_rows, err, weights, CLD_TENSOR_ARGS(a->k),
                 CLD_TENSOR_ARGS(g->d_q), SIZE_ARGS(z))))
        return s;
    return RUN(q, p, "dense_dk", n_keys, err, weights, CLD_TENSOR_ARGS(a->q),
               CLD_TENSOR_ARGS(g->d_k), SIZE_ARGS(z));
}

const struct cld_attention_impl cld_attention_dense = {
    .name = "dense",
    .backend = CLD_ATTENTION_DENSE,
    .on = {[CLD_CLASS_CPU] = true, [CLD_CLASS_GPU] = true},
    .shape = shape,
    .forward = forward,
    .backward = backward};
