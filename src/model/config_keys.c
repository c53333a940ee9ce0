#include "model/config_keys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

/* Nothing that is computed depends on these. A star stands for any ending. */
static const char *const harmless[] = {
    "_name_or_path", "_commit_hash", "_attn_implementation*", "attn_implementation*",
    "_from_model_config", "architectures", "auto_map", "author", "dtype", "torch_dtype",
    "torchscript", "transformers_version", "use_bfloat16", "use_cache", "use_flash_attn*",
    "use_flash_attention*", "flash_attn*", "unsloth_*", "initializer_range", "initializer_factor",
    "max_window_layers", "pretraining_tp", "chunk_size_feed_forward", "gradient_checkpointing",
    "tokenizer_class", "model_max_length", "return_dict", "return_dict_in_generate",
    "return_unused_kwargs", "output_attentions", "output_hidden_states", "output_scores",
    "output_router_logits", "router_aux_loss_coef", "id2label", "label2id", "num_labels",
    "problem_type", "task_specific_params", "finetuning_task", "is_decoder", "is_encoder_decoder",
    "prefix", "sep_token_id", "cls_token_id", "unk_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "keys_to_ignore_at_inference", "tf_legacy_loss", "cross_attention_*",
    "tie_encoder_decoder", "remove_invalid_values", "exponential_decay_length_penalty",
    /* of generation, in older files */
    "max_length", "min_length", "max_new_tokens", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "num_return_sequences", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens",
    /* of training */
    "*dropout", "*_pdrop", "use_liger*", "z_loss*"};

/* Values at which a key means nothing, besides null: true counts as 1, false as 0. */
static const struct {
    const char *key;
    double neutral; /* NAN: there is none */
    const char *hint;
} must_be[] = {
    {"embedding_multiplier", 1, NULL},
    {"embedding_scale", 1, NULL},
    {"input_embedding_scale", 1, NULL},
    {"scale_emb", 1, NULL},
    {"scale_embedding", 0, NULL},
    {"scale_depth", 1, NULL},
    {"residual_multiplier", 1, NULL},
    {"attention_multiplier", 1, NULL},
    {"lm_head_multiplier", 1, NULL},
    {"logits_scaling", 1, NULL},
    {"logit_scale", 1, NULL},
    {"output_multiplier", 1, NULL},
    {"final_logit_softcapping", 0, NULL},
    {"attn_logit_softcapping", 0, NULL},
    {"is_causal", 1, "targets whose tokens see later ones are not supported"},
    {"quantization_config", NAN, "convert the weights to bf16 first"},
    {"compression_config", NAN, "convert the weights to bf16 first"},
    {"num_experts", 0, "only dense models are supported"},
    {"num_local_experts", 0, "only dense models are supported"},
    {"text_config", NAN, "give the config.json of the language model itself"},
    {"vision_config", NAN, "only text models are supported"},
    {"audio_config", NAN, "only text models are supported"},
    {"pruned_heads", NAN, "prune the weights themselves"},
    {"mlp_only_layers", NAN, "only dense models are supported"},
};

/* Parts of names that speak of what is computed. */
static const char *const mechanisms[] = {
    "scal",   "softcap", "multiplier", "bias",   "window",   "expert",  "moe",    "quant",
    "norm",   "rope",    "rotary",     "alibi",  "attn",     "attent",  "sink",   "lora",
    "clip",   "clamp",   "activ",      "_act",   "parallel", "resid",   "gate",   "conv_",
    "qk_",    "mamba",   "ssm",        "posit",  "head_dim", "adapter", "share",  "layer_t",
    "limit",  "mup",     "router",     "sparse", "altup",    "laurel",  "engram", "hyper",
    "swiglu", "mixer",   "recurr",     "double", "per_layer"};

static bool matches(const char *key, const char *pattern)
{
    size_t n = strlen(pattern), n_key = strlen(key);
    if (n && pattern[n - 1] == '*')
        return !strncmp(key, pattern, n - 1);
    if (pattern[0] == '*')
        return n_key >= n - 1 && !strcmp(key + n_key - (n - 1), pattern + 1);
    return !strcmp(key, pattern);
}

static bool is_used(const char *key, const char *const *used)
{
    for (; *used; used++)
        if (!strcmp(key, *used))
            return true;
    return false;
}

static bool is_harmless(const char *key)
{
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (matches(key, harmless[i]))
            return true;
    return false;
}

static bool is_empty(const json_t *v)
{
    return json_is_null(v) || (json_is_object(v) && !json_object_size(v)) ||
           (json_is_array(v) && !json_array_size(v)) ||
           (json_is_string(v) && !json_string_length(v));
}

static double value_of(const json_t *v)
{
    return json_is_boolean(v) ? json_is_true(v) : json_is_number(v) ? json_number_value(v) : NAN;
}

static void refuse(const struct cld_fields *r, const char *hint, const char *key, const json_t *v,
                   const char *why)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
    if (!r->err->status)
        cld_fail(r->err, CLD_E_INPUT, hint, "%.300s: unsupported value of key '%.64s': %.80s%s",
                 r->path, key, text ? text : "", why);
    free(text);
}

/* True if the key is one of must_be, which is then judged. */
static bool judge_known(const struct cld_fields *r, const char *key, const json_t *v)
{
    for (size_t i = 0; i < sizeof must_be / sizeof *must_be; i++) {
        if (strcmp(key, must_be[i].key))
            continue;
        bool neutral = is_empty(v) && strcmp(key, "quantization_config");
        if (!json_is_null(v) && !neutral && value_of(v) != must_be[i].neutral)
            refuse(r,
                   must_be[i].hint
                       ? must_be[i].hint
                       : "models that multiply by a factor of their own are not supported",
                   key, v, "");
        return true;
    }
    return false;
}

static bool means_nothing(const char *key, const json_t *v)
{
    bool factor = strstr(key, "scal") || strstr(key, "multiplier") || strstr(key, "factor");
    double value = value_of(v);
    return is_empty(v) || json_is_false(v) || (json_is_number(v) && value == (factor ? 1 : 0));
}

static bool is_mechanism(const char *key)
{
    for (size_t i = 0; i < sizeof mechanisms / sizeof *mechanisms; i++)
        if (strstr(key, mechanisms[i]))
            return true;
    return false;
}

void cld_config_keys_check(const struct cld_fields *r, const char *const *used)
{
    char unknown[400] = "";
    size_t n = 0;
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)r->object, key, v) {
        if (is_used(key, used) || is_harmless(key) || judge_known(r, key, v) ||
            means_nothing(key, v))
            continue;
        if (is_mechanism(key))
            refuse(r,
                   "what it asks for is not computed here; take the key away if it means nothing",
                   key, v, ", an unknown key");
        else if (n < sizeof unknown)
            n += (size_t)snprintf(unknown + n, sizeof unknown - n, "%s%.64s", n ? ", " : "", key);
    }
    if (n && !r->err->status)
        cld_warn("%s: unknown keys that are not used: %s", r->path, unknown);
}

void cld_config_keys_refuse(const struct cld_fields *r, const char *const *used, const char *name)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)r->object, key, v)
        if (!is_used(key, used) && !judge_known(r, key, v) && !means_nothing(key, v) &&
            !r->err->status) {
            char why[96];
            snprintf(why, sizeof why, ", an unknown key of %.60s", name);
            refuse(r, "only plain DFlash drafters are supported", key, v, why);
        }
}
