/* qknorm_rope.cl - RMSNorm of each head (NORM), then rotation of its two halves by the row's
 * position: (a, b) -> (a cos - b sin, b cos + a sin).
 *
 * An item is one head of one row; item i is head i % n_heads of row i / n_heads. In the GPU family
 * lph neighbouring work-items share an item, each holding 8 elements of either half, and a group
 * works on n_slots items at a time. In the CPU family a work-item holds the whole head. The
 * rotation is orthogonal, so its backward pass is the rotation by the negative angle.
 * Backward, a piece of work is a run of items, whose share of dw is one row of `part`. */
#ifndef ODD_HALF
#define ODD_HALF 0 /* 1: head_dim / 2 is no multiple of 8, so second halves lose the alignment */
#endif
#if ODD_HALF
#undef ALIGNED
#define ALIGNED 0
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

/* `n_half` (head_dim / 2, at most 128) and `lph` are variables of the kernels. */
#if CLD_CPU
#define MAX_NV 8 /* vectors of half a head that one work-item holds */
#define NV     ((n_half + WIDE - 1) / WIDE)
#define LPH    1u
#define HEAD_SCRATCH(s)
#define HEAD_SUM(v, s) (v)
#else
#define MAX_NV  1
#define NV      1
#define LPH     ((n_half + WIDE - 1) / WIDE)
#define MAX_LPH 16
/* Lanes behind the last slot read past LOCAL what nobody uses. */
#define HEAD_SCRATCH(s) __local float s[LOCAL + MAX_LPH]
#define HEAD_SUM(v, s)  head_sum((v), lph, (s))
static inline float head_sum(float v, uint lph, __local float *s)
{
    const uint first = (uint)LANE / lph * lph;
    float sum = 0.0f;
    s[LANE] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint k = 0; k < lph; k++)
        sum += s[first + k];
    barrier(CLK_LOCAL_MEM_FENCE);
    return sum;
}
#endif

