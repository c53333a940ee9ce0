/* qknorm_rope.cl - RMSNorm of each head (NORM), then rotation of its two halves by the row's
 * position: (a, b) -> (a cos - b sin, b cos + a sin).
 *
 * An item is one head of one row; item i is head i % n_heads of row i / n_heads. In the GPU family
 * LPH neighbouring work-items share an item, each holding 8 elements of either half, and a group
 * works on SLOTS items at a time. In the CPU family a work-item holds the whole head. The rotation is
 * orthogonal, so its backward pass is the rotation by the negative angle.
 * Backward, a piece of work is a run of items, whose share of dw is one row of `part`. */
#ifndef HALF
#define HALF 64 /* head_dim / 2 */
#endif
#if HALF % 8 /* the second half of a head begins off the alignment of the first */
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

#if CLD_CPU
#define LPH 1ul
#define NV  ((HALF + WIDE - 1) / WIDE)
#define HEAD_SCRATCH(s)
#define HEAD_SUM(v, s) (v)
#else
#define LPH ((HALF + WIDE - 1ul) / WIDE)
#define NV  1
/* Lanes behind the last slot read past LOCAL what nobody uses. */
#define HEAD_SCRATCH(s) __local float s[LOCAL + LPH]
#define HEAD_SUM(v, s)  head_sum((v), (s))
static inline float head_sum(float v, __local float *s)
{
    const ulong first = LANE / LPH * LPH;
    float sum = 0.0f;
    s[LANE] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 0; k < LPH; k++)
        sum += s[first + k];
    barrier(CLK_LOCAL_MEM_FENCE);
    return sum;
}
#endif
#define SLOTS (LOCAL / LPH)

/* First column of my v-th vector inside a half, and what is left of the half from there. */
#define COLUMN(v) (((v) * LPH + LANE % LPH) * WIDE)
#define LEFT(v)   (COLUMN(v) < HALF ? HALF - COLUMN(v) : 0ul)

