#include "ops/op_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "ops/attention_private.h"

/* The first row that supports back-end, class and shape is used; faster variants go first. */
static const struct cld_attention_impl *const impls[] = {
    &cld_attention_sparse_cpu, &cld_attention_sparse_sm90a, &cld_attention_sparse_sm80,
    &cld_attention_sparse_gpu, &cld_attention_dense,
};

enum cld_status cld_attention_plan(const struct cld_queue *q, enum cld_attention_backend backend,
                                   size_t n_q_max, size_t n_keys_max, size_t n_heads,
                                   size_t n_kv_heads, size_t head_dim, enum cld_dtype type,
                                   enum cld_dtype grad_type, bool backward,
                                   struct cld_attention_plan *out, struct cld_error *err)
{
    enum cld_device_class class = cld_queue_class(q);
    memset(out, 0, sizeof *out);
    if (!head_dim || head_dim % 8 || head_dim > 256)
        return cld_fail(err, CLD_E_USAGE, "head_dim must be a multiple of 8 up to 256",
                        "attention cannot have heads of %zu", head_dim);
    if (!n_kv_heads || !n_heads || n_heads % n_kv_heads)
        return cld_fail(err, CLD_E_USAGE, "heads must be a multiple of kv_heads",
                        "attention cannot share %zu KV heads among %zu heads", n_kv_heads, n_heads);
    if ((type != CLD_F32 && type != CLD_BF16) || (grad_type != CLD_F32 && grad_type != CLD_BF16))
        return cld_fail(err, CLD_E_INTERNAL, "", "attention cannot store %s with gradients in %s",
                        cld_dtype_name(type), cld_dtype_name(grad_type));
    *out = (struct cld_attention_plan){.backend = backend,
                                       .n_q_max = n_q_max,
                                       .n_keys_max = n_keys_max,
                                       .n_heads = n_heads,
                                       .n_kv_heads = n_kv_heads,
                                       .head_dim = head_dim,
                                       .backward = backward,
                                       .type = type,
                                       .tuned = CLD_N_TUNED,
                                       .grad_type = grad_type,
                                       .scale = (float)(1.0 / sqrt((double)head_dim))};
    for (size_t i = 0; i < sizeof impls / sizeof *impls && !out->impl; i++)
        if (impls[i]->backend == backend && impls[i]->on[class] &&
            (!impls[i]->fits || impls[i]->fits(q, out)))
            out->impl = impls[i];
    if (!out->impl)
        return cld_fail(err, CLD_E_INTERNAL, "", "no attention back-end %d for device class %d",
                        (int)backend, (int)class);
    return out->impl->shape(q, out, err);
}

/* --- the mask on the device ------------------------------------------------------------------- */

enum cld_status cld_attention_mask_set(struct cld_queue *q, const struct cld_attention_plan *plan,
                                       const struct cld_span *spans, size_t n_q, size_t n_keys,
                                       struct cld_attention_mask *mask, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_tiles *t = &mask->tiles;
    int32_t *image = NULL;
    if (n_q > plan->n_q_max || n_keys > plan->n_keys_max)
        return cld_fail(err, CLD_E_INTERNAL, "",
                        "%s: attention mask of %zu rows and %zu keys, but "
                        "the plan has %zu and %zu",
                        cld_queue_name(q), n_q, n_keys, plan->n_q_max, plan->n_keys_max);
    /* Checked here, so that a larger plan can be refused with its bytes. */
    if (n_q > INT32_MAX / 2 || n_keys > INT32_MAX / 2)
        return cld_fail(err, CLD_E_USAGE, "use fewer rows in a micro-batch",
                        "attention of %zu rows over %zu keys", n_q, n_keys);
    mask->n_q = n_q;
    mask->n_keys = n_keys;
    if (plan->q_tile &&
        (s = cld_tiles_build(spans, n_q, n_keys, plan->q_tile, plan->k_tile, t, err)))
        goto done;
    mask->spans_at = 0;
    mask->fwd_ptr_at = 4 * n_q;
    mask->fwd_at = mask->fwd_ptr_at + t->n_q_tiles + 1;
    mask->bwd_ptr_at = mask->fwd_at + t->n_listed;
    mask->bwd_at = mask->bwd_ptr_at + t->n_k_tiles + 1;
    size_t n = plan->q_tile ? mask->bwd_at + t->n_listed : 4 * n_q;
    if (!(image = malloc(cld_mul(n + 1, sizeof *image)))) {
        s = cld_fail_memory(err, "an attention mask of %zu rows", n_q);
        goto done;
    }
    if (n_q)
        memcpy(image, spans, n_q * sizeof *spans);
    if (plan->q_tile) {
        memcpy(image + mask->fwd_ptr_at, t->fwd_ptr, (t->n_q_tiles + 1) * sizeof *image);
        memcpy(image + mask->fwd_at, t->fwd, t->n_listed * sizeof *image);
        memcpy(image + mask->bwd_ptr_at, t->bwd_ptr, (t->n_k_tiles + 1) * sizeof *image);
        memcpy(image + mask->bwd_at, t->bwd, t->n_listed * sizeof *image);
    }
    s = cld_buf_write(mask->buf, 0, image, n * sizeof *image, err);
done:
    free(image);
    return s;
}

