/* add.cl - y = a + b, or with b null a copy that may change the storage. */
#include "common.clh"
#include "wide.clh"

#ifndef A
#define A f32 /* storage of a */
#endif
#ifndef B
#define B f32 /* of b */
#endif
#ifndef Y
#define Y f32 /* of y */
#endif

__kernel void add(__global const CLD_ELEM(A) *a, ulong a_at, ulong a_ld,
                  __global const CLD_ELEM(B) *b, ulong b_at, ulong b_ld, __global CLD_ELEM(Y) *y,
                  ulong y_at, ulong y_ld, ulong n_rows, ulong n_cols)
{
    CLD_EACH(r, j, n_rows, n_cols) {
        const long left = n_cols - j;
        floatw v = LOADW(A, a + a_at + r * a_ld, j, left);
        if (b)
            v += LOADW(B, b + b_at + r * b_ld, j, left);
        STOREW(Y, v, y + y_at + r * y_ld, j, left);
    }
}
