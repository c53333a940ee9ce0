/* Rules between keys. What needs another file (the target's sizes, the tokenizer) is checked where
 * that file is read. */
#include <string.h>

#include "config/config.h"
#include "config/config_table.h"
#include "config/config_value.h"

/* Every message names both keys with their numbers, and begins with the place that the value to
 * change is from: a line of the file, --set, or the default. */
#define REFUSE(cfg, name, hint, ...)                                                               \
    refuse(cfg, name, hint, cld_fail(err, CLD_E_USAGE, "", __VA_ARGS__), err)

static enum cld_status refuse(const struct cld_config *cfg, const char *name, const char *hint,
                              enum cld_status s, struct cld_error *err)
{
    char place[256];
    snprintf(err->hint, sizeof err->hint, "%s", hint);
    cld_fail_prefix(err, "%s", cld_config_where(cfg, name, place, sizeof place));
    return s;
}

/* A benchmark needs what it measures. */
static unsigned needs_of(const struct cld_config *cfg, enum cld_config_use use)
{
    unsigned needs = 1u << use;
    for (size_t i = 0; i < cfg->bench.what.n && use == CLD_CONFIG_BENCH; i++) {
        if (cfg->bench.what.v[i] != CLD_BENCH_GEMM && cfg->bench.what.v[i] != CLD_BENCH_TRANSFER)
            needs |= CLD_NEEDED_BENCH_MODEL;
        if (cfg->bench.what.v[i] == CLD_BENCH_STEP || cfg->bench.what.v[i] == CLD_BENCH_PIPELINE)
            needs |= CLD_NEEDED_BENCH_STEP;
    }
    return needs;
}

static enum cld_status check_needed(const struct cld_config *cfg, enum cld_config_use use,
                                    struct cld_error *err)
{
    const unsigned needs = needs_of(cfg, use);
    for (const struct cld_config_key *k = cld_config_keys; k->section; k++) {
        if (!(k->needed & needs) || !cld_config_value_is_open(cfg, k))
            continue;
        char hint[sizeof err->hint];
        snprintf(hint, sizeof hint, "add '%s = ...' to [%s]: %s", k->name, k->section, k->help);
        return cld_fail(err, CLD_E_USAGE, hint, "%s: %s.%s is needed and not given", cfg->path,
                        k->section, k->name);
    }
    return CLD_OK;
}

static enum cld_status check_data(const struct cld_config *cfg, enum cld_config_use use,
                                  struct cld_error *err)
{
    const struct cld_size_list *synthetic = &cfg->data.synthetic;
    bool trains = use == CLD_CONFIG_TRAIN || needs_of(cfg, use) & CLD_NEEDED_BENCH_STEP;
    if (trains && !cfg->data.train && !synthetic->n)
        return cld_fail(err, CLD_E_USAGE, "name a JSONL file, or try data.synthetic = ROWS,LENGTH",
                        "%s: data.train is needed and not given", cfg->path);
    if (cfg->data.train && synthetic->n)
        return REFUSE(cfg, "data.synthetic", "set one of them to none",
                      "data.train and data.synthetic are both given");
    if (synthetic->n && cfg->data.max_length && synthetic->v[1] > cfg->data.max_length)
        return REFUSE(cfg, "data.synthetic", "make the rows shorter",
                      "data.synthetic has rows of %zu tokens, data.max_length is %zu",
                      synthetic->v[1], cfg->data.max_length);
    return CLD_OK;
}

static enum cld_status check_taps(const struct cld_config *cfg, struct cld_error *err)
{
    const struct cld_size_list *taps = &cfg->target.taps;
    for (size_t i = 1; i < taps->n; i++) {
        if (taps->v[i] == taps->v[i - 1])
            return REFUSE(cfg, "target.taps", "name each layer once",
                          "target.taps has layer %zu twice", taps->v[i]);
        /* Programs that serve drafters collect the features in layer order. */
        if (taps->v[i] < taps->v[i - 1])
            return REFUSE(cfg, "target.taps", "sort them",
                          "target.taps has layer %zu after layer %zu", taps->v[i], taps->v[i - 1]);
    }
    return CLD_OK;
}

