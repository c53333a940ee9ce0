/* gemm_gpu.cl - GEMM for GPU devices: C = op(A) op(B) (+ bias) (+ R).
 *
 * A work-group of 16 x 16 items computes a tile of BM x BN. Slices of BK steps of both operands go
 * through registers into local memory, k-major; the loads of the next slice are under way while
 * the items work on this one. An item owns quads: rows 64 p + 4 y + (0..3), columns
 * 64 q + 4 x + (0..3).
 *
 * k may be cut in n_splits parts of `depth` steps (a multiple of BK) where there are few tiles:
 * then each part goes to `parts` [n_splits, m, n] and gemm_sum.cl adds them up.
 *
 * a_aligned, b_aligned: offset and ld are multiples of 4 elements, so quads are read at once. */
#include "common.clh"

#ifndef BM
#define BM 64 /* 64 or 128 rows of C a group */
#endif
#ifndef BN
#define BN 64 /* 64 or 128 columns */
#endif
#ifndef A_ROWS
#define A_ROWS 1 /* 1: A is [m, k]; 0: [k, m] */
#endif
#ifndef B_ROWS
#define B_ROWS 1 /* 1: B is [n, k]; 0: [k, n] */
#endif
#ifndef TA
#define TA f32 /* storage of A */
#endif
#ifndef TB
#define TB f32 /* storage of B */
#endif
#include "gemm_out.clh"

#define BK 16
#define GROUP 256
#define MP (BM / 64) /* quads of an item, down */
#define NQ (BN / 64) /* and across */
#define PAD 4        /* keeps quads aligned and spreads transposed stores over the banks */

/* Four elements whose address is a multiple of four elements: one wide access. */
#define ALIGNED4_f32(p)  (*(__global const float4 *)(p))
#define ALIGNED4_bf16(p) as_float4(convert_uint4(*(__global const ushort4 *)(p)) << 16)

/* Elements [i, i + 4) at p; the first n exist, the others are zeros. */
#define FETCH4(T, aligned, p, i, n)                                                               \
    ((aligned) && (n) >= 4 ? CLD_CAT(ALIGNED4_, T)((p) + (i))                                     \
                         : (float4)((n) > 0 ? CLD_LOAD(T, p, i) : 0.0f,                           \
                                    (n) > 1 ? CLD_LOAD(T, p, (i) + 1) : 0.0f,                     \
                                    (n) > 2 ? CLD_LOAD(T, p, (i) + 2) : 0.0f,                     \
                                    (n) > 3 ? CLD_LOAD(T, p, (i) + 3) : 0.0f))

/* Where quad `u` of this item's part of a slice of an operand lies: which line and which step. */
static inline uint quad_line(int rows, uint width, uint u)
{
    return rows ? u / (BK / 4) : u % (width / 4) * 4;
}

static inline uint quad_step(int rows, uint width, uint u)
{
    return rows ? u % (BK / 4) * 4 : u / (width / 4);
}

/* How many of a quad's four elements exist; negative or 0: none. */
static inline long quad_count(int rows, ulong line, ulong n_lines, ulong step, ulong end)
{
    if (rows)
        return line < n_lines ? (long)end - (long)step : 0;
    return step < end ? (long)n_lines - (long)line : 0;
}

static inline void put_quad(__local float *slice, int rows, uint width, uint u, float4 v)
{
    uint line = quad_line(rows, width, u), step = quad_step(rows, width, u);
    __local float *to = slice + step * (width + PAD) + line;
    if (rows) {
        to[0] = v.x;
        to[width + PAD] = v.y;
        to[2 * (width + PAD)] = v.z;
        to[3 * (width + PAD)] = v.w;
    } else {
        *(__local float4 *)to = v;
    }
}

/* The first `count` of four sums. Edges of C are rare, so they may go through memory. */
static inline void put_part(__global float *to, float4 v, uint count)
{
    float e[4];
    if (count == 4) {
        vstore4(v, 0, to);
        return;
    }
    vstore4(v, 0, e);
    for (uint j = 0; j < count; j++)
        to[j] = e[j];
}

