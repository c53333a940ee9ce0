/* rmsnorm.cl - RMSNorm over rows: y = x * rstd * w with rstd = (mean(x^2) + eps)^-1/2.
 *
 * Backward, with h = x * rstd and g = w * dy:
 *     dx = rstd * (g - h * mean(g h)) (+ residual),   dw = sum over rows of dy h.
 * Piece of work: forward a row; backward a run of rows, whose share of dw is one row of `part`
 * (column_sum.cl adds them up), so that dw does not depend on the grid. */
#include "common.clh"
#include "wide.clh"

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
#ifndef NV
#define NV 1 /* GPU family: vectors of a row in one work-item, n_cols / (LOCAL * 8) rounded up */
#endif

__kernel void rmsnorm_forward(__global const CLD_ELEM(X) *x, ulong x_at, ulong x_ld,
                              __global const CLD_ELEM(W) *w, ulong w_at, __global CLD_ELEM(Y) *y,
                              ulong y_at, ulong y_ld, __global float *rstd, ulong rstd_at,
                              ulong n_rows, ulong n_cols, float eps)
{
    GROUP_SCRATCH(s);
    w += w_at;
    CLD_SHARE(r, n_rows) {
        __global const CLD_ELEM(X) *xr = x + x_at + r * x_ld;
        __global CLD_ELEM(Y) *yr = y + y_at + r * y_ld;
        floatw squares = 0.0f;
        EACH_WIDE(j, n_cols) {
            floatw v = LOADW(X, xr, j, n_cols - j);
            squares += v * v;
        }
        float scale = rsqrt(GROUP_SUM(sumw(squares), s) / (float)n_cols + eps);
        EACH_WIDE(j, n_cols) {
            floatw v = LOADW(X, xr, j, n_cols - j) * scale * LOADW(W, w, j, n_cols - j);
            STOREW(Y, v, yr, j, n_cols - j);
        }
        if (rstd && LANE == 0)
            rstd[rstd_at + r] = scale;
    }
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
    CLD_SHARE(p, n_parts) {
        __global float *dw = part + p * part_ld;
#if CLD_CPU /* a row of sums is too long for registers but stays in the cache */
        EACH_WIDE(j, n_cols) STOREW(f32, (floatw)(0.0f), dw, j, n_cols - j);
#else
        floatw sums[NV];
        for (int v = 0; v < NV; v++)
            sums[v] = 0.0f;
#endif
        for (ulong r = p * n_rows / n_parts; r < (p + 1) * n_rows / n_parts; r++) {
            __global const CLD_ELEM(X) *xr = x + x_at + r * x_ld;
            __global const CLD_ELEM(DY) *dyr = dy + dy_at + r * dy_ld;
            __global const CLD_ELEM(R) *rr = residual + r_at + r * r_ld;
            __global CLD_ELEM(DX) *dxr = dx + dx_at + r * dx_ld;
            const float scale = rstd[rstd_at + r];
            floatw dot = 0.0f;
#if CLD_CPU
            EACH_WIDE(j, n_cols) {
                floatw t = LOADW(DY, dyr, j, n_cols - j) * (LOADW(X, xr, j, n_cols - j) * scale);
                dot += t * LOADW(W, w, j, n_cols - j);
                STOREW(f32, LOADW(f32, dw, j, n_cols - j) + t, dw, j, n_cols - j);
            }
#else
            for (int v = 0; v < NV; v++) {
                const ulong j = (v * LANES + LANE) * WIDE;
                const long left = (long)n_cols - (long)j;
                floatw t = LOADW(DY, dyr, j, left) * (LOADW(X, xr, j, left) * scale);
                dot += t * LOADW(W, w, j, left);
                sums[v] += t;
            }
#endif
            float mean = GROUP_SUM(sumw(dot), s) / (float)n_cols;
            EACH_WIDE(j, n_cols) {
                floatw g = LOADW(DY, dyr, j, n_cols - j) * LOADW(W, w, j, n_cols - j);
                floatw h = LOADW(X, xr, j, n_cols - j) * scale;
                floatw v = scale * (g - h * mean);
                if (residual)
                    v += LOADW(R, rr, j, n_cols - j);
                STOREW(DX, v, dxr, j, n_cols - j);
            }
        }
#if !CLD_CPU
        for (int v = 0; v < NV; v++) {
            const ulong j = (v * LANES + LANE) * WIDE;
            STOREW(f32, sums[v], dw, j, (long)n_cols - (long)j);
        }
#endif
    }
}
