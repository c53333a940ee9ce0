#include "train/state_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/log.h"
#include "base/size.h"
#include "model/target.h"
#include "ops/tensor_io.h"
#include "ops/verdicts.h"

/* Tokens of a row are compared in groups of so many, so many groups spread over it: a whole short
 * row. How far off they may be: other programs round otherwise, by some percent in bf16; another
 * layer is off by more than its neighbour is near, and states of another text are not near at all.
 */
enum { GROUP_TOKENS = 8, MOST_GROUPS = 16 };
static const double most_off = 0.3, most_off_alone = 0.5; /* of a group or all; of one token */

struct cld_state_check {
    const struct cld_setup *setup;
    struct cld_queue *q;
    struct cld_plan *plan;
    struct cld_target target;
    int *layers; /* [n_layers] that are tapped: all or, where these do not fit, the files' */
    size_t n_layers, n_compared;
    int32_t *positions, *doc; /* [n_tokens], doc zeros */
    float *own;               /* [GROUP_TOKENS * MOST_GROUPS, n_layers * hidden] */
    size_t tokens[GROUP_TOKENS * MOST_GROUPS], n_tokens; /* that are compared */
};

/* --- what no model gives ---------------------------------------------------------------------- */

static float value_at(const struct cld_states *s, size_t i)
{
    return s->type == CLD_BF16 ? cld_bf16_to_f32(((const uint16_t *)s->values)[i])
                               : ((const float *)s->values)[i];
}

static enum cld_status check_values(const struct cld_states *s, struct cld_error *err)
{
    size_t n = cld_mul(s->n, s->n_states), at = 0;
    for (size_t i = 0; i < n; i++) {
        bool zero = true;
        for (size_t k = 0; k < s->hidden; k++, at++) {
            float v = value_at(s, at);
            zero &= v == 0;
            if (!isfinite(v))
                return cld_fail(err, CLD_E_INPUT, "make the states again",
                                "%s: hidden_states of token %zu has a value that is no number or "
                                "infinite",
                                s->path, i / s->n_states);
        }
        if (zero && s->layers[i % s->n_states] >= 0)
            return cld_fail(err, CLD_E_INPUT, "make the states again",
                            "%s: hidden_states of token %zu are zero in state %zu", s->path,
                            i / s->n_states, i % s->n_states);
    }
    return CLD_OK;
}

struct token_sum {
    uint64_t sum;
    size_t token;
};

