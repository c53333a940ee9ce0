/* drafter_config.c - reads the config.json of a drafter and compares it (drafter_file.h). */
#include "model/drafter_layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "formats/json_fields.h"
#include "model/config_keys.h"

void cld_drafter_file_make(struct cld_drafter_file *f, const struct cld_drafter_config *config,
                           const int *taps, const struct cld_model_config *target, double init_std)
{
    memset(f, 0, sizeof *f);
    f->config = *config;
    f->n_target_layers = target->n_layers;
    f->max_positions = target->max_positions;
    f->bos = target->bos;
    f->eos = target->n_eos ? target->eos[0] : -1;
    f->pad = target->pad;
    f->tied = target->tied;
    f->init_std = init_std;
    memcpy(f->taps, taps, config->n_taps * sizeof *taps);
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Some keys stand at the top level, in dflash_config, or in both, by the age of the file. */
struct place {
    struct cld_fields top, inner;
};

/* The reader of the object that has the key; the same value must stand in both if it is in both. */
static const struct cld_fields *either(const struct place *p, const char *key)
{
    const json_t *a = cld_fields_get(&p->top, key), *b = cld_fields_get(&p->inner, key);
    if (a && b && !json_equal(a, b))
        cld_fields_complain(&p->top, "", "the top level and dflash_config differ in key", key);
    return b ? &p->inner : &p->top;
}

/* Keys of relatives of DFlash that mean other mathematics, and the value at which they mean none
 * (true counts as 1, false as 0; NAN: there is no such value). */
static const struct {
    const char *key;
    double neutral;
} others[] = {
    {"attention_sink_bias", 0},      {"shift_label", 0},       {"pure_draft_prefix_len", 0},
    {"input_embedding_scale", 1},    {"output_multiplier", 1}, {"final_logit_softcapping", NAN},
    {"projector_type", NAN},         {"emb_dim", NAN},         {"gru_hidden_dim", NAN},
    {"attention_bias", 0},           {"mlp_bias", 0},          {"quantization_config", NAN},
    {"speculators_model_type", NAN},
};

/* What the reader looks at itself: at either place, and at the top level only. */
static const char *const inner_keys[] = {"block_size",
                                         "mask_token_id",
                                         "target_layer_ids",
                                         "num_target_layers",
                                         "sample_from_anchor",
                                         "sliding_causal",
                                         "causal",
                                         "use_swa",
                                         "swa_window_size",
                                         NULL};
static const char *const top_keys[] = {"model_type",
                                       "dflash_config",
                                       "block_size",
                                       "mask_token_id",
                                       "target_layer_ids",
                                       "num_target_layers",
                                       "sample_from_anchor",
                                       "num_hidden_layers",
                                       "hidden_size",
                                       "num_attention_heads",
                                       "num_key_value_heads",
                                       "head_dim",
                                       "intermediate_size",
                                       "vocab_size",
                                       "rms_norm_eps",
                                       "hidden_act",
                                       "attention_bias",
                                       "mlp_bias",
                                       "is_causal",
                                       "layer_types",
                                       "sliding_window",
                                       "use_sliding_window",
                                       "max_window_layers",
                                       "rope_theta",
                                       "rope_scaling",
                                       "rope_parameters",
                                       "partial_rotary_factor",
                                       "max_position_embeddings",
                                       "original_max_position_embeddings",
                                       "bos_token_id",
                                       "eos_token_id",
                                       "pad_token_id",
                                       "tie_word_embeddings",
                                       NULL};

static void refuse_others(const struct cld_fields *r)
{
    const char *key;
    json_t *v;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const json_t *it = cld_fields_get(r, others[i].key);
        double value = json_is_boolean(it) ? json_is_true(it) : json_number_value(it);
        bool plain = json_is_boolean(it) || json_is_number(it);
        if (it && !(plain && value == others[i].neutral))
            cld_fields_complain(r, "only plain DFlash drafters are supported",
                                "unsupported value of key", others[i].key);
    }
    json_object_foreach ((json_t *)(uintptr_t)r->object, key, v)
        if (!json_is_null(v) && (!strncmp(key, "conv_", 5) || !strncmp(key, "selector_", 9)))
            cld_fields_complain(r, "only plain DFlash drafters are supported", "unsupported key",
                                key);
    const json_t *act = cld_fields_get(r, "hidden_act");
    if (act && (!json_is_string(act) || strcmp(json_string_value(act), "silu")))
        cld_fields_complain(r, "only silu is supported", "unsupported hidden_act",
                            json_is_string(act) ? json_string_value(act) : "(not a text)");
}

