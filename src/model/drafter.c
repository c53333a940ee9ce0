/* drafter.c - what a drafter consists of: parameters, tensors, and the two lists of operations. */
#include "model/drafter.h"

#include <stdlib.h>
#include <string.h>

#include "ops/op_objective.h"
#include "ops/ops.h"

/* Room for rows is rounded up, so that a matrix never has one row (a vector is one row). */
static const size_t row_workspace = 16;

/* Parameters and shards begin at multiples of this many elements: kernels may load whole vectors.
 */
static const size_t shard_grain = 64;

/* Tensors that share a buffer begin at multiples of this. */
static const size_t workspace_grain_bytes = 256;

enum cld_status cld_drafter_config_check(const struct cld_drafter_config *c, struct cld_error *err)
{
    bool slides = false;
    for (size_t i = 0; i < cld_min(c->n_layers, CLD_MAX_DRAFT_LAYERS); i++)
        slides |= c->sliding[i];
    if (!c->n_layers || c->n_layers > CLD_MAX_DRAFT_LAYERS)
        return cld_fail(err, CLD_E_USAGE, "", "a drafter has 1 to %d layers, not %zu",
                        CLD_MAX_DRAFT_LAYERS, c->n_layers);
    if (!c->n_heads || !c->n_kv_heads || c->n_heads % c->n_kv_heads)
        return cld_fail(err, CLD_E_USAGE, "query heads must be a multiple of KV heads",
                        "drafter with %zu query heads and %zu KV heads", c->n_heads, c->n_kv_heads);
    if (!c->head_dim || c->head_dim % 8 || c->head_dim > 256)
        return cld_fail(err, CLD_E_USAGE, "head_dim must be a multiple of 8 up to 256",
                        "drafter with head_dim %zu", c->head_dim);
    if (c->block_size < 2 || c->block_size > 64)
        return cld_fail(err, CLD_E_USAGE, "block sizes from 2 to 64 are supported",
                        "drafter with block_size %zu", c->block_size);
    if (!c->n_taps)
        return cld_fail(err, CLD_E_USAGE, "name target.taps", "a drafter needs at least one tap");
    if (c->mask_token < 0 || (size_t)c->mask_token >= c->vocab)
        return cld_fail(err, CLD_E_USAGE,
                        "choose a reserved token inside the target's embedding, not pad or eos",
                        "mask token %d is outside the embedding of %zu rows", (int)c->mask_token,
                        c->vocab);
    if (c->anchor_first && c->block_size > 63)
        return cld_fail(err, CLD_E_USAGE, "63 tokens and the known one are the most",
                        "an anchor-first drafter with block_size %zu", c->block_size);
    if (slides && c->sliding_window < c->block_size)
        return cld_fail(err, CLD_E_USAGE, "set drafter.sliding_window to block_size or more",
                        "a sliding layer with window %zu and block size %zu", c->sliding_window,
                        c->block_size);
    return CLD_OK;
}

/* --- parameters ------------------------------------------------------------------------------- */

static struct cld_param *add_param(struct cld_drafter *d, const char *name, size_t layer,
                                   size_t n_rows, size_t n_cols)
{
    struct cld_param *p = &d->params[d->n_params++];
    if (layer == SIZE_MAX)
        snprintf(p->name, sizeof p->name, "%s.weight", name);
    else
        snprintf(p->name, sizeof p->name, "layers.%zu.%s.weight", layer, name);
    p->n_rows = n_rows;
    p->n_cols = n_cols;
    p->is_vector = n_rows == 1;
    return p;
}

/* The same, to lie right behind the one before it: see struct cld_packed. */
static struct cld_param *add_joined(struct cld_drafter *d, const char *name, size_t layer,
                                    size_t n_rows, size_t n_cols)
{
    struct cld_param *p = add_param(d, name, layer, n_rows, n_cols);
    p->joined = true;
    return p;
}

static void list_params(struct cld_drafter *d)
{
    const struct cld_drafter_config *c = &d->config;
    size_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    d->fc = add_param(d, "fc", SIZE_MAX, c->hidden, c->n_taps * c->hidden);
    d->hidden_norm = add_param(d, "hidden_norm", SIZE_MAX, 1, c->hidden);
    d->norm = add_param(d, "norm", SIZE_MAX, 1, c->hidden);
    for (size_t i = 0; i < c->n_layers; i++) {
        struct cld_drafter_layer *l = &d->layers[i];
        l->ln1 = add_param(d, "input_layernorm", i, 1, c->hidden);
        l->wq = add_param(d, "self_attn.q_proj", i, q, c->hidden);
        l->wk = add_joined(d, "self_attn.k_proj", i, kv, c->hidden);
        l->wv = add_joined(d, "self_attn.v_proj", i, kv, c->hidden);
        l->wo = add_param(d, "self_attn.o_proj", i, c->hidden, q);
        l->qn = add_param(d, "self_attn.q_norm", i, 1, c->head_dim);
        l->kn = add_param(d, "self_attn.k_norm", i, 1, c->head_dim);
        l->ln2 = add_param(d, "post_attention_layernorm", i, 1, c->hidden);
        l->wg = add_param(d, "mlp.gate_proj", i, c->intermediate, c->hidden);
        l->wu = add_joined(d, "mlp.up_proj", i, c->intermediate, c->hidden);
        l->wd = add_param(d, "mlp.down_proj", i, c->hidden, c->intermediate);
    }
}

/* Places parameters in the arenas: matrices, then vectors, each that is not joined to another
 * aligned so that kernels may load whole vectors. The gaps stay zero. */