static int by_sum(const void *a, const void *b)
{
    const struct token_sum *x = a, *y = b;
    if (x->sum != y->sum)
        return x->sum < y->sum ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

/* A text that begins with one token again and again gives it the same states. */
static bool is_one_token(const int32_t *ids, size_t end)
{
    for (size_t i = 1; i <= end; i++)
        if (ids[i] != ids[0])
            return false;
    return true;
}

/* Two tokens with the same bits in a state after a layer. */
static enum cld_status check_repeats(const struct cld_states *s, size_t state, const int32_t *ids,
                                     struct token_sum *sums, struct cld_error *err)
{
    size_t state_bytes = s->hidden * cld_dtype_bytes(s->type);
    for (size_t p = 0; p < s->n; p++) {
        struct cld_checksum c;
        cld_checksum_begin(&c);
        cld_checksum_add(&c, (const char *)s->values + (p * s->n_states + state) * state_bytes,
                         state_bytes);
        sums[p] = (struct token_sum){cld_checksum_end(&c), p};
    }
    qsort(sums, s->n, sizeof *sums, by_sum);
    for (size_t i = 1; i < s->n; i++)
        if (sums[i].sum == sums[i - 1].sum && !is_one_token(ids, sums[i].token))
            return cld_fail(err, CLD_E_INPUT, "make the states again",
                            "%s: hidden_states of tokens %zu and %zu are the same in state %zu",
                            s->path, sums[i - 1].token, sums[i].token, state);
    return CLD_OK;
}

enum cld_status cld_states_check(const struct cld_states *s, const int32_t *ids,
                                 struct cld_error *err)
{
    enum cld_status status = check_values(s, err);
    struct token_sum *sums = malloc(cld_max(1, cld_mul(s->n, sizeof *sums)));
    if (!sums)
        return cld_fail_memory(err, "%zu tokens", s->n);
    for (size_t i = 0; i < s->n_states && !status; i++)
        if (s->layers[i] >= 0)
            status = check_repeats(s, i, ids, sums, err);
    free(sums);
    return status;
}

/* --- the target ------------------------------------------------------------------------------- */

static void release_target(struct cld_state_check *c)
{
    cld_plan_free(c->plan);
    cld_queue_close(c->q);
    cld_target_free(&c->target);
    c->plan = NULL;
    c->q = NULL;
}

void cld_state_check_close(struct cld_state_check *c)
{
    if (!c)
        return;
    release_target(c);
    free(c->layers);
    free(c->positions);
    free(c->doc);
    free(c->own);
    free(c);
}

/* With these layers tapped, if that fits. */
static enum cld_status describe(struct cld_state_check *c, const struct cld_config *cfg,
                                const struct cld_device_info *device, size_t n_tokens,
                                struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_queue_options queue = {.name = "import"};
    const struct cld_target_options options = {.storage = cfg->runtime.precision,
                                               .n_tokens = n_tokens,
                                               .n_positions = n_tokens,
                                               .taps = c->layers,
                                               .n_taps = c->n_layers};
    if (!(c->plan = cld_plan_new()))
        return cld_fail_memory(err, "a plan");
    if ((s = cld_queue_open_probed(device, &queue, &c->q, err)) ||
        (s = cld_target_describe(&c->target, &c->setup->target, &options, c->q, c->plan, err)))
        return s;
    return cld_plan_check(c->plan, "import", device->global_bytes, device->max_alloc_bytes, err);
}

/* The layers of the files, each once. */
static void tap_these(struct cld_state_check *c, const int *layers, size_t n)
{
    c->n_layers = 0;
    for (size_t i = 0; i < n; i++) {
        bool there = false;
        for (size_t k = 0; k < c->n_layers; k++)
            there |= c->layers[k] == layers[i];
        if (!there)
            c->layers[c->n_layers++] = layers[i];
    }
}

enum cld_status cld_state_check_open(const struct cld_config *cfg, const struct cld_setup *setup,
                                     const struct cld_device_info *device, const int *layers,
                                     size_t n_layers, size_t n_tokens, struct cld_state_check **out,
                                     struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_state_check *c = *out = calloc(1, sizeof *c);
    size_t n_all = setup->target.n_layers;
    if (!c)
        return cld_fail_memory(err, "a comparison");
    c->setup = setup;
    c->layers = calloc(n_all + n_layers, sizeof *c->layers);
    c->positions = calloc(n_tokens, sizeof *c->positions);
    c->doc = calloc(n_tokens, sizeof *c->doc);
    c->own = malloc(cld_mul(cld_mul3(n_all + n_layers, setup->target.hidden, sizeof *c->own),
                            GROUP_TOKENS * MOST_GROUPS));
    if (!c->layers || !c->positions || !c->doc || !c->own)
        return cld_fail_memory(err, "the states of %zu tokens", n_tokens);
    for (size_t i = 0; i < n_tokens; i++)
        c->positions[i] = (int32_t)i;
    /* All layers, to say which one a state is like; else those alone that it should be like. */
    for (c->n_layers = 0; c->n_layers < n_all; c->n_layers++)
        c->layers[c->n_layers] = (int)c->n_layers;
    if ((s = describe(c, cfg, device, n_tokens, err)) == CLD_E_MEMORY) {
        release_target(c);
        tap_these(c, layers, n_layers);
        s = describe(c, cfg, device, n_tokens, err);
    }
    if (s || (s = cld_plan_create(c->plan, c->q, err)))
        return s;
    return cfg->target.random_weights >= 0
               ? cld_target_random(&c->target, (uint64_t)cfg->target.random_weights, err)
               : cld_target_load(&c->target, cfg->target.dir, err);
}

/* Groups spread over the row, the last of them at its end. */
static void choose_tokens(struct cld_state_check *c, size_t n)
{
    size_t n_groups = cld_min(MOST_GROUPS, cld_div_up(n, GROUP_TOKENS));
    c->n_tokens = 0;
    for (size_t g = 0; g < n_groups; g++) {
        size_t begin = n_groups * GROUP_TOKENS >= n ? g * GROUP_TOKENS
                                                    : g * (n - GROUP_TOKENS) / (n_groups - 1);
        for (size_t i = begin; i < cld_min(n, begin + GROUP_TOKENS); i++)
            c->tokens[c->n_tokens++] = i;
    }
}

static enum cld_status run_row(struct cld_state_check *c, const struct cld_row *row,
                               struct cld_error *err)
{
    size_t width = c->target.taps.n_cols;
    choose_tokens(c, row->n);
    enum cld_status s = cld_target_forward(&c->target, row->ids, c->positions, c->doc, row->n, err);
    for (size_t i = 0, n; i < c->n_tokens && !s; i += n) {
        for (n = 1; i + n < c->n_tokens && c->tokens[i + n] == c->tokens[i] + n;)
            n++;
        s = cld_tensor_read(&c->target.taps, c->tokens[i], n, c->own + i * width, err);
    }
    return s;
}

/* --- comparison ------------------------------------------------------------------------------- */

/* Squares of the difference and of the target's own state, of chosen token i. */
static void compare_token(const struct cld_state_check *c, const struct cld_states *s, size_t i,
                          size_t state, size_t layer, double *off, double *all)
{
    const float *own = c->own + (i * c->n_layers + layer) * s->hidden;
    size_t at = (c->tokens[i] * s->n_states + state) * s->hidden;
    *off = *all = 0;
    for (size_t k = 0; k < s->hidden; k++) {
        double want = (double)own[k], got = (double)value_at(s, at + k);
        *off += (got - want) * (got - want);
        *all += want * want;
    }
}

/* ||file - target|| / ||target|| over all chosen tokens. */
static double distance(const struct cld_state_check *c, const struct cld_states *s, size_t state,
                       size_t layer)
{
    double off = 0, all = 0;
    for (size_t i = 0; i < c->n_tokens; i++) {
        double o, a;
        compare_token(c, s, i, state, layer, &o, &a);
        off += o;
        all += a;
    }
    return sqrt(off / all);
}

static size_t index_of(const struct cld_state_check *c, int layer)
{
    size_t i = 0;
    while (i < c->n_layers && c->layers[i] != layer)
        i++;
    return i;
}

/* Every state is nearest to the layer that it is said to be. */
static enum cld_status check_layers(const struct cld_state_check *c, const struct cld_states *s,
                                    bool log, struct cld_error *err)
{
    for (size_t i = 0; i < s->n_states; i++) {
        size_t said = index_of(c, s->layers[i]), best = 0;
        double nearest = INFINITY;
        for (size_t v = 0; v < c->n_layers && s->layers[i] >= 0; v++) {
            double d = distance(c, s, i, v);
            if (d < nearest) {
                nearest = d;
                best = v;
            }
        }
        if (s->layers[i] < 0)
            continue;
        if (!(nearest < most_off))
            return cld_fail(
                err, CLD_E_INPUT,
                "the files are of another model or template, or after the final norm",
                "%s: state %zu is like no layer of the target: off by %.2g from layer %d", s->path,
                i, nearest, c->layers[best]);
        if (best != said)
            return cld_fail(
                err, CLD_E_INPUT, "name the layers that the files have",
                "%s: state %zu is the output of layer %d (off by %.2g), by --layers and "
                "target.taps it would be that of layer %d (off by %.2g)",
                s->path, i, c->layers[best], nearest, s->layers[i], distance(c, s, i, said));
        if (log)
            cld_info("%s: state %zu is the output of layer %d, off by %.2g", s->path, i,
                     c->layers[best], nearest);
    }
    return CLD_OK;
}

/* Token by token: a few of them have states so large that the others vanish beside them. */
static enum cld_status check_tokens(const struct cld_state_check *c, const struct cld_states *s,
                                    size_t state, struct cld_error *err)
{
    size_t layer = index_of(c, s->layers[state]);
    for (size_t first = 0; first < c->n_tokens; first += GROUP_TOKENS) {
        size_t n = cld_min(GROUP_TOKENS, c->n_tokens - first);
        double sum = 0, alone = 0;
        for (size_t i = first; i < first + n; i++) {
            double off, all;
            compare_token(c, s, i, state, layer, &off, &all);
            double d = all > 0 ? sqrt(off / all) : 0;
            sum += d;
            alone = fmax(alone, d);
        }
        if (!(sum / (double)n < most_off && alone < most_off_alone))
            return cld_fail(err, CLD_E_INPUT,
                            "the file is of another row or model, or is damaged: write it again",
                            "%s: state %zu of tokens %zu to %zu is not the target's: off by %.2g "
                            "from layer %d, one token by %.2g",
                            s->path, state, c->tokens[first], c->tokens[first + n - 1],
                            sum / (double)n, s->layers[state], alone);
    }
    return CLD_OK;
}

enum cld_status cld_state_check_row(struct cld_state_check *c, const struct cld_row *row,
                                    const struct cld_states *s, struct cld_error *err)
{
    enum cld_status status = run_row(c, row, err);
    if (status)
        return cld_fail_prefix(err, "comparing %s with the target (--unchecked leaves that out)",
                               s->path);
    status = check_layers(c, s, !c->n_compared++, err);
    for (size_t i = 0; i < s->n_states && !status; i++)
        if (s->layers[i] >= 0)
            status = check_tokens(c, s, i, err);
    return status;
}
