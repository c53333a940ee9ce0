#include "ops/gemm_tensor.h"

#include <stdio.h>

#include "base/size.h"
#include "ops/transposed.h"

enum {
    unit = 8,   /* elements of 16 bytes, the grain of the copy engines */
    piece = 128 /* bytes: copies begin at multiples */
};

static struct cld_gemm_operand plan_operand(const struct cld_tensor *t, bool transpose,
                                            size_t *n_bytes)
{
    struct cld_gemm_operand o = {t, CLD_GEMM_IN_PLACE, t->offset, t->ld};
    size_t n_rows = transpose ? t->n_cols : t->n_rows, n_cols = transpose ? t->n_rows : t->n_cols;
    if (!transpose && t->type == CLD_BF16 && t->ld % unit == 0 && t->offset % unit == 0)
        return o;
    o.form = transpose ? CLD_GEMM_TRANSPOSED : CLD_GEMM_ROWS;
    o.ld = cld_round_up(n_cols, unit);
    o.at = *n_bytes / 2;
    *n_bytes = cld_add(*n_bytes, cld_round_up(cld_mul3(n_rows, o.ld, 2), piece));
    return o;
}

struct cld_gemm_operands cld_gemm_plan_operands(const struct cld_gemm *g, size_t reserved_bytes,
                                                bool transpose)
{
    struct cld_gemm_operands o = {.n_scratch_bytes = cld_round_up(reserved_bytes, piece)};
    o.a = plan_operand(g->a, transpose && g->kind != CLD_GEMM_TN, &o.n_scratch_bytes);
    o.b = plan_operand(g->b, transpose && g->kind == CLD_GEMM_NT, &o.n_scratch_bytes);
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

/* t, or t transposed, to elements [at, ..) of `to`, rows ld apart. */
static enum cld_status copy(struct cld_queue *q, const struct cld_tensor *t, bool transposed,
                            const struct cld_buf *to, size_t at, size_t ld, size_t spread,
                            struct cld_error *err)
{
    char options[48];
    snprintf(options, sizeof options, "-DTX=%s -DX_ALIGNED=%d%s", cld_tensor_elem(t),
             t->ld % unit == 0 && t->offset % unit == 0, spread == 2 ? " -DSPREAD=2" : "");
    struct cld_kernel_spec spec = {"gemm_operand.cl", transposed ? "gemm_transposed" : "gemm_rows",
                                   options, cld_transposed_group};
    size_t n_pieces = transposed
                          ? cld_mul(cld_div_up(t->n_rows, cld_transposed_rows),
                                    cld_div_up(t->n_cols, cld_transposed_columns))
                          : cld_mul(t->n_rows, cld_div_up(t->n_cols, unit * cld_transposed_group));
    return CLD_RUN(q, &spec, n_pieces, err, CLD_U64(t->n_rows), CLD_U64(t->n_cols), CLD_BUF(t->buf),
                   CLD_U64(t->offset), CLD_U64(t->ld), CLD_BUF(to), CLD_U64(at), CLD_U64(ld));
}

static enum cld_status copy_operand(struct cld_queue *q, const struct cld_gemm_operand *o,
                                    struct cld_buf *scratch, struct cld_error *err)
{
    if (o->form == CLD_GEMM_IN_PLACE)
        return CLD_OK;
    return copy(q, o->t, o->form == CLD_GEMM_TRANSPOSED, scratch, o->at, o->ld, 1, err);
}

enum cld_status cld_gemm_copy_operands(struct cld_queue *q, const struct cld_gemm *g,
                                       const struct cld_gemm_operands *o, struct cld_buf *scratch,
                                       struct cld_error *err)
{
    enum cld_status s = g->same_a ? CLD_OK : copy_operand(q, &o->a, scratch, err);
    return s || g->same_b ? s : copy_operand(q, &o->b, scratch, err);
}

enum cld_status cld_gemm_transpose(struct cld_queue *q, const struct cld_tensor *x,
                                   const struct cld_tensor *y, struct cld_error *err)
{
    return cld_gemm_transpose_apart(q, x, y, 1, err);
}

enum cld_status cld_gemm_transpose_apart(struct cld_queue *q, const struct cld_tensor *x,
                                         const struct cld_tensor *y, size_t spread,
                                         struct cld_error *err)
{
    bool apart = spread == 2, whole = x->n_rows % unit == 0;
    size_t needed = apart ? 2 * x->n_rows - unit : cld_round_up(x->n_rows, unit);
    if (y->n_rows != x->n_cols || y->n_cols != x->n_rows || y->type != CLD_BF16 ||
        y->offset % unit || y->ld % unit || y->ld < needed || (spread != 1 && !(apart && whole)))
        return cld_fail(err, CLD_E_INTERNAL, "",
                        "%s: '%s' [%zu, %zu] cannot be transposed into '%s' "
                        "[%zu, %zu] %s ld %zu at %zu",
                        cld_queue_name(q), x->name, x->n_rows, x->n_cols, y->name, y->n_rows,
                        y->n_cols, cld_dtype_name(y->type), y->ld, y->offset);
    return copy(q, x, true, y->buf, y->offset, y->ld, spread, err);
}

static bool in_quads(const struct cld_tensor *t)
{
    return !t || (t->ld % 4 == 0 && t->offset % 4 == 0);
}

void cld_gemm_tensor_out_options(const struct cld_gemm *g, char *to, size_t n_bytes)
{
    char out[64];
    cld_gemm_out_options(g, out, sizeof out);
    snprintf(to, n_bytes, "-DC_ALIGNED=%d %s",
             g->c->n_cols % 4 == 0 && in_quads(g->c) && in_quads(g->bias) && in_quads(g->residual),
             out);
}
