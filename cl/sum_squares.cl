/* sum_squares.cl - part[p] = sum of the squares of elements [p * length, (p + 1) * length) of x.
 *
 * The host adds the parts in double. Inside a part, sums run over RUN vectors before they are added
 * to the total, so that no float sum grows long enough to swallow its terms. */
#include "common.clh"
#include "wide.clh"

#ifndef X
#define X f32 /* storage of x */
#endif
#define RUN 32

__kernel void sum_squares(__global const CLD_ELEM(X) *x, ulong x_at, ulong n, ulong length,
                          __global float *part, ulong n_parts)
{
    GROUP_SCRATCH(s);
    x += x_at;
    CLD_SHARE(p, n_parts) {
        const ulong end = min((p + 1) * length, n);
        floatw total = 0.0f;
        for (ulong j = p * length + LANE * WIDE; j < end;) {
            floatw run = 0.0f;
            for (int k = 0; k < RUN && j < end; k++, j += LANES * WIDE) {
                floatw v = LOADW(X, x, j, end - j);
                run += v * v;
            }
            total += run;
        }
        const float sum = GROUP_SUM(sumw(total), s);
        if (LANE == 0)
            part[p] = sum;
    }
}
