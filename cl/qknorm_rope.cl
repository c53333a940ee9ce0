/* qknorm_rope.cl - RMSNorm of each head (NORM), then rotation of its two halves by the row's
 * position: (a, b) -> (a cos - b sin, b cos + a sin).
 *
 * A piece of work is a block of BLOCK neighbouring heads of a row, so that row, position and angles
 * are found once for all of them. In the GPU family LPH neighbouring work-items share a head, each
 * holding 8 elements of either half, and each takes NI heads, N_SLOTS apart, whose loads are under
 * way together. In the CPU family a work-item holds a whole head, and a block is one head. The
 * rotation is orthogonal, so its backward pass is the rotation by the negative angle. Backward, a
 * run of pieces makes one row of `part`: its share of dw. */
#ifndef ODD_HALF
#define ODD_HALF 0 /* 1: head_dim / 2 is no multiple of 8: halves have tails and lose alignment */
#endif
#if ODD_HALF
#undef ALIGNED
#define ALIGNED 0
#undef WHOLE
#define WHOLE 0
#endif
#include "common.clh"
#include "wide.clh"

#ifndef NORM
#define NORM 1 /* 0: rotation only */
#endif
#ifndef X
#define X f32 /* storage of x */
#endif
#ifndef W
#define W f32 /* of the weight */
#endif
#ifndef Y
#define Y f32 /* of y */
#endif
#ifndef DY
#define DY f32 /* of y's gradient */
#endif
#ifndef DX
#define DX f32 /* of x's gradient */
#endif

