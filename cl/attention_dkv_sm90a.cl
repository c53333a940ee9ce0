/* attention_dkv_sm90a.cl - d_k and d_v on Hopper's tensor cores (attention_ring.clh). Arguments, and
 * lists that are cut, as in attention_dkv_tensor.cl. Each consumer owns the keys of a tile: they lie in
 * local memory, their values in registers. A slot of the ring has 32 query rows of q and of d_o. */
#define N_CONSUMERS     2
#define N_SLOTS         11
#define GROUP_BARRIER() consumer_barrier(get_local_id(0) / GROUP)
#define BT              32
#define ITEM        (get_local_id(0) % GROUP)
#include "attention_tensor.clh"
#include "attention_ring.clh"
#include "attention_dkv.clh"

#define SLOT_BYTES (2 * TILE_BYTES)
#define HALVES     (ROWS / BT) /* of a piece's rows */

/* Key tiles, one for each consumer, of a KV head: part `split` of their lists. */
struct job {
    uint first_tile, kv_head, split;
};

static inline struct job job_at(uint p, uint n_columns, uint n_kv_heads)
{
    uint column = p % n_columns; /* early tiles have long lists and go first */
    struct job at = {p / n_columns * N_CONSUMERS, column % n_kv_heads, column / n_kv_heads};
    return at;
}

static inline bool is_cut(uint n_listed, uint n_splits)
{
    return n_splits > 1 && n_listed >= SPLIT_MIN;
}

static inline struct lists open_parts(__global const int *ptr, __global const int *list,
                                      struct job at, uint n_tiles, uint n_splits)
{
    struct lists l;
#pragma unroll
    for (uint g = 0; g < N_CONSUMERS; g++) {
        bool real = at.first_tile + g < n_tiles;
        uint begin = real ? ptr[at.first_tile + g] : 0;
        uint n = real ? ptr[at.first_tile + g + 1] - begin : 0;
        bool cut = is_cut(n, n_splits);
        l.next[g] = begin + (cut ? n * at.split / n_splits : 0);
        l.end[g] = begin + (cut ? n * (at.split + 1) / n_splits : at.split ? 0 : n);
        l.entry[g] = l.next[g] < l.end[g] ? list[l.next[g]++] : -1;
    }
    return l;
}

/* Rows of step `step` of a query tile: half `step % HALVES` of part `step / HALVES` of a group. */
static inline struct piece rows_of_step(uint tile, uint step, uint kv_head, uint n_kv_heads,
                                        ulong group)
{
    struct piece at;
    uint n_parts = n_parts_of(group), part = step / HALVES;
    at.tile = tile;
    at.kv_head = kv_head;
    at.head = kv_head * (uint)group + part * HG;
    at.n_heads = min((uint)HG, (uint)group - part * HG);
    at.index = (tile * n_kv_heads + kv_head) * n_parts + part;
    return at;
}

