#include "model/drafter_memory.h"

#include <stdlib.h>

#include "ops/op_objective.h"
#include "ops/ops.h"

/* Tensors that share a buffer begin at multiples of this. */
static const size_t workspace_grain_bytes = 256;

/* A layer has this many tensors besides its input; all others are fewer than the second number. */
enum { n_layer_tensors = 16, most_other_rows = 48 };

/* Whether the tensors of a layer, which all layers share, are one buffer, which the loss uses too.
 */
static bool has_workspace(const struct cld_drafter *d)
{
    return d->options.train && d->options.recompute;
}

/* Without a backward pass, and with recompute, layers share what they need besides their input. */
static bool layers_share(const struct cld_drafter *d)
{
    return !d->options.train || d->options.recompute;
}

static size_t rounded_bytes_of(const struct cld_drafter_row *r)
{
    return cld_round_up(cld_drafter_row_bytes(r), workspace_grain_bytes);
}

static size_t draft_rows(const struct cld_drafter *d)
{
    return d->limits.n_blocks * d->config.block_size;
}

/* --- the table -------------------------------------------------------------------------------- */

static void add_row(struct cld_drafter *d, struct cld_drafter_row row)
{
    row.base = d->memory.n;
    /* Operations are asked what they need by these shapes. */
    *row.t = (struct cld_tensor){NULL, row.type, row.n_rows, row.n_cols, cld_drafter_row_ld(&row),
                                 NULL, 0};
    d->memory.rows[d->memory.n++] = row;
}

static void add_rows(struct cld_drafter *d, const struct cld_drafter_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        add_row(d, rows[i]);
}

/* The number of the row of a tensor; SIZE_MAX: it has none. */
static size_t find_row(const struct cld_drafter_memory *m, const struct cld_tensor *t)
{
    for (size_t i = 0; i < m->n; i++)
        if (m->rows[i].t == t)
            return i;
    return SIZE_MAX;
}

/* Rows of keys: context tokens, of this pass or of the KV cache, and draft rows. */
static size_t seen_rows(const struct cld_drafter *d)
{
    return cld_add(cld_max(d->limits.n_ctx, d->limits.n_cached), draft_rows(d));
}

/* Columns of a row: first use, last use in the forward pass and loss, last use in training. */
#define USES(first_, last_, last_back_)                                                            \
    .first = CLD_STEP_##first_, .last = CLD_STEP_##last_, .last_back = CLD_STEP_##last_back_
/* And where it is to lie. */
#define OWN            CLD_PLACE_OWN, NULL, 0
#define OVER(t)        CLD_PLACE_OVER, t, 0
#define IN_PLACE_OF(t) CLD_PLACE_IN_PLACE, t, 0
#define N_ROWS(rows)   (sizeof(rows) / sizeof *(rows))

static enum cld_purpose activations(const struct cld_drafter *d)
{
    return d->options.train ? CLD_FOR_ACTIVATIONS : CLD_FOR_TEMPORARY;
}

static void list_inputs(struct cld_drafter *d)
{
    const struct cld_drafter_config *c = &d->config;
    const enum cld_dtype s = d->options.storage, f = CLD_F32, i = CLD_I32;
    const enum cld_purpose in = CLD_FOR_INPUT, act = activations(d);
    const int once = CLD_ROW_ONCE;
    size_t n_ctx = d->limits.n_ctx, n = draft_rows(d), h = c->hidden;
    const struct cld_drafter_row rows[] = {
        {&d->positions, "positions", i, 1, n_ctx + n, USES(INPUT, ROTATE, ROTATE_BACK), OWN, in,
         once},
        {&d->draft_ids, "draft ids", i, 1, n, USES(INPUT, LAYER_INPUT, NORM1_BACK), OWN, in, once},
        {&d->rope, "rotary table", f, d->limits.n_positions, c->head_dim,
         USES(INPUT, ROTATE, ROTATE_BACK), OWN, in, once},
        {&d->visited, "tiles visited", i, 1, 4, USES(INPUT, ATTENTION, CONTEXT_BACK), OWN,
         CLD_FOR_ATTENTION, once},
        {&d->fc_out, "fc", s, n_ctx, h, USES(CONTEXT, CONTEXT, CONTEXT_BACK), OWN, act, once},
        {&d->rstd_ctx, "context rstd", f, 1, n_ctx, USES(CONTEXT, CONTEXT, CONTEXT_BACK), OWN, act,
         once},
        {&d->ctx, "context", s, n_ctx, h, USES(CONTEXT, QKV, QKV_BACK), OWN, act, once}};
    if (!d->options.features)
        add_row(d, (struct cld_drafter_row){&d->features, "features", s, n_ctx, c->n_taps * h,
                                            USES(INPUT, CONTEXT, CONTEXT_BACK), OWN, in, once});
    add_rows(d, rows, N_ROWS(rows));
}

