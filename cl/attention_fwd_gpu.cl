/* attention_fwd_gpu.cl - o and lse: online softmax over the listed key tiles. GPU family; arguments
 * as in attention_fwd_cpu.cl. */
#include "attention_gpu.clh"

__kernel __attribute__((reqd_work_group_size(N_ITEMS, 1, 1))) void attention_fwd_gpu(
    __global const CLD_ELEM(X) *q, ulong q_at, ulong q_ld, __global const CLD_ELEM(X) *k,
    ulong k_at, ulong k_ld, __global const CLD_ELEM(X) *v, ulong v_at, ulong v_ld,
    __global CLD_ELEM(X) *o, ulong o_at, ulong o_ld, __global float *lse, ulong lse_at,
    ulong lse_ld, __global const int *mask, ulong spans_at, ulong ptr_at, ulong list_at,
    __global int *visited, ulong visited_at, int n_q, int n_keys, ulong group, float scale,
    ulong n_pieces)
{
    LOCAL_SPACE(l);
    ulong n_tiles = (ulong)(n_q + QT - 1) / QT;
    CLD_SHARE (p, n_pieces) {
        struct piece at = piece_at(p, n_tiles, group);
        float4 sums[NC][4], s[4];
        float top[4], sum[4], high[4];
        int4 spans[4];
        int n_visited = 0;
        SYNC; /* the last piece's rows are no longer in use */
        name_query_rows(l.own, at.row, at.head, at.n_heads, n_q);
        SYNC;
        load_spans(mask + spans_at, l.own, spans);
        clear(sums);
        for (int r = 0; r < 4; r++) {
            top[r] = UNSEEN;
            sum[r] = 0.0f;
        }
        int t_end = mask[ptr_at + at.tile + 1];
        for (int t = mask[ptr_at + at.tile]; t < t_end; t++) {
            int k0 = mask[list_at + t] / 2 * KT;
            bool full = mask[list_at + t] & 1;
            SYNC;
            name_keys(l.visited, k0, at.kv_head, n_keys);
            gemm_xx(q + q_at, q_ld, l.own, k + k_at, k_ld, l.visited, l, s);
            for (int r = 0; r < 4; r++) {
                if (!full)
                    s[r] = where_seen(s[r], spans[r], k0 + 4 * item_x(), UNSEEN);
                high[r] = fmax(fmax(s[r].x, s[r].y), fmax(s[r].z, s[r].w));
            }
            row_max(high, l);
            for (int r = 0; r < 4; r++) {
                float now = fmax(top[r], high[r] * scale), keep = exp(top[r] - now);
                float4 w = exp(fma(s[r], (float4)(scale), (float4)(-now)));
                /* Where no key was seen yet, `now` is as low as the score of a masked key. */
                s[r] = full ? w : select(w, (float4)(0.0f), s[r] == (float4)(UNSEEN));
                sum[r] = fma(sum[r], keep, sum4(s[r])); /* of this work-item's keys */
                top[r] = now;
                for (int c = 0; c < NC; c++)
                    sums[c][r] *= keep;
            }
            put_weights_transposed(s, l);
            ACCUMULATE(X, v + v_at, v_ld, l, sums);
            n_visited++;
        }
        row_sum(sum, l);
        for (int r = 0; r < 4; r++) {
            int i = 4 * item_y() + r;
            if (l.own.row[i] >= 0 && item_x() == 0)
                lse[lse_at + (ulong)(l.own.col[i] / D) * lse_ld + (ulong)l.own.row[i]] =
                    sum[r] != 0.0f ? top[r] + log(sum[r]) : 0.0f;
            sum[r] = sum[r] != 0.0f ? 1.0f / sum[r] : 0.0f;
        }
        STORE_SUMS(X, sums, sum, o + o_at, o_ld, l.own);
        if (visited && at.head == 0 && get_local_id(0) == 0)
            atomic_add(visited + visited_at, n_visited);
    }
}
