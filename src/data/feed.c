#include "data/feed.h"

#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/file.h"
#include "base/grow.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/size.h"
#include "data/row_paths.h"
#include "data/sampler.h"

struct bucket {
    char *name;
    struct cld_row_paths paths;
    struct cld_dataset *rows;
};

struct cld_feed {
    const struct cld_config *cfg;
    struct cld_tokenizer *tokenizer; /* NULL: no text is read */
    char tokenizer_hash[CLD_SHA256_HEX_BYTES];
    enum cld_chat_template chat_template; /* of rows of text; see cld_feed_template */
    struct cld_error no_template;         /* why there is none, if its status is not CLD_OK */
    struct cld_dataset *train;
    struct bucket *buckets;              /* held-out sets */
    size_t n_buckets, cap_buckets, used; /* `used` is the one in use */
    struct cld_sampler *sampler;
    struct cld_document *docs; /* of the last call */
    int32_t *anchors, *prefixes;
    size_t n_docs, cap_docs, n_anchors, cap_anchors;
};

/* Only rows of text need a tokenizer, and which these are shows when they are read; but a mask
 * token that is text needs one now. */
static bool opens_tokenizer(const struct cld_config *cfg, const char *path)
{
    bool has_rows = (!cfg->data.synthetic.n && cfg->data.train) || cfg->data.heldout;
    bool names_token = cfg->drafter.mask_token && cld_config_mask_id(cfg) < 0;
    return names_token || (has_rows && cld_file_exists(path));
}

enum cld_status cld_feed_open(const struct cld_config *cfg, struct cld_feed **out,
                              struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *path = cld_format("%s/tokenizer.json", cfg->target.dir);
    struct cld_feed *f = calloc(1, sizeof *f);
    uint64_t n_bytes = 0;
    *out = NULL;
    if (!f || !path) {
        s = cld_fail_memory(err, "the data");
        goto done;
    }
    f->cfg = cfg;
    if (opens_tokenizer(cfg, path) &&
        ((s = cld_tokenizer_load(path, &f->tokenizer, err)) ||
         (s = cld_sha256_file(path, f->tokenizer_hash, &n_bytes, err))))
        goto done;
    if ((s = cld_feed_template(cfg, &f->chat_template, &f->no_template)) &&
        cfg->data.template != CLD_TEMPLATE_NONE) {
        *err = f->no_template;
        goto done;
    }
    if (!s)
        f->no_template = (struct cld_error)CLD_ERROR_INIT;
    s = CLD_OK; /* rows of ready ids do without a template */
    *out = f;
    f = NULL;
done:
    cld_feed_close(f);
    free(path);
    return s;
}

void cld_feed_close(struct cld_feed *f)
{
    if (!f)
        return;
    cld_sampler_free(f->sampler);
    cld_dataset_free(f->train);
    for (size_t i = 0; i < f->n_buckets; i++) {
        free(f->buckets[i].name);
        cld_row_paths_free(&f->buckets[i].paths);
        cld_dataset_free(f->buckets[i].rows);
    }
    free(f->buckets);
    cld_tokenizer_free(f->tokenizer);
    free(f->docs);
    free(f->anchors);
    free(f->prefixes);
    free(f);
}

enum cld_status cld_feed_mask_token(const struct cld_feed *f, int64_t *id, struct cld_error *err)
{
    *id = cld_config_mask_id(f->cfg);
    if (*id >= 0)
        return CLD_OK;
    *id = f->tokenizer ? cld_tokenizer_find(f->tokenizer, f->cfg->drafter.mask_token) : -1;
    if (*id < 0)
        return cld_fail(err, CLD_E_USAGE, "give a token of the target's tokenizer.json, or its id",
                        "drafter.mask_token: the tokenizer has no token '%s'",
                        f->cfg->drafter.mask_token);
    return CLD_OK;
}

const char *cld_feed_tokenizer_hash(const struct cld_feed *f)
{
    return f->tokenizer_hash;
}