/* Gradients through attention: of q, k and v side by side, after them that of attention's result.
 */
static size_t attention_grads_elems(const struct cld_drafter *d)
{
    const struct cld_drafter_config *c = &d->config;
    size_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, n = draft_rows(d);
    return cld_add(cld_mul(d->limits.n_ctx + n, cld_add(q, cld_mul(2, kv))), cld_mul(n, q));
}

static size_t attention_grads_bytes(const struct cld_drafter *d)
{
    const struct cld_drafter_row grads = {
        .type = d->options.storage, .n_rows = 1, .n_cols = attention_grads_elems(d)};
    return rounded_bytes_of(&grads);
}

/* Whether this tensor of layer_rows is recomputed without a GEMM and may lie in the place of gate
 * and up: norm1, q, k. */
static bool is_cheap(const struct cld_drafter_layer *l, const struct cld_tensor *t)
{
    return t == &l->y1 || t == &l->q || t == &l->k;
}

/* What a layer has besides its input; see also SwiGLU's and the norms' gradients, which are written
 * in place of activations (backward_mlp, drafter_ops.c). */
static void layer_rows(const struct cld_drafter *d, struct cld_drafter_layer *l,
                       struct cld_drafter_row rows[n_layer_tensors])
{
    const struct cld_drafter_config *c = &d->config;
    const enum cld_dtype s = d->options.storage, f = CLD_F32;
    size_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, h = c->hidden;
    size_t n = draft_rows(d), keys = d->limits.n_ctx + n, seen = seen_rows(d);
    const struct cld_drafter_row all[n_layer_tensors] = {
        {&l->rstd1, "rstd1", f, 1, n, USES(NORM1, NORM1, NORM1_BACK)},
        {&l->y1, "norm1", s, n, h, USES(NORM1, QKV, NORM1_BACK)},
        {&l->q_raw, "q projection", s, n, q, USES(QKV, ROTATE, ROTATE_BACK)},
        {&l->q, "q", s, n, q, USES(ROTATE, ATTENTION, ATTENTION_BACK)},
        {&l->rstd_q, "rstd q", f, n, c->n_heads, USES(ROTATE, ROTATE, ROTATE_BACK)},
        {&l->k_raw, "k projection", s, keys, kv, USES(QKV, ROTATE, ROTATE_BACK)},
        {&l->k, "k", s, seen, kv, USES(ROTATE, ATTENTION, ATTENTION_BACK)},
        {&l->rstd_k, "rstd k", f, keys, c->n_kv_heads, USES(ROTATE, ROTATE, ROTATE_BACK)},
        {&l->v, "v", s, seen, kv, USES(QKV, ATTENTION, ATTENTION_BACK)},
        {&l->o, "attention", s, n, q, USES(ATTENTION, O_PROJ, ATTENTION_BACK)},
        {&l->lse, "lse", f, c->n_heads, n, USES(ATTENTION, ATTENTION, ATTENTION_BACK)},
        {&l->x_mid, "x mid", s, n, h, USES(O_PROJ, DOWN, NORM2_BACK)},
        {&l->rstd2, "rstd2", f, 1, n, USES(NORM2, NORM2, NORM2_BACK)},
        {&l->y2, "norm2", s, n, h, USES(NORM2, GATE_UP, NORM2_BACK)},
        {&l->gate_up, "gate and up", s, n, cld_mul(2, c->intermediate),
         USES(GATE_UP, SWIGLU, GATE_UP_BACK)},
        {&l->act, "mlp", s, n, c->intermediate, USES(SWIGLU, DOWN, SWIGLU_BACK)}};
    memcpy(rows, all, sizeof all);
}

/* What is recomputed without a GEMM: if gate and up are large enough, the cheap tensors lie there,
 * after the gradients through attention. */
