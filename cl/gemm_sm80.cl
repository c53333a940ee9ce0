/* gemm_sm80.cl - matrix product on tensor cores since Ampere: C = op(A) op(B) (+ bias) (+ R).
 *
 * A, B bf16, sums f32. A work-group of eight warps computes a tile of 128 x 128, a warp 64 x 32 of
 * it. Slices of 32 steps of both operands come by asynchronous copies of 16 bytes into a ring of
 * three in local memory, in the layout in which they lie in memory; matrices of 8 x 8 are
 * transposed on their way to registers where that is needed. Chunks of 16 bytes are swizzled so
 * that the rows of a matrix lie in different banks. Offsets and ld of A and B are multiples of
 * 8 elements. */
#ifndef A_ROWS
#define A_ROWS 1 /* 1: A is [m, k]; 0: [k, m] */
#endif
#ifndef B_ROWS
#define B_ROWS 1 /* 1: B is [n, k]; 0: [k, n] */
#endif

#define BM    128
#define BN    128
#define GROUP 256

#include "common.clh"
#include "ptx.clh"
#include "gemm_tensor.clh"

#define BK          32
#define STAGES      3
#define SLICE_BYTES (128 * BK * 2) /* of one operand */
#define STAGE_BYTES (2 * SLICE_BYTES)

/* Address of the 16-byte chunk that holds 8 elements from (line, step) on. Along rows a slice is
 * [128 lines, 32 steps], along columns [32 steps, 128 lines]. */
static inline uint chunk_at(int rows, uint slice, uint line, uint step)
{
    return rows ? slice + line * 64 + ((step / 8 ^ line / 2 % 4) * 16)
                : slice + step * 256 + ((line / 8 ^ step % 8) * 16);
}

/* Asks for the slice that begins at (line0, step0) of x; n_lines x k exist. */
static inline void fetch(int rows, uint slice, __global const ushort *x, ulong ld, ulong line0,
                         ulong n_lines, ulong step0, ulong k)
{
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        uint u = get_local_id(0) + i * GROUP;
        uint line = rows ? u / 4 : u % 16 * 8, step = rows ? u % 4 * 8 : u / 16;
        ulong l = line0 + line, s = step0 + step;
        long left = rows ? (long)k - (long)s : (long)n_lines - (long)l; /* along the chunk */
        uint n = l < n_lines && s < k ? (uint)min(left, 8L) : 0;
        __global const ushort *from = x + (n ? (rows ? l * ld + s : s * ld + l) : 0);
        copy16_async(chunk_at(rows, slice, line, step), from, 2 * n);
    }
}

/* The fragment of A for 16 lines and 16 steps. */
static inline uint4 a_fragment(uint slice, uint line, uint step)
{
    uint lane = get_local_id(0) % 32;
    if (A_ROWS)
        return load_matrices(chunk_at(1, slice, line + lane % 16, step + lane / 16 * 8));
    return load_matrices_transposed(
        chunk_at(0, slice, line + lane / 8 % 2 * 8, step + lane % 8 + lane / 16 * 8));
}

/* The fragments of B for lines [line, line + 8) in x, y and [line + 8, line + 16) in z, w. */
static inline uint4 b_fragments(uint slice, uint line, uint step)
{
    uint lane = get_local_id(0) % 32;
    if (B_ROWS)
        return load_matrices(
            chunk_at(1, slice, line + lane % 8 + lane / 16 * 8, step + lane / 8 % 2 * 8));
    return load_matrices_transposed(chunk_at(0, slice, line + lane / 16 * 8, step + lane % 16));
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
gemm_sm80(ulong m, ulong n, ulong k, __global const ushort *a, ulong a_at, ulong a_ld,
          __global const ushort *b, ulong b_at, ulong b_ld, OUT_PARAMETERS)
{
    __local uchar ring[STAGES * STAGE_BYTES] __attribute__((aligned(128)));
    uint id = get_local_id(0), lane = id % 32, warp = id / 32, base = local_address(ring);
    uint warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
    uint down = (uint)((m + BM - 1) / BM), across = (uint)((n + BN - 1) / BN);
    a += a_at;
    b += b_at;
    CLD_SHARE(tile, (ulong)down * across) {
        uint2 begin = tile_begin((uint)tile, down, across, BN);
        float sum[4][4][4];
#pragma unroll
        for (uint i = 0; i < 4; i++)
#pragma unroll
            for (uint j = 0; j < 4; j++)
#pragma unroll
                for (uint e = 0; e < 4; e++)
                    sum[i][j][e] = 0;
        barrier(CLK_LOCAL_MEM_FENCE); /* the ring of the tile before is free */
        for (uint i = 0; i < STAGES - 1; i++) {
            uint slice = base + i * STAGE_BYTES;
            fetch(A_ROWS, slice, a, a_ld, begin.x, m, i * BK, k);
            fetch(B_ROWS, slice + SLICE_BYTES, b, b_ld, begin.y, n, i * BK, k);
            commit_copies();
        }
        uint slot = 0;
        for (ulong step0 = 0; step0 < k; step0 += BK) {
            uint slice = base + slot * STAGE_BYTES;
            uint next = base + (slot ? slot - 1 : STAGES - 1) * STAGE_BYTES;
            WAIT_COPIES(STAGES - 2);
            barrier(CLK_LOCAL_MEM_FENCE);
            fetch(A_ROWS, next, a, a_ld, begin.x, m, step0 + (STAGES - 1) * BK, k);
            fetch(B_ROWS, next + SLICE_BYTES, b, b_ld, begin.y, n, step0 + (STAGES - 1) * BK, k);
            commit_copies();
#pragma unroll
            for (uint step = 0; step < BK; step += 16) {
                uint4 af[4], bf[2];
#pragma unroll
                for (uint i = 0; i < 4; i++)
                    af[i] = a_fragment(slice, warp_row + 16 * i, step);
#pragma unroll
                for (uint j = 0; j < 2; j++)
                    bf[j] = b_fragments(slice + SLICE_BYTES, warp_column + 16 * j, step);
#pragma unroll
                for (uint i = 0; i < 4; i++)
#pragma unroll
                    for (uint j = 0; j < 2; j++) {
                        mma_bf16(sum[i][2 * j], af[i], bf[j].x, bf[j].y);
                        mma_bf16(sum[i][2 * j + 1], af[i], bf[j].z, bf[j].w);
                    }
            }
            slot = slot + 1 == STAGES ? 0 : slot + 1;
        }
        WAIT_COPIES(0);
#pragma unroll
        for (uint i = 0; i < 4; i++)
#pragma unroll
            for (uint j = 0; j < 2; j++) {
                float *s = sum[i][2 * j], *t = sum[i][2 * j + 1];
                ulong row = begin.x + warp_row + 16 * i + lane / 4;
                uint column = begin.y + warp_column + 16 * j + lane % 4 * 2;
                put((float4)(s[0], s[1], t[0], t[1]), row, column, m, n, OUT_ARGUMENTS);
                put((float4)(s[2], s[3], t[2], t[3]), row + 8, column, m, n, OUT_ARGUMENTS);
            }
    }
}
