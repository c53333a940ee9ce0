#include "gemm_tensor.h"

#include <stdio.h>

#include "size.h"

enum { unit = 8 /* elements of 16 bytes, the grain of the copy engines */, item = 128 /* bytes */ };

static struct cld_gemm_operand plan_operand(const struct cld_tensor *t, size_t *n_bytes)
{
    struct cld_gemm_operand o = {t, false, t->offset, t->ld};
    o.copied = t->type != CLD_BF16 || t->ld % unit || t->offset % unit;
    if (o.copied) {
        o.ld = cld_round_up(t->n_cols, unit);
        o.at = *n_bytes / 2;
        *n_bytes = cld_add(*n_bytes, cld_round_up(cld_mul3(t->n_rows, o.ld, 2), item));
    }
    return o;
}

struct cld_gemm_operands cld_gemm_plan_operands(const struct cld_gemm *g, size_t reserved_bytes)
{
    struct cld_gemm_operands o = {.n_scratch_bytes = cld_round_up(reserved_bytes, item)};
    o.a = plan_operand(g->a, &o.n_scratch_bytes);
    o.b = plan_operand(g->b, &o.n_scratch_bytes);
    return o;
}

bool cld_gemm_fits_tensor_cores(const struct cld_gemm *g)
{
    static const size_t most = (size_t)1 << 31; /* the copy engine counts in 32 bits */
    if (!g)
        return true;
    struct cld_gemm_size size = cld_gemm_size(g);
    bool is_bf16 = g->a->type == CLD_BF16 && g->b->type == CLD_BF16;
    return (is_bf16 || g->bf16_products) && size.m < most && size.n < most && size.k < most;
}

static enum cld_status copy(struct cld_queue *q, const struct cld_gemm_operand *o,
                            struct cld_buf *scratch, struct cld_error *err)
{
    const struct cld_tensor *t = o->t;
    char options[48];
    size_t n_spans = cld_div_up(t->n_cols, 2048);
    if (!o->copied)
        return CLD_OK;
    snprintf(options, sizeof options, "-DTX=%s -DX_ALIGNED=%d", cld_tensor_elem(t),
             t->ld % unit == 0 && t->offset % unit == 0);
    struct cld_kernel_spec spec = {"gemm_bf16.cl", "gemm_bf16", options, 256};
    return CLD_RUN(q, &spec, cld_mul(t->n_rows, n_spans), err, CLD_U64(t->n_rows),
                   CLD_U64(t->n_cols), CLD_U64(n_spans), CLD_BUF(t->buf), CLD_U64(t->offset),
                   CLD_U64(t->ld), CLD_BUF(scratch), CLD_U64(o->at), CLD_U64(o->ld));
}

enum cld_status cld_gemm_copy_operands(struct cld_queue *q, const struct cld_gemm_operands *o,
                                       struct cld_buf *scratch, struct cld_error *err)
{
    enum cld_status s = copy(q, &o->a, scratch, err);
    return s ? s : copy(q, &o->b, scratch, err);
}

static bool in_quads(const struct cld_tensor *t)
{
    return !t || (t->ld % 4 == 0 && t->offset % 4 == 0);
}

void cld_gemm_tensor_options(const struct cld_gemm *g, char *to, size_t n_bytes)
{
    char out[64];
    cld_gemm_out_options(g, out, sizeof out);
    snprintf(to, n_bytes, "-DA_ROWS=%d -DB_ROWS=%d -DC_ALIGNED=%d %s", g->kind != CLD_GEMM_TN,
             g->kind == CLD_GEMM_NT,
             g->c->n_cols % 4 == 0 && in_quads(g->c) && in_quads(g->bias) && in_quads(g->residual),
             out);
}
