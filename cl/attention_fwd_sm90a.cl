/* attention_fwd_sm90a.cl - o and lse on Hopper's tensor cores (attention_ring.clh). Arguments as in
 * attention_fwd_cpu.cl. Tiles of keys and of values alternate in the ring. */
#define N_CONSUMERS 3
#define N_SLOTS     12
#define ITEM        (get_local_id(0) % GROUP)
#include "attention_tensor.clh"
#include "attention_ring.clh"
#include "attention_softmax.clh"

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
    const struct shared m = open_ring(tiles, barriers, words);
    uint g = get_local_id(0) / GROUP;
    struct ring now = {0, 0};
    if (g == N_CONSUMERS) {
        LESS_REGISTERS(32);
        produce_keys(m, k + k_at, k_ld, v + v_at, v_ld, mask + ptr_at, mask + list_at, n_q, n_keys,
                     group, n_pieces);
    } else {
        uint own = own_row();
        float c = scale * M_LOG2E_F;
        MORE_REGISTERS(160);
        EACH_PIECE (p, n_pieces) {
            struct piece at = piece_of_consumer(p, n_pieces, n_q, group, g);
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
