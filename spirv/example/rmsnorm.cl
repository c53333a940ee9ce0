/* rmsnorm.cl - a module of your own: RMSNorm in place of cl/rmsnorm.cl, by runtime.override.rmsnorm.
 *
 *     spirv/example/build.sh out
 *     cldraft train configs/tiny.ini --set runtime.override.rmsnorm=out/rmsnorm.spv
 *
 * The module must have every kernel of cl/rmsnorm.cl with the same name and the same arguments. One module serves all
 * calls of a run, so it knows nothing at compile time but the storage of the run: this one is for
 * runtime.precision = fp32, where all tensors are floats. For bf16 declare them as ushort (docs/design.md, Kernels).
 *
 * Two rules of the grid:
 *   - A group takes pieces g, g + G, g + 2 G, ... of the work, for group g of G: the number of groups is the launcher's.
 *   - The group's size is the launcher's too: 1 for the kernels of CPUs, up to 512 on GPUs. Ask get_local_size.
 *
 * To stay simple, every work-item of a group computes the sums of a whole row, and they share only the columns that are
 * written. That needs no barrier and no local memory. It is right for every group size, and slow on a GPU. */

/* Pieces of work of this group. */
#define EACH_PIECE(p, n) for (ulong p = get_group_id(0); p < (n); p += get_num_groups(0))
/* Columns of this work-item. */
#define EACH_COLUMN(j, n) for (ulong j = get_local_id(0); j < (n); j += get_local_size(0))

/* y = x * rstd * w, with rstd = (mean(x^2) + eps)^-1/2. x and y have rows `ld` elements apart from element `at` on;
 * w and rstd are vectors. rstd may be a null pointer: the target does not need it. */
__kernel void rmsnorm_forward(__global const float *x, ulong x_at, ulong x_ld, __global const float *w, ulong w_at,
                              __global float *y, ulong y_at, ulong y_ld, __global float *rstd, ulong rstd_at,
                              ulong n_rows, ulong n_cols, float eps)
{
    EACH_PIECE(r, n_rows) {
        __global const float *xr = x + x_at + r * x_ld;
        float squares = 0.0f;
        for (ulong j = 0; j < n_cols; j++)
            squares = fma(xr[j], xr[j], squares);
        float scale = rsqrt(squares / (float)n_cols + eps);
        EACH_COLUMN(j, n_cols) y[y_at + r * y_ld + j] = xr[j] * scale * w[w_at + j];
        if (rstd && get_local_id(0) == 0)
            rstd[rstd_at + r] = scale;
    }
}

/* With h = x * rstd and g = w * dy:  dx = rstd * (g - h * mean(g h)) (+ residual),  dw = sum over rows of dy h.
 * A piece of work is a run of rows; its share of dw is row p of `part`, which another kernel adds up. */
__kernel void rmsnorm_backward(__global const float *x, ulong x_at, ulong x_ld, __global const float *w, ulong w_at,
                               __global const float *rstd, ulong rstd_at, __global const float *dy, ulong dy_at,
                               ulong dy_ld, __global const float *residual, ulong r_at, ulong r_ld,
                               __global float *dx, ulong dx_at, ulong dx_ld, __global float *part, ulong part_ld,
                               ulong n_parts, ulong n_rows, ulong n_cols)
{
    EACH_PIECE(p, n_parts) {
        EACH_COLUMN(j, n_cols) part[p * part_ld + j] = 0.0f;
        for (ulong r = p * n_rows / n_parts; r < (p + 1) * n_rows / n_parts; r++) {
            __global const float *xr = x + x_at + r * x_ld, *dyr = dy + dy_at + r * dy_ld;
            const float scale = rstd[rstd_at + r];
            float dot = 0.0f;
            for (ulong j = 0; j < n_cols; j++)
                dot = fma(dyr[j] * w[w_at + j], xr[j] * scale, dot);
            float mean = dot / (float)n_cols;
            EACH_COLUMN(j, n_cols) {
                float h = xr[j] * scale, t = scale * (dyr[j] * w[w_at + j] - h * mean);
                if (residual)
                    t += residual[r_at + r * r_ld + j];
                dx[dx_at + r * dx_ld + j] = t;
                part[p * part_ld + j] += dyr[j] * h;
            }
        }
    }
}
