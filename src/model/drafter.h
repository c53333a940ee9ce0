/* drafter.h - the DFlash drafter: parameters, forward and backward lists, loss, on one queue.
 *
 * Shapes: C context tokens, R = n_blocks * block_size draft rows, H hidden size, D head_dim, K
 * taps, I intermediate, V vocabulary. Context features [C, K*H] come from the target; the embedding
 * and the head [V, H] are the target's, frozen and borrowed. (DFlash, arXiv 2602.06036.)
 *
 *     ctx = rmsnorm(features fc^T)                          once, for all layers
 *     x = embed[draft ids]
 *     layer: y = rmsnorm(x); q = y Wq^T; k, v = [ctx; y] Wk^T, [ctx; y] Wv^T
 *            q, k = rope(head_rmsnorm(q, k)); x += attention(q, k, v) Wo^T
 *            y = rmsnorm(x); x += (silu(y Wg^T) * (y Wu^T)) Wd^T
 *     logits = rmsnorm(x) head^T
 *
 * Thread: describe and plan anywhere; everything after cld_plan_create belongs to the queue's
 * owner. */
#ifndef CLD_MODEL_DRAFTER_H
#define CLD_MODEL_DRAFTER_H

#include "data/batch.h"
#include "model/graph.h"
#include "model/model_config.h"
#include "model/plan.h"

#define CLD_MAX_DRAFT_LAYERS 64
#define CLD_MAX_TAPS         64

/* Parameters, shards and buckets begin at multiples of this many elements: kernels may load whole
 * vectors. */
enum { CLD_PARAM_GRAIN = 64 };

struct cld_drafter_config {
    size_t n_layers, hidden, n_heads, n_kv_heads, head_dim, intermediate, vocab, n_taps;
    size_t block_size;
    bool anchor_first; /* row o predicts the token at anchor + o + 1, not the one at anchor + o */
    int32_t mask_token;
    double rms_norm_eps, rope_theta;
    bool sliding[CLD_MAX_DRAFT_LAYERS]; /* layer slides */
    size_t sliding_window;              /* positions, the row's own included; 0: no layer slides */
    bool sliding_causal;                /* in-block causality of sliding layers */
};

/* Whether any layer slides. */
static inline bool cld_drafter_slides(const struct cld_drafter_config *c)
{
    for (size_t i = 0; i < c->n_layers && i < CLD_MAX_DRAFT_LAYERS; i++)
        if (c->sliding[i])
            return true;
    return false;
}

/* CLD_E_USAGE with the numbers if the geometry makes no sense. */
enum cld_status cld_drafter_config_check(const struct cld_drafter_config *c, struct cld_error *err);

/* A trainable parameter. Matrices come first in every arena, so that weight decay acts on a prefix.
 */
struct cld_param {
    char name[80];         /* as published: "layers.0.self_attn.q_proj.weight" */
    size_t n_rows, n_cols; /* a norm: 1 row */
    bool is_vector;
    bool packed; /* it directly follows the one before it, see struct cld_packed */
    size_t at;   /* element offset in the arenas */
    struct cld_tensor weight, grad;
};

/* What a micro-batch may hold at most, and how the drafter works. */
struct cld_drafter_limits {
    size_t n_ctx, n_blocks; /* of one forward and backward */
    size_t loss_chunk;      /* blocks whose logits exist at once */
    size_t n_positions;     /* rows of the rotary table: context plus a block */
    /* tokens of one text in the KV cache; 0: no cache */
    size_t n_cached;
};
/* The training objective; zero: cross-entropy with the batch's weights. */
struct cld_drafter_objective {
    bool dpace; /* the batch's weights are replaced (cl/dpace.cl) */
    bool soft;  /* the loss is against the target's distribution (cl/soft_targets.cl) */
    float dpace_alpha;
    float soft_share, soft_temperature;
    size_t state_at;               /* soft: first column of the target's last state in `features` */
    const struct cld_tensor *norm; /* soft: the target's final norm, declared in the same plan */
};
struct cld_drafter_options {
    enum cld_dtype storage; /* of weights and activations: F32, or BF16 */
    enum cld_attention_backend attention;
    bool train;     /* gradients and optimizer state exist */
    bool ema;       /* and a moving mean of the weights */
    bool recompute; /* activation recomputation: only inputs of layers live until the backward pass
                     */
    /* With several drafters each has the optimizer state of one shard of the parameters and updates
     * it: the shard-th of n_shards; 0 of 0 or of 1 is the whole. */
    size_t shard, n_shards;
    /* [C, K*H or more], declared in the same plan; NULL: a tensor of its own. Taps come first. */
    const struct cld_tensor *features;
    struct cld_drafter_objective objective;
};