/* Of the places where a drafter's keys stand, dflash_config has no others. */
static void refuse_unknown(const struct place *p)
{
    refuse_others(&p->top);
    refuse_others(&p->inner);
    cld_config_keys_refuse(&p->inner, inner_keys, "dflash_config");
    cld_config_keys_check(&p->top, top_keys);
}

static void read_taps(const struct place *p, struct cld_drafter_file *f)
{
    const char *key = "target_layer_ids";
    const struct cld_fields *r = either(p, key);
    const json_t *list = cld_fields_get(r, key), *v;
    size_t i, n = json_array_size(list);
    if (!list)
        cld_fields_complain(&p->top, "a drafter without it cannot be used", "missing key", key);
    else if (!n || n > CLD_MAX_TAPS)
        cld_fields_complain(r, "", "not a list of 1 to 64 layers in key", key);
    f->config.n_taps = n;
    json_array_foreach (list, i, v) {
        json_int_t at = json_integer_value(v), most = f->n_target_layers;
        if (p->top.err->status)
            return;
        if (!json_is_integer(v) || at < -1 || at > 100000 || (most && at >= most))
            cld_fields_complain(r, "layers count from 0; -1 is the embedding",
                                "no layer of the target in key", key);
        else if (i && at <= f->taps[i - 1])
            cld_fields_complain(r, "the columns of fc follow the order of the target's layers",
                                "layers do not ascend in key", key);
        f->taps[i] = (int)at;
    }
}

static void read_layers(const struct cld_fields *r, struct cld_drafter_config *c)
{
    const json_t *types = cld_fields_get(r, "layer_types"), *v;
    size_t i;
    if (!types && cld_fields_bool_or(r, "use_sliding_window", false))
        cld_fields_complain(r, "say which layers slide", "use_sliding_window without key",
                            "layer_types");
    if (types && json_array_size(types) != c->n_layers)
        cld_fields_complain(r, "one for each of num_hidden_layers", "not as many as layers in key",
                            "layer_types");
    json_array_foreach (types, i, v) {
        const char *name = json_is_string(v) ? json_string_value(v) : "(not a text)";
        if (r->err->status)
            return;
        c->sliding[i] = !strcmp(name, "sliding_attention");
        if (!c->sliding[i] && strcmp(name, "full_attention"))
            cld_fields_complain(r, "full_attention and sliding_attention are supported",
                                "unsupported layer type", name);
    }
}

static bool slides(const struct cld_drafter_config *c, bool *all)
{
    bool any = false;
    *all = true;
    for (size_t i = 0; i < c->n_layers; i++) {
        any |= c->sliding[i];
        *all &= c->sliding[i];
    }
    return any;
}

static void read_window(const struct place *p, struct cld_drafter_config *c)
{
    bool all, any = slides(c, &all);
    if (cld_fields_get(&p->inner, "use_swa") && cld_fields_bool_or(&p->inner, "use_swa", false) &&
        !all)
        cld_fields_complain(&p->inner, "layer_types says which layers slide",
                            "full_attention layers beside true in key", "use_swa");
    if (!any)
        return;
    c->sliding_window = cld_fields_count(&p->top, "sliding_window", (size_t)1 << 30);
    if (!cld_fields_bool_or(&p->top, "use_sliding_window", true))
        cld_fields_complain(&p->top, "", "sliding_attention layers beside false in key",
                            "use_sliding_window");
    if (cld_fields_count_or(&p->inner, "swa_window_size", (size_t)1 << 30, c->sliding_window) !=
        c->sliding_window)
        cld_fields_complain(&p->inner, "", "sliding_window differs from key", "swa_window_size");
}

