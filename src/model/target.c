#include "model/target.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "formats/safetensors.h"
#include "model/target_tensors.h"
#include "ops/ops.h"
#include "ops/tensor_io.h"

/* See drafter.c: a matrix never has one row. */
static const size_t row_workspace = 16;

/* Kernels take heads of a multiple of 8. Where the model's have another (even) width, each half of
 * a head, as the rotation pairs them, is followed by zeros up to half of head_workspace: in the
 * weights and biases that make q, k and v, in the columns of o_proj, and hence in all that lies
 * between. What depends on the width itself is corrected: the mean of squares of q's and k's norm
 * (by its epsilon and the scale of scores, see score_scale) and the rotary table. */
static const size_t head_unit = 8;

/* --- description ------------------------------------------------------------------------------ */

/* Where a GEMM makes SwiGLU, so many rows of gate's weight and of up's follow each other in turns.
 */
static const size_t turn_rows = 8;

static bool is_in_turns(const struct cld_target *t, const char *name)
{
    return t->fused && (strstr(name, "mlp.gate_proj") || strstr(name, "mlp.up_proj"));
}

/* What projects to n_rows values: a matrix of n_cols columns or, n_cols being 1, a bias. Alone,
 * or from value `first` on of those that a joint one makes. */
struct weight {
    struct cld_tensor *t, *packed;
    size_t n_rows, n_cols, first;
    const char *name;
    bool there;
};

static void plan_matrix(const struct cld_target *t, struct cld_tensor *to, size_t n_rows,
                        size_t n_cols, size_t i, const char *name, struct cld_plan *plan)
{
    cld_plan_tensor(plan, to, t->options.storage, n_rows, n_cols, CLD_FOR_FROZEN,
                    "model.layers.%zu.%s", i, name);
}

static void plan_weight(const struct cld_target *t, const struct weight *w, size_t i,
                        struct cld_plan *plan)
{
    if (!w->packed) {
        plan_matrix(t, w->t, w->n_rows, w->n_cols, i, w->name, plan);
        return;
    }
    bool is_bias = w->packed->n_rows == 1;   /* a row */
    bool in_turns = is_in_turns(t, w->name); /* a row of the tensor is turn_rows of the weight */
    size_t unit = in_turns ? turn_rows : 1;
    cld_plan_part(plan, w->t, w->packed, cld_mul(w->first, w->n_cols),
                  is_bias ? 1 : w->n_rows / unit, is_bias ? w->n_rows : cld_mul(unit, w->n_cols),
                  "model.layers.%zu.%s", i, w->name);
    if (in_turns)
        w->t->ld = cld_mul3(2, unit, w->n_cols);
}

static void plan_packed(struct cld_target *t, size_t i, size_t n_qkv, struct cld_plan *plan)
{
    const struct cld_model_config *c = &t->config;
    struct cld_target_packed *j = &t->packed[i];
    size_t n_gu = cld_mul(2, c->intermediate);
    plan_matrix(t, &j->wqkv, n_qkv, c->hidden, i, "q, k and v", plan);
    plan_matrix(t, &j->wgu, n_gu, c->hidden, i, "gate and up", plan);
    if (c->qkv_bias)
        plan_matrix(t, &j->bqkv, 1, n_qkv, i, "biases of q, k and v", plan);
    if (c->mlp_bias)
        plan_matrix(t, &j->bgu, 1, n_gu, i, "biases of gate and up", plan);
}