struct cld_packed {
    struct cld_tensor weight, grad;
};

/* Tensors of one layer; drafter_memory.c lists how long each is needed. */
struct cld_drafter_layer {
    struct cld_tensor x_in, rstd1, y1, q_raw, q, rstd_q, k_raw, k, rstd_k, v, o, lse;
    struct cld_tensor x_mid, rstd2, y2, gate_up, gate, up, act; /* gate_up [R, 2 I]: both */
    /* Packed matrices: they follow each other in the arena, so that one GEMM uses all of them. */
    struct cld_packed qkv, kv, gu;
    struct cld_param *ln1, *wq, *wk, *wv, *wo, *qn, *kn, *ln2, *wg, *wu, *wd;
    size_t fwd_first, fwd_n, back_first, back_n; /* their operations in the lists */
    size_t fwd_mlp, back_attention;              /* from these on: of the other half of the layer */
};

/* The table of where each tensor lies (drafter_memory.h). */
struct cld_drafter_row;
struct cld_drafter_memory {
    struct cld_drafter_row *rows;
    size_t n;
};

struct cld_drafter {
    struct cld_drafter_config config;
    struct cld_drafter_limits limits;
    struct cld_drafter_options options;
    struct cld_queue *q;
    const struct cld_tensor *embed, *head; /* borrowed, [V, H] */
    enum cld_gemm_backend gemm;

    struct cld_param *params;
    size_t n_params, n_elems, n_decay; /* arena elements; of matrices */
    struct cld_tensor weights, grads;  /* arenas [1, n_elems] */
    bool grads_are_old;                /* those of matrices, see cld_drafter_forget_grads */
    size_t shard_first, shard_n;    /* elements whose optimizer state is here: [first, first + n) */
    struct cld_tensor master, m, v; /* [1, shard_n]; F32 runs: master is that part of weights */
    struct cld_tensor ema;          /* [1, shard_n] F32, with options.ema: moving mean of master */
    struct cld_tensor shard_sum,
        shard_in; /* with shards: [1, shard_n] F32, see workers/collectives.h */
    struct cld_param *fc, *hidden_norm, *norm;
    struct cld_drafter_memory memory;

    struct cld_tensor features, fc_out, rstd_ctx, ctx; /* [C, K*H], [C, H], [1, C], [C, H] */
    struct cld_tensor positions, draft_ids, rope, visited;
    struct cld_drafter_layer *layers;
    /* With recompute: a layer's tensors but for its input, and at other times those of the loss. */
    struct cld_tensor workspace;
    /* norm1, q and k overlay gate and up; the backward pass recomputes them after the MLP's. */
    bool recomputes_qk;
    /* Without recompute: norm2 and SwiGLU's result have one place for all layers; the backward pass
     * recomputes them before the MLP's, but in the last layer. */
    bool recomputes_mlp;
    struct cld_tensor x_out, rstd_out, z; /* of the last layer, and its norm */
    /* gradients of activations, shared by layers; stored like activations but for d_ctx, F32 */
    struct cld_tensor dz, dx, d_o, d_ctx, d_fc;
    /* d_qkv [C + R, columns of q, k and v], those of q only after the context; views of its columns
     */
    struct cld_tensor d_qkv, d_q, d_k, d_v, d_kv;
    /* loss: supervised rows only */
    struct cld_tensor sup_rows, place, labels, weights_row, ce, hit, zs, dzs, logits, d_logits;
    /* other objectives: the target's last state [C, H], of the rows at work and normalised, the
     * target's logits, and what is known of both logits */
    struct cld_tensor before, state, state_rows, state_normed, target_logits, soft_sums;

