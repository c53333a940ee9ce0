/* attention_dkv_tensor.cl - d_k and d_v on NVIDIA's tensor cores. A work-group owns the keys of one
 * tile of one KV head and adds up, in a fixed order, what the query rows that see it contribute.
 * Where there are few tiles, long lists are cut in n_splits: the work-groups of a tile leave their
 * sums in `partial`, and the last of them, whichever it is, adds all up in the same order.
 * Arguments as in attention_dkv_cpu.cl, except the last; attention_dq_tensor.cl explains the stats.
 * GEMMs are transposed: keys are rows, query rows pass through local memory 32 at a time, while the
 * next 32 come. The work-group's keys lie in local memory, its values in registers.
 * Wide heads have no registers for both sums, so that one run of the kernel makes d_k, another d_v;
 * their values lie in local memory, and rows of d_o have one place there when d_k is made. */
#define BT 32
#include "attention_tensor.clh"

#ifndef MAKES
#define MAKES 3 /* 1: d_k, 2: d_v, 3: both; 1 or 2 for wide heads */
#endif
#define MAKES_K (MAKES & 1)
#define MAKES_V (MAKES / 2)
#define SPLIT_MIN 32 /* a list of so many tiles is cut */
#define HALVES    (ROWS / BT) /* of a piece's rows */

/* A step of the work: BT query rows of a piece, from row `begin` on. */
struct step {
    __global const int *next, *end; /* of the list of query tiles */
    int entry, after; /* the query tile at work, and the one after it; < 0: none, all is done */
    uint part, begin;
};

static inline void next_step(struct step *s, uint n_parts)
{
    s->begin += BT;
    if (s->begin < ROWS)
        return;
    s->begin = 0;
    if (++s->part < n_parts)
        return;
    s->part = 0;
    s->entry = s->after;
    s->after = s->next < s->end ? *s->next++ : -1;
}

static inline struct piece piece_of(struct step s, uint kv_head, uint n_kv_heads, ulong group)
{
    struct piece at;
    uint n_parts = n_parts_of(group);
    at.tile = (uint)s.entry / 2;
    at.kv_head = kv_head;
    at.head = kv_head * (uint)group + s.part * HG;
    at.n_heads = min((uint)HG, (uint)group - s.part * HG);
    at.index = (at.tile * n_kv_heads + kv_head) * n_parts + s.part;
    return at;
}

/* Transposed scores to weights: zero where the query row does not see the key. st: (log-sum-exp,
 * delta) of this work-item's pairs of columns. */
static inline void weigh(float s[BT / 8][4], float c, const float4 st[BT / 8])
{
#pragma unroll
    for (uint j = 0; j < BT / 8; j++)
#pragma unroll
        for (uint e = 0; e < 4; e++)
            s[j][e] = exp2_approx(fma(s[j][e], c, -(e % 2 ? st[j].z : st[j].x)));
}

static inline void mask_weights(float s[BT / 8][4], __global const int *spans, struct piece at,
                                uint begin, int n_q, int key)
{
#pragma unroll
    for (uint j = 0; j < BT / 8; j++)
#pragma unroll
        for (uint e = 0; e < 2; e++) {
            uint i = begin + 8 * j + lane_of() % 4 * 2 + e;
            int4 span = load_span(spans, is_row(at, i, n_q), row_of(at, i));
            if (!sees(span, key))
                s[j][e] = 0.0f;
            if (!sees(span, key + 8))
                s[j][e + 2] = 0.0f;
        }
}

/* Sums of this work-item to and from partial sums [n_splits][2][W / 8][GROUP]. */
static inline void leave_sums(float sums[W / 8][4], __global float4 *to)
{
#pragma unroll
    for (uint i = 0; i < W / 8; i++)
        to[i * GROUP + get_local_id(0)] =
            (float4)(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
}

static inline void add_sums(float sums[W / 8][4], __global const volatile float4 *from)
{
#pragma unroll
    for (uint i = 0; i < W / 8; i++) {
        float4 v = from[i * GROUP + get_local_id(0)];
        sums[i][0] += v.x;
        sums[i][1] += v.y;
        sums[i][2] += v.z;
        sums[i][3] += v.w;
    }
}

#define PART (W / 8 * GROUP) /* float4 of a work-group's sums of one kind */

/* Joins the sums of a tile's n_splits work-groups; true in the last one, which has them then.
 * partial: the tile's. `last`: local memory that is free. */
static inline bool join_sums(float k_sums[W / 8][4], float v_sums[W / 8][4], uint split,
                             uint n_splits, __global float4 *partial, __global uint *counter,
                             __local uint *last)
{
    if (MAKES_K)
        leave_sums(k_sums, partial + 2 * split * PART);
    if (MAKES_V)
        leave_sums(v_sums, partial + (2 * split + 1) * PART);
    global_fence();
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (get_local_id(0) == 0)
        *last = atomic_inc(counter) + 1 == n_splits;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!*last)
        return false;
    global_fence();
    clear(k_sums);
    clear(v_sums);
    for (uint i = 0; i < n_splits; i++) {
        if (MAKES_K)
            add_sums(k_sums, partial + 2 * i * PART);
        if (MAKES_V)
            add_sums(v_sums, partial + (2 * i + 1) * PART);
    }
    return true;
}