/* `n_half` (head_dim / 2, at most 128) and `n_heads` are variables of the kernels. */
#if CLD_CPU
#define MAX_NV  8 /* vectors of half a head that one work-item holds */
#undef NV
#define NV      ((n_half + WIDE - 1) / WIDE)
#define LPH     1
#define NI      1
#define N_SLOTS 1
#define HEAD_SCRATCH(s)
#define HEAD_SUMS(v, s)
/* A CPU reads at use, from its cache; a GPU reads early. */
#define READ(T, h, p, v, left)
#define USE(T, h, p, v, left) LOADW(T, p, COLUMN(v), left)
#else
#ifndef LPH
#define LPH 1 /* work-items to a head: n_half / 8 rounded up, at most 16 */
#endif
#ifndef NI
#define NI 1 /* heads of a work-item */
#endif
#define MAX_NV  1
#define READ(T, h, p, v, left) ((h) = LOADW(T, p, COLUMN(v), left))
#define USE(T, h, p, v, left)  (h)
#define N_SLOTS (LOCAL / LPH)
/* Items behind the last slot read past the others what nobody uses. */
#define HEAD_SCRATCH(s) __local float s[NI * LOCAL + LPH]
#define HEAD_SUMS(v, s) head_sums((v), (s))
static inline void head_sums(float v[NI], __local float *s)
{
    const uint first = (uint)LANE / LPH * LPH;
    for (uint i = 0; i < NI; i++)
        s[i * LOCAL + LANE] = v[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = 0; i < NI; i++) {
        v[i] = 0.0f;
        for (uint k = 0; k < LPH; k++)
            v[i] += s[i * LOCAL + first + k];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
#endif
#define BLOCK (N_SLOTS * NI) /* op_norm.c too */

/* First column of my v-th vector inside a half, and what is left of the half from there: a
 * difference of longs, because Mesa 22 compares an int that became a long wrongly with constants. */
#define COLUMN(v) (((v) * LPH + lane) * WIDE)
#define LEFT(v)   (EXACT ? (long)WIDE : (long)n_half - (long)COLUMN(v))

/* My i-th head of the block that begins at `head0`, and whether there is one. */
#define HEAD(i) (head0 + slot + (i) * N_SLOTS)
#define MINE(i) (CLD_CPU || EXACT || (slot < N_SLOTS && HEAD(i) < n_heads))

/* Where its halves begin in a row. */
#define HALF_A(i) (HEAD(i) * (2ul * n_half))
#define HALF_B(i) (HEAD(i) * (2ul * n_half) + n_half)

/* The host keeps positions inside the table; a wrong one must not read outside. */
#define ANGLES(position)                                                                          \
    (table + table_at + min((ulong)max((position), 0), n_positions - 1) * table_ld)

/* Position of the row of a piece; of the last row behind the last piece. */
#define POSITION(piece)                                                                           \
    positions[positions_at + min((uint)(piece) / n_blocks, (uint)n_rows - 1)]

__kernel void qknorm_rope_forward(__global const CLD_ELEM(X) *x, ulong x_at, ulong x_ld,
                                  __global const CLD_ELEM(W) *w, ulong w_at,
                                  __global const int *positions, ulong positions_at,
                                  __global const float *table, ulong table_at, ulong table_ld,
                                  __global CLD_ELEM(Y) *y, ulong y_at, ulong y_ld,
                                  __global float *rstd, ulong rstd_at, ulong rstd_ld,
                                  ulong n_rows, uint n_heads, uint n_half, ulong n_positions,
                                  float eps)
{
    HEAD_SCRATCH(s);
    const uint lane = (uint)LANE % LPH, slot = (uint)LANE / LPH;
    const uint n_blocks = (n_heads + BLOCK - 1) / BLOCK;
    w += w_at;
    int position = POSITION(CLD_FIRST(n_rows * n_blocks));
    CLD_SHARE(piece, n_rows * n_blocks) {
        const ulong r = (uint)piece / n_blocks;
        const uint head0 = ((uint)piece - (uint)r * n_blocks) * BLOCK;
        __global const float *cosines = ANGLES(position);
        position = POSITION(CLD_NEXT(piece)); /* early, so that angles need not wait for it */
        floatw a[NI][MAX_NV], b[NI][MAX_NV], c[MAX_NV], d[MAX_NV];
#pragma unroll
        for (uint i = 0; i < NI; i++) {
            __global const CLD_ELEM(X) *xh = x + x_at + r * x_ld + HEAD(i) * (2ul * n_half);
            for (uint v = 0; v < NV; v++) {
                a[i][v] = LOADW(X, xh, COLUMN(v), MINE(i) ? LEFT(v) : 0);
                b[i][v] = LOADW(X, xh + n_half, COLUMN(v), MINE(i) ? LEFT(v) : 0);
            }
        }
        for (uint v = 0; v < NV; v++) {
            c[v] = LOADW(f32, cosines, COLUMN(v), LEFT(v));
            d[v] = LOADW(f32, cosines + n_half, COLUMN(v), LEFT(v));
        }
#if NORM
        float scale[NI];
#pragma unroll
        for (uint i = 0; i < NI; i++) {
            floatw squares = 0.0f;
            for (uint v = 0; v < NV; v++)
                squares += a[i][v] * a[i][v] + b[i][v] * b[i][v];
            scale[i] = sumw(squares);
        }
        HEAD_SUMS(scale, s);
#pragma unroll
        for (uint i = 0; i < NI; i++) {
            scale[i] = rsqrt(scale[i] / (2.0f * n_half) + eps);
            for (uint v = 0; v < NV; v++) {
                a[i][v] *= scale[i] * LOADW(W, w, COLUMN(v), LEFT(v));
                b[i][v] *= scale[i] * LOADW(W, w + n_half, COLUMN(v), LEFT(v));
            }
            if (rstd && lane == 0 && MINE(i))
                rstd[rstd_at + r * rstd_ld + HEAD(i)] = scale[i];
        }
#endif
#pragma unroll
        for (uint i = 0; i < NI; i++) {
            __global CLD_ELEM(Y) *yh = y + y_at + r * y_ld + HEAD(i) * (2ul * n_half);
            for (uint v = 0; v < NV; v++) {
                STOREW(Y, a[i][v] * c[v] - b[i][v] * d[v], yh, COLUMN(v), MINE(i) ? LEFT(v) : 0);
                STOREW(Y, b[i][v] * c[v] + a[i][v] * d[v], yh + n_half, COLUMN(v),
                       MINE(i) ? LEFT(v) : 0);
            }
        }
    }
}

__kernel void qknorm_rope_backward(__global const CLD_ELEM(X) *x, ulong x_at, ulong x_ld,
                                   __global const CLD_ELEM(W) *w, ulong w_at,
                                   __global const int *positions, ulong positions_at,
                                   __global const float *table, ulong table_at, ulong table_ld,
                                   __global const float *rstd, ulong rstd_at, ulong rstd_ld,
                                   __global const CLD_ELEM(DY) *dy, ulong dy_at, ulong dy_ld,
                                   __global CLD_ELEM(DX) *dx, ulong dx_at, ulong dx_ld,
                                   __global float *part, ulong n_parts, ulong n_rows, uint n_heads,
                                   uint n_half, ulong n_positions)
{
    HEAD_SCRATCH(s);
#if NORM && !CLD_CPU
    __local float slots[LOCAL * 2 * WIDE];
#endif
    const uint lane = (uint)LANE % LPH, slot = (uint)LANE / LPH;
    const uint n_blocks = (n_heads + BLOCK - 1) / BLOCK;
    const ulong n_pieces = n_rows * n_blocks;
    w += w_at;
    CLD_SHARE(p, n_parts) {
        const ulong end = (p + 1) * n_pieces / n_parts;
        floatw sum_a[MAX_NV], sum_b[MAX_NV];
        for (uint v = 0; v < NV; v++)
            sum_a[v] = sum_b[v] = 0.0f;
        for (ulong piece = p * n_pieces / n_parts; piece < end; piece++) {
            const ulong r = (uint)piece / n_blocks;
            const uint head0 = ((uint)piece - (uint)r * n_blocks) * BLOCK;
            __global const float *cosines = ANGLES(positions[positions_at + r]);
            __global const CLD_ELEM(DY) *dyr = dy + dy_at + r * dy_ld;
            __global const CLD_ELEM(X) *xr = x + x_at + r * x_ld;
            /* Gradients of the halves before the rotation, and x's halves. */
            floatw a[NI][MAX_NV], b[NI][MAX_NV], ha[NI][MAX_NV], hb[NI][MAX_NV];
            floatw c[MAX_NV], d[MAX_NV];
#pragma unroll
            for (uint i = 0; i < NI; i++)
                for (uint v = 0; v < NV; v++) {
                    READ(DY, a[i][v], dyr + HALF_A(i), v, MINE(i) ? LEFT(v) : 0);
                    READ(DY, b[i][v], dyr + HALF_B(i), v, MINE(i) ? LEFT(v) : 0);
#if NORM
                    READ(X, ha[i][v], xr + HALF_A(i), v, MINE(i) ? LEFT(v) : 0);
                    READ(X, hb[i][v], xr + HALF_B(i), v, MINE(i) ? LEFT(v) : 0);
#endif
                }
            for (uint v = 0; v < NV; v++) {
                READ(f32, c[v], cosines, v, LEFT(v));
                READ(f32, d[v], cosines + n_half, v, LEFT(v));
            }
#pragma unroll
            for (uint i = 0; i < NI; i++)
                for (uint v = 0; v < NV; v++) {
                    const floatw da = USE(DY, a[i][v], dyr + HALF_A(i), v, LEFT(v));
                    const floatw db = USE(DY, b[i][v], dyr + HALF_B(i), v, LEFT(v));
                    const floatw cv = USE(f32, c[v], cosines, v, LEFT(v));
                    const floatw dv = USE(f32, d[v], cosines + n_half, v, LEFT(v));
                    a[i][v] = da * cv + db * dv;
                    b[i][v] = db * cv - da * dv;
                }
#if NORM
            float scale[NI], mean[NI];
#pragma unroll
            for (uint i = 0; i < NI; i++) {
                floatw dot = 0.0f;
                scale[i] = MINE(i) ? rstd[rstd_at + r * rstd_ld + HEAD(i)] : 0.0f;
                for (uint v = 0; v < NV; v++) {
                    ha[i][v] = USE(X, ha[i][v], xr + HALF_A(i), v, LEFT(v)) * scale[i];
                    hb[i][v] = USE(X, hb[i][v], xr + HALF_B(i), v, LEFT(v)) * scale[i];
                    sum_a[v] += a[i][v] * ha[i][v];
                    sum_b[v] += b[i][v] * hb[i][v];
                    a[i][v] *= LOADW(W, w, COLUMN(v), LEFT(v));
                    b[i][v] *= LOADW(W, w + n_half, COLUMN(v), LEFT(v));
                    dot += a[i][v] * ha[i][v] + b[i][v] * hb[i][v];
                }
                mean[i] = sumw(dot);
            }
            HEAD_SUMS(mean, s);
#pragma unroll
            for (uint i = 0; i < NI; i++) {
                mean[i] /= 2.0f * n_half;
                for (uint v = 0; v < NV; v++) {
                    a[i][v] = scale[i] * (a[i][v] - ha[i][v] * mean[i]);
                    b[i][v] = scale[i] * (b[i][v] - hb[i][v] * mean[i]);
                }
            }
#endif
#pragma unroll
            for (uint i = 0; i < NI; i++) {
                __global CLD_ELEM(DX) *dxh = dx + dx_at + r * dx_ld + HEAD(i) * (2ul * n_half);
                for (uint v = 0; v < NV; v++) {
                    STOREW(DX, a[i][v], dxh, COLUMN(v), MINE(i) ? LEFT(v) : 0);
                    STOREW(DX, b[i][v], dxh + n_half, COLUMN(v), MINE(i) ? LEFT(v) : 0);
                }
            }
        }
#if NORM
        __global float *dw = part + p * (2ul * n_half);
#if CLD_CPU
        for (uint v = 0; v < NV; v++) {
            STOREW(f32, sum_a[v], dw, COLUMN(v), LEFT(v));
            STOREW(f32, sum_b[v], dw + n_half, COLUMN(v), LEFT(v));
        }
#else
        vstore8(sum_a[0], 0, slots + LANE * (2 * WIDE));
        vstore8(sum_b[0], 0, slots + LANE * (2 * WIDE) + WIDE);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint j = (uint)LANE; j < 2 * n_half; j += LOCAL) {
            const uint c = j % n_half, at = c / WIDE * (2 * WIDE) + j / n_half * WIDE + c % WIDE;
            float sum = 0.0f;
            for (uint k = 0; k < N_SLOTS; k++)
                sum += slots[k * LPH * (2 * WIDE) + at];
            dw[j] = sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
#endif
    }
}
