#include "data/dataset.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/grow.h"
#include "base/log.h"
#include "base/random.h"
#include "base/signals.h"
#include "base/size.h"
#include "formats/json_read.h"

enum { MAX_LOGGED = 8 }; /* bad rows that are logged one by one */

struct row {
    uint64_t id;
    size_t at; /* of its first token in ids and mask */
};

struct cld_dataset {
    int32_t *ids;  /* [n_tokens] of all rows */
    uint8_t *mask; /* [n_tokens] */
    struct row *rows;
    size_t cap_ids, cap_mask, cap_rows, longest;
    struct cld_dataset_counts counts;
};

void cld_dataset_free(struct cld_dataset *d)
{
    if (!d)
        return;
    free(d->ids);
    free(d->mask);
    free(d->rows);
    free(d);
}

size_t cld_dataset_n_rows(const struct cld_dataset *d)
{
    return d->counts.n_rows;
}

size_t cld_dataset_longest(const struct cld_dataset *d)
{
    return d->longest;
}

struct cld_row cld_dataset_row(const struct cld_dataset *d, size_t i)
{
    size_t at = d->rows[i].at;
    size_t end = i + 1 < d->counts.n_rows ? d->rows[i + 1].at : d->counts.n_tokens;
    return (struct cld_row){d->rows[i].id, d->ids + at, d->mask + at, end - at};
}

size_t cld_row_prompt(const struct cld_row *row)
{
    size_t n = row->n;
    while (n && !row->loss_mask[n - 1])
        n--;
    while (n && row->loss_mask[n - 1])
        n--;
    return n;
}

const struct cld_dataset_counts *cld_dataset_counts(const struct cld_dataset *d)
{
    return &d->counts;
}

void cld_dataset_describe(const struct cld_dataset_counts *counts, char *to, size_t n_to)
{
    const char *before = "; skipped: ";
    size_t n = 0;
    int got = snprintf(to, n_to, "%zu rows of %zu lines, %zu tokens, %zu supervised, %zu cut",
                       counts->n_rows, counts->n_lines - counts->n_blank, counts->n_tokens,
                       counts->n_supervised, counts->n_cut);
    for (int f = CLD_ROW_FINE + 1; f < CLD_N_ROW_FAULTS; f++) {
        n += got > 0 ? (size_t)got : 0;
        if (!counts->n_fault[f] || n >= n_to) {
            got = 0;
            continue;
        }
        got = snprintf(to + n, n_to - n, "%s%zu %s", before, counts->n_fault[f],
                       cld_row_fault_name((enum cld_row_fault)f));
        before = ", ";
    }
}

/* Room for n tokens at the end; they are in use only once `keep` has counted them. */
static enum cld_status reserve(struct cld_dataset *d, size_t n, struct cld_error *err)
{
    size_t want = cld_add(d->counts.n_tokens, n);
    enum cld_status s = cld_grow(&d->ids, &d->cap_ids, want, sizeof *d->ids, err);
    if (!s)
        s = cld_grow(&d->mask, &d->cap_mask, want, 1, err);
    return s ? s : cld_grow(&d->rows, &d->cap_rows, d->counts.n_rows + 1, sizeof *d->rows, err);
}

/* By the message that each token begins in. */
static void count_roles(struct cld_dataset_counts *c, const struct cld_chat *chat,
                        const struct cld_tokens *tokens, const uint8_t *mask, size_t n)
{
    size_t turn = 0;
    for (size_t i = 0; i < n; i++) {
        while (turn < chat->n_turns && tokens->begins[i] >= chat->turns[turn].end)
            turn++;
        if (turn == chat->n_turns || tokens->begins[i] < chat->turns[turn].begin)
            continue;
        c->n_of_role[chat->turns[turn].role]++;
        c->n_supervised_of_role[chat->turns[turn].role] += mask[i];
    }
}

static void keep(struct cld_dataset *d, uint64_t id, size_t n)
{
    struct cld_dataset_counts *c = &d->counts;
    d->rows[c->n_rows++] = (struct row){id, c->n_tokens};
    for (size_t i = 0; i < n; i++)
        c->n_supervised += d->mask[c->n_tokens + i];
    c->n_tokens += n;
    d->longest = cld_max(d->longest, n);
}

/* ---- loading ---- */

