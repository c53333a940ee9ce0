#include "drafter_turned.h"

#include <string.h>

#include "op_gemm.h"

/* Matrices that are turned as one: four of a layer, fc after them. */
static size_t n_matrices(const struct cld_drafter *d)
{
    return 4 * d->config.n_layers + 1;
}

struct matrix {
    const struct cld_param *first; /* of those that are joined */
    struct cld_tensor *weight, *turned;
};

/* In the order in which they lie in the arenas. */
static struct matrix matrix_at(struct cld_drafter *d, size_t i)
{
    if (!i)
        return (struct matrix){d->fc, &d->fc->weight, &d->fc->turned};
    struct cld_drafter_layer *l = &d->layers[(i - 1) / 4];
    switch ((i - 1) % 4) {
    case 0: return (struct matrix){l->wq, &l->qkv.weight, &l->qkv.turned};
    case 1: return (struct matrix){l->wo, &l->wo->weight, &l->wo->turned};
    case 2: return (struct matrix){l->wg, &l->gu.weight, &l->gu.turned};
    default: return (struct matrix){l->wd, &l->wd->weight, &l->wd->turned};
    }
}

bool cld_drafter_would_turn(const struct cld_drafter *d)
{
    const struct cld_drafter_config *c = &d->config;
    if (d->options.storage != CLD_BF16 || d->options.recompute)
        return false;
    for (size_t i = 0; i < d->n_params; i++)
        if (!d->params[i].is_vector && (d->params[i].n_rows % 8 || d->params[i].n_cols % 8))
            return false;
    if (d->options.turned)
        return true;
    size_t n = d->limits.n_blocks * c->block_size;
    const struct cld_tensor x = {"x", CLD_BF16, n, c->hidden, c->hidden, NULL, 0},
                            w = {"w", CLD_BF16, c->intermediate, c->hidden, c->hidden, NULL, 0},
                            y = {"y", CLD_BF16, n, c->intermediate, c->intermediate, NULL, 0};
    struct cld_gemm g = {.kind = CLD_GEMM_NT, .backend = d->gemm, .a = &x, .b = &w, .c = &y};
    return cld_gemm_turns_b(d->q, &g) && cld_gemm_turns_a(d->q, &g);
}

/* Rows [first, first + n) of a matrix of `whole`'s rows: columns of what that is turned. */
static void plan_rows(struct cld_plan *plan, struct cld_param *p, const struct cld_tensor *whole,
                      size_t first)
{
    cld_plan_part(plan, &p->turned, whole, first, whole->n_rows, p->n_rows, "%s, turned", p->name);
    p->turned.ld = whole->ld;
}

void cld_drafter_plan_turned_weights(struct cld_drafter *d, struct cld_plan *plan)
{
    if (!d->turns)
        return;
    cld_plan_tensor(plan, &d->weights_turned, CLD_BF16, 1, d->n_decay, CLD_FOR_WEIGHTS,
                    "weights, turned");
    for (size_t i = 0; i < n_matrices(d); i++) {
        struct matrix m = matrix_at(d, i);
        cld_plan_part(plan, m.turned, &d->weights_turned, m.first->at, m.weight->n_cols,
                      m.weight->n_rows, "%s and joined, turned", m.first->name);
    }
    for (size_t i = 0; i < d->config.n_layers; i++) {
        struct cld_drafter_layer *l = &d->layers[i];
        plan_rows(plan, l->wq, &l->qkv.turned, 0);
        plan_rows(plan, l->wk, &l->qkv.turned, l->wq->n_rows);
        plan_rows(plan, l->wv, &l->qkv.turned, l->wq->n_rows + l->wk->n_rows);
    }
    d->turned_are_old = true;
}

/* [n_rows, n_cols] at an element of a tensor that is there already. */
static void plan_operand(struct cld_plan *plan, struct cld_tensor *t,
                         const struct cld_tensor *whole, size_t at, size_t n_rows, size_t n_cols,
                         const char *name)
{
    cld_plan_part(plan, t, whole, at, n_rows, cld_round_up(n_cols, 8), "%s", name);
    t->n_cols = n_cols;
}

