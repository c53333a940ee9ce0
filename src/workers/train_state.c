#include "workers/train_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "formats/json_fields.h"
#include "formats/json_read.h"

/* Changes with every change of meaning; another one is refused. */
#define FORMAT "cldraft-state-1"

/* The keys of the two kinds that make up most of the file, with their places in the record. */
static const struct {
    const char *key;
    size_t at;
    int64_t least;
} wholes[] = {
    {"step", offsetof(struct cld_train_state, step), 0},
    {"n_rows", offsetof(struct cld_train_state, n_rows), 0},
    {"seed", offsetof(struct cld_train_state, seed), INT64_MIN},
    {"n_context_tokens", offsetof(struct cld_train_state, n_context_tokens), 0},
    {"n_supervised_tokens", offsetof(struct cld_train_state, n_supervised_tokens), 0},
    {"n_skipped_steps", offsetof(struct cld_train_state, n_skipped_steps), 0},
    {"best_step", offsetof(struct cld_train_state, best_step), -1},
};
static const struct {
    const char *key;
    size_t at;
} texts[] = {
    {"version", offsetof(struct cld_train_state, version)},
    {"target_sha256", offsetof(struct cld_train_state, target_sha256)},
    {"tokenizer_sha256", offsetof(struct cld_train_state, tokenizer_sha256)},
    {"template", offsetof(struct cld_train_state, template_name)},
    {"config", offsetof(struct cld_train_state, config)},
};
enum { N_WHOLES = sizeof wholes / sizeof *wholes, N_TEXTS = sizeof texts / sizeof *texts };

static char **text_at(struct cld_train_state *st, size_t i)
{
    return (char **)(void *)((char *)st + texts[i].at);
}

void cld_train_state_drop_facts(struct cld_train_state *st)
{
    for (size_t i = 0; i < st->n_facts; i++) {
        free(st->facts[i].key);
        free(st->facts[i].value);
    }
    free(st->facts);
    st->facts = NULL;
    st->n_facts = 0;
}

void cld_train_state_free(struct cld_train_state *st)
{
    if (!st)
        return;
    for (size_t i = 0; i < N_TEXTS; i++)
        free(*text_at(st, i));
    cld_train_state_drop_facts(st);
    memset(st, 0, sizeof *st);
}

enum cld_status cld_train_state_fact(struct cld_train_state *st, const char *key, const char *value,
                                     struct cld_error *err)
{
    struct cld_fact *grown = realloc(st->facts, cld_mul(st->n_facts + 1, sizeof *grown));
    struct cld_fact f = {strdup(key), strdup(value)};
    if (grown)
        st->facts = grown;
    if (!grown || !f.key || !f.value) {
        free(f.key);
        free(f.value);
        return cld_fail_memory(err, "the fact '%s'", key);
    }
    st->facts[st->n_facts++] = f;
    return CLD_OK;
}

const char *cld_train_state_find(const struct cld_train_state *st, const char *key)
{
    for (size_t i = 0; i < st->n_facts; i++)
        if (!strcmp(st->facts[i].key, key))
            return st->facts[i].value;
    return NULL;
}

enum cld_status cld_train_state_text(const struct cld_train_state *st, char **out,
                                     struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    json_t *root = json_object(), *facts = json_object();
    bool bad = !root || !facts || json_object_set_new(root, "format", json_string(FORMAT));
    *out = NULL;
    if (!isfinite(st->best_accepted)) {
        s = cld_fail(err, CLD_E_NUMERIC, "the checkpoint is damaged; resume from an earlier one",
                     "the best accepted length is not finite");
        goto done;
    }
    for (size_t i = 0; i < N_WHOLES; i++) {
        int64_t v;
        memcpy(&v, (const char *)st + wholes[i].at, sizeof v);
        bad |= json_object_set_new(root, wholes[i].key, json_integer(v));
    }
    bad |= json_object_set_new(root, "best_accepted", json_real(st->best_accepted));
    for (size_t i = 0; i < st->n_facts; i++)
        bad |= json_object_set_new(facts, st->facts[i].key, json_string(st->facts[i].value));
    bad |= json_object_set(root, "facts", facts);
    for (size_t i = 0; i < N_TEXTS; i++) {
        const char *v;
        memcpy(&v, (const char *)st + texts[i].at, sizeof v);
        bad |= json_object_set_new(root, texts[i].key, json_string(v ? v : ""));
    }
    s = bad ? cld_fail(err, CLD_E_INTERNAL, "", "a text of the state is not UTF-8, or no memory")
            : cld_json_text(root, out, err);
done:
    json_decref(root);
    json_decref(facts);
    return s;
}

static enum cld_status check_keys(const json_t *root, const char *path, struct cld_error *err)
{
    const char *known[N_WHOLES + N_TEXTS + 4] = {"format", "best_accepted", "facts"};
    size_t n = 3;
    for (size_t i = 0; i < N_WHOLES; i++)
        known[n++] = wholes[i].key;
    for (size_t i = 0; i < N_TEXTS; i++)
        known[n++] = texts[i].key;
    return cld_json_known(root, path, known, err);
}

static enum cld_status read_facts(const struct cld_fields *r, struct cld_train_state *st)
{
    const json_t *facts = cld_fields_get(r, "facts");
    const struct cld_fields in = {r->path, facts, r->err};
    const char *key;
    json_t *v;
    if (!json_is_object(facts)) {
        cld_fields_complain(r, "", "not an object for key", "facts");
        return r->err->status;
    }
    json_object_foreach ((json_t *)(uintptr_t)facts, key, v) {
        struct cld_error why = CLD_ERROR_INIT;
        const char *value = cld_fields_string(&in, key);
        if (cld_train_state_fact(st, key, value, &why)) {
            *r->err = why;
            return why.status;
        }
    }
    return r->err->status;
}

enum cld_status cld_train_state_read(const char *path, struct cld_train_state *st,
                                     struct cld_error *err)
{
    json_t *root = NULL;
    memset(st, 0, sizeof *st);
    enum cld_status s = cld_json_load(path, &root, err);
    if (s)
        return s;
    struct cld_fields r = {path, root, err};
    err->status = CLD_OK;
    const char *format = cld_fields_string(&r, "format");
    if (strcmp(format, FORMAT))
        cld_fields_complain(&r, "it was written by another version, or is no state of a run",
                            "is not of format " FORMAT " but", format);
    if (!err->status)
        check_keys(root, path, err);
    for (size_t i = 0; i < N_WHOLES; i++) {
        int64_t v = cld_fields_whole(&r, wholes[i].key, wholes[i].least);
        memcpy((char *)st + wholes[i].at, &v, sizeof v);
    }
    st->best_accepted = cld_fields_real(&r, "best_accepted");
    for (size_t i = 0; i < N_TEXTS && !err->status; i++)
        if (!(*text_at(st, i) = strdup(cld_fields_string(&r, texts[i].key))))
            cld_fail_memory(err, "the data of %s", path);
    if (!err->status && st->best_step > st->step)
        cld_fields_complain(&r, "", "a step that is still to come in key", "best_step");
    s = err->status ? err->status : read_facts(&r, st);
    json_decref(root);
    return s;
}
