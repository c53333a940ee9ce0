/* gemm_bf16.cl - an operand of a product in the form that tensor cores take: bf16, every row at a
 * multiple of 8 elements. Y [n_rows, n_columns rounded up to 8] = X rounded to nearest even, zeros behind
 * its columns. */
#include "common.clh"

#ifndef TX
#define TX f32 /* storage of X */
#endif
#ifndef X_ALIGNED
#define X_ALIGNED 0 /* 1: offset and ld of X are multiples of 8 elements */
#endif

#define SPAN 2048 /* columns of a piece of work: 8 for each of 256 items */

#define LOAD8_f32(p)  (*(__global const float8 *)(p))
#define LOAD8_bf16(p) as_float8(convert_uint8(*(__global const ushort8 *)(p)) << 16)

__kernel void gemm_bf16(ulong n_rows, ulong n_columns, ulong n_spans, __global const CLD_ELEM(TX) *x,
                        ulong x_at, ulong x_ld, __global ushort *y, ulong y_at, ulong y_ld)
{
    CLD_SHARE(piece, n_rows * n_spans) {
        ulong row = piece / n_spans;
        uint column = (uint)(piece % n_spans) * SPAN + 8 * get_local_id(0);
        __global const CLD_ELEM(TX) *from = x + x_at + row * x_ld + column;
        float8 v;
        if (column >= n_columns)
            continue;
        if (X_ALIGNED && column + 8 <= n_columns) {
            v = CLD_CAT(LOAD8_, TX)(from);
        } else {
            float e[8];
            for (uint i = 0; i < 8; i++)
                e[i] = column + i < n_columns ? CLD_LOAD(TX, from, i) : 0;
            v = vload8(0, e);
        }
        *(__global ushort8 *)(y + y_at + row * y_ld + column) = round8_bf16(v);
    }
}
