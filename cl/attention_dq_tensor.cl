/* attention_dq_tensor.cl - d_q on NVIDIA's tensor cores, and what the dK/dV pass wants to know of
 * every query row. Arguments as in attention_dq_cpu.cl, but for the last. Two tiles of keys take
 * turns in local memory, as keys are used twice; one has values. Wide heads have tiles of half as
 * many rows, and their rows of q and d_o in local memory. */
#if W > 128
#define BT 32
#endif
#include "attention_tensor.clh"
#include "attention_dq.clh"

#define PARTS (KT / BT) /* of a listed tile of keys */

/* Tiles of keys in the order of a list: part `part` of BT keys of tile `entry`; none if that is
 * below 0. `after` is the entry after it. */
struct cursor {
    __global const int *next, *end;
    int entry, after;
    uint part;
};

static inline int take(struct cursor *c)
{
    return c->next < c->end ? *c->next++ : -1;
}

static inline void move_on(struct cursor *c)
{
    if (++c->part < PARTS)
        return;
    c->part = 0;
    c->entry = c->after;
    c->after = take(c);
}

static inline int first_key(struct cursor c)
{
    return c.entry / 2 * KT + (int)c.part * BT;
}

/* stats[index of a piece][ROWS]: log-sum-exp in powers of two, and rowsum(d_o * o), of its rows;
 * zeros for those that do not exist. n_counters counters become zero, for the dK/dV pass. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void attention_dq_tensor(
    __global const ushort *q, ulong q_at, ulong q_ld, __global const ushort *k, ulong k_at,
    ulong k_ld, __global const ushort *v, ulong v_at, ulong v_ld, __global const ushort *o,
    ulong o_at, ulong o_ld, __global const float *lse, ulong lse_at, ulong lse_ld,
    __global const int *mask, ulong spans_at, ulong ptr_at, ulong list_at, __global int *visited,
    ulong visited_at, int n_q, int n_keys, ulong group, float scale, ulong n_pieces,
    __global const ushort *d_o, ulong d_o_at, ulong d_o_ld, __global ushort *d_q, ulong d_q_at,
    ulong d_q_ld, __global float2 *stats, __global uint *counters, ulong counters_at,
    ulong n_counters)
{
    __local uchar tiles[DECLARED(2 * WIDE * OWN_BYTES + 3 * TILE_BYTES)]
        __attribute__((aligned(1024)));
    uint base = local_address(tiles), values_tile = base + 2 * TILE_BYTES, own = own_row();
    float c = scale * M_LOG2E_F;
    for (ulong i = get_group_id(0) * GROUP + get_local_id(0); i < n_counters;
         i += get_num_groups(0) * GROUP)
        counters[counters_at + i] = 0;
    q += q_at;
    d_o += d_o_at;
    CLD_SHARE (p, n_pieces) {
        struct piece at = piece_at(p, n_pieces, n_q_tiles(n_q), group);
        bool real0 = is_row(at, own, n_q), real1 = is_row(at, own + 8, n_q);
        __global const ushort *keys = k + k_at + at.kv_head * D;
        __global const ushort *values = v + v_at + at.kv_head * D;
        struct cursor now, at_next = {mask + list_at + mask[ptr_at + at.tile],
                                      mask + list_at + mask[ptr_at + at.tile + 1], -1, -1, 0};
        float sums[W / 8][4], s[BT / 8][4], t[BT / 8][4], norm[2] = {0, 0}, delta[2];
        uint4 weights[BT / 16];
        uint keys_tile = base;
        /* o comes in the last tiles of BT rows, which its 64 rows need, values among them. */
        uint o_tile = base + 3 * TILE_BYTES - OWN_BYTES;
        int n_visited = 0;
        at_next.entry = take(&at_next);
        at_next.after = take(&at_next);
        barrier(CLK_LOCAL_MEM_FENCE); /* the tiles of the piece before are free */