/* A template that contradicts the target's own trains, and asks, what the target never saw. */
static enum cld_status check_template(const struct cld_config *cfg, enum cld_chat_template used,
                                      struct cld_error *err)
{
    char hash[65];
    bool is_known = false;
    enum cld_chat_template declared = used;
    enum cld_status s = cld_chat_declared(cfg->target.dir, hash, &is_known, &declared, err);
    if (s || !is_known || declared == used)
        return s;
    struct cld_error why;
    s = cld_fail(&why, CLD_E_INPUT, "set data.template to the target's",
                 "data.template is %s, %s declares %s (SHA-256 %s)", cld_chat_template_name(used),
                 cfg->target.dir, cld_chat_template_name(declared), hash);
    if (cfg->checks.template) {
        *err = why;
        return s;
    }
    cld_warn("%s; checks.template = no lets it pass", why.what);
    return CLD_OK;
}

enum cld_status cld_feed_chosen_template(const struct cld_config *cfg, enum cld_chat_template *out,
                                         struct cld_error *err)
{
    switch (cfg->data.template) {
    case CLD_TEMPLATE_NONE:
        return cld_chat_template_of(cfg->target.dir, out, err);
    case CLD_TEMPLATE_CHATML:
        *out = CLD_CHAT_CHATML;
        break;
    case CLD_TEMPLATE_QWEN3:
        *out = CLD_CHAT_QWEN3;
        break;
    case CLD_TEMPLATE_LLAMA3:
        *out = CLD_CHAT_LLAMA3;
        break;
    }
    return CLD_OK;
}

enum cld_status cld_feed_template(const struct cld_config *cfg, enum cld_chat_template *out,
                                  struct cld_error *err)
{
    enum cld_status s = cld_feed_chosen_template(cfg, out, err);
    return s ? s : check_template(cfg, *out, err);
}

static enum cld_status load_set(struct cld_feed *f, const struct cld_row_paths *paths, size_t vocab,
                                struct cld_dataset **out, struct cld_error *err)
{
    struct cld_dataset_options options = {
        .tokenizer = f->tokenizer,
        .chat_template = f->chat_template,
        .max_length = f->cfg->data.max_length,
        .n_vocab = vocab,
        .history = f->cfg->checks.history,
        .bad_row_fatal = f->cfg->data.bad_row == CLD_BAD_ROW_FAIL,
        .no_template = f->no_template.status ? &f->no_template : NULL,
        .tokenizer_hash = f->tokenizer_hash,
        .ignored_keys = (const char *const *)f->cfg->data.ignore_keys.v,
        .n_ignored_keys = f->cfg->data.ignore_keys.n};
    return cld_dataset_load((const char *const *)paths->v, paths->n, &options, out, err);
}

/* Adds a held-out set without rows; `name` [n_name]. */
static enum cld_status add_bucket(struct cld_feed *f, const char *name, size_t n_name,
                                  struct cld_error *err)
{
    enum cld_status s =
        cld_grow(&f->buckets, &f->cap_buckets, f->n_buckets + 1, sizeof *f->buckets, err);
    if (s)
        return s;
    struct bucket *b = &f->buckets[f->n_buckets];
    *b = (struct bucket){.name = cld_format("%.*s", (int)n_name, name)};
    if (!b->name)
        return cld_fail_memory(err, "a bucket");
    f->n_buckets++;
    for (size_t i = 0; i + 1 < f->n_buckets; i++)
        if (!strcmp(f->buckets[i].name, b->name))
            return cld_fail(err, CLD_E_USAGE, "name each bucket once",
                            "eval.buckets has '%s' twice", b->name);
    return CLD_OK;
}

/* data.heldout under the name of its first file, without directories and what follows the first
 * point. */
static enum cld_status add_heldout(struct cld_feed *f, struct cld_error *err)
{
    struct cld_row_paths paths = {0};
    enum cld_status s = cld_row_paths_add(&paths, "data.heldout", f->cfg->data.heldout, err);
    if (s)
        goto done;
    const char *slash = strrchr(paths.v[0], '/'), *name = slash ? slash + 1 : paths.v[0];
    if ((s = add_bucket(f, name, strcspn(name, "."), err)))
        goto done;
    f->buckets[f->n_buckets - 1].paths = paths;
    paths = (struct cld_row_paths){0};
done:
    cld_row_paths_free(&paths);
    return s;
}

