#include "model/model_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/file.h"
#include "formats/json_fields.h"

static void read_rope(const struct cld_fields *r, struct cld_rope *rope)
{
    const json_t *now = cld_fields_get(r, "rope_parameters"),
                 *old = cld_fields_get(r, "rope_scaling");
    const json_t *p = now ? now : old;
    if (p && !json_is_object(p)) {
        cld_fields_complain(r, "", "not an object for key",
                            now ? "rope_parameters" : "rope_scaling");
        return;
    }
    /* rope_theta: inside the newer object or at the top level; 10000 is the published default. */
    double top = cld_fields_positive_or(r, "rope_theta", 10000.0);
    const struct cld_fields inner = {r->path, p, r->err}; /* without p it finds nothing */
    rope->theta = cld_fields_positive_or(&inner, "rope_theta", top);
    const json_t *type = cld_fields_get(&inner, "rope_type");
    if (!type)
        type = cld_fields_get(&inner, "type");
    const char *name = type ? json_string_value(type) : "default";
    if (!name)
        cld_fields_complain(r, "", "not a text for key", "rope_type");
    else if (!strcmp(name, "default"))
        rope->type = CLD_ROPE_DEFAULT;
    else if (!strcmp(name, "linear"))
        rope->type = CLD_ROPE_LINEAR;
    else if (!strcmp(name, "llama3"))
        rope->type = CLD_ROPE_LLAMA3;
    else
        cld_fields_complain(r, "default, linear and llama3 are supported", "unsupported rope_type",
                            name);
    const json_t *partial = cld_fields_get(&inner, "partial_rotary_factor");
    if (!partial)
        partial = cld_fields_get(r, "partial_rotary_factor");
    if (partial && json_number_value(partial) != 1.0)
        cld_fields_complain(r, "only full rotary embeddings are supported", "unsupported key",
                            "partial_rotary_factor");
    if (rope->type == CLD_ROPE_DEFAULT)
        return;
    const char *needed[] = {"factor", "low_freq_factor", "high_freq_factor",
                            "original_max_position_embeddings"};
    double *to[] = {&rope->factor, &rope->low_freq_factor, &rope->high_freq_factor,
                    &rope->original_max_positions};
    for (int i = 0; i < (rope->type == CLD_ROPE_LLAMA3 ? 4 : 1); i++) {
        if (!cld_fields_get(&inner, needed[i]))
            cld_fields_complain(r, "", "rope scaling misses key", needed[i]);
        *to[i] = cld_fields_positive_or(&inner, needed[i], 1.0);
    }
    if (rope->type == CLD_ROPE_LLAMA3 && rope->low_freq_factor >= rope->high_freq_factor)
        cld_fields_complain(r, "low_freq_factor must be below high_freq_factor", "bad rope scaling",
                            name);
}

static void read_architecture(const struct cld_fields *r, struct cld_model_config *c)
{
    const char *type = json_string_value(cld_fields_get(r, "model_type"));
    const char *known[] = {"qwen3", "qwen2", "llama"};
    bool found = false;
    for (int i = 0; type && i < 3; i++)
        found |= !strcmp(type, known[i]);
    if (!found) {
        cld_fields_complain(r, "qwen3, qwen2 and llama are supported",
                            type ? "unsupported model_type" : "missing key",
                            type ? type : "model_type");
        return;
    }
    strcpy(c->model_type, type);
    bool bias = cld_fields_bool_or(r, "attention_bias", false);
    c->qk_norm = !strcmp(type, "qwen3");
    c->qkv_bias = !strcmp(type, "qwen2") || bias;
    c->o_bias = strcmp(type, "qwen2") && bias;
    c->mlp_bias = !strcmp(type, "llama") && cld_fields_bool_or(r, "mlp_bias", false);
}

/* Factors that relatives of these models have on the embedding, the residual stream or the logits.
 * Weights look the same with and without them; 1, or nothing, means none. */
static void refuse_factors(const struct cld_fields *r)
{
    static const char *const keys[] = {"embedding_multiplier",
                                       "embedding_scale",
                                       "input_embedding_scale",
                                       "scale_emb",
                                       "scale_depth",
                                       "residual_multiplier",
                                       "attention_multiplier",
                                       "logits_scaling",
                                       "logit_scale",
                                       "output_multiplier",
                                       "final_logit_softcapping",
                                       "attn_logit_softcapping"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = cld_fields_get(r, keys[i]);
        if (v && !(json_is_number(v) && json_number_value(v) == 1))
            cld_fields_complain(r,
                                "models that multiply by a factor of their own are not supported",
                                "unsupported value of key", keys[i]);
    }
    if (cld_fields_bool_or(r, "scale_embedding", false))
        cld_fields_complain(r, "models that multiply by a factor of their own are not supported",
                            "unsupported value of key", "scale_embedding");
}

