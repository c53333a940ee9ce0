/* target_weights.c - weights of a target: read from its files, or generated. */
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "formats/safetensors.h"
#include "model/target_private.h"
#include "model/target_tensors.h"
#include "ops/ops.h"
#include "ops/tensor_io.h"

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

/* The heads of a weight: along its rows, along its columns, or none. */
struct layout {
    struct cld_spread rows, columns;
};

static struct layout layout_of(const struct cld_target *t, const struct cld_tensor *w)
{
    const struct cld_spread none = {1, 1}, heads = {t->config.head_dim / 2, t->padded_head_dim / 2};
    if (!strstr(w->name, ".self_attn.") || strstr(w->name, "o_proj.bias"))
        return (struct layout){none, none};
    return strstr(w->name, "o_proj") ? (struct layout){none, heads} : (struct layout){heads, none};
}

/* The tensor that gets a weight in its published shape: itself or, if its rows alternate with
 * another's, the scratch; `settle` copies it from there. */
static struct cld_tensor published(const struct cld_target *t, const struct cld_tensor *w)
{
    if (!cld_target_alternates(t, w->name))
        return *w;
    size_t n_cols = w->n_cols / cld_target_group_rows;
    return (struct cld_tensor){
        w->name, w->type, cld_mul(w->n_rows, cld_target_group_rows), n_cols, n_cols, t->scratch, 0};
}

static enum cld_status settle(const struct cld_target *t, const struct cld_tensor *w,
                              const struct cld_tensor *from, struct cld_error *err)
{
    struct cld_tensor rows = *from;
    if (!cld_target_alternates(t, w->name))
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

enum cld_status cld_target_load(struct cld_target *t, const char *dir, struct cld_error *err)
{
    struct cld_safetensors *st = NULL;
    struct cld_tensor_sums *own = NULL; /* values are looked at in any case */
    enum cld_status s = cld_safetensors_open(dir, &st, err);
    if (!s && (t->options.sums || !(s = cld_tensor_sums_new(&own, err))) &&
        !(s = cld_target_tensors_check(st, &t->config, dir, err))) {
        cld_safetensors_watch(st, own ? own : t->options.sums);
        s = each_weight(t, load_weight, st, err);
    }
    cld_safetensors_close(st);
    cld_tensor_sums_free(own);
    return s ? s : cld_target_prepare(t, err);
}

/* Zeros after the halves of heads: the ends of rows, if halves are the rows of a matrix. */
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
    return s ? s : cld_target_prepare(t, err);
}
