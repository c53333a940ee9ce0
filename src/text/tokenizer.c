#include "text/tokenizer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/grow.h"
#include "base/utf8.h"
#include "formats/json_read.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/nfc.h"
#include "text/pretokenize.h"

enum { MAX_SPECIAL = 16 };

struct cld_tokenizer {
    struct cld_bpe *bpe;
    struct cld_pretokenizer *pre;
    bool nfc;
    struct cld_added_token *added; /* [n_added], as in the file */
    size_t n_added, n_tokens;
    int32_t max_id;
    struct cld_added_set *in_text, *in_normalised;   /* where they are looked for */
    int32_t before[MAX_SPECIAL], after[MAX_SPECIAL]; /* of the post_processor, around a text */
    size_t n_before, n_after;
};

/* ---- loading ---- */

void cld_tokenizer_free(struct cld_tokenizer *t)
{
    if (!t)
        return;
    cld_bpe_free(t->bpe);
    cld_pretokenizer_free(t->pre);
    for (size_t i = 0; i < t->n_added; i++)
        free(t->added[i].text);
    free(t->added);
    cld_added_set_free(t->in_text);
    cld_added_set_free(t->in_normalised);
    free(t);
}

static enum cld_status refuse(const char *what, const json_t *value, struct cld_error *err)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    return cld_fail(err, CLD_E_INPUT, "see the tokenizer page of the documentation for what is",
                    "%s %s%s%s is not supported", what, type ? "\"" : "",
                    type ? type : cld_json_kind(value), type ? "\"" : "");
}

static bool is_type(const json_t *config, const char *type)
{
    const char *s = json_string_value(json_object_get(config, "type"));
    return s && !strcmp(s, type);
}

static enum cld_status read_normalizer(struct cld_tokenizer *t, const json_t *config,
                                       struct cld_error *err)
{
    static const char *const known[] = {"type", NULL};
    static const char *const sequence_known[] = {"type", "normalizers", NULL};
    enum cld_status s;
    if (!config || json_is_null(config))
        return CLD_OK;
    if (is_type(config, "NFC")) {
        t->nfc = true;
        return cld_json_known(config, "normalizer NFC", known, err);
    }
    if (!is_type(config, "Sequence"))
        return refuse("normalizer", config, err);
    const json_t *list;
    if ((s = cld_json_known(config, "normalizer Sequence", sequence_known, err)) ||
        (s = cld_json_array(config, "normalizer Sequence", "normalizers", &list, err)))
        return s;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        if (!is_type(one, "NFC"))
            return refuse("normalizer", one, err);
        t->nfc = true;
        if ((s = cld_json_known(one, "normalizer NFC", known, err)))
            return s;
    }
    return CLD_OK;
}

static const struct cld_added_token *find_added(const struct cld_tokenizer *t, const char *text,
                                                size_t n)
{
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i].n_bytes == n && !memcmp(t->added[i].text, text, n))
            return &t->added[i];
    return NULL;
}

/* Libraries number added tokens by themselves: a known text keeps its id, a new one takes the next
 * free id. Where the file says otherwise two readers would disagree, so it is refused. */
static enum cld_status check_added_id(const struct cld_tokenizer *t,
                                      const struct cld_added_token *a, struct cld_error *err)
{
    int64_t next = (int64_t)cld_bpe_n_tokens(t->bpe);
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i].id >= next)
            next = (int64_t)t->added[i].id + 1;
    int32_t known = cld_bpe_find(t->bpe, a->text, a->n_bytes);
    int64_t want = known >= 0 ? known : next;
    if (find_added(t, a->text, a->n_bytes))
        return cld_fail(err, CLD_E_INPUT,
                        "the tokenizer is damaged, or needs something that cldraft does not "
                        "support; download it again or use another target",
                        "added token \"%.60s\" stands twice in the file", a->text);
    if (a->id != want)
        return cld_fail(err, CLD_E_INPUT,
                        "number added tokens from the end of the vocabulary on, "
                        "in the order of the file",
                        "added token \"%.60s\" has id %d, %s %lld", a->text, a->id,
                        known >= 0 ? "but the vocabulary gives it" : "but its place gives it",
                        (long long)want);
    return CLD_OK;
}