#pragma unroll
        for (uint i = 0; i < ROWS / BT; i++)
            fetch_rows(o_tile + i * TILE_BYTES, BT, o + o_at, o_ld, at, i * BT, n_q);
#if WIDE
        uint rows = base + 3 * TILE_BYTES, d_rows = rows + OWN_BYTES;
        fetch_rows(rows, ROWS, q, q_ld, at, 0, n_q);
        fetch_rows(d_rows, ROWS, d_o, d_o_ld, at, 0, n_q);
#endif
        commit_copies();
        if (at_next.entry >= 0)
            fetch_keys(keys_tile, BT, keys, k_ld, first_key(at_next), n_keys);
        commit_copies();
#if !WIDE
        uint4 rows[W / 16], d_rows[W / 16];
        load_operand(d_rows, d_o + (real0 ? place_of(at, own, d_o_ld) : 0), real0,
                     d_o + (real1 ? place_of(at, own + 8, d_o_ld) : 0), real1);
        load_operand(rows, q + (real0 ? place_of(at, own, q_ld) : 0), real0,
                     q + (real1 ? place_of(at, own + 8, q_ld) : 0), real1);
#endif
        if (real0)
            norm[0] = lse[lse_at + (at.head + own / QT) * lse_ld + row_of(at, own)] * M_LOG2E_F;
        if (real1)
            norm[1] =
                lse[lse_at + (at.head + (own + 8) / QT) * lse_ld + row_of(at, own + 8)] * M_LOG2E_F;
        WAIT_COPIES(1);
        ready();
        deltas(d_rows, o_tile, &delta[0], &delta[1]);
        if (lane_of() % 4 == 0) {
            stats[(ulong)at.index * ROWS + own] = (float2)(norm[0], delta[0]);
            stats[(ulong)at.index * ROWS + own + 8] = (float2)(norm[1], delta[1]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (at_next.entry >= 0)
            fetch_keys(values_tile, BT, values, v_ld, first_key(at_next), n_keys);
        commit_copies();
        clear(sums);
        while (at_next.entry >= 0) {
            uint next_tile = 2 * base + TILE_BYTES - keys_tile;
            now = at_next;
            WAIT_COPIES(0);
            ready();
            begin_own(s, rows, keys_tile);
            begin_own(t, d_rows, values_tile);
            move_on(&at_next);
            if (at_next.entry >= 0)
                fetch_keys(next_tile, BT, keys, k_ld, first_key(at_next), n_keys);
            commit_copies();
            wait_first(s);
            weigh(s, c, norm);
            if (!(now.entry & 1))
                hide_keys(s, 0.0f, load_span(mask + spans_at, real0, row_of(at, own)),
                          load_span(mask + spans_at, real1, row_of(at, own + 8)), first_key(now));
            wait_scores(t);
            barrier(CLK_LOCAL_MEM_FENCE); /* the values are used */
            if (at_next.entry >= 0)
                fetch_keys(values_tile, BT, values, v_ld, first_key(at_next), n_keys);
            commit_copies();
#pragma unroll
            for (uint j = 0; j < BT / 8; j++)
#pragma unroll
                for (uint e = 0; e < 4; e++)
                    s[j][e] *= t[j][e] - delta[e / 2];
#pragma unroll
            for (uint i = 0; i < BT / 16; i++)
                weights[i] = pack_operand(s + 2 * i);
            begin_sums(sums, weights, keys_tile);
            wait_sums(sums);
            keys_tile = next_tile;
            n_visited += now.part == 0;
        }
        WAIT_COPIES(0);
        if (real0)
            store_sums(sums, 0, scale, d_q + d_q_at + place_of(at, own, d_q_ld));
        if (real1)
            store_sums(sums, 1, scale, d_q + d_q_at + place_of(at, own + 8, d_q_ld));
        if (visited && at.head == 0 && get_local_id(0) == 0)
            atomic_add(visited + visited_at, n_visited);
    }
}
