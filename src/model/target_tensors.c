#include "model/target_tensors.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "model/compare_rows.h"

static const char *const embed_name = "model.embed_tokens.weight", *const head_name =
                                                                       "lm_head.weight";

/* Tensors of a layer; `key` of config.json announces those that not every model has. */
static const struct suffix {
    const char *name, *key;
    size_t flag; /* offset of a bool of the configuration; 0: always there */
} suffixes[] = {
    {"input_layernorm.weight", NULL, 0},
    {"self_attn.q_proj.weight", NULL, 0},
    {"self_attn.k_proj.weight", NULL, 0},
    {"self_attn.v_proj.weight", NULL, 0},
    {"self_attn.o_proj.weight", NULL, 0},
    {"self_attn.q_norm.weight", "model_type", offsetof(struct cld_model_config, qk_norm)},
    {"self_attn.k_norm.weight", "model_type", offsetof(struct cld_model_config, qk_norm)},
    {"post_attention_layernorm.weight", NULL, 0},
    {"mlp.gate_proj.weight", NULL, 0},
    {"mlp.up_proj.weight", NULL, 0},
    {"mlp.down_proj.weight", NULL, 0},
    {"self_attn.q_proj.bias", "attention_bias", offsetof(struct cld_model_config, qkv_bias)},
    {"self_attn.k_proj.bias", "attention_bias", offsetof(struct cld_model_config, qkv_bias)},
    {"self_attn.v_proj.bias", "attention_bias", offsetof(struct cld_model_config, qkv_bias)},
    {"self_attn.o_proj.bias", "attention_bias", offsetof(struct cld_model_config, o_bias)},
    {"mlp.gate_proj.bias", "mlp_bias", offsetof(struct cld_model_config, mlp_bias)},
    {"mlp.up_proj.bias", "mlp_bias", offsetof(struct cld_model_config, mlp_bias)},
    {"mlp.down_proj.bias", "mlp_bias", offsetof(struct cld_model_config, mlp_bias)},
};
enum { N_SUFFIXES = sizeof suffixes / sizeof *suffixes };

/* Parts of a model that text does not pass through. */
static const char *const other_parts[] = {"visual.",
                                          "model.visual.",
                                          "vision_tower.",
                                          "model.vision_tower.",
                                          "vision_model.",
                                          "model.vision_model.",
                                          "multi_modal_projector.",
                                          "model.multi_modal_projector.",
                                          "audio_tower.",
                                          "model.audio_tower.",
                                          "mtp.",
                                          "model.mtp."};

/* Parts of names that say what a tensor is and what to do about it. */
static const struct {
    const char *part, *hint;
} known_kinds[] = {
    {"lora_", "merge the adapter into the weights first"},
    {"base_model.", "merge the adapter into the weights first"},
    {".base_layer.", "merge the adapter into the weights first"},
    {"modules_to_save", "merge the adapter into the weights first"},
    {".experts.", "only dense models are supported"},
    {"_scale", "convert the weights to bf16 first"},
    {"qweight", "convert the weights to bf16 first"},
    {"qzeros", "convert the weights to bf16 first"},
    {"scales", "convert the weights to bf16 first"},
    {"g_idx", "convert the weights to bf16 first"},
    {"weight_packed", "convert the weights to bf16 first"},
    {"absmax", "convert the weights to bf16 first"},
    {"quant", "convert the weights to bf16 first"},
};

static bool has(const struct cld_model_config *c, const struct suffix *s)
{
    bool flag = true;
    if (s->flag)
        memcpy(&flag, (const char *)c + s->flag, sizeof flag);
    return flag;
}

static const struct suffix *find_suffix(const char *name)
{
    for (size_t i = 0; i < N_SUFFIXES; i++)
        if (!strcmp(suffixes[i].name, name))
            return &suffixes[i];
    return NULL;
}