static void place_params(struct cld_drafter *d)
{
    const size_t align = shard_grain;
    for (int vectors = 0; vectors < 2; vectors++) {
        for (size_t i = 0; i < d->n_params; i++) {
            struct cld_param *p = &d->params[i];
            if (p->is_vector != vectors)
                continue;
            p->at = p->joined ? d->n_elems : cld_round_up(d->n_elems, align);
            d->n_elems = cld_add(p->at, cld_mul(p->n_rows, p->n_cols));
        }
        d->n_elems = cld_round_up(d->n_elems, align);
        if (!vectors)
            d->n_decay = d->n_elems;
    }
}

size_t cld_drafter_shard(const struct cld_drafter *d, size_t i, size_t n_shards, size_t *first)
{
    size_t n = cld_round_up(cld_div_up(d->n_elems, n_shards), shard_grain);
    *first = cld_min(cld_mul(i, n), d->n_elems);
    return cld_min(n, d->n_elems - *first);
}

/* `first` and those that are joined to it, of n_rows together. */
static void plan_packed(struct cld_drafter *d, struct cld_packed *j, const struct cld_param *first,
                        size_t n_rows, struct cld_plan *plan)
{
    cld_plan_part(plan, &j->weight, &d->weights, first->at, n_rows, first->n_cols, "%s and next",
                  first->name);
    if (d->options.train)
        cld_plan_part(plan, &j->grad, &d->grads, first->at, n_rows, first->n_cols,
                      "grad %s and next", first->name);
}

static void plan_params(struct cld_drafter *d, struct cld_plan *plan)
{
    enum cld_dtype storage = d->options.storage;
    cld_plan_tensor(plan, &d->weights, storage, 1, d->n_elems, CLD_FOR_WEIGHTS, "weights");
    if (d->options.train) {
        size_t n = d->shard_n;
        if (storage == CLD_F32)
            cld_plan_part(plan, &d->master, &d->weights, d->shard_first, 1, n, "master weights");
        else
            cld_plan_tensor(plan, &d->master, CLD_F32, 1, n, CLD_FOR_OPTIMIZER, "master weights");
        cld_plan_tensor(plan, &d->m, CLD_F32, 1, n, CLD_FOR_OPTIMIZER, "first moments");
        cld_plan_tensor(plan, &d->v, CLD_F32, 1, n, CLD_FOR_OPTIMIZER, "second moments");
        if (d->options.ema)
            cld_plan_tensor(plan, &d->ema, CLD_F32, 1, n, CLD_FOR_OPTIMIZER, "mean of weights");
        cld_plan_tensor(plan, &d->grads, CLD_F32, 1, d->n_elems, CLD_FOR_GRADIENTS, "gradients");
        if (cld_drafter_is_sharded(d)) {
            cld_plan_tensor(plan, &d->shard_sum, CLD_F32, 1, n, CLD_FOR_GRADIENTS,
                            "gradient of the shard, summed");
            cld_plan_tensor(plan, &d->shard_in, CLD_F32, 1, n, CLD_FOR_GRADIENTS,
                            "gradient of the shard, of another drafter");
        }
    }
    for (size_t i = 0; i < d->n_params; i++) {
        struct cld_param *p = &d->params[i];
        cld_plan_part(plan, &p->weight, &d->weights, p->at, p->n_rows, p->n_cols, "%s", p->name);
        if (d->options.train)
            cld_plan_part(plan, &p->grad, &d->grads, p->at, p->n_rows, p->n_cols, "grad %s",
                          p->name);
    }
    for (size_t i = 0; i < d->config.n_layers; i++) {
        struct cld_drafter_layer *l = &d->layers[i];
        size_t kv = l->wk->n_rows + l->wv->n_rows;
        plan_packed(d, &l->qkv, l->wq, l->wq->n_rows + kv, plan);
        plan_packed(d, &l->kv, l->wk, kv, plan);
        plan_packed(d, &l->gu, l->wg, l->wg->n_rows + l->wu->n_rows, plan);
    }
}

/* --- tensors ---------------------------------------------------------------------------------- */

/* Columns [first, first + n) of a tensor that is planned. */
static void plan_columns(struct cld_plan *plan, struct cld_tensor *t,
                         const struct cld_tensor *whole, size_t first, size_t n, const char *name)
{
    cld_plan_part(plan, t, whole, first, whole->n_rows, n, "%s", name);
    t->ld = whole->ld;
}

/* Rows of keys: context tokens, of this pass and kept ones, and draft rows. */
static size_t seen_workspace(const struct cld_drafter *d)
{
    return cld_add(cld_max(d->limits.n_ctx, d->limits.n_cached),
                   cld_mul(d->limits.n_blocks, d->config.block_size));
}

/* Whether the tensors of a layer, which all layers share, are one buffer, which the loss uses too.
 */
static bool shares_workspace(const struct cld_drafter *d)
{
    return d->options.train && d->options.recompute;
}

/* `t` at this byte of `whole`. */
static void plan_at(struct cld_plan *plan, struct cld_tensor *t, const struct cld_tensor *whole,
                    size_t at_bytes, enum cld_dtype type, size_t n_rows, size_t n_cols,
                    const char *name)
{
    cld_plan_part(plan, t, whole, 0, n_rows, n_cols, "%s", name);
    t->type = type;
    t->offset = at_bytes / cld_dtype_bytes(type);
}

/* What a layer has beside its input. */
struct layer_tensor {
    struct cld_tensor *t;
    enum cld_dtype type;
    size_t n_rows, n_cols;
    bool seen;  /* by later passes, where keys are kept */
    bool cheap; /* made of others without a product */
    const char *name;
};
enum { n_layer_tensors = 16 };

