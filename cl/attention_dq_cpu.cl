/* attention_dq_cpu.cl - d_q, and delta = rowsum(d_o * o) for the dK/dV pass. CPU family. */
#define OWN (QT * HG)
#include "attention_cpu.clh"

/* What 16 own rows hold: delta of the rows [row, row + 16) of one head, also stored to `to`. */
static inline float16 deltas(__global const CLD_ELEM(X) *o, ulong o_ld,
                             __global const CLD_ELEM(Y) *d_o, ulong d_o_ld, int row, int n_q,
                             __global float *to)
{
    float out[16];
    for (int i = 0; i < 16; i++) {
        float8 acc = (float8)(0.0f);
        ulong r = (ulong)(row + i);
        if (row + i < n_q) {
            for (int d = 0; d < D; d += 8)
                acc = fma(CLD_LOAD8(X, o + r * o_ld, d), CLD_LOAD8(Y, d_o + r * d_o_ld, d), acc);
        }
        out[i] = sum4(acc.lo + acc.hi);
        if (row + i < n_q)
            to[r] = out[i];
    }
    return vload16(0, out);
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
    float own[D * OWN], d_own[D * OWN], sums[D * OWN], weights[KT * OWN];
    float k_rows[KT * DS], v_rows[KT * DS];
    float16 norm[V], dl[V], keep[V];
    struct lanes spans[QT / 16];
    ulong n_tiles = (ulong)(n_q + QT - 1) / QT;
    for (int i = 0; i < V; i++)
        keep[i] = (float16)(1.0f);
    CLD_SHARE (p, n_pieces) {
        struct q_piece at = q_piece_at(p, n_tiles, group);
        int n_visited = 0;
        for (int i = 0; i < QT / 16; i++)
            spans[i] = load_spans(mask + spans_at, at.row + 16 * i, n_q);
        for (int i = 0; i < V; i++) {
            ulong h = at.head + min((ulong)(i / (QT / 16)), at.n_heads - 1);
            int row = at.row + i % (QT / 16) * 16;
            float stat[16];
            COPY_LANES(X, q + q_at + h * D, q_ld, row, n_q, own + 16 * i);
            COPY_LANES(Y, d_o + d_o_at + h * D, d_o_ld, row, n_q, d_own + 16 * i);
            dl[i] = deltas(o + o_at + h * D, o_ld, d_o + d_o_at + h * D, d_o_ld, row, n_q,
                           delta + h * (ulong)n_q);
            for (int j = 0; j < 16; j++)
                stat[j] = row + j < n_q ? lse[lse_at + h * lse_ld + row + j] : 0.0f;
            norm[i] = vload16(0, stat);
        }
        clear(sums);
        int t_end = mask[ptr_at + at.tile + 1];
        for (int t = mask[ptr_at + at.tile]; t < t_end; t++) {
            int k0 = mask[list_at + t] / 2 * KT, first, end;
            bool full = mask[list_at + t] & 1;
            keys_of_tile(spans, k0, full, &first, &end);
            int n = end - first;
            COPY_ROWS(X, k + k_at + at.kv_head * D, k_ld, k0 + first, n, n_keys - 1, k_rows);
            COPY_ROWS(X, v + v_at + at.kv_head * D, v_ld, k0 + first, n, n_keys - 1, v_rows);
            for (int i = 0; i < n; i += M) {
                float16 s[M][V];
                product(k_rows + i * DS, own, s);
                #pragma unroll
                for (int m = 0; m < M; m++)
                    #pragma unroll
                    for (int j = 0; j < V; j++) {
                        float16 w = exp(fma(s[m][j], (float16)(scale), -norm[j])) * scale;
                        if (!full)
                            w = select((float16)(0.0f), w,
                                       lanes_seeing(&spans[j % (QT / 16)], k0 + first + i + m));
                        vstore16(w, j, weights + (i + m) * OWN);
                    }
                product(v_rows + i * DS, d_own, s);
                #pragma unroll
                for (int m = 0; m < M; m++)
                    #pragma unroll
                    for (int j = 0; j < V; j++) {
                        float16 w = vload16(j, weights + (i + m) * OWN);
                        vstore16(w * (s[m][j] - dl[j]), j, weights + (i + m) * OWN);
                    }
            }
            accumulate(k_rows, weights, n, keep, sums);
            n_visited++;
        }
        for (int i = 0; i < V; i++) {
            const float one[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
            ulong h = (ulong)(i / (QT / 16));
            if (h >= at.n_heads)
                break;
            STORE_LANES(Y, sums + 16 * i, one, d_q + d_q_at + (at.head + h) * D, d_q_ld,
                        at.row + i % (QT / 16) * 16, n_q);
        }
        if (visited && at.head == 0)
            atomic_add(visited + visited_at, n_visited);
    }
}
