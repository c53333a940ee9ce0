#include "model/drafter_layout.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "formats/json_fields.h"
#include "model/compare_rows.h"

/* --- names ------------------------------------------------------------------------------------ */

const char *cld_drafter_plain_name(const char *name)
{
    static const char *const others[][2] = {{"context_proj.weight", "fc.weight"},
                                            {"context_norm.weight", "hidden_norm.weight"},
                                            {"final_norm.weight", "norm.weight"}};
    if (!strncmp(name, "model.", 6))
        name += 6;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(name, others[i][0]))
            return others[i][1];
    return name;
}

bool cld_drafter_is_borrowed(const char *plain_name)
{
    return !strcmp(plain_name, "embed_tokens.weight") || !strcmp(plain_name, "lm_head.weight");
}

/* The rows of a tensor of the drafter's file with those of the target's. */
static enum cld_status same_rows(const struct cld_safetensors *a, const struct cld_safetensor *x,
                                 const char *drafter_dir, const struct cld_safetensors *b,
                                 const char *name, const char *target_dir, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t row = SIZE_MAX;
    const struct cld_safetensor *y = cld_safetensors_find(b, name);
    if (!y)
        return cld_fail(err, CLD_E_INPUT, "name the target of this drafter in target.dir",
                        "%s has %s, %s has no %s", drafter_dir, x->name, target_dir, name);
    if (x->n_dims != 2 || y->n_dims != 2 || x->shape[0] != y->shape[0] ||
        x->shape[1] != y->shape[1])
        return cld_fail(err, CLD_E_INPUT, "name the target of this drafter in target.dir",
                        "%s: %s is [%zu, %zu], %s of %s is [%zu, %zu]", drafter_dir, x->name,
                        x->shape[0], x->shape[1], name, target_dir, y->shape[0], y->shape[1]);
    if ((s = cld_compare_rows(a, x, b, y, &row, err)) || row == SIZE_MAX)
        return s;
    return cld_fail(
        err, CLD_E_INPUT,
        "a drafter works with the head it was trained with: name its target in target.dir",
        "%s: row %zu of %s is not that of %s in %s", drafter_dir, row, x->name, name, target_dir);
}

enum cld_status cld_drafter_check_borrowed(const char *drafter_dir, const char *target_dir,
                                           const struct cld_model_config *target,
                                           struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const char *const embed = "model.embed_tokens.weight";
    struct cld_safetensors *own = NULL, *theirs = NULL;
    char *checkpoint = cld_format("%s/drafter.safetensors", drafter_dir);
    if (!checkpoint)
        return cld_fail_memory(err, "a path");
    if (cld_file_exists(checkpoint) || (s = cld_safetensors_open(drafter_dir, &own, err)))
        goto done; /* a checkpoint of ours has none */
    for (size_t i = 0; i < cld_safetensors_n(own) && !s; i++) {
        const struct cld_safetensor *t = cld_safetensors_at(own, i);
        const char *name = cld_drafter_plain_name(t->name);
        if (!cld_drafter_is_borrowed(name))
            continue;
        bool head = !strcmp(name, "lm_head.weight") && !target->tied;
        if (theirs || !(s = cld_safetensors_open(target_dir, &theirs, err)))
            s = same_rows(own, t, drafter_dir, theirs, head ? "lm_head.weight" : embed, target_dir,
                          err);
    }
done:
    cld_safetensors_close(own);
    cld_safetensors_close(theirs);
    free(checkpoint);
    return s;
}

/* --- the configuration of speculators -----------------------------------------------------------
 */

bool cld_speculators_is(const json_t *root)
{
    return json_object_get(root, "speculators_model_type") != NULL;
}

/* Values that a Qwen3 configuration has where its file says nothing: the nested one holds only what
 * differs from them. */
static json_t *defaults(void)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:i, s:f, s:f, s:i}", "vocab_size",
                     151936, "hidden_size", 4096, "intermediate_size", 22016, "num_hidden_layers",
                     32, "num_attention_heads", 32, "num_key_value_heads", 32, "head_dim", 128,
                     "hidden_act", "silu", "max_position_embeddings", 32768, "initializer_range",
                     0.02, "rms_norm_eps", 1e-6, "rope_theta", 10000);
}

static void same_number(const struct cld_fields *r, const char *key, size_t want, const char *other)
{
    size_t got = cld_fields_count_or(r, key, (size_t)1 << 30, want);
    if (r->err->status || got == want)
        return;
    cld_fail(r->err, CLD_E_INPUT, "mend the one that is wrong", "%s: %s is %zu, by %s it is %zu",
             r->path, key, got, other, want);
}

/* Their tap v is what enters layer v: the output of layer v - 1. */
static json_t *taps_of(const struct cld_fields *r)
{
    const char *key = "aux_hidden_state_layer_ids";
    const json_t *list = cld_fields_get(r, key), *v;
    size_t i;
    json_t *taps = json_array();
    if (!json_array_size(list))
        cld_fields_complain(r, "a drafter without it cannot be used", "no layers in key", key);
    json_array_foreach (list, i, v) {
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            cld_fields_complain(r, "layers count from 1 here; 0 is the embedding",
                                "no layer in key", key);
        json_array_append_new(taps, json_integer(json_integer_value(v) - 1));
    }
    const json_t *other = cld_fields_get(r, "target_layer_ids");
    if (other && !json_equal(other, taps))
        cld_fields_complain(r, "its numbers are one less than those of aux_hidden_state_layer_ids",
                            "other layers than aux_hidden_state_layer_ids in key",
                            "target_layer_ids");
    return taps;
}

