/* gemm_backend.c - what the back-ends of cld_gemm share, and op_gemm.c with them. */
#include "ops/gemm_backend.h"

#include <stdio.h>

#include "base/size.h"

struct cld_gemm_size cld_gemm_size(const struct cld_gemm *g)
{
    bool tn = g->kind == CLD_GEMM_TN;
    return (struct cld_gemm_size){tn ? g->a->n_cols : g->a->n_rows,
                                  g->kind == CLD_GEMM_NT ? g->b->n_rows : g->b->n_cols,
                                  tn ? g->a->n_rows : g->a->n_cols};
}

enum cld_gemm_class cld_gemm_class(struct cld_gemm_size size)
{
    if (size.m < 128)
        return CLD_GEMM_FEW_ROWS;
    return size.k / 4 >= cld_max(size.m, size.n) ? CLD_GEMM_LONG_SUM : CLD_GEMM_OTHER;
}

void cld_gemm_out_options(const struct cld_gemm *g, char *to, size_t n_bytes)
{
    const struct cld_tensor *r = g->residual ? g->residual : g->bias ? g->bias : g->c;
    const struct cld_tensor *bias = g->bias ? g->bias : r;
    snprintf(to, n_bytes, "-DTC=%s -DTR=%s -DTBIAS=%s", cld_tensor_elem(g->c), cld_tensor_elem(r),
             cld_tensor_elem(bias));
}

enum cld_status cld_gemm_sum(struct cld_queue *q, const struct cld_gemm *g, size_t n_parts,
                             const struct cld_buf *parts, struct cld_error *err)
{
    struct cld_gemm_size size = cld_gemm_size(g);
    char options[64];
    size_t span = 1024, n_spans = cld_div_up(size.n, span);
    cld_gemm_out_options(g, options, sizeof options);
    struct cld_kernel_spec spec = {"gemm_sum.cl", "gemm_sum", options,
                                   cld_queue_class(q) == CLD_CLASS_CPU ? 1 : 256};
    return CLD_RUN(q, &spec, cld_mul(size.m, n_spans), err, CLD_U64(size.m), CLD_U64(size.n),
                   CLD_U64(n_parts), CLD_BUF(parts), CLD_GEMM_OUT_ARGS(g), CLD_U64(span),
                   CLD_U64(n_spans));
}
