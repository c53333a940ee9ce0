#include "ops/gemm_tensor.h"

#include <stdio.h>

#include "base/size.h"

enum {
    unit = 8,    /* elements of 16 bytes, the grain of the copy engines */
    piece = 128, /* bytes: copies begin at multiples */
    group = 256  /* as in cl/gemm_operand.cl */
};

static struct cld_gemm_operand plan_operand(const struct cld_tensor *t, size_t *n_bytes)
{
    struct cld_gemm_operand o = {t, true, t->offset, t->ld};
    if (t->type == CLD_BF16 && t->ld % unit == 0 && t->offset % unit == 0)
        return o;
    o.in_place = false;
    o.ld = cld_round_up(t->n_cols, unit);
    o.at = *n_bytes / 2;
    *n_bytes = cld_add(*n_bytes, cld_round_up(cld_mul3(t->n_rows, o.ld, 2), piece));
    return o;
}

struct cld_gemm_operands cld_gemm_plan_operands(const struct cld_gemm *g, size_t reserved_bytes)
{
    struct cld_gemm_operands o = {.n_scratch_bytes = cld_round_up(reserved_bytes, piece)};
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
    return (is_bf16 || g->round_to_bf16) && size.m < most && size.n < most && size.k < most;
}

static enum cld_status copy_operand(struct cld_queue *q, const struct cld_gemm_operand *o,
                                    struct cld_buf *scratch, struct cld_error *err)
{
    const struct cld_tensor *t = o->t;
    char options[48];
    if (o->in_place)
        return CLD_OK;
    snprintf(options, sizeof options, "-DTX=%s -DX_ALIGNED=%d", cld_tensor_elem(t),
             t->ld % unit == 0 && t->offset % unit == 0);
    struct cld_kernel_spec spec = {"gemm_operand.cl", "gemm_rows", options, group};
    return CLD_RUN(q, &spec, cld_mul(t->n_rows, cld_div_up(t->n_cols, unit * group)), err,
                   CLD_U64(t->n_rows), CLD_U64(t->n_cols), CLD_BUF(t->buf), CLD_U64(t->offset),
                   CLD_U64(t->ld), CLD_BUF(scratch), CLD_U64(o->at), CLD_U64(o->ld));
}

enum cld_status cld_gemm_copy_operands(struct cld_queue *q, const struct cld_gemm *g,
                                       const struct cld_gemm_operands *o, struct cld_buf *scratch,
                                       struct cld_error *err)
{
    enum cld_status s = g->same_a ? CLD_OK : copy_operand(q, &o->a, scratch, err);
    return s ? s : copy_operand(q, &o->b, scratch, err);
}

static bool in_quads(const struct cld_tensor *t)
{
    return !t || (t->ld % 4 == 0 && t->offset % 4 == 0);
}

bool cld_gemm_out_is_aligned(const struct cld_gemm *g)
{
    return g->c->n_cols % 4 == 0 && in_quads(g->c) && in_quads(g->bias) && in_quads(g->residual);
}

void cld_gemm_tensor_out_options(const struct cld_gemm *g, char *to, size_t n_bytes)
{
    char out[64];
    cld_gemm_out_options(g, out, sizeof out);
    snprintf(to, n_bytes, "-DC_ALIGNED=%d %s", cld_gemm_out_is_aligned(g), out);
}
