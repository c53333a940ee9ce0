/* cross_entropy.cl - softmax cross-entropy of a row of logits, its first maximum, and the gradient
 * (softmax - onehot) * weight, which may take the place of the logits. A piece of work is a row.
 *
 * One reading of the row finds maximum, its place and the sum of exp(z - maximum): each work-item
 * keeps a running maximum and scales its sum when the maximum grows. A second reading writes the
 * gradient. The host keeps labels in [0, n_cols); a wrong one is clamped, never followed. */
#include "common.clh"
#include "wide.clh"

#ifndef Z
#define Z f32 /* storage of logits */
#endif
#ifndef DZ
#define DZ Z /* storage of the gradient */
#endif

/* Vectors that a work-item loads at once. */
#if CLD_CPU
#define BATCH 1
#else
#define BATCH 4
#endif

/* gradient: may be logits; null: none */
__kernel void cross_entropy(__global const CLD_ELEM(Z) *logits, ulong z_at, ulong z_ld,
                            __global CLD_ELEM(DZ) *gradient, ulong g_at, ulong g_ld,
                            __global const int *labels, ulong labels_at,
                            __global const float *weights, ulong weights_at, __global float *loss,
                            ulong loss_at, __global int *hit, ulong hit_at, ulong n_rows,
                            ulong n_cols)
{
    GROUP_SCRATCH(s);
    CLD_SHARE(r, n_rows) {
        __global const CLD_ELEM(Z) *z = logits + z_at + r * z_ld;
        __global CLD_ELEM(DZ) *dz = gradient + g_at + r * g_ld;
        const ulong label = min((ulong)max(labels[labels_at + r], 0), n_cols - 1);
        const float z_label = CLD_LOAD(Z, z, label), weight = weights[weights_at + r];
        float top = -FLT_MAX;
        floatw sums = 0.0f, lost = 0.0f; /* the rounding error of the sums (Kahan 1965) */
        ulong found = n_cols; /* first column of the vector with my maximum */
        for (ulong j = LANE * WIDE; j < n_cols; j += BATCH * LANES * WIDE) {
            floatw v[BATCH];
            float m = -INFINITY;
            ulong at = j;
#pragma unroll
            for (uint i = 0; i < BATCH; i++) {
                const ulong column = j + i * LANES * WIDE;
                v[i] = LOADW_OR(Z, z, column, (long)(n_cols - column), -INFINITY);
            }
#pragma unroll
            for (uint i = 0; i < BATCH; i++)
                if (maxw(v[i]) > m) {
                    m = maxw(v[i]);
                    at = j + i * LANES * WIDE;
                }
            if (m > top) {
                sums *= exp(top - m);
                lost *= exp(top - m);
                top = m;
                found = at;
            }
#pragma unroll
            for (uint i = 0; i < BATCH; i++) {
                floatw add = exp(v[i] - top) - lost, now = sums + add;
                lost = (now - sums) - add;
                sums = now;
            }
        }
        while (found < n_cols && CLD_LOAD(Z, z, found) != top)
            found++;
        const float max_all = GROUP_MAX(top, s);
        const float sum = GROUP_SUM(sumw(sums) * exp(top - max_all), s);
        const uint first = GROUP_MIN(top == max_all ? (uint)found : UINT_MAX, s);
        if (LANE == 0) {
            loss[loss_at + r] = log(sum) - (z_label - max_all);
            hit[hit_at + r] = first == label;
        }
        GROUP_FENCE(); /* the logit of the label is read before its gradient replaces it */
        for (ulong j = LANE * WIDE; gradient && j < n_cols; j += LANES * WIDE) {
            floatw v = 0.0f;
            if (weight != 0.0f) {
                v = exp(LOADW(Z, z, j, n_cols - j) - max_all) / sum;
                if (label - j < WIDE) /* unsigned: label >= j too */
                    v -= select((floatw)(0.0f), (floatw)(1.0f), IOTA == (intw)((int)(label - j)));
                v *= weight;
            }
            STOREW(DZ, v, dz, j, n_cols - j);
        }
    }
}
