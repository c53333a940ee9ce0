/* attention_fwd_cpu.cl - o and lse: online softmax over the listed key tiles. CPU family. */
#include "attention_rows_cpu.clh"

/* Scores of n visited keys, from `key` on, for the vectors from v0 on; `high` collects the
 * largest. */
static inline void scores(const float *k, const float *q, const struct lanes *spans, int v0,
                          int key, int n, bool full, float *weights, float16 *high)
{
    float16 top[VB];
    #pragma unroll
    for (int v = 0; v < VB; v++)
        top[v] = (float16)(UNSEEN);
    for (int i = 0; i < n; i += M) {
        float16 s[M][VB];
        gemm(k + i * DS, q + v0 * PANEL, s);
        #pragma unroll
        for (int m = 0; m < M; m++)
            #pragma unroll
            for (int v = 0; v < VB; v++) {
                if (!full) {
                    int16 seen = lanes_seeing(&spans[(v0 + v) % QV], key + i + m);
                    s[m][v] = select((float16)(UNSEEN), s[m][v], i + m < n ? seen : (int16)(0));
                }
                top[v] = larger(top[v], s[m][v]);
                vstore16(s[m][v], i + m, weights + (v0 + v) * KT * 16);
            }
    }
    #pragma unroll
    for (int v = 0; v < VB; v++)
        high[v0 + v] = top[v];
}

/* Scores become weights relative to the new maximum; *top, *sum and what to keep of old sums
 * follow. */
static inline void softmax(float *weights, int n, bool full, float scale, float16 high,
                           float16 *top, float16 *sum, float16 *keep)
{
    float16 now = larger(*top, high * scale), added = (float16)(0.0f);
    for (int i = 0; i < n; i++) {
        float16 s = vload16(i, weights);
        float16 w = exp_weight(fma(s, (float16)(scale), -now));
        if (!full) /* where no key was seen yet, `now` is as low as the score of a masked key */
            w = select(w, (float16)(0.0f), s == (float16)(UNSEEN));
        added += w;
        vstore16(w, i, weights);
    }
    *keep = exp_weight(*top - now);
    *sum = fma(*sum, *keep, added);
    *top = now;
}

/* q, o [n_q, n_heads * D]; k, v [n_keys, n_kv_heads * D], all X; lse [n_heads, n_q] float.
 * mask: spans, 4 ints a query row; list[ptr[t]] .. list[ptr[t + 1] - 1], the key tiles of query
 * tile t as 2 * tile + full. visited: a counter of listed tiles, or null. n_pieces: query tiles x
 * KV heads x parts of a group of heads. */
__kernel void attention_fwd_cpu(__global const CLD_ELEM(X) *q, ulong q_at, ulong q_ld,
                                __global const CLD_ELEM(X) *k, ulong k_at, ulong k_ld,
                                __global const CLD_ELEM(X) *v, ulong v_at, ulong v_ld,
                                __global CLD_ELEM(X) *o, ulong o_at, ulong o_ld,
                                __global float *lse, ulong lse_at, ulong lse_ld,
                                __global const int *mask, ulong spans_at, ulong ptr_at,
                                ulong list_at, __global int *visited, ulong visited_at, int n_q,
                                int n_keys, ulong group, float scale, ulong n_pieces)
{
    float own[V * PANEL], sums[V * PANEL], weights[V * KT * 16], rows[KT * DS];
    float16 top[V], sum[V], keep[V], high[V];
    struct lanes spans[QV];
    ulong n_tiles = (ulong)(n_q + QT - 1) / QT;
    CLD_SHARE (p, n_pieces) {
        struct piece at = piece_at(p, n_tiles, group);
        int n_visited = 0;
        for (int i = 0; i < QV; i++)
            spans[i] = load_spans(mask + spans_at, at.row + 16 * i, n_q);
        for (int i = 0; i < V; i++) {
            COPY_PANEL(X, q + q_at + vector_head(at, i) * D, q_ld, vector_row(at, i), n_q,
                       own + i * PANEL);
            top[i] = (float16)(UNSEEN);
            sum[i] = (float16)(0.0f);
        }
        clear(sums);
        int t_end = mask[ptr_at + at.tile + 1];
        for (int t = mask[ptr_at + at.tile]; t < t_end; t++) {
            int k0 = mask[list_at + t] / 2 * KT, first, end;
            bool full = mask[list_at + t] & 1;
            keys_of_tile(spans, k0, full, &first, &end);
            int n = end - first, n_copied = whole_blocks(n);
            COPY_ROWS(X, k + k_at + at.kv_head * D, k_ld, k0 + first, n_copied, n_keys - 1, rows);
            for (int i = 0; i < V; i += VB)
                scores(rows, own, spans, i, k0 + first, n, full, weights, high);
            for (int i = 0; i < V; i++)
                softmax(weights + i * KT * 16, n, full, scale, high[i], &top[i], &sum[i], &keep[i]);
            COPY_ROWS(X, v + v_at + at.kv_head * D, v_ld, k0 + first, n, n_keys - 1, rows);
            accumulate(rows, weights, KT * 16, n, 0, V, keep, sums);
            n_visited++;
        }
        for (int i = 0; i < V && !vector_idle(at, i); i++) {
            int row = vector_row(at, i);
            ulong h = vector_head(at, i);
            float factor[16], log_sum[16];
            int16 some = sum[i] != (float16)(0.0f); /* NaN is some */
            vstore16(select((float16)(0.0f), 1.0f / sum[i], some), 0, factor);
            vstore16(select((float16)(0.0f), top[i] + log(sum[i]), some), 0, log_sum);
            STORE_PANEL(X, sums + i * PANEL, factor, o + o_at + h * D, o_ld, row, n_q);
            for (int j = 0; j < 16 && row + j < n_q; j++)
                lse[lse_at + h * lse_ld + row + j] = log_sum[j];
        }
        if (visited && at.head == 0)
            atomic_add(visited + visited_at, n_visited);
    }
}
