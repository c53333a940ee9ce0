/* target_memory.c - the tensors of a target: weights, taps, KV cache, activations. */
#include "model/target_private.h"

/* What projects to n_rows values: a matrix of n_cols columns or, n_cols being 1, a bias. Alone,
 * or from value `first` on of those that a packed one makes. */
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
    bool is_bias = w->packed->n_rows == 1; /* a row */
    bool alternates = cld_target_alternates(
        t, w->name); /* a row of the tensor is cld_target_group_rows of the weight */
    size_t unit = alternates ? cld_target_group_rows : 1;
    cld_plan_part(plan, w->t, w->packed, cld_mul(w->first, w->n_cols),
                  is_bias ? 1 : w->n_rows / unit, is_bias ? w->n_rows : cld_mul(unit, w->n_cols),
                  "model.layers.%zu.%s", i, w->name);
    if (alternates)
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
    size_t q = c->n_heads * t->padded_head_dim, kv = c->n_kv_heads * t->padded_head_dim,
           h = c->hidden;
    size_t n = c->intermediate, n_up = t->fused ? cld_target_group_rows : n; /* up's first value */
    const struct weight list[] = {
        {&l->ln1, NULL, 1, h, 0, "input_layernorm.weight", true},
        {&l->wq, &j->wqkv, q, h, 0, "self_attn.q_proj.weight", true},
        {&l->wk, &j->wqkv, kv, h, q, "self_attn.k_proj.weight", true},
        {&l->wv, &j->wqkv, kv, h, q + kv, "self_attn.v_proj.weight", true},
        {&l->wo, NULL, h, q, 0, "self_attn.o_proj.weight", true},
        {&l->qn, NULL, 1, t->padded_head_dim, 0, "self_attn.q_norm.weight", c->qk_norm},
        {&l->kn, NULL, 1, t->padded_head_dim, 0, "self_attn.k_norm.weight", c->qk_norm},
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

void cld_target_plan_weights(struct cld_target *t, struct cld_plan *plan)
{
    const struct cld_model_config *c = &t->config;
    enum cld_dtype s = t->options.storage;
    cld_plan_tensor(plan, &t->embed, s, c->vocab, c->hidden, CLD_FOR_FROZEN,
                    "model.embed_tokens.weight");
    if (c->tied)
        cld_plan_part(plan, &t->head, &t->embed, 0, c->vocab, c->hidden, "lm_head.weight (tied)");
    else if (t->options.head || t->options.n_logits)
        cld_plan_tensor(plan, &t->head, s, c->vocab, c->hidden, CLD_FOR_FROZEN, "lm_head.weight");
    for (size_t i = 0; i < t->n_layers; i++)
        plan_layer(t, i, plan);
    if (t->options.n_logits || t->options.norm)
        cld_plan_tensor(plan, &t->norm, s, 1, c->hidden, CLD_FOR_FROZEN, "model.norm.weight");
}

void cld_target_plan_taps(struct cld_target *t, struct cld_plan *plan)
{
    size_t n = t->options.n_tokens, h = t->config.hidden;
    cld_plan_tensor(plan, &t->taps, t->options.storage, n, t->options.n_taps * h, CLD_FOR_INPUT,
                    "taps");
    for (size_t k = 0; k < t->options.n_taps; k++) {
        cld_plan_part(plan, &t->tap_parts[k], &t->taps, k * h, n, h, "tap %zu", k);
        t->tap_parts[k].ld = t->taps.ld;
    }
}

void cld_target_plan_keys(struct cld_target *t, struct cld_plan *plan)
{
    enum cld_dtype s = t->options.storage;
    size_t kv = t->config.n_kv_heads * t->padded_head_dim, n_cached = t->options.n_cached;
    size_t n = cld_max(cld_mul(cld_target_n_texts(t), n_cached), t->options.n_tokens);
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

void cld_target_plan_activations(struct cld_target *t, struct cld_plan *plan)
{
    const struct cld_model_config *c = &t->config;
    enum cld_dtype s = t->options.storage;
    size_t n = t->options.n_tokens;
    size_t q = c->n_heads * t->padded_head_dim, kv = c->n_kv_heads * t->padded_head_dim;
    const enum cld_purpose p = CLD_FOR_TEMPORARY;
    cld_plan_tensor(plan, &t->ids, CLD_I32, 1, n, CLD_FOR_INPUT, "target ids");
    cld_plan_tensor(plan, &t->positions, CLD_I32, 1, n, CLD_FOR_INPUT, "target positions");
    cld_plan_tensor(plan, &t->rope, CLD_F32, t->options.n_positions, t->padded_head_dim,
                    CLD_FOR_INPUT, "target rotary table");
    cld_plan_tensor(plan, &t->x, s, n, c->hidden, p, "target x");
    cld_plan_tensor(plan, &t->x_mid, s, n, c->hidden, p, "target x mid");
    cld_plan_tensor(plan, &t->y, s, n, c->hidden, p, "target norm");
    cld_plan_tensor(plan, &t->qkv, s, n, q + 2 * kv, p, "target projections");
    cld_plan_columns(plan, &t->q_raw, &t->qkv, 0, q, "target q projection");
    cld_plan_columns(plan, &t->k_raw, &t->qkv, q, kv, "target k projection");
    cld_plan_columns(plan, &t->v_raw, &t->qkv, q + kv, kv, "target v projection");
    cld_plan_tensor(plan, &t->q_rot, s, n, q, p, "target q");
    if (cld_target_n_texts(t) > 1) {
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
