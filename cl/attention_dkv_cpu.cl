/* attention_dkv_cpu.cl - d_k and d_v. A work-item owns the keys of one tile of one KV head and adds
 * up, in a fixed order, what the query tiles that see it and the heads of the group contribute. CPU
 * family. */
#define V (KT / 16)
#include "attention_cpu.clh"

#define ROWS (HG * QT + M) /* visited at once, with a last block that may be short */

/* What a query tile and an own key tile have to do with each other: rows [row, end) see a key, and
 * only vectors [v_first, v_end) of keys, whole register blocks, are seen. */
struct overlap {
    int row, end, v_first, v_end;
};

static inline struct overlap overlap_of(__global const int *spans, int row, int n_q, int k0,
                                        bool full)
{
    struct overlap o = {row, min(row + QT, n_q), 0, V};
    int first = n_q, end = 0, key = KT, key_end = 0;
    if (full)
        return o;
    for (int r = o.row; r < o.end; r++) {
        int4 s = vload4(r, spans) - k0;
        /* Oclgrind reads a scalar beside a vector as one of undefined lanes. */
        int2 from = max(s.even, (int2)(0)), to = min(s.odd, (int2)(KT));
        if (from.x >= to.x && from.y >= to.y)
            continue;
        first = min(first, r);
        end = r + 1;
        key = min(key, min(from.x < to.x ? from.x : KT, from.y < to.y ? from.y : KT));
        key_end = max(key_end, max(from.x < to.x ? to.x : 0, from.y < to.y ? to.y : 0));
    }
    o.row = first;
    o.end = end;
    o.v_first = key / (16 * VB) * VB;
    o.v_end = (key_end + 16 * VB - 1) / (16 * VB) * VB;
    return o;
}

/* Weights of n visited rows and gradients of their scores, for the vectors of keys from v0 on. */
static inline void weights_and_grads(const float *q_rows, const float *d_rows, const float *k,
                                     const float *v_own, const int4 *spans, const float *norm,
                                     const float *delta, int v0, int key, int n, bool full,
                                     float scale, float *weights, float *grads)
{
    const int16 lane = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int i = 0; i < n; i += M) {
        float16 s[M][VB];
        gemm(q_rows + i * DS, k + v0 * PANEL, s);
        #pragma unroll
        for (int m = 0; m < M; m++)
            #pragma unroll
            for (int v = 0; v < VB; v++) {
                float16 w = exp_weight(fma(s[m][v], (float16)(scale), (float16)(-norm[i + m])));
                if (!full) {
                    int16 at = lane + (key + 16 * (v0 + v));
                    int4 r = spans[i + m];
                    w = select((float16)(0.0f), w, (at >= r.x & at < r.y) | (at >= r.z & at < r.w));
                }
                vstore16(w, i + m, weights + (v0 + v) * ROWS * 16);
            }
        gemm(d_rows + i * DS, v_own + v0 * PANEL, s);
        #pragma unroll
        for (int m = 0; m < M; m++)
            #pragma unroll
            for (int v = 0; v < VB; v++) {
                float16 w = vload16(i + m, weights + (v0 + v) * ROWS * 16) * scale;
                vstore16(w * (s[m][v] - delta[i + m]), i + m, grads + (v0 + v) * ROWS * 16);
            }
    }
}

/* Arguments as in the dQ pass, which wrote delta; the list is by key tiles and names query
 * tiles. */
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
    float k_own[V * PANEL], v_own[V * PANEL], k_sums[V * PANEL], v_sums[V * PANEL];
    float q_rows[ROWS * DS], d_rows[ROWS * DS], weights[V * ROWS * 16], grads[V * ROWS * 16];
    const float one[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    float norm[ROWS], del[ROWS];
    int4 spans[ROWS];
    float16 keep[V];
    ulong n_tiles = (ulong)(n_keys + KT - 1) / KT;
    for (int j = 0; j < V; j++)
        keep[j] = (float16)(1.0f);
    CLD_SHARE (p, n_pieces) {
        ulong tile = tile_interleaved(p % n_tiles, n_tiles), kv_head = p / n_tiles;
        int k0 = (int)(tile * KT), n_visited = 0;
        for (int j = 0; j < V; j++) {
            COPY_PANEL(X, k + k_at + kv_head * D, k_ld, k0 + 16 * j, n_keys, k_own + j * PANEL);
            COPY_PANEL(X, v + v_at + kv_head * D, v_ld, k0 + 16 * j, n_keys, v_own + j * PANEL);
        }
        clear(k_sums);
        clear(v_sums);
        int t_end = mask[ptr_at + tile + 1];
        for (int t = mask[ptr_at + tile]; t < t_end; t++) {
            bool full = mask[list_at + t] & 1;
            int row = mask[list_at + t] / 2 * QT;
            struct overlap o = overlap_of(mask + spans_at, row, n_q, k0, full);
            for (ulong part = 0; part < group; part += HG) {
                int n = 0;
                for (ulong j = part; j < min(part + HG, group); j++) {
                    ulong h = kv_head * group + j;
                    for (int r = o.row; r < o.end; r++, n++) {
                        norm[n] = lse[lse_at + h * lse_ld + (ulong)r];
                        del[n] = delta[h * (ulong)n_q + (ulong)r];
                        spans[n] = vload4(r, mask + spans_at);
                        COPY_ROWS(X, q + q_at + h * D, q_ld, r, 1, r, q_rows + n * DS);
                        COPY_ROWS(Y, d_o + d_o_at + h * D, d_o_ld, r, 1, r, d_rows + n * DS);
                    }
                }
                for (int j = o.v_first; j < o.v_end; j += VB)
                    weights_and_grads(q_rows, d_rows, k_own, v_own, spans, norm, del, j, k0, n,
                                      full, scale, weights, grads);
                accumulate(d_rows, weights, ROWS * 16, n, o.v_first, o.v_end, keep, v_sums);
                accumulate(q_rows, grads, ROWS * 16, n, o.v_first, o.v_end, keep, k_sums);
            }
            n_visited++;
        }
        for (int j = 0; j < V; j++) {
            STORE_PANEL(Y, k_sums + j * PANEL, one, d_k + d_k_at + kv_head * D, d_k_ld, k0 + 16 * j,
                        n_keys);
            STORE_PANEL(Y, v_sums + j * PANEL, one, d_v + d_v_at + kv_head * D, d_v_ld, k0 + 16 * j,
                        n_keys);
        }
        if (visited && kv_head == 0)
            atomic_add(visited + visited_at, n_visited);
    }
}
