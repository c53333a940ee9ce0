/* ops.h - element-wise operations, norms, rotary embedding, gathers, loss, optimizer.
 *
 * Every call enqueues on the queue of its owner thread and returns; shapes are checked against each
 * other (CLD_E_INTERNAL with the shapes). Storage of each operand is F32 or BF16 by its tensor,
 * arithmetic is float. "n" rows are those of the first tensor. Index tensors are I32 [1, n].
 * All reductions have a fixed order: results are the same bits from run to run. Which kernel
 * variant a call needs follows from storages, n_cols and the alignment of begins and strides (16
 * bytes is fastest), never from the number of rows. Indices that point outside are the caller's
 * error; they never become an access outside a tensor (labels and positions are clamped). */
#ifndef CLD_OPS_OPS_H
#define CLD_OPS_OPS_H

#include "opencl/queue.h"
#include "opencl/tensor.h"

/* Families of tuned kernels (tuning.h). */
extern const struct cld_tunable_kernel cld_tuned_rmsnorm, cld_tuned_qknorm_rope,
    cld_tuned_cross_entropy, cld_tuned_swiglu;

/* y = x * rsqrt(mean(x^2) + eps) * w. x, y [n, c]; w [1, c]; rstd F32 [1, n] or NULL. */
enum cld_status cld_rmsnorm_forward(struct cld_queue *q, const struct cld_tensor *x,
                                    const struct cld_tensor *w, float eps,
                                    const struct cld_tensor *y, const struct cld_tensor *rstd,
                                    struct cld_error *err);

/* dx = d rmsnorm (+ residual, which may be dx itself or NULL); dw F32 [1, c] += sum over rows.
 * scratch: cld_norm_scratch_bytes(q, c). n may be 0: then dw is unchanged. */
enum cld_status cld_rmsnorm_backward(struct cld_queue *q, const struct cld_tensor *x,
                                     const struct cld_tensor *w, const struct cld_tensor *rstd,
                                     const struct cld_tensor *dy, const struct cld_tensor *residual,
                                     const struct cld_tensor *dx, const struct cld_tensor *dw,
                                     struct cld_buf *scratch, struct cld_error *err);
size_t cld_norm_scratch_bytes(const struct cld_queue *q, size_t n_cols);

/* Per-head RMSNorm (w [1, head_dim]; NULL: none) and then rotation of the two halves of each head:
 * (a, b) -> (a cos - b sin, b cos + a sin) with the row's position. x, y [n, n_heads * head_dim]
 * (y may be x where w is NULL or rstd is not needed); positions I32 [1, n]; table F32
 * [n_positions, head_dim]: head_dim/2 cosines, then head_dim/2 sines. rstd F32 [n, n_heads] or
 * NULL. */
enum cld_status cld_qknorm_rope_forward(struct cld_queue *q, const struct cld_tensor *x,
                                        const struct cld_tensor *w, float eps, size_t head_dim,
                                        const struct cld_tensor *positions,
                                        const struct cld_tensor *table, const struct cld_tensor *y,
                                        const struct cld_tensor *rstd, struct cld_error *err);
/* dx from dy (dx may be dy); dw F32 [1, head_dim] += . scratch: cld_norm_scratch_bytes(q,
 * head_dim). */
enum cld_status cld_qknorm_rope_backward(struct cld_queue *q, const struct cld_tensor *x,
                                         const struct cld_tensor *w, size_t head_dim,
                                         const struct cld_tensor *positions,
                                         const struct cld_tensor *table,
                                         const struct cld_tensor *rstd, const struct cld_tensor *dy,
                                         const struct cld_tensor *dx, const struct cld_tensor *dw,
                                         struct cld_buf *scratch, struct cld_error *err);

/* y = silu(gate) * up, all [n, c]. */
enum cld_status cld_swiglu_forward(struct cld_queue *q, const struct cld_tensor *gate,
                                   const struct cld_tensor *up, const struct cld_tensor *y,
                                   struct cld_error *err);