/* Reads entry `index`; *normalised is the set it belongs to. */
static enum cld_status read_added(struct cld_tokenizer *t, const json_t *config, size_t index,
                                  bool *normalised, struct cld_error *err)
{
    static const char where[] = "added_tokens";
    static const char *const known[] = {"id",     "content",    "single_word", "lstrip",
                                        "rstrip", "normalized", "special",     NULL};
    struct cld_added_token a = {0};
    bool single_word = false, special = false;
    const char *content;
    enum cld_status s = cld_json_known(config, where, known, err);
    *normalised = false;
    if (s || (s = cld_json_id(config, where, "id", &a.id, err)) ||
        (s = cld_json_string(config, where, "content", &content, &a.n_bytes, err)) ||
        (s = cld_json_bool(config, where, "single_word", &single_word, err)) ||
        (s = cld_json_bool(config, where, "lstrip", &a.lstrip, err)) ||
        (s = cld_json_bool(config, where, "rstrip", &a.rstrip, err)) ||
        (s = cld_json_bool(config, where, "normalized", normalised, err)) ||
        (s = cld_json_bool(config, where, "special", &special, err)))
        return s;
    if (single_word)
        return cld_fail(err, CLD_E_INPUT,
                        "the tokenizer is damaged, or needs something that cldraft does not "
                        "support; download it again or use another target",
                        "added token \"%.60s\": single_word is not supported", content);
    if (!a.n_bytes)
        return cld_fail(err, CLD_E_INPUT,
                        "the tokenizer is damaged, or needs something that cldraft does not "
                        "support; download it again or use another target",
                        "added token %zu is empty", index);
    a.text = malloc(a.n_bytes + 1);
    if (!a.text)
        return cld_fail_memory(err, "added tokens");
    memcpy(a.text, content, a.n_bytes + 1);
    if ((s = check_added_id(t, &a, err))) {
        free(a.text);
        return s;
    }
    t->added[t->n_added++] = a;
    return CLD_OK;
}

/* A token that is looked for in normalised text is looked for in its normalised form. */
static enum cld_status normalised_copy(const struct cld_added_token *a, bool nfc,
                                       struct cld_added_token *out, struct cld_error *err)
{
    struct cld_nfc buffer = {0};
    const char *text = a->text;
    const size_t *from;
    enum cld_status s = CLD_OK;
    *out = *a;
    out->text = NULL;
    if (nfc)
        s = cld_nfc_run(&buffer, a->text, a->n_bytes, &text, &out->n_bytes, &from, err);
    if (!s) {
        out->text = malloc(out->n_bytes + 1);
        if (out->text) {
            memcpy(out->text, text, out->n_bytes);
            out->text[out->n_bytes] = '\0';
        } else {
            s = cld_fail_memory(err, "added tokens");
        }
    }
    cld_nfc_release(&buffer);
    return s;
}

/* Two tokens with one normalised text: which of them a text becomes differs from reader to reader.
 * set[] are the n tokens with their normalised text. */
static enum cld_status check_collision(const struct cld_added_token *set, size_t n,
                                       struct cld_error *err)
{
    const struct cld_added_token *last = &set[n - 1];
    for (size_t i = 0; i + 1 < n; i++)
        if (set[i].n_bytes == last->n_bytes && !memcmp(set[i].text, last->text, last->n_bytes))
            return cld_fail(err, CLD_E_INPUT, "remove one of them, or set normalized to false",
                            "added tokens %d and %d are the same text after normalisation (NFC), "
                            "\"%.60s\"",
                            set[i].id, last->id, last->text);
    return CLD_OK;
}