/* First column of my v-th vector inside a half, and what is left of the half from there. */
#define COLUMN(v) (((v) * lph + lane) * WIDE)
#define LEFT(v)   ((int)n_half - (int)COLUMN(v))

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
    const uint lph = LPH, lane = (uint)LANE % lph, slot = (uint)LANE / lph, n_slots = LOCAL / lph;
    const ulong n_items = n_rows * n_heads;
    w += w_at;
    CLD_SHARE(i, (n_items + n_slots - 1) / n_slots) {
        const bool mine = slot < n_slots && i * n_slots + slot < n_items;
        ulong r = i * n_slots / n_heads;
        uint h = (uint)(i * n_slots % n_heads) + slot;
        r += h / n_heads;
        h %= n_heads;
        __global const CLD_ELEM(X) *xh = x + x_at + r * x_ld + h * (2ul * n_half);
        floatw a[MAX_NV], b[MAX_NV];
        float scale = 1.0f;
        for (uint v = 0; v < NV; v++) {
            a[v] = LOADW(X, xh, COLUMN(v), mine ? LEFT(v) : 0);
            b[v] = LOADW(X, xh + n_half, COLUMN(v), mine ? LEFT(v) : 0);
        }
#if NORM
        floatw squares = 0.0f;
        for (uint v = 0; v < NV; v++)
            squares += a[v] * a[v] + b[v] * b[v];
        scale = rsqrt(HEAD_SUM(sumw(squares), s) / (2.0f * n_half) + eps);
        for (uint v = 0; v < NV; v++) {
            a[v] *= scale * LOADW(W, w, COLUMN(v), LEFT(v));
            b[v] *= scale * LOADW(W, w + n_half, COLUMN(v), LEFT(v));
        }
#endif
        if (mine) {
            /* The host keeps positions inside the table; a wrong one must not read outside. */
            const ulong at = min((ulong)max(positions[positions_at + r], 0), n_positions - 1);
            __global const float *cosines = table + table_at + at * table_ld;
            __global CLD_ELEM(Y) *yh = y + y_at + r * y_ld + h * (2ul * n_half);
            for (uint v = 0; v < NV; v++) {
                floatw c = LOADW(f32, cosines, COLUMN(v), LEFT(v));
                floatw d = LOADW(f32, cosines + n_half, COLUMN(v), LEFT(v));
                STOREW(Y, a[v] * c - b[v] * d, yh, COLUMN(v), LEFT(v));
                STOREW(Y, b[v] * c + a[v] * d, yh + n_half, COLUMN(v), LEFT(v));
            }
            if (rstd && lane == 0)
                rstd[rstd_at + r * rstd_ld + h] = scale;
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
    const uint lph = LPH, lane = (uint)LANE % lph, slot = (uint)LANE / lph, n_slots = LOCAL / lph;
    const ulong n_items = n_rows * n_heads;
    w += w_at;
    CLD_SHARE(p, n_parts) {
        const ulong end = (p + 1) * n_items / n_parts;
        floatw sum_a[MAX_NV], sum_b[MAX_NV];
        for (uint v = 0; v < NV; v++)
            sum_a[v] = sum_b[v] = 0.0f;
        for (ulong i = p * n_items / n_parts; i < end; i += n_slots) {
            const bool mine = slot < n_slots && i + slot < end;
            ulong r = i / n_heads;
            uint h = (uint)(i % n_heads) + slot;
            r += h / n_heads;
            h %= n_heads;
            const ulong head = h * (2ul * n_half);
            floatw a[MAX_NV], b[MAX_NV]; /* gradients of the halves before the rotation */
            if (mine) {
                const ulong at = min((ulong)max(positions[positions_at + r], 0), n_positions - 1);
                __global const float *cosines = table + table_at + at * table_ld;
                __global const CLD_ELEM(DY) *dyh = dy + dy_at + r * dy_ld + head;
                for (uint v = 0; v < NV; v++) {
                    floatw c = LOADW(f32, cosines, COLUMN(v), LEFT(v));
                    floatw d = LOADW(f32, cosines + n_half, COLUMN(v), LEFT(v));
                    floatw da = LOADW(DY, dyh, COLUMN(v), LEFT(v));
                    floatw db = LOADW(DY, dyh + n_half, COLUMN(v), LEFT(v));
                    a[v] = da * c + db * d;
                    b[v] = db * c - da * d;
                }
            } else {
                for (uint v = 0; v < NV; v++)
                    a[v] = b[v] = 0.0f;
            }
#if NORM
            __global const CLD_ELEM(X) *xh = x + x_at + r * x_ld + head;
            const float scale = mine ? rstd[rstd_at + r * rstd_ld + h] : 0.0f;
            floatw dot = 0.0f, ha[MAX_NV], hb[MAX_NV];
            for (uint v = 0; v < NV; v++) {
                ha[v] = LOADW(X, xh, COLUMN(v), mine ? LEFT(v) : 0) * scale;
                hb[v] = LOADW(X, xh + n_half, COLUMN(v), mine ? LEFT(v) : 0) * scale;
                sum_a[v] += a[v] * ha[v];
                sum_b[v] += b[v] * hb[v];
                a[v] *= LOADW(W, w, COLUMN(v), LEFT(v));
                b[v] *= LOADW(W, w + n_half, COLUMN(v), LEFT(v));
                dot += a[v] * ha[v] + b[v] * hb[v];
            }
            const float mean = HEAD_SUM(sumw(dot), s) / (2.0f * n_half);
            for (uint v = 0; v < NV; v++) {
                a[v] = scale * (a[v] - ha[v] * mean);
                b[v] = scale * (b[v] - hb[v] * mean);
            }
#endif
            if (mine) {
                __global CLD_ELEM(DX) *dxh = dx + dx_at + r * dx_ld + head;
                for (uint v = 0; v < NV; v++) {
                    STOREW(DX, a[v], dxh, COLUMN(v), LEFT(v));
                    STOREW(DX, b[v], dxh + n_half, COLUMN(v), LEFT(v));
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
            for (uint k = 0; k < n_slots; k++)
                sum += slots[k * lph * (2 * WIDE) + at];
            dw[j] = sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
#endif
    }
}
