/* attention_fwd_tensor.cl - o and lse on NVIDIA's tensor cores. Arguments as in
 * attention_fwd_cpu.cl. Tiles of keys and of values pass through a ring of three. Wide heads
 * have one place for keys and one for values, and their query rows in local memory. */
#include "attention_tensor.clh"

#ifndef TRANSPOSED
#define TRANSPOSED 0 /* 1: o is [columns of all heads, query rows], for the GEMM that reads it */
#endif

/* Powers of two by which scores may pass what they are measured from: sums are multiplied when that
 * moves, so it moves seldom, and float and bf16 are as exact for large weights. */
#define SLACK 8.0f

/* Scores of row r (0 or 1) to weights 2^(c (s - top)), and the lane's `sum` of weights moves on.
 * `top` is a score that was met, -INFINITY where none was; those are measured from 0. Returns what
 * sums so far are to be multiplied with, which is 1 where `top` did not move. */
static inline float weigh(float s[BT / 8][4], uint r, float c, float *top, float *sum)
{
    float high = -INFINITY, more = 0.0f, keep = 1.0f;
#pragma unroll
    for (uint j = 0; j < BT / 8; j++)
        high = fmax(high, fmax(s[j][2 * r], s[j][2 * r + 1]));
    high = quad_max(high);
    if ((high - *top) * c > SLACK) {
        keep = exp2_approx((*top - high) * c);
        *top = high;
    }
    float base = *top == -INFINITY ? 0.0f : *top * c;
#pragma unroll
    for (uint j = 0; j < BT / 8; j++) {
        s[j][2 * r] = exp2_approx(fma(s[j][2 * r], c, -base));
        s[j][2 * r + 1] = exp2_approx(fma(s[j][2 * r + 1], c, -base));
        more += s[j][2 * r] + s[j][2 * r + 1];
    }
    *sum = fma(*sum, keep, more);
    return keep;
}

static inline void scale_sums(float sums[W / 8][4], float by0, float by1)
{
#pragma unroll
    for (uint i = 0; i < W / 8; i++) {
        sums[i][0] *= by0;
        sums[i][1] *= by0;
        sums[i][2] *= by1;
        sums[i][3] *= by1;
    }
}

static inline float inverse(float sum)
{
    return sum != 0.0f ? 1.0f / sum : 0.0f;
}

static inline void store_lse(float top, float sum, float scale, __global float *lse)
{
    if (lane_of() % 4 == 0)
        *lse = sum != 0.0f ? fma(top, scale, log(sum)) : 0.0f;
}