__kernel void qknorm_rope_forward(__global const CLD_ELEM(X) *x, ulong x_at, ulong x_ld,
                                  __global const CLD_ELEM(W) *w, ulong w_at,
                                  __global const int *positions, ulong positions_at,
                                  __global const float *table, ulong table_at, ulong table_ld,
                                  __global CLD_ELEM(Y) *y, ulong y_at, ulong y_ld,
                                  __global float *rstd, ulong rstd_at, ulong rstd_ld,
                                  ulong n_rows, uint n_heads, ulong n_positions, float eps)
{
    HEAD_SCRATCH(s);
    const ulong n_items = n_rows * n_heads, slot = LANE / LPH;
    w += w_at;
    CLD_SHARE(i, (n_items + SLOTS - 1) / SLOTS) {
        const bool mine = slot < SLOTS && i * SLOTS + slot < n_items;
        ulong r = i * SLOTS / n_heads;
        uint h = (uint)(i * SLOTS % n_heads) + (uint)slot;
        r += h / n_heads;
        h %= n_heads;
        __global const CLD_ELEM(X) *xh = x + x_at + r * x_ld + h * (2ul * HALF);
        floatw a[NV], b[NV];
        float scale = 1.0f;
        for (int v = 0; v < NV; v++) {
            a[v] = LOADW(X, xh, COLUMN(v), mine ? LEFT(v) : 0);
            b[v] = LOADW(X, xh + HALF, COLUMN(v), mine ? LEFT(v) : 0);
        }
#if NORM
        floatw squares = 0.0f;
        for (int v = 0; v < NV; v++)
            squares += a[v] * a[v] + b[v] * b[v];
        scale = rsqrt(HEAD_SUM(sumw(squares), s) / (2.0f * HALF) + eps);
        for (int v = 0; v < NV; v++) {
            a[v] *= scale * LOADW(W, w, COLUMN(v), LEFT(v));
            b[v] *= scale * LOADW(W, w + HALF, COLUMN(v), LEFT(v));
        }
#endif
        if (mine) {
            /* The host keeps positions inside the table; a wrong one must not read outside. */
            const ulong at = min((ulong)max(positions[positions_at + r], 0), n_positions - 1);
            __global const float *cosines = table + table_at + at * table_ld;
            __global CLD_ELEM(Y) *yh = y + y_at + r * y_ld + h * (2ul * HALF);
            for (int v = 0; v < NV; v++) {
                floatw c = LOADW(f32, cosines, COLUMN(v), LEFT(v));
                floatw d = LOADW(f32, cosines + HALF, COLUMN(v), LEFT(v));
                STOREW(Y, a[v] * c - b[v] * d, yh, COLUMN(v), LEFT(v));
                STOREW(Y, b[v] * c + a[v] * d, yh + HALF, COLUMN(v), LEFT(v));
            }
            if (rstd && LANE % LPH == 0)
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
                                   ulong n_positions)
{
    HEAD_SCRATCH(s);
#if NORM && !CLD_CPU
    __local float slots[LOCAL * 2 * WIDE];
#endif
    const ulong n_items = n_rows * n_heads, slot = LANE / LPH;
    w += w_at;
    CLD_SHARE(p, n_parts) {
        const ulong end = (p + 1) * n_items / n_parts;
        floatw sum_a[NV], sum_b[NV];
        for (int v = 0; v < NV; v++)
            sum_a[v] = sum_b[v] = 0.0f;
        for (ulong i = p * n_items / n_parts; i < end; i += SLOTS) {
            const bool mine = slot < SLOTS && i + slot < end;
            ulong r = i / n_heads;
            uint h = (uint)(i % n_heads) + (uint)slot;
            r += h / n_heads;
            h %= n_heads;
            const ulong head = h * (2ul * HALF);
            floatw a[NV], b[NV]; /* gradients of the halves before the rotation */
            if (mine) {
                const ulong at = min((ulong)max(positions[positions_at + r], 0), n_positions - 1);
                __global const float *cosines = table + table_at + at * table_ld;
                __global const CLD_ELEM(DY) *dyh = dy + dy_at + r * dy_ld + head;
                for (int v = 0; v < NV; v++) {
                    floatw c = LOADW(f32, cosines, COLUMN(v), LEFT(v));
                    floatw d = LOADW(f32, cosines + HALF, COLUMN(v), LEFT(v));
                    floatw da = LOADW(DY, dyh, COLUMN(v), LEFT(v));
                    floatw db = LOADW(DY, dyh + HALF, COLUMN(v), LEFT(v));
                    a[v] = da * c + db * d;
                    b[v] = db * c - da * d;
                }
            } else {
                for (int v = 0; v < NV; v++)
                    a[v] = b[v] = 0.0f;
            }
#if NORM
            __global const CLD_ELEM(X) *xh = x + x_at + r * x_ld + head;
            const float scale = mine ? rstd[rstd_at + r * rstd_ld + h] : 0.0f;
            floatw dot = 0.0f, ha[NV], hb[NV];
            for (int v = 0; v < NV; v++) {
                ha[v] = LOADW(X, xh, COLUMN(v), mine ? LEFT(v) : 0) * scale;
                hb[v] = LOADW(X, xh + HALF, COLUMN(v), mine ? LEFT(v) : 0) * scale;
                sum_a[v] += a[v] * ha[v];
                sum_b[v] += b[v] * hb[v];
                a[v] *= LOADW(W, w, COLUMN(v), LEFT(v));
                b[v] *= LOADW(W, w + HALF, COLUMN(v), LEFT(v));
                dot += a[v] * ha[v] + b[v] * hb[v];
            }
            const float mean = HEAD_SUM(sumw(dot), s) / (2.0f * HALF);
            for (int v = 0; v < NV; v++) {
                a[v] = scale * (a[v] - ha[v] * mean);
                b[v] = scale * (b[v] - hb[v] * mean);
            }
#endif
            if (mine) {
                __global CLD_ELEM(DX) *dxh = dx + dx_at + r * dx_ld + head;
                for (int v = 0; v < NV; v++) {
                    STOREW(DX, a[v], dxh, COLUMN(v), LEFT(v));
                    STOREW(DX, b[v], dxh + HALF, COLUMN(v), LEFT(v));
                }
            }
        }
#if NORM
        __global float *dw = part + p * (2ul * HALF);
#if CLD_CPU
        for (int v = 0; v < NV; v++) {
            STOREW(f32, sum_a[v], dw, COLUMN(v), LEFT(v));
            STOREW(f32, sum_b[v], dw + HALF, COLUMN(v), LEFT(v));
        }
#else
        vstore8(sum_a[0], 0, slots + LANE * (2 * WIDE));
        vstore8(sum_b[0], 0, slots + LANE * (2 * WIDE) + WIDE);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (ulong j = LANE; j < 2 * HALF; j += LOCAL) {
            const ulong c = j % HALF, at = c / WIDE * (2 * WIDE) + j / HALF * WIDE + c % WIDE;
            float sum = 0.0f;
            for (ulong k = 0; k < SLOTS; k++)
                sum += slots[k * LPH * (2 * WIDE) + at];
            dw[j] = sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
#endif
    }
}