static void list_layer(const struct cld_drafter *d, struct cld_drafter_layer *l, size_t n_ctx,
                       size_t n_draft, struct layer_tensor list[n_layer_tensors])
{
    const struct cld_drafter_config *c = &d->config;
    const enum cld_dtype s = d->options.storage, f = CLD_F32;
    size_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, keys = n_ctx + n_draft;
    size_t n = n_draft, n_seen = seen_workspace(d), wide = c->intermediate;
    const struct layer_tensor all[n_layer_tensors] = {
        {&l->rstd1, f, 1, n, false, false, "rstd1"},
        {&l->y1, s, n, c->hidden, false, true, "norm1"},
        {&l->q_raw, s, n, q, false, false, "q projection"},
        {&l->q, s, n, q, false, true, "q"},
        {&l->rstd_q, f, n, c->n_heads, false, false, "rstd q"},
        {&l->k_raw, s, keys, kv, false, false, "k projection"},
        {&l->k, s, n_seen, kv, true, true, "k"},
        {&l->rstd_k, f, keys, c->n_kv_heads, false, false, "rstd k"},
        {&l->v, s, n_seen, kv, true, false, "v"},
        {&l->o, s, n, q, false, false, "attention"},
        {&l->lse, f, c->n_heads, n, false, false, "lse"},
        {&l->x_mid, s, n, c->hidden, false, false, "x mid"},
        {&l->rstd2, f, 1, n, false, false, "rstd2"},
        {&l->y2, s, n, c->hidden, false, false, "norm2"},
        {&l->gate_up, s, n, cld_mul(2, wide), false, false, "gate and up"},
        {&l->act, s, n, wide, false, false, "mlp"}};
    memcpy(list, all, sizeof all);
}

static size_t bytes_of(size_t n_rows, size_t n_cols, enum cld_dtype type)
{
    return cld_round_up(cld_mul3(n_rows, n_cols, cld_dtype_bytes(type)), workspace_grain_bytes);
}

/* Gradients through attention, in the place of gate and up, whose own gradients are done by then:
 * of q, k and v side by side, and behind them that of attention's result. */
static size_t attention_grads_elems(const struct cld_drafter *d, size_t n_ctx, size_t n_draft)
{
    const struct cld_drafter_config *c = &d->config;
    size_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    return cld_add(cld_mul(n_ctx + n_draft, cld_add(q, cld_mul(2, kv))), cld_mul(n_draft, q));
}

/* The room, and in it the tensors of a layer one behind the other; behind the gradients through
 * attention, where gate and up are large enough, those that are cheaply made again for it. */
static void plan_workspace(struct cld_drafter *d, const struct layer_tensor *list, size_t n_ctx,
                           size_t n_draft, struct cld_plan *plan)
{
    size_t grads_bytes = bytes_of(1, attention_grads_elems(d, n_ctx, n_draft), d->options.storage);
    size_t n_bytes = 0, at_bytes = 0, cheap_bytes = grads_bytes, gate_up_bytes = 0, gate_up_at = 0;
    for (size_t k = 0; k < n_layer_tensors; k++) {
        size_t own_bytes = bytes_of(list[k].n_rows, list[k].n_cols, list[k].type);
        n_bytes = cld_add(n_bytes, own_bytes);
        if (list[k].cheap)
            cheap_bytes = cld_add(cheap_bytes, own_bytes);
        if (list[k].t == &d->layers[0].gate_up)
            gate_up_bytes = own_bytes;
    }
    d->remakes = cheap_bytes <= gate_up_bytes;
    if (d->remakes)
        n_bytes -= cheap_bytes - grads_bytes;
    cld_plan_tensor(plan, &d->workspace, CLD_F32, 1, n_bytes / sizeof(float), CLD_FOR_ACTIVATIONS,
                    "a layer, or the loss");
    for (size_t k = 0; k < n_layer_tensors; k++) {
        const struct layer_tensor *t = &list[k];
        if (d->remakes && t->cheap)
            continue;
        if (t->t == &d->layers[0].gate_up)
            gate_up_at = at_bytes;
        plan_at(plan, t->t, &d->workspace, at_bytes, t->type, t->n_rows, t->n_cols, t->name);
        at_bytes = cld_add(at_bytes, bytes_of(t->n_rows, t->n_cols, t->type));
    }
    at_bytes = gate_up_at + grads_bytes;
    for (size_t k = 0; k < n_layer_tensors && d->remakes; k++) {
        const struct layer_tensor *t = &list[k];
        if (!t->cheap)
            continue;
        plan_at(plan, t->t, &d->workspace, at_bytes, t->type, t->n_rows, t->n_cols, t->name);
        at_bytes += bytes_of(t->n_rows, t->n_cols, t->type);
    }
}

static void plan_layer(struct cld_drafter *d, size_t i, size_t n_ctx, size_t n_draft,
                       struct cld_plan *plan)
{
    const struct cld_drafter_config *c = &d->config;
    struct cld_drafter_layer *l = &d->layers[i];
    struct layer_tensor list[n_layer_tensors], first[n_layer_tensors];
    /* Without a backward pass, and with recompute, only the layer's input is its own; the rest is
     * shared with the first layer - but not keys and values that later passes see. */
    bool own = i == 0 || (d->options.train && !d->options.recompute);
    enum cld_purpose cached = d->options.train ? CLD_FOR_ACTIVATIONS : CLD_FOR_TEMPORARY;
    list_layer(d, l, n_ctx, n_draft, list);
    list_layer(d, &d->layers[0], n_ctx, n_draft, first);
    /* The first input is gathered again for the backward pass, in the last one's place. */
    if (shares_workspace(d) && i && i + 1 == c->n_layers)
        plan_columns(plan, &l->x_in, &d->layers[0].x_in, 0, c->hidden, "x of the last layer");
    else
        cld_plan_tensor(plan, &l->x_in, d->options.storage, n_draft, c->hidden, cached,
                        "layer %zu x", i);
    if (shares_workspace(d) && !i)
        plan_workspace(d, list, n_ctx, n_draft, plan);
    for (size_t k = 0; k < n_layer_tensors && !(shares_workspace(d) && !i); k++) {
        const struct layer_tensor *t = &list[k];
        bool seen = t->seen && d->limits.n_cached;
        if (own || seen)
            cld_plan_tensor(plan, t->t, t->type, t->n_rows, t->n_cols,
                            seen ? CLD_FOR_KV_CACHE : cached, "layer %zu %s", i, t->name);
        else
            plan_columns(plan, t->t, first[k].t, 0, t->n_cols, t->name);
    }
    plan_columns(plan, &l->gate, &l->gate_up, 0, c->intermediate, "gate");
    plan_columns(plan, &l->up, &l->gate_up, c->intermediate, c->intermediate, "up");
}

