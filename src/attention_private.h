/* attention_private.h - what op_attention.c, attention_sparse.c and attention_dense.c share. */
#ifndef CLD_ATTENTION_PRIVATE_H
#define CLD_ATTENTION_PRIVATE_H

#include "op_attention.h"

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
    enum cld_status (*shape)(const struct cld_queue *q, struct cld_attention_plan *p,
                             struct cld_error *err);
    enum cld_status (*forward)(struct cld_queue *q, const struct cld_attention *a,
                               struct cld_error *err);
    enum cld_status (*backward)(struct cld_queue *q, const struct cld_attention *a,
                                const struct cld_attention_grads *g, struct cld_error *err);
};

extern const struct cld_attention_impl cld_attention_sparse_cpu, cld_attention_sparse_gpu,
    cld_attention_dense;

/* A tensor as three arguments of a kernel: buffer, offset and ld in elements. */
#define CLD_TENSOR_ARGS(t) CLD_BUF((t)->buf), CLD_U64((t)->offset), CLD_U64((t)->ld)

#endif
