/* cross_entropy_strips.cl - cross-entropy of a row of logits and its first maximum from what the
 * product that made the row left of each strip of its columns: the maximum and the sum of
 * exp(z - maximum), two floats. Of the logits themselves one strip and the label's are read. A piece
 * of work is a row. The host keeps labels in [0, n_cols); a wrong one is clamped, never followed. */
#include "common.clh"
#include "wide.clh"

__kernel void cross_entropy_strips(__global const float *logits, ulong z_at, ulong z_ld,
                                   __global const float *strips, ulong s_at, ulong s_ld,
                                   __global const int *labels, ulong labels_at,
                                   __global float *loss, ulong loss_at, __global int *hit,
                                   ulong hit_at, ulong n_rows, ulong n_cols, ulong n_strips,
                                   ulong strip_columns)
{
    GROUP_SCRATCH(s);
    CLD_SHARE(r, n_rows) {
        __global const float *z = logits + z_at + r * z_ld, *strip = strips + s_at + r * s_ld;
        const ulong label = min((ulong)max(labels[labels_at + r], 0), n_cols - 1);
        const float z_label = z[label];
        const ulong mine = label / strip_columns;
        float top = -FLT_MAX, sum = 0.0f;
        for (ulong i = LANE; i < n_strips; i += LANES)
            top = fmax(top, strip[2 * i]);
        top = GROUP_MAX(top, s);
        /* Whether the maximum is met before the label: in a strip or a column of the label's. */
        uint before = UINT_MAX;
        for (ulong i = LANE; i < n_strips; i += LANES) {
            sum += strip[2 * i + 1] * exp(strip[2 * i] - top);
            if (i < mine && strip[2 * i] == top)
                before = 0;
        }
        for (ulong j = mine * strip_columns + LANE; j < label; j += LANES)
            if (z[j] == top)
                before = 0;
        sum = GROUP_SUM(sum, s);
        before = GROUP_MIN(before, s);
        if (LANE == 0) {
            loss[loss_at + r] = log(sum) - (z_label - top);
            hit[hit_at + r] = z_label == top && before;
        }
    }
}