/* See the head of drafter_file.h. `whole` is the word that counts for all layers. */
static void read_causality(const struct place *p, struct cld_drafter_config *c)
{
    bool all, any = slides(c, &all);
    bool has_top = cld_fields_get(&p->top, "is_causal"),
         has_inner = cld_fields_get(&p->inner, "causal");
    bool top = cld_fields_bool_or(&p->top, "is_causal", false);
    bool inner = cld_fields_bool_or(&p->inner, "causal", false);
    bool has_whole = has_top || has_inner, whole = has_top ? top : inner;
    if (has_top && has_inner && top != inner)
        cld_fields_complain(&p->top, "", "dflash_config.causal differs from key", "is_causal");
    if (has_whole && whole && !all)
        cld_fields_complain(
            has_top ? &p->top : &p->inner, "causal blocks are supported in sliding layers only",
            "full_attention layers beside true in key", has_top ? "is_causal" : "causal");
    c->sliding_causal = cld_fields_bool_or(&p->inner, "sliding_causal", has_whole ? whole : true);
    if (any && has_whole && c->sliding_causal != whole)
        cld_fields_complain(&p->inner, "", "is_causal or causal says otherwise than key",
                            "sliding_causal");
}

/* One theta for all layers: kinds of layers that have their own must have the same. */
static void read_rope(const struct cld_fields *r, struct cld_drafter_config *c)
{
    struct cld_rope kinds[2];
    bool all, any = slides(c, &all);
    cld_rope_read(r, all ? "sliding_attention" : "full_attention", &kinds[0]);
    kinds[1] = kinds[0];
    if (any && !all)
        cld_rope_read(r, "sliding_attention", &kinds[1]);
    for (int i = 0; i < 2; i++)
        if (kinds[i].type != CLD_ROPE_DEFAULT)
            cld_fields_complain(r, "a drafter's rotary embedding is not scaled",
                                "unsupported rope_type", cld_rope_type_name(kinds[i].type));
    if (kinds[0].theta != kinds[1].theta && !r->err->status)
        cld_fail(r->err, CLD_E_INPUT, "a drafter has one rope_theta",
                 "%s: rope_theta of full_attention layers is %.10g, of sliding_attention %.10g",
                 r->path, kinds[0].theta, kinds[1].theta);
    c->rope_theta = kinds[0].theta;
    if (!(c->rope_theta > 0))
        cld_fields_complain(r, "at the top level or in rope_parameters", "missing key",
                            "rope_theta");
}

static void read_geometry(const struct place *p, struct cld_drafter_config *c)
{
    const struct cld_fields *r = &p->top;
    c->n_layers = cld_fields_count(r, "num_hidden_layers", CLD_MAX_DRAFT_LAYERS);
    c->hidden = cld_fields_count(r, "hidden_size", 1 << 20);
    c->n_heads = cld_fields_count(r, "num_attention_heads", 1 << 16);
    c->n_kv_heads = cld_fields_count(r, "num_key_value_heads", 1 << 16);
    c->head_dim = cld_fields_count(r, "head_dim", 1 << 16);
    c->intermediate = cld_fields_count(r, "intermediate_size", 1 << 22);
    c->vocab = cld_fields_count(r, "vocab_size", (size_t)1 << 30);
    c->rms_norm_eps = cld_fields_positive_or(r, "rms_norm_eps", 0);
    if (!(c->rms_norm_eps > 0))
        cld_fields_complain(r, "", "missing key", "rms_norm_eps");
    c->block_size = cld_fields_count(either(p, "block_size"), "block_size", 1 << 10);
    int64_t mask_token = cld_fields_whole(either(p, "mask_token_id"), "mask_token_id", 0);
    if ((uint64_t)mask_token >= c->vocab)
        cld_fields_complain(r, "it must be a row of the target's embedding", "out of range",
                            "mask_token_id");
    else
        c->mask_token = (int32_t)mask_token;
}

