#include "data/dataset.h"

#include <jansson.h>
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
#include "data/ready_row.h"
#include "data/row_file.h"

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
    char keys[512], several[64] = "";
    size_t n = 0;
    if (counts->n_packed)
        snprintf(several, sizeof several, ", %zu lines hold several documents", counts->n_packed);
    int got = snprintf(to, n_to, "%zu rows of %zu lines, %zu tokens, %zu supervised, %zu cut%s",
                       counts->n_rows, counts->n_lines - counts->n_blank, counts->n_tokens,
                       counts->n_supervised, counts->n_cut, several);
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
    n += got > 0 ? (size_t)got : 0;
    cld_key_counts_text(&counts->refused, keys, sizeof keys);
    if (keys[0] && n < n_to)
        snprintf(to + n, n_to - n, " (keys: %s)", keys);
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
    struct cld_row_reading reading;
    struct cld_key_counts unread;
    /* The row at work: a chat as text and tokens, or ready tokens. */
    bool is_chat;
    struct cld_chat chat, prefix;
    struct cld_tokens tokens;
    uint8_t *mask; /* [tokens.n] */
    size_t cap_mask;
    struct cld_ready_row ready;
    uint64_t next_id;
    size_t n_logged;
};

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

static enum cld_status read_chat(struct loader *l, const json_t *line, struct cld_error *err)
{
    struct cld_conversation c = {0};
    struct cld_row_reading *r = &l->reading;
    enum cld_chat_template t = l->options->chat_template;
    enum cld_status s = cld_conversation_read(line, CLD_KEY_OF_CHAT, &c, r, err);
    if (s || (s = cld_chat_render(t, c.messages, c.n, &l->chat, r, err)) ||
        (s = cld_chat_check_thinking(t, &c, r, err)) ||
        (s = check_history(l, c.messages, c.n, err)))
        goto done;
    l->is_chat = true;
    if ((s = cld_encode(l->encoder, l->chat.text, l->chat.n_text, false, &l->tokens, err))) {
        r->fault = CLD_ROW_UNSUPPORTED; /* a byte without a token, or a pattern that gave up */
        goto done;
    }
    if ((s = cld_grow(&l->mask, &l->cap_mask, l->tokens.n, 1, err)))
        goto done;
    cld_chat_mask(&l->chat, &l->tokens, l->mask);
done:
    cld_conversation_release(&c);
    return s;
}

/* Rows that `cldraft generate` wrote say what they were made with. */
static enum cld_status check_origin(struct loader *l, const json_t *line, struct cld_error *err)
{
    const struct cld_dataset_options *o = l->options;
    const json_t *made = json_object_get(line, "cldraft");
    const char *template = json_string_value(json_object_get(made, "template"));
    const char *tokenizer = json_string_value(json_object_get(made, "tokenizer"));
    const char *used = o->no_template ? NULL : cld_chat_template_name(o->chat_template);
    if (!o->tokenizer)
        return CLD_OK;
    if (template && used && strcmp(template, used))
        return cld_row_refuse(&l->reading, CLD_ROW_CONTRADICTORY, "cldraft", err,
                              "cldraft generate made it with template %.40s, this run's is %s",
                              template, used);
    if (tokenizer && o->tokenizer_hash && strncmp(tokenizer, o->tokenizer_hash, strlen(tokenizer)))
        return cld_row_refuse(&l->reading, CLD_ROW_CONTRADICTORY, "cldraft", err,
                              "cldraft generate made it with another tokenizer.json (%.16s, the "
                              "target's is %.16s)",
                              tokenizer, o->tokenizer_hash);
    return CLD_OK;
}

static bool has(const json_t *line, const char *key)
{
    const json_t *v = json_object_get(line, key);
    return v && !json_is_null(v);
}

static enum cld_status read_row(struct loader *l, const json_t *line, struct cld_error *err)
{
    bool messages = has(line, "messages"), share_gpt = has(line, "conversations");
    bool ids = has(line, "input_ids");
    /* Ready tokens may say what they mean beside it (cldraft generate does). */
    if (cld_is_ready_row(line) && !(messages && share_gpt)) {
        enum cld_status s = check_origin(l, line, err);
        return s ? s : cld_ready_row_read(line, &l->ready, &l->reading, err);
    }
    if (messages + share_gpt + ids != 1)
        return cld_row_refuse(&l->reading, CLD_ROW_BAD_SHAPE, NULL, err,
                              "a row needs one of messages, conversations and input_ids, it has %d",
                              messages + share_gpt + ids);
    if (ids)
        return cld_row_refuse(&l->reading, CLD_ROW_BAD_SHAPE, "loss_mask", err,
                              "input_ids needs loss_mask or labels beside it");
    if (!l->encoder)
        return cld_fail(err, CLD_E_INPUT,
                        "give a target directory that has its tokenizer.json, or "
                        "rows of input_ids",
                        "a chat row, but there is no tokenizer");
    if (l->options->no_template) {
        *err = *l->options->no_template;
        return err->status;
    }
    return read_chat(l, line, err);
}