/* Whether the product that makes dy of the gradients of gate and up would turn them first, and
 * SwiGLU's kernel can do so. It costs a tensor as large as both, which recompute is to save. */
static bool gemms_transpose(const struct cld_drafter *d)
{
    if (d->options.recompute)
        return false;
    const struct cld_tensor *gate_up = &d->layers[0].gate_up;
    struct cld_gemm g = {.kind = CLD_GEMM_NN,
                         .backend = d->gemm,
                         .a = gate_up,
                         .b = &d->layers[0].gu.weight,
                         .c = &d->layers[0].y2};
    return gate_up->type == CLD_BF16 && d->config.intermediate % 8 == 0 &&
           cld_gemm_transposes_a(d->q, &g);
}

/* The gradient of the context is a sum over all layers and no operand of a product: it stays
 * F32. Those of attention take the place of the MLP's, which is done before; more of them take
 * the places of activations whose last reader is the product for a weight's gradient: see
 * backward_mlp. */
static void plan_gradients(struct cld_drafter *d, size_t n_ctx, size_t n_draft,
                           struct cld_plan *plan)
{
    const struct cld_drafter_config *c = &d->config;
    size_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, keys = n_ctx + n_draft;
    const enum cld_dtype s = d->options.storage;
    const enum cld_purpose t = CLD_FOR_TEMPORARY;
    /* The gradients of the two norms' inputs take their places. */
    cld_plan_part(plan, &d->dx, &d->x_out, 0, n_draft, c->hidden, "dx");
    cld_plan_part(plan, &d->d_fc, &d->fc_out, 0, n_ctx, c->hidden, "d fc");
    struct cld_tensor *mlp = &d->d_mlp_transposed, *qkv = &d->d_qkv;
    const struct cld_tensor *place = shares_workspace(d) ? &d->layers[0].gate_up : mlp;
    size_t n_qkv = cld_add(q, cld_mul(2, kv)), n_elems = cld_mul(keys, n_qkv);
    if (gemms_transpose(d)) {
        cld_plan_tensor(plan, mlp, s, cld_mul(2, c->intermediate), cld_round_up(n_draft, 8), t,
                        "d mlp, turned");
        mlp->n_cols = n_draft;
    }
    if (cld_mul(place->n_rows, place->ld) >= attention_grads_elems(d, n_ctx, n_draft)) {
        cld_plan_part(plan, qkv, place, 0, keys, n_qkv, "d q, k and v");
        cld_plan_part(plan, &d->d_o, place, n_elems, n_draft, q, "d attention");
    } else {
        cld_plan_tensor(plan, qkv, s, keys, n_qkv, t, "d q, k and v");
        cld_plan_tensor(plan, &d->d_o, s, n_draft, q, t, "d attention");
    }
    plan_columns(plan, &d->d_q, qkv, 0, q, "d q");
    plan_columns(plan, &d->d_k, qkv, q, kv, "d k");
    plan_columns(plan, &d->d_v, qkv, q + kv, kv, "d v");
    plan_columns(plan, &d->d_kv, qkv, q, cld_mul(2, kv), "d k and v");
    cld_plan_tensor(plan, &d->d_ctx, CLD_F32, n_ctx, c->hidden, t, "d context");
}

/* Where tensors of the loss go: with recompute one behind the other into the room of a layer, which
 * holds nothing while the loss is at work. */
struct loss_places {
    const struct cld_drafter *d;
    struct cld_plan *plan;
    size_t used_bytes;
};

/* One of them. Without a room it lies in `place`, which the loss finds idle (NULL: none), if it
 * fits; else it is on its own. */
static void plan_of_loss(struct loss_places *p, struct cld_tensor *t,
                         const struct cld_tensor *place, enum cld_dtype type, size_t n_rows,
                         size_t n_cols, const char *name)
{
    const struct cld_tensor *workspace = &p->d->workspace;
    size_t n_bytes = bytes_of(n_rows, n_cols, type);
    if (workspace->n_rows && cld_add(p->used_bytes, n_bytes) <= cld_tensor_bytes(workspace)) {
        plan_at(p->plan, t, workspace, p->used_bytes, type, n_rows, n_cols, name);
        p->used_bytes += n_bytes;
    } else if (place &&
               cld_mul3(n_rows, n_cols, cld_dtype_bytes(type)) <= cld_tensor_bytes(place)) {
        plan_at(p->plan, t, place, place->offset * cld_dtype_bytes(place->type), type, n_rows,
                n_cols, name);
    } else {
        cld_plan_tensor(p->plan, t, type, n_rows, n_cols, CLD_FOR_LOSS, "%s", name);
    }
}