static void choose_recomputed(struct cld_drafter *d)
{
    struct cld_drafter_layer *l = &d->layers[0];
    struct cld_drafter_row rows[n_layer_tensors];
    size_t cheap_bytes = 0, gate_up_bytes = 0;
    layer_rows(d, l, rows);
    for (size_t k = 0; k < n_layer_tensors; k++) {
        if (is_cheap(l, rows[k].t))
            cheap_bytes = cld_add(cheap_bytes, rounded_bytes_of(&rows[k]));
        if (rows[k].t == &l->gate_up)
            gate_up_bytes = cld_drafter_row_bytes(&rows[k]);
    }
    d->recomputes_qk =
        d->options.train && cld_add(attention_grads_bytes(d), cheap_bytes) <= gate_up_bytes;
    d->recomputes_mlp = d->options.train && !d->options.recompute;
}

/* Bytes of the workspace, which holds a layer's tensors one after the other. */
static size_t workspace_bytes(const struct cld_drafter *d,
                              const struct cld_drafter_row rows[n_layer_tensors])
{
    size_t n_bytes = 0;
    for (size_t k = 0; k < n_layer_tensors; k++)
        if (!d->recomputes_qk || !is_cheap(&d->layers[0], rows[k].t))
            n_bytes = cld_add(n_bytes, rounded_bytes_of(&rows[k]));
    return n_bytes;
}

/* The layer whose gate and up are the place of what is recomputed, and of gradients: the backward
 * pass has done with the last layer's first of all. */
static struct cld_drafter_layer *lending_layer(const struct cld_drafter *d)
{
    return &d->layers[has_workspace(d) ? 0 : d->config.n_layers - 1];
}

static void list_layer(struct cld_drafter *d, size_t i)
{
    const struct cld_drafter_config *c = &d->config;
    struct cld_drafter_layer *l = &d->layers[i];
    struct cld_drafter_row rows[n_layer_tensors], first[n_layer_tensors];
    layer_rows(d, l, rows);
    layer_rows(d, &d->layers[0], first);
    struct cld_drafter_row x = {&l->x_in,
                                "x",
                                d->options.storage,
                                draft_rows(d),
                                c->hidden,
                                USES(LAYER_INPUT, O_PROJ, NORM1_BACK),
                                OWN,
                                activations(d),
                                (int)i};
    /* With recompute the backward pass gathers the first input again, into the last one's place. */
    if (has_workspace(d) && i && i + 1 == c->n_layers) {
        x.place = CLD_PLACE_OVER;
        x.over = &d->layers[0].x_in;
    }
    add_row(d, x);
    if (has_workspace(d) && !i)
        add_row(d, (struct cld_drafter_row){&d->workspace, "a layer, or the loss", CLD_F32, 1,
                                            workspace_bytes(d, rows) / sizeof(float),
                                            USES(NEVER, NEVER, NEVER), OWN, CLD_FOR_ACTIVATIONS,
                                            CLD_ROW_ONCE});
    for (size_t k = 0; k < n_layer_tensors; k++) {
        struct cld_drafter_row *r = &rows[k];
        bool cached = d->limits.n_cached && (r->t == &l->k || r->t == &l->v);
        r->layer = (int)i;
        r->late = d->recomputes_qk && is_cheap(l, r->t);
        r->again = d->recomputes_mlp && (r->t == &l->y2 || r->t == &l->act);
        r->purpose = cached ? CLD_FOR_KV_CACHE : activations(d);
        if ((has_workspace(d) || r->late) && !i) {
            r->place = r->late ? CLD_PLACE_LATE : CLD_PLACE_WORKSPACE;
        } else if ((layers_share(d) || r->late || r->again) && i && !cached) {
            r->place = CLD_PLACE_OVER;
            r->over = first[k].t;
        }
        add_row(d, *r);
    }
}

/* The gradient of the context is a sum over all layers and no operand of a GEMM: it stays F32.
 * Those through attention overlay gate and up, if they fit: the MLP's backward pass comes first. */
