#include "train/features_import.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/size.h"
#include "data/feature_store.h"
#include "data/feed.h"
#include "model/identify_features.h"
#include "train/data_checks.h"
#include "train/state_check.h"

/* Rows that are compared with what the target computes for them, spread over the set. */
enum { CHECKED_ROWS = 64 };

struct import {
    const struct cld_features_import *x;
    struct cld_config cfg; /* a shallow copy: mode is hybrid, which is the one that writes */
    struct cld_setup setup;
    struct cld_feed *feed;
    struct cld_feature_store *store;
    struct cld_state_check *check; /* NULL: not yet, or --unchecked */
    size_t n_due;                  /* rows whose turn to be compared it was or is */
    bool warned;                   /* of other tensors in a file */
    int *layers;                   /* of the file's states: outputs of these */
    char *states, *features; /* of a row: [n, K + 1, H] as read, [n, n_features * H] as stored */
    size_t cap_tokens;
};

static const char *data_path(const struct import *m)
{
    return m->x->heldout ? m->cfg.data.heldout : m->cfg.data.train;
}

static enum cld_status check_layers(const struct import *m, struct cld_error *err)
{
    const struct cld_setup *t = &m->setup;
    const struct cld_features_import *x = m->x;
    bool unshifted = x->n_layers == t->n_taps;
    if (x->n_layers != t->n_taps)
        return cld_fail(err, CLD_E_USAGE,
                        "set target.taps to the layers of the files, less one each",
                        "--layers has %zu layers, target.taps has %zu", x->n_layers, t->n_taps);
    for (size_t i = 0; i < t->n_taps; i++)
        unshifted &= x->layers[i] == (size_t)t->taps[i];
    for (size_t i = 0; i < t->n_taps; i++)
        if (x->layers[i] != (size_t)t->taps[i] + 1)
            return cld_fail(err, CLD_E_USAGE,
                            unshifted
                                ? "--layers counts as the writer of the files does: v is what "
                                  "enters layer v, the output of layer v - 1"
                                : "the order is that of target.taps, each one more",
                            "--layers has layer %zu, the output of layer %lld, where target.taps "
                            "has %d",
                            x->layers[i], (long long)x->layers[i] - 1, t->taps[i]);
    return CLD_OK;
}

static enum cld_status check_tokens(const struct cld_safetensors *st, const char *path,
                                    const struct cld_row *row, const struct import *m,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_safetensor *t = cld_safetensors_find(st, "token_ids");
    int64_t *wide = NULL;
    int32_t *narrow = NULL;
    if (!t || t->n_dims != 1 || !t->readable || (t->dtype != CLD_I64 && t->dtype != CLD_I32))
        return cld_fail(
            err, CLD_E_INPUT,
            "name files that speculators or vLLM wrote; docs/features.md describes them",
            "%s: no tensor token_ids I64 [tokens]", path);
    /* A row that was cut here has the first tokens of the file. */
    if (t->shape[0] < row->n)
        return cld_fail(err, CLD_E_INPUT, "the files are of other rows, or of another max_length",
                        "%s has %zu tokens, row %llu of %s has %zu", path, t->shape[0],
                        (unsigned long long)row->id, data_path(m), row->n);
    wide = malloc(cld_mul(row->n, sizeof *wide));
    narrow = malloc(cld_mul(row->n, sizeof *narrow));
    if (!wide || !narrow) {
        s = cld_fail_memory(err, "%zu tokens", row->n);
        goto done;
    }
    if ((s = cld_safetensors_read_rows(st, t, 0, row->n, t->dtype,
                                       t->dtype == CLD_I64 ? (void *)wide : narrow, err)))
        goto done;
    for (size_t i = 0; i < row->n && !s; i++) {
        long long id = t->dtype == CLD_I64 ? wide[i] : narrow[i];
        if (id != row->ids[i])
            s = cld_fail(err, CLD_E_INPUT, "the files are of other rows, or of another template",
                         "%s: token %zu is %lld, in row %llu of %s it is %d", path, i, id,
                         (unsigned long long)row->id, data_path(m), (int)row->ids[i]);
    }
done:
    free(wide);
    free(narrow);
    return s;
}

/* The last of the file's states is the one after the last layer. */
static enum cld_status name_layers(struct import *m, struct cld_error *err)
{
    const struct cld_setup *t = &m->setup;
    m->layers = calloc(t->n_taps + 1, sizeof *m->layers);
    if (!m->layers)
        return cld_fail_memory(err, "a list of layers");
    memcpy(m->layers, t->taps, t->n_taps * sizeof *m->layers);
    m->layers[t->n_taps] = (int)t->target.n_layers - 1;
    return CLD_OK;
}