static enum cld_status check_layers(const struct cld_config *cfg, struct cld_error *err)
{
    const struct cld_enum_list *types = &cfg->drafter.layer_types;
    bool slides = false;
    for (size_t i = 0; i < types->n; i++)
        slides |= types->v[i] == CLD_LAYER_SLIDING;
    if (types->n > 1 && types->n != cfg->drafter.layers)
        return REFUSE(cfg, "drafter.layer_types", "name one type for all layers, or one for each",
                      "drafter.layer_types has %zu types, drafter.layers is %zu", types->n,
                      cfg->drafter.layers);
    if (slides && !cfg->drafter.sliding_window)
        return REFUSE(cfg, "drafter.layer_types", "set drafter.sliding_window, for example to 2048",
                      "drafter.layer_types has sliding layers, drafter.sliding_window is none");
    if (!slides && cfg->drafter.sliding_window)
        return REFUSE(cfg, "drafter.sliding_window",
                      "remove it, or add sliding_attention to drafter.layer_types",
                      "drafter.sliding_window is %zu, but no layer slides",
                      cfg->drafter.sliding_window);
    if (slides && cfg->drafter.sliding_window < cfg->drafter.block_size)
        return REFUSE(cfg, "drafter.sliding_window",
                      "set drafter.sliding_window to drafter.block_size or more",
                      "drafter.sliding_window is %zu, drafter.block_size is %zu",
                      cfg->drafter.sliding_window, cfg->drafter.block_size);
    return CLD_OK;
}

static enum cld_status check_heads(const struct cld_config *cfg, struct cld_error *err)
{
    size_t heads = cfg->drafter.heads, kv_heads = cfg->drafter.kv_heads;
    if (heads && kv_heads && heads % kv_heads)
        return REFUSE(cfg, "drafter.kv_heads", "choose a value that divides drafter.heads",
                      "drafter.kv_heads %zu does not divide drafter.heads %zu", kv_heads, heads);
    if (cfg->drafter.head_dim % 8)
        return REFUSE(cfg, "drafter.head_dim", "choose a multiple of 8",
                      "drafter.head_dim is %zu, not a multiple of 8", cfg->drafter.head_dim);
    return CLD_OK;
}

static enum cld_status check_mask_token(const struct cld_config *cfg, struct cld_error *err)
{
    const char *text = cfg->drafter.mask_token;
    if (text && !text[strspn(text, "0123456789")] &&
        (strlen(text) > 10 || cld_config_mask_id(cfg) > INT32_MAX))
        return REFUSE(cfg, "drafter.mask_token", "token ids are 32-bit numbers",
                      "drafter.mask_token %s is no token id", text);
    return CLD_OK;
}

static enum cld_status check_batch(const struct cld_config *cfg, struct cld_error *err)
{
    size_t batch = cfg->train.batch_rows, micro = cfg->train.micro_rows;
    size_t n_drafters = cfg->devices.drafters.n;
    if (batch && batch % micro)
        return REFUSE(cfg, "train.micro_rows", "choose a divisor of train.batch_rows",
                      "train.micro_rows %zu does not divide train.batch_rows %zu", micro, batch);
    if (batch && n_drafters && batch % (n_drafters * micro))
        return REFUSE(cfg, "devices.drafters",
                      "choose train.batch_rows as a multiple of drafters times train.micro_rows",
                      "train.batch_rows %zu by train.micro_rows %zu: %zu parts for %zu drafters",
                      batch, micro, batch / micro, n_drafters);
    return CLD_OK;
}

static enum cld_status check_objective(const struct cld_config *cfg, enum cld_config_use use,
                                       struct cld_error *err)
{
    enum cld_objective o = cfg->train.objective;
    bool anchor_first = cfg->drafter.layout == CLD_LAYOUT_ANCHOR_FIRST;
    /* The last known row would predict the first unknown one: its loss has no rule. */
    if (o == CLD_OBJECTIVE_VARIABLE_PREFIX && anchor_first)
        return REFUSE(cfg, "train.objective", "use drafter.layout = dflash",
                      "train.objective is variable-prefix, drafter.layout is anchor-first");
    if (o == CLD_OBJECTIVE_VARIABLE_PREFIX && cfg->drafter.block_size == 2)
        return REFUSE(cfg, "drafter.block_size", "set drafter.block_size to 3 or more",
                      "drafter.block_size is 2, train.objective is variable-prefix");
    if (cfg->eval.ema && !(cfg->train.ema > 0) && use == CLD_CONFIG_TRAIN)
        return REFUSE(cfg, "eval.ema", "set train.ema, for example to 0.999",
                      "eval.ema is yes, train.ema is no");
    if (anchor_first && cfg->drafter.block_size > 63)
        return REFUSE(cfg, "drafter.block_size", "set drafter.block_size to 63 or less",
                      "drafter.block_size is %zu, drafter.layout is anchor-first",
                      cfg->drafter.block_size);
    return CLD_OK;
}

