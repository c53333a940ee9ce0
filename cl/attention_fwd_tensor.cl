/* attention_fwd_tensor.cl - o and lse on NVIDIA's tensor cores. Arguments as in
 * attention_fwd_cpu.cl. Tiles of keys and of values pass through a ring of three. Wide heads
 * have one place for keys and one for values, and their query rows in local memory. */
#include "attention_tensor.clh"
#include "attention_softmax.clh"

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
        struct piece at = piece_at(p, n_pieces, n_q_tiles(n_q), group);
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
        store_piece(sums, at, n_q, top0, top1, sum0, sum1, scale, o + o_at, o_ld, lse + lse_at,
                    lse_ld);
        if (visited && at.head == 0 && get_local_id(0) == 0)
            atomic_add(visited + visited_at, n_visited);
    }
}
