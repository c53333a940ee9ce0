/* gather.cl - y[i] = x[index[i]]; a row of zeros where the index is negative. The host keeps
 * indices below the number of rows of x; one that is not gives zeros too, so nothing is read
 * outside. A piece of work is a row. */
#include "common.clh"
#include "wide.clh"

#ifndef X
#define X f32 /* storage of x */
#endif
#ifndef Y
#define Y f32 /* of y */
#endif

__kernel void gather_rows(__global const CLD_ELEM(X) *x, ulong x_at, ulong x_ld, ulong x_rows,
                          __global const int *index, ulong index_at, __global CLD_ELEM(Y) *y,
                          ulong y_at, ulong y_ld, ulong n_rows, ulong n_cols)
{
    CLD_SHARE(r, n_rows) {
        const int from = index[index_at + r];
        const bool there = from >= 0 && (ulong)from < x_rows;
        __global const CLD_ELEM(X) *xr = x + x_at + (there ? (ulong)from * x_ld : 0);
        __global CLD_ELEM(Y) *yr = y + y_at + r * y_ld;
        ROW(X, hx);
        if (there) {
            READ_ROW(X, hx, xr, n_cols);
        }
        EACH_HELD(v, j, n_cols) {
            floatw t = 0.0f;
            if (there)
                t = HELD(X, hx, xr, v, j, n_cols);
            STOREW(Y, t, yr, j, HELD_LEFT(v, j, n_cols));
        }
    }
}