static struct cld_states states_of(const struct import *m, const char *path,
                                   const struct cld_row *row)
{
    return (struct cld_states){.values = m->states,
                               .type = m->cfg.runtime.precision,
                               .n = row->n,
                               .n_states = m->x->n_layers + 1,
                               .hidden = m->setup.target.hidden,
                               .layers = m->layers,
                               .path = path};
}

/* Other tensors of a file are not read; that is said once. */
static void warn_others(struct import *m, const struct cld_safetensors *st, const char *path)
{
    for (size_t i = 0; i < cld_safetensors_n(st) && !m->warned; i++) {
        const char *name = cld_safetensors_at(st, i)->name;
        if (!strcmp(name, "token_ids") || !strcmp(name, "hidden_states"))
            continue;
        cld_warn("%s: tensor %s is not read", path, name);
        m->warned = true;
    }
}

/* The file's states of the row's tokens to m->states. */
static enum cld_status read_states(struct import *m, const struct cld_safetensors *st,
                                   const char *path, const struct cld_row *row,
                                   struct cld_error *err)
{
    const struct cld_safetensor *t = cld_safetensors_find(st, "hidden_states");
    size_t n_states = m->x->n_layers + 1, hidden = m->setup.target.hidden;
    enum cld_dtype want = m->cfg.runtime.precision;
    if (!t || !t->readable || t->n_dims != 3)
        return cld_fail(
            err, CLD_E_INPUT,
            "name files that speculators or vLLM wrote; docs/features.md describes them",
            "%s: no tensor hidden_states [tokens, states, width]", path);
    if (t->dtype != want)
        return cld_fail(err, CLD_E_INPUT, "set runtime.precision to what the files have",
                        "%s: hidden_states is %s, runtime.precision is %s", path, t->dtype_name,
                        cld_dtype_name(want));
    if (t->shape[0] < row->n || t->shape[1] != n_states || t->shape[2] != hidden)
        return cld_fail(err, CLD_E_INPUT,
                        "states are those of --layers and, last, that after the last layer",
                        "%s: hidden_states is [%zu, %zu, %zu], wanted is [%zu or more, %zu, %zu]",
                        path, t->shape[0], t->shape[1], t->shape[2], row->n, n_states, hidden);
    if (row->n > m->cap_tokens) {
        size_t token_bytes = cld_mul(hidden, cld_dtype_bytes(want));
        free(m->states);
        free(m->features);
        m->states = calloc(row->n, cld_mul(n_states, token_bytes));
        m->features = calloc(row->n, cld_mul(m->setup.n_features, token_bytes));
        m->cap_tokens = m->states && m->features ? row->n : 0;
        if (!m->cap_tokens)
            return cld_fail_memory(err, "the states of %zu tokens", row->n);
    }
    enum cld_status s = cld_safetensors_read_rows(st, t, 0, row->n, want, m->states, err);
    const struct cld_states states = states_of(m, path, row);
    return s ? s : cld_states_check(&states, row->ids, err);
}

/* --- comparison with the target ----------------------------------------------------------------
 */

static size_t n_rows_of(const struct import *m)
{
    return m->x->heldout ? cld_feed_n_heldout(m->feed) : cld_feed_n_train(m->feed);
}

static struct cld_row row_of(const struct import *m, size_t i)
{
    return m->x->heldout ? cld_feed_heldout_row(m->feed, i)
                         : cld_dataset_row(cld_feed_train(m->feed), i);
}

/* Is row i one of those to be compared? Rows without a file pass their turn on. */
static bool is_due(struct import *m, size_t i)
{
    size_t n = n_rows_of(m), most = cld_min(CHECKED_ROWS, n);
    bool due = i == 0 || i + 1 == n || i * most / n > (i - 1) * most / n;
    m->n_due += due;
    return m->n_due > 0;
}

/* Against the target, which is loaded for the first of them. */
static enum cld_status compare_row(struct import *m, const struct cld_row *row, const char *path,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t longest = 1;
    for (size_t i = 0; i < n_rows_of(m) && !m->check; i++)
        longest = cld_max(longest, row_of(m, i).n);
    if (!m->check && (s = cld_state_check_open(&m->cfg, &m->setup, m->x->device, m->layers,
                                               m->x->n_layers + 1, longest, &m->check, err)))
        return cld_fail_prefix(err, "comparing %s with the target (--unchecked leaves that out)",
                               path);
    const struct cld_states states = states_of(m, path, row);
    m->n_due = 0;
    return cld_state_check_row(m->check, row, &states, err);
}

/* --- rows ------------------------------------------------------------------------------------- */