/* "model.layers.7.mlp.up_proj.weight": 7, and where the rest begins; NULL: of no layer. */
static const char *of_layer(const char *name, size_t *layer)
{
    int at = 0;
    return sscanf(name, "model.layers.%zu.%n", layer, &at) == 1 && at ? name + at : NULL;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && !strcmp(text + n - n_end, end);
}

static bool is_other_part(const char *name)
{
    for (size_t i = 0; i < sizeof other_parts / sizeof *other_parts; i++)
        if (!strncmp(name, other_parts[i], strlen(other_parts[i])))
            return true;
    return false;
}

/* --- what is missing -------------------------------------------------------------------------- */

/* The embedding under another name, or NULL. */
static const char *embedding_like(const struct cld_safetensors *st)
{
    static const char *const ends[] = {"embed_tokens.weight", "wte.weight", "tok_embeddings.weight",
                                       "word_embeddings.weight", "token_embd.weight"};
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++)
        for (size_t i = 0; i < cld_safetensors_n(st); i++)
            if (ends_with(cld_safetensors_at(st, i)->name, ends[k]))
                return cld_safetensors_at(st, i)->name;
    return NULL;
}

/* What is in the file instead. */
static enum cld_status no_embedding(const struct cld_safetensors *st, const char *dir,
                                    struct cld_error *err)
{
    const char *there = embedding_like(st);
    size_t n = there ? strlen(there) : 0, n_name = strlen(embed_name);
    const char *hint = "the tensors of a text model begin with model.layers and are named as "
                       "published: rename them, or extract the language model";
    if (there && n > n_name && ends_with(there, embed_name))
        return cld_fail(err, CLD_E_INPUT, hint,
                        "%s: tensor %s is missing; there is %.200s: the names begin with %.*s", dir,
                        embed_name, there, (int)(n - n_name), there);
    if (there)
        return cld_fail(err, CLD_E_INPUT, hint, "%s: tensor %s is missing; there is %.200s", dir,
                        embed_name, there);
    return cld_fail(err, CLD_E_INPUT, hint,
                    "%s: tensor %s is missing among %zu, the first is %.200s", dir, embed_name,
                    cld_safetensors_n(st),
                    cld_safetensors_n(st) ? cld_safetensors_at(st, 0)->name : "not there");
}

/* The first tensor that this layer lacks. */
static enum cld_status check_layer(const struct cld_safetensors *st,
                                   const struct cld_model_config *c, size_t layer, size_t n_layers,
                                   const char *dir, struct cld_error *err)
{
    for (size_t i = 0; i < N_SUFFIXES; i++) {
        const struct suffix *x = &suffixes[i];
        char name[160];
        snprintf(name, sizeof name, "model.layers.%zu.%s", layer, x->name);
        if (!has(c, x) || cld_safetensors_find(st, name))
            continue;
        if (layer >= n_layers)
            return cld_fail(
                err, CLD_E_INPUT, "fetch the weights again, or mend config.json",
                "%s: tensor %s is missing; num_hidden_layers is %zu, the files have %zu", dir, name,
                c->n_layers, n_layers);
        if (x->key)
            return cld_fail(err, CLD_E_INPUT, "config.json and the weights disagree",
                            "%s: tensor %s is missing, which a %s model with its %s has", dir, name,
                            c->model_type, x->key);
        return cld_fail(err, CLD_E_INPUT, "fetch the weights again",
                        "%s: tensor %s is missing among %zu", dir, name, cld_safetensors_n(st));
    }
    return CLD_OK;
}