static void plan_soft_targets(struct cld_drafter *d, size_t n_draft, size_t chunk,
                              struct loss_places *places)
{
    const struct cld_drafter_config *c = &d->config;
    const struct cld_tensor *f = d->options.features;
    const enum cld_purpose l = CLD_FOR_LOSS;
    struct cld_plan *plan = places->plan;
    cld_plan_part(plan, &d->state, f, d->options.objective.state_at, d->limits.n_ctx, c->hidden,
                  "the target's last state");
    d->state.ld = f->ld;
    cld_plan_tensor(plan, &d->before, CLD_I32, 1, n_draft, l, "tokens before labels");
    cld_plan_tensor(plan, &d->state_rows, d->options.storage, chunk, c->hidden, l,
                    "last states of a chunk");
    cld_plan_tensor(plan, &d->state_normed, d->options.storage, chunk, c->hidden, l,
                    "last states of a chunk, normalised");
    plan_of_loss(places, &d->target_logits, NULL, CLD_F32, chunk, c->vocab,
                 "the target's logits of a chunk");
    cld_plan_tensor(plan, &d->soft_sums, CLD_F32, 2 * chunk, CLD_SOFT_SUMS, l,
                    "sums of logits of a chunk");
}

static void plan_loss(struct cld_drafter *d, size_t n_draft, struct cld_plan *plan)
{
    const enum cld_dtype s = d->options.storage;
    const struct cld_drafter_config *c = &d->config;
    size_t chunk = cld_min(cld_mul(d->limits.loss_chunk, c->block_size), n_draft);
    const enum cld_purpose l = CLD_FOR_LOSS;
    struct loss_places places = {d, plan, 0};
    cld_plan_tensor(plan, &d->sup_rows, CLD_I32, 1, n_draft, l, "supervised rows");
    cld_plan_tensor(plan, &d->place, CLD_I32, 1, n_draft, l, "places of rows");
    cld_plan_tensor(plan, &d->labels, CLD_I32, 1, n_draft, l, "labels");
    cld_plan_tensor(plan, &d->weights_row, CLD_F32, 1, n_draft, l, "loss weights");
    cld_plan_tensor(plan, &d->ce, CLD_F32, 1, n_draft, l, "cross-entropy");
    cld_plan_tensor(plan, &d->hit, CLD_I32, 1, n_draft, l, "hits");
    plan_of_loss(&places, &d->zs, NULL, s, n_draft, c->hidden, "supervised z");
    plan_of_loss(&places, &d->logits, &d->d_mlp_transposed, CLD_F32, chunk, c->vocab,
                 "logits of a chunk");
    /* z is copied from before there are logits, dz comes after them. */
    if (shares_workspace(d) &&
        cld_mul3(n_draft, c->hidden, cld_dtype_bytes(s)) <= cld_tensor_bytes(&d->logits))
        plan_at(plan, &d->z, &d->logits, d->logits.offset * sizeof(float), s, n_draft, c->hidden,
                "z");
    else
        cld_plan_tensor(plan, &d->z, s, n_draft, c->hidden,
                        d->options.train ? CLD_FOR_ACTIVATIONS : CLD_FOR_TEMPORARY, "z");
    const struct cld_head_loss loss = {
        .gemm = d->gemm, .z = &d->zs, .head = d->head, .logits = &d->logits};
    /* Soft targets write the gradient of the logits plain, and then nothing is turned. */
    if (!d->options.objective.soft && cld_head_loss_transposes(d->q, &loss)) {
        /* Rows of the turned head begin at multiples of 16 bytes. */
        plan_of_loss(&places, &d->head_transposed, NULL, CLD_BF16, c->hidden,
                     cld_round_up(c->vocab, 8), "head, turned");
        d->head_transposed.n_cols = c->vocab;
    }
    if (!d->options.train)
        return;
    if (cld_drafter_head_transposed(d)) {
        plan_of_loss(&places, &d->d_logits, NULL, CLD_BF16, c->vocab, cld_round_up(chunk, 8),
                     "d logits of a chunk, turned");
        d->d_logits.n_cols = chunk;
    } else if (s == CLD_F32) {
        cld_plan_part(plan, &d->d_logits, &d->logits, 0, chunk, c->vocab, "d logits of a chunk");
    } else {
        plan_of_loss(&places, &d->d_logits, NULL, s, chunk, c->vocab, "d logits of a chunk");
    }
    if (d->options.objective.soft)
        plan_soft_targets(d, n_draft, chunk, &places);
    /* A chunk's gradient is made when its logits have been. */
    cld_plan_part(plan, &d->dzs, &d->zs, 0, n_draft, c->hidden, "d supervised z");
    /* Nobody reads z behind the loss. */
    cld_plan_part(plan, &d->dz, &d->z, 0, n_draft, c->hidden, "dz");
}

static void plan_tensors(struct cld_drafter *d, struct cld_plan *plan)
{
    const struct cld_drafter_config *c = &d->config;
    enum cld_dtype s = d->options.storage;
    size_t n_ctx = d->limits.n_ctx, n_draft = d->limits.n_blocks * c->block_size;
    enum cld_purpose cached = d->options.train ? CLD_FOR_ACTIVATIONS : CLD_FOR_TEMPORARY;
    if (d->options.features) {
        cld_plan_part(plan, &d->features, d->options.features, 0, n_ctx, c->n_taps * c->hidden,
                      "features");
        d->features.ld = d->options.features->ld;
    } else
        cld_plan_tensor(plan, &d->features, s, n_ctx, c->n_taps * c->hidden, CLD_FOR_INPUT,
                        "features");
    cld_plan_tensor(plan, &d->positions, CLD_I32, 1, n_ctx + n_draft, CLD_FOR_INPUT, "positions");
    cld_plan_tensor(plan, &d->draft_ids, CLD_I32, 1, n_draft, CLD_FOR_INPUT, "draft ids");
    cld_plan_tensor(plan, &d->rope, CLD_F32, d->limits.n_positions, c->head_dim, CLD_FOR_INPUT,
                    "rotary table");
    cld_plan_tensor(plan, &d->visited, CLD_I32, 1, 4, CLD_FOR_ATTENTION, "tiles visited");
    cld_plan_tensor(plan, &d->fc_out, s, n_ctx, c->hidden, cached, "fc");
    cld_plan_tensor(plan, &d->rstd_ctx, CLD_F32, 1, n_ctx, cached, "context rstd");
    cld_plan_tensor(plan, &d->ctx, s, n_ctx, c->hidden, cached, "context");
    for (size_t i = 0; i < c->n_layers; i++)
        plan_layer(d, i, n_ctx, n_draft, plan);
    cld_plan_tensor(plan, &d->x_out, s, n_draft, c->hidden, cached, "x out");
    cld_plan_tensor(plan, &d->rstd_out, CLD_F32, 1, n_draft, cached, "final rstd");
    if (d->options.train)
        plan_gradients(d, n_ctx, n_draft, plan);
    plan_loss(d, n_draft, plan);
    cld_plan_buffer(plan, &d->mask_full.buf, d->attention.mask_bytes, CLD_FOR_ATTENTION,
                    "mask of full layers");
    if (c->sliding_window)
        cld_plan_buffer(plan, &d->mask_sliding.buf, d->attention.mask_bytes, CLD_FOR_ATTENTION,
                        "mask of sliding layers");
}

