/* rmsnorm.cl - RMSNorm over rows: y = x * rstd * w with rstd = (mean(x^2) + eps)^-1/2.
 *
 * Backward, with h = x * rstd and g = w * dy:
 *     dx = rstd * (g - h * mean(g h)) (+ residual),   dw = sum over rows of dy h.
 * Piece of work: forward a row; backward a run of rows, whose share of dw is one row of `part`
 * (column_sum.cl adds them up), so that dw does not depend on the grid. */
#include "common.clh"
#include "wide.clh"

/* On a GPU the next row of a group is under way while it adds up this one's. */

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
#ifndef R
#define R f32 /* of the residual that is added to dx */
#endif
#ifndef DX
#define DX f32 /* of x's gradient */
#endif

__kernel void rmsnorm_forward(__global const CLD_ELEM(X) *x, ulong x_at, ulong x_ld,
                              __global const CLD_ELEM(W) *w, ulong w_at, __global CLD_ELEM(Y) *y,
                              ulong y_at, ulong y_ld, __global float *rstd, ulong rstd_at,
                              ulong n_rows, ulong n_cols, float eps)
{
    GROUP_SCRATCH(s);
    w += w_at;
    ROW(W, hw);
    READ_ROW(W, hw, w, n_cols);
    ROW(X, next_x);
    READ_ROW(X, next_x, x + x_at + min(CLD_FIRST(n_rows), n_rows - 1) * x_ld, n_cols);
    CLD_SHARE(r, n_rows) {
        __global const CLD_ELEM(X) *xr = x + x_at + r * x_ld;
        __global CLD_ELEM(Y) *yr = y + y_at + r * y_ld;
        ROW(X, hx);
        TAKE_ROW(hx, next_x);
        if (CLD_NEXT(r) < n_rows)
            READ_ROW(X, next_x, x + x_at + CLD_NEXT(r) * x_ld, n_cols);
        floatw squares = 0.0f;
        EACH_HELD(v, j, n_cols) {
            floatw t = HELD(X, hx, xr, v, j, n_cols);
            squares += t * t;
        }
        float scale = rsqrt(GROUP_SUM(sumw(squares), s) / (float)n_cols + eps);
        EACH_HELD(v, j, n_cols) {
            floatw t = HELD(X, hx, xr, v, j, n_cols) * scale * HELD(W, hw, w, v, j, n_cols);
            STOREW(Y, t, yr, j, HELD_LEFT(v, j, n_cols));
        }
        if (rstd && LANE == 0)
            rstd[rstd_at + r] = scale;
    }
}

#define READ_ROWS(r)                                                                              \
    {                                                                                             \
        READ_ROW(X, next_x, x + x_at + (r) * x_ld, n_cols);                                       \
        READ_ROW(DY, next_dy, dy + dy_at + (r) * dy_ld, n_cols);                                  \
        if (residual) {                                                                           \
            READ_ROW(R, next_r, residual + r_at + (r) * r_ld, n_cols);                            \
        }                                                                                         \
    }

__kernel void rmsnorm_backward(__global const CLD_ELEM(X) *x, ulong x_at, ulong x_ld,
                               __global const CLD_ELEM(W) *w, ulong w_at,
                               __global const float *rstd, ulong rstd_at,
                               __global const CLD_ELEM(DY) *dy, ulong dy_at, ulong dy_ld,
                               __global const CLD_ELEM(R) *residual, ulong r_at, ulong r_ld,
                               __global CLD_ELEM(DX) *dx, ulong dx_at, ulong dx_ld,
                               __global float *part, ulong part_ld, ulong n_parts, ulong n_rows,
                               ulong n_cols)
{
    GROUP_SCRATCH(s);
    w += w_at;
    ROW(W, hw);
    READ_ROW(W, hw, w, n_cols);
    CLD_SHARE(p, n_parts) {
        __global float *dw = part + p * part_ld;
#if CLD_CPU /* a row of sums is too long for registers but stays in the cache */
        EACH_WIDE(j, n_cols) STOREW(f32, (floatw)(0.0f), dw, j, n_cols - j);
#else
        floatw sums[NV];
        EACH_HELD(v, j, n_cols) sums[v] = 0.0f;
#endif
        const ulong first = p * n_rows / n_parts, end = (p + 1) * n_rows / n_parts;
        ROW(X, next_x);
        ROW(DY, next_dy);
        ROW(R, next_r);
        READ_ROWS(first)
        for (ulong r = first; r < end; r++) {
            __global const CLD_ELEM(X) *xr = x + x_at + r * x_ld;
            __global const CLD_ELEM(DY) *dyr = dy + dy_at + r * dy_ld;
            __global const CLD_ELEM(R) *rr = residual + r_at + r * r_ld;
            __global CLD_ELEM(DX) *dxr = dx + dx_at + r * dx_ld;
            ROW(X, hx);
            ROW(DY, hdy);
            ROW(R, hr);
            TAKE_ROW(hx, next_x);
            TAKE_ROW(hdy, next_dy);
            TAKE_ROW(hr, next_r);
            if (r + 1 < end)
                READ_ROWS(r + 1)
            const float scale = rstd[rstd_at + r];
            floatw dot = 0.0f;
            EACH_HELD(v, j, n_cols) {
                floatw h = HELD(X, hx, xr, v, j, n_cols) * scale;
                floatw t = HELD(DY, hdy, dyr, v, j, n_cols) * h;
                dot += t * HELD(W, hw, w, v, j, n_cols);
#if CLD_CPU
                STOREW(f32, LOADW(f32, dw, j, n_cols - j) + t, dw, j, n_cols - j);
#else
                sums[v] += t;
#endif
            }
            float mean = GROUP_SUM(sumw(dot), s) / (float)n_cols;
            EACH_HELD(v, j, n_cols) {
                floatw g = HELD(DY, hdy, dyr, v, j, n_cols) * HELD(W, hw, w, v, j, n_cols);
                floatw h = HELD(X, hx, xr, v, j, n_cols) * scale;
                floatw t = scale * (g - h * mean);
                if (residual)
                    t += HELD(R, hr, rr, v, j, n_cols);
                STOREW(DX, t, dxr, j, HELD_LEFT(v, j, n_cols));
            }
        }
#if !CLD_CPU
        EACH_HELD(v, j, n_cols) STOREW(f32, sums[v], dw, j, HELD_LEFT(v, j, n_cols));
#endif
    }
}
