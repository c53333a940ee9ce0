/* op_attention.h - attention over spans of keys, forward and backward, sparse and dense.
 *
 * q [n_q, n_heads * head_dim], k and v [n_keys, n_kv_heads * head_dim], o like q; query head h uses
 * KV head h / (n_heads / n_kv_heads). Softmax over the keys that mask.h's spans allow, scaled by
 * head_dim^-0.5 unless the plan is given another scale, statistics in float. A row that sees
 * nothing gives zeros and no gradient, and a key that no row sees gets a gradient of exactly zero.
 * NaN in a key reaches all rows that see it. lse [n_heads, n_q or more] F32 keeps log-sum-exp for
 * the backward pass; it is 0 for a row that sees nothing. Sparse visits listed tiles only and never
 * stores scores; dense stores them and exists as an oracle and as an explicit setting. Results are
 * the same bits from run to run.
 *
 * Thread: the queue's owner. */
#ifndef CLD_OPS_OP_ATTENTION_H
#define CLD_OPS_OP_ATTENTION_H

#include "opencl/queue.h"
#include "opencl/tensor.h"
#include "ops/attention_backend.h"
#include "ops/mask.h"

struct cld_attention_impl; /* a row of the dispatch table, private */

extern const struct cld_tunable_kernel cld_tuned_attention_cpu,
    cld_tuned_attention_gpu; /* tuning.h */

/* Tile shapes and needs of a backend for one geometry on one queue, known before any allocation. */
struct cld_attention_plan {
    enum cld_attention_backend backend;
    size_t n_q_max, n_keys_max, n_heads, n_kv_heads, head_dim;
    bool backward;       /* false: forward only */
    enum cld_dtype type; /* storage of q, k, v, o */
    enum cld_dtype grad_type;
    float scale;           /* of scores; a caller whose heads end in zeros sets its own */
    size_t q_tile, k_tile; /* 0 for dense, which has no tiles */
    size_t heads_together; /* query heads of a KV head in one tile */
    size_t mask_bytes;     /* spans and tile lists on the device, for one kind of layer */
    size_t scratch_bytes;  /* shared by all layers, free between calls; 0 is possible */
    char variant[96];      /* "sparse cpu, tiles of 16 x 4 rows and 32 keys": in log and metrics */
    char options[96];      /* build options of its kernels */
    size_t local;          /* work-items in a group */
    enum cld_tuned tuned;  /* the family of its kernels' parameters; CLD_N_TUNED: none */
    const struct cld_attention_impl *impl;
};
/* The kernel family is the queue's. CLD_E_USAGE where the geometry is not supported (head_dim a
 * multiple of 8 up to 256), CLD_E_DEVICE where the device lacks local memory or work-items. */
enum cld_status cld_attention_plan(const struct cld_queue *q, enum cld_attention_backend backend,
                                   size_t n_q_max, size_t n_keys_max, size_t n_heads,
                                   size_t n_kv_heads, size_t head_dim, enum cld_dtype type,
                                   enum cld_dtype grad_type, bool backward,
                                   struct cld_attention_plan *out, struct cld_error *err);

/* Bytes of scores that a dense back-end needs for the same geometry, forward or backward: all heads
 * in float. For the refusal's text, and what its plan counts. */
size_t cld_attention_dense_bytes(size_t n_q, size_t n_keys, size_t n_heads);

/* One kind of layer's mask on the device, inside a buffer of plan.mask_bytes. The caller sets `buf`
 * and zeroes the rest before the first cld_attention_mask_set. */
struct cld_attention_mask {
    struct cld_buf *buf; /* owned by the caller's plan */
    size_t n_q, n_keys;
    struct cld_tiles tiles; /* host copy; nothing listed where the plan is dense */
    size_t spans_at, fwd_ptr_at, fwd_at, bwd_ptr_at, bwd_at; /* int offsets in buf */
};
/* Builds the lists for these spans and uploads them (blocking). */
enum cld_status cld_attention_mask_set(struct cld_queue *q, const struct cld_attention_plan *plan,
                                       const struct cld_span *spans, size_t n_q, size_t n_keys,
                                       struct cld_attention_mask *mask, struct cld_error *err);
void cld_attention_mask_free(struct cld_attention_mask *mask); /* host parts only */

struct cld_attention {
    const struct cld_attention_plan *plan;
    const struct cld_attention_mask *mask;
    const struct cld_tensor *q, *k, *v, *o, *lse;
    /* Counter I32 [1, 4] on the device: tiles visited by the forward, dQ and dK/dV passes are added
     * to columns 0, 1, 2. The loops over tiles count, in the pieces of query head 0 or KV head 0
     * (the other heads take the same lists), so each pass must add exactly mask->tiles.n_listed: a
     * tile that a loop skips or repeats shows. The dense back-end adds nothing. NULL: not
     * counted. */
    const struct cld_tensor *visited;
    struct cld_buf *scratch; /* plan.scratch_bytes; NULL where that is 0 */
};

/* n_q and n_keys are the mask's; both may be 0. CLD_E_INTERNAL with all shapes if they do not
 * fit. */
enum cld_status cld_attention_forward(struct cld_queue *q, const struct cld_attention *a,
                                      struct cld_error *err);

/* From d_o (like o): d_q, d_k, d_v (like q, k, v; overwritten), all stored as plan.grad_type. Needs
 * o and lse of the forward pass. */
enum cld_status cld_attention_backward(struct cld_queue *q, const struct cld_attention *a,
                                       const struct cld_tensor *d_o, const struct cld_tensor *d_q,
                                       const struct cld_tensor *d_k, const struct cld_tensor *d_v,
                                       struct cld_error *err);

#endif