/* NAME=FILE begins a bucket; items without a name are more files of the one before. */
static enum cld_status add_buckets(struct cld_feed *f, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_text_list *list = &f->cfg->eval.buckets;
    if (!list->n && f->cfg->data.heldout)
        return add_heldout(f, err);
    for (size_t i = 0; i < list->n && !s; i++) {
        size_t n_name = strcspn(list->v[i], "=");
        bool named = list->v[i][n_name];
        const char *path = list->v[i] + (named ? n_name + 1 : 0);
        if ((named && !n_name) || !*path || (!named && !f->n_buckets))
            return cld_fail(err, CLD_E_USAGE, "write NAME=FILE, NAME=FILE, ...",
                            "eval.buckets: '%s' has no name and file", list->v[i]);
        if (!named || !(s = add_bucket(f, list->v[i], n_name, err)))
            s = cld_row_paths_add(&f->buckets[f->n_buckets - 1].paths, "eval.buckets", path, err);
    }
    return s;
}

/* Held-out rows that a drafter learns say nothing about it. */
static enum cld_status check_files(struct cld_feed *f, const struct cld_row_paths *train,
                                   bool trains, struct cld_error *err)
{
    for (size_t i = 0; i < f->n_buckets; i++) {
        const char *both = cld_row_paths_shared(train, &f->buckets[i].paths);
        if (both && trains)
            return cld_fail(err, CLD_E_INPUT, "name other rows in data.heldout",
                            "data.heldout and data.train are the same file: %s", both);
        if (both)
            cld_warn("%s is evaluated on %s, which is also a file of data.train: the figures are "
                     "those of rows that are trained on",
                     f->buckets[i].name, both);
    }
    return CLD_OK;
}

static uint64_t sum_of(const struct cld_row *row)
{
    struct cld_checksum sum;
    cld_checksum_begin(&sum);
    cld_checksum_add(&sum, row->ids, row->n * sizeof *row->ids);
    return cld_checksum_end(&sum);
}

