/* rmsnorm_turned.cl - RMSNorm (rmsnorm.cl) with its result turned, as tensor cores read the first
 * operand of a product: T [n_cols, n_rows] bf16, and as it lies as well where y is given.
 *
 * All of x, w, y and T are bf16; their begins and ld are multiples of 8 elements, n_cols is as well.
 * A piece of work is 8 rows, which are read twice: a cache has them still. A work-item then makes
 * the 8 results of each of 4 columns, 16 bytes of T each, in its registers. */
#include "common.clh"

#define GROUP 256 /* as in turned.h */
#define ROWS  8   /* as in op_turned.c */

/* v[r] summed over the group for each row r, in a fixed order. */
static inline void sum_rows(float v[ROWS], __local float *part, __local float *sum)
{
    const uint id = (uint)get_local_id(0), row = id / (GROUP / ROWS), lane = id % (GROUP / ROWS);
#pragma unroll
    for (uint r = 0; r < ROWS; r++)
        part[r * GROUP + id] = v[r];
    barrier(CLK_LOCAL_MEM_FENCE);
    float s = 0.0f;
    for (uint k = 0; k < ROWS; k++)
        s += part[row * GROUP + lane + k * (GROUP / ROWS)];
    barrier(CLK_LOCAL_MEM_FENCE);
    part[row * (GROUP + 1) + lane] = s;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id < ROWS) {
        s = 0.0f;
        for (uint k = 0; k < GROUP / ROWS; k++)
            s += part[id * (GROUP + 1) + k];
        sum[id] = s;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (uint r = 0; r < ROWS; r++)
        v[r] = sum[r];
}

static inline float4 floats(uint2 v)
{
    return as_float4((uint4)(v.x << 16, v.x & 0xffff0000u, v.y << 16, v.y & 0xffff0000u));
}

static inline uint2 rounded(float4 v)
{
    const uint4 r = convert_uint4(round4_bf16(v));
    return (uint2)(r.x | r.y << 16, r.z | r.w << 16);
}

/* Of two rows of a pair of columns: the first column, and the second. */
#define FIRST(a, b)  (((a) & 0xffffu) | (b) << 16)
#define SECOND(a, b) ((a) >> 16 | ((b) & 0xffff0000u))
#define COLUMN(of, c)                                                                             \
    (uint4)(of(v[0].c, v[1].c), of(v[2].c, v[3].c), of(v[4].c, v[5].c), of(v[6].c, v[7].c))

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
rmsnorm_turned(__global const ushort *x, ulong x_at, ulong x_ld, __global const ushort *w,
               ulong w_at, __global ushort *y, ulong y_at, ulong y_ld, __global ushort *turned,
               ulong turned_at, ulong turned_ld, __global float *rstd, ulong rstd_at, ulong n_rows,
               ulong n_cols, float eps)
{
    __local float part[ROWS * (GROUP + 1)], sum[ROWS];
    const uint id = (uint)get_local_id(0), end = (uint)n_cols;
    w += w_at;
    CLD_SHARE(piece, (n_rows + ROWS - 1) / ROWS) {
        const ulong row0 = piece * ROWS;
        const uint n = (uint)min(n_rows - row0, (ulong)ROWS); /* rows that exist */
        __global const ushort *from = x + x_at + row0 * x_ld;
        float scale[ROWS];
#pragma unroll
        for (uint r = 0; r < ROWS; r++)
            scale[r] = 0.0f;
        for (uint j = 4 * id; j < end; j += 4 * GROUP) {
            uint2 v[ROWS];
#pragma unroll
            for (uint r = 0; r < ROWS; r++)
                v[r] = *(__global const uint2 *)(from + min(r, n - 1) * x_ld + j);
#pragma unroll
            for (uint r = 0; r < ROWS; r++) {
                const float4 t = floats(v[r]);
                scale[r] += sum4(t * t);
            }
        }
        sum_rows(scale, part, sum);
#pragma unroll
        for (uint r = 0; r < ROWS; r++) {
            scale[r] = rsqrt(scale[r] / (float)n_cols + eps);
            if (rstd && id == r && r < n)
                rstd[rstd_at + row0 + r] = scale[r];
        }
        for (uint j = 4 * id; j < end; j += 4 * GROUP) {
            const float4 weight = floats(*(__global const uint2 *)(w + j));
            uint2 v[ROWS];
#pragma unroll
            for (uint r = 0; r < ROWS; r++)
                v[r] = *(__global const uint2 *)(from + min(r, n - 1) * x_ld + j);
#pragma unroll
            for (uint r = 0; r < ROWS; r++)
                v[r] = r < n ? rounded(floats(v[r]) * scale[r] * weight) : (uint2)(0u);
            if (y)
#pragma unroll
                for (uint r = 0; r < ROWS; r++)
                    if (r < n)
                        *(__global uint2 *)(y + y_at + (row0 + r) * y_ld + j) = v[r];
            __global ushort *to = turned + turned_at + j * turned_ld + row0;
            *(__global uint4 *)to = COLUMN(FIRST, x);
            *(__global uint4 *)(to + turned_ld) = COLUMN(SECOND, x);
            *(__global uint4 *)(to + 2 * turned_ld) = COLUMN(FIRST, y);
            *(__global uint4 *)(to + 3 * turned_ld) = COLUMN(SECOND, y);
        }
    }
}