static void plan_layer(struct cld_target *t, size_t i, struct cld_plan *plan)
{
    const struct cld_model_config *c = &t->config;
    struct cld_target_layer *l = &t->layers[i];
    struct cld_target_packed *j = &t->packed[i];
    size_t q = c->n_heads * t->head_workspace, kv = c->n_kv_heads * t->head_workspace,
           h = c->hidden;
    size_t n = c->intermediate, n_up = t->fused ? turn_rows : n; /* up's first value */
    const struct weight list[] = {
        {&l->ln1, NULL, 1, h, 0, "input_layernorm.weight", true},
        {&l->wq, &j->wqkv, q, h, 0, "self_attn.q_proj.weight", true},
        {&l->wk, &j->wqkv, kv, h, q, "self_attn.k_proj.weight", true},
        {&l->wv, &j->wqkv, kv, h, q + kv, "self_attn.v_proj.weight", true},
        {&l->wo, NULL, h, q, 0, "self_attn.o_proj.weight", true},
        {&l->qn, NULL, 1, t->head_workspace, 0, "self_attn.q_norm.weight", c->qk_norm},
        {&l->kn, NULL, 1, t->head_workspace, 0, "self_attn.k_norm.weight", c->qk_norm},
        {&l->ln2, NULL, 1, h, 0, "post_attention_layernorm.weight", true},
        {&l->wg, &j->wgu, n, h, 0, "mlp.gate_proj.weight", true},
        {&l->wu, &j->wgu, n, h, n_up, "mlp.up_proj.weight", true},
        {&l->wd, NULL, h, n, 0, "mlp.down_proj.weight", true},
        {&l->bq, &j->bqkv, q, 1, 0, "self_attn.q_proj.bias", c->qkv_bias},
        {&l->bk, &j->bqkv, kv, 1, q, "self_attn.k_proj.bias", c->qkv_bias},
        {&l->bv, &j->bqkv, kv, 1, q + kv, "self_attn.v_proj.bias", c->qkv_bias},
        {&l->bo, NULL, 1, h, 0, "self_attn.o_proj.bias", c->o_bias},
        {&l->bg, &j->bgu, n, 1, 0, "mlp.gate_proj.bias", c->mlp_bias},
        {&l->bu, &j->bgu, n, 1, n_up, "mlp.up_proj.bias", c->mlp_bias},
        {&l->bd, NULL, 1, h, 0, "mlp.down_proj.bias", c->mlp_bias},
    };
    plan_packed(t, i, q + 2 * kv, plan);
    for (size_t k = 0; k < sizeof list / sizeof *list; k++)
        if (list[k].there)
            plan_weight(t, &list[k], i, plan);
}

static void plan_weights(struct cld_target *t, struct cld_plan *plan)
{
    const struct cld_model_config *c = &t->config;
    enum cld_dtype s = t->options.storage;
    cld_plan_tensor(plan, &t->embed, s, c->vocab, c->hidden, CLD_FOR_FROZEN,
                    "model.embed_tokens.weight");
    if (c->tied)
        cld_plan_part(plan, &t->head, &t->embed, 0, c->vocab, c->hidden, "lm_head.weight (tied)");
    else if (!t->options.no_head || t->options.n_logits)
        cld_plan_tensor(plan, &t->head, s, c->vocab, c->hidden, CLD_FOR_FROZEN, "lm_head.weight");
    for (size_t i = 0; i < t->n_layers; i++)
        plan_layer(t, i, plan);
    if (t->options.n_logits || t->options.norm)
        cld_plan_tensor(plan, &t->norm, s, 1, c->hidden, CLD_FOR_FROZEN, "model.norm.weight");
}

static void plan_taps(struct cld_target *t, struct cld_plan *plan)
{
    size_t n = t->options.n_tokens, h = t->config.hidden;
    cld_plan_tensor(plan, &t->taps, t->options.storage, n, t->options.n_taps * h, CLD_FOR_INPUT,
                    "taps");
    for (size_t k = 0; k < t->options.n_taps; k++) {
        cld_plan_part(plan, &t->tap_parts[k], &t->taps, k * h, n, h, "tap %zu", k);
        t->tap_parts[k].ld = t->taps.ld;
    }
}

static size_t n_texts(const struct cld_target *t)
{
    return cld_max(1, t->options.n_texts);
}

static void plan_keys(struct cld_target *t, struct cld_plan *plan)
{
    enum cld_dtype s = t->options.storage;
    size_t kv = t->config.n_kv_heads * t->head_workspace, n_cached = t->options.n_cached;
    size_t n = cld_max(cld_mul(n_texts(t), n_cached), t->options.n_tokens);
    enum cld_purpose p = n_cached ? CLD_FOR_KV_CACHE : CLD_FOR_TEMPORARY;
    for (size_t i = 0; i < t->n_layers; i++) {
        struct cld_target_keys *l = &t->keys[i], *first = t->keys;
        if (n_cached || !i) {
            cld_plan_tensor(plan, &l->k, s, n, kv, p, "target layer %zu k", i);
            if (n_cached)
                cld_plan_tensor(plan, &l->v, s, n, kv, p, "target layer %zu v", i);
            else
                cld_plan_columns(plan, &l->v, &t->v_raw, 0, kv,
                                 "target v"); /* where they are made */
        } else {
            cld_plan_columns(plan, &l->k, &first->k, 0, kv, first->k.name);
            cld_plan_columns(plan, &l->v, &first->v, 0, kv, first->v.name);
        }
    }
}

