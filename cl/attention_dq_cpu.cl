/* attention_dq_cpu.cl - d_q, and delta = rowsum(d_o * o) for the dK/dV pass. CPU family. */
#include "attention_rows_cpu.clh"

/* delta of a panel's lanes, added up in the order of `product`: where a row sees one key only, it
 * equals that key's d_o * v to the bit, and the gradient is zero as it should be. */
static inline float16 deltas(const float *o, const float *d_o)
{
    float16 sum = (float16)(0.0f);
    for (int begin = 0; begin < D; begin += PART) {
        float16 part = (float16)(0.0f);
        for (int d = begin; d < min(begin + PART, D); d++)
            part = fma(vload16(d, o), vload16(d, d_o), part);
        sum += part;
    }
    return sum;
}

/* Gradients of the scores of n visited keys, from `key` on, for the vectors from v0 on. */
static inline void score_grads(const float *k, const float *v_rows, const float *q,
                               const float *d_o, const struct lanes *spans, int v0, int key, int n,
                               bool full, float scale, const float16 *norm, const float16 *delta,
                               float *grads)
{
    for (int i = 0; i < n; i += M) {
        float16 s[M][VB];
        gemm(k + i * DS, q + v0 * PANEL, s);
        #pragma unroll
        for (int m = 0; m < M; m++)
            #pragma unroll
            for (int v = 0; v < VB; v++) {
                float16 w = exp_weight(fma(s[m][v], (float16)(scale), -norm[v0 + v])) * scale;
                if (!full)
                    w = select((float16)(0.0f), w,
                               lanes_seeing(&spans[(v0 + v) % QV], key + i + m));
                vstore16(w, i + m, grads + (v0 + v) * KT * 16);
            }
        gemm(v_rows + i * DS, d_o + v0 * PANEL, s);
        #pragma unroll
        for (int m = 0; m < M; m++)
            #pragma unroll
            for (int v = 0; v < VB; v++) {
                float16 w = vload16(i + m, grads + (v0 + v) * KT * 16);
                vstore16(w * (s[m][v] - delta[v0 + v]), i + m, grads + (v0 + v) * KT * 16);
            }
    }
}

/* delta [n_heads, n_q] float is written here; d_o, d_q are Y; the rest as in the forward pass. */
__kernel void attention_dq_cpu(__global const CLD_ELEM(X) *q, ulong q_at, ulong q_ld,
                               __global const CLD_ELEM(X) *k, ulong k_at, ulong k_ld,
                               __global const CLD_ELEM(X) *v, ulong v_at, ulong v_ld,
                               __global const CLD_ELEM(X) *o, ulong o_at, ulong o_ld,
                               __global const float *lse, ulong lse_at, ulong lse_ld,
                               __global const int *mask, ulong spans_at, ulong ptr_at,
                               ulong list_at, __global int *visited, ulong visited_at, int n_q,
                               int n_keys, ulong group, float scale, ulong n_pieces,
                               __global const CLD_ELEM(Y) *d_o, ulong d_o_at, ulong d_o_ld,
                               __global CLD_ELEM(Y) *d_q, ulong d_q_at, ulong d_q_ld,
                               __global float *delta)
{
    float own[V * PANEL], d_own[V * PANEL], sums[V * PANEL], grads[V * KT * 16];
    float k_rows[KT * DS], v_rows[KT * DS];
    const float one[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    float16 norm[V], del[V], keep[V];
    struct lanes spans[QV];
    ulong n_tiles = (ulong)(n_q + QT - 1) / QT;
    for (int i = 0; i < V; i++)
        keep[i] = (float16)(1.0f);
    CLD_SHARE (p, n_pieces) {
        struct piece at = piece_at(p, n_tiles, group);
        int n_visited = 0;
        for (int i = 0; i < QV; i++)
            spans[i] = load_spans(mask + spans_at, at.row + 16 * i, n_q);
        for (int i = 0; i < V; i++) {
            ulong h = vector_head(at, i);
            int row = vector_row(at, i);
            float norms[16], dels[16];
            COPY_PANEL(X, q + q_at + h * D, q_ld, row, n_q, own + i * PANEL);
            COPY_PANEL(Y, d_o + d_o_at + h * D, d_o_ld, row, n_q, d_own + i * PANEL);
            COPY_PANEL(X, o + o_at + h * D, o_ld, row, n_q, sums + i * PANEL);
            del[i] = deltas(sums + i * PANEL, d_own + i * PANEL);
            vstore16(del[i], 0, dels);
            for (int j = 0; j < 16; j++) {
                bool real = row + j < n_q;
                norms[j] = real ? lse[lse_at + h * lse_ld + row + j] : 0.0f;
                if (real)
                    delta[h * (ulong)n_q + row + j] = dels[j];
            }
            norm[i] = vload16(0, norms);
        }
        clear(sums);
        int t_end = mask[ptr_at + at.tile + 1];
        for (int t = mask[ptr_at + at.tile]; t < t_end; t++) {
            int k0 = mask[list_at + t] / 2 * KT, first, end;
            bool full = mask[list_at + t] & 1;
            keys_of_tile(spans, k0, full, &first, &end);
            int n = end - first, n_copied = whole_blocks(n);
            COPY_ROWS(X, k + k_at + at.kv_head * D, k_ld, k0 + first, n_copied, n_keys - 1, k_rows);
            COPY_ROWS(X, v + v_at + at.kv_head * D, v_ld, k0 + first, n_copied, n_keys - 1, v_rows);
            for (int i = 0; i < V; i += VB)
                score_grads(k_rows, v_rows, own, d_own, spans, i, k0 + first, n, full, scale, norm,
                            del, grads);
            accumulate(k_rows, grads, KT * 16, n, 0, V, keep, sums);
            n_visited++;
        }
        for (int i = 0; i < V && !vector_idle(at, i); i++)
            STORE_PANEL(Y, sums + i * PANEL, one, d_q + d_q_at + vector_head(at, i) * D, d_q_ld,
                        vector_row(at, i), n_q);
        if (visited && at.head == 0)
            atomic_add(visited + visited_at, n_visited);
    }
}
