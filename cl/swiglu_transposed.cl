/* swiglu_transposed.cl - SwiGLU (swiglu.cl) with transposed results, as tensor cores read the first operand
 * of a GEMM: y, or d_gate and then d_up, [columns, rows]. Forward y exists in this form alone,
 * backward the gradients are written as they lie, too.
 *
 * All tensors are bf16, their begins and ld multiples of 8 elements, n_cols as well. A piece of
 * work is a block (transposed_block.clh). */
#include "common.clh"
#include "transposed_block.clh"

/* The device's own exponential and reciprocal: rounding hides their error. */
#define SIGMOID(g) native_recip(1.0f + native_exp(-(g)))

static inline float8 load_unit(__global const ushort *p)
{
    return as_float8(convert_uint8(*(__global const ushort8 *)p) << 16);
}

static inline void store_unit(__global ushort *p, ushort8 v)
{
    *(__global ushort8 *)p = v;
}

/* Where a block begins, and this item's unit of 8 columns in it. */
struct place {
    ulong row0, column0, column;
    bool there; /* the unit */
};

static inline struct place place_of(ulong piece, ulong n_cols)
{
    const uint across = (uint)((n_cols + COLUMNS - 1) / COLUMNS), down = (uint)piece / across;
    struct place p = {(ulong)down * ROWS, (ulong)((uint)piece - down * across) * COLUMNS, 0, false};
    p.column = p.column0 + UNIT_COLUMN;
    p.there = p.column < n_cols;
    return p;
}

#define N_PIECES(n_rows, n_cols)                                                                  \
    ((n_rows) + ROWS - 1) / ROWS * (((n_cols) + COLUMNS - 1) / COLUMNS)

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
swiglu_transposed_forward(__global const ushort *gate, ulong gate_at, ulong gate_ld,
                      __global const ushort *up, ulong up_at, ulong up_ld, __global ushort *y,
                      ulong y_at, ulong y_ld, ulong n_rows, ulong n_cols)
{
    __local ushort block[ROWS * COLUMNS] __attribute__((aligned(16)));
    CLD_SHARE(piece, N_PIECES(n_rows, n_cols)) {
        const struct place p = place_of(piece, n_cols);
        ushort8 v[PASSES][2];
#pragma unroll
        for (uint i = 0; i < PASSES; i++)
#pragma unroll
            for (uint k = 0; k < 2; k++) {
                const ulong row = p.row0 + UNIT_ROW(i) + k;
                v[i][k] = 0;
                if (p.there && row < n_rows) {
                    float8 g = load_unit(gate + gate_at + row * gate_ld + p.column);
                    float8 u = load_unit(up + up_at + row * up_ld + p.column);
                    v[i][k] = round8_bf16(g * SIGMOID(g) * u);
                }
            }
        barrier(CLK_LOCAL_MEM_FENCE); /* the block before has been read */
#pragma unroll
        for (uint i = 0; i < PASSES; i++)
            put_rows(block, UNIT_ROW(i), UNIT_COLUMN, v[i][0], v[i][1]);
        barrier(CLK_LOCAL_MEM_FENCE);
        write_block(block, y + y_at, y_ld, p.row0, p.column0, (n_rows + 7) / 8 * 8, n_cols);
    }
}

/* d_gate and d_up may take the places of gate and up. Transposed: [2 n_cols, transposed_ld]. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
swiglu_transposed_backward(__global const ushort *gate, ulong gate_at, ulong gate_ld,
                       __global const ushort *up, ulong up_at, ulong up_ld,
                       __global const ushort *dy, ulong dy_at, ulong dy_ld,
                       __global ushort *d_gate, ulong d_gate_at, ulong d_gate_ld,
                       __global ushort *d_up, ulong d_up_at, ulong d_up_ld,
                       __global ushort *transposed, ulong transposed_at, ulong transposed_ld, ulong n_rows,
                       ulong n_cols)
{
    __local ushort gates[ROWS * COLUMNS] __attribute__((aligned(16)));
    __local ushort ups[ROWS * COLUMNS] __attribute__((aligned(16)));
    transposed += transposed_at;
    CLD_SHARE(piece, N_PIECES(n_rows, n_cols)) {
        const struct place p = place_of(piece, n_cols);
        ushort8 v[PASSES][2], w[PASSES][2];
#pragma unroll
        for (uint i = 0; i < PASSES; i++)
#pragma unroll
            for (uint k = 0; k < 2; k++) {
                const ulong row = p.row0 + UNIT_ROW(i) + k;
                v[i][k] = w[i][k] = 0;
                if (p.there && row < n_rows) {
                    float8 g = load_unit(gate + gate_at + row * gate_ld + p.column);
                    float8 u = load_unit(up + up_at + row * up_ld + p.column);
                    float8 d = load_unit(dy + dy_at + row * dy_ld + p.column);
                    float8 s = SIGMOID(g);
                    v[i][k] = round8_bf16(d * u * s * (1.0f + g * (1.0f - s)));
                    w[i][k] = round8_bf16(d * g * s);
                }
            }
#pragma unroll
        for (uint i = 0; i < PASSES; i++)
#pragma unroll
            for (uint k = 0; k < 2; k++) {
                const ulong row = p.row0 + UNIT_ROW(i) + k;
                if (p.there && row < n_rows) {
                    store_unit(d_gate + d_gate_at + row * d_gate_ld + p.column, v[i][k]);
                    store_unit(d_up + d_up_at + row * d_up_ld + p.column, w[i][k]);
                }
            }
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (uint i = 0; i < PASSES; i++) {
            put_rows(gates, UNIT_ROW(i), UNIT_COLUMN, v[i][0], v[i][1]);
            put_rows(ups, UNIT_ROW(i), UNIT_COLUMN, w[i][0], w[i][1]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        const ulong n = (n_rows + 7) / 8 * 8;
        write_block(gates, transposed, transposed_ld, p.row0, p.column0, n, n_cols);
        write_block(ups, transposed + n_cols * transposed_ld, transposed_ld, p.row0, p.column0, n, n_cols);
    }
}