static enum cld_status check_schedule(const struct cld_config *cfg, struct cld_error *err)
{
    double warmup = cfg->train.warmup, decay = cfg->train.wsd_decay;
    if (cfg->train.schedule == CLD_SCHEDULE_WSD && warmup + decay > 1)
        return REFUSE(cfg, "train.wsd_decay", "lower one of them: their sum must be at most 1",
                      "train.warmup %g and train.wsd_decay %g overlap", warmup, decay);
    return CLD_OK;
}

static enum cld_status check_memory(const struct cld_config *cfg, struct cld_error *err)
{
    size_t n = cfg->memory.limit_gib.n;
    size_t n_targets = cfg->devices.targets.n, n_drafters = cfg->devices.drafters.n;
    if (n > 1 && n != n_targets + n_drafters)
        return REFUSE(cfg, "memory.limit_gib", "give one number, or one for each worker",
                      "memory.limit_gib has %zu numbers for %zu targets and %zu drafters", n,
                      n_targets, n_drafters);
    return CLD_OK;
}

static enum cld_status check_features(const struct cld_config *cfg, struct cld_error *err)
{
    bool stores = cfg->features.mode != CLD_FEATURES_ONLINE;
    if (stores && !cfg->features.dir)
        return REFUSE(cfg, "features.mode", "name a directory in features.dir",
                      "features.mode is %s, features.dir is none",
                      cfg->features.mode == CLD_FEATURES_OFFLINE ? "offline" : "hybrid");
    /* Stored rows are known by their place in data.heldout: those of other files would be taken for
     * them. */
    if (cfg->features.mode == CLD_FEATURES_OFFLINE && cfg->eval.buckets.n)
        return REFUSE(cfg, "eval.buckets", "evaluate with features.mode = online",
                      "eval.buckets has %zu files, features.mode is offline", cfg->eval.buckets.n);
    if (cfg->features.limit_gib > 0 && cfg->features.mode != CLD_FEATURES_HYBRID)
        return REFUSE(
            cfg, "features.limit_gib", "remove it: only features.mode = hybrid writes features",
            "features.limit_gib is %g, features.mode is not hybrid", cfg->features.limit_gib);
    /* A hybrid run has target workers even if none are named, and the list has no number for them.
     */
    if (cfg->features.mode == CLD_FEATURES_HYBRID && cfg->memory.limit_gib.n > 1 &&
        !cfg->devices.targets.n)
        return REFUSE(cfg, "memory.limit_gib", "name devices.targets, too",
                      "memory.limit_gib has %zu numbers, features.mode is hybrid and "
                      "devices.targets is auto",
                      cfg->memory.limit_gib.n);
    return CLD_OK;
}

static enum cld_status check_sweep(const struct cld_config *cfg, enum cld_config_use use,
                                   struct cld_error *err)
{
    if (cfg->swept.n && use != CLD_CONFIG_BENCH)
        return cld_fail(err, CLD_E_USAGE, "remove [sweep], or run 'cldraft bench'",
                        "%s: [sweep] gives several values to %s", cfg->path, cfg->swept.v[0].name);
    return CLD_OK;
}

enum cld_status cld_config_check(const struct cld_config *cfg, enum cld_config_use use,
                                 struct cld_error *err)
{
    enum cld_status s;
    if ((s = check_sweep(cfg, use, err)) || (s = check_needed(cfg, use, err)) ||
        (s = check_data(cfg, use, err)) || (s = check_taps(cfg, err)) ||
        (s = check_layers(cfg, err)) || (s = check_heads(cfg, err)) ||
        (s = check_mask_token(cfg, err)) || (s = check_batch(cfg, err)) ||
        (s = check_schedule(cfg, err)) || (s = check_objective(cfg, use, err)) ||
        (s = check_features(cfg, err)))
        return s;
    return check_memory(cfg, err);
}
