/* swiglu.cl - y = silu(gate) * up, silu(g) = g s with s = 1 / (1 + exp(-g)), and its gradients
 *     d_up = dy g s,   d_gate = dy up s (1 + g (1 - s)).
 * Forward, exp(-g) may overflow to infinity, which gives s = 0 and no NaN: g itself is always
 * finite. */
#include "common.clh"
#include "wide.clh"

#ifndef G
#define G f32 /* storage of gate */
#endif
#ifndef U
#define U f32 /* of up */
#endif
#ifndef Y
#define Y f32 /* of y or its gradient */
#endif
#ifndef DG
#define DG f32 /* of gate's gradient */
#endif
#ifndef DU
#define DU f32 /* of up's gradient */
#endif

/* A GPU's own exp and reciprocal err by some 1e-5, others' by up to 4e-4, which the rounding of a bf16
 * result hides; a result in f32 uses the exact ones. */
#if !CLD_CPU && CLD_IS_BF16(Y)
#define GATE(g) ((g) * native_recip(1.0f + native_exp(-(g))))
#else
#define GATE(g) ((g) / (1.0f + exp(-(g))))
#endif
#if !CLD_CPU && CLD_IS_BF16(DG) && CLD_IS_BF16(DU)
#define EXP   native_exp
#define RECIP native_recip
#else
#define EXP      exp
#define RECIP(x) (1.0f / (x))
#endif

__kernel void swiglu_forward(__global const CLD_ELEM(G) *gate, ulong gate_at, ulong gate_ld,
                             __global const CLD_ELEM(U) *up, ulong up_at, ulong up_ld,
                             __global CLD_ELEM(Y) *y, ulong y_at, ulong y_ld, ulong n_rows,
                             ulong n_cols)
{
    CLD_EACH(r, j, n_rows, n_cols) {
        const long left = n_cols - j;
        floatw g = LOADW(G, gate + gate_at + r * gate_ld, j, left);
        floatw u = LOADW(U, up + up_at + r * up_ld, j, left);
        STOREW(Y, GATE(g) * u, y + y_at + r * y_ld, j, left);
    }
}

__kernel void swiglu_backward(__global const CLD_ELEM(G) *gate, ulong gate_at, ulong gate_ld,
                              __global const CLD_ELEM(U) *up, ulong up_at, ulong up_ld,
                              __global const CLD_ELEM(Y) *dy, ulong dy_at, ulong dy_ld,
                              __global CLD_ELEM(DG) *d_gate, ulong d_gate_at, ulong d_gate_ld,
                              __global CLD_ELEM(DU) *d_up, ulong d_up_at, ulong d_up_ld,
                              ulong n_rows, ulong n_cols)
{
    CLD_EACH(r, j, n_rows, n_cols) {
        const long left = n_cols - j;
        floatw g = LOADW(G, gate + gate_at + r * gate_ld, j, left);
        floatw u = LOADW(U, up + up_at + r * up_ld, j, left);
        floatw d = LOADW(Y, dy + dy_at + r * dy_ld, j, left);
        /* 1 - s would cancel where s is almost 1, and g makes much of what is left: e s is the same.
         * Past 80 s is nothing beside any sum, and e must not be infinite. */
        floatw e = EXP(fmin(-g, (floatw)(80.0f)));
        floatw s = RECIP(1.0f + e);
        STOREW(DG, d * u * s * (1.0f + g * (e * s)), d_gate + d_gate_at + r * d_gate_ld, j,
               left);
        STOREW(DU, d * g * s, d_up + d_up_at + r * d_up_ld, j, left);
    }
}
