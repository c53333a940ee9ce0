/* column_sum.cl - out[j] += part[0][j] + part[1][j] + ...: the second stage of the gradients of
 * norm weights. part [n_parts, n_cols] f32 with row stride part_ld. The order depends on n_parts
 * only.
 *
 * GPU family: a group has STRIP columns, which fill a sector of a cache line, and divides the rows
 * out to LOCAL / STRIP slices: time is latency here, so many rows must be under way at once. */
#include "common.clh"
#include "wide.clh"

#if CLD_CPU
__kernel void column_sum(__global const float *part, ulong part_ld, ulong n_parts,
                         __global float *out, ulong out_at, ulong n_cols)
{
    out += out_at;
    CLD_SHARE(i, (n_cols + WIDE - 1) / WIDE) {
        const ulong j = i * WIDE;
        floatw sum = 0.0f;
        for (ulong p = 0; p < n_parts; p++)
            sum += LOADW(f32, part + p * part_ld, j, n_cols - j);
        STOREW(f32, LOADW(f32, out, j, n_cols - j) + sum, out, j, n_cols - j);
    }
}
#else
#define STRIP  (LOCAL < 8 ? LOCAL : 8) /* op_norm.c too */
#define SLICES (LOCAL / STRIP)
__kernel void column_sum(__global const float *part, ulong part_ld, ulong n_parts,
                         __global float *out, ulong out_at, ulong n_cols)
{
    __local float s[LOCAL];
    const uint slice = LANE / STRIP;
    CLD_SHARE(i, (n_cols + STRIP - 1) / STRIP) {
        const ulong j = i * STRIP + LANE % STRIP;
        float sum = 0.0f, before = 0.0f;
        if (slice == 0 && j < n_cols)
            before = out[out_at + j]; /* early: it is as far away as a row of parts */
        if (j < n_cols)
#pragma unroll 8
            for (ulong p = slice; p < n_parts; p += SLICES)
                sum += part[p * part_ld + j];
        s[LANE] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (slice == 0 && j < n_cols) {
            for (int k = 1; k < SLICES; k++)
                sum += s[LANE + k * STRIP];
            out[out_at + j] = before + sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
#endif