static void list_gradients(struct cld_drafter *d)
{
    const struct cld_drafter_config *c = &d->config;
    const enum cld_dtype s = d->options.storage;
    const enum cld_purpose t = CLD_FOR_TEMPORARY;
    const int once = CLD_ROW_ONCE, each = CLD_ROW_EACH_LAYER;
    size_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, h = c->hidden;
    size_t n_ctx = d->limits.n_ctx, n = draft_rows(d), keys = n_ctx + n;
    size_t n_qkv = cld_add(q, cld_mul(2, kv));
    /* The last layer's MLP comes first of all. */
    const struct cld_tensor *over = &lending_layer(d)->gate_up;
    bool fits = cld_mul(over->n_rows, over->ld) >= attention_grads_elems(d);
    enum cld_drafter_place place = fits ? CLD_PLACE_OVER : CLD_PLACE_OWN;
    if (!fits)
        over = NULL;
    size_t d_o_at_bytes = cld_mul3(keys, n_qkv, cld_dtype_bytes(s));
    const struct cld_drafter_row rows[] = {
        {&d->dx, "dx", s, n, h, USES(FINAL_NORM_BACK, NEVER, NORM1_BACK), IN_PLACE_OF(&d->x_out), t,
         once},
        {&d->d_fc, "d fc", s, n_ctx, h, USES(CONTEXT_BACK, NEVER, CONTEXT_BACK),
         IN_PLACE_OF(&d->fc_out), t, once},
        {&d->d_qkv, "d q, k and v", s, keys, n_qkv, USES(ATTENTION_BACK, NEVER, QKV_BACK), place,
         over, 0, t, each},
        {&d->d_o, "d attention", s, n, q, USES(O_PROJ_BACK, NEVER, ATTENTION_BACK), place, over,
         d_o_at_bytes, t, each},
        {&d->d_ctx, "d context", CLD_F32, n_ctx, h, USES(QKV_BACK, NEVER, CONTEXT_BACK), OWN, t,
         once}};
    add_rows(d, rows, N_ROWS(rows));
}

/* Columns of `d->logits` for as many blocks as are at work at once. */
static size_t chunk_rows(const struct cld_drafter *d)
{
    return cld_min(cld_mul(d->limits.loss_chunk, d->config.block_size), draft_rows(d));
}

static void list_loss_rows(struct cld_drafter *d)
{
    const enum cld_dtype f = CLD_F32, i = CLD_I32;
    const enum cld_purpose l = CLD_FOR_LOSS;
    const int once = CLD_ROW_ONCE;
    size_t n = draft_rows(d), chunk = chunk_rows(d);
    const struct cld_drafter_row rows[] = {
        {&d->sup_rows, "supervised rows", i, 1, n, USES(INPUT, LOSS_ROWS, LOSS_ROWS), OWN, l, once},
        {&d->place, "places of rows", i, 1, n, USES(INPUT, LOSS, LOSS_BACK), OWN, l, once},
        {&d->labels, "labels", i, 1, n, USES(INPUT, LOSS, LOSS), OWN, l, once},
        {&d->weights_row, "loss weights", f, 1, n, USES(LOSS_ROWS, LOSS, LOSS), OWN, l, once},
        {&d->ce, "cross-entropy", f, 1, n, USES(LOSS, LOSS, LOSS_BACK), OWN, l, once},
        {&d->hit, "hits", i, 1, n, USES(LOSS, LOSS, LOSS_BACK), OWN, l, once},
        {&d->zs, "supervised z", d->options.storage, n, d->config.hidden,
         USES(LOSS_ROWS, LOSS, LOSS), CLD_PLACE_WORKSPACE, NULL, 0, l, once},
        {&d->logits, "logits of a chunk", f, chunk, d->config.vocab, USES(LOSS, LOSS, LOSS),
         CLD_PLACE_WORKSPACE, NULL, 0, l, once},
        /* Supervised rows of z are gathered before there are logits. */
        {&d->z, "z", d->options.storage, n, d->config.hidden,
         USES(FINAL_NORM, LOSS_ROWS, LOSS_ROWS), CLD_PLACE_OVER,
         has_workspace(d) ? &d->logits : NULL, 0, activations(d), once}};
    add_rows(d, rows, N_ROWS(rows));
}

