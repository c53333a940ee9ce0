/* qknorm_rope.cl - RMSNorm of each head (NORM), then rotation of its two halves by the row's
 * position: (a, b) -> (a cos - b sin, b cos + a sin).
 *
 * A piece of work is a block of BLOCK neighbouring heads of a row, so that row, position and angles
 * are found once for all of them. In the GPU family LPH neighbouring work-items share a head, each
 * holding 8 elements of either half; in the CPU family a work-item holds a whole head, and a block
 * is one head. The rotation is orthogonal, so its backward pass is the rotation by the negative
 * angle. Backward, a run of pieces makes one row of `part`: its share of dw. On a GPU the heads of
 * the next piece are under way while a group is at work on this one. */
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
#define HEAD_SCRATCH(s)
#define HEAD_SUM(v, s) (v)
/* A CPU reads at use, from its cache; a GPU reads early, and holds what it read as it is stored. */
#define HOLD(T, h)
#define READ(T, h, p, v, left)
#define TAKE(g, h)
#define USE(T, h, p, v, left) LOADW(T, p, COLUMN(v), left)
#else
#ifndef LPH
#define LPH 1 /* work-items to a head: n_half / 8 rounded up, at most 16 */
#endif
#define MAX_NV  1
#define HOLD(T, h)             CLD_CAT(held_, T) h
#define READ(T, h, p, v, left) ((h) = CLD_CAT(holdw_, T)((p) + COLUMN(v), left, 0.0f))
#define TAKE(g, h)             ((g) = (h))
#define USE(T, h, p, v, left)  CLD_CAT(value_, T)(h)
#define HEAD_SUM(v, s)         head_sum((v), (s))
#if NVIDIA && (LPH & (LPH - 1)) == 0 /* the items of a head are neighbours in a warp */
#define HEAD_SCRATCH(s) __local float *s = 0
static inline float head_sum(float v, __local float *s)
{
    (void)s;
#pragma unroll
    for (uint k = 1; k < LPH; k *= 2)
        v += as_float(swap_lanes(as_uint(v), k));
    return v;
}
#else
/* Items after the last slot read values that are not used. */
#define HEAD_SCRATCH(s) __local float s[LOCAL + LPH]
static inline float head_sum(float v, __local float *s)
{
    const uint first = (uint)LANE / LPH * LPH;
    float sum = 0.0f;
    s[LANE] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint k = 0; k < LPH; k++)
        sum += s[first + k];
    barrier(CLK_LOCAL_MEM_FENCE);
    return sum;
}
#endif
#endif
#define BLOCK (CLD_CPU ? 1 : LOCAL / LPH) /* op_norm.c too */
#ifndef N_BLOCKS
#define N_BLOCKS ((n_heads + BLOCK - 1) / BLOCK) /* of a row; a constant saves divisions */
#endif

/* First column of my v-th vector inside a half, and what is left of the half from there: a
 * difference of longs, because Mesa 22 compares an int that became a long wrongly with constants. */
#define COLUMN(v) (((v) * LPH + lane) * WIDE)
#define LEFT(v)   (EXACT ? (long)WIDE : (long)n_half - (long)COLUMN(v))

/* Row of a piece; the last row after the last piece. */
#define ROW_OF(piece) min((uint)(piece) / n_blocks, (uint)n_rows - 1)

/* My head of a piece, whether there is one, and what of its vectors. */
#define HEAD_OF(piece) (((uint)(piece) - ROW_OF(piece) * n_blocks) * BLOCK + slot)
#define MINE(head)     (CLD_CPU || EXACT || (slot < BLOCK && (head) < n_heads))
#define SHARE(head, v) (MINE(head) ? LEFT(v) : 0)

/* Where its halves begin in a row. */
#define HALF_A(head) ((head) * (2u * n_half))
#define HALF_B(head) ((head) * (2u * n_half) + n_half)

/* The host keeps positions inside the table; a wrong one must not read outside. */
#define ANGLES(position)                                                                          \
    (table + table_at + min((ulong)max((position), 0), n_positions - 1) * table_ld)

