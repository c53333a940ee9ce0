/* op_turned.c - norms whose results are turned for the products that follow. */
#include "ops.h"

#include "op_rows.h"
#include "turned.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* Begins and strides in units of 16 bytes of bf16. */
static bool in_units(const struct cld_operand *o, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (o[i].t && o[i].access != CLD_BY_ELEMENT &&
            (o[i].t->offset % 8 || (o[i].t->n_rows > 1 && o[i].t->ld % 8)))
            return false;
    return true;
}

enum cld_status cld_rmsnorm_forward_turned(struct cld_queue *q, const struct cld_tensor *x,
                                           const struct cld_tensor *w, float eps,
                                           const struct cld_tensor *y,
                                           const struct cld_tensor *turned,
                                           const struct cld_tensor *rstd, struct cld_error *err)
{
    enum { rows = 8 }; /* of a piece of work, as in cl/rmsnorm_turned.cl */
    const struct cld_operand o[] = {{x, CLD_BY_ROWS, NULL, CLD_BF16},
                                    {w, CLD_FLAT, NULL, CLD_BF16},
                                    {y, CLD_BY_ROWS, NULL, CLD_BF16},
                                    {turned, CLD_BY_ROWS, NULL, CLD_BF16},
                                    {rstd, CLD_BY_ELEMENT, NULL, CLD_F32}};
    size_t n = x->n_rows, c = x->n_cols;
    bool fit = c > 0 && c % 8 == 0 && c < UINT32_MAX && cld_is_vector(w, c) &&
               (!y || cld_same_shape(x, y)) && turned->n_rows == c && turned->n_cols == n &&
               turned->ld % 8 == 0 && (!rstd || cld_is_vector(rstd, n)) && in_units(o, COUNT(o));
    enum cld_status s = cld_operands_check("rmsnorm, turned", o, COUNT(o), fit, err);
    if (s)
        return s;
    struct cld_kernel_spec spec = {"rmsnorm_turned.cl", "rmsnorm_turned", "", cld_turned_group};
    return CLD_RUN(q, &spec, cld_div_up(n, rows), err, CLD_MATRIX(x), CLD_VECTOR(w), CLD_MATRIX(y),
                   CLD_MATRIX(turned), CLD_VECTOR(rstd), CLD_U64(n), CLD_U64(c), CLD_FLOAT(eps));
}