static enum cld_status read_added_tokens(struct cld_tokenizer *t, const json_t *list,
                                         struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = json_array_size(list), n_plain = 0, n_normalised = 0;
    struct cld_added_token *plain = calloc(n + 1, sizeof *plain);
    struct cld_added_token *normalised = calloc(n + 1, sizeof *normalised);
    t->added = calloc(n + 1, sizeof *t->added);
    if (!plain || !normalised || !t->added) {
        s = cld_fail_memory(err, "%zu added tokens", n);
        goto done;
    }
    if (list && !json_is_null(list) && !json_is_array(list)) {
        s = cld_fail(err, CLD_E_INPUT,
                     "the tokenizer is damaged, or needs something that cldraft does not support; "
                     "download it again or use another target",
                     "added_tokens is %s, it must be an array", cld_json_kind(list));
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        bool in_normalised;
        if ((s = read_added(t, json_array_get(list, i), i, &in_normalised, err)))
            goto done;
        const struct cld_added_token *a = &t->added[t->n_added - 1];
        if (!in_normalised)
            plain[n_plain++] = *a;
        else if ((s = normalised_copy(a, t->nfc, &normalised[n_normalised++], err)) ||
                 (s = check_collision(normalised, n_normalised, err)))
            goto done;
        t->n_tokens += cld_bpe_find(t->bpe, a->text, a->n_bytes) < 0;
        if (a->id > t->max_id)
            t->max_id = a->id;
    }
    if (!(s = cld_added_set_new(plain, n_plain, &t->in_text, err)))
        s = cld_added_set_new(normalised, n_normalised, &t->in_normalised, err);
done:
    for (size_t i = 0; i < n_normalised; i++)
        free(normalised[i].text);
    free(normalised);
    free(plain);
    return s;
}

/* {"SpecialToken": {"id": NAME, "type_id": 0}}: its ids are listed under special_tokens. */
static enum cld_status read_special(struct cld_tokenizer *t, const json_t *piece,
                                    const json_t *special_tokens, bool after, struct cld_error *err)
{
    static const char where[] = "post_processor TemplateProcessing";
    int32_t *to = after ? t->after : t->before;
    size_t *n = after ? &t->n_after : &t->n_before;
    const char *name;
    size_t n_name;
    const json_t *ids;
    enum cld_status s = cld_json_string(piece, where, "id", &name, &n_name, err);
    if (s || (s = cld_json_array(json_object_get(special_tokens, name), where, "ids", &ids, err)))
        return s;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        if (!json_is_integer(json_array_get(ids, i)) || id < 0 || id > t->max_id)
            return cld_fail(err, CLD_E_INPUT,
                            "the tokenizer is damaged, or needs something that cldraft does not "
                            "support; download it again or use another target",
                            "%s: token \"%s\" has no usable id", where, name);
        if (*n == MAX_SPECIAL)
            return cld_fail(err, CLD_E_INPUT,
                            "the tokenizer is damaged, or needs something that cldraft does not "
                            "support; download it again or use another target",
                            "%s: more than %d tokens on one side", where, MAX_SPECIAL);
        to[(*n)++] = (int32_t)id;
    }
    return CLD_OK;
}

/* Only "single" matters: pairs of texts are never encoded here. */
static enum cld_status read_template(struct cld_tokenizer *t, const json_t *config,
                                     struct cld_error *err)
{
    static const char where[] = "post_processor TemplateProcessing";
    static const char *const known[] = {"type", "single", "pair", "special_tokens", NULL};
    static const char *const piece_known[] = {"SpecialToken", "Sequence", NULL};
    const json_t *single;
    bool seen = false;
    enum cld_status s = cld_json_known(config, where, known, err);
    if (s || (s = cld_json_array(config, where, "single", &single, err)))
        return s;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *special = json_object_get(piece, "SpecialToken");
        if ((s = cld_json_known(piece, where, piece_known, err)))
            return s;
        if (special) {
            s = read_special(t, special, json_object_get(config, "special_tokens"), seen, err);
        } else {
            const char *name =
                json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
            if (seen || !name || strcmp(name, "A"))
                s = cld_fail(err, CLD_E_INPUT,
                             "the tokenizer is damaged, or needs something that cldraft does not "
                             "support; download it again or use another target",
                             "%s: \"single\" must hold sequence A once", where);
            seen = true;
        }
        if (s)
            return s;
    }
    return seen ? CLD_OK
                : cld_fail(err, CLD_E_INPUT,
                           "the tokenizer is damaged, or needs something that cldraft does not "
                           "support; download it again or use another target",
                           "%s: \"single\" must hold sequence A once", where);
}

