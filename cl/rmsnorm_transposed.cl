/* rmsnorm_transposed.cl - RMSNorm (rmsnorm.cl) with a transposed result, as tensor cores read the first
 * operand of a GEMM: T [n_cols, n_rows] bf16, in two kernels: the scale of each row, then blocks
 * (transposed_block.clh) of what that makes of x, which a cache has still.
 *
 * x, w and T are bf16; their begins and ld are multiples of 8 elements, n_cols is as well. */
#include "common.clh"
#include "transposed_block.clh"

static inline float8 load_unit(__global const ushort *p)
{
    return as_float8(convert_uint8(*(__global const ushort8 *)p) << 16);
}

/* rstd = (mean(x^2) + eps)^-1/2. A piece of work is a row. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
rmsnorm_scales(__global const ushort *x, ulong x_at, ulong x_ld, __global float *rstd,
               ulong rstd_at, ulong n_rows, ulong n_cols, float eps)
{
    enum { fan = 16 }; /* items that add up what the others have */
    __local float part[GROUP], sums[fan];
    const uint id = (uint)get_local_id(0);
    CLD_SHARE(r, n_rows) {
        __global const ushort *row = x + x_at + r * x_ld;
        float8 squares = 0.0f;
        for (ulong j = 8 * id; j < n_cols; j += 8 * GROUP) {
            const float8 v = load_unit(row + j);
            squares += v * v;
        }
        part[id] = sum4(squares.lo + squares.hi);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (id < fan) {
            float sum = 0.0f;
            for (uint k = id; k < GROUP; k += fan)
                sum += part[k];
            sums[id] = sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* and the next row's parts come after it */
        if (id == 0) {
            float sum = 0.0f;
            for (uint k = 0; k < fan; k++)
                sum += sums[k];
            rstd[rstd_at + r] = rsqrt(sum / (float)n_cols + eps);
        }
    }
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
rmsnorm_transposed(__global const ushort *x, ulong x_at, ulong x_ld, __global const ushort *w,
               ulong w_at, __global const float *rstd, ulong rstd_at, __global ushort *transposed,
               ulong transposed_at, ulong transposed_ld, ulong n_rows, ulong n_cols)
{
    __local ushort block[ROWS * COLUMNS] __attribute__((aligned(16)));
    const uint across = (uint)((n_cols + COLUMNS - 1) / COLUMNS);
    CLD_SHARE(piece, (n_rows + ROWS - 1) / ROWS * across) {
        const uint down = (uint)piece / across;
        const ulong row0 = (ulong)down * ROWS;
        const ulong column0 = (ulong)((uint)piece - down * across) * COLUMNS;
        const ulong column = column0 + UNIT_COLUMN;
        const bool there = column < n_cols;
        const float8 weight = there ? load_unit(w + w_at + column) : (float8)(0.0f);
        ushort8 v[PASSES][2];
#pragma unroll
        for (uint i = 0; i < PASSES; i++)
#pragma unroll
            for (uint k = 0; k < 2; k++) {
                const ulong row = row0 + UNIT_ROW(i) + k;
                v[i][k] = 0;
                if (there && row < n_rows)
                    v[i][k] = round8_bf16(load_unit(x + x_at + row * x_ld + column) *
                                          rstd[rstd_at + row] * weight);
            }
        barrier(CLK_LOCAL_MEM_FENCE); /* the block before has been read */
#pragma unroll
        for (uint i = 0; i < PASSES; i++)
            put_rows(block, UNIT_ROW(i), UNIT_COLUMN, v[i][0], v[i][1]);
        barrier(CLK_LOCAL_MEM_FENCE);
        write_block(block, transposed + transposed_at, transposed_ld, row0, column0, (n_rows + 7) / 8 * 8,
                    n_cols);
    }
}
