/* attention_fwd_sm90a.cl - o and lse on Hopper's tensor cores. Arguments as in attention_fwd_cpu.cl.
 *
 * A work-group is N_CONSUMERS warpgroups, each with 64 rows of a query tile of its own, and one that
 * copies the tiles of keys and values which any of them sees to a ring in local memory. Neighbouring
 * query tiles see nearly the same keys, so that a tile is read once for all of them. The consumers
 * proceed apart from each other: one multiplies while another computes weights.
 *
 * The ring has slots for tiles, keys and values alternating. Barrier `full` of a slot ends a phase
 * when all items of the producer have copied their parts, `empty` when all consumers have used it.
 * With keys comes a word, 0 or more: the tile of keys, times 64, and two bits for each consumer,
 * which say whether the tile is in its list, and whether it sees all of it. END ends a piece. */
#define ITEM (get_local_id(0) % GROUP)
#include "attention_softmax.clh"

#define N_CONSUMERS 3
#define N_ITEMS     ((N_CONSUMERS + 1) * GROUP)
#define N_SLOTS     12
#define LAG         4 /* groups of copies under way before the producer waits for the oldest */
#define END         (-1)

/* A slot, and the parity of its phase. */
struct ring {
    uint slot, parity;
};

static inline struct ring after(struct ring at)
{
    struct ring next = {at.slot + 1, at.parity};
    if (next.slot == N_SLOTS) {
        next.slot = 0;
        next.parity ^= 1;
    }
    return next;
}

/* What all items know. */
struct shared {
    uint tiles, full, empty; /* addresses of the first slot, its barriers */
    __local volatile int *words;
};

/* The consumers' lists of tiles, merged. */
struct lists {
    int entry[N_CONSUMERS], next[N_CONSUMERS], end[N_CONSUMERS]; /* entry < 0: none is left */
};

static inline struct lists open_lists(__global const int *ptr, __global const int *list,
                                      uint first_tile, uint n_tiles)
{
    struct lists l;
#pragma unroll
    for (uint g = 0; g < N_CONSUMERS; g++) {
        bool real = first_tile + g < n_tiles;
        l.next[g] = real ? ptr[first_tile + g] : 0;
        l.end[g] = real ? ptr[first_tile + g + 1] : 0;
        l.entry[g] = l.next[g] < l.end[g] ? list[l.next[g]++] : -1;
    }
    return l;
}

/* The word of the next tile, END after the last. */
static inline int next_word(struct lists *l, __global const int *list)
{
    int tile = INT_MAX, bits = 0;
#pragma unroll
    for (uint g = 0; g < N_CONSUMERS; g++)
        if (l->entry[g] >= 0)
            tile = min(tile, l->entry[g] / 2);
    if (tile == INT_MAX)
        return END;
#pragma unroll
    for (uint g = 0; g < N_CONSUMERS; g++)
        if (l->entry[g] >= 0 && l->entry[g] / 2 == tile) {
            bits |= (1 | (l->entry[g] & 1) << 1) << 2 * g;
            l->entry[g] = l->next[g] < l->end[g] ? list[l->next[g]++] : -1;
        }
    return tile * 64 + bits;
}

/* The copies into a slot are asked for: the slot of LAG groups before is full when this returns. */
static inline void announce(struct shared m, struct ring *oldest, uint *n_under_way)
{
    commit_copies();
    if (*n_under_way < LAG) {
        *n_under_way += 1;
        return;
    }
    WAIT_COPIES(LAG);
    writes_fence();
    barrier_arrive(m.full + 8 * oldest->slot);
    *oldest = after(*oldest);
}

/* This warp has used a slot. */
static inline void release(struct shared m, struct ring at)
{
    if (lane_of() == 0)
        barrier_arrive(m.empty + 8 * at.slot);
}

/* Pieces in order of work: groups have them in turns, forth and back, as earlier ones are longer. */
#define EACH_PIECE(p, n)                                                                           \
    for (uint turn = 0, n_groups = get_num_groups(0), id = get_group_id(0), p = id;               \
         turn * n_groups < (uint)(n);                                                              \
         turn++, p = turn * n_groups + (turn % 2 ? n_groups - 1 - id : id))                        \
        if (p < (uint)(n))

