/* adamw_turned.cl - a step of AdamW (adamw.cl) on a matrix whose weights are kept turned as well, as
 * tensor cores read the second operand of y = x W^T: T [n_cols, n_rows] bf16.
 *
 * grad, m, v, master f32 and weight bf16 lie alike, [n_rows, n_cols] without gaps; all begins, n_rows
 * and n_cols are multiples of 8 elements. All elements decay. A piece of work is a block
 * (turned_block.clh). */
#include "common.clh"
#include "adamw.clh"
#include "turned_block.clh"

static inline float8 load_unit(__global const float *p)
{
    __global const float4 *v = (__global const float4 *)p;
    return (float8)(v[0], v[1]);
}

static inline void store_unit(__global float *p, float8 v)
{
    __global float4 *to = (__global float4 *)p;
    to[0] = v.lo;
    to[1] = v.hi;
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
adamw_turned(__global const float *grad, ulong grad_at, __global float *m, ulong m_at,
             __global float *v, ulong v_at, __global float *master, ulong master_at,
             __global ushort *weight, ulong weight_at, __global ushort *turned, ulong turned_at,
             ulong turned_ld, ulong n_rows, ulong n_cols, ADAMW_PARAMETERS)
{
    __local ushort block[ROWS * COLUMNS] __attribute__((aligned(16)));
    const uint across = (uint)((n_cols + COLUMNS - 1) / COLUMNS);
    CLD_SHARE(piece, (n_rows + ROWS - 1) / ROWS * across) {
        const uint down = (uint)piece / across;
        const ulong row0 = (ulong)down * ROWS;
        const ulong column0 = (ulong)((uint)piece - down * across) * COLUMNS;
        const ulong column = column0 + UNIT_COLUMN;
        barrier(CLK_LOCAL_MEM_FENCE); /* the block before has been read */
        /* Not all passes at once: the registers of one hide the latency, those of two keep other
         * groups away. */
#pragma unroll 1
        for (uint i = 0; i < PASSES; i++) {
            ushort8 w[2] = {0, 0};
            if (column < n_cols && row0 + UNIT_ROW(i) < n_rows) {
#pragma unroll
                for (uint k = 0; k < 2; k++) {
                    const ulong at = (row0 + UNIT_ROW(i) + k) * n_cols + column;
                    float8 g = load_unit(grad + grad_at + at) * grad_scale;
                    float8 m1 = load_unit(m + m_at + at), v1 = load_unit(v + v_at + at);
                    float8 x = load_unit(master + master_at + at) * decay;
                    ADAMW_STEP(g, m1, v1, x);
                    store_unit(m + m_at + at, m1);
                    store_unit(v + v_at + at, v1);
                    store_unit(master + master_at + at, x);
                    w[k] = round8_bf16(x);
                    *(__global ushort8 *)(weight + weight_at + at) = w[k];
                }
            }
            put_rows(block, UNIT_ROW(i), UNIT_COLUMN, w[0], w[1]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        write_block(block, turned + turned_at, turned_ld, row0, column0, n_rows, n_cols);
    }
}