static void plan_activations(struct cld_target *t, struct cld_plan *plan)
{
    const struct cld_model_config *c = &t->config;
    enum cld_dtype s = t->options.storage;
    size_t n = t->options.n_tokens;
    size_t q = c->n_heads * t->head_workspace, kv = c->n_kv_heads * t->head_workspace;
    const enum cld_purpose p = CLD_FOR_TEMPORARY;
    cld_plan_tensor(plan, &t->ids, CLD_I32, 1, n, CLD_FOR_INPUT, "target ids");
    cld_plan_tensor(plan, &t->positions, CLD_I32, 1, n, CLD_FOR_INPUT, "target positions");
    cld_plan_tensor(plan, &t->rope, CLD_F32, t->options.n_positions, t->head_workspace,
                    CLD_FOR_INPUT, "target rotary table");
    cld_plan_tensor(plan, &t->x, s, n, c->hidden, p, "target x");
    cld_plan_tensor(plan, &t->x_mid, s, n, c->hidden, p, "target x mid");
    cld_plan_tensor(plan, &t->y, s, n, c->hidden, p, "target norm");
    cld_plan_tensor(plan, &t->qkv, s, n, q + 2 * kv, p, "target projections");
    cld_plan_columns(plan, &t->q_raw, &t->qkv, 0, q, "target q projection");
    cld_plan_columns(plan, &t->k_raw, &t->qkv, q, kv, "target k projection");
    cld_plan_columns(plan, &t->v_raw, &t->qkv, q + kv, kv, "target v projection");
    cld_plan_tensor(plan, &t->q_rot, s, n, q, p, "target q");
    if (n_texts(t) > 1) {
        cld_plan_tensor(plan, &t->k_new, s, n, kv, p, "target k of a pass");
        cld_plan_tensor(plan, &t->places, CLD_I32, 1, n, CLD_FOR_INPUT, "target places");
    }
    cld_plan_tensor(plan, &t->o, s, n, q, p, "target attention");
    cld_plan_tensor(plan, &t->lse, CLD_F32, c->n_heads, n, p, "target lse");
    size_t wide = c->intermediate;
    if (!t->fused) {
        cld_plan_tensor(plan, &t->gate_up, s, n, 2 * wide, p, "target gate and up");
        cld_plan_columns(plan, &t->gate, &t->gate_up, 0, wide, "target gate");
        cld_plan_columns(plan, &t->up, &t->gate_up, wide, wide, "target up");
    }
    cld_plan_tensor(plan, &t->act, s, n, wide, p, "target mlp");
    if (t->options.n_logits) {
        cld_plan_tensor(plan, &t->rows, CLD_I32, 1, t->options.n_logits, CLD_FOR_INPUT,
                        "rows of logits");
        cld_plan_tensor(plan, &t->logits, CLD_F32, t->options.n_logits, c->vocab, CLD_FOR_LOSS,
                        "target logits");
    }
    cld_plan_buffer(plan, &t->mask.buf, t->attention.mask_bytes, CLD_FOR_ATTENTION, "target mask");
}

static struct cld_ref bias(const struct cld_tensor *b, bool there)
{
    return there ? CLD_ALL(b) : CLD_NONE;
}

/* How much of a head is not zeros. */
static double head_share(const struct cld_target *t)
{
    return (double)t->config.head_dim / (double)t->head_workspace;
}

/* Norms of q and k divide by the root of a mean over head_workspace: both are too large by the root
 * of head_workspace / head_dim. */
static double score_scale(const struct cld_target *t)
{
    return (t->config.qk_norm ? head_share(t) : 1) / sqrt((double)t->config.head_dim);
}

/* c = x w^T (+ bias) (+ residual). */
static void add_projection(struct cld_target *t, struct cld_ref x, const struct cld_tensor *w,
                           struct cld_ref bias, struct cld_ref residual, struct cld_ref c)
{
    cld_add_gemm(&t->forward, CLD_GEMM_NT, x, CLD_ALL(w), bias, residual, c);
}