__kernel __attribute__((reqd_work_group_size(N_ITEMS, 1, 1))) void attention_fwd_sm90a(
    __global const ushort *q, ulong q_at, ulong q_ld, __global const ushort *k, ulong k_at,
    ulong k_ld, __global const ushort *v, ulong v_at, ulong v_ld, __global ushort *o, ulong o_at,
    ulong o_ld, __global float *lse, ulong lse_at, ulong lse_ld, __global const int *mask,
    ulong spans_at, ulong ptr_at, ulong list_at, __global int *visited, ulong visited_at, int n_q,
    int n_keys, ulong group, float scale, ulong n_pieces)
{
    __local uchar tiles[DECLARED(N_SLOTS * TILE_BYTES)] __attribute__((aligned(1024)));
    __local ulong barriers[2 * N_SLOTS];
    __local volatile int words[N_SLOTS];
    struct shared m = {local_address(tiles), local_address(barriers),
                       local_address(barriers + N_SLOTS), words};
    uint n_tiles = n_q_tiles(n_q), n_sets = (n_tiles + N_CONSUMERS - 1) / N_CONSUMERS;
    uint g = get_local_id(0) / GROUP;
    struct ring now = {0, 0};
    if (get_local_id(0) == 0) {
        for (uint i = 0; i < N_SLOTS; i++) {
            barrier_init(m.full + 8 * i, GROUP);
            barrier_init(m.empty + 8 * i, N_CONSUMERS * GROUP / 32);
        }
        barrier_init_fence();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (g == N_CONSUMERS) {
        struct ring oldest = {0, 0};
        uint n_under_way = 0;
        LESS_REGISTERS(32);
        EACH_PIECE (p, n_pieces) {
            struct piece at = piece_at(p, n_pieces, n_sets, group);
            __global const ushort *keys = k + k_at + at.kv_head * D;
            __global const ushort *values = v + v_at + at.kv_head * D;
            struct lists l = open_lists(mask + ptr_at, mask + list_at, at.tile * N_CONSUMERS, n_tiles);
            int word;
            do {
                word = next_word(&l, mask + list_at);
                barrier_wait(m.empty + 8 * now.slot, now.parity ^ 1);
                if (ITEM == 0)
                    m.words[now.slot] = word;
                if (word != END)
                    fetch_keys(m.tiles + now.slot * TILE_BYTES, KT, keys, k_ld, word / 64 * KT,
                               n_keys);
                announce(m, &oldest, &n_under_way);
                now = after(now);
                if (word != END) {
                    barrier_wait(m.empty + 8 * now.slot, now.parity ^ 1);
                    fetch_keys(m.tiles + now.slot * TILE_BYTES, KT, values, v_ld, word / 64 * KT,
                               n_keys);
                    announce(m, &oldest, &n_under_way);
                    now = after(now);
                }
            } while (word != END);
        }
        WAIT_COPIES(0);
        writes_fence();
        for (; n_under_way; n_under_way--) {
            barrier_arrive(m.full + 8 * oldest.slot);
            oldest = after(oldest);
        }
    } else {
        uint own = own_row();
        float c = scale * M_LOG2E_F;
        MORE_REGISTERS(160);
        EACH_PIECE (p, n_pieces) {
            struct piece at = piece_at(p, n_pieces, n_sets, group);
            at.tile = at.tile * N_CONSUMERS + g;
            bool real0 = is_row(at, own, n_q), real1 = is_row(at, own + 8, n_q);
            float sums[W / 8][4], top0 = -INFINITY, top1 = -INFINITY, sum0 = 0, sum1 = 0;
            uint4 rows[W / 16];
            int n_visited = 0;
            load_operand(rows, q + q_at + (real0 ? place_of(at, own, q_ld) : 0), real0,
                         q + q_at + (real1 ? place_of(at, own + 8, q_ld) : 0), real1);
            clear(sums);
            for (;;) {
                float s[BT / 8][4];
                uint4 weights[BT / 16];
                barrier_wait(m.full + 8 * now.slot, now.parity);
                int word = m.words[now.slot];
                if (word == END)
                    break;
                struct ring with_values = after(now);
                if (!(word >> 2 * g & 1)) {
                    release(m, now);
                    barrier_wait(m.full + 8 * with_values.slot, with_values.parity);
                    release(m, with_values);
                    now = after(with_values);
                    continue;
                }
                begin_rows(s, rows, m.tiles + now.slot * TILE_BYTES);
                wait_scores(s);
                release(m, now);
                if (!(word >> 2 * g & 2)) {
                    int k0 = word / 64 * KT;
                    hide_keys_of(s, 0, -INFINITY,
                                 load_span(mask + spans_at, real0, row_of(at, own)), k0);
                    hide_keys_of(s, 1, -INFINITY,
                                 load_span(mask + spans_at, real1, row_of(at, own + 8)), k0);
                }
                float keep0 = weigh(s, 0, c, &top0, &sum0), keep1 = weigh(s, 1, c, &top1, &sum1);
#pragma unroll
                for (uint i = 0; i < BT / 16; i++)
                    weights[i] = pack_operand(s + 2 * i);
                if (keep0 != 1.0f || keep1 != 1.0f)
                    scale_sums(sums, keep0, keep1);
                barrier_wait(m.full + 8 * with_values.slot, with_values.parity);
                begin_sums(sums, weights, m.tiles + with_values.slot * TILE_BYTES);
                wait_sums(sums);
                release(m, with_values);
                now = after(with_values);
                n_visited++;
            }
            release(m, now);
            now = after(now);
            store_piece(sums, at, n_q, top0, top1, sum0, sum1, scale, o + o_at, o_ld, lse + lse_at,
                        lse_ld);
            if (visited && at.head == 0 && ITEM == 0)
                atomic_add(visited + visited_at, n_visited);
        }
    }
}
