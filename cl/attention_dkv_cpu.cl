/* attention_dkv_cpu.cl - d_k and d_v. A work-item owns the keys of one tile of one KV head and adds
 * up, in a fixed order, what the query tiles that see it and the heads of the group contribute. CPU
 * family. */
#define OWN KT
#include "attention_cpu.clh"

/* The rows of a query tile that see a key of [k0, k0 + KT), as whole register blocks. */
static inline void rows_of_tile(__global const int *spans, int row, int n_q, int k0, bool full,
                                int *first, int *end)
{
    *first = full ? 0 : QT;
    *end = full ? min(QT, n_q - row) : 0;
    for (int i = 0; !full && i < QT && row + i < n_q; i++) {
        int4 s = vload4(row + i, spans);
        if (max(s.x, k0) < min(s.y, k0 + KT) || max(s.z, k0) < min(s.w, k0 + KT)) {
            *first = min(*first, i);
            *end = i + 1;
        }
    }
    *first = *first / M * M;
    *end = (*end + M - 1) / M * M;
}

/* Arguments as in the dQ pass, which wrote delta; list is the one by key tiles: query tiles. */
__kernel void attention_dkv_cpu(__global const CLD_ELEM(X) *q, ulong q_at, ulong q_ld,
                                __global const CLD_ELEM(X) *k, ulong k_at, ulong k_ld,
                                __global const CLD_ELEM(X) *v, ulong v_at, ulong v_ld,
                                __global const float *lse, ulong lse_at, ulong lse_ld,
                                __global const int *mask, ulong spans_at, ulong ptr_at,
                                ulong list_at, __global int *visited, ulong visited_at, int n_q,
                                int n_keys, ulong group, float scale, ulong n_pieces,
                                __global const CLD_ELEM(Y) *d_o, ulong d_o_at, ulong d_o_ld,
                                __global CLD_ELEM(Y) *d_k, ulong d_k_at, ulong d_k_ld,
                                __global CLD_ELEM(Y) *d_v, ulong d_v_at, ulong d_v_ld,
                                __global const float *delta)
{
    float k_own[D * OWN], v_own[D * OWN], k_sums[D * OWN], v_sums[D * OWN];
    float q_rows[HG * QT * DS], d_rows[HG * QT * DS], weights[HG * QT * OWN], d_scores[HG * QT * OWN];
    const float one[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const int16 lane = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    float16 keep[V];
    ulong n_tiles = (ulong)(n_keys + KT - 1) / KT;
    for (int j = 0; j < V; j++)
        keep[j] = (float16)(1.0f);
    CLD_SHARE (p, n_pieces) {
        ulong tile = alternate(p % n_tiles, n_tiles), kv_head = p / n_tiles;
        int k0 = (int)(tile * KT), n_visited = 0;
        for (int j = 0; j < V; j++) {
            COPY_LANES(X, k + k_at + kv_head * D, k_ld, k0 + 16 * j, n_keys, k_own + 16 * j);
            COPY_LANES(X, v + v_at + kv_head * D, v_ld, k0 + 16 * j, n_keys, v_own + 16 * j);
        }
        clear(k_sums);
        clear(v_sums);
        int t_end = mask[ptr_at + tile + 1];
        for (int t = mask[ptr_at + tile]; t < t_end; t++) {
            int row = mask[list_at + t] / 2 * QT, first, end;
            bool full = mask[list_at + t] & 1;
            rows_of_tile(mask + spans_at, row, n_q, k0, full, &first, &end);
            for (ulong g = 0; g < group; g += HG) {
                int n = 0; /* visited rows so far */
                for (ulong h = kv_head * group + g; h < kv_head * group + min(g + HG, group); h++) {
                    COPY_ROWS(X, q + q_at + h * D, q_ld, row + first, end - first, n_q - 1,
                              q_rows + n * DS);
                    COPY_ROWS(Y, d_o + d_o_at + h * D, d_o_ld, row + first, end - first, n_q - 1,
                              d_rows + n * DS);
                    for (int i = first; i < end; i += M, n += M) {
                        float16 s[M][V];
                        product(q_rows + n * DS, k_own, s);
                        for (int m = 0; m < M; m++) {
                            int r = row + i + m;
                            bool real = r < n_q;
                            float norm = real ? lse[lse_at + h * lse_ld + (ulong)r] : 0.0f;
                            int4 span = real ? tidy(vload4(r, mask + spans_at)) : (int4)(0);
                            #pragma unroll
                            for (int j = 0; j < V; j++) {
                                int16 key = lane + (k0 + 16 * j);
                                float16 w = exp(fma(s[m][j], (float16)(scale), (float16)(-norm)));
                                if (!full || !real)
                                    w = select((float16)(0.0f), w,
                                               (as_uint16(key - span.x) < (uint16)(span.y - span.x)) |
                                               (as_uint16(key - span.z) < (uint16)(span.w - span.z)));
                                vstore16(w, j, weights + (n + m) * OWN);
                            }
                        }
                        product(d_rows + n * DS, v_own, s);
                        for (int m = 0; m < M; m++) {
                            int r = min(row + i + m, n_q - 1);
                            float dl = delta[h * (ulong)n_q + (ulong)r];
                            #pragma unroll
                            for (int j = 0; j < V; j++) {
                                float16 w = vload16(j, weights + (n + m) * OWN) * scale;
                                vstore16(w * (s[m][j] - dl), j, d_scores + (n + m) * OWN);
                            }
                        }
                    }
                }
                accumulate(d_rows, weights, n, keep, v_sums);
                accumulate(q_rows, d_scores, n, keep, k_sums);
            }
            n_visited++;
        }
        for (int j = 0; j < V; j++) {
            STORE_LANES(Y, k_sums + 16 * j, one, d_k + d_k_at + kv_head * D, d_k_ld, k0 + 16 * j,
                        n_keys);
            STORE_LANES(Y, v_sums + 16 * j, one, d_v + d_v_at + kv_head * D, d_v_ld, k0 + 16 * j,
                        n_keys);
        }
        if (visited && kv_head == 0)
            atomic_add(visited + visited_at, n_visited);
    }
}