static enum cld_status read_post_processor(struct cld_tokenizer *t, const json_t *config,
                                           struct cld_error *err)
{
    static const char *const byte_level_known[] = {"type", "add_prefix_space", "trim_offsets",
                                                   "use_regex", NULL};
    static const char *const sequence_known[] = {"type", "processors", NULL};
    if (!config || json_is_null(config))
        return CLD_OK;
    if (is_type(config, "ByteLevel")) /* only trims reported offsets, see pretokenize.c */
        return cld_json_known(config, "post_processor ByteLevel", byte_level_known, err);
    if (is_type(config, "TemplateProcessing"))
        return t->n_before + t->n_after
                   ? cld_fail(err, CLD_E_INPUT,
                              "the tokenizer is damaged, or needs something that cldraft does not "
                              "support; download it again or use another target",
                              "post_processor has two templates")
                   : read_template(t, config, err);
    if (!is_type(config, "Sequence"))
        return refuse("post_processor", config, err);
    const json_t *list;
    enum cld_status s = cld_json_known(config, "post_processor Sequence", sequence_known, err);
    if (!s)
        s = cld_json_array(config, "post_processor Sequence", "processors", &list, err);
    for (size_t i = 0; !s && i < json_array_size(list); i++)
        s = is_type(json_array_get(list, i), "Sequence")
                ? refuse("nested post_processor", json_array_get(list, i), err)
                : read_post_processor(t, json_array_get(list, i), err);
    return s;
}

/* Parts of the file that must be absent or say what we do anyway. */
static enum cld_status check_rest(const json_t *root, struct cld_error *err)
{
    static const char *const known[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    static const char *const off[] = {"truncation", "padding"};
    static const char *const decoder_known[] = {"type", "add_prefix_space", "trim_offsets",
                                                "use_regex", NULL};
    enum cld_status s = cld_json_known(root, "tokenizer file", known, err);
    if (s)
        return s;
    const char *version = json_string_value(json_object_get(root, "version"));
    if (version && strcmp(version, "1.0"))
        return cld_fail(err, CLD_E_INPUT,
                        "the tokenizer is damaged, or needs something that cldraft does not "
                        "support; download it again or use another target",
                        "tokenizer file: version \"%s\" is not supported", version);
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_object_get(root, off[i]);
        if (v && !json_is_null(v))
            return cld_fail(err, CLD_E_INPUT, "set it to null; data.max_length cuts rows",
                            "tokenizer file: %s is not supported", off[i]);
    }
    const json_t *decoder = json_object_get(root, "decoder");
    if (!decoder || json_is_null(decoder))
        return CLD_OK;
    if (!is_type(decoder, "ByteLevel"))
        return refuse("decoder", decoder, err);
    return cld_json_known(decoder, "decoder ByteLevel", decoder_known, err);
}

static enum cld_status read_root(struct cld_tokenizer *t, const json_t *root, struct cld_error *err)
{
    enum cld_status s;
    if ((s = check_rest(root, err)) ||
        (s = cld_bpe_new(json_object_get(root, "model"), &t->bpe, err)) ||
        (s = read_normalizer(t, json_object_get(root, "normalizer"), err)) ||
        (s = cld_pretokenizer_new(json_object_get(root, "pre_tokenizer"), &t->pre, err)))
        return s;
    t->n_tokens = cld_bpe_n_tokens(t->bpe);
    t->max_id = cld_bpe_max_id(t->bpe);
    if ((s = read_added_tokens(t, json_object_get(root, "added_tokens"), err)))
        return s;
    return read_post_processor(t, json_object_get(root, "post_processor"), err);
}