__kernel __attribute__((reqd_work_group_size(N_ITEMS, 1, 1))) void attention_dkv_sm90a(
    __global const ushort *q, ulong q_at, ulong q_ld, __global const ushort *k, ulong k_at,
    ulong k_ld, __global const ushort *v, ulong v_at, ulong v_ld, __global const int *mask,
    ulong spans_at, ulong ptr_at, ulong list_at, __global int *visited, ulong visited_at, int n_q,
    int n_keys, ulong group, float scale, ulong n_pieces, __global const ushort *d_o, ulong d_o_at,
    ulong d_o_ld, __global ushort *d_k, ulong d_k_at, ulong d_k_ld, __global ushort *d_v,
    ulong d_v_at, ulong d_v_ld, __global const float2 *stats,
    __global uint *counters, ulong counters_at, __global float4 *partial, ulong partial_at,
    ulong n_splits)
{
    __local uchar tiles[DECLARED(N_SLOTS * SLOT_BYTES + N_CONSUMERS * OWN_BYTES)]
        __attribute__((aligned(1024)));
    __local ulong barriers[2 * N_SLOTS];
    __local volatile int words[N_SLOTS];
    __local volatile uint lasts[N_CONSUMERS];
    const struct shared m = open_ring(tiles, barriers, words);
    uint g = get_local_id(0) / GROUP, n_steps = n_parts_of(group) * HALVES;
    uint n_tiles = ((uint)n_keys + KT - 1) / KT, n_sets = (n_tiles + N_CONSUMERS - 1) / N_CONSUMERS;
    uint n_columns = (uint)(n_pieces / n_sets), n_kv_heads = n_columns / (uint)n_splits;
    struct ring now = {0, 0};
    if (g == N_CONSUMERS) {
        struct ring oldest = {0, 0};
        uint n_under_way = 0;
        LESS_REGISTERS(24);
        EACH_PIECE (p, n_pieces) {
            struct job job = job_at(p, n_columns, n_kv_heads);
            struct lists l = open_parts(mask + ptr_at, mask + list_at, job, n_tiles, (uint)n_splits);
            int word = 0;
            while (word != END) {
                word = next_word(&l, mask + list_at);
                for (uint step = 0; step < (word == END ? 1 : n_steps); step++) {
                    struct piece at =
                        rows_of_step((uint)word / 64, step, job.kv_head, n_kv_heads, group);
                    uint stage = m.tiles + now.slot * SLOT_BYTES, begin = step % HALVES * BT;
                    barrier_wait(m.empty + 8 * now.slot, now.parity ^ 1);
                    if (ITEM == 0)
                        m.words[now.slot] = word;
                    if (word != END) {
                        fetch_rows(stage, BT, q + q_at, q_ld, at, begin, n_q);
                        fetch_rows(stage + TILE_BYTES, BT, d_o + d_o_at, d_o_ld, at, begin, n_q);
                    }
                    announce(m, &oldest, &n_under_way);
                    now = after(now);
                }
            }
        }
        announce_rest(m, oldest, n_under_way);
    } else {
        uint own = own_row(), keys_tile = m.tiles + N_SLOTS * SLOT_BYTES + g * OWN_BYTES;
        float c = scale * M_LOG2E_F;
        MORE_REGISTERS(240);
        EACH_PIECE (p, n_pieces) {
            struct job job = job_at(p, n_columns, n_kv_heads);
            uint tile = job.first_tile + g, step = 0;
            int k0 = (int)tile * KT, key = k0 + (int)own, n_visited = 0;
            bool real0 = key < n_keys, real1 = key + 8 < n_keys;
            __global const ushort *values = v + v_at + job.kv_head * D;
            float k_sums[W / 8][4], v_sums[W / 8][4];
            uint4 rows[W / 16];
            consumer_barrier(g); /* the keys of the piece before are used */
            fetch_keys(keys_tile, KT, k + k_at + job.kv_head * D, k_ld, k0, n_keys);
            commit_copies();
            load_operand(rows, values + (real0 ? (ulong)key * v_ld : 0), real0,
                         values + (real1 ? (ulong)(key + 8) * v_ld : 0), real1);
            clear(k_sums);
            clear(v_sums);
            WAIT_COPIES(0);
            writes_fence();
            consumer_barrier(g);
            for (;;) {
                float s[BT / 8][4], t[BT / 8][4];
                float4 st[BT / 8];
                uint4 weights[BT / 16];
                barrier_wait(m.full + 8 * now.slot, now.parity);
                int word = m.words[now.slot];
                if (word == END)
                    break;
                if (word >> 2 * g & 1) {
                    struct piece at =
                        rows_of_step((uint)word / 64, step, job.kv_head, n_kv_heads, group);
                    uint stage = m.tiles + now.slot * SLOT_BYTES, begin = step % HALVES * BT;
                    __global const float2 *from = stats + (ulong)at.index * ROWS + begin;
                    begin_tile(s, keys_tile, stage);
                    begin_rows(t, rows, stage + TILE_BYTES);
#pragma unroll
                    for (uint j = 0; j < BT / 8; j++)
                        st[j] = *(__global const float4 *)(from + 8 * j + lane_of() % 4 * 2);
                    wait_first(s);
                    weigh(s, c, st);
                    if (!(word >> 2 * g & 2))
                        mask_weights(s, mask + spans_at, at, begin, n_q, key);
#pragma unroll
                    for (uint i = 0; i < BT / 16; i++)
                        weights[i] = pack_operand(s + 2 * i);
                    begin_sums(v_sums, weights, stage + TILE_BYTES);
                    wait_first(t);
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
                    wait_sums(v_sums);
                    n_visited += step == 0;
                }
                release(m, now);
                now = after(now);
                step = step + 1 == n_steps ? 0 : step + 1;
            }
            release(m, now);
            now = after(now);
            if (tile >= n_tiles)
                continue;
            if (visited && job.kv_head == 0 && ITEM == 0)
                atomic_add(visited + visited_at, n_visited);
            if (is_cut(mask[ptr_at + tile + 1] - mask[ptr_at + tile], (uint)n_splits)) {
                uint which = tile * n_kv_heads + job.kv_head;
                if (!join_sums(k_sums, v_sums, job.split, (uint)n_splits,
                               partial + partial_at + (ulong)which * (uint)n_splits * 2 * PART,
                               counters + counters_at + which, lasts + g))
                    continue;
            } else if (job.split > 0)
                continue;
            __global ushort *k_to = d_k + d_k_at + (ulong)key * d_k_ld + job.kv_head * D;
            __global ushort *v_to = d_v + d_v_at + (ulong)key * d_v_ld + job.kv_head * D;
            if (real0) {
                store_sums(k_sums, 0, scale, k_to);
                store_sums(v_sums, 0, 1.0f, v_to);
            }
            if (real1) {
                store_sums(k_sums, 1, scale, k_to + 8 * d_k_ld);
                store_sums(v_sums, 1, 1.0f, v_to + 8 * d_v_ld);
            }
        }
    }
}