enum cld_status cld_drafter_config_read(const char *dir, struct cld_drafter_file *f,
                                        struct cld_error *err)
{
    json_t *root = NULL;
    char *path = cld_format("%s/config.json", dir);
    enum cld_status s = CLD_OK;
    memset(f, 0, sizeof *f);
    if (!path)
        return cld_fail_memory(err, "the data of %s", dir);
    if ((s = cld_json_load(path, &root, err)))
        goto done;
    if (cld_speculators_is(root)) {
        json_t *plain = NULL;
        if ((s = cld_speculators_plain(path, root, &plain, err)))
            goto done;
        json_decref(root);
        root = plain;
    }
    struct place p = {{path, root, err}, {path, json_object_get(root, "dflash_config"), err}};
    const struct cld_fields *r = &p.top;
    err->status = CLD_OK;
    if (p.inner.object && !json_is_object(p.inner.object))
        cld_fields_complain(r, "", "not an object for key", "dflash_config");
    refuse_unknown(&p);
    read_geometry(&p, &f->config);
    f->n_target_layers =
        cld_fields_count_or(either(&p, "num_target_layers"), "num_target_layers", 100000, 0);
    read_taps(&p, f);
    f->config.anchor_first =
        cld_fields_bool_or(either(&p, "sample_from_anchor"), "sample_from_anchor", false);
    read_layers(r, &f->config);
    read_window(&p, &f->config);
    read_causality(&p, &f->config);
    read_rope(r, &f->config);
    f->max_positions = cld_fields_count_or(r, "max_position_embeddings", (size_t)1 << 30, 32768);
    f->bos = cld_fields_token_or_none(r, "bos_token_id");
    f->eos = cld_fields_token_or_none(r, "eos_token_id");
    f->pad = cld_fields_token_or_none(r, "pad_token_id");
    f->tied = cld_fields_bool_or(r, "tie_word_embeddings", false);
    f->init_std = cld_fields_positive_or(r, "initializer_range", 0.02);
    if (!(s = err->status) && cld_drafter_config_check(&f->config, err)) {
        cld_fail_prefix(err, "%s", path);
        s = err->status = CLD_E_INPUT;
    }
done:
    json_decref(root);
    free(path);
    return s;
}

/* --- comparing -------------------------------------------------------------------------------- */

enum cld_status cld_drafter_config_same(const struct cld_drafter_config *a,
                                        const struct cld_drafter_config *b, const char *path,
                                        struct cld_error *err)
{
    const char *hint = "the geometry of a drafter cannot change between runs";
    const struct {
        const char *name;
        double wanted, there;
    } values[] = {
        {"layers", (double)a->n_layers, (double)b->n_layers},
        {"hidden size", (double)a->hidden, (double)b->hidden},
        {"query heads", (double)a->n_heads, (double)b->n_heads},
        {"KV heads", (double)a->n_kv_heads, (double)b->n_kv_heads},
        {"head_dim", (double)a->head_dim, (double)b->head_dim},
        {"intermediate size", (double)a->intermediate, (double)b->intermediate},
        {"vocabulary", (double)a->vocab, (double)b->vocab},
        {"taps", (double)a->n_taps, (double)b->n_taps},
        {"block size", (double)a->block_size, (double)b->block_size},
        {"mask token", (double)a->mask_token, (double)b->mask_token},
        {"rms_norm_eps", a->rms_norm_eps, b->rms_norm_eps},
        {"rope_theta", a->rope_theta, b->rope_theta},
        {"sliding window", (double)a->sliding_window, (double)b->sliding_window},
    };
    bool any = cld_drafter_slides(a);
    if (a->anchor_first != b->anchor_first)
        return cld_fail(err, CLD_E_INPUT,
                        "set drafter.layout to the drafter's: the weights look alike "
                        "and mean another token by every row",
                        "%s: a drafter of layout %s, wanted is %s", path,
                        b->anchor_first ? "anchor-first" : "dflash",
                        a->anchor_first ? "anchor-first" : "dflash");
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (values[i].wanted != values[i].there)
            return cld_fail(err, CLD_E_INPUT, hint, "%s: a drafter with %s %.10g, wanted is %.10g",
                            path, values[i].name, values[i].there, values[i].wanted);
    for (size_t i = 0; i < a->n_layers; i++)
        if (a->sliding[i] != b->sliding[i])
            return cld_fail(err, CLD_E_INPUT, hint, "%s: layer %zu %s, wanted is that it %s", path,
                            i, b->sliding[i] ? "slides" : "is full",
                            a->sliding[i] ? "slides" : "is full");
    if (any && a->sliding_causal != b->sliding_causal)
        return cld_fail(err, CLD_E_INPUT, hint,
                        "%s: sliding layers are %s inside a block, wanted is %s", path,
                        b->sliding_causal ? "causal" : "bidirectional",
                        a->sliding_causal ? "causal" : "bidirectional");
    return CLD_OK;
}