static inline void put_result(__global CLD_ELEM(TC) *c, __global const CLD_ELEM(TBIAS) *bias,
                              __global const CLD_ELEM(TR) *r, float4 v, uint count)
{
    float e[4];
    if (count == 4) {
        if (bias)
            v += CLD_LOAD4(TBIAS, bias, 0);
        if (r)
            v += CLD_LOAD4(TR, r, 0);
        CLD_STORE4(TC, v, c, 0);
        return;
    }
    vstore4(v, 0, e);
    for (uint j = 0; j < count; j++) {
        float x = e[j];
        if (bias)
            x += CLD_LOAD(TBIAS, bias, j);
        if (r)
            x += CLD_LOAD(TR, r, j);
        CLD_STORE(TC, x, c, j);
    }
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
gemm_gpu(ulong m, ulong n, ulong k, ulong n_splits, ulong depth,
         __global const CLD_ELEM(TA) *a, ulong a_at, ulong a_ld, int a_aligned,
         __global const CLD_ELEM(TB) *b, ulong b_at, ulong b_ld, int b_aligned,
         __global CLD_ELEM(TC) *c, ulong c_at, ulong c_ld,
         __global const CLD_ELEM(TBIAS) *bias, ulong bias_at, __global const CLD_ELEM(TR) *r,
         ulong r_at, ulong r_ld, __global float *parts)
{
    __local float as[BK * (BM + PAD)] __attribute__((aligned(16)));
    __local float bs[BK * (BN + PAD)] __attribute__((aligned(16)));
    uint id = get_local_id(0), y = id / 16, x = id % 16;
    ulong down = (m + BM - 1) / BM, across = (n + BN - 1) / BN;
    a += a_at;
    b += b_at;
    CLD_SHARE(piece, down * across * n_splits) {
        ulong row0 = piece % down * BM, column0 = piece / down % across * BN;
        ulong split = piece / (down * across);
        ulong begin = split * depth, end = min(begin + depth, k);
        float4 sum[4 * MP][NQ];
        float4 next_a[MP], next_b[NQ];
#pragma unroll
        for (int i = 0; i < 4 * MP; i++)
#pragma unroll
            for (int q = 0; q < NQ; q++)
                sum[i][q] = 0;
        /* One turn more than slices: turn t fetches slice t and works on slice t - 1. */
        for (ulong step0 = begin; step0 < end + BK; step0 += BK) {
            if (step0 > begin) {
                barrier(CLK_LOCAL_MEM_FENCE); /* everyone is done with the slice before */
#pragma unroll
                for (int p = 0; p < MP; p++)
                    put_quad(as, A_ROWS, BM, id + p * GROUP, next_a[p]);
#pragma unroll
                for (int q = 0; q < NQ; q++)
                    put_quad(bs, B_ROWS, BN, id + q * GROUP, next_b[q]);
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            if (step0 < end) {
#pragma unroll
                for (int p = 0; p < MP; p++) {
                    ulong line = row0 + quad_line(A_ROWS, BM, id + p * GROUP);
                    ulong step = step0 + quad_step(A_ROWS, BM, id + p * GROUP);
                    long count = quad_count(A_ROWS, line, m, step, end);
                    ulong at = A_ROWS ? line * a_ld + step : step * a_ld + line;
                    next_a[p] = FETCH4(TA, a_aligned, a, at, count);
                }
#pragma unroll
                for (int q = 0; q < NQ; q++) {
                    ulong line = column0 + quad_line(B_ROWS, BN, id + q * GROUP);
                    ulong step = step0 + quad_step(B_ROWS, BN, id + q * GROUP);
                    long count = quad_count(B_ROWS, line, n, step, end);
                    ulong at = B_ROWS ? line * b_ld + step : step * b_ld + line;
                    next_b[q] = FETCH4(TB, b_aligned, b, at, count);
                }
            }
            if (step0 > begin) {
#pragma unroll 4
                for (int step = 0; step < BK; step++) {
                    float av[4 * MP];
                    float4 bv[NQ];
#pragma unroll
                    for (int p = 0; p < MP; p++)
                        vstore4(*(__local float4 *)(as + step * (BM + PAD) + 64 * p + 4 * y), p,
                                av);
#pragma unroll
                    for (int q = 0; q < NQ; q++)
                        bv[q] = *(__local float4 *)(bs + step * (BN + PAD) + 64 * q + 4 * x);
#pragma unroll
                    for (int i = 0; i < 4 * MP; i++)
#pragma unroll
                        for (int q = 0; q < NQ; q++)
                            sum[i][q] = fma((float4)(av[i]), bv[q], sum[i][q]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4 * MP; i++)
#pragma unroll
            for (int q = 0; q < NQ; q++) {
                ulong row = row0 + i / 4 * 64 + 4 * y + i % 4, column = column0 + 64 * q + 4 * x;
                if (row >= m || column >= n)
                    continue;
                uint count = (uint)min((ulong)4, n - column);
                if (parts)
                    put_part(parts + (split * m + row) * n + column, sum[i][q], count);
                else
                    put_result(c + c_at + row * c_ld + column,
                               bias ? bias + bias_at + column : bias,
                               r ? r + r_at + row * r_ld + column : r, sum[i][q], count);
            }
    }
}
