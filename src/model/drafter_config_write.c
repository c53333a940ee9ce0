/* drafter_config_write.c - writes the config.json of a drafter in the published layout. */
#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "formats/json_fields.h"
#include "model/drafter_layout.h"

/* A theta is a whole number in published files. */
static json_t *number(double v)
{
    return v == floor(v) && fabs(v) < 1e15 ? json_integer((json_int_t)v) : json_real(v);
}

static json_t *token(int64_t id)
{
    return id < 0 ? json_null() : json_integer(id);
}

/* NULL leaves the key out. */
static json_t *known_count(size_t n)
{
    return n ? json_integer((json_int_t)n) : NULL;
}

static json_t *taps_of(const struct cld_drafter_file *f)
{
    json_t *list = json_array();
    for (size_t i = 0; i < f->config.n_taps; i++)
        json_array_append_new(list, json_integer(f->taps[i]));
    return list;
}

static json_t *layer_types_of(const struct cld_drafter_config *c)
{
    json_t *list = json_array();
    for (size_t i = 0; i < c->n_layers; i++)
        json_array_append_new(list,
                              json_string(c->sliding[i] ? "sliding_attention" : "full_attention"));
    return list;
}

static json_t *dflash_config_of(const struct cld_drafter_file *f)
{
    const struct cld_drafter_config *c = &f->config;
    return json_pack("{s:I, s:I, s:o, s:o*, s:b, s:b}", "block_size", (json_int_t)c->block_size,
                     "mask_token_id", (json_int_t)c->mask_token, "target_layer_ids", taps_of(f),
                     "num_target_layers", known_count(f->n_target_layers), "sliding_causal",
                     (int)c->sliding_causal, "sample_from_anchor", (int)c->anchor_first);
}

/* No auto_map: it would name a Python file that is not there. The mask token and the taps stand in
 * dflash_config alone, as published. */
json_t *cld_drafter_config_json(const struct cld_drafter_file *f)
{
    const struct cld_drafter_config *c = &f->config;
    bool any = cld_drafter_slides(c);
    json_t *o = json_pack("{s:[s], s:s, s:I, s:o, s:o*, s:I, s:I, s:I, s:I, s:I, s:I, s:s}",
                          "architectures", "DFlashDraftModel", "model_type", "qwen3", "block_size",
                          (json_int_t)c->block_size, "dflash_config", dflash_config_of(f),
                          "num_target_layers", known_count(f->n_target_layers), "num_hidden_layers",
                          (json_int_t)c->n_layers, "hidden_size", (json_int_t)c->hidden,
                          "intermediate_size", (json_int_t)c->intermediate, "num_attention_heads",
                          (json_int_t)c->n_heads, "num_key_value_heads", (json_int_t)c->n_kv_heads,
                          "head_dim", (json_int_t)c->head_dim, "hidden_act", "silu");
    json_t *rope = json_pack("{s:f, s:o, s:n, s:{s:o, s:s}}", "rms_norm_eps", c->rms_norm_eps,
                             "rope_theta", number(c->rope_theta), "rope_scaling", "rope_parameters",
                             "rope_theta", number(c->rope_theta), "rope_type", "default");
    json_t *layers =
        json_pack("{s:I, s:o, s:o, s:b, s:I}", "max_position_embeddings",
                  (json_int_t)f->max_positions, "layer_types", layer_types_of(c), "sliding_window",
                  any ? json_integer((json_int_t)c->sliding_window) : json_null(),
                  "use_sliding_window", (int)any, "max_window_layers", (json_int_t)c->n_layers);
    json_t *rest =
        json_pack("{s:b, s:f, s:f, s:I, s:b, s:o, s:o, s:o, s:s, s:s, s:b}", "attention_bias", 0,
                  "attention_dropout", 0.0, "initializer_range", f->init_std, "vocab_size",
                  (json_int_t)c->vocab, "tie_word_embeddings", (int)f->tied, "bos_token_id",
                  token(f->bos), "eos_token_id", token(f->eos), "pad_token_id", token(f->pad),
                  "dtype", "bfloat16", "torch_dtype", "bfloat16", "use_cache", 1);
    bool bad = !o || json_object_update(o, rope) || json_object_update(o, layers) ||
               json_object_update(o, rest) ||
               (any && !c->sliding_causal && json_object_set_new(o, "is_causal", json_false()));
    json_decref(rope);
    json_decref(layers);
    json_decref(rest);
    if (bad) {
        json_decref(o);
        return NULL;
    }
    return o;
}

enum cld_status cld_drafter_config_write(const char *dir, const struct cld_drafter_file *f,
                                         struct cld_error *err)
{
    char *path = cld_format("%s/config.json", dir);
    json_t *root = cld_drafter_config_json(f);
    enum cld_status s = cld_json_save(path, root, err);
    json_decref(root);
    free(path);
    return s;
}
