/* attention_dq_sm90a.cl - d_q on Hopper's tensor cores, and what the dK/dV pass wants to know of
 * every query row (attention_ring.clh). Arguments as in attention_dq_tensor.cl. Tiles of keys and of
 * values alternate in the ring; each consumer has another tile for its rows of o. */
#define N_CONSUMERS 2
#define N_SLOTS     12
#define ITEM        (get_local_id(0) % GROUP)
#include "attention_tensor.clh"
#include "attention_ring.clh"
#include "attention_dq.clh"

__kernel __attribute__((reqd_work_group_size(N_ITEMS, 1, 1))) void attention_dq_sm90a(
    __global const ushort *q, ulong q_at, ulong q_ld, __global const ushort *k, ulong k_at,
    ulong k_ld, __global const ushort *v, ulong v_at, ulong v_ld, __global const ushort *o,
    ulong o_at, ulong o_ld, __global const float *lse, ulong lse_at, ulong lse_ld,
    __global const int *mask, ulong spans_at, ulong ptr_at, ulong list_at, __global int *visited,
    ulong visited_at, int n_q, int n_keys, ulong group, float scale, ulong n_pieces,
    __global const ushort *d_o, ulong d_o_at, ulong d_o_ld, __global ushort *d_q, ulong d_q_at,
    ulong d_q_ld, __global float2 *stats, __global uint *counters, ulong counters_at,
    ulong n_counters)
{
    __local uchar tiles[DECLARED((N_SLOTS + N_CONSUMERS) * TILE_BYTES)]
        __attribute__((aligned(1024)));
    __local ulong barriers[2 * N_SLOTS];
    __local volatile int words[N_SLOTS];
    const struct shared m = open_ring(tiles, barriers, words);
    uint g = get_local_id(0) / GROUP;
    struct ring now = {0, 0};
    if (g == N_CONSUMERS) {
        LESS_REGISTERS(40);
        for (ulong i = get_group_id(0) * GROUP + ITEM; i < n_counters;
             i += get_num_groups(0) * GROUP)
            counters[counters_at + i] = 0;
        produce_keys(m, k + k_at, k_ld, v + v_at, v_ld, mask + ptr_at, mask + list_at, n_q, n_keys,
                     group, n_pieces);
    } else {
        uint own = own_row(), o_tile = m.tiles + (N_SLOTS + g) * TILE_BYTES;
        float c = scale * M_LOG2E_F;
        MORE_REGISTERS(232);
        EACH_PIECE (p, n_pieces) {
            struct piece at = piece_of_consumer(p, n_pieces, n_q, group, g);
            bool real0 = is_row(at, own, n_q), real1 = is_row(at, own + 8, n_q);
            float sums[W / 8][4], norm[2] = {0, 0}, delta[2];
            uint4 rows[W / 16], d_rows[W / 16];
            int n_visited = 0;
            consumer_barrier(g); /* the rows of o of the piece before are used */
            fetch_rows(o_tile, ROWS, o + o_at, o_ld, at, 0, n_q);
            commit_copies();
            load_operand(d_rows, d_o + d_o_at + (real0 ? place_of(at, own, d_o_ld) : 0), real0,
                         d_o + d_o_at + (real1 ? place_of(at, own + 8, d_o_ld) : 0), real1);
            load_operand(rows, q + q_at + (real0 ? place_of(at, own, q_ld) : 0), real0,
                         q + q_at + (real1 ? place_of(at, own + 8, q_ld) : 0), real1);
            if (real0)
                norm[0] = lse[lse_at + (at.head + own / QT) * lse_ld + row_of(at, own)] * M_LOG2E_F;
            if (real1)
                norm[1] = lse[lse_at + (at.head + (own + 8) / QT) * lse_ld + row_of(at, own + 8)] *
                          M_LOG2E_F;
            WAIT_COPIES(0);
            writes_fence();
            consumer_barrier(g);
            deltas(d_rows, o_tile, &delta[0], &delta[1]);
            if (lane_of() % 4 == 0 && at.tile < n_q_tiles(n_q)) {
                stats[(ulong)at.index * ROWS + own] = (float2)(norm[0], delta[0]);
                stats[(ulong)at.index * ROWS + own + 8] = (float2)(norm[1], delta[1]);
            }
            clear(sums);
            for (;;) {
                float s[BT / 8][4], t[BT / 8][4];
                uint4 weights[BT / 16];
                barrier_wait(m.full + 8 * now.slot, now.parity);
                int word = m.words[now.slot];
                if (word == END)
                    break;
                struct ring with_values = after(now);
                barrier_wait(m.full + 8 * with_values.slot, with_values.parity);
                if (word >> 2 * g & 1) {
                    uint keys_tile = m.tiles + now.slot * TILE_BYTES;
                    begin_rows(s, rows, keys_tile);
                    begin_rows(t, d_rows, m.tiles + with_values.slot * TILE_BYTES);
                    wait_first(s);
                    weigh(s, c, norm);
                    if (!(word >> 2 * g & 2)) {
                        int k0 = word / 64 * KT;
                        hide_keys_of(s, 0, 0.0f,
                                     load_span(mask + spans_at, real0, row_of(at, own)), k0);
                        hide_keys_of(s, 1, 0.0f,
                                     load_span(mask + spans_at, real1, row_of(at, own + 8)), k0);
                    }
                    wait_scores(t);
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
                    n_visited++;
                }
                release(m, now);
                release(m, with_values);
                now = after(with_values);
            }
            release(m, now);
            now = after(now);
            if (real0)
                store_sums(sums, 0, scale, d_q + d_q_at + place_of(at, own, d_q_ld));
            if (real1)
                store_sums(sums, 1, scale, d_q + d_q_at + place_of(at, own + 8, d_q_ld));
            if (visited && at.head == 0 && ITEM == 0)
                atomic_add(visited + visited_at, n_visited);
        }
    }
}
