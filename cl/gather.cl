/* gather.cl - y[i] = x[index[i]]; a row of zeros where the index is negative. The host keeps
 * indices below the number of rows of x; one that is not gives zeros too, so nothing is read
 * outside. */
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
    CLD_EACH(r, j, n_rows, n_cols) {
        const int from = index[index_at + r];
        const long left = n_cols - j;
        floatw v = 0.0f;
        if (from >= 0 && (ulong)from < x_rows)
            v = LOADW(X, x + x_at + (ulong)from * x_ld, j, left);
        STOREW(Y, v, y + y_at + r * y_ld, j, left);
    }
}
