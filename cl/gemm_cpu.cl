/* gemm_cpu.cl - GEMM for CPU devices: C = op(A) op(B) (+ bias) (+ R).
 *
 * One work-item computes blocks of MR rows x 16 NV columns in registers: for each of the k steps
 * MR broadcasts and NV vectors of 16. Groups have one item and no barrier; local memory, which on
 * a CPU is a few pages that stay in the core's caches, holds both operands in the order of use.
 *
 * A piece of work is a range of rows by a group of panels, a panel being 16 NV columns. Within it
 * k goes slice by slice (kc steps): the slice of A for the whole range is laid out for an L2, then
 * the slices of a few panels of B; each fits an L1 and goes down the rows of the range.
 * Between slices, always in order, a block's sums rest in `sums`. Laying out costs about as
 * much as eight more rows and columns; it makes one layout of all storages and kinds, and it is
 * what strides of powers of two need, whose rows fight for the same lines of a cache. */
#include "common.clh"

#ifndef MR
#define MR 6 /* 12 on machines with 32 vector registers */
#endif
#ifndef NV
#define NV 1 /* 2 where a register holds 16 floats */
#endif
#ifndef TA
#define TA f32 /* storage of A */
#endif
#ifndef A_ROWS
#define A_ROWS 1 /* 1: A is [m, k]; 0: [k, m] */
#endif
#ifndef TB
#define TB f32 /* storage of B */
#endif
#ifndef B_ROWS
#define B_ROWS 1 /* 1: B is [n, k]; 0: [k, n] */
#endif
#include "gemm_out.clh"

#include "gemm_pack.clh"

#define NR (16 * NV)
#define N_ASKED 2 /* steps of the next panels that are asked for before a block */
#define FLAGS(T, rows) (((rows) ? PACK_ROWS : 0) | (sizeof(CLD_ELEM(T)) == 2 ? PACK_BF16 : 0))

struct out {
    ulong m, n;
    __global CLD_ELEM(TC) *c;
    ulong ld;
    __global const CLD_ELEM(TBIAS) *bias; /* NULL: none */
    __global const CLD_ELEM(TR) *r;       /* NULL: none */
    ulong r_ld;
};

/* sum += a strip of A, [n_steps, MR], times a panel, [n_steps, NR]. */
static inline void multiply(float16 sum[MR][NV], __local const float *a, __local const float *panel,
                            uint n_steps)
{
#pragma unroll 4
    for (uint i = 0; i < n_steps; i++, a += MR, panel += NR) {
        float16 column[NV];
#pragma unroll
        for (int v = 0; v < NV; v++)
            column[v] = vload16(v, panel);
#pragma unroll
        for (int row = 0; row < MR; row++) {
            float16 x = (float16)(a[row]);
#pragma unroll
            for (int v = 0; v < NV; v++)
                sum[row][v] = fma(x, column[v], sum[row][v]);
        }
    }
}