/* y = norm(x). */
static struct cld_ref add_norm(struct cld_target *t, const struct cld_tensor *x,
                               const struct cld_tensor *norm)
{
    struct cld_ref y = CLD_CTX(&t->y);
    cld_add_rmsnorm(&t->forward, CLD_CTX(x), CLD_ALL(norm), (float)t->config.rms_norm_eps, y,
                    CLD_NONE);
    return y;
}

/* x = x_mid + mlp(norm(x_mid)). */
static void add_mlp(struct cld_target *t, size_t i)
{
    struct cld_graph *g = &t->forward;
    const struct cld_model_config *c = &t->config;
    const struct cld_target_layer *l = &t->layers[i];
    const struct cld_target_packed *j = &t->packed[i];
    struct cld_ref act = CLD_CTX(&t->act), y = add_norm(t, &t->x_mid, &l->ln2);
    if (t->fused) {
        cld_add_gemm_swiglu(g, y, CLD_ALL(&j->wgu), act);
    } else {
        add_projection(t, y, &j->wgu, bias(&j->bgu, c->mlp_bias), CLD_NONE, CLD_CTX(&t->gate_up));
        cld_add_swiglu(g, CLD_CTX(&t->gate), CLD_CTX(&t->up), act);
    }
    add_projection(t, act, &l->wd, bias(&l->bd, c->mlp_bias), CLD_CTX(&t->x_mid), CLD_CTX(&t->x));
}

static void add_layer(struct cld_target *t, size_t i)
{
    struct cld_graph *g = &t->forward;
    const struct cld_model_config *c = &t->config;
    const struct cld_target_layer *l = &t->layers[i];
    const struct cld_target_packed *j = &t->packed[i];
    const struct cld_target_keys *keys = &t->keys[i];
    /* One text's keys follow each other; those of several are put to their places. */
    bool several = n_texts(t) > 1;
    struct cld_ref k_to = several ? CLD_CTX(&t->k_new) : cld_at_cache(CLD_CTX(&keys->k));
    float head_eps = (float)(c->rms_norm_eps * head_share(t));
    struct cld_ref y = add_norm(t, &t->x, &l->ln1), o = CLD_CTX(&t->o);
    add_projection(t, y, &j->wqkv, bias(&j->bqkv, c->qkv_bias), CLD_NONE, CLD_CTX(&t->qkv));
    cld_add_qknorm_rope(g, CLD_CTX(&t->q_raw), bias(&l->qn, c->qk_norm), head_eps,
                        t->head_workspace, CLD_CTX(&t->positions), CLD_ALL(&t->rope),
                        CLD_CTX(&t->q_rot), CLD_NONE);
    cld_add_qknorm_rope(g, CLD_CTX(&t->k_raw), bias(&l->kn, c->qk_norm), head_eps,
                        t->head_workspace, CLD_CTX(&t->positions), CLD_ALL(&t->rope), k_to,
                        CLD_NONE);
    if (several) {
        cld_add_scatter(g, CLD_CTX(&t->k_new), CLD_CTX(&t->places), CLD_ALL(&keys->k));
        cld_add_scatter(g, CLD_CTX(&t->v_raw), CLD_CTX(&t->places), CLD_ALL(&keys->v));
    } else if (t->options.n_cached) {
        cld_add_copy(g, CLD_CTX(&t->v_raw), cld_at_cache(CLD_CTX(&keys->v)));
    }
    cld_add_attention(g, &t->attention, &t->mask, CLD_CTX(&t->q_rot),
                      several ? CLD_ALL(&keys->k) : CLD_SEEN(&keys->k),
                      several ? CLD_ALL(&keys->v) : CLD_SEEN(&keys->v), o, CLD_ALL(&t->lse));
    add_projection(t, o, &l->wo, bias(&l->bo, c->o_bias), CLD_CTX(&t->x), CLD_CTX(&t->x_mid));
    add_mlp(t, i);
}

static void add_taps(struct cld_target *t, int layer)
{
    for (size_t k = 0; k < t->options.n_taps; k++)
        if (t->options.taps[k] == layer)
            cld_add_copy(&t->forward, CLD_CTX(&t->x), CLD_CTX(&t->tap_parts[k]));
}

static void write_forward(struct cld_target *t)
{
    struct cld_graph *g = &t->forward;
    cld_add_gather(g, CLD_ALL(&t->embed), CLD_CTX(&t->ids), CLD_CTX(&t->x));
    add_taps(t, -1);
    for (size_t i = 0; i < t->n_layers; i++) {
        add_layer(t, i);
        add_taps(t, (int)i);
    }
}

