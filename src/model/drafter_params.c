/* drafter_params.c - parameters of a drafter: their place in the arenas, shards and buckets, and
 * weights in and out. */
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "model/drafter_private.h"
#include "ops/ops.h"
#include "ops/tensor_io.h"

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

/* The same, directly after the one before it: see struct cld_packed. */
static struct cld_param *add_packed(struct cld_drafter *d, const char *name, size_t layer,
                                    size_t n_rows, size_t n_cols)
{
    struct cld_param *p = add_param(d, name, layer, n_rows, n_cols);
    p->packed = true;
    return p;
}

static void name_params(struct cld_drafter *d)
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
        l->wk = add_packed(d, "self_attn.k_proj", i, kv, c->hidden);
        l->wv = add_packed(d, "self_attn.v_proj", i, kv, c->hidden);
        l->wo = add_param(d, "self_attn.o_proj", i, c->hidden, q);
        l->qn = add_param(d, "self_attn.q_norm", i, 1, c->head_dim);
        l->kn = add_param(d, "self_attn.k_norm", i, 1, c->head_dim);
        l->ln2 = add_param(d, "post_attention_layernorm", i, 1, c->hidden);
        l->wg = add_param(d, "mlp.gate_proj", i, c->intermediate, c->hidden);
        l->wu = add_packed(d, "mlp.up_proj", i, c->intermediate, c->hidden);
        l->wd = add_param(d, "mlp.down_proj", i, c->hidden, c->intermediate);
    }
}

/* Places parameters in the arenas: matrices, then vectors, each aligned unless it is packed with
 * the one before, so that kernels may load whole vectors. The gaps stay zero. */
static void place_params(struct cld_drafter *d)
{
    const size_t align = CLD_PARAM_GRAIN;
    for (int vectors = 0; vectors < 2; vectors++) {
        for (size_t i = 0; i < d->n_params; i++) {
            struct cld_param *p = &d->params[i];
            if (p->is_vector != vectors)
                continue;
            p->at = p->packed ? d->n_elems : cld_round_up(d->n_elems, align);
            d->n_elems = cld_add(p->at, cld_mul(p->n_rows, p->n_cols));
        }
        d->n_elems = cld_round_up(d->n_elems, align);
        if (!vectors)
            d->n_decay = d->n_elems;
    }
}

size_t cld_drafter_shard(const struct cld_drafter *d, size_t i, size_t n_shards, size_t *first)
{
    size_t n = cld_round_up(cld_div_up(d->n_elems, n_shards), CLD_PARAM_GRAIN);
    *first = cld_min(cld_mul(i, n), d->n_elems);
    return cld_min(n, d->n_elems - *first);
}

enum cld_status cld_drafter_list_params(struct cld_drafter *d, struct cld_error *err)
{
    size_t n_shards = cld_max(1, d->options.n_shards);
    if (!(d->params = calloc(3 + 11 * d->config.n_layers, sizeof *d->params)))
        return cld_fail_memory(err, "a drafter of %zu layers", d->config.n_layers);
    name_params(d);
    place_params(d);
    d->shard_n = cld_drafter_shard(d, d->options.shard, n_shards, &d->shard_first);
    return d->shard_n ? CLD_OK
                      : cld_fail(err, CLD_E_USAGE, "use fewer drafters",
                                 "%zu drafters share %zu parameters: one would have none", n_shards,
                                 d->n_elems);
}

/* `first` and those that are packed with it, n_rows together. */
static void plan_packed(struct cld_drafter *d, struct cld_packed *j, const struct cld_param *first,
                        size_t n_rows, struct cld_plan *plan)
{
    cld_plan_part(plan, &j->weight, &d->weights, first->at, n_rows, first->n_cols, "%s and next",
                  first->name);
    if (d->options.train)
        cld_plan_part(plan, &j->grad, &d->grads, first->at, n_rows, first->n_cols,
                      "grad %s and next", first->name);
}

void cld_drafter_plan_params(struct cld_drafter *d, struct cld_plan *plan)
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

/* --- parts of the arenas -----------------------------------------------------------------------
 */

/* Elements of the i-th part in the order of a backward pass. */
static size_t part_at(const struct cld_drafter *d, size_t i, size_t *first)
{
    size_t n_layers = d->config.n_layers;
    if (i > 2 * n_layers) {
        *first = d->n_decay;
        return d->n_elems - d->n_decay;
    }
    if (i == 2 * n_layers) {
        *first = 0;
        return d->layers[0].wq->at;
    }
    size_t layer = n_layers - 1 - i / 2;
    size_t mlp = d->layers[layer].wg->at;
    *first = i % 2 ? d->layers[layer].wq->at : mlp;
    if (i % 2)
        return mlp - *first;
    return (layer + 1 < n_layers ? d->layers[layer + 1].wq->at : d->n_decay) - mlp;
}

