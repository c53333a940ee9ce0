#include "model/model_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/file.h"
#include "formats/json_fields.h"
#include "model/config_keys.h"

/* Programs differ in whether model_type or the class decides: both must name one model. */
static void check_class(const struct cld_fields *r, const char *type, const char *class)
{
    const json_t *list = cld_fields_get(r, "architectures"), *v;
    size_t n = strlen(class), i;
    json_array_foreach (list, i, v) {
        const char *name = json_is_string(v) ? json_string_value(v) : "(not a text)";
        bool same = !strncmp(name, class, n) &&
                    (!strncmp(name + n, "For", 3) || !strncmp(name + n, "Model", 5));
        if (!same && !r->err->status)
            cld_fail(r->err, CLD_E_INPUT, "mend the one that is wrong",
                     "%s: model_type is %s, architectures names %.100s", r->path, type, name);
    }
}

static void read_architecture(const struct cld_fields *r, struct cld_model_config *c)
{
    const char *type = json_string_value(cld_fields_get(r, "model_type"));
    const char *known[] = {"qwen3", "qwen2", "llama"};
    static const char *const classes[] = {"Qwen3", "Qwen2", "Llama"};
    int found = 2;
    while (found >= 0 && (!type || strcmp(type, known[found])))
        found--;
    if (found < 0) {
        cld_fields_complain(r, "qwen3, qwen2 and llama are supported",
                            type ? "unsupported model_type" : "missing key",
                            type ? type : "model_type");
        return;
    }
    strcpy(c->model_type, type);
    check_class(r, type, classes[found]);
    bool bias = cld_fields_bool_or(r, "attention_bias", false);
    c->qk_norm = !strcmp(type, "qwen3");
    c->qkv_bias = !strcmp(type, "qwen2") || bias;
    c->o_bias = strcmp(type, "qwen2") && bias;
    c->mlp_bias = !strcmp(type, "llama") && cld_fields_bool_or(r, "mlp_bias", false);
}

/* What the reader looks at itself. */
static const char *const used_keys[] = {"model_type",
                                        "architectures",
                                        "num_hidden_layers",
                                        "hidden_size",
                                        "num_attention_heads",
                                        "num_key_value_heads",
                                        "head_dim",
                                        "intermediate_size",
                                        "vocab_size",
                                        "max_position_embeddings",
                                        "rms_norm_eps",
                                        "hidden_act",
                                        "tie_word_embeddings",
                                        "attention_bias",
                                        "mlp_bias",
                                        "qkv_bias",
                                        "use_qk_norm",
                                        "bos_token_id",
                                        "eos_token_id",
                                        "pad_token_id",
                                        "layer_types",
                                        "sliding_window",
                                        "use_sliding_window",
                                        "max_window_layers",
                                        "rope_theta",
                                        "rope_scaling",
                                        "rope_parameters",
                                        "partial_rotary_factor",
                                        "original_max_position_embeddings",
                                        NULL};

/* A key that says again what the architecture has. */
static void same_bool(const struct cld_fields *r, const char *key, bool is, const char *type)
{
    if (cld_fields_bool_or(r, key, is) != is && !r->err->status)
        cld_fail(r->err, CLD_E_INPUT, "config.json and the model contradict each other",
                 "%s: %s is %s, a %s model %s", r->path, key, is ? "false" : "true", type,
                 is ? "has it" : "has none");
}

static void check_layer_types(const struct cld_fields *r, size_t n_layers)
{
    const json_t *types = cld_fields_get(r, "layer_types"), *item;
    size_t i;
    if (types && !json_is_array(types))
        cld_fields_complain(r, "one text for each layer", "not a list for key", "layer_types");
    json_array_foreach (types, i, item) {
        const char *name = json_string_value(item);
        if (!name || strcmp(name, "full_attention"))
            cld_fields_complain(r, "only full_attention layers are supported in a target",
                                "unsupported layer type", name ? name : "(not a text)");
    }
    if (json_is_array(types) && json_array_size(types) != n_layers && !r->err->status)
        cld_fail(r->err, CLD_E_INPUT, "one for each layer",
                 "%s: layer_types has %zu layers, num_hidden_layers is %zu", r->path,
                 json_array_size(types), n_layers);
}

/* A window that covers all positions is none. Qwen's files have one beside use_sliding_window =
 * false; without that word, readers differ in whether it counts. */
static void check_window(const struct cld_fields *r, size_t max_positions)
{
    if (cld_fields_bool_or(r, "use_sliding_window", false))
        cld_fields_complain(r, "targets with sliding windows are not supported", "unsupported key",
                            "use_sliding_window");
    if (cld_fields_get(r, "use_sliding_window") || !cld_fields_get(r, "sliding_window"))
        return;
    size_t window = cld_fields_count(r, "sliding_window", (size_t)1 << 40);
    if (!r->err->status && window < max_positions)
        cld_fail(r->err, CLD_E_INPUT,
                 "targets with sliding windows are not supported; if no layer slides, say so with "
                 "use_sliding_window = false",
                 "%s: sliding_window is %zu, of %zu positions", r->path, window, max_positions);
}

static void refuse_unsupported(const struct cld_fields *r, const struct cld_model_config *c)
{
    const json_t *act = cld_fields_get(r, "hidden_act");
    const char *name = json_string_value(act);
    if (act && (!name || (strcmp(name, "silu") && strcmp(name, "swish"))))
        cld_fields_complain(r, "only silu is supported", "unsupported hidden_act",
                            name ? name : "(not a text)");
    if (strcmp(c->model_type, "llama"))
        same_bool(r, "mlp_bias", false, c->model_type);
    if (!strcmp(c->model_type, "qwen2") && !cld_fields_bool_or(r, "attention_bias", true))
        same_bool(r, "attention_bias", true, c->model_type);
    same_bool(r, "qkv_bias", c->qkv_bias, c->model_type);
    same_bool(r, "use_qk_norm", c->qk_norm, c->model_type);
    check_layer_types(r, c->n_layers);
    check_window(r, c->max_positions);
    cld_config_keys_check(r, used_keys);
}

enum cld_status cld_model_config_read(const char *dir, struct cld_model_config *c,
                                      struct cld_error *err)
{
    char *path = cld_format("%s/config.json", dir);
    json_t *root = NULL;
    enum cld_status s = CLD_OK;
    memset(c, 0, sizeof *c);
    if (!path)
        return cld_fail_memory(err, "the data of %s", dir);
    if ((s = cld_json_load(path, &root, err)))
        goto done;
    struct cld_fields r = {path, root, err};
    err->status = CLD_OK;
    read_architecture(&r, c);
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
    cld_rope_read(&r, "full_attention", &c->rope);
    if (!(c->rope.theta > 0))
        c->rope.theta = 10000; /* the published default of all three */
    refuse_unsupported(&r, c);
    if (!err->status && c->n_heads % c->n_kv_heads)
        cld_fail(err, CLD_E_INPUT,
                 "config.json is wrong or of an architecture that cldraft does not support",
                 "%s: %zu query heads are no multiple of %zu KV heads", path, c->n_heads,
                 c->n_kv_heads);
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