static int compare_sums(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Held-out rows with the same tokens as a training row. */
static enum cld_status warn_shared(const struct cld_feed *f, struct cld_error *err)
{
    size_t n = cld_dataset_n_rows(f->train), n_heldout = cld_feed_n_heldout(f), n_shared = 0;
    uint64_t first = 0, *sums = malloc(cld_mul(cld_max(1, n), sizeof *sums));
    if (!sums)
        return cld_fail_memory(err, "the sums of %zu rows", n);
    for (size_t i = 0; i < n; i++) {
        struct cld_row row = cld_dataset_row(f->train, i);
        sums[i] = sum_of(&row);
    }
    qsort(sums, n, sizeof *sums, compare_sums);
    for (size_t i = n_heldout; i-- > 0;) {
        struct cld_row row = cld_feed_heldout_row(f, i);
        uint64_t sum = sum_of(&row);
        if (!bsearch(&sum, sums, n, sizeof *sums, compare_sums))
            continue;
        n_shared++;
        first = row.id;
    }
    if (n_shared)
        cld_warn("%zu of %zu rows of data.heldout are also in data.train, first row %llu: the "
                 "drafter learns what it is judged by",
                 n_shared, n_heldout, (unsigned long long)first);
    free(sums);
    return CLD_OK;
}

static enum cld_status load_train(struct cld_feed *f, const struct cld_row_paths *paths,
                                  size_t vocab, struct cld_error *err)
{
    const struct cld_config *cfg = f->cfg;
    const struct cld_size_list *made = &cfg->data.synthetic;
    if (!made->n)
        return load_set(f, paths, vocab, &f->train, err);
    cld_warn("training rows are random tokens (data.synthetic): this run measures speed and "
             "memory, it trains nothing useful");
    return cld_dataset_synthetic(made->v[0], cld_min(made->v[1], cfg->data.max_length), vocab,
                                 (uint64_t)cfg->run.seed, &f->train, err);
}

enum cld_status cld_feed_load(struct cld_feed *f, size_t vocab, bool train, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_config *cfg = f->cfg;
    struct cld_row_paths paths = {0};
    struct cld_error ignored = CLD_ERROR_INIT; /* an evaluation only compares the names */
    if (cfg->data.train && !cfg->data.synthetic.n &&
        (s = cld_row_paths_add(&paths, "data.train", cfg->data.train, train ? err : &ignored)) &&
        train)
        goto done;
    s = CLD_OK;
    if (!train)
        s = add_buckets(f, err);
    else if (cfg->data.heldout)
        s = add_heldout(f, err);
    if (s || (s = check_files(f, &paths, train, err)) ||
        (train && (s = load_train(f, &paths, vocab, err))))
        goto done;
    for (size_t i = 0; i < f->n_buckets && !s; i++)
        s = load_set(f, &f->buckets[i].paths, vocab, &f->buckets[i].rows, err);
    if (s || !train)
        goto done;
    if (f->n_buckets && (s = warn_shared(f, err)))
        goto done;
    s = cld_sampler_new(f->train, (uint64_t)cfg->run.seed,
                        cfg->data.packing ? cfg->data.max_length : 0, &f->sampler, err);
done:
    cld_row_paths_free(&paths);
    return s;
}

const struct cld_tokenizer *cld_feed_tokenizer(const struct cld_feed *f)
{
    return f->tokenizer;
}

enum cld_chat_template cld_feed_used_template(const struct cld_feed *f)
{
    return f->chat_template;
}

const struct cld_dataset *cld_feed_train(const struct cld_feed *f)
{
    return f->train;
}

size_t cld_feed_n_train(const struct cld_feed *f)
{
    return f->train ? cld_dataset_n_rows(f->train) : 0;
}

static void check_positions(const struct cld_dataset *d, const char *name, size_t max_positions)
{
    size_t n = 0, n_rows = cld_dataset_n_rows(d);
    for (size_t i = 0; i < n_rows; i++)
        n += cld_dataset_row(d, i).n > max_positions;
    if (n)
        cld_warn("%s: %zu of %zu rows are longer than max_position_embeddings, %zu, of the "
                 "target's config.json; the longest has %zu tokens. Lower data.max_length if the "
                 "target was trained on no more",
                 name, n, n_rows, max_positions, cld_dataset_longest(d));
}

void cld_feed_check_positions(const struct cld_feed *f, size_t max_positions)
{
    if (f->train)
        check_positions(f->train, "training rows", max_positions);
    for (size_t i = 0; i < f->n_buckets; i++)
        check_positions(f->buckets[i].rows, f->buckets[i].name, max_positions);
}

size_t cld_feed_n_heldout(const struct cld_feed *f)
{
    return f->n_buckets ? cld_dataset_n_rows(f->buckets[f->used].rows) : 0;
}

struct cld_row cld_feed_heldout_row(const struct cld_feed *f, size_t i)
{
    return cld_dataset_row(f->buckets[f->used].rows, i);
}

size_t cld_feed_n_buckets(const struct cld_feed *f)
{
    return f->n_buckets;
}

const char *cld_feed_bucket_name(const struct cld_feed *f, size_t i)
{
    return f->buckets[i].name;
}

void cld_feed_use_bucket(struct cld_feed *f, size_t i)
{
    f->used = i;
}

/* Adds one row of a dataset as a document. Anchor lists follow each other; documents point to
 * them by index until the list is complete (finish). */
static enum cld_status add_document(struct cld_feed *f, const struct cld_row *row, uint64_t epoch,
                                    size_t max_anchors, size_t tag, bool heldout,
                                    struct cld_error *err)
{
    size_t room = cld_add(f->n_anchors, cld_min(max_anchors, row->n));
    if (f->n_docs == f->cap_docs) {
        size_t cap = cld_max(64, cld_mul(2, f->cap_docs));
        struct cld_document *grown = realloc(f->docs, cld_mul(cap, sizeof *grown));
        if (!grown)
            return cld_fail_memory(err, "%zu documents", cap);
        f->docs = grown;
        f->cap_docs = cap;
    }
    if (room > f->cap_anchors) {
        size_t cap = cld_max(room, cld_mul(2, f->cap_anchors));
        int32_t *grown = realloc(f->anchors, cld_mul(cap, sizeof *grown));
        if (!grown)
            return cld_fail_memory(err, "%zu anchors", cap);
        f->anchors = grown;
        if (!(grown = realloc(f->prefixes, cld_mul(cap, sizeof *grown))))
            return cld_fail_memory(err, "%zu prefixes", cap);
        f->prefixes = grown;
        f->cap_anchors = cap;
    }
    size_t n = cld_sample_anchors((uint64_t)f->cfg->run.seed, epoch, row->id, row->loss_mask,
                                  row->n, max_anchors, f->anchors + f->n_anchors);
    for (size_t i = f->n_anchors; i < f->n_anchors + n; i++)
        f->prefixes[i] =
            cld_sample_prefix((uint64_t)f->cfg->run.seed, epoch, row->id, (size_t)f->anchors[i],
                              row->n, f->cfg->drafter.block_size);
    f->docs[f->n_docs++] = (struct cld_document){.ids = row->ids,
                                                 .mask = row->loss_mask,
                                                 .n = row->n,
                                                 .n_anchors = n,
                                                 .tag = tag,
                                                 .row = row->id,
                                                 .heldout = heldout};
    f->n_anchors += n;
    return CLD_OK;
}

static void finish(struct cld_feed *f, const struct cld_document **docs, size_t *n_docs)
{
    size_t at = 0;
    for (size_t i = 0; i < f->n_docs; i++) {
        f->docs[i].anchors = f->anchors + at;
        /* Whole blocks are what a drafter is judged by. */
        if (f->cfg->train.objective == CLD_OBJECTIVE_VARIABLE_PREFIX && !f->docs[i].heldout)
            f->docs[i].prefixes = f->prefixes + at;
        at += f->docs[i].n_anchors;
    }
    *docs = f->docs;
    *n_docs = f->n_docs;
}

enum cld_status cld_feed_step(struct cld_feed *f, size_t step, const struct cld_document **docs,
                              size_t *n_docs, struct cld_error *err)
{
    size_t n = f->cfg->train.batch_rows;
    f->n_docs = f->n_anchors = 0;
    for (size_t i = 0; i < n; i++) {
        struct cld_sample sample;
        enum cld_status s = cld_sampler_at(f->sampler, (uint64_t)step * n + i, &sample, err);
        for (size_t k = 0; !s && k < sample.n_rows; k++) {
            struct cld_row row = cld_dataset_row(f->train, sample.rows[k]);
            s = add_document(f, &row, sample.epoch, f->cfg->train.anchors, i, false, err);
        }
        if (s)
            return s;
    }
    finish(f, docs, n_docs);
    return CLD_OK;
}

static void note_needed(struct cld_feature_store *store, const struct cld_row *row, bool heldout,
                        struct cld_missing_rows *out)
{
    struct cld_document d = {.n = row->n, .row = row->id, .heldout = heldout};
    out->n_needed++;
    if (cld_feature_store_find(store, &d, 0) == CLD_FEATURES_HERE)
        return;
    if (!out->n++) {
        out->first = *row;
        out->heldout = heldout;
    }
}

enum cld_status cld_feed_missing(struct cld_feed *f, struct cld_feature_store *store, size_t first,
                                 size_t end, struct cld_missing_rows *out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = f->cfg->train.batch_rows, n_rows = cld_dataset_n_rows(f->train), n_seen = 0;
    size_t n_heldout = cld_feed_n_heldout(f);
    bool *seen = calloc(cld_max(1, n_rows), sizeof *seen);
    memset(out, 0, sizeof *out);
    if (!seen)
        return cld_fail_memory(err, "a list of %zu rows", n_rows);
    for (size_t step = first; step < end && n_seen < n_rows && !s; step++)
        for (size_t i = 0; i < n && !s; i++) {
            struct cld_sample sample;
            s = cld_sampler_at(f->sampler, (uint64_t)step * n + i, &sample, err);
            for (size_t k = 0; !s && k < sample.n_rows; k++) {
                struct cld_row row = cld_dataset_row(f->train, sample.rows[k]);
                if (!seen[sample.rows[k]])
                    note_needed(store, &row, false, out);
                n_seen += !seen[sample.rows[k]];
                seen[sample.rows[k]] = true;
            }
        }
    if (f->cfg->eval.rows)
        n_heldout = cld_min(n_heldout, f->cfg->eval.rows);
    for (size_t i = 0; i < n_heldout && !s; i++) {
        struct cld_row row = cld_feed_heldout_row(f, i);
        note_needed(store, &row, true, out);
    }
    free(seen);
    return s;
}

enum cld_status cld_feed_heldout(struct cld_feed *f, size_t first, size_t n,
                                 const struct cld_document **docs, size_t *n_docs,
                                 struct cld_error *err)
{
    f->n_docs = f->n_anchors = 0;
    for (size_t i = 0; i < n; i++) {
        struct cld_row row = cld_feed_heldout_row(f, first + i);
        enum cld_status s = add_document(f, &row, 0, SIZE_MAX, i, true, err);
        if (s)
            return s;
    }
    finish(f, docs, n_docs);
    return CLD_OK;
}
