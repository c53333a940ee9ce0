/* cross_entropy_transposed.cl - the gradient of cross-entropy, (softmax - onehot) * weight, written
 * transposed, as tensor cores read it: G [n_cols, n_rows] bf16 of logits Z [n_rows, n_cols] f32.
 *
 * A row's log-sum-exp is its loss and the logit of its label, both known from cross_entropy.cl. A
 * piece of work is a strip of STRIP blocks (transposed_block.clh) of the same rows, for which those are
 * found once. The exponential is the device's own, whose error rounding hides. */
#include "common.clh"
#include "transposed_block.clh"

#ifndef Z_ALIGNED
#define Z_ALIGNED 0 /* 1: begin and ld of Z are multiples of 4 elements */
#endif
#define STRIP 8 /* as in op_loss.c */

#if CLD_CPU
#define EXP exp
#else
#define EXP native_exp
#endif

struct row {
    float lse, weight;
    uint label;
};

#define ROW_PARAMETERS                                                                            \
    __global const float *z, ulong z_ld, __global const int *labels,                              \
        __global const float *weights, __global const float *loss, ulong n_rows, ulong n_cols
#define ROW_ARGUMENTS z, z_ld, labels, weights, loss, n_rows, n_cols

/* The host keeps labels in [0, n_cols); a wrong one is clamped, never followed. Rows that do not
 * exist have no weight. */
static inline struct row read_row(ulong r, ROW_PARAMETERS)
{
    struct row row = {0.0f, 0.0f, 0};
    if (r < n_rows) {
        row.label = (uint)min((ulong)max(labels[r], 0), n_cols - 1);
        row.weight = weights[r];
        row.lse = loss[r] + z[r * z_ld + row.label];
    }
    return row;
}

static inline float gradient(float z, struct row row, uint column)
{
    float p = EXP(z - row.lse) - (row.label == column ? 1.0f : 0.0f);
    return row.weight != 0.0f ? p * row.weight : 0.0f;
}

/* Eight columns from an aligned address on. */
static inline ushort8 gradient8(float8 z, struct row row, uint column)
{
    float8 p = EXP(z - row.lse);
    if (row.label - column < 8) { /* unsigned: label >= column too */
        int8 mine = (int8)(0, 1, 2, 3, 4, 5, 6, 7) == (int8)((int)(row.label - column));
        p -= select((float8)(0.0f), (float8)(1.0f), mine);
    }
    return round8_bf16(row.weight != 0.0f ? p * row.weight : (float8)(0.0f));
}

static inline float8 load_row(__global const float *p)
{
    __global const float4 *v = (__global const float4 *)p;
    return (float8)(v[0], v[1]);
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
cross_entropy_transposed(__global const float *z, ulong z_at, ulong z_ld, __global ushort *g,
                     ulong g_at, ulong g_ld, __global const int *labels, ulong labels_at,
                     __global const float *weights, ulong weights_at, __global const float *loss,
                     ulong loss_at, ulong n_rows, ulong n_cols)
{
    __local ushort block[ROWS * COLUMNS] __attribute__((aligned(16)));
    const uint strips = (uint)((n_cols + STRIP * COLUMNS - 1) / (STRIP * COLUMNS));
    z += z_at;
    g += g_at;
    labels += labels_at;
    weights += weights_at;
    loss += loss_at;
    CLD_SHARE(piece, (n_rows + ROWS - 1) / ROWS * strips) {
        const uint down = (uint)piece / strips;
        const ulong row0 = (ulong)down * ROWS;
        const ulong first = (ulong)((uint)piece - down * strips) * STRIP * COLUMNS;
        const ulong end = min(first + STRIP * COLUMNS, n_cols);
        struct row rows[PASSES][2];
#pragma unroll
        for (uint i = 0; i < PASSES; i++)
            for (uint k = 0; k < 2; k++)
                rows[i][k] = read_row(row0 + UNIT_ROW(i) + k, ROW_ARGUMENTS);
        for (ulong column0 = first; column0 < end; column0 += COLUMNS) {
            if (Z_ALIGNED && column0 + COLUMNS <= n_cols) {
                const uint column = (uint)column0 + UNIT_COLUMN;
                float8 v[PASSES][2];
#pragma unroll
                for (uint i = 0; i < PASSES; i++)
                    for (uint k = 0; k < 2; k++)
                        v[i][k] = load_row(z + min(row0 + UNIT_ROW(i) + k, n_rows - 1) * z_ld +
                                           column);
                barrier(CLK_LOCAL_MEM_FENCE); /* the block before has been read */
#pragma unroll
                for (uint i = 0; i < PASSES; i++)
                    put_rows(block, UNIT_ROW(i), UNIT_COLUMN,
                             gradient8(v[i][0], rows[i][0], column),
                             gradient8(v[i][1], rows[i][1], column));
            } else {
                barrier(CLK_LOCAL_MEM_FENCE);
                for (uint i = get_local_id(0); i < ROWS * COLUMNS; i += GROUP) {
                    const uint r = i / COLUMNS, c = i % COLUMNS;
                    const bool there = row0 + r < n_rows && column0 + c < n_cols;
                    struct row row = read_row(row0 + r, ROW_ARGUMENTS);
                    float v = there ? z[(row0 + r) * z_ld + column0 + c] : 0.0f;
                    put_one(block, r, c,
                            there ? round_bf16(gradient(v, row, (uint)(column0 + c))) : 0);
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            write_block(block, g, g_ld, row0, column0, (n_rows + 7) / 8 * 8, n_cols);
        }
    }
}