    struct cld_attention_plan attention;
    struct cld_attention_mask mask_full, mask_sliding;
    struct cld_buf *scratch;
    size_t scratch_bytes;
    struct cld_graph forward, backward;
    size_t tail_first;      /* backward operations of the final norm come first: [0, tail_first) */
    struct cld_span *spans; /* [draft rows], host, like the next two; from cld_drafter_prepare */
    float *host_ce;
    int32_t *host_hit;
    size_t n_cached; /* tokens in the KV cache now (at most limits.n_cached); set by the caller */
    struct cld_extents extents;
    uint64_t tiles_expected[3]; /* since the last reset: forward, dQ, dK/dV */
    /* Progress of a pass, for collectives; called on its thread, NULL: not called. on_gradients:
     * the kernels that make the first n_done buckets of gradients (cld_drafter_bucket) are
     * enqueued. on_weights: the next kernels read weights of buckets from `first` on. */
    enum cld_status (*on_gradients)(void *arg, size_t n_done, struct cld_error *err);
    enum cld_status (*on_weights)(void *arg, size_t first, struct cld_error *err);
    void *hook_arg;
};

/* Declares every tensor in `plan` and writes the lists. Needs a queue only to choose kernels;
 * creates nothing on it. *d is zeroed first; free with cld_drafter_free, which frees host memory
 * only. */
enum cld_status cld_drafter_describe(struct cld_drafter *d, const struct cld_drafter_config *config,
                                     const struct cld_drafter_limits *limits,
                                     const struct cld_drafter_options *options, struct cld_queue *q,
                                     const struct cld_tensor *embed, const struct cld_tensor *head,
                                     struct cld_plan *plan, struct cld_error *err);
void cld_drafter_free(struct cld_drafter *d); /* NULL-safe */

/* After cld_plan_create, once: uploads the rotary table, allocates the host memory of a
 * micro-batch. */
enum cld_status cld_drafter_prepare(struct cld_drafter *d, struct cld_error *err);

/* Normal(0, std) matrices and norms of one, a pure function of the seed; moments zero. */
enum cld_status cld_drafter_init(struct cld_drafter *d, uint64_t seed, double std,
                                 struct cld_error *err);
/* The parameter with this published name, or NULL. */
struct cld_param *cld_drafter_param(struct cld_drafter *d, const char *name);
/* A parameter's part of one of the arenas, for transfers. */
static inline struct cld_tensor cld_param_part(const struct cld_tensor *arena,
                                               const struct cld_param *p)
{
    struct cld_tensor t = *arena;
    t.n_rows = p->n_rows;
    t.n_cols = t.ld = p->n_cols;
    t.offset += p->at;
    return t;
}
/* Elements [*first, *first + n) of the arenas are shard i of n_shards; returns n. Shards are whole
 * runs of CLD_PARAM_GRAIN elements; the last ones may be short or empty. */
size_t cld_drafter_shard(const struct cld_drafter *d, size_t i, size_t n_shards, size_t *first);
/* A backward pass completes gradients in this order: matrices of the last layer's MLP, of its
 * attention, ..., of layer 0's attention, fc, all vectors; a forward pass needs weights in the
 * reverse one. Each of these parts is cut into as many buckets, so that transfers
 * begin and end soon; buckets of a small part may be empty. */
enum { CLD_PART_BUCKETS = 8 };
static inline size_t cld_drafter_n_buckets_of(const struct cld_drafter_config *c)
{
    return (2 * c->n_layers + 2) * CLD_PART_BUCKETS;
}
static inline size_t cld_drafter_n_buckets(const struct cld_drafter *d)
{
    return cld_drafter_n_buckets_of(&d->config);
}
/* Elements [*first, *first + n) of the arenas are bucket i; returns n. */
size_t cld_drafter_bucket(const struct cld_drafter *d, size_t i, size_t *first);
/* The same for the part of bucket i that is in a shard, the shard-th of options.n_shards. */
size_t cld_drafter_bucket_part(const struct cld_drafter *d, size_t i, size_t shard, size_t *first);
static inline bool cld_drafter_is_sharded(const struct cld_drafter *d)
{
    return d->options.n_shards > 1;
}
/* The arena into which all weights are set: the master weights, or the weights themselves if they
 * are F32 or not trained. If the master is sharded it is the arena of gradients; then call
 * cld_drafter_adopt afterwards. */
