/* attention_dq_gpu.cl - d_q, and delta = rowsum(d_o * o) for the dK/dV pass. GPU family; arguments
 * as in attention_dq_cpu.cl. */
#include "attention_gpu.clh"

/* delta of every own row, to delta[n_heads][n_q] and to[T]; added up in the order of a GEMM:
 * where a row sees one key only, it equals that key's d_o * v to the bit, and the gradient is
 * zero. No work-item returns early: after an early return PoCL 6.0 runs the barriers that follow
 * the call wrongly, if the program comes from IL. */
static inline void deltas(__global const CLD_ELEM(X) *o, ulong o_ld,
                          __global const CLD_ELEM(Y) *d_o, ulong d_o_ld, struct tile t, int n_q,
                          __global float *delta, __local float *to)
{
    int i = (int)get_local_id(0);
    if (i < T) {
        float sum = 0.0f;
        if (t.row[i] >= 0) {
            ulong row = (ulong)t.row[i], col = (ulong)t.col[i];
            for (ulong begin = 0; begin < D; begin += STEP) {
                float part = 0.0f;
                for (ulong d = col + begin; d < col + min(begin + STEP, (ulong)D); d++)
                    part = fma(CLD_LOAD(X, o, row * o_ld + d), CLD_LOAD(Y, d_o, row * d_o_ld + d),
                               part);
                sum += part;
            }
            delta[col / D * (ulong)n_q + row] = sum;
        }
        to[i] = sum;
    }
}

__kernel __attribute__((reqd_work_group_size(N_ITEMS, 1, 1))) void attention_dq_gpu(
    __global const CLD_ELEM(X) *q, ulong q_at, ulong q_ld, __global const CLD_ELEM(X) *k,
    ulong k_at, ulong k_ld, __global const CLD_ELEM(X) *v, ulong v_at, ulong v_ld,
    __global const CLD_ELEM(X) *o, ulong o_at, ulong o_ld, __global const float *lse, ulong lse_at,
    ulong lse_ld, __global const int *mask, ulong spans_at, ulong ptr_at, ulong list_at,
    __global int *visited, ulong visited_at, int n_q, int n_keys, ulong group, float scale,
    ulong n_pieces, __global const CLD_ELEM(Y) *d_o, ulong d_o_at, ulong d_o_ld,
    __global CLD_ELEM(Y) *d_q, ulong d_q_at, ulong d_q_ld, __global float *delta)
{
    LOCAL_SPACE(l);
    const float one[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    ulong n_tiles = (ulong)(n_q + QT - 1) / QT;
    CLD_SHARE (p, n_pieces) {
        struct piece at = piece_at(p, n_tiles, group);
        float4 sums[NC][4], w[4], s[4];
        float norm[4], del[4];
        int4 spans[4];
        int n_visited = 0;
        SYNC; /* the last piece's rows are no longer in use */
        name_query_rows(l.own, at.row, at.head, at.n_heads, n_q);
        SYNC;
        deltas(o + o_at, o_ld, d_o + d_o_at, d_o_ld, l.own, n_q, delta, l.part);
        SYNC;
        load_spans(mask + spans_at, l.own, spans);
        clear(sums);
        for (int r = 0; r < 4; r++) {
            int i = 4 * item_y() + r;
            del[r] = l.part[i];
            norm[r] = 0.0f;
            if (l.own.row[i] >= 0)
                norm[r] = lse[lse_at + (ulong)(l.own.col[i] / D) * lse_ld + (ulong)l.own.row[i]];
        }
        int t_end = mask[ptr_at + at.tile + 1];
        for (int t = mask[ptr_at + at.tile]; t < t_end; t++) {
            int k0 = mask[list_at + t] / 2 * KT;
            bool full = mask[list_at + t] & 1;
            SYNC;
            name_keys(l.visited, k0, at.kv_head, n_keys);
            gemm_xx(q + q_at, q_ld, l.own, k + k_at, k_ld, l.visited, l, w);
            gemm_yx(d_o + d_o_at, d_o_ld, l.own, v + v_at, v_ld, l.visited, l, s);
            for (int r = 0; r < 4; r++) {
                w[r] = exp(fma(w[r], (float4)(scale), (float4)(-norm[r]))) * scale;
                if (!full)
                    w[r] = where_seen(w[r], spans[r], k0 + 4 * item_x(), 0.0f);
                w[r] *= s[r] - del[r];
            }
            put_weights_transposed(w, l);
            ACCUMULATE(X, k + k_at, k_ld, l, sums);
            n_visited++;
        }
        STORE_SUMS(Y, sums, one, d_q + d_q_at, d_q_ld, l.own);
        if (visited && at.head == 0 && get_local_id(0) == 0)
            atomic_add(visited + visited_at, n_visited);
    }
}