static struct cld_gemm logits_gemm(const struct cld_target *t, const struct cld_tensor *y,
                                   const struct cld_tensor *logits)
{
    return (struct cld_gemm){
        .kind = CLD_GEMM_NT, .backend = t->gemm, .a = y, .b = &t->head, .c = logits};
}

static size_t scratch_bytes(const struct cld_target *t)
{
    size_t n = cld_max(cld_graph_scratch_bytes(t->q, &t->forward), 4);
    if (t->options.n_logits) {
        struct cld_tensor y = cld_tensor_rows(&t->y, 0, t->options.n_logits);
        struct cld_gemm g = logits_gemm(t, &y, &t->logits);
        n = cld_max(n, cld_gemm_scratch_bytes(t->q, &g));
    }
    return n;
}

static enum cld_status check_taps(struct cld_target *t, struct cld_error *err)
{
    t->n_layers = t->options.n_logits ? t->config.n_layers : 0;
    for (size_t k = 0; k < t->options.n_taps; k++) {
        int v = t->options.taps[k];
        if (v < -1 || (v >= 0 && (size_t)v >= t->config.n_layers))
            return cld_fail(err, CLD_E_USAGE, "taps count decoder layers from 0",
                            "tap %d is outside the target's %zu layers", v, t->config.n_layers);
        if (v >= 0 && !t->options.given_taps)
            t->n_layers = cld_max(t->n_layers, (size_t)v + 1);
    }
    return CLD_OK;
}

/* Whether the GEMM of gate and up makes SwiGLU of them. */
static bool gemms_fuse_swiglu(const struct cld_target *t)
{
    const struct cld_model_config *c = &t->config;
    const size_t n = t->options.n_tokens, wide = cld_mul(2, c->intermediate);
    struct cld_tensor y = {"y", CLD_BF16, n, c->hidden, c->hidden, NULL, 0};
    struct cld_tensor w = {"w", CLD_BF16, wide, c->hidden, c->hidden, NULL, 0};
    struct cld_tensor gate_up = {"gate and up", CLD_BF16, n, wide, wide, NULL, 0};
    struct cld_gemm g = {.kind = CLD_GEMM_NT, .backend = t->gemm, .a = &y, .b = &w, .c = &gate_up};
    return t->options.storage == CLD_BF16 && !c->mlp_bias && cld_gemm_makes_swiglu(t->q, &g);
}

static size_t gate_bytes(const struct cld_target *t)
{
    return cld_mul3(t->config.intermediate, t->config.hidden, cld_dtype_bytes(t->options.storage));
}

enum cld_status cld_target_describe(struct cld_target *t, const struct cld_model_config *config,
                                    const struct cld_target_options *options, struct cld_queue *q,
                                    struct cld_plan *plan, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    memset(t, 0, sizeof *t);
    t->config = *config;
    t->options = *options;
    t->options.n_tokens = cld_round_up(cld_max(options->n_tokens, row_workspace), row_workspace);
    t->options.n_logits =
        cld_min(cld_round_up(options->n_logits, row_workspace), t->options.n_tokens);
    t->q = q;
    t->head_workspace = cld_round_up(config->head_dim, head_unit);
    if ((s = check_taps(t, err)))
        return s;
    t->keys = calloc(cld_max(1, t->n_layers), sizeof *t->keys);
    t->layers = calloc(cld_max(1, t->n_layers), sizeof *t->layers);
    t->packed = calloc(cld_max(1, t->n_layers), sizeof *t->packed);
    t->tap_parts = calloc(cld_max(1, options->n_taps), sizeof *t->tap_parts);
    t->n_cached = calloc(n_texts(t), sizeof *t->n_cached);
    if (!t->keys || !t->n_cached || !t->layers || !t->packed || !t->tap_parts)
        return cld_fail_memory(err, "a target of %zu layers", t->n_layers);
    t->fused = gemms_fuse_swiglu(t);
    plan_weights(t, plan);
    plan_taps(t, plan);
    if (options->given_taps)
        return CLD_OK;
    if ((s = cld_attention_plan(
             q, options->attention, t->options.n_tokens,
             cld_max(t->options.n_tokens, cld_mul(n_texts(t), options->n_cached)), config->n_heads,
             config->n_kv_heads, t->head_workspace, options->storage, CLD_F32, false, &t->attention,
             err)))
        return s;
    t->attention.scale = (float)score_scale(t);
    plan_activations(t, plan);
    plan_keys(t, plan);
    write_forward(t);
    t->options.taps = NULL;
    size_t n_scratch_bytes = scratch_bytes(t);
    if (t->fused) /* weights of gate and up pass through it while they are loaded */
        n_scratch_bytes = cld_max(n_scratch_bytes, gate_bytes(t));
    cld_plan_buffer(plan, &t->scratch, n_scratch_bytes, CLD_FOR_TEMPORARY, "target scratch");
    return CLD_OK;
}