/* --- the lists -------------------------------------------------------------------------------- */

static const struct cld_attention_mask *layer_mask(const struct cld_drafter *d, size_t i)
{
    return d->config.sliding[i] ? &d->mask_sliding : &d->mask_full;
}

static void forward_context(struct cld_drafter *d)
{
    struct cld_graph *g = &d->forward;
    float eps = (float)d->config.rms_norm_eps;
    cld_add_gemm(g, CLD_GEMM_NT, CLD_CTX(&d->features), CLD_ALL(&d->fc->weight), CLD_NONE, CLD_NONE,
                 CLD_CTX(&d->fc_out));
    cld_add_rmsnorm(g, CLD_CTX(&d->fc_out), CLD_ALL(&d->hidden_norm->weight), eps, CLD_CTX(&d->ctx),
                    CLD_CTX(&d->rstd_ctx));
}

/* Queries and keys as attention takes them. */
static void add_rotations(struct cld_drafter *d, struct cld_graph *g, struct cld_drafter_layer *l)
{
    const struct cld_drafter_config *c = &d->config;
    float eps = (float)c->rms_norm_eps;
    cld_add_qknorm_rope(g, CLD_DRAFT(&l->q_raw), CLD_ALL(&l->qn->weight), eps, c->head_dim,
                        CLD_AFTER_CONTEXT(&d->positions), CLD_ALL(&d->rope), CLD_DRAFT(&l->q),
                        CLD_DRAFT(&l->rstd_q));
    cld_add_qknorm_rope(g, CLD_KEYS(&l->k_raw), CLD_ALL(&l->kn->weight), eps, c->head_dim,
                        CLD_KEYS(&d->positions), CLD_ALL(&d->rope), cld_at_cache(CLD_KEYS(&l->k)),
                        CLD_KEYS(&l->rstd_k));
}

/* c = x w^T (+ residual). */
static void add_projection(struct cld_drafter *d, struct cld_ref x, const struct cld_tensor *w,
                           struct cld_ref residual, struct cld_ref c)
{
    cld_add_gemm(&d->forward, CLD_GEMM_NT, x, CLD_ALL(w), CLD_NONE, residual, c);
}

static void forward_attention(struct cld_drafter *d, struct cld_drafter_layer *l, size_t i)
{
    struct cld_graph *g = &d->forward;
    float eps = (float)d->config.rms_norm_eps;
    struct cld_ref y = CLD_DRAFT(&l->y1), ctx = CLD_CTX(&d->ctx);
    cld_add_rmsnorm(g, CLD_DRAFT(&l->x_in), CLD_ALL(&l->ln1->weight), eps, y, CLD_DRAFT(&l->rstd1));
    add_projection(d, y, &l->wq->weight, CLD_NONE, CLD_DRAFT(&l->q_raw));
    add_projection(d, y, &l->wk->weight, CLD_NONE, CLD_AFTER_CONTEXT(&l->k_raw));
    add_projection(d, y, &l->wv->weight, CLD_NONE, cld_at_cache(CLD_AFTER_CONTEXT(&l->v)));
    add_projection(d, ctx, &l->wk->weight, CLD_NONE, CLD_CTX(&l->k_raw));
    add_projection(d, ctx, &l->wv->weight, CLD_NONE, cld_at_cache(CLD_CTX(&l->v)));
    add_rotations(d, g, l);
    cld_add_attention(g, &d->attention, layer_mask(d, i), CLD_DRAFT(&l->q), CLD_SEEN(&l->k),
                      CLD_SEEN(&l->v), CLD_DRAFT(&l->o), CLD_ALL(&l->lse));
    add_projection(d, CLD_DRAFT(&l->o), &l->wo->weight, CLD_DRAFT(&l->x_in), CLD_DRAFT(&l->x_mid));
}

static void forward_layer(struct cld_drafter *d, size_t i)
{
    struct cld_graph *g = &d->forward;
    struct cld_drafter_layer *l = &d->layers[i];
    struct cld_tensor *next = i + 1 < d->config.n_layers ? &d->layers[i + 1].x_in : &d->x_out;
    float eps = (float)d->config.rms_norm_eps;
    l->fwd_first = g->n;
    if (!i)
        cld_add_gather(g, CLD_ALL(d->embed), CLD_DRAFT(&d->draft_ids), CLD_DRAFT(&l->x_in));
    forward_attention(d, l, i);
    l->fwd_mlp = g->n;
    cld_add_rmsnorm(g, CLD_DRAFT(&l->x_mid), CLD_ALL(&l->ln2->weight), eps, CLD_DRAFT(&l->y2),
                    CLD_DRAFT(&l->rstd2));
    add_projection(d, CLD_DRAFT(&l->y2), &l->gu.weight, CLD_NONE, CLD_DRAFT(&l->gate_up));
    cld_add_swiglu(g, CLD_DRAFT(&l->gate), CLD_DRAFT(&l->up), CLD_DRAFT(&l->act));
    add_projection(d, CLD_DRAFT(&l->act), &l->wd->weight, CLD_DRAFT(&l->x_mid), CLD_DRAFT(next));
    l->fwd_n = g->n - l->fwd_first;
}

