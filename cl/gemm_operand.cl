/* gemm_operand.cl - operands of a product in the forms that tensor cores take: bf16, rounded to
 * nearest even, in units of 16 bytes. X is f32 or bf16 with any offset and ld. */
#include "common.clh"

#define GROUP 256

#ifndef TX
#define TX f32 /* storage of X */
#endif
#ifndef X_ALIGNED
#define X_ALIGNED 0 /* 1: offset and ld of X are multiples of 8 elements */
#endif

/* bf16 of eight elements at an aligned address, and of one; what is bf16 already is not rounded
 * again. */
#define UNIT_f32(p)  round8_bf16(*(__global const float8 *)(p))
#define UNIT_bf16(p) (*(__global const ushort8 *)(p))
#define ONE_f32(p)   round_bf16(*(p))
#define ONE_bf16(p)  (*(p))

/* Eight elements; the first n exist, the others are zeros. */
static inline ushort8 load_unit(__global const CLD_ELEM(TX) * x, ulong n)
{
    if (X_ALIGNED && n >= 8)
        return CLD_CAT(UNIT_, TX)(x);
    ushort v[8];
    for (uint i = 0; i < 8; i++)
        v[i] = i < n ? CLD_CAT(ONE_, TX)(x + i) : 0;
    return vload8(0, v);
}

/* Y [n_rows, y_ld] = X [n_rows, n_columns], y_ld being n_columns rounded up to 8. A piece of work
 * is a span of 8 columns for each item in one row. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
gemm_rows(ulong n_rows, ulong n_columns, __global const CLD_ELEM(TX) * x, ulong x_at, ulong x_ld,
          __global ushort *y, ulong y_at, ulong y_ld)
{
    ulong n_spans = (n_columns + 8 * GROUP - 1) / (8 * GROUP);
    CLD_SHARE(piece, n_rows * n_spans) {
        ulong row = piece / n_spans, column = (piece % n_spans * GROUP + get_local_id(0)) * 8;
        if (column < n_columns)
            *(__global ushort8 *)(y + y_at + row * y_ld + column) =
                load_unit(x + x_at + row * x_ld + column, n_columns - column);
    }
}
