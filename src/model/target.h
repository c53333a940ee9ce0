/* target.h - the frozen target model on one queue: weights, forward pass, tapped hidden states.
 *
 * Tap v is the residual stream after decoder layer v (0-based), before the final norm; -1 is the
 * embedding's output. Only layers up to the last tap exist unless logits are asked for. Tokens of
 * several documents stand one after the other; attention is causal inside each.
 *
 * Thread: describe anywhere; the rest belongs to the queue's owner. */
#ifndef CLD_MODEL_TARGET_H
#define CLD_MODEL_TARGET_H

#include "model/graph.h"
#include "model/model_config.h"
#include "model/plan.h"

struct cld_target_options {
    enum cld_dtype storage; /* of weights and activations */
    enum cld_attention_backend attention;
    size_t n_tokens;    /* of one forward, at most */
    size_t n_positions; /* of one document, at most */
    const int *taps;    /* [n_taps], borrowed until _describe returns */
    size_t n_taps;
    size_t n_logits; /* rows whose logits are asked for at once; 0: no final norm, no head */
    size_t n_cached; /* tokens of a text in the KV cache (_extend); 0: no cache */
    size_t n_texts;  /* texts in the KV cache at once; 0: one */
    bool norm, head; /* they are there without n_logits, too: a drafter borrows them */
    struct cld_tensor_sums *sums; /* of tensors as they are loaded, borrowed; NULL: none are kept */
    bool given_taps; /* no layer exists: others fill `taps`; embedding and head are there */
};

/* Matrices are [out, in] as published. */
struct cld_target_layer {
    struct cld_tensor ln1, wq, wk, wv, wo, qn, kn, ln2, wg, wu, wd;
    struct cld_tensor bq, bk, bv, bo, bg, bu, bd; /* biases; used where the config has them */
};

/* Packed matrices and biases of a layer, side by side, so that one GEMM uses all of them. */
struct cld_target_packed {
    struct cld_tensor wqkv, wgu, bqkv, bgu;
};

/* Keys and values of a layer, [n_tokens, kv], shared by all layers. With options.n_cached each
 * layer has its own KV cache, [n_texts * n_cached, kv]: rows [i * n_cached, (i + 1) * n_cached) are
 * text i's. */
struct cld_target_keys {
    struct cld_tensor k, v;
};

struct cld_target {
    struct cld_model_config config;
    struct cld_target_options options;
    struct cld_queue *q;
    size_t n_layers;        /* that run */
    size_t padded_head_dim; /* config.head_dim, rounded up to what kernels accept; see target.c */
    bool fused; /* rows of gate's and up's weights alternate in groups of 8: see op_gemm.h */
    struct cld_tensor embed, head; /* [V, H]; tied: head is embed */
    struct cld_tensor norm;
    struct cld_target_layer *layers;
    struct cld_target_packed *packed; /* [n_layers] */
    struct cld_tensor ids, positions, rope;
    struct cld_tensor x, x_mid, y, q_rot, o, lse;
    struct cld_tensor qkv, q_raw, k_raw, v_raw; /* of a layer's projections: all, and its columns */
    struct cld_tensor gate_up, gate, up, act;
    struct cld_tensor taps;   /* [n_tokens, n_taps * H], tap i in columns [i * H, (i + 1) * H) */
    struct cld_tensor logits; /* [n_logits, V] F32, see cld_target_logits */
    struct cld_target_keys *keys; /* [n_layers] */
    size_t *n_cached;             /* [n_texts] tokens of each that are there now */
    /* With several texts: keys of a pass before they are scattered, and their places. Rows wanted.
     */
    struct cld_tensor k_new, places, rows;
    struct cld_tensor *tap_parts; /* [n_taps] */
    struct cld_attention_plan attention;
    struct cld_attention_mask mask;
    struct cld_buf *scratch;
    struct cld_graph forward;
    struct cld_span *spans; /* [n_tokens], host; once weights are there, like the next */
    int32_t *host_positions, *host_places; /* [n_tokens] */
    enum cld_gemm_backend gemm;
};

/* Declares tensors in `plan` (allocates no memory in proportion to tokens) and writes the list. The
 * embedding always exists; final norm and head do if options ask for them. Free with
 * cld_target_free (host memory only). */
enum cld_status cld_target_describe(struct cld_target *t, const struct cld_model_config *config,
                                    const struct cld_target_options *options, struct cld_queue *q,
                                    struct cld_plan *plan, struct cld_error *err);
void cld_target_free(struct cld_target *t); /* NULL-safe */

/* After cld_plan_create, once: reads the weights of the layers that run from DIR's safetensors.
 * Every shape is checked; CLD_E_INPUT names the tensor. Tensors that the model does not have are
 * refused (target_tensors.h). */
enum cld_status cld_target_load(struct cld_target *t, const char *dir, struct cld_error *err);
/* Instead: generated weights, normal / sqrt(columns), norms near one. */
enum cld_status cld_target_random(struct cld_target *t, uint64_t seed, struct cld_error *err);

/* Uploads the rotary table again, after config.rope was changed. */
enum cld_status cld_target_upload_rope(struct cld_target *t, struct cld_error *err);

/* Runs n tokens: ids [n], positions [n], doc [n] (index of the first token of each one's document).
 * Fills t->taps rows [0, n). Empties the KV cache. Enqueued. */
enum cld_status cld_target_forward(struct cld_target *t, const int32_t *ids,
                                   const int32_t *positions, const int32_t *doc, size_t n,
                                   struct cld_error *err);

/* n tokens of a text. */
struct cld_target_run {
    size_t text, n;
};
/* Incremental decoding, with options.n_cached: runs the tokens of the runs, which follow each other
 * in ids. Each run continues the tokens of its text in the KV cache and is appended to them. A text
 * has one run at most. Fills t->taps rows [0, sum of n). Enqueued. */
enum cld_status cld_target_extend(struct cld_target *t, const int32_t *ids,
                                  const struct cld_target_run *runs, size_t n_runs,
                                  struct cld_error *err);
/* Cuts the KV cache of a text to its first n tokens; 0 begins another text. */
void cld_target_crop(struct cld_target *t, size_t text, size_t n);

/* Logits of these rows of the last _forward or _extend, n <= options.n_logits, into rows [0, n) of
 * t->logits. Enqueued. */
enum cld_status cld_target_logits(struct cld_target *t, const int32_t *rows, size_t n,
                                  struct cld_error *err);

#endif