static void write_forward(struct cld_drafter *d)
{
    forward_context(d);
    for (size_t i = 0; i < d->config.n_layers; i++)
        forward_layer(d, i);
    cld_add_rmsnorm(&d->forward, CLD_DRAFT(&d->x_out), CLD_ALL(&d->norm->weight),
                    (float)d->config.rms_norm_eps, CLD_DRAFT(&d->z), CLD_DRAFT(&d->rstd_out));
}

/* dW += dy^T x and, where `dx` is wanted, dx (+)= dy W. `first`: of this matrix in the list. */
static void back_linear(struct cld_graph *g, struct cld_ref dy, struct cld_ref x,
                        const struct cld_tensor *w, const struct cld_tensor *dw, bool first,
                        struct cld_ref dx, bool accumulate)
{
    cld_add_gemm_gradient(g, dy, x, CLD_ALL(dw), first);
    if (dx.t)
        cld_add_gemm(g, CLD_GEMM_NN, dy, CLD_ALL(w), CLD_NONE, accumulate ? dx : CLD_NONE, dx);
}

/* Gradients of act, gate, up and norms take their places: once the gradient of the weight behind an
 * activation is enqueued, nobody needs that any more. */
static void backward_mlp(struct cld_drafter *d, struct cld_drafter_layer *l)
{
    struct cld_graph *g = &d->backward;
    back_linear(g, CLD_DRAFT(&d->dx), CLD_DRAFT(&l->act), &l->wd->weight, &l->wd->grad, true,
                CLD_DRAFT(&l->act), false);
    bool transposed = d->d_mlp_transposed.n_rows > 0;
    struct cld_ref d_transposed =
        transposed ? cld_transposed(CLD_DRAFT(&d->d_mlp_transposed)) : CLD_NONE;
    cld_add_swiglu_back(g, CLD_DRAFT(&l->gate), CLD_DRAFT(&l->up), CLD_DRAFT(&l->act),
                        CLD_DRAFT(&l->gate), CLD_DRAFT(&l->up), d_transposed);
    cld_add_gemm_gradient(g, CLD_DRAFT(&l->gate_up), CLD_DRAFT(&l->y2), CLD_ALL(&l->gu.grad), true);
    cld_add_gemm(g, transposed ? CLD_GEMM_TN : CLD_GEMM_NN,
                 transposed ? d_transposed : CLD_DRAFT(&l->gate_up), CLD_ALL(&l->gu.weight),
                 CLD_NONE, CLD_NONE, CLD_DRAFT(&l->y2));
    cld_add_rmsnorm_back(g, CLD_DRAFT(&l->x_mid), CLD_ALL(&l->ln2->weight), CLD_DRAFT(&l->rstd2),
                         CLD_DRAFT(&l->y2), CLD_DRAFT(&d->dx), CLD_DRAFT(&d->dx),
                         CLD_ALL(&l->ln2->grad));
}

static void backward_attention(struct cld_drafter *d, struct cld_drafter_layer *l, size_t i)
{
    struct cld_graph *g = &d->backward;
    size_t head_dim = d->config.head_dim;
    bool first_seen = i + 1 == d->config.n_layers; /* backward meets the last layer first */
    if (d->remakes) {
        cld_add_rmsnorm(g, CLD_DRAFT(&l->x_in), CLD_ALL(&l->ln1->weight),
                        (float)d->config.rms_norm_eps, CLD_DRAFT(&l->y1), CLD_DRAFT(&l->rstd1));
        add_rotations(d, g, l);
    }
    back_linear(g, CLD_DRAFT(&d->dx), CLD_DRAFT(&l->o), &l->wo->weight, &l->wo->grad, true,
                CLD_DRAFT(&d->d_o), false);
    cld_add_attention_back(g, &d->attention, layer_mask(d, i), CLD_DRAFT(&l->q), CLD_KEYS(&l->k),
                           CLD_KEYS(&l->v), CLD_DRAFT(&l->o), CLD_ALL(&l->lse), CLD_DRAFT(&d->d_o),
                           CLD_AFTER_CONTEXT(&d->d_q), CLD_KEYS(&d->d_k), CLD_KEYS(&d->d_v));
    cld_add_qknorm_rope_back(g, CLD_DRAFT(&l->q_raw), CLD_ALL(&l->qn->weight), head_dim,
                             CLD_AFTER_CONTEXT(&d->positions), CLD_ALL(&d->rope),
                             CLD_DRAFT(&l->rstd_q), CLD_AFTER_CONTEXT(&d->d_q),
                             CLD_AFTER_CONTEXT(&d->d_q), CLD_ALL(&l->qn->grad));
    cld_add_qknorm_rope_back(g, CLD_KEYS(&l->k_raw), CLD_ALL(&l->kn->weight), head_dim,
                             CLD_KEYS(&d->positions), CLD_ALL(&d->rope), CLD_KEYS(&l->rstd_k),
                             CLD_KEYS(&d->d_k), CLD_KEYS(&d->d_k), CLD_ALL(&l->kn->grad));
    back_linear(g, CLD_AFTER_CONTEXT(&d->d_qkv), CLD_DRAFT(&l->y1), &l->qkv.weight, &l->qkv.grad,
                true, CLD_DRAFT(&l->y1), false);
    back_linear(g, CLD_CTX(&d->d_kv), CLD_CTX(&d->ctx), &l->kv.weight, &l->kv.grad, false,
                CLD_CTX(&d->d_ctx), !first_seen);
    cld_add_rmsnorm_back(g, CLD_DRAFT(&l->x_in), CLD_ALL(&l->ln1->weight), CLD_DRAFT(&l->rstd1),
                         CLD_DRAFT(&l->y1), CLD_DRAFT(&d->dx), CLD_DRAFT(&d->dx),
                         CLD_ALL(&l->ln1->grad));
}

