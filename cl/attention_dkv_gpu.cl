/* attention_dkv_gpu.cl - d_k and d_v. A work-group owns the keys of one tile of one KV head and
 * adds up, in a fixed order, what the query tiles that see it and the heads of the group
 * contribute. GPU family; arguments as in attention_dkv_cpu.cl. */
#include "attention_gpu.clh"

/* Weights of this work-item's rows by keys 4 x ..: to the visited-major array. */
static inline void put_weights(const float4 w[4], struct space l)
{
    for (int r = 0; r < 4; r++)
        vstore4(w[r], item_x(), l.weights + (4 * item_y() + r) * LT);
}

__kernel __attribute__((reqd_work_group_size(N_ITEMS, 1, 1))) void attention_dkv_gpu(
    __global const CLD_ELEM(X) *q, ulong q_at, ulong q_ld, __global const CLD_ELEM(X) *k,
    ulong k_at, ulong k_ld, __global const CLD_ELEM(X) *v, ulong v_at, ulong v_ld,
    __global const float *lse, ulong lse_at, ulong lse_ld, __global const int *mask, ulong spans_at,
    ulong ptr_at, ulong list_at, __global int *visited, ulong visited_at, int n_q, int n_keys,
    ulong group, float scale, ulong n_pieces, __global const CLD_ELEM(Y) *d_o, ulong d_o_at,
    ulong d_o_ld, __global CLD_ELEM(Y) *d_k, ulong d_k_at, ulong d_k_ld, __global CLD_ELEM(Y) *d_v,
    ulong d_v_at, ulong d_v_ld, __global const float *delta)
{
    LOCAL_SPACE(l);
    const float one[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    ulong n_tiles = (ulong)(n_keys + KT - 1) / KT;
    CLD_SHARE (p, n_pieces) {
        ulong tile = p % n_tiles, kv_head = p / n_tiles; /* early keys have the longest lists */
        float4 k_sums[NC][4], v_sums[NC][4], w[4], s[4];
        int4 spans[4];
        int k0 = (int)(tile * KT), n_visited = 0;
        SYNC; /* the last piece's rows are no longer in use */
        name_keys(l.own, k0, kv_head, n_keys);
        SYNC; /* for store_sums, where no tile is listed */
        clear(k_sums);
        clear(v_sums);
        int t_end = mask[ptr_at + tile + 1];
        for (int t = mask[ptr_at + tile]; t < t_end; t++) {
            int row = mask[list_at + t] / 2 * QT;
            bool full = mask[list_at + t] & 1;
            for (ulong part = 0; part < group; part += HG) {
                SYNC;
                name_query_rows(l.visited, row, kv_head * group + part,
                                min((ulong)HG, group - part), n_q);
                gemm_xx(q + q_at, q_ld, l.visited, k + k_at, k_ld, l.own, l, w);
                gemm_yx(d_o + d_o_at, d_o_ld, l.visited, v + v_at, v_ld, l.own, l, s);
                load_spans(mask + spans_at, l.visited, spans);
                for (int r = 0; r < 4; r++) {
                    int i = 4 * item_y() + r;
                    ulong at = (ulong)max(l.visited.row[i], 0), h = (ulong)(l.visited.col[i] / D);
                    bool real = l.visited.row[i] >= 0;
                    float norm = real ? lse[lse_at + h * lse_ld + at] : 0.0f;
                    float del = real ? delta[h * (ulong)n_q + at] : 0.0f;
                    w[r] = exp(fma(w[r], (float4)(scale), (float4)(-norm)));
                    if (!full || !real)
                        w[r] = where_seen(w[r], spans[r], k0 + 4 * item_x(), 0.0f);
                    s[r] = w[r] * (s[r] - del) * scale;
                }
                put_weights(w, l);
                ACCUMULATE(Y, d_o + d_o_at, d_o_ld, l, v_sums);
                SYNC;
                put_weights(s, l);
                ACCUMULATE(X, q + q_at, q_ld, l, k_sums);
            }
            n_visited++;
        }
        STORE_SUMS(Y, k_sums, one, d_k + d_k_at, d_k_ld, l.own);
        STORE_SUMS(Y, v_sums, one, d_v + d_v_at, d_v_ld, l.own);
        if (visited && kv_head == 0 && get_local_id(0) == 0)
            atomic_add(visited + visited_at, n_visited);
    }
}
