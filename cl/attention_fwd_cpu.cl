/* attention_fwd_cpu.cl - o and lse: online softmax over the listed key tiles. CPU family. */
#define OWN (QT * HG)
#include "attention_cpu.clh"

/* One tile of scores, n keys by OWN rows: maxima, then weights and their sums. */
static inline void scores(const float *k, const float *q, const struct lanes *spans, int key, int n,
                          bool full, float scale, float *weights, float16 top[V], float16 sum[V],
                          float16 keep[V])
{
    float16 high[V];
    for (int v = 0; v < V; v++)
        high[v] = (float16)(UNSEEN);
    for (int i = 0; i < n; i += M) {
        float16 s[M][V];
        product(k + i * DS, q, s);
        #pragma unroll
        for (int m = 0; m < M; m++)
            #pragma unroll
            for (int v = 0; v < V; v++) {
                if (!full)
                    s[m][v] = select((float16)(UNSEEN), s[m][v],
                                     lanes_seeing(&spans[v % (QT / 16)], key + i + m));
                high[v] = fmax(high[v], s[m][v]);
                vstore16(s[m][v], v, weights + (i + m) * OWN);
            }
    }
    for (int v = 0; v < V; v++) {
        float16 now = fmax(top[v], high[v] * scale), added = (float16)(0.0f);
        for (int i = 0; i < n; i++) {
            float16 s = vload16(v, weights + i * OWN);
            float16 w = exp(fma(s, (float16)(scale), -now));
            if (!full) /* a row that has seen no key yet has `now` near UNSEEN too */
                w = select(w, (float16)(0.0f), s == (float16)(UNSEEN));
            added += w;
            vstore16(w, v, weights + i * OWN);
        }
        keep[v] = exp(top[v] - now);
        sum[v] = fma(sum[v], keep[v], added);
        top[v] = now;
    }
}

/* q, o [n_q, n_heads * D]; k, v [n_keys, n_kv_heads * D], both X; lse [n_heads, n_q] float.
 * spans: 4 ints a query row; list[ptr[t]] .. list[ptr[t + 1] - 1]: tile t's key tiles, 2 * tile +
 * full. visited: a counter of listed tiles, or null. Works on n_pieces = query tiles x KV heads x
 * parts of a group of heads. */
__kernel void attention_fwd_cpu(__global const CLD_ELEM(X) *q, ulong q_at, ulong q_ld,
                                __global const CLD_ELEM(X) *k, ulong k_at, ulong k_ld,
                                __global const CLD_ELEM(X) *v, ulong v_at, ulong v_ld,
                                __global CLD_ELEM(X) *o, ulong o_at, ulong o_ld,
                                __global float *lse, ulong lse_at, ulong lse_ld,
                                __global const int *mask, ulong spans_at, ulong ptr_at,
                                ulong list_at, __global int *visited, ulong visited_at, int n_q,
                                int n_keys, ulong group, float scale, ulong n_pieces)
{
    float own[D * OWN], sums[D * OWN], weights[KT * OWN], rows[KT * DS];
    float16 top[V], sum[V], keep[V];
    struct lanes spans[QT / 16];
    ulong n_tiles = (ulong)(n_q + QT - 1) / QT;
    CLD_SHARE (p, n_pieces) {
        struct q_piece at = q_piece_at(p, n_tiles, group);
        int n_visited = 0;
        for (int i = 0; i < QT / 16; i++)
            spans[i] = load_spans(mask + spans_at, at.row + 16 * i, n_q);
        for (int i = 0; i < V; i++) {
            ulong h = min((ulong)(i / (QT / 16)), at.n_heads - 1); /* idle lanes repeat a head */
            COPY_LANES(X, q + q_at + (at.head + h) * D, q_ld, at.row + i % (QT / 16) * 16, n_q,
                       own + 16 * i);
            top[i] = (float16)(UNSEEN);
            sum[i] = (float16)(0.0f);
        }
        clear(sums);
        int t_end = mask[ptr_at + at.tile + 1];
        for (int t = mask[ptr_at + at.tile]; t < t_end; t++) {
            int k0 = mask[list_at + t] / 2 * KT, first, end;
            bool full = mask[list_at + t] & 1;
            keys_of_tile(spans, k0, full, &first, &end);
            COPY_ROWS(X, k + k_at + at.kv_head * D, k_ld, k0 + first, end - first, n_keys - 1, rows);
            scores(rows, own, spans, k0 + first, end - first, full, scale, weights, top, sum, keep);
            COPY_ROWS(X, v + v_at + at.kv_head * D, v_ld, k0 + first, end - first, n_keys - 1, rows);
            accumulate(rows, weights, end - first, keep, sums);
            n_visited++;
        }
        for (int i = 0; i < V; i++) {
            int row = at.row + i % (QT / 16) * 16;
            ulong h = (ulong)(i / (QT / 16));
            float factor[16], log_sum[16];
            int16 some = sum[i] > (float16)(0.0f);
            if (h >= at.n_heads)
                break;
            vstore16(select((float16)(0.0f), 1.0f / sum[i], some), 0, factor);
            vstore16(select((float16)(0.0f), top[i] + log(sum[i]), some), 0, log_sum);
            STORE_LANES(X, sums + 16 * i, factor, o + o_at + (at.head + h) * D, o_ld, row, n_q);
            for (int j = 0; j < 16 && row + j < n_q; j++)
                lse[lse_at + (at.head + h) * lse_ld + row + j] = log_sum[j];
        }
        if (visited && at.head == 0)
            atomic_add(visited + visited_at, n_visited);
    }
}