/* The work-group's keys, its values if they lie in local memory, and two stages of rows of q and
 * d_o; or of q alone and a place for d_o. */
#define VALUES_BYTES (WIDE && MAKES_K ? OWN_BYTES : 0)
#define N_ROWS_TILES (WIDE && MAKES_K ? 3 : 4)
#define LOCAL_BYTES  (OWN_BYTES + VALUES_BYTES + N_ROWS_TILES * TILE_BYTES)

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void attention_dkv_tensor(
    __global const ushort *q, ulong q_at, ulong q_ld, __global const ushort *k, ulong k_at,
    ulong k_ld, __global const ushort *v, ulong v_at, ulong v_ld, __global const int *mask,
    ulong spans_at, ulong ptr_at, ulong list_at, __global int *visited, ulong visited_at, int n_q,
    int n_keys, ulong group, float scale, ulong n_pieces, __global const ushort *d_o, ulong d_o_at,
    ulong d_o_ld, __global ushort *d_k, ulong d_k_at, ulong d_k_ld, __global ushort *d_v,
    ulong d_v_at, ulong d_v_ld, __global const float2 *stats,
    __global uint *counters, ulong counters_at, __global float4 *partial, ulong partial_at,
    ulong n_splits)
{
    __local uchar tiles[DECLARED(LOCAL_BYTES)] __attribute__((aligned(1024)));
    uint keys_tile = local_address(tiles), own = own_row(), n_parts = n_parts_of(group);
    uint n_tiles = ((uint)n_keys + KT - 1) / KT, n_columns = (uint)(n_pieces / n_tiles);
    uint n_kv_heads = n_columns / (uint)n_splits;
    float c = scale * M_LOG2E_F;
    q += q_at;
    d_o += d_o_at;
    CLD_SHARE (p, n_pieces) {
        uint tile = (uint)p / n_columns, column = (uint)p % n_columns; /* early: long lists */
        uint kv_head = column % n_kv_heads, split = column / n_kv_heads;
        uint begin = mask[ptr_at + tile], n_listed = mask[ptr_at + tile + 1] - begin;
        bool is_cut = n_splits > 1 && n_listed >= SPLIT_MIN;
        if (!is_cut && split > 0)
            continue;
        int k0 = (int)tile * KT, key = k0 + (int)own, n_visited = 0;
        bool real0 = key < n_keys, real1 = key + 8 < n_keys;
        __global const ushort *values = v + v_at + kv_head * D;
        float k_sums[W / 8][4], v_sums[W / 8][4], s[BT / 8][4], t[BT / 8][4];
        uint4 weights[BT / 16];
        uint stage = keys_tile + OWN_BYTES + VALUES_BYTES;
        uint d_stage = stage + TILE_BYTES, other = d_stage + TILE_BYTES;
        struct step now, next;
        next.next = mask + list_at + begin + (is_cut ? n_listed * split / (uint)n_splits : 0);
        next.end = mask + list_at + begin +
                   (is_cut ? n_listed * (split + 1) / (uint)n_splits : n_listed);
        next.entry = next.next < next.end ? *next.next++ : -1;
        next.after = next.next < next.end ? *next.next++ : -1;
        next.part = next.begin = 0;
        barrier(CLK_LOCAL_MEM_FENCE); /* the tiles of the piece before are free */
        fetch_keys(keys_tile, KT, k + k_at + kv_head * D, k_ld, k0, n_keys);
        if (next.entry >= 0) {
            struct piece at = piece_of(next, kv_head, n_kv_heads, group);
            fetch_rows(stage, BT, q, q_ld, at, next.begin, n_q);
            fetch_rows(d_stage, BT, d_o, d_o_ld, at, next.begin, n_q);
        }
#if WIDE
        uint values_tile = keys_tile + OWN_BYTES;
        if (MAKES_K)
            fetch_keys(values_tile, KT, values, v_ld, k0, n_keys);
        commit_copies();
#else
        uint4 rows[W / 16];
        commit_copies();
        load_operand(rows, values + (real0 ? (ulong)key * v_ld : 0), real0,
                     values + (real1 ? (ulong)(key + 8) * v_ld : 0), real1);
#endif
        clear(k_sums);
        clear(v_sums);
        while (next.entry >= 0) {
            now = next;
            struct piece at = piece_of(now, kv_head, n_kv_heads, group);
            float4 st[BT / 8];
            __global const float2 *from = stats + (ulong)at.index * ROWS + now.begin;
            WAIT_COPIES(0);
            ready();
            begin_tile(s, keys_tile, stage);
#if !WIDE
            begin_rows(t, rows, d_stage);
#elif MAKES_K
            begin_tile(t, values_tile, d_stage);
#endif
#pragma unroll
            for (uint j = 0; j < BT / 8; j++)
                st[j] = *(__global const float4 *)(from + 8 * j + lane_of() % 4 * 2);
            next_step(&next, n_parts);
            struct piece to_come = piece_of(next, kv_head, n_kv_heads, group);
            if (next.entry >= 0) {
                fetch_rows(other, BT, q, q_ld, to_come, next.begin, n_q);
                if (N_ROWS_TILES == 4)
                    fetch_rows(other + TILE_BYTES, BT, d_o, d_o_ld, to_come, next.begin, n_q);
                commit_copies();
            }
            if (WIDE && !MAKES_K)
                wait_scores(s);
            else
                wait_first(s);
            weigh(s, c, st);
            if (!(now.entry & 1))
                mask_weights(s, mask + spans_at, at, now.begin, n_q, key);
            if (MAKES_V) {
#pragma unroll
                for (uint i = 0; i < BT / 16; i++)
                    weights[i] = pack_operand(s + 2 * i);
                begin_sums(v_sums, weights, d_stage);
            }
            if (MAKES_K) {
                if (MAKES_V)
                    wait_first(t);
                else
                    wait_scores(t);
                if (N_ROWS_TILES == 3) {
                    barrier(CLK_LOCAL_MEM_FENCE); /* the rows of d_o are used */
                    if (next.entry >= 0)
                        fetch_rows(d_stage, BT, d_o, d_o_ld, to_come, next.begin, n_q);
                    commit_copies();
                }
#pragma unroll
                for (uint j = 0; j < BT / 8; j++)
#pragma unroll
                    for (uint e = 0; e < 4; e++)
                        s[j][e] *= t[j][e] - (e % 2 ? st[j].w : st[j].y);
#pragma unroll
                for (uint i = 0; i < BT / 16; i++)
                    weights[i] = pack_operand(s + 2 * i);
                begin_sums(k_sums, weights, stage);
                wait_sums(k_sums);
            }
            if (MAKES_V)
                wait_sums(v_sums);
            uint swap = stage;
            stage = other;
            other = swap;
            if (N_ROWS_TILES == 4)
                d_stage = stage + TILE_BYTES;
            n_visited += now.part == 0 && now.begin == 0;
        }
        WAIT_COPIES(0);
        if (visited && MAKES_K && kv_head == 0 && get_local_id(0) == 0)
            atomic_add(visited + visited_at, n_visited);
        if (is_cut) {
            uint which = tile * n_kv_heads + kv_head;
            barrier(CLK_LOCAL_MEM_FENCE); /* all tiles are used */
            if (!join_sums(k_sums, v_sums, split, (uint)n_splits,
                           partial + partial_at + (ulong)which * (uint)n_splits * 2 * PART,
                           counters + counters_at + which, (__local uint *)tiles))
                continue;
        }
        __global ushort *k_to = d_k + d_k_at + (ulong)key * d_k_ld + kv_head * D;
        __global ushort *v_to = d_v + d_v_at + (ulong)key * d_v_ld + kv_head * D;
        if (MAKES_K && real0)
            store_sums(k_sums, 0, scale, k_to);
        if (MAKES_K && real1)
            store_sums(k_sums, 1, scale, k_to + 8 * d_k_ld);
        if (MAKES_V && real0)
            store_sums(v_sums, 0, 1.0f, v_to);
        if (MAKES_V && real1)
            store_sums(v_sums, 1, 1.0f, v_to + 8 * d_v_ld);
    }
}
