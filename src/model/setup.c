#include "model/setup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/sha256.h"
#include "model/target_tensors.h"

enum cld_status cld_auto_taps(size_t n_target_layers, size_t n_taps, int *taps,
                              struct cld_error *err)
{
    if (n_taps == 1) {
        taps[0] = (int)(n_target_layers / 2);
        return CLD_OK;
    }
    for (size_t i = 0; i < n_taps; i++) {
        taps[i] = (int)rint(1 + (double)i * ((double)n_target_layers - 4) / (double)(n_taps - 1));
        if (taps[i] < 0 || (i && taps[i] <= taps[i - 1]))
            return cld_fail(err, CLD_E_USAGE, "name the layers in target.taps",
                            "%zu taps do not fit evenly into a target of %zu layers", n_taps,
                            n_target_layers);
    }
    return CLD_OK;
}

static enum cld_status resolve_taps(const struct cld_config *cfg, struct cld_setup *s,
                                    struct cld_error *err)
{
    s->n_taps = cfg->target.taps.n;
    if (s->n_taps > CLD_MAX_TAPS)
        return cld_fail(err, CLD_E_USAGE, "name fewer layers in target.taps",
                        "%zu taps, at most %d are supported", s->n_taps, CLD_MAX_TAPS);
    if (!s->n_taps) {
        /* As many taps as draft layers, as published drafters have. */
        s->n_taps = cld_min(cfg->drafter.layers, CLD_MAX_TAPS);
        return cld_auto_taps(s->target.n_layers, s->n_taps, s->taps, err);
    }
    for (size_t i = 0; i < s->n_taps; i++) {
        if (cfg->target.taps.v[i] >= s->target.n_layers)
            return cld_fail(err, CLD_E_USAGE, "tap v means the output of decoder layer v, from 0",
                            "target.taps: layer %zu of a target of %zu layers",
                            cfg->target.taps.v[i], s->target.n_layers);
        s->taps[i] = (int)cfg->target.taps.v[i];
    }
    return CLD_OK;
}

/* Soft targets come from the state after the last layer. */
static void add_state(const struct cld_config *cfg, struct cld_setup *s)
{
    int last = (int)s->target.n_layers - 1;
    s->n_features = s->n_taps;
    if (cfg->train.objective != CLD_OBJECTIVE_SOFT)
        return;
    while (s->state_tap < s->n_taps && s->taps[s->state_tap] != last)
        s->state_tap++;
    if (s->state_tap == s->n_taps)
        s->taps[s->n_features++] = last;
}

static enum cld_status resolve_layers(const struct cld_config *cfg, struct cld_drafter_config *d,
                                      struct cld_error *err)
{
    size_t n = cfg->drafter.layer_types.n;
    if (d->n_layers > CLD_MAX_DRAFT_LAYERS)
        return cld_fail(err, CLD_E_USAGE, "lower drafter.layers",
                        "drafter.layers %zu, at most %d are supported", d->n_layers,
                        CLD_MAX_DRAFT_LAYERS);
    bool slides = false;
    for (size_t i = 0; i < d->n_layers && n; i++) {
        d->sliding[i] = cfg->drafter.layer_types.v[n == 1 ? 0 : i] == CLD_LAYER_SLIDING;
        slides |= d->sliding[i];
    }
    d->sliding_window = slides ? cfg->drafter.sliding_window : 0;
    d->sliding_causal = cfg->drafter.sliding_causal;
    return CLD_OK;
}

static enum cld_status hash_config(const char *dir, struct cld_setup *s, struct cld_error *err)
{
    char *path = cld_format("%s/config.json", dir);
    uint64_t n_bytes = 0;
    if (!path)
        return cld_fail_memory(err, "the data of %s", dir);
    enum cld_status status = cld_sha256_file(path, s->target_hash, &n_bytes, err);
    free(path);
    return status;
}

