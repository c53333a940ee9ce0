/* op_transpose.c - a norm with a transposed result for the GEMM that follows. */
#include "ops/ops.h"

#include "ops/op_rows.h"
#include "ops/transposed.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

enum cld_status cld_rmsnorm_forward_transposed(struct cld_queue *q, const struct cld_tensor *x,
                                               const struct cld_tensor *w, float eps,
                                               const struct cld_tensor *y,
                                               const struct cld_tensor *rstd, struct cld_error *err)
{
    const struct cld_operand o[] = {{x, CLD_BY_ROWS, NULL, CLD_BF16},
                                    {w, CLD_FLAT, NULL, CLD_BF16},
                                    {y, CLD_BY_ROWS, NULL, CLD_BF16},
                                    {rstd, CLD_BY_ELEMENT, NULL, CLD_F32}};
    size_t n = x->n_rows, c = x->n_cols;
    bool fit = c > 0 && c % 8 == 0 && cld_is_vector(w, c) && y->n_rows == c && y->n_cols == n &&
               cld_is_vector(rstd, n) && x->ld % 8 == 0 && y->ld % 8 == 0 && x->offset % 8 == 0 &&
               w->offset % 8 == 0 && y->offset % 8 == 0;
    enum cld_status s = cld_operands_check("rmsnorm, transposed", o, COUNT(o), fit, err);
    if (s)
        return s;
    struct cld_kernel_spec spec = {"rmsnorm_transposed.cl", "rmsnorm_scales", "",
                                   cld_transposed_group};
    if ((s = CLD_RUN(q, &spec, n, err, CLD_MATRIX(x), CLD_VECTOR(rstd), CLD_U64(n), CLD_U64(c),
                     CLD_FLOAT(eps))))
        return s;
    spec.name = "rmsnorm_transposed";
    size_t n_blocks =
        cld_mul(cld_div_up(n, cld_transposed_rows), cld_div_up(c, cld_transposed_columns));
    return CLD_RUN(q, &spec, n_blocks, err, CLD_MATRIX(x), CLD_VECTOR(w), CLD_VECTOR(rstd),
                   CLD_MATRIX(y), CLD_U64(n), CLD_U64(c));
}
