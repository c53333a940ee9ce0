/* gemm_pack.cl - operands of a matrix product laid out for gemm_cpu.cl, both in one launch.
 *
 * An operand is a set of `width` lines (rows of op(A), columns of op(B)) of k elements. Packed it is
 * one strip after another, each [k, width] f32: the lines of a strip side by side, missing lines of
 * the last strip zero. Two source layouts: lines along rows (x[line * ld + i], transposed here) and
 * lines along columns (x[i * ld + line], copied). Storage is told at run time: it costs a predicted
 * branch in a pass bound by memory, and saves a build for each mix of types. */
#include "common.clh"

#ifndef STEP
#define STEP 64 /* elements of a line in a piece of work: a strip's part of that depth fits an L1 */
#endif

/* Bits of an operand's flags, as in gemm_cpu.c. */
#define IS_BF16 1
#define BY_ROWS 2

static inline float load(__global const uchar *x, uint flags, ulong i)
{
    return flags & IS_BF16 ? load_bf16((__global const ushort *)x + i)
                           : load_f32((__global const float *)x + i);
}

static inline float4 load4(__global const uchar *x, uint flags, ulong i)
{
    return flags & IS_BF16 ? load4_bf16((__global const ushort *)x + i)
                           : load4_f32((__global const float *)x + i);
}

/* Rows of the source become columns of the strip: 4 lines at a time, so that few cache lines are
 * open, blocks of 4 x 4 turned in registers. */
static void pack_rows(__global const uchar *x, ulong at, ulong ld, uint flags, uint n_lines,
                      uint width, ulong n, __global float *to)
{
    for (uint line = 0; line < width; line += 4) {
        uint lanes = min(width - line, 4u);
        uint full = min(n_lines > line ? n_lines - line : 0u, lanes);
        ulong i = 0;
        for (; i + 4 <= n; i += 4) {
            ulong from = at + line * ld + i;
            float4 r0 = full > 0 ? load4(x, flags, from) : (float4)(0);
            float4 r1 = full > 1 ? load4(x, flags, from + ld) : (float4)(0);
            float4 r2 = full > 2 ? load4(x, flags, from + 2 * ld) : (float4)(0);
            float4 r3 = full > 3 ? load4(x, flags, from + 3 * ld) : (float4)(0);
            float4 c[4] = {(float4)(r0.x, r1.x, r2.x, r3.x), (float4)(r0.y, r1.y, r2.y, r3.y),
                           (float4)(r0.z, r1.z, r2.z, r3.z), (float4)(r0.w, r1.w, r2.w, r3.w)};
            __global float *out = to + i * width + line;
            for (uint j = 0; j < 4; j++) {
                if (lanes == 4)
                    vstore4(c[j], 0, out + j * width);
                else
                    vstore2(c[j].lo, 0, out + j * width);
            }
        }
        for (; i < n; i++)
            for (uint l = 0; l < lanes; l++)
                to[i * width + line + l] = l < full ? load(x, flags, at + (line + l) * ld + i) : 0;
    }
}

static void pack_columns(__global const uchar *x, ulong at, ulong ld, uint flags, uint n_lines,
                         uint width, ulong n, __global float *to)
{
    for (ulong i = 0; i < n; i++) {
        ulong from = at + i * ld;
        __global float *out = to + i * width;
        uint line = 0;
        for (; line + 4 <= n_lines; line += 4)
            vstore4(load4(x, flags, from + line), 0, out + line);
        for (; line < n_lines; line++)
            out[line] = load(x, flags, from + line);
        for (; line < width; line++)
            out[line] = 0;
    }
}

/* One piece: STEP elements of the lines of one strip. Strips follow each other along rows, depths
 * along columns, so that the source is read in order. */
static void pack_piece(ulong piece, ulong n_strips, ulong n_steps, __global const uchar *x, ulong at,
                       ulong ld, uint flags, ulong n_lines, uint width, ulong k, __global float *to)
{
    ulong strip = flags & BY_ROWS ? piece / n_steps : piece % n_strips;
    ulong begin = (flags & BY_ROWS ? piece % n_steps : piece / n_strips) * STEP;
    ulong line = strip * width, n = min((ulong)STEP, k - begin);
    uint lines = (uint)min((ulong)width, n_lines - line);
    to += (strip * k + begin) * width;
    if (flags & BY_ROWS)
        pack_rows(x, at + line * ld + begin, ld, flags, lines, width, n, to);
    else
        pack_columns(x, at + begin * ld + line, ld, flags, lines, width, n, to);
}

/* a_strips or b_strips is 0 for an operand that stays where it is. Widths are even. */
__kernel void gemm_pack(ulong k, __global const uchar *a, ulong a_at, ulong a_ld, uint a_flags,
                        ulong a_lines, uint a_width, ulong a_strips, __global const uchar *b,
                        ulong b_at, ulong b_ld, uint b_flags, ulong b_lines, uint b_width,
                        ulong b_strips, __global float *to, ulong to_a, ulong to_b)
{
    ulong n_steps = (k + STEP - 1) / STEP, n_a = a_strips * n_steps;
    CLD_SHARE(piece, n_a + b_strips * n_steps) {
        if (piece < n_a)
            pack_piece(piece, a_strips, n_steps, a, a_at, a_ld, a_flags, a_lines, a_width, k,
                       to + to_a);
        else
            pack_piece(piece - n_a, b_strips, n_steps, b, b_at, b_ld, b_flags, b_lines, b_width, k,
                       to + to_b);
    }
}