size_t cld_drafter_bucket(const struct cld_drafter *d, size_t i, size_t *first)
{
    /* Whole runs of elements as shards are, and none that is more trouble than it saves. */
    const size_t least = (size_t)1 << 16;
    size_t n = part_at(d, i / CLD_PART_BUCKETS, first);
    size_t most = cld_max(least, cld_round_up(cld_div_up(n, CLD_PART_BUCKETS), CLD_PARAM_GRAIN));
    size_t skipped = cld_min(n, i % CLD_PART_BUCKETS * most);
    *first += skipped;
    return cld_min(most, n - skipped);
}

size_t cld_drafter_bucket_part(const struct cld_drafter *d, size_t i, size_t shard, size_t *first)
{
    size_t at, shard_at;
    size_t n = cld_drafter_bucket(d, i, &at);
    size_t shard_n = cld_drafter_shard(d, shard, cld_max(1, d->options.n_shards), &shard_at);
    size_t end = cld_min(at + n, shard_at + shard_n);
    *first = cld_max(at, shard_at);
    return end > *first ? end - *first : 0;
}

/* --- weights ---------------------------------------------------------------------------------- */

const struct cld_tensor *cld_drafter_master(const struct cld_drafter *d)
{
    if (cld_drafter_is_sharded(d))
        return &d->grads;
    return d->options.train ? &d->master : &d->weights;
}

enum cld_status cld_drafter_adopt(struct cld_drafter *d, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (!cld_drafter_is_sharded(d))
        return CLD_OK;
    struct cld_tensor own = cld_tensor_cols(&d->grads, d->shard_first, d->shard_n);
    if ((s = cld_add_tensors(d->q, &d->grads, NULL, &d->weights, err)) ||
        (d->options.storage != CLD_F32 && (s = cld_add_tensors(d->q, &own, NULL, &d->master, err))))
        return s;
    d->grads_are_old = true;
    return cld_drafter_finish_grads(d, err);
}

static enum cld_status zero_grads(struct cld_drafter *d, size_t first, struct cld_error *err)
{
    size_t at_bytes = first * sizeof(float);
    return cld_buf_fill(d->grads.buf, at_bytes, cld_buf_bytes(d->grads.buf) - at_bytes, 0, err);
}

enum cld_status cld_drafter_forget_grads(struct cld_drafter *d, struct cld_error *err)
{
    d->grads_are_old = true;
    return zero_grads(d, d->n_decay, err);
}

enum cld_status cld_drafter_finish_grads(struct cld_drafter *d, struct cld_error *err)
{
    enum cld_status s = d->grads_are_old ? zero_grads(d, 0, err) : CLD_OK;
    d->grads_are_old = false;
    return s;
}

enum cld_status cld_drafter_round(struct cld_drafter *d, const struct cld_param *p,
                                  struct cld_error *err)
{
    if (d->options.storage == CLD_F32 || !d->options.train || cld_drafter_is_sharded(d))
        return CLD_OK;
    struct cld_tensor master = cld_param_part(&d->master, p);
    return cld_add_tensors(d->q, &master, NULL, &p->weight, err);
}

enum cld_status cld_drafter_init(struct cld_drafter *d, uint64_t seed, double std,
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < d->n_params && !s; i++) {
        struct cld_tensor t = cld_param_part(cld_drafter_master(d), &d->params[i]);
        uint64_t key = cld_random_u64(seed, CLD_RANDOM_INIT, 0, 0, 0);
        s = d->params[i].is_vector ? cld_fill(d->q, &t, 1.0f, err)
                                   : cld_fill_normal(d->q, &t, key, i, (float)std, err);
        if (!s)
            s = cld_drafter_round(d, &d->params[i], err);
    }
    if (!s)
        s = cld_drafter_adopt(d, err);
    if (!s && d->options.train)
        s = cld_buf_fill(d->m.buf, 0, cld_buf_bytes(d->m.buf), 0, err);
    if (!s && d->options.train)
        s = cld_buf_fill(d->v.buf, 0, cld_buf_bytes(d->v.buf), 0, err);
    return s;
}

enum cld_status cld_drafter_set(struct cld_drafter *d, const struct cld_param *p, const float *from,
                                struct cld_error *err)
{
    struct cld_tensor t = cld_param_part(cld_drafter_master(d), p);
    enum cld_status s = cld_tensor_write(&t, 0, t.n_rows, from, err);
    return s ? s : cld_drafter_round(d, p, err);
}

enum cld_status cld_drafter_get(const struct cld_drafter *d, const struct cld_param *p, float *to,
                                struct cld_error *err)
{
    struct cld_tensor t = cld_param_part(cld_drafter_master(d), p);
    return cld_tensor_read(&t, 0, t.n_rows, to, err);
}
