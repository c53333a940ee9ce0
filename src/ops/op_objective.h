/* op_objective.h - objectives beside plain cross-entropy: weights of D-PACE, and soft targets.
 * Thread: the queue's owner. Everything is enqueued. */
#ifndef CLD_OPS_OP_OBJECTIVE_H
#define CLD_OPS_OP_OBJECTIVE_H

#include "ops/op_head.h"

/* weights [1, n] F32 of the rows with a loss, from their cross-entropy loss [1, n] F32: `scale`
 * times the weight of D-PACE (cl/dpace.cl). place I32 [1, n_blocks * block_size]: of each draft row
 * among those rows, or -1; each of the n has one. */
enum cld_status cld_dpace_weights(struct cld_queue *q, const struct cld_tensor *place,
                                  const struct cld_tensor *loss, size_t block_size, float alpha,
                                  float scale, const struct cld_tensor *weights,
                                  struct cld_error *err);

enum { CLD_SOFT_SUMS = 4 }; /* numbers that cl/soft_targets.cl keeps of a row */

/* Loss of rows of logits against targets, both [n, v] of one storage, and labels: see
 * cl/soft_targets.cl. The gradient is of weight * loss, and may be the logits; NULL: none. */
struct cld_soft_targets {
    const struct cld_tensor *logits, *targets;
    const struct cld_tensor *labels, *weights; /* I32 and F32 [1, n] */
    const struct cld_tensor *loss, *hit; /* F32 [1, n] unweighted; I32 as in cld_cross_entropy */
    const struct cld_tensor *gradient;
    const struct cld_tensor *sums; /* [2 n, CLD_SOFT_SUMS] F32, working memory without gaps */
    float share, temperature;      /* of the divergence, (0, 1]; above 0 */
};
enum cld_status cld_soft_targets(struct cld_queue *q, const struct cld_soft_targets *o,
                                 struct cld_error *err);

/* Loss of rows z under a frozen head against the distribution of the target itself: softmax of its
 * head times its normalised last state. Like cld_head_loss it works on a chunk of rows at a time:
 * full logits of either side never exist. */
struct cld_soft_loss {
    struct cld_head_loss head;      /* with a gradient */
    const struct cld_tensor *state; /* [C, H] the target's residual stream after its last layer */
    const struct cld_tensor *norm;  /* [1, H] the target's final norm */
    float norm_eps;
    /* I32 [1, n or more]: the row of `state` that speaks of each z */
    const struct cld_tensor *before;
    /* Working memory: [chunk, H] twice in the storage of z, [chunk, V] F32, [2 chunk,
     * CLD_SOFT_SUMS]. */
    const struct cld_tensor *rows, *normed, *targets, *sums;
    float share, temperature;
};
enum cld_status cld_soft_loss(struct cld_queue *q, const struct cld_soft_loss *l,
                              struct cld_buf *scratch, struct cld_error *err);

#endif