static enum cld_status check_missing(const struct cld_safetensors *st,
                                     const struct cld_model_config *c, const char *dir,
                                     struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_layers = 0, layer;
    if (!cld_safetensors_find(st, embed_name))
        return no_embedding(st, dir, err);
    if (!c->tied && !cld_safetensors_find(st, head_name))
        return cld_fail(err, CLD_E_INPUT, "fetch the weights again, or mend config.json",
                        "%s: tie_word_embeddings is false and there is no lm_head.weight", dir);
    for (size_t i = 0; i < cld_safetensors_n(st); i++)
        if (of_layer(cld_safetensors_at(st, i)->name, &layer) && layer < c->n_layers)
            n_layers = layer + 1 > n_layers ? layer + 1 : n_layers;
    for (layer = 0; n_layers && layer < c->n_layers && !s; layer++)
        s = check_layer(st, c, layer, n_layers, dir, err);
    return s;
}

/* --- what is too much ------------------------------------------------------------------------- */

static enum cld_status refuse(const struct cld_model_config *c, const char *name, const char *dir,
                              struct cld_error *err)
{
    size_t layer;
    const char *rest = of_layer(name, &layer);
    const struct suffix *x = rest ? find_suffix(rest) : NULL;
    const char *hint = "config.json and the weights disagree, or the model is not supported";
    for (size_t i = 0; i < sizeof known_kinds / sizeof *known_kinds; i++)
        if (strstr(name, known_kinds[i].part))
            hint = known_kinds[i].hint;
    if (rest && layer >= c->n_layers)
        return cld_fail(err, CLD_E_INPUT, "mend num_hidden_layers in config.json",
                        "%s: num_hidden_layers is %zu, and there is tensor '%.200s'", dir,
                        c->n_layers, name);
    if (x && x->key)
        return cld_fail(
            err, CLD_E_INPUT, hint,
            "%s: tensor '%.200s' has no place in a %s model whose config.json has no %s", dir, name,
            c->model_type, x->key);
    return cld_fail(err, CLD_E_INPUT, hint, "%s: tensor '%.200s' has no place in a %s model", dir,
                    name, c->model_type);
}

static bool is_used(const struct cld_model_config *c, const char *name)
{
    size_t layer;
    const char *rest = of_layer(name, &layer);
    if (!rest)
        return !strcmp(name, embed_name) || !strcmp(name, head_name) ||
               !strcmp(name, "model.norm.weight");
    const struct suffix *x = find_suffix(rest);
    return layer < c->n_layers && x && has(c, x);
}

enum cld_status cld_target_tensors_check(const struct cld_safetensors *st,
                                         const struct cld_model_config *c, const char *dir,
                                         struct cld_error *err)
{
    enum cld_status s = check_missing(st, c, dir, err);
    for (size_t i = 0; i < cld_safetensors_n(st) && !s; i++) {
        const char *name = cld_safetensors_at(st, i)->name;
        if (!is_used(c, name) && !ends_with(name, "rotary_emb.inv_freq") && !is_other_part(name))
            s = refuse(c, name, dir, err);
    }
    return s;
}

/* --- the directory ---------------------------------------------------------------------------- */

static bool there(const char *dir, const char *name)
{
    char *path = cld_format("%s/%s", dir, name);
    bool is = path && cld_file_exists(path);
    free(path);
    return is;
}

static enum cld_status refuse_adapter(const char *dir, struct cld_error *err)
{
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors",
                                        "adapter_model.bin"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (there(dir, names[i]))
            return cld_fail(err, CLD_E_INPUT,
                            "merge the adapter into the weights, or move it to another directory",
                            "%s: there is %s beside the model, an adapter that would not be read",
                            dir, names[i]);
    return CLD_OK;
}