void cld_target_free(struct cld_target *t)
{
    if (!t)
        return;
    free(t->layers);
    free(t->packed);
    free(t->tap_parts);
    free(t->keys);
    free(t->n_cached);
    free(t->spans);
    free(t->host_positions);
    free(t->host_places);
    cld_graph_free(&t->forward);
    cld_attention_mask_free(&t->mask);
    memset(t, 0, sizeof *t);
}

/* --- weights ---------------------------------------------------------------------------------- */

/* Calls fn for each weight tensor that this target has, and for an untied head that is not there
 * (without a name): generated weights count tensors. */
static enum cld_status each_weight(struct cld_target *t,
                                   enum cld_status (*fn)(struct cld_target *t, struct cld_tensor *w,
                                                         void *arg, struct cld_error *err),
                                   void *arg, struct cld_error *err)
{
    enum cld_status s = fn(t, &t->embed, arg, err);
    if (!s && !t->config.tied)
        s = fn(t, &t->head, arg, err);
    for (size_t i = 0; i < t->n_layers && !s; i++) {
        struct cld_tensor *first = &t->layers[i].ln1;
        for (size_t k = 0; k < sizeof *t->layers / sizeof *first && !s; k++)
            if (first[k].name)
                s = fn(t, &first[k], arg, err);
    }
    return s || !t->norm.name ? s : fn(t, &t->norm, arg, err);
}

/* How heads lie in a weight: along its rows, along its columns, or not at all. */
struct layout {
    struct cld_spread rows, columns;
};

static struct layout layout_of(const struct cld_target *t, const struct cld_tensor *w)
{
    const struct cld_spread none = {1, 1}, heads = {t->config.head_dim / 2, t->head_workspace / 2};
    if (!strstr(w->name, ".self_attn.") || strstr(w->name, "o_proj.bias"))
        return (struct layout){none, none};
    return strstr(w->name, "o_proj") ? (struct layout){none, heads} : (struct layout){heads, none};
}

/* Where a weight is put in its published shape: into itself or, if its rows are in turns with
 * another's, into the scratch, from which `settle` takes it. */
static struct cld_tensor published(const struct cld_target *t, const struct cld_tensor *w)
{
    if (!is_in_turns(t, w->name))
        return *w;
    size_t n_cols = w->n_cols / turn_rows;
    return (struct cld_tensor){w->name,    w->type, cld_mul(w->n_rows, turn_rows), n_cols, n_cols,
                               t->scratch, 0};
}

static enum cld_status settle(const struct cld_target *t, const struct cld_tensor *w,
                              const struct cld_tensor *from, struct cld_error *err)
{
    struct cld_tensor rows = *from;
    if (!is_in_turns(t, w->name))
        return CLD_OK;
    rows.n_rows = w->n_rows;
    rows.n_cols = rows.ld = w->n_cols;
    return cld_add_tensors(t->q, &rows, NULL, w, err);
}

static enum cld_status load_weight(struct cld_target *t, struct cld_tensor *w, void *arg,
                                   struct cld_error *err)
{
    if (!w->name)
        return CLD_OK;
    struct layout l = layout_of(t, w);
    struct cld_tensor p = published(t, w);
    enum cld_status s = cld_tensor_load_spread(arg, w->name, &p, l.rows, l.columns, err);
    return s ? s : settle(t, w, &p, err);
}

