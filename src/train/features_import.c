#include "train/features_import.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/size.h"
#include "data/feature_store.h"
#include "data/feed.h"
#include "model/identify_features.h"
#include "model/target.h"
#include "ops/tensor_io.h"
#include "ops/verdicts.h"
#include "train/data_checks.h"

/* Tokens of one row that are compared with the target's own states, and how far off they may be:
 * other programs round otherwise, by some percent in bf16; another layer is off by more than its
 * neighbour is near. */
enum { CHECKED_TOKENS = 64 };
static const double most_off = 0.3;

struct import {
    const struct cld_features_import *x;
    struct cld_config cfg; /* a shallow copy: mode is hybrid, which is the one that writes */
    struct cld_setup setup;
    struct cld_feed *feed;
    struct cld_feature_store *store;
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

static float state_at(const struct import *m, size_t i)
{
    const void *states = m->states;
    return m->cfg.runtime.precision == CLD_BF16 ? cld_bf16_to_f32(((const uint16_t *)states)[i])
                                                : ((const float *)states)[i];
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
    size_t n_token = cld_mul(n_states, hidden), n = cld_mul(row->n, n_token);
    for (size_t i = 0; i < n && !s; i++)
        if (!isfinite(state_at(m, i)))
            s = cld_fail(err, CLD_E_INPUT, "make the states again",
                         "%s: hidden_states of token %zu has a value that is no number or infinite",
                         path, i / n_token);
    return s;
}

/* --- comparison with the target ----------------------------------------------------------------
 */

struct runner {
    struct cld_queue *q;
    struct cld_plan *plan;
    struct cld_target target;
};

static enum cld_status run_target(const struct import *m, const struct cld_row *row, size_t n,
                                  struct runner *r, float **out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_layers = m->setup.target.n_layers;
    const struct cld_device_info *device = m->x->device;
    const struct cld_queue_options queue = {.name = "import"};
    int *taps = calloc(n_layers, sizeof *taps);
    int32_t *positions = calloc(2 * n, sizeof *positions);
    if (!taps || !positions || !(r->plan = cld_plan_new())) {
        s = cld_fail_memory(err, "a plan");
        goto done;
    }
    for (size_t i = 0; i < n_layers; i++)
        taps[i] = (int)i;
    for (size_t i = 0; i < n; i++)
        positions[i] = (int32_t)i;
    const struct cld_target_options options = {.storage = m->cfg.runtime.precision,
                                               .n_tokens = n,
                                               .n_positions = n,
                                               .taps = taps,
                                               .n_taps = n_layers};
    if ((s = cld_queue_open_probed(device, &queue, &r->q, err)) ||
        (s = cld_target_describe(&r->target, &m->setup.target, &options, r->q, r->plan, err)) ||
        (s = cld_plan_check(r->plan, "import", device->global_bytes, device->max_alloc_bytes,
                            err)) ||
        (s = cld_plan_create(r->plan, r->q, err)) ||
        (s = m->cfg.target.random_weights >= 0
                 ? cld_target_random(&r->target, (uint64_t)m->cfg.target.random_weights, err)
                 : cld_target_load(&r->target, m->cfg.target.dir, err)) ||
        (s = cld_target_forward(&r->target, row->ids, positions, positions + n, n, err)))
        goto done;
    if (!(*out = malloc(cld_mul3(n, r->target.taps.n_cols, sizeof **out))))
        s = cld_fail_memory(err, "the states of %zu tokens", n);
    else
        s = cld_tensor_read(&r->target.taps, 0, n, *out, err);
done:
    free(taps);
    free(positions);
    return s;
}

/* ||file - target|| / ||target|| of one of the file's states and one layer. */
static double distance(const struct import *m, const float *own, size_t n, size_t state,
                       size_t layer)
{
    size_t hidden = m->setup.target.hidden, n_layers = m->setup.target.n_layers;
    double off = 0, all = 0;
    for (size_t p = 0; p < n; p++)
        for (size_t k = 0; k < hidden; k++) {
            double want = (double)own[(p * n_layers + layer) * hidden + k];
            double got = (double)state_at(m, (p * (m->x->n_layers + 1) + state) * hidden + k);
            off += (got - want) * (got - want);
            all += want * want;
        }
    return sqrt(off / all);
}

/* Every state of m->states is nearest to the layer that it is said to be. */
static enum cld_status check_states(const struct import *m, const struct cld_row *row,
                                    const char *path, struct cld_error *err)
{
    size_t n = cld_min(row->n, CHECKED_TOKENS), n_layers = m->setup.target.n_layers;
    struct runner r = {0};
    float *own = NULL;
    enum cld_status s = run_target(m, row, n, &r, &own, err);
    if (s)
        cld_fail_prefix(err, "comparing %s with the target (--unchecked leaves that out)", path);
    for (size_t i = 0; i <= m->x->n_layers && !s; i++) {
        size_t said = i < m->x->n_layers ? (size_t)m->setup.taps[i] : n_layers - 1, best = 0;
        double nearest = INFINITY;
        for (size_t v = 0; v < n_layers; v++) {
            double d = distance(m, own, n, i, v);
            if (d < nearest) {
                nearest = d;
                best = v;
            }
        }
        if (!(nearest < most_off))
            s = cld_fail(err, CLD_E_INPUT,
                         "the files are of another model or template, or after the final norm",
                         "%s: state %zu is like no layer of the target: off by %.2g from layer %zu",
                         path, i, nearest, best);
        else if (best != said)
            s = cld_fail(err, CLD_E_INPUT, "name the layers that the files have",
                         "%s: state %zu is the output of layer %zu (off by %.2g), by --layers and "
                         "target.taps it would be that of layer %zu (off by %.2g)",
                         path, i, best, nearest, said, distance(m, own, n, i, said));
        else
            cld_info("%s: state %zu is the output of layer %zu, off by %.2g", path, i, best,
                     nearest);
    }
    cld_plan_free(r.plan);
    cld_queue_close(r.q);
    cld_target_free(&r.target);
    free(own);
    return s;
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

static enum cld_status import_row(struct import *m, size_t i, bool first,
                                  struct cld_features_imported *out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_row row = m->x->heldout ? cld_feed_heldout_row(m->feed, i)
                                       : cld_dataset_row(cld_feed_train(m->feed), i);
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
    if ((s = cld_safetensors_open(path, &st, err)) || (s = check_tokens(st, path, &row, m, err)) ||
        (s = read_states(m, st, path, &row, err)) ||
        (first && !m->x->unchecked && (s = check_states(m, &row, path, err))) ||
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
    out->n_rows = x->heldout ? cld_feed_n_heldout(m.feed) : cld_feed_n_train(m.feed);
    for (size_t i = 0; i < out->n_rows && !s; i++)
        s = import_row(&m, i, !out->n_imported && !out->n_there, out, err);
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
    free(m.states);
    free(m.features);
    return s;
}
