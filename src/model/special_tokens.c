#include "model/special_tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "data/feed.h"
#include "formats/json_fields.h"

void cld_special_tokens_add(struct cld_special_tokens *all, int64_t id, const char *file,
                            const char *key, bool ends)
{
    if (id >= 0 && all->n < CLD_MAX_SPECIAL_TOKENS)
        all->at[all->n++] = (struct cld_special_token){id, file, key, ends};
}

/* *root stays NULL where there is no such file. */
static enum cld_status load(const char *dir, const char *file, char **path, json_t **root,
                            struct cld_error *err)
{
    *root = NULL;
    if (!(*path = cld_format("%s/%s", dir, file)))
        return cld_fail_memory(err, "a path");
    return cld_file_exists(*path) ? cld_json_load(*path, root, err) : CLD_OK;
}

/* Ids. Many config.json have no pad token; what programs use then stands in the other file. */
static enum cld_status read_ids(const char *dir, const char *file, struct cld_special_tokens *all,
                                struct cld_error *err)
{
    static const char *const keys[] = {"eos_token_id", "pad_token_id", "bos_token_id"};
    json_t *root;
    char *path;
    int64_t ids[CLD_MAX_EOS_TOKENS];
    enum cld_status s = load(dir, file, &path, &root, err);
    const struct cld_fields r = {path, root, err};
    err->status = s;
    for (size_t i = 0; i < 3 && root; i++) {
        size_t n = cld_fields_tokens(&r, keys[i], CLD_MAX_EOS_TOKENS, ids);
        for (size_t k = 0; k < n && !err->status; k++)
            cld_special_tokens_add(all, ids[k], file, keys[i], !i);
    }
    s = err->status;
    json_decref(root);
    free(path);
    return s;
}

/* A token as text, or as an object with its text in "content". */
static const char *text_of(const json_t *v)
{
    return json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
}

/* Programs add the tokens of this list to those of tokenizer.json. */
static enum cld_status check_added(const json_t *root, const char *path,
                                   const struct cld_tokenizer *t, struct cld_error *err)
{
    const char *key;
    json_t *v;
    json_object_foreach (json_object_get(root, "added_tokens_decoder"), key, v) {
        const char *text = text_of(v);
        long id = strtol(key, NULL, 10);
        int32_t there = text ? cld_tokenizer_find(t, text) : -1;
        if (text && there < 0)
            cld_warn("%s: tokenizer.json has no token '%s', which added_tokens_decoder has as %ld: "
                     "it is read as plain text",
                     path, text, id);
        else if (text && there != id)
            return cld_fail(err, CLD_E_INPUT, "fetch both files again, of the same model",
                            "%s: added_tokens_decoder has the token '%s' as %ld, tokenizer.json as "
                            "%d",
                            path, text, id, (int)there);
    }
    return CLD_OK;
}

static enum cld_status read_texts(const char *dir, const char *file, const struct cld_tokenizer *t,
                                  struct cld_special_tokens *all, struct cld_error *err)
{
    static const char *const keys[] = {"eos_token", "pad_token", "bos_token"};
    json_t *root;
    char *path;
    enum cld_status s = load(dir, file, &path, &root, err);
    for (size_t i = 0; i < 3 && root && t && !s; i++) {
        const char *text = text_of(json_object_get(root, keys[i]));
        int32_t id = text ? cld_tokenizer_find(t, text) : -1;
        cld_special_tokens_add(all, id, file, keys[i], !i);
        if (text && id < 0)
            cld_warn("%s: %s is '%s', which tokenizer.json does not have", path, keys[i], text);
    }
    if (!s && root && t)
        s = check_added(root, path, t, err);
    json_decref(root);
    free(path);
    return s;
}

/* What the template of the run writes at the end of an answer. Rows of ready ids have none. */
static void add_mark(const struct cld_config *cfg, const struct cld_tokenizer *t,
                     struct cld_special_tokens *all)
{
    struct cld_error none = CLD_ERROR_INIT;
    enum cld_chat_template template;
    if (!t || cld_feed_chosen_template(cfg, &template, &none))
        return;
    const char *mark = template == CLD_CHAT_LLAMA3 ? "<|eot_id|>" : "<|im_end|>";
    cld_special_tokens_add(all, cld_tokenizer_find(t, mark), "tokenizer.json", mark, true);
}

enum cld_status cld_special_tokens_read(const struct cld_config *cfg,
                                        const struct cld_model_config *model,
                                        const struct cld_tokenizer *t,
                                        struct cld_special_tokens *out, struct cld_error *err)
{
    const char *dir = cfg->target.dir;
    enum cld_status s = CLD_OK;
    out->n = 0;
    if ((s = read_ids(dir, "config.json", out, err)) ||
        (s = read_ids(dir, "generation_config.json", out, err)) ||
        (s = read_texts(dir, "tokenizer_config.json", t, out, err)) ||
        (s = read_texts(dir, "special_tokens_map.json", t, out, err)))
        return s;
    add_mark(cfg, t, out);
    for (size_t i = 0; i < out->n; i++)
        if ((uint64_t)out->at[i].id >= model->vocab)
            cld_warn("%s: %s %lld is outside the vocabulary of %zu", out->at[i].file,
                     out->at[i].key, (long long)out->at[i].id, model->vocab);
    return CLD_OK;
}

bool cld_special_tokens_end(const struct cld_special_tokens *all, int64_t id)
{
    for (size_t i = 0; i < all->n; i++)
        if (all->at[i].id == id && all->at[i].ends)
            return true;
    return false;
}

static bool is_there(const struct cld_model_config *c, int64_t id)
{
    for (size_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return true;
    return false;
}

enum cld_status cld_end_tokens_find(const struct cld_config *cfg, const struct cld_tokenizer *t,
                                    struct cld_model_config *model, struct cld_error *err)
{
    char text[800] = "";
    size_t n = 0;
    struct cld_special_tokens all;
    enum cld_status s = cld_special_tokens_read(cfg, model, t, &all, err);
    if (s)
        return s;
    model->n_eos = 0;
    for (size_t i = 0; i < all.n; i++) {
        const struct cld_special_token *a = &all.at[i];
        if (!a->ends || is_there(model, a->id))
            continue;
        if (model->n_eos == CLD_MAX_EOS_TOKENS)
            return cld_fail(err, CLD_E_INPUT,
                            "shorten the list eos_token_id in the target's generation_config.json",
                            "%s: more than %d tokens end an answer", cfg->target.dir,
                            CLD_MAX_EOS_TOKENS);
        model->eos[model->n_eos++] = a->id;
        if (n < sizeof text)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%lld (%s of %s)", n ? ", " : "",
                                  (long long)a->id, a->key, a->file);
    }
    if (n)
        cld_info("answers end with token %s", text);
    else
        cld_warn("%s: no file names a token that ends an answer: answers end at their longest",
                 cfg->target.dir);
    return CLD_OK;
}