/* A warp's rows times their factors to transposed o, from the warp's first row and head on. */
static inline void store_transposed(float sums[W / 8][4], float by0, float by1, bool there,
                                __global ushort *o, ulong ld)
{
    o += lane_of() / 4 * ld + transposed_row();
#pragma unroll
    for (uint i = 0; i < D / 8; i++) {
        const uint2 t = transpose_rows(pack_bf16(sums[i][0] * by0, sums[i][1] * by0),
                                  pack_bf16(sums[i][2] * by1, sums[i][3] * by1));
        if (there)
            *(__global uint2 *)(o + 8 * i * ld) = t;
    }
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void attention_fwd_tensor(
    __global const ushort *q, ulong q_at, ulong q_ld, __global const ushort *k, ulong k_at,
    ulong k_ld, __global const ushort *v, ulong v_at, ulong v_ld, __global ushort *o, ulong o_at,
    ulong o_ld, __global float *lse, ulong lse_at, ulong lse_ld, __global const int *mask,
    ulong spans_at, ulong ptr_at, ulong list_at, __global int *visited, ulong visited_at, int n_q,
    int n_keys, ulong group, float scale, ulong n_pieces)
{
    __local uchar tiles[DECLARED(3 * TILE_BYTES)] __attribute__((aligned(1024)));
    uint base = local_address(tiles), own = own_row();
    float c = scale * M_LOG2E_F;
    q += q_at;
    CLD_SHARE (p, n_pieces) {
        struct piece at = piece_at(p, n_pieces, n_q, group);
        bool real0 = is_row(at, own, n_q), real1 = is_row(at, own + 8, n_q);
        __global const ushort *keys = k + k_at + at.kv_head * D;
        __global const ushort *values = v + v_at + at.kv_head * D;
        __global const int *next = mask + list_at + mask[ptr_at + at.tile];
        __global const int *end = mask + list_at + mask[ptr_at + at.tile + 1];
        float sums[W / 8][4], s[BT / 8][4], top0 = -INFINITY, top1 = -INFINITY, sum0 = 0, sum1 = 0;
        uint4 weights[BT / 16];
        uint slot = 0; /* of the tile's keys; values and the next keys follow */
        /* Of the list: what is at work and what comes after it. */
        int n_visited = 0, entry = next < end ? *next++ : -1, after = next < end ? *next++ : -1;
        barrier(CLK_LOCAL_MEM_FENCE); /* the tiles of the piece before are free */
#if WIDE
        uint rows = base + 2 * TILE_BYTES;
        fetch_rows(rows, ROWS, q, q_ld, at, 0, n_q);
#endif
        if (entry >= 0)
            fetch_keys(base, KT, keys, k_ld, entry / 2 * KT, n_keys);
        commit_copies();
        if (entry >= 0)
            fetch_keys(base + TILE_BYTES, KT, values, v_ld, entry / 2 * KT, n_keys);
        commit_copies();
#if !WIDE
        uint4 rows[W / 16];
        load_operand(rows, q + (real0 ? place_of(at, own, q_ld) : 0), real0,
                     q + (real1 ? place_of(at, own + 8, q_ld) : 0), real1);
#endif
        clear(sums);
        while (entry >= 0) {
            int k0 = entry / 2 * KT;
            WAIT_COPIES(1);
            ready();
#if WIDE
            uint values_at = base + TILE_BYTES;
            begin_tile(s, rows, base);
            int later = next < end ? *next++ : -1;
            wait_scores(s);
            barrier(CLK_LOCAL_MEM_FENCE); /* the keys are used */
            if (after >= 0)
                fetch_keys(base, KT, keys, k_ld, after / 2 * KT, n_keys);
            commit_copies();
#else
            uint values_at = base + (slot == 2 ? 0 : slot + 1) * TILE_BYTES;
            uint slot2 = slot == 0 ? 2 : slot - 1;
            begin_rows(s, rows, base + slot * TILE_BYTES);
            if (after >= 0)
                fetch_keys(base + slot2 * TILE_BYTES, KT, keys, k_ld, after / 2 * KT, n_keys);
            commit_copies();
            int later = next < end ? *next++ : -1;
            wait_scores(s);
#endif
            if (!(entry & 1))
                hide_keys(s, -INFINITY, load_span(mask + spans_at, real0, row_of(at, own)),
                          load_span(mask + spans_at, real1, row_of(at, own + 8)), k0);
            float keep0 = weigh(s, 0, c, &top0, &sum0), keep1 = weigh(s, 1, c, &top1, &sum1);
#pragma unroll
            for (uint i = 0; i < BT / 16; i++)
                weights[i] = pack_operand(s + 2 * i);
            if (keep0 != 1.0f || keep1 != 1.0f)
                scale_sums(sums, keep0, keep1);
            WAIT_COPIES(1);
            ready();
#if WIDE
            begin_sums(sums, weights, values_at);
            wait_sums(sums);
            barrier(CLK_LOCAL_MEM_FENCE); /* the values are used */
            if (after >= 0)
                fetch_keys(values_at, KT, values, v_ld, after / 2 * KT, n_keys);
            commit_copies();
#else
            if (after >= 0)
                fetch_keys(base + slot * TILE_BYTES, KT, values, v_ld, after / 2 * KT, n_keys);
            commit_copies();
            begin_sums(sums, weights, values_at);
            wait_sums(sums);
            slot = slot2;
#endif
            entry = after;
            after = later;
            n_visited++;
        }
        WAIT_COPIES(0);
        sum0 = quad_sum(sum0);
        sum1 = quad_sum(sum1);
        float by0 = inverse(sum0), by1 = inverse(sum1);
#if TRANSPOSED
        uint first = get_local_id(0) / 32 * 16, row = row_of(at, first);
        store_transposed(sums, real0 ? by0 : 0.0f, real1 ? by1 : 0.0f,
                     first / QT < at.n_heads && row + transposed_row() < ((uint)n_q + 7) / 8 * 8,
                     o + o_at + (at.head + first / QT) * D * o_ld + row, o_ld);
#else
        if (real0)
            store_sums(sums, 0, by0, o + o_at + place_of(at, own, o_ld));
        if (real1)
            store_sums(sums, 1, by1, o + o_at + place_of(at, own + 8, o_ld));
#endif
        if (real0)
            store_lse(top0, sum0, scale,
                      lse + lse_at + (at.head + own / QT) * lse_ld + row_of(at, own));
        if (real1)
            store_lse(top1, sum1, scale,
                      lse + lse_at + (at.head + (own + 8) / QT) * lse_ld + row_of(at, own + 8));
        if (visited && at.head == 0 && get_local_id(0) == 0)
            atomic_add(visited + visited_at, n_visited);
    }
}