enum cld_status cld_tokenizer_load(const char *path, struct cld_tokenizer **out,
                                   struct cld_error *err)
{
    char *text = NULL;
    size_t n = 0;
    json_t *root = NULL;
    json_error_t where;
    struct cld_tokenizer *t = NULL;
    *out = NULL;
    enum cld_status s = cld_file_read(path, (size_t)1 << 30, &text, &n, err);
    if (s)
        return s;
    root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    if (!root) {
        s = cld_fail(err, CLD_E_INPUT, "fetch or copy the file again", "%s:%d:%d: %s", path,
                     where.line, where.column, where.text);
        goto done;
    }
    t = calloc(1, sizeof *t);
    if (!t) {
        s = cld_fail_memory(err, "a tokenizer");
        goto done;
    }
    if ((s = read_root(t, root, err))) {
        cld_fail_prefix(err, "%s", path);
        goto done;
    }
    *out = t;
    t = NULL;
done:
    cld_tokenizer_free(t);
    json_decref(root);
    free(text);
    return s;
}

/* ---- questions ---- */

size_t cld_tokenizer_n_tokens(const struct cld_tokenizer *t)
{
    return t->n_tokens;
}

int32_t cld_tokenizer_max_id(const struct cld_tokenizer *t)
{
    return t->max_id;
}

int32_t cld_tokenizer_find(const struct cld_tokenizer *t, const char *token)
{
    const struct cld_added_token *a = find_added(t, token, strlen(token));
    return a ? a->id : cld_bpe_find(t->bpe, token, strlen(token));
}

/* ---- encoding ---- */

struct cld_encoder {
    const struct cld_tokenizer *t;
    struct cld_bpe_work *work;
    struct cld_nfc nfc;
    struct cld_pretokenizer_scratch scratch;
};

void cld_encoder_free(struct cld_encoder *e)
{
    if (!e)
        return;
    cld_bpe_work_free(e->work);
    cld_nfc_release(&e->nfc);
    cld_matcher_free(e->scratch.matcher);
    free(e->scratch.text);
    free(e);
}

enum cld_status cld_encoder_new(const struct cld_tokenizer *t, struct cld_encoder **out,
                                struct cld_error *err)
{
    *out = NULL;
    struct cld_encoder *e = calloc(1, sizeof *e);
    if (!e)
        return cld_fail_memory(err, "an encoder");
    e->t = t;
    enum cld_status s = cld_bpe_work_new(&e->work, err);
    if (!s)
        s = cld_matcher_new(&e->scratch.matcher, err);
    if (s) {
        cld_encoder_free(e);
        return s;
    }
    *out = e;
    return CLD_OK;
}

void cld_tokens_release(struct cld_tokens *tokens)
{
    if (!tokens)
        return;
    free(tokens->ids);
    free(tokens->begins);
    *tokens = (struct cld_tokens){0};
}

static enum cld_status reserve(struct cld_tokens *out, size_t n, struct cld_error *err)
{
    enum cld_status s = cld_grow(&out->ids, &out->cap_ids, out->n + n, sizeof *out->ids, err);
    return s ? s : cld_grow(&out->begins, &out->cap_begins, out->n + n, sizeof *out->begins, err);
}

static enum cld_status put_token(struct cld_tokens *out, int32_t id, size_t begin,
                                 struct cld_error *err)
{
    enum cld_status s = reserve(out, 1, err);
    if (s)
        return s;
    out->ids[out->n] = id;
    out->begins[out->n++] = begin;
    return CLD_OK;
}

/* Where a piece of text lies: byte k of it is byte k of the piece as given at `base`, or, if it was
 * normalised, comes from byte from[shift + k]. */
struct piece {
    struct cld_encoder *e;
    struct cld_tokens *out;
    size_t base, shift;
    const size_t *from;
};

static size_t origin(const struct piece *p, size_t k)
{
    return p->base + (p->from ? p->from[p->shift + k] : p->shift + k);
}

static enum cld_status put_word(void *to, const struct cld_word *word, struct cld_error *err)
{
    struct piece *p = to;
    const struct cld_bpe *bpe = p->e->t->bpe;
    const int32_t *ids;
    size_t n, k = 0;
    enum cld_status s = cld_bpe_word(bpe, p->e->work, word->bytes, word->n, &ids, &n, err);
    if (s || (s = reserve(p->out, n, err)))
        return s;
    for (size_t i = 0; i < n; i++) {
        p->out->ids[p->out->n] = ids[i];
        p->out->begins[p->out->n++] =
            origin(p, word->at + (k > word->n_added ? k - word->n_added : 0));
        k += cld_bpe_token_bytes(bpe, ids[i]);
    }
    return CLD_OK;
}

