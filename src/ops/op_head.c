#include "ops/op_head.h"

#include "ops/ops.h"

/* logits = z head^T, of rows that both have. */
static struct cld_gemm logits_gemm(const struct cld_head_loss *l, const struct cld_tensor *z,
                                   const struct cld_tensor *logits)
{
    return (struct cld_gemm){
        .kind = CLD_GEMM_NT, .backend = l->gemm, .a = z, .b = l->head, .c = logits};
}

/* dz = d_logits head, of rows that both have. */
static struct cld_gemm dz_gemm(const struct cld_head_loss *l, const struct cld_tensor *d_logits,
                               const struct cld_tensor *dz)
{
    return (struct cld_gemm){
        .kind = CLD_GEMM_NN, .backend = l->gemm, .a = d_logits, .b = l->head, .c = dz};
}

enum cld_status cld_head_logits(struct cld_queue *q, const struct cld_head_loss *l,
                                const struct cld_tensor *z, const struct cld_tensor *logits,
                                struct cld_buf *scratch, struct cld_error *err)
{
    struct cld_gemm gemm = logits_gemm(l, z, logits);
    return cld_gemm(q, &gemm, scratch, err);
}

size_t cld_head_loss_scratch_bytes(const struct cld_queue *q, const struct cld_head_loss *l)
{
    struct cld_tensor z = cld_tensor_rows(l->z, 0, l->logits->n_rows);
    struct cld_gemm logits = logits_gemm(l, &z, l->logits);
    size_t n = cld_gemm_scratch_bytes(q, &logits);
    if (!l->dz)
        return n;
    struct cld_tensor dz = cld_tensor_rows(l->dz, 0, l->logits->n_rows);
    struct cld_gemm back = dz_gemm(l, l->d_logits, &dz);
    return cld_max(n, cld_gemm_scratch_bytes(q, &back));
}

/* Rows [first, first + n). */
static enum cld_status run_chunk(struct cld_queue *q, const struct cld_head_loss *l, size_t first,
                                 size_t n, struct cld_buf *scratch, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_tensor z = cld_tensor_rows(l->z, first, n);
    struct cld_tensor logits = cld_tensor_rows(l->logits, 0, n);
    struct cld_tensor labels = cld_tensor_cols(l->labels, first, n);
    struct cld_tensor weights = cld_tensor_cols(l->weights, first, n);
    struct cld_tensor loss = cld_tensor_cols(l->loss, first, n);
    struct cld_tensor hit = cld_tensor_cols(l->hit, first, n);
    struct cld_tensor d_logits = l->dz ? cld_tensor_rows(l->d_logits, 0, n) : logits;
    if ((s = cld_head_logits(q, l, &z, &logits, scratch, err)) ||
        (s = cld_cross_entropy(q, &logits, &labels, &weights, &loss, &hit, l->dz ? &d_logits : NULL,
                               err)) ||
        !l->dz)
        return s;
    struct cld_tensor dz = cld_tensor_rows(l->dz, first, n);
    struct cld_gemm back = dz_gemm(l, &d_logits, &dz);
    return cld_gemm(q, &back, scratch, err);
}

enum cld_status cld_head_loss(struct cld_queue *q, const struct cld_head_loss *l,
                              struct cld_buf *scratch, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = l->z->n_rows, chunk = l->logits->n_rows;
    for (size_t at = 0; at < n && !s; at += chunk)
        s = run_chunk(q, l, at, cld_min(chunk, n - at), scratch, err);
    return s;
}