static void write_backward(struct cld_drafter *d)
{
    struct cld_graph *g = &d->backward;
    cld_add_rmsnorm_back(g, CLD_DRAFT(&d->x_out), CLD_ALL(&d->norm->weight),
                         CLD_DRAFT(&d->rstd_out), CLD_DRAFT(&d->dz), CLD_NONE, CLD_DRAFT(&d->dx),
                         CLD_ALL(&d->norm->grad));
    d->tail_first = g->n;
    for (size_t i = d->config.n_layers; i-- > 0;) {
        struct cld_drafter_layer *l = &d->layers[i];
        l->back_first = g->n;
        backward_mlp(d, l);
        l->back_attention = g->n;
        backward_attention(d, l, i);
        l->back_n = g->n - l->back_first;
    }
    cld_add_rmsnorm_back(g, CLD_CTX(&d->fc_out), CLD_ALL(&d->hidden_norm->weight),
                         CLD_CTX(&d->rstd_ctx), CLD_CTX(&d->d_ctx), CLD_NONE, CLD_CTX(&d->d_fc),
                         CLD_ALL(&d->hidden_norm->grad));
    back_linear(g, CLD_CTX(&d->d_fc), CLD_CTX(&d->features), &d->fc->weight, &d->fc->grad, true,
                CLD_NONE, false);
}

enum cld_status cld_drafter_describe(struct cld_drafter *d, const struct cld_drafter_config *config,
                                     const struct cld_drafter_limits *limits,
                                     const struct cld_drafter_options *options, struct cld_queue *q,
                                     const struct cld_tensor *embed, const struct cld_tensor *head,
                                     struct cld_plan *plan, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    memset(d, 0, sizeof *d);
    if ((s = cld_drafter_config_check(config, err)))
        return s;
    d->config = *config;
    d->limits = *limits;
    d->options = *options;
    d->limits.n_ctx = cld_round_up(cld_max(limits->n_ctx, row_workspace), row_workspace);
    d->limits.n_blocks = cld_max(
        1, cld_div_up(cld_round_up(cld_mul(limits->n_blocks, config->block_size), row_workspace),
                      config->block_size));
    d->limits.loss_chunk = cld_max(1, limits->loss_chunk);
    d->q = q;
    d->embed = embed;
    d->head = head;
    size_t n_draft = cld_mul(d->limits.n_blocks, config->block_size);
    d->layers = calloc(config->n_layers, sizeof *d->layers);
    d->params = calloc(3 + 11 * config->n_layers, sizeof *d->params);
    if (!d->layers || !d->params)
        return cld_fail(err, CLD_E_MEMORY, "", "no host memory for a drafter of %zu layers",
                        config->n_layers);
    if ((s = cld_attention_plan(q, options->attention, n_draft, seen_workspace(d), config->n_heads,
                                config->n_kv_heads, config->head_dim, options->storage,
                                options->storage, options->train, &d->attention, err)))
        return s;
    list_params(d);
    place_params(d);
    d->shard_n =
        cld_drafter_shard(d, options->shard, cld_max(1, options->n_shards), &d->shard_first);
    if (!d->shard_n)
        return cld_fail(err, CLD_E_USAGE, "take fewer drafters",
                        "%zu drafters share %zu parameters: one would have none", options->n_shards,
                        d->n_elems);
    plan_params(d, plan);
    plan_tensors(d, plan);
    write_forward(d);
    if (options->train)
        write_backward(d);
    d->scratch_bytes =
        cld_max(cld_graph_scratch_bytes(q, &d->forward), cld_graph_scratch_bytes(q, &d->backward));
    struct cld_head_loss loss = {.gemm = d->gemm,
                                 .z = &d->zs,
                                 .head = d->head,
                                 .head_transposed = cld_drafter_head_transposed(d),
                                 .logits = &d->logits,
                                 .d_logits = options->train ? &d->d_logits : NULL,
                                 .dz = options->train ? &d->dzs : NULL};
    d->scratch_bytes = cld_max(d->scratch_bytes, cld_head_loss_scratch_bytes(q, &loss));
    d->scratch_bytes = cld_max(d->scratch_bytes, cld_sum_scratch_bytes(q));
    cld_plan_buffer(plan, &d->scratch, cld_max(d->scratch_bytes, 4), CLD_FOR_TEMPORARY, "scratch");
    return CLD_OK;
}

void cld_drafter_free(struct cld_drafter *d)
{
    if (!d)
        return;
    free(d->layers);
    free(d->params);
    free(d->spans);
    free(d->host_ce);
    free(d->host_hit);
    cld_graph_free(&d->forward);
    cld_graph_free(&d->backward);
    cld_attention_mask_free(&d->mask_full);
    cld_attention_mask_free(&d->mask_sliding);
    memset(d, 0, sizeof *d);
}

struct cld_param *cld_drafter_param(struct cld_drafter *d, const char *name)
{
    for (size_t i = 0; i < d->n_params; i++)
        if (!strcmp(d->params[i].name, name))
            return &d->params[i];
    return NULL;
}