/* Prefetches both halves of a head, if there is one. */
#define READ_HEAD(T, a, b, row, head, there)                                                      \
    {                                                                                             \
        READ(T, a, (row) + HALF_A(head), 0, (there) ? SHARE(head, 0) : 0);                        \
        READ(T, b, (row) + HALF_B(head), 0, (there) ? SHARE(head, 0) : 0);                        \
    }

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
    const float per_column = 1.0f / (2.0f * n_half);
    const uint lane = (uint)LANE % LPH, slot = (uint)LANE / LPH;
    const uint n_blocks = N_BLOCKS;
    const ulong n_pieces = n_rows * n_blocks;
    w += w_at;
    x += x_at;
    positions += positions_at;
    uint next_r = ROW_OF(CLD_FIRST(n_pieces)), next_head = HEAD_OF(CLD_FIRST(n_pieces));
    int position = positions[next_r];
    HOLD(X, next_a);
    HOLD(X, next_b);
    HOLD(W, wa);
    HOLD(W, wb);
#if NORM
    READ(W, wa, w, 0, LEFT(0));
    READ(W, wb, w + n_half, 0, LEFT(0));
#endif
    READ_HEAD(X, next_a, next_b, x + next_r * x_ld, next_head, CLD_FIRST(n_pieces) < n_pieces)
    CLD_SHARE(piece, n_pieces) {
        const uint r = next_r, head = next_head;
        __global const CLD_ELEM(X) *xr = x + r * x_ld;
        __global CLD_ELEM(Y) *yr = y + y_at + r * y_ld;
        __global const float *cosines = ANGLES(position);
        HOLD(X, xa);
        HOLD(X, xb);
        HOLD(f32, c);
        HOLD(f32, d);
        READ(f32, c, cosines, 0, LEFT(0));
        READ(f32, d, cosines + n_half, 0, LEFT(0));
        TAKE(xa, next_a);
        TAKE(xb, next_b);
        /* The next piece is under way while this one is added up. */
        next_r = ROW_OF(CLD_NEXT(piece));
        next_head = HEAD_OF(CLD_NEXT(piece));
        position = positions[next_r];
        READ_HEAD(X, next_a, next_b, x + next_r * x_ld, next_head, CLD_NEXT(piece) < n_pieces)
#if NORM
        floatw squares = 0.0f;
        for (uint v = 0; v < NV; v++) {
            const floatw a = USE(X, xa, xr + HALF_A(head), v, LEFT(v));
            const floatw b = USE(X, xb, xr + HALF_B(head), v, LEFT(v));
            squares += a * a + b * b;
        }
        const float scale = rsqrt(HEAD_SUM(sumw(squares), s) * per_column + eps);
        if (rstd && lane == 0 && MINE(head))
            rstd[rstd_at + r * rstd_ld + head] = scale;
#endif
        for (uint v = 0; v < NV; v++) {
            floatw a = USE(X, xa, xr + HALF_A(head), v, LEFT(v));
            floatw b = USE(X, xb, xr + HALF_B(head), v, LEFT(v));
            const floatw cv = USE(f32, c, cosines, v, LEFT(v));
            const floatw dv = USE(f32, d, cosines + n_half, v, LEFT(v));
#if NORM
            a *= scale * USE(W, wa, w, v, LEFT(v));
            b *= scale * USE(W, wb, w + n_half, v, LEFT(v));
#endif
            STOREW(Y, a * cv - b * dv, yr + HALF_A(head), COLUMN(v), SHARE(head, v));
            STOREW(Y, b * cv + a * dv, yr + HALF_B(head), COLUMN(v), SHARE(head, v));
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
    const uint n_blocks = N_BLOCKS;
    const ulong n_pieces = n_rows * n_blocks;
    w += w_at;
    x += x_at;
    dy += dy_at;
    dx += dx_at;
    positions += positions_at;
    HOLD(W, wa);
    HOLD(W, wb);
#if NORM
    READ(W, wa, w, 0, LEFT(0));
    READ(W, wb, w + n_half, 0, LEFT(0));
#endif
    CLD_SHARE(p, n_parts) {
        const ulong first = p * n_pieces / n_parts, end = (p + 1) * n_pieces / n_parts;
        uint next_r = ROW_OF(first), next_head = HEAD_OF(first);
        int position = positions[next_r];
        HOLD(DY, next_a);
        HOLD(DY, next_b);
        HOLD(X, next_xa);
        HOLD(X, next_xb);
        floatw sum_a[MAX_NV], sum_b[MAX_NV];
        for (uint v = 0; v < NV; v++)
            sum_a[v] = sum_b[v] = 0.0f;
        READ_HEAD(DY, next_a, next_b, dy + next_r * dy_ld, next_head, true)
#if NORM
        READ_HEAD(X, next_xa, next_xb, x + next_r * x_ld, next_head, true)
#endif
        for (ulong piece = first; piece < end; piece++) {
            const uint r = next_r, head = next_head;
            __global const float *cosines = ANGLES(position);
            __global const CLD_ELEM(DY) *dyr = dy + r * dy_ld;
            __global const CLD_ELEM(X) *xr = x + r * x_ld;
            __global CLD_ELEM(DX) *dxr = dx + r * dx_ld;
            HOLD(DY, ya);
            HOLD(DY, yb);
            HOLD(X, xa);
            HOLD(X, xb);
            HOLD(f32, c);
            HOLD(f32, d);
            READ(f32, c, cosines, 0, LEFT(0));
            READ(f32, d, cosines + n_half, 0, LEFT(0));
#if NORM
            const float scale = MINE(head) ? rstd[rstd_at + r * rstd_ld + head] : 0.0f;
#endif
            TAKE(ya, next_a);
            TAKE(yb, next_b);
#if NORM
            TAKE(xa, next_xa);
            TAKE(xb, next_xb);
#endif
            next_r = ROW_OF(piece + 1);
            next_head = HEAD_OF(piece + 1);
            position = positions[next_r];
            READ_HEAD(DY, next_a, next_b, dy + next_r * dy_ld, next_head, piece + 1 < end)
#if NORM
            READ_HEAD(X, next_xa, next_xb, x + next_r * x_ld, next_head, piece + 1 < end)
#endif
            /* Gradients of the halves before the rotation, and x's halves. */
            floatw a[MAX_NV], b[MAX_NV];
            for (uint v = 0; v < NV; v++) {
                const floatw da = USE(DY, ya, dyr + HALF_A(head), v, LEFT(v));
                const floatw db = USE(DY, yb, dyr + HALF_B(head), v, LEFT(v));
                const floatw cv = USE(f32, c, cosines, v, LEFT(v));
                const floatw dv = USE(f32, d, cosines + n_half, v, LEFT(v));
                a[v] = da * cv + db * dv;
                b[v] = db * cv - da * dv;
            }
#if NORM
            floatw ha[MAX_NV], hb[MAX_NV], dot = 0.0f;
            for (uint v = 0; v < NV; v++) {
                ha[v] = USE(X, xa, xr + HALF_A(head), v, LEFT(v)) * scale;
                hb[v] = USE(X, xb, xr + HALF_B(head), v, LEFT(v)) * scale;
                sum_a[v] += a[v] * ha[v];
                sum_b[v] += b[v] * hb[v];
                a[v] *= USE(W, wa, w, v, LEFT(v));
                b[v] *= USE(W, wb, w + n_half, v, LEFT(v));
                dot += a[v] * ha[v] + b[v] * hb[v];
            }
            const float mean = HEAD_SUM(sumw(dot), s) / (2.0f * n_half);
            for (uint v = 0; v < NV; v++) {
                a[v] = scale * (a[v] - ha[v] * mean);
                b[v] = scale * (b[v] - hb[v] * mean);
            }
#endif
            for (uint v = 0; v < NV; v++) {
                STOREW(DX, a[v], dxr + HALF_A(head), COLUMN(v), SHARE(head, v));
                STOREW(DX, b[v], dxr + HALF_B(head), COLUMN(v), SHARE(head, v));
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
            for (uint k = 0; k < BLOCK; k++)
                sum += slots[k * LPH * (2 * WIDE) + at];
            dw[j] = sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
#endif
    }
}