static void list_loss_gradients(struct cld_drafter *d)
{
    const enum cld_dtype s = d->options.storage, f = CLD_F32;
    const enum cld_purpose l = CLD_FOR_LOSS;
    const int once = CLD_ROW_ONCE;
    size_t n = draft_rows(d), chunk = chunk_rows(d), h = d->config.hidden, vocab = d->config.vocab;
    struct cld_drafter_row d_logits = {&d->d_logits,
                                       "d logits of a chunk",
                                       s,
                                       chunk,
                                       vocab,
                                       USES(LOSS, NEVER, LOSS),
                                       CLD_PLACE_WORKSPACE,
                                       NULL,
                                       0,
                                       l,
                                       once};
    const struct cld_drafter_row soft[] = {
        {&d->before, "tokens before labels", CLD_I32, 1, n, USES(INPUT, LOSS, LOSS), OWN, l, once},
        {&d->state_rows, "last states of a chunk", s, chunk, h, USES(LOSS, LOSS, LOSS), OWN, l,
         once},
        {&d->state_normed, "last states of a chunk, normalised", s, chunk, h,
         USES(LOSS, LOSS, LOSS), OWN, l, once},
        {&d->target_logits, "the target's logits of a chunk", f, chunk, vocab,
         USES(LOSS, LOSS, LOSS), CLD_PLACE_WORKSPACE, NULL, 0, l, once},
        {&d->soft_sums, "sums of logits of a chunk", f, 2 * chunk, CLD_SOFT_SUMS,
         USES(LOSS, LOSS, LOSS), OWN, l, once}};
    const struct cld_drafter_row rows[] = {
        /* A chunk's gradient is made after its logits. */
        {&d->dzs, "d supervised z", s, n, h, USES(LOSS, NEVER, LOSS_BACK), IN_PLACE_OF(&d->zs), l,
         once},
        {&d->dz, "dz", s, n, h, USES(LOSS_BACK, NEVER, FINAL_NORM_BACK), OVER(&d->z), l, once}};
    if (s == CLD_F32) {
        d_logits.place = CLD_PLACE_IN_PLACE;
        d_logits.over = &d->logits;
    }
    add_row(d, d_logits);
    if (d->options.objective.soft)
        add_rows(d, soft, N_ROWS(soft));
    add_rows(d, rows, N_ROWS(rows));
}

/* --- places ----------------------------------------------------------------------------------- */

/* Row i to lie this many bytes into row `over`, if it fits. */
static bool place_over(struct cld_drafter_memory *m, size_t i, size_t over, size_t at_bytes)
{
    if (over == SIZE_MAX)
        return false;
    struct cld_drafter_row *r = &m->rows[i];
    const struct cld_drafter_row *o = &m->rows[over];
    if (cld_add(at_bytes, cld_drafter_row_bytes(r)) > cld_drafter_row_bytes(o))
        return false;
    r->base = o->base;
    r->at_bytes = cld_add(o->at_bytes, at_bytes);
    return true;
}

/* The same after the `used_bytes` of the workspace that are given away. */
static bool place_in_workspace(struct cld_drafter *d, size_t i, size_t *used_bytes)
{
    size_t workspace = find_row(&d->memory, &d->workspace);
    if (!place_over(&d->memory, i, workspace, *used_bytes))
        return false;
    *used_bytes = cld_add(*used_bytes, rounded_bytes_of(&d->memory.rows[i]));
    return true;
}

/* Those that are recomputed in the place of gate and up, which is row `gate_up`. */
static void place_late_rows(struct cld_drafter *d, size_t gate_up)
{
    struct cld_drafter_memory *m = &d->memory;
    size_t used_bytes = attention_grads_bytes(d);
    for (size_t i = 0; i < m->n; i++)
        if (m->rows[i].place == CLD_PLACE_LATE) {
            place_over(m, i, gate_up, used_bytes);
            used_bytes = cld_add(used_bytes, rounded_bytes_of(&m->rows[i]));
        }
}

static void place_rows(struct cld_drafter *d)
{
    struct cld_drafter_memory *m = &d->memory;
    size_t layer_bytes = 0, loss_bytes = 0;
    if (!has_workspace(d))
        place_late_rows(d, find_row(m, &lending_layer(d)->gate_up));
    for (size_t i = 0; i < m->n; i++) {
        struct cld_drafter_row *r = &m->rows[i];
        bool placed = r->place == CLD_PLACE_WORKSPACE &&
                      place_in_workspace(d, i, r->layer < 0 ? &loss_bytes : &layer_bytes);
        if (!placed && r->over)
            place_over(m, i, find_row(m, r->over), r->over_at_bytes);
        if (has_workspace(d) && r->t == &lending_layer(d)->gate_up)
            place_late_rows(d, i);
    }
}