/* A line of text becomes a chat's tokens, or ready ones. */
static enum cld_status read_line(struct loader *l, const char *text, size_t n,
                                 struct cld_error *err)
{
    json_t *line = NULL;
    l->is_chat = false;
    enum cld_status s = cld_row_parse(text, n, &line, &l->reading, err);
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

/* A document of the row at work goes into the dataset, unless there is nothing to learn from it. */
static enum cld_status take_document(struct loader *l, const int32_t *ids, const uint8_t *mask,
                                     size_t n_all, struct cld_error *err)
{
    struct cld_dataset *d = l->d;
    uint64_t id = l->next_id++;
    size_t n = cld_min(n_all, l->options->max_length);
    for (size_t i = 0; i < n_all; i++)
        if ((size_t)ids[i] >= l->options->n_vocab) {
            l->reading.fault = CLD_ROW_FINE; /* of the run, not of the row */
            return cld_fail(err, CLD_E_INPUT, "use the target's own tokenizer and data for it",
                            "token %zu has id %d, the target's vocabulary has %zu tokens", i,
                            ids[i], l->options->n_vocab);
        }
    if (!has_pair(mask, n)) {
        d->counts.n_fault[has_pair(mask, n_all) ? CLD_ROW_CUT_PROMPT : CLD_ROW_UNSUPERVISED]++;
        return CLD_OK;
    }
    enum cld_status s = reserve(d, n, err);
    if (s)
        return s;
    memcpy(d->ids + d->counts.n_tokens, ids, n * sizeof *d->ids);
    memcpy(d->mask + d->counts.n_tokens, mask, n);
    d->counts.n_cut += n < n_all;
    if (l->is_chat)
        count_roles(&d->counts, &l->chat, &l->tokens, mask, n);
    keep(d, id, n);
    return CLD_OK;
}

static enum cld_status take_row(struct loader *l, struct cld_error *err)
{
    const struct cld_ready_row *ready = &l->ready;
    enum cld_status s = CLD_OK;
    if (l->is_chat)
        return take_document(l, l->tokens.ids, l->mask, l->tokens.n, err);
    if (!ready->n)
        return take_document(l, ready->ids, ready->mask, 0, err);
    l->d->counts.n_packed += ready->n_documents > 1;
    for (size_t at = 0, n; at < ready->n && !s; at += n) {
        for (n = 1; at + n < ready->n && !ready->starts[at + n]; n++)
            ;
        s = take_document(l, ready->ids + at, ready->mask + at, n, err);
    }
    return s;
}

static enum cld_status load_line(struct loader *l, const char *path, size_t number,
                                 const char *text, size_t n, struct cld_error *err)
{
    struct cld_dataset_counts *c = &l->d->counts;
    c->n_lines++;
    if (strspn(text, " \t") == n) {
        c->n_blank++;
        l->next_id++;
        return CLD_OK;
    }
    enum cld_status s = read_line(l, text, n, err);
    if (!s && !(s = take_row(l, err)))
        return CLD_OK;
    cld_fail_prefix(err, "%s:%zu", path, number);
    if (!l->reading.fault || s != CLD_E_INPUT)
        return s;
    if (l->options->bad_row_fatal)
        return cld_fail(err, CLD_E_INPUT, "mend the line, or set data.bad_row = skip", "%s",
                        err->what);
    l->next_id++;
    c->n_fault[l->reading.fault]++;
    if (l->reading.key[0])
        cld_key_counts_add(&c->refused, l->reading.key);
    if (l->n_logged++ < MAX_LOGGED)
        cld_warn("skipped %s", err->what);
    return CLD_OK;
}

static enum cld_status load_file(struct loader *l, const char *path, struct cld_error *err)
{
    struct cld_row_file *in = NULL;
    char *text = NULL;
    size_t n = 0, number = 0;
    enum cld_status s = cld_row_file_open(path, &in, err);
    while (!s && !(s = cld_signals_check(err)) &&
           !(s = cld_row_file_next(in, &text, &n, &number, err)) && text)
        s = load_line(l, path, number, text, n, err);
    cld_row_file_close(in);
    return s;
}

/* What was passed over, once. */
static void warn(const struct loader *l)
{
    char text[512];
    if (l->n_logged > MAX_LOGGED)
        cld_warn("%zu more bad lines are only counted", l->n_logged - MAX_LOGGED);
    if (!l->unread.n)
        return;
    cld_key_counts_text(&l->unread, text, sizeof text);
    cld_warn("keys that are not read, by the number of rows that have them: %s", text);
}

enum cld_status cld_dataset_load(const char *const *paths, size_t n_paths,
                                 const struct cld_dataset_options *options,
                                 struct cld_dataset **out, struct cld_error *err)
{
    struct loader l = {.options = options};
    enum cld_status s = CLD_OK;
    char summary[768];
    *out = NULL;
    if (options->max_length < 2)
        return cld_fail(err, CLD_E_USAGE, "set data.max_length",
                        "rows of at most %zu tokens hold "
                        "nothing to learn",
                        options->max_length);
    l.d = calloc(1, sizeof *l.d);
    if (!l.d)
        return cld_fail_memory(err, "a dataset");
    l.reading.unread = &l.unread;
    l.reading.ignored = options->ignored_keys;
    l.reading.n_ignored = options->n_ignored_keys;
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
    warn(&l);
    cld_info("data %s%s: %s", paths[0], n_paths > 1 ? " and others" : "", summary);
    *out = l.d;
    l.d = NULL;
done:
    cld_dataset_free(l.d);
    free(l.mask);
    cld_chat_release(&l.chat);
    cld_chat_release(&l.prefix);
    cld_ready_row_release(&l.ready);
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
