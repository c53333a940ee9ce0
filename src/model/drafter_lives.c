/* drafter_lives.c - when each tensor of the memory table is needed, and that no two tensors need
 * the same bytes at the same time. */
#include "model/drafter_memory.h"

/* From the use that writes a tensor to the last one that reads it. */
struct life {
    size_t first, last;
};

static bool is_forward_of_layer(enum cld_drafter_step s)
{
    return s >= CLD_STEP_LAYER_INPUT && s <= CLD_STEP_DOWN;
}

static bool is_backward_of_layer(enum cld_drafter_step s)
{
    return s >= CLD_STEP_DOWN_BACK && s <= CLD_STEP_NORM1_BACK;
}

/* Steps of a layer's backward pass, those that run again (recompute) before the others. */
static size_t backward_time(const struct cld_drafter *d, enum cld_drafter_step s, size_t layer)
{
    size_t n_layers = d->config.n_layers;
    return CLD_N_STEPS * (2 + n_layers + (n_layers - 1 - layer)) + s;
}

/* When a step comes, that of this layer if layers have it. */
static size_t time_of(const struct cld_drafter *d, enum cld_drafter_step s, size_t layer)
{
    size_t n_layers = d->config.n_layers;
    if (s == CLD_STEP_LAYER_INPUT && layer)
        return time_of(d, CLD_STEP_DOWN, layer - 1);
    if (is_forward_of_layer(s))
        return CLD_N_STEPS * (1 + layer) + s;
    if (is_backward_of_layer(s))
        return backward_time(d, s, layer);
    return (s < CLD_STEP_LAYER_INPUT    ? 0
            : s < CLD_STEP_CONTEXT_BACK ? CLD_N_STEPS * (1 + n_layers)
                                        : CLD_N_STEPS * (2 + 2 * n_layers)) +
           s;
}

/* A tensor with one life: from the first layer that may use it to the last. */
static struct life life_of_pass(const struct cld_drafter *d, const struct cld_drafter_row *r)
{
    size_t top = d->config.n_layers - 1;
    enum cld_drafter_step last = d->options.train ? r->last_back : r->last;
    return (struct life){time_of(d, r->first, is_backward_of_layer(r->first) ? top : 0),
                         time_of(d, last, is_forward_of_layer(last) ? top : 0)};
}

/* The k-th life of a row; false: it has no more. */
static bool life_at(const struct cld_drafter *d, const struct cld_drafter_row *r, size_t k,
                    struct life *life)
{
    if (!r->first)
        return false;
    if (r->layer == CLD_ROW_ONCE) {
        *life = life_of_pass(d, r);
        return k == 0;
    }
    if (r->layer == CLD_ROW_EACH_LAYER) {
        if (k >= d->config.n_layers)
            return false;
        *life = (struct life){time_of(d, r->first, k), time_of(d, r->last_back, k)};
        return true;
    }
    size_t i = (size_t)r->layer;
    struct life forward = {time_of(d, r->first, i), time_of(d, r->last, i)};
    size_t end = time_of(d, r->last_back, i);
    bool again = d->options.recompute && !(r->t == &d->layers[i].x_in && i);
    if (!d->options.train) {
        *life = forward;
    } else if (r->again && i + 1 < d->config.n_layers) {
        *life = k ? (struct life){time_of(d, CLD_STEP_DOWN_BACK, i), end} : forward;
        return k < 2;
    } else if (!again && r->late) {
        *life = k ? (struct life){time_of(d, CLD_STEP_RECOMPUTE_QK, i), end} : forward;
        return k < 2;
    } else if (!again)
        *life = (struct life){forward.first, end};
    else if (k == 0)
        *life = forward;
    else if (k == 1)
        *life = (struct life){backward_time(d, r->first, i),
                              r->late ? backward_time(d, r->last, i) : end};
    else
        *life = (struct life){time_of(d, CLD_STEP_RECOMPUTE_QK, i), end};
    return k == 0 || (d->options.train && again && k < (r->late ? 3 : 2));
}

/* `b` may begin in the step in which `a` ends, if that step writes b in the place of a. */
static bool lives_overlap(struct life a, struct life b, bool b_in_place)
{
    return a.first <= b.last && b.first <= a.last && !(b_in_place && a.last == b.first);
}

static bool rows_conflict(const struct cld_drafter *d, const struct cld_drafter_row *a,
                          const struct cld_drafter_row *b)
{
    bool in_place = b->place == CLD_PLACE_IN_PLACE && b->over == a->t;
    struct life x, y;
    for (size_t i = 0; life_at(d, a, i, &x); i++)
        for (size_t k = 0; life_at(d, b, k, &y); k++)
            if (lives_overlap(x, y, in_place))
                return true;
    return false;
}

enum cld_status cld_drafter_check_memory(const struct cld_drafter *d, struct cld_error *err)
{
    const struct cld_drafter_row *rows = d->memory.rows;
    for (size_t i = 0; i < d->memory.n; i++)
        for (size_t k = i + 1; k < d->memory.n; k++) {
            const struct cld_drafter_row *a = &rows[i], *b = &rows[k];
            if (a->base == b->base && a->at_bytes < b->at_bytes + cld_drafter_row_bytes(b) &&
                b->at_bytes < a->at_bytes + cld_drafter_row_bytes(a) && rows_conflict(d, a, b))
                return cld_fail(err, CLD_E_INTERNAL, "this is a bug in drafter_memory.c",
                                "'%s' and '%s' of a drafter share bytes and are needed at the "
                                "same time",
                                a->name, b->name);
        }
    return CLD_OK;
}