static void declare_row(const struct cld_drafter_memory *m, size_t i, struct cld_plan *plan)
{
    const struct cld_drafter_row *r = &m->rows[i];
    size_t ld = cld_drafter_row_ld(r);
    if (r->base != i) {
        cld_plan_part(plan, r->t, m->rows[r->base].t, 0, r->n_rows, r->n_cols, "%s", r->name);
        r->t->type = r->type;
        r->t->offset = r->at_bytes / cld_dtype_bytes(r->type);
    } else if (r->layer >= 0)
        cld_plan_tensor(plan, r->t, r->type, r->n_rows, ld, r->purpose, "layer %d %s", r->layer,
                        r->name);
    else
        cld_plan_tensor(plan, r->t, r->type, r->n_rows, ld, r->purpose, "%s", r->name);
    r->t->n_cols = r->n_cols;
    r->t->ld = ld;
}

/* Tensors with buffers of their own first: a plan wants them before their parts. */
static void declare_rows(const struct cld_drafter *d, struct cld_plan *plan)
{
    const struct cld_drafter_memory *m = &d->memory;
    for (size_t i = 0; i < m->n; i++)
        if (m->rows[i].base == i)
            declare_row(m, i, plan);
    for (size_t i = 0; i < m->n; i++)
        if (m->rows[i].base != i)
            declare_row(m, i, plan);
}

/* Columns of tensors of the table, and of the features that another model writes. */
static void declare_views(struct cld_drafter *d, struct cld_plan *plan)
{
    const struct cld_drafter_config *c = &d->config;
    const struct cld_tensor *f = d->options.features;
    size_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, n_ctx = d->limits.n_ctx;
    for (size_t i = 0; i < c->n_layers; i++) {
        struct cld_drafter_layer *l = &d->layers[i];
        cld_plan_columns(plan, &l->gate, &l->gate_up, 0, c->intermediate, "gate");
        cld_plan_columns(plan, &l->up, &l->gate_up, c->intermediate, c->intermediate, "up");
    }
    if (f) {
        cld_plan_columns(plan, &d->features, f, 0, c->n_taps * c->hidden, "features");
        d->features.n_rows = n_ctx;
    }
    if (!d->options.train)
        return;
    cld_plan_columns(plan, &d->d_q, &d->d_qkv, 0, q, "d q");
    cld_plan_columns(plan, &d->d_k, &d->d_qkv, q, kv, "d k");
    cld_plan_columns(plan, &d->d_v, &d->d_qkv, q + kv, kv, "d v");
    cld_plan_columns(plan, &d->d_kv, &d->d_qkv, q, cld_mul(2, kv), "d k and v");
    if (d->options.objective.soft) {
        cld_plan_columns(plan, &d->state, f, d->options.objective.state_at, c->hidden,
                         "the target's last state");
        d->state.n_rows = n_ctx;
    }
}

enum cld_status cld_drafter_plan_memory(struct cld_drafter *d, struct cld_plan *plan,
                                        struct cld_error *err)
{
    const struct cld_drafter_config *c = &d->config;
    const enum cld_dtype s = d->options.storage;
    size_t most = most_other_rows + c->n_layers * (n_layer_tensors + 1), n = draft_rows(d);
    const struct cld_drafter_row out[] = {
        {&d->x_out, "x out", s, n, c->hidden, USES(DOWN, FINAL_NORM, FINAL_NORM_BACK), OWN,
         activations(d), CLD_ROW_ONCE},
        {&d->rstd_out, "final rstd", CLD_F32, 1, n, USES(FINAL_NORM, FINAL_NORM, FINAL_NORM_BACK),
         OWN, activations(d), CLD_ROW_ONCE}};
    if (!(d->memory.rows = calloc(most, sizeof *d->memory.rows)))
        return cld_fail_memory(err, "a drafter of %zu layers", c->n_layers);
    choose_recomputed(d);
    list_inputs(d);
    for (size_t i = 0; i < c->n_layers; i++)
        list_layer(d, i);
    add_rows(d, out, N_ROWS(out));
    if (d->options.train)
        list_gradients(d);
    list_loss_rows(d);
    if (d->options.train)
        list_loss_gradients(d);
    place_rows(d);
    declare_rows(d, plan);
    declare_views(d, plan);
    cld_plan_buffer(plan, &d->mask_full.buf, d->attention.mask_bytes, CLD_FOR_ATTENTION,
                    "mask of full layers");
    if (c->sliding_window)
        cld_plan_buffer(plan, &d->mask_sliding.buf, d->attention.mask_bytes, CLD_FOR_ATTENTION,
                        "mask of sliding layers");
    return cld_drafter_check_memory(d, err);
}