/* A block that lies whole inside C. */
static inline void store_whole(const struct out *o, float16 sum[MR][NV], ulong row, ulong column)
{
#pragma unroll
    for (int i = 0; i < MR; i++)
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

/* A block at the edge of C: only the part inside is stored. */
static inline void store_part(const struct out *o, const float *sum, ulong row, ulong column)
{
    for (ulong i = row; i < min(row + MR, o->m); i++)
        for (ulong j = column; j < min(column + NR, o->n); j++) {
            float x = sum[(i - row) * NR + j - column];
            if (o->bias)
                x += CLD_LOAD(TBIAS, o->bias, j);
            if (o->r)
                x += CLD_LOAD(TR, o->r, i * o->r_ld + j);
            CLD_STORE(TC, x, o->c, i * o->ld + j);
        }
}

/* Prefetches the begin of the next block and the end of this one during the steps. */
static inline void ask(const struct out *o, bool last, __global const float *rest, ulong row,
                           ulong column)
{
#pragma unroll
    for (int i = 0; i < MR * NV; i++)
        CLD_PREFETCH(rest + (MR * NV + i) * 16);
    if (last)
#pragma unroll
        for (int i = 0; i < MR; i++)
#pragma unroll
            for (int v = 0; v < NV; v++)
                CLD_PREFETCH(o->c + (row + i) * o->ld + column + 16 * v);
}

/* One block: `n_steps` more steps of k on top of what rests (unless `first`); then the sums rest
 * again, or (`last`) become a part of C. */
static inline void block(const struct out *o, __local const float *strip,
                         __local const float *panel, uint n_steps, bool first, bool last,
                         __global float *rest, ulong row, ulong column)
{
    float16 sum[MR][NV];
    ask(o, last, rest, row, column);
#pragma unroll
    for (int i = 0; i < MR * NV; i++)
        sum[i / NV][i % NV] = first ? (float16)(0) : vload16(i, rest);
    multiply(sum, strip, panel, n_steps);
    if (!last) {
#pragma unroll
        for (int i = 0; i < MR * NV; i++)
            vstore16(sum[i / NV][i % NV], i, rest);
    } else if (row + MR <= o->m && column + NR <= o->n) {
        store_whole(o, sum, row, column);
    } else {
        float part[MR * NR];
#pragma unroll
        for (int i = 0; i < MR * NV; i++)
            vstore16(sum[i / NV][i % NV], i, part);
        store_part(o, part, row, column);
    }
}

/* `strips` holds a strip of kc steps for each block of a range, `panels` n_together panels. */
__kernel void gemm_cpu(ulong m, ulong n, ulong k, ulong kc, ulong n_ranges, ulong n_groups,
                       ulong n_together, __global const uchar *a, ulong a_at, ulong a_ld,
                       __global const uchar *b, ulong b_at, ulong b_ld,
                       __global CLD_ELEM(TC) *c, ulong c_at, ulong c_ld,
                       __global const CLD_ELEM(TBIAS) *bias, ulong bias_at,
                       __global const CLD_ELEM(TR) *r, ulong r_at, ulong r_ld,
                       __global float *sums, __local float *strips, __local float *panels)
{
    struct out o = {m, n, c + c_at, c_ld, bias ? bias + bias_at : bias, r ? r + r_at : r, r_ld};
    ulong n_blocks = (m + MR - 1) / MR, n_panels = (n + NR - 1) / NR;
    CLD_SHARE(piece, n_ranges * n_groups) {
        ulong range = piece / n_groups, group = piece % n_groups;
        ulong i_begin = n_blocks * range / n_ranges, i_end = n_blocks * (range + 1) / n_ranges;
        ulong j_begin = n_panels * group / n_groups, j_end = n_panels * (group + 1) / n_groups;
        for (ulong done = 0; done < k; done += kc) {
            uint n_steps = (uint)min(kc, k - done);
            pack(a, a_at, a_ld, FLAGS(TA, A_ROWS), m, i_begin * MR, min(i_end * MR, m), MR, done,
                 n_steps, strips);
            for (ulong j = j_begin; j < j_end; j += n_together) {
                ulong next = min(j + n_together, j_end), after = min(next + n_together, j_end);
                uint asked = 0;
                pack(b, b_at, b_ld, FLAGS(TB, B_ROWS), n, j * NR, min(next * NR, n), NR, done,
                     n_steps, panels);
                for (ulong panel = j; panel < next; panel++)
                    for (ulong i = i_begin; i < i_end; i++, asked += N_ASKED) {
                        if (next < after)
                            pack_ask(b, b_at, b_ld, FLAGS(TB, B_ROWS), next * NR,
                                     min(after * NR, n), done, n_steps, asked, asked + N_ASKED);
                        block(&o, strips + (i - i_begin) * PACK_STRIP(MR, n_steps),
                              panels + (panel - j) * PACK_STRIP(NR, n_steps), n_steps, !done,
                              done + n_steps == k, sums + (panel * n_blocks + i) * (MR * NR),
                              i * MR, panel * NR);
                    }
            }
        }
    }
}
