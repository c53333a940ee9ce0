/* swiglu.cl - y = silu(gate) * up, silu(g) = g s with s = 1 / (1 + exp(-g)), and its gradients
 *     d_up = dy g s,   d_gate = dy up s (1 + g (1 - s)).
 * exp(-g) may overflow to infinity, which gives s = 0 and no NaN: g itself is always finite. */
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

/* 1 / (1 + exp(-g)). A GPU's own exp and reciprocal err by some 1e-5 at most, which the rounding of
 * a bf16 result hides; a result in f32 takes the exact ones. */
#define EXACT_SIGMOID(g) (1.0f / (1.0f + exp(-(g))))
#define QUICK_SIGMOID(g) native_recip(1.0f + native_exp(-(g)))
#if !CLD_CPU && CLD_IS_BF16(Y)
#define GATE(g) ((g) * QUICK_SIGMOID(g))
#else
#define GATE(g) ((g) / (1.0f + exp(-(g))))
#endif
#if !CLD_CPU && CLD_IS_BF16(DG) && CLD_IS_BF16(DU)
#define SIGMOID QUICK_SIGMOID
#else
#define SIGMOID EXACT_SIGMOID
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
        floatw s = SIGMOID(g);
        STOREW(DG, d * u * s * (1.0f + g * (1.0f - s)), d_gate + d_gate_at + r * d_gate_ld, j,
               left);
        STOREW(DU, d * g * s, d_up + d_up_at + r * d_up_ld, j, left);
    }
}
