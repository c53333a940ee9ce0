/* check_bounds.c - how far results may be from references in double, and why. A float is off by
 * 6e-8 of its value at most when it is rounded, a bf16 by 2^-8 (4e-3); what is wrong, not rounded,
 * is mostly off by far more. */
#include "check/check.h"

const struct cld_check_bound_info cld_check_bounds[CLD_N_BOUNDS] = {
    [CLD_BOUND_EXACT] = {"exact", 0, "copies, counts and flags: nothing is rounded"},
    [CLD_BOUND_F32_ONE] = {"f32 short", 1e-6,
                           "a handful of float operations a value, or float sums of short runs"},
    [CLD_BOUND_F32] = {"f32", 2e-6,
                       "some ten float operations a value, with exp, log or rsqrt of 2 to 4 ulp"},
    [CLD_BOUND_F32_GRAD] = {"f32 gradient", 4e-6,
                            "products and sums of two results that are off by 2e-6"},
    [CLD_BOUND_F32_SOFTMAX] =
        {"f32 softmax", 5e-6, "float sums of exponentials: an error of a score is one of a weight"},
    [CLD_BOUND_F32_LONG] = {"f32 long sum", 1e-5,
                            "float sums of up to thousands of products that cancel"},
    [CLD_BOUND_F32_TENSOR] = {"f32 tensor core", 2e-5,
                              "sums on tensor cores, which cut low bits off; operands of the "
                              "reference are rounded alike"},
    [CLD_BOUND_F32_STEEP] = {"f32 steep softmax", 1e-4,
                             "scores of 100 to 1000: their float error stands in the exponent"},
    [CLD_BOUND_F32_STEEP_GRAD] = {"f32 steep softmax gradient", 2e-4,
                                  "products of two results that are off by 1e-4"},
    [CLD_BOUND_BF16] = {"bf16", 4e-3, "stored as bf16, which rounds by 2^-8 at most"},
    [CLD_BOUND_BF16_GRAD] = {"bf16 gradient", 8e-3,
                             "stored as bf16, from results that were off by as much"},
    [CLD_BOUND_BF16_SOFTMAX_GRAD] = {"bf16 softmax gradient", 1e-2,
                                     "outputs stored as bf16 enter a difference, rounded weights "
                                     "and gradients its sums"},
    [CLD_BOUND_BF16_STEEP_GRAD] = {"bf16 steep softmax gradient", 5e-2,
                                   "the same with softmax close to one-hot: the difference "
                                   "cancels almost wholly"},
};
