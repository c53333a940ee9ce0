/* adamw.cl - one step of AdamW with decoupled weight decay over an arena of n elements:
 *     master *= decay (elements below n_decay);   g = grad * grad_scale
 *     m += (g - m) (1 - beta1);                   v = v beta2 + g g (1 - beta2)
 *     master -= rate * m / (sqrt(v) * v_scale + epsilon);   weight = master in its storage
 * The host puts the bias corrections into rate = learning_rate / (1 - beta1^step) and
 * v_scale = (1 - beta2^step)^-1/2, and decay = 1 - learning_rate * weight_decay. */
#define GAPLESS 1
#include "common.clh"
#include "wide.clh"
#include "adamw.clh"

#ifndef G
#define G f32 /* storage of grad */
#endif
#ifndef W
#define W f32 /* of weight */
#endif
#ifndef SEPARATE
#define SEPARATE 1 /* 0: weight is master itself */
#endif

__kernel void adamw(__global const CLD_ELEM(G) *grad, ulong grad_at, __global float *m, ulong m_at,
                    __global float *v, ulong v_at, __global float *master, ulong master_at,
                    __global CLD_ELEM(W) *weight, ulong weight_at, ulong n, ulong n_decay,
                    ADAMW_PARAMETERS)
{
    CLD_EACH(r, j, 1ul, n) {
        const long left = n - j;
        floatw g = LOADW(G, grad + grad_at, j, left) * grad_scale;
        floatw m1 = LOADW(f32, m + m_at, j, left);
        floatw v1 = LOADW(f32, v + v_at, j, left);
        floatw x = LOADW(f32, master + master_at, j, left);
        const int n_decaying = (int)clamp((long)n_decay - (long)j, 0L, (long)WIDE);
        x *= select((floatw)(1.0f), (floatw)(decay), IOTA < (intw)(n_decaying));
        ADAMW_STEP(g, m1, v1, x);
        STOREW(f32, m1, m + m_at, j, left);
        STOREW(f32, v1, v + v_at, j, left);
        STOREW(f32, x, master + master_at, j, left);
#if SEPARATE
        STOREW(W, x, weight + weight_at, j, left);
#endif
    }
}