enum cld_status cld_target_upload_rope(struct cld_target *t, struct cld_error *err)
{
    size_t n_bytes = cld_tensor_bytes(&t->rope);
    if (t->options.given_taps)
        return CLD_OK;
    float *table = malloc(n_bytes);
    if (!table)
        return cld_fail_memory(err, "a rotary table");
    cld_rope_table(&t->config.rope, t->config.head_dim, t->rope.n_rows, table);
    /* Last half first: each moves away from the beginning. */
    size_t half = t->config.head_dim / 2, workspace = t->head_workspace / 2;
    for (size_t i = 2 * t->rope.n_rows; half < workspace && i-- > 0;) {
        memmove(table + i * workspace, table + i * half, half * sizeof *table);
        memset(table + i * workspace + half, 0, (workspace - half) * sizeof *table);
    }
    enum cld_status s = cld_buf_write(t->rope.buf, 0, table, n_bytes, err);
    free(table);
    return s;
}

/* Not where the target is described: what does not fit is to be planned, too. */
static enum cld_status prepare(struct cld_target *t, struct cld_error *err)
{
    size_t n = t->options.given_taps ? 0 : t->options.n_tokens;
    if (n && (!(t->spans = calloc(n, sizeof *t->spans)) ||
              !(t->host_positions = calloc(n, sizeof *t->host_positions)) ||
              !(t->host_places = calloc(n, sizeof *t->host_places))))
        return cld_fail_memory(err, "the mask of %zu tokens", n);
    return cld_target_upload_rope(t, err);
}

enum cld_status cld_target_load(struct cld_target *t, const char *dir, struct cld_error *err)
{
    struct cld_safetensors *st = NULL;
    enum cld_status s = cld_safetensors_open(dir, &st, err);
    if (!s && !(s = cld_target_tensors_check(st, &t->config, dir, err)))
        s = each_weight(t, load_weight, st, err);
    cld_safetensors_close(st);
    return s ? s : prepare(t, err);
}

/* Zeros behind the halves of heads, seen as the ends of rows of a matrix of halves. */
static enum cld_status clear_gaps(struct cld_target *t, const struct cld_tensor *w,
                                  struct cld_error *err)
{
    struct layout l = layout_of(t, w);
    bool by_rows = l.rows.run < l.rows.stride;
    size_t unit = by_rows && w->n_rows > 1 ? w->n_cols : 1; /* elements that stay together */
    struct cld_spread heads = by_rows ? l.rows : l.columns;
    struct cld_tensor gaps = *w;
    gaps.ld = heads.stride * unit;
    gaps.n_cols = (heads.stride - heads.run) * unit;
    gaps.n_rows = cld_tensor_elems(w) / gaps.ld;
    gaps.offset = w->offset + heads.run * unit;
    return gaps.n_cols ? cld_fill(t->q, &gaps, 0.0f, err) : CLD_OK;
}

static enum cld_status random_weight(struct cld_target *t, struct cld_tensor *w, void *arg,
                                     struct cld_error *err)
{
    uint64_t *state = arg; /* seed, stream */
    if (!w->name) {
        state[1]++;
        return CLD_OK;
    }
    struct cld_tensor p = published(t, w);
    float deviation = (float)(1.0 / sqrt((double)p.n_cols));
    enum cld_status s = w->n_rows > 1
                            ? cld_fill_normal(t->q, &p, state[0], state[1]++, deviation, err)
                            : cld_fill(t->q, &p, strstr(w->name, "bias") ? 0.0f : 1.0f, err);
    return s || (s = clear_gaps(t, &p, err)) ? s : settle(t, w, &p, err);
}

enum cld_status cld_target_random(struct cld_target *t, uint64_t seed, struct cld_error *err)
{
    uint64_t state[2] = {cld_random_u64(seed, CLD_RANDOM_TARGET, 0, 0, 0), 0};
    enum cld_status s = each_weight(t, random_weight, state, err);
    return s ? s : prepare(t, err);
}

/* --- forward ---------------------------------------------------------------------------------- */

/* n tokens whose spans are set, of n_keys keys; n_cached of a single text are there. */
static enum cld_status run_pass(struct cld_target *t, const int32_t *ids, const int32_t *positions,
                                size_t n, size_t n_cached, size_t n_keys, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const size_t w = sizeof(int32_t);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= t->config.vocab || positions[i] < 0 ||
            (size_t)positions[i] >= t->rope.n_rows)
            return cld_fail(
                err, CLD_E_INPUT,
                "check that the rows were tokenized for this target, and data.max_length",
                "token %zu: id %d or position %d is outside %zu ids, %zu positions", i, (int)ids[i],
                (int)positions[i], t->config.vocab, t->rope.n_rows);
    if (!n)
        return CLD_OK;
    if ((s = cld_attention_mask_set(t->q, &t->attention, t->spans, n, n_keys, &t->mask, err)) ||
        (s = cld_buf_write(t->ids.buf, 0, ids, n * w, err)) ||
        (s = cld_buf_write(t->positions.buf, 0, positions, n * w, err)) ||
        (t->places.buf && (s = cld_buf_write(t->places.buf, 0, t->host_places, n * w, err))))
        return s;
    struct cld_graph_run run = {t->q, {n, 0, n_cached}, t->scratch, t->gemm, NULL, false};
    return cld_graph_run(&t->forward, 0, t->forward.n, &run, err);
}

