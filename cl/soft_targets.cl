/* soft_targets.cl - a loss against a distribution: the divergence of softmax(z / T) from
 * softmax(t / T), T the temperature, mixed with the cross-entropy of a label; and its gradient, which
 * may take the place of z. A piece of work is a row.
 *
 *     loss = (1 - share) * CE(softmax(z), label) + share * T^2 * sum p log(p / q)
 *     p = softmax(t / T), q = softmax(z / T)
 *
 * soft_sums first computes what both need of each row; soft_targets then reads the rows once more. The
 * host keeps labels in [0, n_cols); a wrong one is clamped, never followed. */
#include "common.clh"
#include "wide.clh"

#ifndef Z
#define Z f32 /* storage of the logits */
#endif
#ifndef DZ
#define DZ Z /* storage of the gradient */
#endif

/* What is known of a row: its maximum, the column of the first one, and the logarithm of the sum of
 * exp((x - maximum) / T) at T = 1 and at the temperature. */
enum { TOP, FIRST, LOG_SUM, LOG_SUM_T, N_SUMS };

__kernel void soft_sums(__global const CLD_ELEM(Z) *x, ulong x_at, ulong x_ld,
                        __global float *sums, ulong sums_at, ulong n_rows, ulong n_cols,
                        float inv_temperature)
{
    GROUP_SCRATCH(s);
    CLD_SHARE(r, n_rows) {
        __global const CLD_ELEM(Z) *row = x + x_at + r * x_ld;
        __global float *out = sums + sums_at + r * N_SUMS;
        float top = -FLT_MAX;
        ulong found = n_cols; /* first column of the vector with my maximum */
        EACH_WIDE(j, n_cols) {
            float m = maxw(LOADW_OR(Z, row, j, n_cols - j, -INFINITY));
            if (m > top) {
                top = m;
                found = j;
            }
        }
        while (found < n_cols && CLD_LOAD(Z, row, found) != top)
            found++;
        const float max_all = GROUP_MAX(top, s);
        const uint first = GROUP_MIN(top == max_all ? (uint)found : UINT_MAX, s);
        for (int k = 0; k < 2; k++) {
            const float by = k ? inv_temperature : 1.0f;
            floatw part = 0.0f, lost = 0.0f; /* the rounding error of the sums (Kahan 1965) */
            EACH_WIDE(j, n_cols) {
                floatw v = LOADW_OR(Z, row, j, n_cols - j, -INFINITY);
                floatw add = exp((v - max_all) * by) - lost, now = part + add;
                lost = (now - part) - add;
                part = now;
            }
            const float sum = GROUP_SUM(sumw(part), s);
            if (LANE == 0)
                out[LOG_SUM + k] = log(sum);
        }
        if (LANE == 0) {
            out[TOP] = max_all;
            out[FIRST] = (float)first; /* exact: vocabularies have less than 2^24 columns */
        }
    }
}

/* gradient: may be logits; null: none */
__kernel void soft_targets(__global const CLD_ELEM(Z) *logits, ulong z_at, ulong z_ld,
                           __global const CLD_ELEM(Z) *targets, ulong t_at, ulong t_ld,
                           __global CLD_ELEM(DZ) *gradient, ulong g_at, ulong g_ld,
                           __global const float *z_sums, ulong z_sums_at,
                           __global const float *t_sums, ulong t_sums_at,
                           __global const int *labels, ulong labels_at,
                           __global const float *weights, ulong weights_at, __global float *loss,
                           ulong loss_at, __global int *hit, ulong hit_at, ulong n_rows,
                           ulong n_cols, float share, float temperature, float inv_temperature)
{
    GROUP_SCRATCH(s);
    CLD_SHARE(r, n_rows) {
        __global const CLD_ELEM(Z) *z = logits + z_at + r * z_ld, *t = targets + t_at + r * t_ld;
        __global CLD_ELEM(DZ) *dz = gradient + g_at + r * g_ld;
        __global const float *zs = z_sums + z_sums_at + r * N_SUMS;
        __global const float *ts = t_sums + t_sums_at + r * N_SUMS;
        const ulong label = min((ulong)max(labels[labels_at + r], 0), n_cols - 1);
        const float z_label = CLD_LOAD(Z, z, label), weight = weights[weights_at + r];
        const float hard = (1.0f - share) * weight, soft = share * temperature * weight;
        floatw parts = 0.0f, lost = 0.0f;
        GROUP_FENCE(); /* the logit of the label is read before its gradient replaces it */
        EACH_WIDE(j, n_cols) {
            const long left = n_cols - j;
            const floatw v = LOADW_OR(Z, z, j, left, -INFINITY) - zs[TOP];
            const floatw u = LOADW_OR(Z, t, j, left, -INFINITY) - ts[TOP];
            const floatw log_q = v * inv_temperature - zs[LOG_SUM_T];
            const floatw log_p = u * inv_temperature - ts[LOG_SUM_T];
            const floatw p = exp(log_p);
            /* Where p is 0 it adds nothing, whatever q is there (after the end: inf - inf). */
            floatw add = select((floatw)(0.0f), p * (log_p - log_q), p > 0.0f) - lost;
            floatw now = parts + add;
            lost = (now - parts) - add;
            parts = now;
            if (gradient) {
                floatw g = 0.0f;
                if (weight != 0.0f) {
                    floatw onehot = 0.0f;
                    if (label - j < WIDE) /* unsigned: label >= j too */
                        onehot = select((floatw)(0.0f), (floatw)(1.0f),
                                        IOTA == (intw)((int)(label - j)));
                    g = hard * (exp(v - zs[LOG_SUM]) - onehot) + soft * (exp(log_q) - p);
                }
                STOREW(DZ, g, dz, j, left);
            }
        }
        const float divergence = GROUP_SUM(sumw(parts), s);
        if (LANE == 0) {
            const float ce = zs[LOG_SUM] - (z_label - zs[TOP]);
            loss[loss_at + r] =
                (1.0f - share) * ce + share * temperature * temperature * divergence;
            hit[hit_at + r] = zs[FIRST] == (float)label;
        }
    }
}
