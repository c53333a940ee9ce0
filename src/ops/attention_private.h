/* attention_private.h - what op_attention.c and the attention_*.c share. */
#ifndef CLD_OPS_ATTENTION_PRIVATE_H
#define CLD_OPS_ATTENTION_PRIVATE_H

#include "ops/op_attention.h"

/* What d_o comes with in the backward pass. */
struct cld_attention_grads {
    const struct cld_tensor *d_o, *d_q, *d_k, *d_v;
};

/* One way to compute attention. `shape` fills in tiles, local, options, variant, mask_bytes and
 * scratch_bytes of a plan whose geometry is set and checked. */
struct cld_attention_impl {
    const char *name;
    enum cld_attention_backend backend;
    bool on[2]; /* by enum cld_device_class */
    /* Whether it does this geometry and storage on this queue; NULL: all of them. */
    bool (*fits)(const struct cld_queue *q, const struct cld_attention_plan *p);
    enum cld_status (*shape)(const struct cld_queue *q, struct cld_attention_plan *p,
                             struct cld_error *err);
    enum cld_status (*forward)(struct cld_queue *q, const struct cld_attention *a,
                               struct cld_error *err);
    enum cld_status (*backward)(struct cld_queue *q, const struct cld_attention *a,
                                const struct cld_attention_grads *g, struct cld_error *err);
};

extern const struct cld_attention_impl cld_attention_sparse_cpu, cld_attention_sparse_gpu,
    cld_attention_sparse_sm80, cld_attention_sparse_sm90a, cld_attention_dense;

/* Query heads of a KV head. */
static inline size_t cld_attention_group(const struct cld_attention_plan *p)
{
    return p->n_heads / p->n_kv_heads;
}

/* Bytes of spans and tile lists, for the plan's tiles. */
size_t cld_attention_mask_bytes(const struct cld_attention_plan *p);

/* Arguments that all sparse passes have in common; `column` of the counter is the pass's. */
#define CLD_MASK_ARGS(a, ptr_at, list_at, column, n_pieces)                                        \
    CLD_BUF((a)->mask->buf), CLD_U64((a)->mask->spans_at), CLD_U64(ptr_at), CLD_U64(list_at),      \
        CLD_BUF((a)->visited ? (a)->visited->buf : NULL),                                          \
        CLD_U64((a)->visited ? (a)->visited->offset + (column) : 0), CLD_I32((a)->mask->n_q),      \
        CLD_I32((a)->mask->n_keys), CLD_U64(cld_attention_group((a)->plan)),                       \
        CLD_FLOAT((a)->plan->scale), CLD_U64(n_pieces)

/* A tensor as three arguments of a kernel: buffer, offset and ld in elements. */
#define CLD_TENSOR_ARGS(t) CLD_BUF((t)->buf), CLD_U64((t)->offset), CLD_U64((t)->ld)

#endif