enum cld_status cld_target_forward(struct cld_target *t, const int32_t *ids,
                                   const int32_t *positions, const int32_t *doc, size_t n,
                                   struct cld_error *err)
{
    if (n > t->options.n_tokens || n_texts(t) > 1)
        return cld_fail(err, CLD_E_INTERNAL, "",
                        "%zu tokens pass the target's plan of %zu, or it keeps %zu texts", n,
                        t->options.n_tokens, n_texts(t));
    t->n_cached[0] = 0;
    cld_mask_causal(doc, n, t->spans);
    return run_pass(t, ids, positions, n, 0, n, err);
}

/* Where the rows of a run stand, and what they see. */
static enum cld_status lay_run(struct cld_target *t, const struct cld_target_run *run, size_t first,
                               struct cld_error *err)
{
    size_t workspace = t->options.n_cached;
    if (run->text >= n_texts(t) || cld_add(first, run->n) > t->options.n_tokens ||
        cld_add(t->n_cached[run->text], run->n) > workspace)
        return cld_fail(err, CLD_E_INTERNAL, "",
                        "%zu tokens of text %zu, row %zu, pass the target's plan: %zu at once, %zu "
                        "kept of each of %zu texts",
                        run->n, run->text, first, t->options.n_tokens, workspace, n_texts(t));
    for (size_t i = 0; i < run->n; i++) {
        size_t at = t->n_cached[run->text] + i, begin = run->text * workspace;
        t->host_positions[first + i] = (int32_t)at;
        t->host_places[first + i] = (int32_t)(begin + at);
        t->spans[first + i] = (struct cld_span){(int32_t)begin, (int32_t)(begin + at + 1), 0, 0};
    }
    return CLD_OK;
}

enum cld_status cld_target_extend(struct cld_target *t, const int32_t *ids,
                                  const struct cld_target_run *runs, size_t n_runs,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = 0, n_before = t->n_cached[0];
    for (size_t i = 0; i < n_runs; i++) {
        if ((s = lay_run(t, &runs[i], n, err)))
            return s;
        n += runs[i].n;
    }
    s = n_texts(t) > 1
            ? run_pass(t, ids, t->host_positions, n, 0, t->n_layers ? t->keys[0].k.n_rows : 0, err)
            : run_pass(t, ids, t->host_positions, n, n_before, n_before + n, err);
    for (size_t i = 0; i < n_runs && !s; i++)
        t->n_cached[runs[i].text] += runs[i].n;
    return s;
}

void cld_target_crop(struct cld_target *t, size_t text, size_t n)
{
    t->n_cached[text] = cld_min(t->n_cached[text], n);
}

enum cld_status cld_target_logits(struct cld_target *t, const int32_t *rows, size_t n,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (n > t->options.n_logits)
        return cld_fail(err, CLD_E_INTERNAL, "", "logits of %zu rows: there is room for %zu", n,
                        t->options.n_logits);
    /* x_mid is free between passes. */
    struct cld_tensor x = cld_tensor_rows(&t->x_mid, 0, n), y = cld_tensor_rows(&t->y, 0, n);
    struct cld_tensor index = cld_tensor_cols(&t->rows, 0, n);
    struct cld_tensor logits = cld_tensor_rows(&t->logits, 0, n);
    struct cld_gemm g = logits_gemm(t, &y, &logits);
    if ((s = cld_buf_write(t->rows.buf, 0, rows, n * sizeof *rows, err)) ||
        (s = cld_gather_rows(t->q, &t->x, &index, &x, err)) ||
        (s = cld_rmsnorm_forward(t->q, &x, &t->norm, (float)t->config.rms_norm_eps, &y, NULL, err)))
        return s;
    return cld_gemm(t->q, &g, t->scratch, err);
}