/* The drafter's taps, and what soft targets need after them. */
static void pick_features(struct import *m, size_t n)
{
    size_t state_bytes = cld_mul(m->setup.target.hidden, cld_dtype_bytes(m->cfg.runtime.precision));
    size_t n_states = m->x->n_layers + 1, n_features = m->setup.n_features;
    for (size_t p = 0; p < n; p++)
        memcpy(m->features + p * n_features * state_bytes, m->states + p * n_states * state_bytes,
               n_features * state_bytes);
}

static enum cld_status import_row(struct import *m, size_t i, struct cld_features_imported *out,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_row row = row_of(m, i);
    bool due = is_due(m, i) && !m->x->unchecked;
    const int32_t anchor = 0; /* the store keeps rows that have one */
    const struct cld_document doc = {.ids = row.ids,
                                     .mask = row.loss_mask,
                                     .n = row.n,
                                     .anchors = &anchor,
                                     .n_anchors = 1,
                                     .row = row.id,
                                     .heldout = m->x->heldout};
    struct cld_safetensors *st = NULL;
    char *path = cld_format("%s/hs_%llu.safetensors", m->x->dir, (unsigned long long)row.id);
    if (!path)
        return cld_fail_memory(err, "a path");
    if (!cld_file_exists(path)) {
        out->n_missing++;
        goto done;
    }
    if ((s = cld_safetensors_open(path, &st, err)))
        goto done;
    warn_others(m, st, path);
    if ((s = check_tokens(st, path, &row, m, err)) || (s = read_states(m, st, path, &row, err)) ||
        (due && (s = compare_row(m, &row, path, err))) ||
        (s = cld_feature_store_claim(m->store, &doc, i, err)))
        goto done;
    if (cld_feature_store_find(m->store, &doc, i) != CLD_FEATURES_MINE) {
        out->n_there++;
        goto done;
    }
    pick_features(m, row.n);
    if (!(s = cld_feature_store_put(m->store, &doc, 1, i, m->features, err)))
        out->n_imported++;
done:
    cld_safetensors_close(st);
    free(path);
    return s;
}

static enum cld_status begin(struct import *m, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_feature_identity id;
    int64_t mask_token = -1;
    m->cfg.features.mode = CLD_FEATURES_HYBRID;
    if (!data_path(m) || !m->cfg.features.dir)
        return cld_fail(err, CLD_E_USAGE, "name both in the configuration",
                        "an import needs %s and features.dir",
                        m->x->heldout ? "data.heldout" : "data.train");
    if ((s = cld_feed_open(&m->cfg, &m->feed, err)) ||
        (s = cld_feed_mask_token(m->feed, &mask_token, err)) ||
        (s = cld_setup_read(&m->cfg, mask_token, &m->setup, err)) || (s = check_layers(m, err)) ||
        (s = name_layers(m, err)) ||
        (s = cld_data_checks_target(&m->cfg, &m->setup.target, cld_feed_tokenizer(m->feed), err)) ||
        (s = cld_feed_load(m->feed, m->setup.target.vocab, true, err)) ||
        (s = cld_feature_identity_make(&m->cfg, &m->setup, cld_feed_tokenizer_hash(m->feed), &id,
                                       err)))
        return s;
    return cld_feature_store_open(&m->cfg, &id, &m->store, err);
}

enum cld_status cld_features_import(const struct cld_config *cfg,
                                    const struct cld_features_import *x,
                                    struct cld_features_imported *out, struct cld_error *err)
{
    struct import m = {.x = x, .cfg = *cfg};
    memset(out, 0, sizeof *out);
    enum cld_status s = begin(&m, err);
    if (s)
        goto done;
    if (x->unchecked)
        cld_warn(
            "--unchecked: that the states are those of the layers is not compared with the target");
    out->n_rows = n_rows_of(&m);
    for (size_t i = 0; i < out->n_rows && !s; i++)
        s = import_row(&m, i, out, err);
    if (!s && out->n_missing == out->n_rows)
        s = cld_fail(err, CLD_E_INPUT, "hs_0.safetensors belongs to line 0 of the rows, and so on",
                     "%s has no file for any of the %zu rows of %s", x->dir, out->n_rows,
                     data_path(&m));
    if (m.store) {
        /* What was imported before a row failed stays. */
        struct cld_error why = CLD_ERROR_INIT;
        enum cld_status flushed = cld_feature_store_flush(m.store, s ? &why : err);
        s = s ? s : flushed;
    }
done:
    cld_feature_store_close(m.store);
    cld_feed_close(m.feed);
    cld_state_check_close(m.check);
    free(m.layers);
    free(m.states);
    free(m.features);
    return s;
}