struct loader {
    const struct cld_dataset_options *options;
    struct cld_dataset *d;
    struct cld_encoder *encoder; /* NULL without a tokenizer */
    struct cld_tokens tokens;    /* of the row at work */
    struct cld_chat chat, prefix;
    bool is_chat;  /* the row at work: `chat` is its text */
    uint8_t *mask; /* [tokens.n] */
    size_t cap_mask, n_logged;
    enum cld_row_fault fault; /* of the row at work */
};

static enum cld_status __attribute__((format(printf, 4, 5)))
fault(struct loader *l, enum cld_row_fault kind, struct cld_error *err, const char *fmt, ...)
{
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    l->fault = kind;
    return cld_fail(err, CLD_E_INPUT, "correct the row; docs/data.md describes the formats", "%s",
                    what);
}

/* Answers that the template writes otherwise by now; see options.history. */
static enum cld_status check_history(struct loader *l, const struct cld_message *messages, size_t n,
                                     struct cld_error *err)
{
    const struct cld_dataset_options *o = l->options;
    size_t n_rewritten = 0;
    enum cld_status s = cld_chat_history(o->chat_template, messages, n, &l->chat, &l->prefix,
                                         o->history == CLD_HISTORY_MASK, &n_rewritten, err);
    if (s)
        return s;
    l->d->counts.n_rewritten += n_rewritten;
    if (!n_rewritten || o->history != CLD_HISTORY_FAIL)
        return CLD_OK;
    return cld_fail(err, CLD_E_USAGE,
                    "set checks.history = mask: such answers stay as context and are not learned",
                    "%zu of its answers are written otherwise by template %s once a later turn "
                    "follows, so the target never wrote what would be learned",
                    n_rewritten, cld_chat_template_name(o->chat_template));
}

static enum cld_status read_ids(struct loader *l, const json_t *line, struct cld_error *err)
{
    const json_t *ids = json_object_get(line, "input_ids");
    const json_t *mask = json_object_get(line, "loss_mask");
    size_t n = json_array_size(ids);
    enum cld_status s;
    if (!json_is_array(ids) || !json_is_array(mask) || json_array_size(mask) != n)
        return fault(l, CLD_ROW_BAD_SHAPE, err,
                     "input_ids and loss_mask must be arrays of one "
                     "length, they are %s of %zu and %s of %zu",
                     cld_json_kind(ids), n, cld_json_kind(mask), json_array_size(mask));
    if ((s = cld_grow(&l->tokens.ids, &l->tokens.cap_ids, n, sizeof *l->tokens.ids, err)) ||
        (s = cld_grow(&l->mask, &l->cap_mask, n, 1, err)))
        return s;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i), *m = json_array_get(mask, i);
        json_int_t v = json_integer_value(id), on = json_integer_value(m);
        if (!json_is_integer(id) || v < 0 || v > INT32_MAX)
            return fault(l, CLD_ROW_BAD_SHAPE, err, "input_ids[%zu] is no token id", i);
        if (!json_is_boolean(m) && !(json_is_integer(m) && (on == 0 || on == 1)))
            return fault(l, CLD_ROW_BAD_SHAPE, err, "loss_mask[%zu] is neither 0 nor 1", i);
        l->tokens.ids[i] = (int32_t)v;
        l->mask[i] = json_is_true(m) || on == 1;
    }
    l->tokens.n = n;
    return CLD_OK;
}

static enum cld_status read_chat(struct loader *l, const json_t *list, struct cld_error *err)
{
    struct cld_message *messages = NULL;
    size_t n;
    enum cld_status s = cld_messages_read(list, &messages, &n, &l->fault, err);
    if (s)
        return s;
    if ((s = cld_chat_render(l->options->chat_template, messages, n, &l->chat, &l->fault, err)) ||
        (s = check_history(l, messages, n, err)))
        goto done;
    l->is_chat = true;
    if ((s = cld_encode(l->encoder, l->chat.text, l->chat.n_text, false, &l->tokens, err))) {
        l->fault = CLD_ROW_UNSUPPORTED; /* a byte without a token, or a pattern that gave up */
        goto done;
    }
    if ((s = cld_grow(&l->mask, &l->cap_mask, l->tokens.n, 1, err)))
        goto done;
    cld_chat_mask(&l->chat, &l->tokens, l->mask);
done:
    free(messages);
    return s;
}

