/* gemm_panels.cl - an operand of a product in panels of 16 steps, as cl/gemm_sm90a.cl reads them.
 *
 * X [n_lines, k] row-major, f32 or bf16, becomes Y [k / 16 rounded up][lines][16] bf16, rounded to
 * nearest even: what a tile needs of a panel is one piece of memory. The two 16-byte halves of a line
 * are swapped in every other four lines, the swizzle that tensor cores expect. Steps behind k are zero;
 * lines behind n_lines are not written. */
#include "common.clh"

#ifndef TX
#define TX f32 /* storage of X */
#endif
#ifndef X_ALIGNED
#define X_ALIGNED 0 /* 1: offset and ld of X are multiples of 8 elements */
#endif

#define LOAD8_f32(p)  (*(__global const float8 *)(p))
#define LOAD8_bf16(p) as_float8(convert_uint8(*(__global const ushort8 *)(p)) << 16)

/* A piece of work is 64 lines by 64 steps for 256 items. */
__kernel void gemm_panels(ulong n_lines, ulong k, ulong n_pieces_k, __global const CLD_ELEM(TX) *x,
                          ulong x_at, ulong x_ld, __global ushort *y, ulong y_at, ulong y_lines)
{
    CLD_SHARE(piece, (n_lines + 63) / 64 * n_pieces_k) {
        ulong line0 = piece / n_pieces_k * 64, step0 = piece % n_pieces_k * 64;
        for (uint u = get_local_id(0); u < 512; u += get_local_size(0)) {
            ulong line = line0 + u / 8, step = step0 + u % 8 * 8;
            __global const CLD_ELEM(TX) *from = x + x_at + line * x_ld + step;
            float8 v;
            if (line >= n_lines || step >= (k + 15) / 16 * 16)
                continue;
            if (X_ALIGNED && step + 8 <= k) {
                v = CLD_CAT(LOAD8_, TX)(from);
            } else {
                float e[8];
                for (uint i = 0; i < 8; i++)
                    e[i] = step + i < k ? CLD_LOAD(TX, from, i) : 0;
                v = vload8(0, e);
            }
            __global ushort *to = y + y_at + (step / 16 * y_lines + line) * 16;
            *(__global ushort8 *)(to + ((step / 8 ^ line / 4) & 1) * 8) = round8_bf16(v);
        }
    }
}
