#include "model_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "dtype.h"
#include "file.h"

/* The reader keeps going after a bad key and reports the first one; `err->status` says so. */
struct reader {
    const char *path;
    const json_t *root;
    struct cld_error *err;
};

static void complain(struct reader *r, const char *hint, const char *what, const char *key)
{
    if (!r->err->status)
        cld_fail(r->err, CLD_E_INPUT, hint, "%s: %s '%s'", r->path, what, key);
}

static const json_t *lookup(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

static size_t count_of(struct reader *r, const char *key, size_t most)
{
    const json_t *v = lookup(r->root, key);
    if (!v)
        complain(r, "the file must be a model's config.json", "missing key", key);
    else if (!json_is_integer(v) || json_integer_value(v) < 1 ||
             (uint64_t)json_integer_value(v) > most)
        complain(r, "", "not a number in range for key", key);
    else
        return (size_t)json_integer_value(v);
    return 1;
}

static size_t count_or(struct reader *r, const char *key, size_t most, size_t otherwise)
{
    return lookup(r->root, key) ? count_of(r, key, most) : otherwise;
}

static double real_in(struct reader *r, const json_t *object, const char *key, double otherwise)
{
    const json_t *v = lookup(object, key);
    if (!v)
        return otherwise;
    if (!json_is_number(v) || !(json_number_value(v) > 0)) {
        complain(r, "", "not a positive number for key", key);
        return 1;
    }
    return json_number_value(v);
}

static bool bool_or(struct reader *r, const char *key, bool otherwise)
{
    const json_t *v = lookup(r->root, key);
    if (!v)
        return otherwise;
    if (!json_is_boolean(v))
        complain(r, "", "not true or false for key", key);
    return json_is_true(v);
}

static int64_t token_or_none(struct reader *r, const char *key)
{
    const json_t *v = lookup(r->root, key);
    if (json_is_array(v))
        v = json_array_get(v, 0);
    if (!v)
        return -1;
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        complain(r, "", "not a token id for key", key);
    return json_integer_value(v);
}

static void read_rope(struct reader *r, struct cld_rope *rope)
{
    const json_t *now = lookup(r->root, "rope_parameters"), *old = lookup(r->root, "rope_scaling");
    const json_t *p = now ? now : old;
    if (p && !json_is_object(p)) {
        complain(r, "", "not an object for key", now ? "rope_parameters" : "rope_scaling");
        return;
    }
    /* rope_theta: inside the newer object or at the top level; 10000 is the published default. */
    double top = real_in(r, r->root, "rope_theta", 10000.0);
    rope->theta = p ? real_in(r, p, "rope_theta", top) : top;
    const json_t *type = p ? lookup(p, "rope_type") : NULL;
    if (p && !type)
        type = lookup(p, "type");
    const char *name = type ? json_string_value(type) : "default";
    if (!name)
        complain(r, "", "not a text for key", "rope_type");
    else if (!strcmp(name, "default"))
        rope->type = CLD_ROPE_DEFAULT;
    else if (!strcmp(name, "linear"))
        rope->type = CLD_ROPE_LINEAR;
    else if (!strcmp(name, "llama3"))
        rope->type = CLD_ROPE_LLAMA3;
    else
        complain(r, "default, linear and llama3 are supported", "unsupported rope_type", name);
    const json_t *partial = p ? lookup(p, "partial_rotary_factor") : NULL;
    if (!partial)
        partial = lookup(r->root, "partial_rotary_factor");
    if (partial && json_number_value(partial) != 1.0)
        complain(r, "only full rotary embeddings are supported", "unsupported key",
                 "partial_rotary_factor");
    if (rope->type == CLD_ROPE_DEFAULT)
        return;
    const char *needed[] = {"factor", "low_freq_factor", "high_freq_factor",
                            "original_max_position_embeddings"};
    double *to[] = {&rope->factor, &rope->low_freq_factor, &rope->high_freq_factor,
                    &rope->original_max_positions};
    for (int i = 0; i < (rope->type == CLD_ROPE_LLAMA3 ? 4 : 1); i++) {
        if (!lookup(p, needed[i]))
            complain(r, "", "rope scaling misses key", needed[i]);
        *to[i] = real_in(r, p, needed[i], 1.0);
    }
    if (rope->type == CLD_ROPE_LLAMA3 && rope->low_freq_factor >= rope->high_freq_factor)
        complain(r, "low_freq_factor must be below high_freq_factor", "bad rope scaling", name);
}

static void read_architecture(struct reader *r, struct cld_model_config *c)
{
    const char *type = json_string_value(lookup(r->root, "model_type"));
    const char *known[] = {"qwen3", "qwen2", "llama"};
    bool found = false;
    for (int i = 0; type && i < 3; i++)
        found |= !strcmp(type, known[i]);
    if (!found) {
        complain(r, "qwen3, qwen2 and llama are supported",
                 type ? "unsupported model_type" : "missing key", type ? type : "model_type");
        return;
    }
    strcpy(c->model_type, type);
    bool bias = bool_or(r, "attention_bias", false);
    c->qk_norm = !strcmp(type, "qwen3");
    c->qkv_bias = !strcmp(type, "qwen2") || bias;
    c->o_bias = strcmp(type, "qwen2") && bias;
    c->mlp_bias = !strcmp(type, "llama") && bool_or(r, "mlp_bias", false);
}

static void refuse_unsupported(struct reader *r)
{
    const char *act = json_string_value(lookup(r->root, "hidden_act"));
    if (act && strcmp(act, "silu"))
        complain(r, "only silu is supported", "unsupported hidden_act", act);
    if (bool_or(r, "use_sliding_window", false))
        complain(r, "targets with sliding windows are not supported", "unsupported key",
                 "use_sliding_window");
    const json_t *types = lookup(r->root, "layer_types"), *item;
    size_t i;
    json_array_foreach(types, i, item)
    {
        const char *name = json_string_value(item);
        if (!name || strcmp(name, "full_attention"))
            complain(r, "only full_attention layers are supported in a target",
                     "unsupported layer type", name ? name : "(not a text)");
    }
    if (lookup(r->root, "quantization_config"))
        complain(r, "convert the weights to bf16 first", "unsupported key", "quantization_config");
    if (lookup(r->root, "num_experts") || lookup(r->root, "num_local_experts"))
        complain(r, "only dense models are supported", "unsupported key", "num_experts");
}

enum cld_status cld_model_config_read(const char *dir, struct cld_model_config *c,
                                      struct cld_error *err)
{
    char *text = NULL, *path = cld_format("%s/config.json", dir);
    size_t n_bytes = 0;
    json_error_t je;
    json_t *root = NULL;
    enum cld_status s = CLD_OK;
    memset(c, 0, sizeof *c);
    if (!path)
        return cld_fail(err, CLD_E_MEMORY, "", "%s: no memory", dir);
    if ((s = cld_file_read(path, (size_t)16 << 20, &text, &n_bytes, err)))
        goto done;
    root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &je);
    if (!json_is_object(root)) {
        s = cld_fail(err, CLD_E_INPUT, "", "%s:%d: not a JSON object: %s", path, root ? 1 : je.line,
                     root ? "another value" : je.text);
        goto done;
    }
    struct reader r = {path, root, err};
    err->status = CLD_OK;
    read_architecture(&r, c);
    refuse_unsupported(&r);
    c->n_layers = count_of(&r, "num_hidden_layers", 10000);
    c->hidden = count_of(&r, "hidden_size", 1 << 20);
    c->n_heads = count_of(&r, "num_attention_heads", 1 << 16);
    c->n_kv_heads = count_or(&r, "num_key_value_heads", 1 << 16, c->n_heads);
    c->intermediate = count_of(&r, "intermediate_size", 1 << 22);
    c->vocab = count_of(&r, "vocab_size", (size_t)1 << 30);
    c->max_positions = count_or(&r, "max_position_embeddings", (size_t)1 << 30, 2048);
    /* Absent in older files: then hidden / heads. */
    c->head_dim = count_or(&r, "head_dim", 1 << 16, c->n_heads ? c->hidden / c->n_heads : 0);
    c->rms_norm_eps = real_in(&r, root, "rms_norm_eps", 1e-6);
    c->tied = bool_or(&r, "tie_word_embeddings", false);
    c->bos = token_or_none(&r, "bos_token_id");
    c->eos = token_or_none(&r, "eos_token_id");
    c->pad = token_or_none(&r, "pad_token_id");
    read_rope(&r, &c->rope);
    if (!err->status && c->n_heads % c->n_kv_heads)
        cld_fail(err, CLD_E_INPUT, "", "%s: %zu query heads are no multiple of %zu KV heads", path,
                 c->n_heads, c->n_kv_heads);
    if (!err->status && (c->head_dim % 8 || c->head_dim > 256))
        cld_fail(err, CLD_E_INPUT, "head_dim must be a multiple of 8 up to 256",
                 "%s: head_dim %zu is not supported", path, c->head_dim);
    s = err->status;
done:
    json_decref(root);
    free(text);
    free(path);
    return s;
}

/* Angular frequency of pair i, scaled. The llama3 rule keeps short wavelengths, divides long ones by
 * `factor` and blends between (Llama 3.1 release, as in its published reference code). */
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