void cld_attention_mask_free(struct cld_attention_mask *mask)
{
    if (mask)
        cld_tiles_free(&mask->tiles);
}

/* --- the calls -------------------------------------------------------------------------------- */

static enum cld_status check_tensor(const struct cld_attention *a, const struct cld_tensor *t,
                                    enum cld_dtype type, size_t n_rows, size_t n_cols,
                                    struct cld_error *err)
{
    if (t->type == type && t->n_rows == n_rows && t->n_cols == n_cols)
        return CLD_OK;
    return cld_fail(err, CLD_E_INTERNAL, "",
                    "attention of %zu rows over %zu keys, %zu/%zu heads "
                    "of %zu: '%s' is %s [%zu, %zu], not %s [%zu, %zu]",
                    a->mask->n_q, a->mask->n_keys, a->plan->n_heads, a->plan->n_kv_heads,
                    a->plan->head_dim, t->name, cld_dtype_name(t->type), t->n_rows, t->n_cols,
                    cld_dtype_name(type), n_rows, n_cols);
}

static enum cld_status check_call(const struct cld_attention *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_attention_plan *p = a->plan;
    size_t q_cols = cld_mul(p->n_heads, p->head_dim), k_cols = cld_mul(p->n_kv_heads, p->head_dim);
    if ((s = check_tensor(a, a->q, p->type, a->mask->n_q, q_cols, err)) ||
        (s = check_tensor(a, a->k, p->type, a->mask->n_keys, k_cols, err)) ||
        (s = check_tensor(a, a->v, p->type, a->mask->n_keys, k_cols, err)) ||
        (s = check_tensor(a, a->o, p->type, a->mask->n_q, q_cols, err)) ||
        (s = check_tensor(a, a->lse, CLD_F32, p->n_heads, cld_max(a->lse->n_cols, a->mask->n_q),
                          err)))
        return s;
    if (a->visited)
        s = check_tensor(a, a->visited, CLD_I32, 1, 4, err);
    size_t held = a->scratch ? cld_buf_bytes(a->scratch) : 0;
    if (!s && held < p->scratch_bytes)
        s = cld_fail(err, CLD_E_INTERNAL, "", "attention has %zu bytes of scratch, its plan %zu",
                     held, p->scratch_bytes);
    return s;
}

enum cld_status cld_attention_forward(struct cld_queue *q, const struct cld_attention *a,
                                      struct cld_error *err)
{
    enum cld_status s = check_call(a, err);
    return s ? s : a->plan->impl->forward(q, a, err);
}

enum cld_status cld_attention_backward(struct cld_queue *q, const struct cld_attention *a,
                                       const struct cld_tensor *d_o, const struct cld_tensor *d_q,
                                       const struct cld_tensor *d_k, const struct cld_tensor *d_v,
                                       struct cld_error *err)
{
    enum cld_status s = check_call(a, err);
    const struct cld_attention_plan *p = a->plan;
    const struct cld_attention_grads g = {d_o, d_q, d_k, d_v};
    if (s)
        return s;
    if (!p->backward)
        return cld_fail(err, CLD_E_INTERNAL, "", "attention was planned without a backward pass");
    if ((s = check_tensor(a, d_o, p->grad_type, a->o->n_rows, a->o->n_cols, err)) ||
        (s = check_tensor(a, d_q, p->grad_type, a->q->n_rows, a->q->n_cols, err)) ||
        (s = check_tensor(a, d_k, p->grad_type, a->k->n_rows, a->k->n_cols, err)) ||
        (s = check_tensor(a, d_v, p->grad_type, a->v->n_rows, a->v->n_cols, err)))
        return s;
    return p->impl->backward(q, a, &g, err);
}
