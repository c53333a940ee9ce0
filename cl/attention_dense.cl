/* attention_dense.cl - attention that stores its scores, forward and backward: an oracle and an
 * explicit setting. One work-item makes one element of the result (or eight along a head), by a
 * plain loop, on any device. Scores are [n_heads, n_q, n_keys] float, and become in place
 * weights and then into their gradients. */
#include "common.clh"

#ifndef X
#define X f32 /* storage of q, k, v, o */
#endif
#ifndef Y
#define Y f32 /* storage of d_o, d_q, d_k, d_v */
#endif

/* Work-items of all groups share n elements. */
#define EACH(e, n)                                                                                \
    CLD_SHARE (piece, ((n) + get_local_size(0) - 1) / get_local_size(0))                          \
        for (ulong e = piece * get_local_size(0) + get_local_id(0); e < (n); e = (n))

static inline bool sees(__global const int *spans, ulong row, ulong key)
{
    int4 s = vload4(row, spans);
    int k = (int)key;
    return (s.x <= k && k < s.y) || (s.z <= k && k < s.w);
}

#define DEFINE_DOT(NAME, A, B)                                                                    \
    static inline float NAME(__global const CLD_ELEM(A) *a, __global const CLD_ELEM(B) *b,        \
                             ulong n)                                                             \
    {                                                                                             \
        float8 acc = (float8)(0.0f);                                                              \
        for (ulong i = 0; i < n; i += 8)                                                          \
            acc = fma(CLD_LOAD8(A, a, i), CLD_LOAD8(B, b, i), acc);                               \
        return sum4(acc.lo + acc.hi);                                                             \
    }
DEFINE_DOT(dot_xx, X, X)
DEFINE_DOT(dot_xy, X, Y)

/* scores = scale * q k^T, or, where lse is given, weights exp(scores - lse); zeros (as weights) or
 * untouched by the reader (as scores) where the row does not see the key. */
__kernel void dense_scores(__global const CLD_ELEM(X) *q, ulong q_at, ulong q_ld,
                           __global const CLD_ELEM(X) *k, ulong k_at, ulong k_ld,
                           __global const float *lse, ulong lse_at, ulong lse_ld,
                           __global const int *spans, __global float *scores, ulong n_heads,
                           ulong group, ulong n_q, ulong n_keys, ulong head_dim, float scale)
{
    EACH (e, n_heads * n_q * n_keys) {
        ulong key = e % n_keys, row = e / n_keys % n_q, h = e / n_keys / n_q;
        float s = 0.0f;
        if (sees(spans, row, key)) {
            s = scale * dot_xx(q + q_at + row * q_ld + h * head_dim,
                               k + k_at + key * k_ld + h / group * head_dim, head_dim);
            if (lse)
                s = exp(s - lse[lse_at + h * lse_ld + row]);
        }
        scores[e] = s;
    }
}

/* Each row of scores becomes weights; lse [n_heads, n_q] is written. */
__kernel void dense_softmax(__global float *scores, __global const int *spans, __global float *lse,
                            ulong lse_at, ulong lse_ld, ulong n_heads, ulong n_q, ulong n_keys)
{
    EACH (e, n_heads * n_q) {
        __global float *s = scores + e * n_keys;
        ulong row = e % n_q;
        float top = -1e30f, sum = 0.0f;
        for (ulong key = 0; key < n_keys; key++)
            if (sees(spans, row, key))
                top = fmax(top, s[key]);
        for (ulong key = 0; key < n_keys; key++) {
            s[key] = sees(spans, row, key) ? exp(s[key] - top) : 0.0f;
            sum += s[key];
        }
        for (ulong key = 0; sum != 0.0f && key < n_keys; key++)
            s[key] /= sum;
        lse[lse_at + e / n_q * lse_ld + row] = sum != 0.0f ? top + log(sum) : 0.0f;
    }
}

/* y [n_q, n_heads * head_dim] = weights x, with x [n_keys, ...] by KV heads: o from v (stored as
 * X), or d_q from k (stored as Y). */