static enum cld_status read_row(struct loader *l, const json_t *line, struct cld_error *err)
{
    const json_t *messages = json_object_get(line, "messages");
    const json_t *share_gpt = json_object_get(line, "conversations");
    const json_t *ids = json_object_get(line, "input_ids");
    /* Ready tokens may say what they mean beside it (cldraft generate does). */
    if (ids && json_object_get(line, "loss_mask") && !(messages && share_gpt))
        return read_ids(l, line, err);
    if (!!messages + !!share_gpt + !!ids != 1)
        return fault(l, CLD_ROW_BAD_SHAPE, err,
                     "a row needs one of messages, conversations and "
                     "input_ids, it has %d",
                     !!messages + !!share_gpt + !!ids);
    if (ids)
        return read_ids(l, line, err);
    if (l->encoder)
        return read_chat(l, messages ? messages : share_gpt, err);
    return cld_fail(err, CLD_E_INPUT,
                    "give a target directory that has its tokenizer.json, or "
                    "rows of input_ids",
                    "a chat row, but there is no tokenizer");
}

/* A line of text becomes l->tokens and l->mask. */
static enum cld_status read_line(struct loader *l, const char *text, size_t n,
                                 struct cld_error *err)
{
    json_t *line = NULL;
    l->is_chat = false;
    enum cld_status s = cld_row_parse(text, n, &line, &l->fault, err);
    if (s)
        return s;
    s = read_row(l, line, err);
    json_decref(line);
    return s;
}

static bool has_pair(const uint8_t *mask, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++)
        if (mask[i] && mask[i + 1])
            return true;
    return false;
}

/* The row at work goes into the dataset, unless there is nothing to learn from it. */
static enum cld_status take_row(struct loader *l, uint64_t id, struct cld_error *err)
{
    struct cld_dataset *d = l->d;
    size_t n = cld_min(l->tokens.n, l->options->max_length);
    for (size_t i = 0; i < l->tokens.n; i++)
        if ((size_t)l->tokens.ids[i] >= l->options->n_vocab)
            return cld_fail(err, CLD_E_INPUT, "use the target's own tokenizer and data for it",
                            "token %zu has id %d, the target's vocabulary has %zu tokens", i,
                            l->tokens.ids[i], l->options->n_vocab);
    if (!has_pair(l->mask, n)) {
        l->fault = has_pair(l->mask, l->tokens.n) ? CLD_ROW_CUT_PROMPT : CLD_ROW_UNSUPERVISED;
        d->counts.n_fault[l->fault]++;
        return CLD_OK;
    }
    enum cld_status s = reserve(d, n, err);
    if (s)
        return s;
    memcpy(d->ids + d->counts.n_tokens, l->tokens.ids, n * sizeof *d->ids);
    memcpy(d->mask + d->counts.n_tokens, l->mask, n);
    d->counts.n_cut += n < l->tokens.n;
    if (l->is_chat)
        count_roles(&d->counts, &l->chat, &l->tokens, l->mask, n);
    keep(d, id, n);
    return CLD_OK;
}

static enum cld_status load_line(struct loader *l, const char *path, size_t number,
                                 const char *text, size_t n, struct cld_error *err)
{
    struct cld_dataset_counts *c = &l->d->counts;
    uint64_t id = c->n_lines++;
    if (strspn(text, " \t\r\n") == n) {
        c->n_blank++;
        return CLD_OK;
    }
    enum cld_status s = read_line(l, text, n, err);
    if (!s)
        s = take_row(l, id, err);
    if (!s)
        return CLD_OK;
    cld_fail_prefix(err, "%s:%zu", path, number);
    if (!l->fault || s != CLD_E_INPUT)
        return s;
    if (l->options->bad_row_fatal)
        return cld_fail(err, CLD_E_INPUT, "mend the line, or set data.bad_row = skip", "%s",
                        err->what);
    c->n_fault[l->fault]++;
    if (l->n_logged++ < MAX_LOGGED)
        cld_warn("skipped %s", err->what);
    return CLD_OK;
}

static enum cld_status load_file(struct loader *l, const char *path, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *text = NULL;
    size_t capacity = 0, number = 0;
    ssize_t n;
    FILE *in = fopen(path, "rb");
    if (!in)
        return cld_fail(err, CLD_E_INPUT, "check the path and its permissions",
                        "%s: cannot open: %s", path, strerror(errno));
    while (!s && !(s = cld_signals_check(err)) && (n = getline(&text, &capacity, in)) >= 0)
        s = load_line(l, path, ++number, text, (size_t)n, err);
    if (!s && ferror(in))
        s = cld_fail(err, CLD_E_INPUT, "check that the file is whole and the disk works",
                     "%s: read failed: %s", path, strerror(errno));
    free(text);
    fclose(in);
    return s;
}

