/* gemm_operand.cl - operands of a product in the forms that tensor cores take: bf16, rounded to nearest
 * even, in units of 16 bytes. X is f32 or bf16 with any offset and ld. */
#include "common.clh"

#ifndef TX
#define TX f32 /* storage of X */
#endif
#ifndef X_ALIGNED
#define X_ALIGNED 0 /* 1: offset and ld of X are multiples of 8 elements */
#endif

#define GROUP 256

#define LOAD8_f32(p)  (*(__global const float8 *)(p))
#define LOAD8_bf16(p) as_float8(convert_uint8(*(__global const ushort8 *)(p)) << 16)

/* Eight elements, of which the first n exist; zeros behind them. */
static inline ushort8 load_unit(__global const CLD_ELEM(TX) *x, ulong n)
{
    if (X_ALIGNED && n >= 8)
        return round8_bf16(CLD_CAT(LOAD8_, TX)(x));
    float v[8];
    for (uint i = 0; i < 8; i++)
        v[i] = i < n ? CLD_LOAD(TX, x, i) : 0;
    return round8_bf16(vload8(0, v));
}

/* Y [n_rows, y_ld] = X [n_rows, n_columns], y_ld being n_columns rounded up to 8. A piece of work is a
 * span of 8 columns for each item in one row. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
gemm_rows(ulong n_rows, ulong n_columns, __global const CLD_ELEM(TX) *x, ulong x_at, ulong x_ld,
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

/* Y [panels of 16 steps][y_lines][16] = X [n_lines, k]: what a tile of a product needs of a panel is one
 * piece of memory. The halves of a line are swapped in lines 4 to 7 of every eight, the swizzle that
 * wgmma expects. Steps behind k are zeros; lines behind n_lines are left alone. A piece of work is 64
 * lines by 64 steps, so that reads and writes come in lines of 128 bytes. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
gemm_panels(ulong n_lines, ulong k, __global const CLD_ELEM(TX) *x, ulong x_at, ulong x_ld,
            __global ushort *y, ulong y_at, ulong y_lines)
{
    ulong across = (k + 63) / 64, k_padded = (k + 15) / 16 * 16;
    CLD_SHARE(piece, (n_lines + 63) / 64 * across) {
        ulong line = piece / across * 64 + get_local_id(0) / 8;
        ulong step = piece % across * 64 + get_local_id(0) % 8 * 8;
        if (step >= k_padded)
            continue;
        ushort8 unit[2];
#pragma unroll
        for (uint i = 0; i < 2; i++)
            if (line + 32 * i < n_lines)
                unit[i] = load_unit(x + x_at + (line + 32 * i) * x_ld + step,
                                    step < k ? k - step : 0);
#pragma unroll
        for (uint i = 0; i < 2; i++)
            if (line + 32 * i < n_lines)
                *(__global ushort8 *)(y + y_at + (step / 16 * y_lines + line + 32 * i) * 16 +
                                      (step / 8 ^ line / 4) % 2 * 8) = unit[i];
    }
}