#define DEFINE_BY_ROW(NAME, T)                                                                    \
    __kernel void NAME(__global const float *weights, __global const CLD_ELEM(X) *x, ulong x_at,  \
                       ulong x_ld, __global CLD_ELEM(T) *y, ulong y_at, ulong y_ld,               \
                       ulong n_heads, ulong group, ulong n_q, ulong n_keys, ulong head_dim)       \
    {                                                                                             \
        ulong n_parts = n_heads * head_dim / 8;                                                   \
        EACH (e, n_q * n_parts) {                                                                 \
            ulong row = e / n_parts, col = e % n_parts * 8, h = col / head_dim;                   \
            __global const float *w = weights + (h * n_q + row) * n_keys;                         \
            ulong from = x_at + h / group * head_dim + col % head_dim;                            \
            float8 acc = (float8)(0.0f);                                                          \
            for (ulong key = 0; key < n_keys; key++)                                              \
                acc = fma((float8)(w[key]), CLD_LOAD8(X, x, from + key * x_ld), acc);             \
            CLD_STORE8(T, acc, y, y_at + row * y_ld + col);                                       \
        }                                                                                         \
    }
DEFINE_BY_ROW(dense_o, X)
DEFINE_BY_ROW(dense_dq, Y)

/* y [n_keys, n_kv_heads * head_dim] = weights^T x over rows and heads of a group: d_v from d_o
 * (stored as Y), or d_k from q (stored as X). */
#define DEFINE_BY_KEY(NAME, T)                                                                    \
    __kernel void NAME(__global const float *weights, __global const CLD_ELEM(T) *x, ulong x_at,  \
                       ulong x_ld, __global CLD_ELEM(Y) *y, ulong y_at, ulong y_ld,               \
                       ulong n_heads, ulong group, ulong n_q, ulong n_keys, ulong head_dim)       \
    {                                                                                             \
        ulong n_parts = n_heads / group * head_dim / 8;                                           \
        EACH (e, n_keys * n_parts) {                                                              \
            ulong key = e / n_parts, col = e % n_parts * 8, kv_head = col / head_dim;             \
            float8 acc = (float8)(0.0f);                                                          \
            for (ulong h = kv_head * group; h < (kv_head + 1) * group; h++) {                     \
                __global const float *w = weights + h * n_q * n_keys + key;                       \
                ulong from = x_at + h * head_dim + col % head_dim;                                \
                for (ulong row = 0; row < n_q; row++)                                             \
                    acc = fma((float8)(w[row * n_keys]), CLD_LOAD8(T, x, from + row * x_ld), acc); \
            }                                                                                     \
            CLD_STORE8(Y, acc, y, y_at + key * y_ld + col);                                       \
        }                                                                                         \
    }
DEFINE_BY_KEY(dense_dv, Y)
DEFINE_BY_KEY(dense_dk, X)

/* delta [n_heads, n_q] = rowsum(d_o * o), after the scores */
__kernel void dense_delta(__global const CLD_ELEM(X) *o, ulong o_at, ulong o_ld,
                          __global const CLD_ELEM(Y) *d_o, ulong d_o_at, ulong d_o_ld,
                          __global float *scores, ulong delta_at, ulong n_heads, ulong n_q,
                          ulong head_dim)
{
    __global float *delta = scores + delta_at;
    EACH (e, n_heads * n_q) {
        ulong row = e % n_q, h = e / n_q;
        delta[e] = dot_xy(o + o_at + row * o_ld + h * head_dim,
                          d_o + d_o_at + row * d_o_ld + h * head_dim, head_dim);
    }
}

/* weights become gradients of the scores, times scale: w * (d_o v^T - delta) * scale. */
__kernel void dense_dscores(__global float *weights, __global const CLD_ELEM(X) *v, ulong v_at,
                            ulong v_ld, __global const CLD_ELEM(Y) *d_o, ulong d_o_at,
                            ulong d_o_ld, ulong delta_at, ulong n_heads, ulong group, ulong n_q,
                            ulong n_keys, ulong head_dim, float scale)
{
    __global const float *delta = weights + delta_at;
    EACH (e, n_heads * n_q * n_keys) {
        ulong key = e % n_keys, row = e / n_keys % n_q, h = e / n_keys / n_q;
        float w = weights[e];
        if (w != 0.0f)
            w *= scale * (dot_xy(v + v_at + key * v_ld + h / group * head_dim,
                                 d_o + d_o_at + row * d_o_ld + h * head_dim, head_dim) -
                          delta[h * n_q + row]);
        weights[e] = w;
    }
}