/* Other weights of the directory than those that were opened. */
static void warn_beside(const char *dir, const struct cld_safetensors *st)
{
    const char *const one = "model.safetensors", *const index = "model.safetensors.index.json";
    struct cld_error none = CLD_ERROR_INIT;
    char **names = NULL, others[300] = "";
    size_t n = 0, used = 0;
    bool single = there(dir, one);
    if (single && there(dir, index))
        cld_warn("%s: %s is read; %s, which stands beside it, is not", dir, one, index);
    if (cld_dir_list(dir, &names, &n, &none))
        return;
    for (size_t i = 0; i < n; i++) {
        const char *name = names[i];
        bool weights = ends_with(name, ".gguf") || ends_with(name, ".pth") ||
                       !strncmp(name, "pytorch_model", 13) ||
                       (ends_with(name, ".safetensors") &&
                        (!strncmp(name, "model", 5) || !strncmp(name, "consolidated", 12)));
        if (weights && !cld_safetensors_reads(st, name) && used < sizeof others)
            used += (size_t)snprintf(others + used, sizeof others - used, "%s%.80s",
                                     used ? ", " : "", name);
    }
    if (used)
        cld_warn("%s: weights that are not read: %s", dir, others);
    cld_dir_list_free(names, n);
}

/* Tensors that are there and are not read, by kind. */
static void tell_other_parts(const struct cld_safetensors *st, const char *dir)
{
    size_t n = 0;
    const char *first = NULL;
    for (size_t i = 0; i < cld_safetensors_n(st); i++)
        if (is_other_part(cld_safetensors_at(st, i)->name) && !n++)
            first = cld_safetensors_at(st, i)->name;
    if (n)
        cld_info("%s: %zu tensors that text does not pass through are not read, such as %s", dir, n,
                 first);
}

enum cld_status cld_target_files_check(const char *dir, const struct cld_model_config *c,
                                       struct cld_error *err)
{
    struct cld_safetensors *st = NULL;
    enum cld_status s = refuse_adapter(dir, err);
    if (s || (!there(dir, "model.safetensors") && !there(dir, "model.safetensors.index.json")))
        return s;
    if (!(s = cld_safetensors_open(dir, &st, err)) &&
        !(s = cld_target_tensors_check(st, c, dir, err))) {
        warn_beside(dir, st);
        tell_other_parts(st, dir);
    }
    cld_safetensors_close(st);
    return s;
}

/* --- vocabulary ------------------------------------------------------------------------------- */

static enum cld_status check_head(const char *dir, const struct cld_safetensors *st,
                                  const struct cld_safetensor *embed,
                                  const struct cld_model_config *c, struct cld_error *err)
{
    const struct cld_safetensor *head = cld_safetensors_find(st, head_name);
    size_t row = SIZE_MAX;
    if (!head)
        return CLD_OK;
    if (head->n_dims != 2 || head->shape[0] != c->vocab || head->shape[1] != embed->shape[1])
        return cld_fail(err, CLD_E_INPUT, "mend config.json, or pad head and embedding alike",
                        "%s: lm_head.weight has %zu rows, config.json says %zu", dir,
                        head->n_dims ? head->shape[0] : 0, c->vocab);
    enum cld_status s = c->tied ? cld_compare_rows(st, embed, st, head, &row, err) : CLD_OK;
    if (s || row == SIZE_MAX)
        return s;
    return cld_fail(
        err, CLD_E_INPUT, "set tie_word_embeddings to false in its config.json",
        "%s: config.json says that the head is the embedding (tie_word_embeddings), but "
        "row %zu of lm_head.weight is not that of the embedding",
        dir, row);
}

enum cld_status cld_target_vocabulary_check(const char *dir, const struct cld_model_config *c,
                                            struct cld_error *err)
{
    struct cld_safetensors *st = NULL;
    enum cld_status s = cld_safetensors_open(dir, &st, err);
    if (s)
        return s;
    const struct cld_safetensor *embed = cld_safetensors_find(st, embed_name);
    if (!embed)
        s = no_embedding(st, dir, err);
    else if (embed->n_dims != 2 || embed->shape[0] != c->vocab)
        s = cld_fail(err, CLD_E_INPUT, "mend vocab_size in its config.json",
                     "%s: %s has %zu rows, config.json says %zu", dir, embed_name,
                     embed->n_dims ? embed->shape[0] : 0, c->vocab);
    else
        s = check_head(dir, st, embed, c, err);
    cld_safetensors_close(st);
    return s;
}