/* Text between two added tokens that are found before normalisation. */
static enum cld_status encode_gap(struct cld_encoder *e, const char *text, size_t base, size_t n,
                                  struct cld_tokens *out, struct cld_error *err)
{
    const struct cld_tokenizer *t = e->t;
    struct piece p = {e, out, base, 0, NULL};
    struct cld_added_scan scan = {0};
    const char *in = text + base;
    enum cld_status s;
    if (t->nfc && (s = cld_nfc_run(&e->nfc, in, n, &in, &n, &p.from, err)))
        return s;
    for (;;) {
        bool found = cld_added_next(t->in_normalised, in, n, &scan);
        size_t gap_end = found ? scan.begin : n;
        p.shift = scan.gap_begin;
        if (gap_end > scan.gap_begin &&
            (s = cld_pretokenize(t->pre, &e->scratch, in + scan.gap_begin, gap_end - scan.gap_begin,
                                 put_word, &p, err)))
            return s;
        if (!found)
            return CLD_OK;
        p.shift = 0;
        if ((s = put_token(out, scan.id, origin(&p, scan.begin), err)))
            return s;
    }
}

enum cld_status cld_encode(struct cld_encoder *e, const char *text, size_t n_bytes, bool special,
                           struct cld_tokens *out, struct cld_error *err)
{
    const struct cld_tokenizer *t = e->t;
    struct cld_added_scan scan = {0};
    enum cld_status s;
    out->n = 0;
    size_t valid = cld_utf8_valid(text, n_bytes);
    if (valid < n_bytes)
        return cld_fail(err, CLD_E_INPUT, "convert the text to UTF-8",
                        "the text is not UTF-8: byte 0x%02X at %zu", (unsigned char)text[valid],
                        valid);
    for (size_t i = 0; special && i < t->n_before; i++)
        if ((s = put_token(out, t->before[i], 0, err)))
            return s;
    for (;;) {
        bool found = cld_added_next(t->in_text, text, n_bytes, &scan);
        size_t gap_end = found ? scan.begin : n_bytes;
        if (gap_end > scan.gap_begin &&
            (s = encode_gap(e, text, scan.gap_begin, gap_end - scan.gap_begin, out, err)))
            return s;
        if (!found)
            break;
        if ((s = put_token(out, scan.id, scan.begin, err)))
            return s;
    }
    for (size_t i = 0; special && i < t->n_after; i++)
        if ((s = put_token(out, t->after[i], n_bytes, err)))
            return s;
    return CLD_OK;
}

/* ---- decoding ---- */

enum cld_status cld_decode(const struct cld_tokenizer *t, const int32_t *ids, size_t n, char **out,
                           size_t *n_bytes, struct cld_error *err)
{
    char *text = NULL;
    size_t n_text = 0, capacity = 0;
    enum cld_status s = cld_grow(&text, &capacity, 1, 1, err);
    *out = NULL;
    for (size_t i = 0; !s && i < n; i++) {
        const struct cld_added_token *a = NULL;
        for (size_t k = 0; k < t->n_added && !a; k++)
            if (t->added[k].id == ids[i])
                a = &t->added[k];
        size_t len = a ? a->n_bytes : 0;
        const char *spelling = a ? a->text : cld_bpe_spelling(t->bpe, ids[i], &len);
        if (!spelling) {
            s = cld_fail(err, CLD_E_INPUT, "check that the rows were tokenized for this target",
                         "token id %d is not in the vocabulary (0 to %d)", ids[i], t->max_id);
            break;
        }
        if ((s = cld_grow(&text, &capacity, n_text + len + 1, 1, err)))
            break;
        size_t got = a ? SIZE_MAX : cld_bpe_spelling_bytes(spelling, len, text + n_text);
        if (got == SIZE_MAX) { /* not of the byte alphabet: it stands for its own text */
            memcpy(text + n_text, spelling, len);
            got = len;
        }
        n_text += got;
    }
    if (s) {
        free(text);
        return s;
    }
    text[n_text] = 0;
    *out = text;
    *n_bytes = n_text;
    return CLD_OK;
}
