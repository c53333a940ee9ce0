#include "op_head.h"

#include "ops.h"

/* logits = z head^T, of rows that both have. */
static struct cld_gemm logits_product(const struct cld_head_loss *l, const struct cld_tensor *z,
                                      const struct cld_tensor *logits)
{
    bool turned = l->head_turned != NULL;
    return (struct cld_gemm){.kind = turned ? CLD_GEMM_NN : CLD_GEMM_NT,
                             .backend = l->gemm,
                             .a = z,
                             .b = turned ? l->head_turned : l->head,
                             .c = logits};
}

/* dz = d_logits head, of rows that both have. */
static struct cld_gemm dz_product(const struct cld_head_loss *l, const struct cld_tensor *d_logits,
                                  const struct cld_tensor *dz)
{
    return (struct cld_gemm){.kind = l->head_turned ? CLD_GEMM_TN : CLD_GEMM_NN,
                             .backend = l->gemm,
                             .a = d_logits,
                             .b = l->head,
                             .c = dz};
}

enum cld_status cld_head_logits(struct cld_queue *q, const struct cld_head_loss *l,
                                const struct cld_tensor *z, const struct cld_tensor *logits,
                                struct cld_buf *scratch, struct cld_error *err)
{
    struct cld_gemm product = logits_product(l, z, logits);
    return cld_gemm(q, &product, scratch, err);
}

bool cld_head_loss_turns(const struct cld_queue *q, const struct cld_head_loss *l)
{
    struct cld_gemm g = {
        .kind = CLD_GEMM_NT, .backend = l->gemm, .a = l->z, .b = l->head, .c = l->logits};
    return cld_gemm_turns_b(q, &g);
}

static size_t strip_columns(const struct cld_queue *q, const struct cld_head_loss *l)
{
    struct cld_gemm g = logits_product(l, l->z, l->logits);
    return cld_gemm_strip_columns(q, &g);
}

size_t cld_head_loss_strips(const struct cld_queue *q, const struct cld_head_loss *l)
{
    size_t width = strip_columns(q, l);
    return width ? cld_mul(2, cld_div_up(l->logits->n_cols, width)) : 0;
}

size_t cld_head_loss_scratch_bytes(const struct cld_queue *q, const struct cld_head_loss *l)
{
    struct cld_tensor z = cld_tensor_rows(l->z, 0, l->logits->n_rows);
    struct cld_gemm logits = logits_product(l, &z, l->logits);
    size_t n = cld_gemm_scratch_bytes(q, &logits);
    if (!l->dz)
        return n;
    struct cld_tensor dz = cld_tensor_rows(l->dz, 0, l->logits->n_rows);
    struct cld_gemm back = dz_product(l, l->d_logits, &dz);
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
    bool turned = l->dz && l->head_turned;
    struct cld_tensor d_logits = turned  ? cld_tensor_cols(l->d_logits, 0, n)
                                 : l->dz ? cld_tensor_rows(l->d_logits, 0, n)
                                         : logits;
    struct cld_tensor strips = l->strips ? cld_tensor_rows(l->strips, 0, n) : logits;
    struct cld_gemm product = logits_product(l, &z, &logits);
    /* A gradient as it lies comes with the loss, which then is not made of strips. */
    bool in_strips = l->strips && (turned || !l->dz);
    product.strips = in_strips ? &strips : NULL;
    if ((s = cld_gemm(q, &product, scratch, err)) ||
        (s = in_strips ? cld_cross_entropy_strips(q, &logits, &strips, strip_columns(q, l), &labels,
                                                  &loss, &hit, err)
                       : cld_cross_entropy(q, &logits, &labels, &weights, &loss, &hit,
                                           l->dz && !turned ? &d_logits : NULL, err)) ||
        (turned && (s = cld_cross_entropy_turned(q, &logits, &labels, &weights, &loss, &d_logits,
                                                 err))) ||
        !l->dz)
        return s;
    struct cld_tensor dz = cld_tensor_rows(l->dz, first, n);
    struct cld_gemm back = dz_product(l, &d_logits, &dz);
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
