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
        intw nans = 0; /* all ones where a NaN was */
        ulong found = LANE * WIDE; /* first column of the vector with my maximum */
        EACH_WIDE(j, n_cols) {
            floatw v = LOADW_OR(X, row, j, n_cols - j, -INFINITY);
            float m = maxw(v);
            nans |= v != v;
            if (m > top) {
                top = m;
                found = j;
            }
        }
        while (found < n_cols && CLD_LOAD(X, row, found) != top)
            found++;
        const float max_all = GROUP_MAX(top, s);
        /* No second maximum: PoCL 3.1 crashes where it inlines one function twice here. */
        const float nan_all = GROUP_SUM(any(nans) ? 1.0f : 0.0f, s);
        const uint first = GROUP_MIN(top == max_all ? (uint)found : UINT_MAX, s);
        if (LANE == 0)
            index[index_at + r] = nan_all > 0.0f || first >= n_cols ? -1 : (int)first;
    }
}