/* d_gate and d_up from dy; they may be gate's and up's own tensors' places or others. */
enum cld_status cld_swiglu_backward(struct cld_queue *q, const struct cld_tensor *gate,
                                    const struct cld_tensor *up, const struct cld_tensor *dy,
                                    const struct cld_tensor *d_gate, const struct cld_tensor *d_up,
                                    struct cld_error *err);

/* y = a + b (b may be NULL: a copy with conversion of storage; y may be a). [n, c], any ld. */
enum cld_status cld_add_tensors(struct cld_queue *q, const struct cld_tensor *a,
                                const struct cld_tensor *b, const struct cld_tensor *y,
                                struct cld_error *err);

/* y[i] = x[index[i]] for each row i of y; a negative index gives a row of zeros. */
enum cld_status cld_gather_rows(struct cld_queue *q, const struct cld_tensor *x,
                                const struct cld_tensor *index, const struct cld_tensor *y,
                                struct cld_error *err);

/* y[index[i]] = x[i] for each row i of x; a negative index leaves y as it is. No index twice. */
enum cld_status cld_scatter_rows(struct cld_queue *q, const struct cld_tensor *x,
                                 const struct cld_tensor *index, const struct cld_tensor *y,
                                 struct cld_error *err);

/* Cross-entropy over the vocabulary and its gradient. logits [n, v]; gradient [n, v], may be the
 * logits themselves, NULL: none: (softmax - onehot(label)) * weight. labels I32 [1, n]; weights F32
 * [1, n] (already divided by the global weight sum). loss F32 [1, n]: unweighted CE of the row; hit
 * I32 [1, n]: 1 where the label is the first maximum. */
enum cld_status cld_cross_entropy(struct cld_queue *q, const struct cld_tensor *logits,
                                  const struct cld_tensor *labels, const struct cld_tensor *weights,
                                  const struct cld_tensor *loss, const struct cld_tensor *hit,
                                  const struct cld_tensor *gradient, struct cld_error *err);

/* The column of the first maximum of each row: index I32 [1, n]. -1 where the row has a NaN. */
enum cld_status cld_first_max(struct cld_queue *q, const struct cld_tensor *x,
                              const struct cld_tensor *index, struct cld_error *err);

/* *out = sum of squares of all elements of an F32 or BF16 tensor without gaps, added in double on
 * the host from a fixed number of float partial sums. Waits for the device. scratch:
 * cld_sum_scratch_bytes(q). A non-finite sum is returned as it is. */
enum cld_status cld_sum_squares(struct cld_queue *q, const struct cld_tensor *x,
                                struct cld_buf *scratch, double *out, struct cld_error *err);
size_t cld_sum_scratch_bytes(const struct cld_queue *q);

/* AdamW, decoupled weight decay (Loshchilov, Hutter 2019), over one arena in one launch:
 * g = grad * grad_scale; m, v moments; master F32; weight = master in its storage (may be the same
 * tensor as master in F32). Decay acts on elements [0, n_decay). All [1, n] without gaps. */
struct cld_adamw {
    const struct cld_tensor *grad, *m, *v, *master, *weight;
    size_t n_decay;
    float learning_rate, beta1, beta2, epsilon, weight_decay, grad_scale;
    size_t step; /* from 1: bias correction, computed in double on the host */
};
enum cld_status cld_adamw_step(struct cld_queue *q, const struct cld_adamw *a,
                               struct cld_error *err);

/* mean += (x - mean) * share over one arena; both F32 [1, n]. */
enum cld_status cld_ema_step(struct cld_queue *q, const struct cld_tensor *mean,
                             const struct cld_tensor *x, float share, struct cld_error *err);

/* Normal values with this standard deviation, a pure function of (seed, stream, element), where
 * element = row * n_cols + column; equal on all devices up to the rounding of their log and
 * cosine. */
enum cld_status cld_fill_normal(struct cld_queue *q, const struct cld_tensor *t, uint64_t seed,
                                uint64_t stream, float std, struct cld_error *err);
/* Every element = value. */
enum cld_status cld_fill(struct cld_queue *q, const struct cld_tensor *t, float value,
                         struct cld_error *err);

#endif