void cld_drafter_plan_turned_operands(struct cld_drafter *d, size_t n_ctx, size_t n_draft,
                                      struct cld_plan *plan)
{
    const struct cld_drafter_config *c = &d->config;
    size_t ld = cld_round_up(n_draft, 8), h = c->hidden;
    size_t most = cld_mul(cld_max(c->intermediate, h), ld);
    size_t n_ctx_elems = cld_mul(h, cld_round_up(n_ctx, 8)), n = cld_add(most, n_ctx_elems);
    const struct cld_tensor *place = &d->d_mlp_turned;
    if (!d->turns)
        return;
    /* The backward pass's tensor holds nothing during the forward pass. */
    if (cld_mul(place->n_rows, place->ld) < n) {
        cld_plan_tensor(plan, &d->operand, CLD_BF16, 1, n, CLD_FOR_TEMPORARY, "turned operands");
        place = &d->operand;
    }
    /* One is used up before the next is made; the context is there for all layers. */
    plan_operand(plan, &d->y_turned, place, 0, h, n_draft, "norm, turned");
    plan_operand(plan, &d->act_turned, place, 0, c->intermediate, n_draft, "mlp, turned");
    plan_operand(plan, &d->ctx_turned, place, most, h, n_ctx, "context, turned");
}

enum cld_status cld_drafter_turn_weights(struct cld_drafter *d, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (!d->turns || !d->turned_are_old)
        return CLD_OK;
    for (size_t i = 0; i < n_matrices(d) && !s; i++) {
        struct matrix m = matrix_at(d, i);
        s = cld_gemm_turn(d->q, m.weight, m.turned, err);
    }
    d->turned_are_old = s != CLD_OK;
    return s;
}

/* The operands of an update of elements [at, at + n) of the arenas; *part is where they are kept. */
struct part {
    struct cld_tensor grad, m, v, master, weight;
};

static struct cld_adamw update_of(const struct cld_drafter *d, const struct cld_adamw *rule,
                                  const struct cld_tensor *grad, size_t grad_first, size_t at,
                                  size_t n, struct part *part)
{
    struct cld_adamw a = *rule;
    size_t in_shard = at - d->shard_first;
    *part = (struct part){cld_tensor_cols(grad, at - grad_first, n),
                          cld_tensor_cols(&d->m, in_shard, n), cld_tensor_cols(&d->v, in_shard, n),
                          cld_tensor_cols(&d->master, in_shard, n),
                          cld_tensor_cols(&d->weights, at, n)};
    a.grad = &part->grad;
    a.m = &part->m;
    a.v = &part->v;
    a.master = &part->master;
    a.weight = &part->weight;
    a.n_decay = cld_min(d->n_decay > at ? d->n_decay - at : 0, n);
    return a;
}

static enum cld_status update_plain(struct cld_drafter *d, const struct cld_adamw *rule,
                                    const struct cld_tensor *grad, size_t first, size_t at,
                                    size_t end, struct cld_error *err)
{
    struct part part;
    if (at >= end)
        return CLD_OK;
    struct cld_adamw a = update_of(d, rule, grad, first, at, end - at, &part);
    return cld_adamw_step(d->q, &a, err);
}

enum cld_status cld_drafter_update(struct cld_drafter *d, const struct cld_adamw *rule,
                                   const struct cld_tensor *grad, size_t first, size_t n,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t at = first, end = first + n;
    /* With shards others' weights follow, and then all of them are turned. */
    bool turns = d->turns && !cld_drafter_is_sharded(d);
    if (!turns)
        cld_drafter_weights_changed(d);
    for (size_t i = 0; turns && i < n_matrices(d); i++) {
        struct matrix m = matrix_at(d, i);
        size_t n_elems = cld_tensor_elems(m.weight);
        struct part part;
        if (m.first->at + n_elems <= at || m.first->at >= end)
            continue;
        if (m.first->at < at || m.first->at + n_elems > end) { /* a part of it: as it lies */
            cld_drafter_weights_changed(d);
            continue;
        }
        struct cld_adamw a = update_of(d, rule, grad, first, m.first->at, n_elems, &part);
        if ((s = update_plain(d, rule, grad, first, at, m.first->at, err)) ||
            (s = cld_adamw_step_turned(d->q, &a, m.turned, err)))
            return s;
        at = m.first->at + n_elems;
    }
    return update_plain(d, rule, grad, first, at, end, err);
}