static void check_places(const struct cld_fields *r, const json_t *plain)
{
    const struct cld_fields inner = {r->path, plain, r->err};
    size_t block = cld_fields_count(r, "block_size", 1 << 10), i;
    bool anchor_first = cld_fields_bool_or(r, "sample_from_anchor", false);
    const char *type = cld_fields_string(r, "speculators_model_type");
    const json_t *methods = json_object_get(json_object_get(r->object, "speculators_config"),
                                            "proposal_methods"),
                 *m;
    if (!r->err->status && strcmp(type, "dflash"))
        cld_fields_complain(r, "dflash is supported", "unsupported speculators_model_type", type);
    same_number(r, "draft_vocab_size",
                cld_fields_count_or(&inner, "vocab_size", (size_t)1 << 30, 0),
                "vocab_size, and a vocabulary of the drafter's own is not supported,");
    same_number(r, "target_hidden_size",
                cld_fields_count_or(&inner, "hidden_size", (size_t)1 << 30, 0), "hidden_size");
    json_array_foreach (methods, i, m) {
        const struct cld_fields method = {r->path, m, r->err};
        if (block > 1)
            same_number(&method, "speculative_tokens", block - !anchor_first,
                        anchor_first ? "block_size" : "block_size less one");
    }
}

enum cld_status cld_speculators_plain(const char *path, const json_t *root, json_t **out,
                                      struct cld_error *err)
{
    const struct cld_fields r = {path, root, err};
    const json_t *nested = json_object_get(root, "transformer_layer_config");
    json_t *plain = defaults();
    *out = NULL;
    err->status = CLD_OK;
    if (!json_is_object(nested))
        cld_fields_complain(&r, "", "not an object for key", "transformer_layer_config");
    json_t *inner =
        json_pack("{s:O?, s:o, s:b, s:O*}", "mask_token_id", json_object_get(root, "mask_token_id"),
                  "target_layer_ids", taps_of(&r), "sliding_causal",
                  !cld_fields_bool_or(&r, "sliding_window_non_causal", false), "sample_from_anchor",
                  json_object_get(root, "sample_from_anchor"));
    if (!plain || !inner) {
        json_decref(plain);
        json_decref(inner);
        return cld_fail_memory(err, "the data of %s", path);
    }
    /* Its rotary base may stand in either spelling; the default is that of neither. */
    if (json_object_get(nested, "rope_parameters"))
        json_object_del(plain, "rope_theta");
    json_object_update(plain, (json_t *)(uintptr_t)nested);
    json_object_set(plain, "block_size", json_object_get(root, "block_size"));
    json_object_set_new(plain, "dflash_config", inner);
    check_places(&r, plain);
    if (err->status) {
        json_decref(plain);
        return err->status;
    }
    *out = plain;
    return CLD_OK;
}

/* Of the target's config.json, which has been read before. */
static json_t *architectures_of(const char *verifier)
{
    struct cld_error ignored = CLD_ERROR_INIT;
    json_t *root = NULL, *list = NULL;
    char *path = cld_format("%s/config.json", verifier);
    if (path && !cld_json_load(path, &root, &ignored))
        list = json_incref(json_object_get(root, "architectures"));
    json_decref(root);
    free(path);
    return list ? list : json_array();
}

static json_t *speculators_of(const struct cld_drafter_file *f, const char *verifier)
{
    static const char *const elsewhere[] = {"architectures", "block_size", "dflash_config",
                                            "num_target_layers", "is_causal"};
    const struct cld_drafter_config *c = &f->config;
    json_t *nested = cld_drafter_config_json(f), *taps = json_array();
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        json_object_del(nested, elsewhere[i]);
    for (size_t i = 0; i < c->n_taps; i++)
        json_array_append_new(taps, json_integer(f->taps[i] + 1));
    /* vLLM takes the word for all layers: without sliding ones it must be true. */
    bool non_causal = !cld_drafter_slides(c) || !c->sliding_causal;
    return json_pack(
        "{s:[s], s:s, s:o, s:I, s:I, s:I, s:o, s:I, s:b, s:b, s:s, s:s,"
        " s:{s:s, s:[{s:s, s:I}], s:s, s:{s:s, s:o}}}",
        "architectures", "DFlashSpeculator", "speculators_model_type", "dflash",
        "transformer_layer_config", nested, "draft_vocab_size", (json_int_t)c->vocab, "block_size",
        (json_int_t)c->block_size, "target_hidden_size", (json_int_t)c->hidden,
        "aux_hidden_state_layer_ids", taps, "mask_token_id", (json_int_t)c->mask_token,
        "sliding_window_non_causal", (int)non_causal, "sample_from_anchor", (int)c->anchor_first,
        "dtype", "bfloat16", "torch_dtype", "bfloat16", "speculators_config", "algorithm", "dflash",
        "proposal_methods", "proposal_type", "greedy", "speculative_tokens",
        (json_int_t)c->block_size - !c->anchor_first, "default_proposal_method", "greedy",
        "verifier", "name_or_path", verifier, "architectures", architectures_of(verifier));
}

enum cld_status cld_speculators_write(const char *dir, const struct cld_drafter_file *f,
                                      const char *verifier, struct cld_error *err)
{
    char *path = cld_format("%s/config.json", dir);
    json_t *root = speculators_of(f, verifier);
    enum cld_status s = cld_json_save(path, root, err);
    json_decref(root);
    free(path);
    return s;
}
