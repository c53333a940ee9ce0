/* scatter.cl - y[index[i]] = x[i]; nothing where the index is negative. The host gives each row of y to
 * one row of x at most; an index that is outside is passed over, so nothing is written outside. A
 * piece of work is a row. */
#include "common.clh"
#include "wide.clh"

#ifndef X
#define X f32 /* storage of x */
#endif
#ifndef Y
#define Y f32 /* of y */
#endif

__kernel void scatter_rows(__global const CLD_ELEM(X) *x, ulong x_at, ulong x_ld,
                           __global const int *index, ulong index_at, __global CLD_ELEM(Y) *y,
                           ulong y_at, ulong y_ld, ulong y_rows, ulong n_rows, ulong n_cols)
{
    CLD_SHARE(r, n_rows) {
        const int to = index[index_at + r];
        if (to < 0 || (ulong)to >= y_rows)
            continue;
        __global const CLD_ELEM(X) *xr = x + x_at + r * x_ld;
        __global CLD_ELEM(Y) *yr = y + y_at + (ulong)to * y_ld;
        EACH_WIDE(j, n_cols) {
            floatw v = LOADW(X, xr, j, n_cols - j);
            STOREW(Y, v, yr, j, n_cols - j);
        }
    }
}