const struct cld_tensor *cld_drafter_master(const struct cld_drafter *d);
/* With shards: sets the stored weights and the own shard of the master from the arena of gradients,
 * and zeroes the gradients. Without: does nothing. */
enum cld_status cld_drafter_adopt(struct cld_drafter *d, struct cld_error *err);
/* With options.ema: the mean starts as the weights that were set. */
enum cld_status cld_drafter_begin_ema(struct cld_drafter *d, struct cld_error *err);
/* Between steps: replaces the weights (of its own shard) by their mean, and brings them back, the
 * same bits. Drafters with shards need an all-gather after either. Enqueued. */
enum cld_status cld_drafter_show_ema(struct cld_drafter *d, struct cld_error *err);
enum cld_status cld_drafter_hide_ema(struct cld_drafter *d, struct cld_error *err);
/* Rounds the master to the stored weight, if both exist and the master is whole. */
enum cld_status cld_drafter_round(struct cld_drafter *d, const struct cld_param *p,
                                  struct cld_error *err);
/* Sets or reads one parameter, [n_rows * n_cols] float: the master (and the rounded weight). */
enum cld_status cld_drafter_set(struct cld_drafter *d, const struct cld_param *p, const float *from,
                                struct cld_error *err);
enum cld_status cld_drafter_get(const struct cld_drafter *d, const struct cld_param *p, float *to,
                                struct cld_error *err);

enum cld_drafter_loss_kind { CLD_LOSS_SCORE, CLD_LOSS_GRADIENT };

/* One micro-batch. Features of its context tokens are already in d->features (rows [0, n_ctx)).
 * If d->n_cached tokens are in the KV cache, the batch continues their text: its context tokens are
 * the next ones (cld_batch_continue), and their keys and values are appended to the cache.
 * Uploads the batch, runs forward; then the loss. inv_sum_weight: 1 / sum of weights of the global
 * batch: gradients are scaled by it. CLD_LOSS_GRADIENT: dzs is computed for cld_drafter_backward,
 * by options.objective. The score always holds the cross-entropy with the batch's weights, also
 * with D-PACE, whose own weights change from step to step. Adds to *score. n_supervised = 0 is
 * fine. The head must not change after the first loss. */
enum cld_status cld_drafter_forward(struct cld_drafter *d, const struct cld_batch *b,
                                    struct cld_error *err);
enum cld_status cld_drafter_loss(struct cld_drafter *d, const struct cld_batch *b,
                                 double inv_sum_weight, enum cld_drafter_loss_kind kind,
                                 struct cld_score *score, struct cld_error *err);
/* Logits of draft rows [first, first + n) of the last forward, n <= d->logits' rows, into its rows
 * [0, n). Enqueued. */
enum cld_status cld_drafter_logits(struct cld_drafter *d, size_t first, size_t n,
                                   struct cld_error *err);
/* Adds the gradients of the last forward and loss to the gradient arena, or begins it anew
 * (cld_drafter_forget_grads). */
enum cld_status cld_drafter_backward(struct cld_drafter *d, const struct cld_batch *b,
                                     struct cld_error *err);

/* Before a step: gradients of vectors become zero, those of matrices are overwritten by the first
 * backward pass from now on, which costs less than adding to zeros. Call cld_drafter_finish_grads
 * before gradients are read: if no pass ran since, it makes them zero. */
enum cld_status cld_drafter_forget_grads(struct cld_drafter *d, struct cld_error *err);
enum cld_status cld_drafter_finish_grads(struct cld_drafter *d, struct cld_error *err);

/* Compares the tiles counted on the device since the last call with the count derived from the
 * anchors; CLD_E_NUMERIC names the pass and both numbers. Resets both. */
enum cld_status cld_drafter_check_tiles(struct cld_drafter *d, struct cld_error *err);

#endif
