/* gemm_cpu.cl - matrix product for CPU devices: C = op(A) op(B) (+ bias) (+ R).
 *
 * One work-item computes blocks of MR rows x 16 NV columns in registers: for each of the k steps MR
 * broadcasts and NV vectors of 16, no local memory, no barrier. op(B) is read as strips, vectors of
 * a strip b_ld elements apart; op(A) as rows (A_ROWS: MR streams along k) or as strips too. Strips
 * are the operand itself, where its layout allows, or a copy made by gemm_pack.cl.
 *
 * Edges of operands in place: the last block moves back inside the matrix (a_last, b_last) and what
 * it computes twice is stored once. Packed operands have zeros there.
 *
 * k is cut in slices of kc steps, always in this order; between slices a block's sums rest in
 * `sums`. A piece of work is a group of blocks that shares slices of A in a core's L2. */
#include "common.clh"

#ifndef MR
#define MR 6 /* 12 on machines with 32 vector registers */
#endif
#ifndef NV
#define NV 1 /* 2 where a register holds 16 floats */
#endif
#ifndef A_ROWS
#define A_ROWS 0 /* 1: A [m, k] in place; 0: strips */
#endif
#ifndef TC
#define TC f32 /* storage of C */
#endif
#ifndef TR
#define TR f32 /* storage of R */
#endif
#ifndef TBIAS
#define TBIAS f32 /* storage of the bias */
#endif

#define NR (16 * NV)

struct out {
    ulong m, n;
    __global CLD_ELEM(TC) *c;
    ulong ld;
    __global const CLD_ELEM(TBIAS) *bias; /* NULL: none */
    __global const CLD_ELEM(TR) *r;       /* NULL: none */
    ulong r_ld;
};

static inline void multiply(float16 sum[MR][NV], __global const float *a, ulong a_ld,
                            __global const float *b, ulong b_ld, uint n_steps)
{
    for (uint i = 0; i < n_steps; i++) {
        float16 column[NV];
#pragma unroll
        for (int v = 0; v < NV; v++)
            column[v] = vload16(v, b);
#pragma unroll
        for (int row = 0; row < MR; row++) {
            float16 x = (float16)(A_ROWS ? a[row * a_ld] : a[row]);
#pragma unroll
            for (int v = 0; v < NV; v++)
                sum[row][v] = fma(x, column[v], sum[row][v]);
        }
        a += A_ROWS ? 1 : a_ld;
        b += b_ld;
    }
}

/* A block that lies whole inside C. */
static inline void store_whole(const struct out *o, float16 sum[MR][NV], ulong row, ulong column)
{
#pragma unroll
    for (int i = 0; i < MR; i++) {
#pragma unroll
        for (int v = 0; v < NV; v++) {
            float16 x = sum[i][v];
            ulong at = column + 16 * v;
            if (o->bias)
                x += CLD_LOAD16(TBIAS, o->bias, at);
            if (o->r)
                x += CLD_LOAD16(TR, o->r, (row + i) * o->r_ld + at);
            CLD_STORE16(TC, x, o->c, (row + i) * o->ld + at);
        }
    }
}

/* A block at (row, column) of which only [row_begin, m) x [column_begin, n) is to be stored. */
static void store_part(const struct out *o, const float *sum, ulong row, ulong column,
                       ulong row_begin, ulong column_begin)
{
    for (ulong i = row_begin; i < min(row + MR, o->m); i++)
        for (ulong j = column_begin; j < min(column + NR, o->n); j++) {
            float x = sum[(i - row) * NR + j - column];
            if (o->bias)
                x += CLD_LOAD(TBIAS, o->bias, j);
            if (o->r)
                x += CLD_LOAD(TR, o->r, i * o->r_ld + j);
            CLD_STORE(TC, x, o->c, i * o->ld + j);
        }
}

/* A block i starts at line min(i * MR, a_last) of op(A), a_step elements a line; likewise B. */
__kernel void gemm_cpu(ulong m, ulong n, ulong k, ulong kc, __global const float *a, ulong a_at,
                       ulong a_ld, ulong a_step, ulong a_last, __global const float *b, ulong b_at,
                       ulong b_ld, ulong b_step, ulong b_last, __global CLD_ELEM(TC) *c, ulong c_at,
                       ulong c_ld, __global const CLD_ELEM(TBIAS) *bias, ulong bias_at,
                       __global const CLD_ELEM(TR) *r, ulong r_at, ulong r_ld,
                       __global float *sums, ulong sums_at, ulong n_down, ulong n_across)
{
    struct out o = {m, n, c + c_at, c_ld, bias ? bias + bias_at : bias, r ? r + r_at : r, r_ld};
    ulong rows = (m + MR - 1) / MR, columns = (n + NR - 1) / NR; /* in blocks */
    CLD_SHARE(piece, n_down * n_across) {
        ulong down = piece % n_down, across = piece / n_down;
        ulong i_end = rows * (down + 1) / n_down, j_end = columns * (across + 1) / n_across;
        for (ulong done = 0; done < k; done += kc) {
            uint n_steps = (uint)min(kc, k - done);
            for (ulong j = columns * across / n_across; j < j_end; j++) {
                ulong column = min(j * NR, b_last);
                __global const float *bp = b + b_at + column * b_step + done * b_ld;
                for (ulong i = rows * down / n_down; i < i_end; i++) {
                    ulong row = min(i * MR, a_last);
                    __global const float *ap =
                        a + a_at + row * a_step + done * (A_ROWS ? 1 : a_ld);
                    __global float *rest = sums + sums_at + (j * rows + i) * (MR * NR);
                    float16 sum[MR][NV];
#pragma unroll
                    for (int l = 0; l < MR * NV; l++)
                        sum[l / NV][l % NV] = done ? vload16(l, rest) : (float16)(0);
                    multiply(sum, ap, a_ld, bp, b_ld, n_steps);
                    if (done + n_steps < k) {
#pragma unroll
                        for (int l = 0; l < MR * NV; l++)
                            vstore16(sum[l / NV][l % NV], l, rest);
                    } else if (row == i * MR && column == j * NR && row + MR <= m &&
                               column + NR <= n) {
                        store_whole(&o, sum, row, column);
                    } else {
                        float part[MR * NR];
#pragma unroll
                        for (int l = 0; l < MR * NV; l++)
                            vstore16(sum[l / NV][l % NV], l, part);
                        store_part(&o, part, row, column, i * MR, j * NR);
                    }
                }
            }
        }
    }
}
