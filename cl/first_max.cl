/* first_max.cl - the column of a row's first maximum; -1 where the row has a NaN, which is no choice.
 * A piece of work is a row. */
#include "common.clh"
#include "wide.clh"

#ifndef X
#define X f32 /* storage of the rows */
#endif

__kernel void first_max(__global const CLD_ELEM(X) *x, ulong x_at, ulong x_ld, __global int *index,
                        ulong index_at, ulong n_rows, ulong n_cols)
{
    GROUP_SCRATCH(s);
    CLD_SHARE(r, n_rows) {
        __global const CLD_ELEM(X) *row = x + x_at + r * x_ld;
        float top = -INFINITY;
        bool is_nan = false;
        ulong found = LANE * WIDE; /* first column of the vector with my maximum */
        EACH_WIDE(j, n_cols) {
            floatw v = LOADW_OR(X, row, j, n_cols - j, -INFINITY);
            is_nan |= any(isnan(v)) != 0;
            float m = maxw(v);
            if (m > top) {
                top = m;
                found = j;
            }
        }
        while (found < n_cols && CLD_LOAD(X, row, found) != top)
            found++;
        const float max_all = GROUP_MAX(top, s);
        const bool nan_all = GROUP_MAX(is_nan ? 1.0f : 0.0f, s) > 0.0f;
        const uint first = GROUP_MIN(top == max_all ? (uint)found : UINT_MAX, s);
        if (LANE == 0)
            index[index_at + r] = nan_all || first >= n_cols ? -1 : (int)first;
    }
}