static void refuse_unsupported(const struct cld_fields *r)
{
    refuse_factors(r);
    const char *act = json_string_value(cld_fields_get(r, "hidden_act"));
    if (act && strcmp(act, "silu"))
        cld_fields_complain(r, "only silu is supported", "unsupported hidden_act", act);
    if (cld_fields_bool_or(r, "use_sliding_window", false))
        cld_fields_complain(r, "targets with sliding windows are not supported", "unsupported key",
                            "use_sliding_window");
    const json_t *types = cld_fields_get(r, "layer_types"), *item;
    size_t i;
    json_array_foreach (types, i, item) {
        const char *name = json_string_value(item);
        if (!name || strcmp(name, "full_attention"))
            cld_fields_complain(r, "only full_attention layers are supported in a target",
                                "unsupported layer type", name ? name : "(not a text)");
    }
    if (cld_fields_get(r, "quantization_config"))
        cld_fields_complain(r, "convert the weights to bf16 first", "unsupported key",
                            "quantization_config");
    if (cld_fields_get(r, "num_experts") || cld_fields_get(r, "num_local_experts"))
        cld_fields_complain(r, "only dense models are supported", "unsupported key", "num_experts");
}

enum cld_status cld_model_config_read(const char *dir, struct cld_model_config *c,
                                      struct cld_error *err)
{
    char *path = cld_format("%s/config.json", dir);
    json_t *root = NULL;
    enum cld_status s = CLD_OK;
    memset(c, 0, sizeof *c);
    if (!path)
        return cld_fail(err, CLD_E_MEMORY, "", "%s: no memory", dir);
    if ((s = cld_json_load(path, &root, err)))
        goto done;
    struct cld_fields r = {path, root, err};
    err->status = CLD_OK;
    read_architecture(&r, c);
    refuse_unsupported(&r);
    c->n_layers = cld_fields_count(&r, "num_hidden_layers", 10000);
    c->hidden = cld_fields_count(&r, "hidden_size", 1 << 20);
    c->n_heads = cld_fields_count(&r, "num_attention_heads", 1 << 16);
    c->n_kv_heads = cld_fields_count_or(&r, "num_key_value_heads", 1 << 16, c->n_heads);
    c->intermediate = cld_fields_count(&r, "intermediate_size", 1 << 22);
    c->vocab = cld_fields_count(&r, "vocab_size", (size_t)1 << 30);
    c->max_positions = cld_fields_count_or(&r, "max_position_embeddings", (size_t)1 << 30, 2048);
    /* Absent in older files: then hidden / heads. */
    c->head_dim =
        cld_fields_count_or(&r, "head_dim", 1 << 16, c->n_heads ? c->hidden / c->n_heads : 0);
    c->rms_norm_eps = cld_fields_positive_or(&r, "rms_norm_eps", 1e-6);
    c->tied = cld_fields_bool_or(&r, "tie_word_embeddings", false);
    c->bos = cld_fields_token_or_none(&r, "bos_token_id");
    c->n_eos = cld_fields_tokens(&r, "eos_token_id", CLD_MAX_EOS_TOKENS, c->eos);
    c->pad = cld_fields_token_or_none(&r, "pad_token_id");
    read_rope(&r, &c->rope);
    if (!err->status && c->n_heads % c->n_kv_heads)
        cld_fail(err, CLD_E_INPUT, "", "%s: %zu query heads are no multiple of %zu KV heads", path,
                 c->n_heads, c->n_kv_heads);
    if (!err->status && (!c->head_dim || c->head_dim % 2 || c->head_dim > 256))
        cld_fail(err, CLD_E_INPUT, "head_dim must be an even number up to 256",
                 "%s: head_dim %zu is not supported", path, c->head_dim);
    s = err->status;
done:
    json_decref(root);
    free(path);
    return s;
}

/* Angular frequency of pair i, scaled. The llama3 rule keeps short wavelengths, divides long ones
 * by `factor` and blends between (Llama 3.1 release, as in its published reference code). */
static double frequency(const struct cld_rope *r, size_t i, size_t head_dim)
{
    double f = pow(r->theta, -2.0 * (double)i / (double)head_dim);
    if (r->type == CLD_ROPE_LINEAR)
        return f / r->factor;
    if (r->type == CLD_ROPE_LLAMA3) {
        double wavelength = 2 * M_PI / f;
        double turns = r->original_max_positions / wavelength;
        if (turns < r->low_freq_factor)
            return f / r->factor;
        if (turns <= r->high_freq_factor) {
            double mix = (turns - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
            return (1 - mix) * f / r->factor + mix * f;
        }
    }
    return f;
}

void cld_rope_table(const struct cld_rope *rope, size_t head_dim, size_t n_positions, float *table)
{
    size_t half = head_dim / 2;
    for (size_t i = 0; i < half; i++) {
        double f = frequency(rope, i, head_dim);
        if (rope->bf16_frequencies)
            f = (double)cld_bf16_to_f32(cld_f32_to_bf16((float)f));
        for (size_t p = 0; p < n_positions; p++) {
            table[p * head_dim + i] = (float)cos(f * (double)p);
            table[p * head_dim + half + i] = (float)sin(f * (double)p);
        }
    }
}
