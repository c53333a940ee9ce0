/* op_head.h - the loss of rows under a frozen head: logits, cross-entropy and, for training, its
 * gradient with respect to the rows; a chunk of rows at a time, so that logits of all rows never
 * exist. Thread: the queue's owner. */
#ifndef CLD_OPS_OP_HEAD_H
#define CLD_OPS_OP_HEAD_H

#include "ops/op_gemm.h"

struct cld_head_loss {
    enum cld_gemm_backend gemm;
    const struct cld_tensor *z;        /* [n, H] */
    const struct cld_tensor *head;     /* [V, H] */
    const struct cld_tensor *logits;   /* [chunk, V] F32, working memory */
    const struct cld_tensor *d_logits; /* [chunk, V], may be logits; NULL: no gradient */
    const struct cld_tensor *labels, *weights, *loss, *hit; /* [1, n or more]: cld_cross_entropy */
    const struct cld_tensor *dz; /* [n, H], overwritten; may be z; NULL: no gradient */
};

/* Enqueued: logits [n, V] F32 of rows z [n, H], by l's head; n rows at once, at most those that
 * cld_head_loss_scratch_bytes of l->logits is for. */
enum cld_status cld_head_logits(struct cld_queue *q, const struct cld_head_loss *l,
                                const struct cld_tensor *z, const struct cld_tensor *logits,
                                struct cld_buf *scratch, struct cld_error *err);

/* Bytes of scratch for any number of rows; only shapes and types are looked at. */
size_t cld_head_loss_scratch_bytes(const struct cld_queue *q, const struct cld_head_loss *l);

/* Enqueued. z has n rows; n = 0 is fine. */
enum cld_status cld_head_loss(struct cld_queue *q, const struct cld_head_loss *l,
                              struct cld_buf *scratch, struct cld_error *err);

#endif