enum cld_status cld_dataset_load(const char *const *paths, size_t n_paths,
                                 const struct cld_dataset_options *options,
                                 struct cld_dataset **out, struct cld_error *err)
{
    struct loader l = {.options = options};
    enum cld_status s = CLD_OK;
    char summary[512];
    *out = NULL;
    if (options->max_length < 2)
        return cld_fail(err, CLD_E_USAGE, "set data.max_length",
                        "rows of at most %zu tokens hold "
                        "nothing to learn",
                        options->max_length);
    l.d = calloc(1, sizeof *l.d);
    if (!l.d)
        return cld_fail_memory(err, "a dataset");
    if (options->tokenizer && (s = cld_encoder_new(options->tokenizer, &l.encoder, err)))
        goto done;
    for (size_t i = 0; i < n_paths; i++)
        if ((s = load_file(&l, paths[i], err)))
            goto done;
    cld_dataset_describe(&l.d->counts, summary, sizeof summary);
    if (!l.d->counts.n_rows) {
        s = cld_fail(err, CLD_E_INPUT, "give files with rows that have supervised tokens",
                     "empty dataset: %s%s%s", n_paths ? paths[0] : "no file",
                     n_paths > 1 ? " and others: " : ": ", summary);
        goto done;
    }
    if (l.n_logged > MAX_LOGGED)
        cld_warn("%zu more bad lines are only counted", l.n_logged - MAX_LOGGED);
    cld_info("data %s%s: %s", paths[0], n_paths > 1 ? " and others" : "", summary);
    *out = l.d;
    l.d = NULL;
done:
    cld_dataset_free(l.d);
    free(l.mask);
    cld_chat_release(&l.chat);
    cld_chat_release(&l.prefix);
    cld_tokens_release(&l.tokens);
    cld_encoder_free(l.encoder);
    return s;
}

/* ---- generated rows ---- */

/* Memory that is only promised would run out row by row, and take other processes along. */
static enum cld_status check_capacity(size_t n_rows, size_t length, struct cld_error *err)
{
    size_t token_bytes = sizeof(int32_t) + sizeof(uint8_t);
    size_t row_bytes = cld_add(cld_mul(length, token_bytes), sizeof(struct row));
    size_t n_bytes = cld_mul(n_rows, row_bytes);
    long n_pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    size_t host_bytes =
        n_pages > 0 && page_bytes > 0 ? cld_mul((size_t)n_pages, (size_t)page_bytes) : SIZE_MAX - 1;
    if (n_bytes <= host_bytes)
        return CLD_OK;
    return cld_fail(
        err, CLD_E_MEMORY, "make fewer or shorter rows; they come again in each epoch",
        "data.synthetic: %zu rows of %zu tokens need %.3f GiB of host memory, there are "
        "%.3f GiB",
        n_rows, length, (double)n_rows * (double)row_bytes / 0x1p30, (double)host_bytes / 0x1p30);
}

enum cld_status cld_dataset_synthetic(size_t n_rows, size_t length, size_t n_vocab, uint64_t seed,
                                      struct cld_dataset **out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    *out = NULL;
    if (!n_rows || length < 2 || !n_vocab)
        return cld_fail(err, CLD_E_USAGE, "for example data.synthetic = 1000,2048",
                        "data.synthetic: %zu rows of %zu tokens; at least 1 row of 2 tokens",
                        n_rows, length);
    struct cld_dataset *d = calloc(1, sizeof *d);
    if (!d)
        return cld_fail_memory(err, "a dataset");
    if ((s = check_capacity(n_rows, length, err)))
        goto done;
    size_t n_prompt = cld_min(length / 4, 16);
    for (uint64_t r = 0; r < n_rows; r++) {
        if ((s = cld_signals_check(err)) || (s = reserve(d, length, err)))
            goto done;
        int32_t *ids = d->ids + d->counts.n_tokens;
        uint8_t *mask = d->mask + d->counts.n_tokens;
        for (size_t i = 0; i < length; i++) {
            ids[i] =
                (int32_t)cld_random_below(cld_random_u64(seed, CLD_RANDOM_DATA, r, i, 0), n_vocab);
            mask[i] = i >= n_prompt;
        }
        keep(d, r, length);
    }
    d->counts.n_lines = d->counts.n_rows;
    *out = d;
    d = NULL;
done:
    cld_dataset_free(d);
    return s;
}