static size_t or_else(size_t given, size_t otherwise)
{
    return given ? given : otherwise;
}

enum cld_status cld_setup_read(const struct cld_config *cfg, int64_t mask_token,
                               struct cld_setup *s, struct cld_error *err)
{
    enum cld_status status = CLD_OK;
    const struct cld_model_config *t = &s->target;
    memset(s, 0, sizeof *s);
    if ((status = cld_model_config_read(cfg->target.dir, &s->target, err)) ||
        (status = hash_config(cfg->target.dir, s, err)) || (status = resolve_taps(cfg, s, err)))
        return status;
    if (cfg->target.random_weights < 0 &&
        (status = cld_target_files_check(cfg->target.dir, &s->target, err)))
        return status;
    add_state(cfg, s);
    if (mask_token < 0 || (uint64_t)mask_token >= t->vocab)
        return cld_fail(err, CLD_E_USAGE,
                        "choose a reserved token inside the target's embedding, not pad or eos",
                        "drafter.mask_token %lld is outside the target's embedding of %zu rows",
                        (long long)mask_token, t->vocab);
    bool special = mask_token == t->pad || mask_token == t->bos;
    for (size_t i = 0; i < t->n_eos; i++)
        special |= mask_token == t->eos[i];
    if (special && !cfg->checks.mask_token)
        cld_warn(
            "drafter.mask_token %lld is the target's pad, eos or bos token; checks.mask_token = "
            "no lets it pass",
            (long long)mask_token);
    else if (special)
        return cld_fail(err, CLD_E_USAGE, "choose a reserved token that no text contains",
                        "drafter.mask_token %lld is the target's pad, eos or bos token",
                        (long long)mask_token);
    if (!cfg->drafter.head_dim && t->head_dim % 8)
        return cld_fail(err, CLD_E_USAGE, "set drafter.head_dim to a multiple of 8",
                        "drafter.head_dim is the target's, %zu, not a multiple of 8", t->head_dim);
    s->drafter = (struct cld_drafter_config){
        .n_layers = cfg->drafter.layers,
        .hidden = t->hidden,
        .n_heads = or_else(cfg->drafter.heads, t->n_heads),
        .n_kv_heads = or_else(cfg->drafter.kv_heads, t->n_kv_heads),
        .head_dim = or_else(cfg->drafter.head_dim, t->head_dim),
        .intermediate = or_else(cfg->drafter.intermediate_size, t->intermediate),
        .vocab = t->vocab,
        .n_taps = s->n_taps,
        .block_size = cfg->drafter.block_size,
        .anchor_first = cfg->drafter.layout == CLD_LAYOUT_ANCHOR_FIRST,
        .mask_token = (int32_t)mask_token,
        .rms_norm_eps = t->rms_norm_eps,
        .rope_theta = cfg->drafter.rope_theta > 0 ? cfg->drafter.rope_theta : t->rope.theta};
    if ((status = resolve_layers(cfg, &s->drafter, err)))
        return status;
    s->rules = (struct cld_batch_rules){
        .block_size = s->drafter.block_size,
        .mask_token = s->drafter.mask_token,
        /* There the drafter's probabilities make the weights. */
        .gamma = cfg->train.objective == CLD_OBJECTIVE_DPACE ? 0 : cfg->train.gamma,
        .stop_at_gap = cfg->train.stop_at_gap,
        .anchor_first = s->drafter.anchor_first};
    return cld_drafter_config_check(&s->drafter, err);
}

enum cld_status cld_setup_same_taps(const struct cld_setup *s, const int *taps, const char *path,
                                    struct cld_error *err)
{
    for (size_t i = 0; i < s->n_taps; i++)
        if (taps[i] != s->taps[i])
            return cld_fail(err, CLD_E_INPUT, "set target.taps to the drafter's",
                            "%s taps layer %d where this run taps layer %d", path, taps[i],
                            s->taps[i]);
    return CLD_OK;
}
