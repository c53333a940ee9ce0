/* gemm_operand.cl - operands of a product in the forms that tensor cores take: bf16, rounded to
 * nearest even, in units of 16 bytes. X is f32 or bf16 with any offset and ld. */
#include "common.clh"

#ifndef TX
#define TX f32 /* storage of X */
#endif
#ifndef X_ALIGNED
#define X_ALIGNED 0 /* 1: offset and ld of X are multiples of 8 elements */
#endif

#define GROUP 256

/* bf16 of eight elements at an aligned address, and of one; what is bf16 already is not rounded
 * again. */
#define UNIT_f32(p)  round8_bf16(*(__global const float8 *)(p))
#define UNIT_bf16(p) (*(__global const ushort8 *)(p))
#define ONE_f32(p)   round_bf16(*(p))
#define ONE_bf16(p)  (*(p))

/* Eight elements, of which the first n exist; zeros behind them. */
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

/* Y [n_columns, y_ld] = X [n_rows, n_columns] turned, y_ld being n_rows rounded up to 8, zeros
 * behind n_rows. A piece of work is a block of 128 rows by 64 columns through local memory. Units
 * of 8 rows are swizzled there so that neither side meets bank conflicts. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
gemm_turned(ulong n_rows, ulong n_columns, __global const CLD_ELEM(TX) * x, ulong x_at, ulong x_ld,
            __global ushort *y, ulong y_at, ulong y_ld)
{
    __local ushort block[64 * 128] __attribute__((aligned(16)));
    uint id = get_local_id(0);
    ulong across = (n_columns + 63) / 64;
    CLD_SHARE(piece, (n_rows + 127) / 128 * across) {
        ulong row0 = piece / across * 128, column0 = piece % across * 64;
        ushort8 v[4];
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            ulong row = row0 + id / 8 + 32 * i, column = column0 + id % 8 * 8;
            v[i] = row < n_rows && column < n_columns
                       ? load_unit(x + x_at + row * x_ld + column, n_columns - column)
                       : (ushort8)(0);
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* the block before has been read */
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            uint unit = id % 8 * 8, row = (id / 8 + 32 * i) ^ unit;
            __local ushort *to = block + unit * 128 + row;
            to[0 * 128] = v[i].s0;
            to[1 * 128] = v[i].s1;
            to[2 * 128] = v[i].s2;
            to[3 * 128] = v[i].s3;
            to[4 * 128] = v[i].s4;
            to[5 * 128] = v[i].s5;
            to[6 * 128] = v[i].s6;
            to[7 * 128] = v[i].s7;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            uint column = id / 16 + 16 * i, row = id % 16 * 8;
            if (column0 + column < n_columns && row0 + row < y_ld)
                *(__global ushort8 *)(y + y_at + (column0 + column) * y_ld + row0 + row) =
                    *(__local const ushort8 *)(block + column * 128 + (row ^ (column / 8 * 8)));
        }
    }
}
