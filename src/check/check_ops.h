/* check_ops.h - the checks of the operations in ops.h, for check_table.c: each goes through its
 * cases. References are computed in double; those of gradients are themselves compared with
 * differences of the forward reference. Cases vary the strides: rows of odd length that padding
 * keeps at multiples of 16 bytes, and ones that a skew or an odd stride moves off them, which takes
 * other variants of the GPU family. Variants are few, because each costs a build. Thread: the
 * queue's owner. */
#ifndef CLD_CHECK_CHECK_OPS_H
#define CLD_CHECK_CHECK_OPS_H

#include "check/check.h"

enum cld_status cld_check_rmsnorm(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_qknorm_rope(struct cld_check *c, struct cld_error *err);
/* A few awkward ones of its cases, for every start of a run. */
enum cld_status cld_check_qknorm_rope_quick(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_swiglu(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_add(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_gather(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_scatter(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_fill(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_cross_entropy(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_ema(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_dpace(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_soft_targets(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_first_max(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_sum_squares(struct cld_check *c, struct cld_error *err);
enum cld_status cld_check_adamw(struct cld_check *c, struct cld_error *err);

/* The bound of a result of this storage after float arithmetic of a few steps, and that of a
 * gradient, which has twice the steps. */
static inline enum cld_check_bound cld_check_bound_of(enum cld_dtype type)
{
    return type == CLD_BF16 ? CLD_BOUND_BF16 : CLD_BOUND_F32;
}
static inline enum cld_check_bound cld_check_gradient_bound(enum cld_dtype type)
{
    return type == CLD_BF16 ? CLD_BOUND_BF16_GRAD : CLD_BOUND_F32_GRAD;
}

/* Compares a gradient of f at x [n] with central differences along two seeded directions. f reads
 * its other arguments from `arg`. A difference marks the case as failed. */
enum cld_status cld_check_gradient(struct cld_check *c, const char *what,
                                   double (*f)(const double *x, const void *arg), const void *arg,
                                   const double *x, size_t n, const double *gradient,
                                   struct cld_error *err);

#endif
