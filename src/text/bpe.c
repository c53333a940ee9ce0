#include "text/bpe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/random.h"
#include "base/utf8.h"
#include "formats/json_read.h"

enum {
    MAX_ID = 1 << 24,      /* of a vocabulary; bounds what a hostile file can make us allocate */
    CACHE_SLOTS = 1 << 16, /* of 64 bytes: 4 MiB a thread */
    MAYBE_BITS = 1 << 22,  /* 512 KiB stay in a core's cache, the table of pairs does not */
    CACHED_BYTES = 30,
    CACHED_IDS = 8
};

struct token {
    uint32_t at, n;   /* spelling in `text`; n = 0: no such id */
    uint32_t n_bytes; /* of text that it stands for */
};

struct merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: an empty slot */
    uint32_t rank;
    int32_t id; /* what the pair becomes */
};

struct cld_bpe {
    char *text; /* all spellings */
    size_t n_text, cap_text;
    struct token *tokens; /* [max_id + 1] */
    size_t cap_tokens;
    int32_t max_id;
    size_t n_tokens;
    int32_t *names; /* open addressing over spellings, -1: empty */
    size_t names_mask;
    struct merge *merges; /* open addressing over pairs */
    size_t merges_mask;
    uint64_t *maybe;      /* [MAYBE_BITS / 64] bit set: some pair with this hash can be merged */
    int32_t of_byte[256]; /* token of a single byte, or -1 */
    bool ignore_merges;   /* a word that is a token stays whole */
};

/* ---- the byte alphabet: every byte has a printable character of its own in spellings ---- */

static bool stands_for_itself(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) ||
           (byte >= 0xae && byte <= 0xff);
}

/* The others follow in order from U+0100. */
static uint32_t character_of(uint32_t byte)
{
    if (stands_for_itself(byte))
        return byte;
    return byte < 0x21 ? 0x100 + byte : byte < 0xa1 ? 0x100 + byte - 0x7f + 0x21 : 0x143;
}

static int byte_of(uint32_t cp)
{
    if (cp <= 0xff)
        return stands_for_itself(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)(cp - 0x100);
    if (cp <= 0x142)
        return (int)(cp - 0x121 + 0x7f);
    return cp == 0x143 ? 0xad : -1;
}

size_t cld_bpe_spelling_bytes(const char *spelling, size_t n, char *to)
{
    size_t n_bytes = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        size_t len = cld_utf8_get(spelling + i, n - i, &cp);
        int byte = len ? byte_of(cp) : -1;
        if (byte < 0)
            return SIZE_MAX;
        to[n_bytes++] = (char)byte;
        i += len;
    }
    return n_bytes;
}

/* ---- tables ---- */

static uint64_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = n, word;
    for (; n >= 8; n -= 8, s += 8) {
        memcpy(&word, s, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    word = 0;
    memcpy(&word, s, n);
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    return h ^ h >> 32;
}

static bool spelled(const struct cld_bpe *b, int32_t id, const char *s, size_t n)
{
    const struct token *t = &b->tokens[id];
    return t->n == n && !memcmp(b->text + t->at, s, n);
}

/* The slot of a spelling: where it is, or the empty one where it would go. */
static size_t name_slot(const struct cld_bpe *b, const char *s, size_t n)
{
    size_t i = hash_bytes(s, n) & b->names_mask;
    while (b->names[i] >= 0 && !spelled(b, b->names[i], s, n))
        i = (i + 1) & b->names_mask;
    return i;
}

int32_t cld_bpe_find(const struct cld_bpe *b, const char *token, size_t n)
{
    return b->names[name_slot(b, token, n)];
}

/* Most pairs asked for cannot be merged, and one bit shows this for most of them. */
static bool maybe_merged(const struct cld_bpe *b, uint64_t hash)
{
    uint64_t bit = hash % MAYBE_BITS;
    return b->maybe[bit / 64] >> bit % 64 & 1;
}

static struct merge *merge_slot(const struct cld_bpe *b, uint64_t pair, uint64_t hash)
{
    size_t i = hash & b->merges_mask;
    while (b->merges[i].pair != pair && b->merges[i].pair != UINT64_MAX)
        i = (i + 1) & b->merges_mask;
    return &b->merges[i];
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* A power of two that keeps `n` entries at most half full, less one. */
static size_t table_mask(size_t n)
{
    size_t size = 16;
    while (size < cld_mul(n, 2))
        size *= 2;
    return size - 1;
}

size_t cld_bpe_n_tokens(const struct cld_bpe *b)
{
    return b->n_tokens;
}

int32_t cld_bpe_max_id(const struct cld_bpe *b)
{
    return b->max_id;
}

size_t cld_bpe_token_bytes(const struct cld_bpe *b, int32_t id)
{
    return b->tokens[id].n_bytes;
}

const char *cld_bpe_spelling(const struct cld_bpe *b, int32_t id, size_t *n)
{
    if (id < 0 || id > b->max_id || !b->tokens[id].n)
        return NULL;
    *n = b->tokens[id].n;
    return b->text + b->tokens[id].at;
}

/* ---- loading ---- */

void cld_bpe_free(struct cld_bpe *b)
{
    if (!b)
        return;
    free(b->text);
    free(b->tokens);
    free(b->names);
    free(b->merges);
    free(b->maybe);
    free(b);
}

/* Options that would change what words become. Their neutral values are accepted. */
static enum cld_status read_options(struct cld_bpe *b, const json_t *model, struct cld_error *err)
{
    static const char where[] = "tokenizer model";
    static const char *const known[] = {"type",
                                        "dropout",
                                        "unk_token",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "fuse_unk",
                                        "byte_fallback",
                                        "ignore_merges",
                                        "vocab",
                                        "merges",
                                        NULL};
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    bool flag = false;
    enum cld_status s = cld_json_known(model, where, known, err);
    const json_t *type = json_object_get(model, "type");
    if (s)
        return s;
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE")))
        return cld_fail(err, CLD_E_INPUT, "only byte-level BPE is supported", "%s: type is %s",
                        where,
                        json_is_string(type) ? json_string_value(type) : cld_json_kind(type));
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) == 0.0))
        return cld_fail(err, CLD_E_INPUT, "set dropout to null", "%s: dropout is not supported",
                        where);
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_object_get(model, affixes[i]);
        if (v && !json_is_null(v) && !(json_is_string(v) && !json_string_length(v)))
            return cld_fail(err, CLD_E_INPUT, "only byte-level BPE is supported",
                            "%s: %s is not supported", where, affixes[i]);
    }
    /* unk_token, fuse_unk and byte_fallback only speak of text without tokens, and a byte without
     * one is an error here when it is met; so they may be whatever they are, of the right type. */
    const json_t *unk = json_object_get(model, "unk_token");
    if (unk && !json_is_null(unk) && !json_is_string(unk))
        return cld_fail(err, CLD_E_INPUT,
                        "the tokenizer is damaged, or needs something that cldraft does not "
                        "support; download it again or use another target",
                        "%s: \"unk_token\" is %s, it must be a string", where, cld_json_kind(unk));
    if ((s = cld_json_bool(model, where, "fuse_unk", &flag, err)) ||
        (s = cld_json_bool(model, where, "byte_fallback", &flag, err)))
        return s;
    return cld_json_bool(model, where, "ignore_merges", &b->ignore_merges, err);
}

static enum cld_status read_token(struct cld_bpe *b, const char *spelling, const json_t *value,
                                  struct cld_error *err)
{
    size_t n = strlen(spelling);
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id < 0 || id >= MAX_ID || !n || n > 1 << 20)
        return cld_fail(err, CLD_E_INPUT,
                        "the tokenizer is damaged, or needs something that cldraft does not "
                        "support; download it again or use another target",
                        "tokenizer vocab: \"%.60s\" has no usable id, it is "
                        "%s",
                        spelling, cld_json_kind(value));
    size_t n_known = (size_t)(b->max_id + 1);
    if (id > b->max_id) {
        enum cld_status s =
            cld_grow(&b->tokens, &b->cap_tokens, (size_t)id + 1, sizeof *b->tokens, err);
        if (s)
            return s;
        memset(b->tokens + n_known, 0, ((size_t)id + 1 - n_known) * sizeof *b->tokens);
        b->max_id = (int32_t)id;
    }
    struct token *t = &b->tokens[id];
    if (t->n)
        return cld_fail(err, CLD_E_INPUT,
                        "the tokenizer is damaged, or needs something that cldraft does not "
                        "support; download it again or use another target",
                        "tokenizer vocab: id %lld is both \"%.*s\" and "
                        "\"%.60s\"",
                        (long long)id, (int)cld_min(t->n, 60), b->text + t->at, spelling);
    enum cld_status s = cld_grow(&b->text, &b->cap_text, b->n_text + n, 1, err);
    if (s)
        return s;
    memcpy(b->text + b->n_text, spelling, n);
    *t = (struct token){(uint32_t)b->n_text, (uint32_t)n, 0};
    for (size_t i = 0; i < n; i++) /* a character of the byte alphabet stands for one byte */
        t->n_bytes += ((unsigned char)spelling[i] & 0xc0) != 0x80;
    b->n_text += n;
    b->n_tokens++;
    return b->n_text < UINT32_MAX
               ? CLD_OK
               : cld_fail(err, CLD_E_INPUT,
                          "the tokenizer is damaged, or needs something that cldraft does not "
                          "support; download it again or use another target",
                          "tokenizer vocab is too large");
}

static enum cld_status read_vocab(struct cld_bpe *b, const json_t *vocab, struct cld_error *err)
{
    if (!json_is_object(vocab) || !json_object_size(vocab))
        return cld_fail(err, CLD_E_INPUT,
                        "the tokenizer is damaged, or needs something that cldraft does not "
                        "support; download it again or use another target",
                        "tokenizer model: \"vocab\" is %s, it must be an "
                        "object with tokens",
                        json_is_object(vocab) ? "empty" : cld_json_kind(vocab));
    json_t *v = (json_t *)(uintptr_t)vocab;
    for (void *it = json_object_iter(v); it; it = json_object_iter_next(v, it)) {
        enum cld_status s =
            read_token(b, json_object_iter_key(it), json_object_iter_value(it), err);
        if (s)
            return s;
    }
    b->names_mask = table_mask(b->n_tokens);
    b->names = malloc((b->names_mask + 1) * sizeof *b->names);
    if (!b->names)
        return cld_fail_memory(err, "%zu tokens", b->n_tokens);
    memset(b->names, 0xff, (b->names_mask + 1) * sizeof *b->names);
    for (int32_t id = 0; id <= b->max_id; id++)
        if (b->tokens[id].n)
            b->names[name_slot(b, b->text + b->tokens[id].at, b->tokens[id].n)] = id;
    for (uint32_t byte = 0; byte < 256; byte++) {
        char text[4];
        b->of_byte[byte] = cld_bpe_find(b, text, cld_utf8_put(character_of(byte), text));
    }
    return CLD_OK;
}

/* "left right", or ["left", "right"]. */
static enum cld_status split_merge(const json_t *merge, size_t index, const char *part[2],
                                   size_t n[2], struct cld_error *err)
{
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        for (size_t i = 0; i < 2; i++) {
            part[i] = json_string_value(json_array_get(merge, i));
            n[i] = json_string_length(json_array_get(merge, i));
        }
    } else {
        const char *text = json_string_value(merge), *space = text ? strchr(text, ' ') : NULL;
        part[0] = part[1] = NULL;
        if (space && !strchr(space + 1, ' ')) {
            part[0] = text;
            part[1] = space + 1;
            n[0] = (size_t)(space - text);
            n[1] = json_string_length(merge) - n[0] - 1;
        }
    }
    if (!part[0] || !part[1])
        return cld_fail(err, CLD_E_INPUT, "a merge is \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]",
                        "tokenizer merges: entry %zu is not a pair of tokens", index);
    return CLD_OK;
}

static enum cld_status read_merge(struct cld_bpe *b, const json_t *merge, size_t index,
                                  struct cld_error *err)
{
    const char *part[2];
    size_t n[2];
    int32_t id[3];
    char *both = NULL;
    enum cld_status s = split_merge(merge, index, part, n, err);
    if (s)
        return s;
    both = malloc(n[0] + n[1] + 1);
    if (!both)
        return cld_fail_memory(err, "merge %zu", index);
    memcpy(both, part[0], n[0]);
    memcpy(both + n[0], part[1], n[1]);
    id[0] = cld_bpe_find(b, part[0], n[0]);
    id[1] = cld_bpe_find(b, part[1], n[1]);
    id[2] = cld_bpe_find(b, both, n[0] + n[1]);
    if (id[0] < 0 || id[1] < 0 || id[2] < 0) {
        s = cld_fail(err, CLD_E_INPUT,
                     "the tokenizer is damaged, or needs something that cldraft does not support; "
                     "download it again or use another target",
                     "tokenizer merges: entry %zu joins \"%.*s\" and "
                     "\"%.*s\", but \"%.*s\" is not in the vocabulary",
                     index, (int)cld_min(n[0], 60), part[0], (int)cld_min(n[1], 60), part[1],
                     (int)cld_min(id[0] < 0   ? n[0]
                                  : id[1] < 0 ? n[1]
                                              : n[0] + n[1],
                                  120),
                     id[0] < 0   ? part[0]
                     : id[1] < 0 ? part[1]
                                 : both);
        goto done;
    }
    uint64_t pair = pair_of(id[0], id[1]), hash = cld_mix64(pair), bit = hash % MAYBE_BITS;
    *merge_slot(b, pair, hash) = (struct merge){pair, (uint32_t)index, id[2]}; /* last one counts */
    b->maybe[bit / 64] |= (uint64_t)1 << bit % 64;
done:
    free(both);
    return s;
}

static enum cld_status read_merges(struct cld_bpe *b, const json_t *model, struct cld_error *err)
{
    const json_t *merges;
    enum cld_status s = cld_json_array(model, "tokenizer model", "merges", &merges, err);
    if (s)
        return s;
    size_t n = json_array_size(merges);
    b->merges_mask = table_mask(n);
    b->merges = malloc((b->merges_mask + 1) * sizeof *b->merges);
    b->maybe = calloc(MAYBE_BITS / 64, sizeof *b->maybe);
    if (!b->merges || !b->maybe || n >= UINT32_MAX)
        return cld_fail_memory(err, "%zu merges", n);
    for (size_t i = 0; i <= b->merges_mask; i++)
        b->merges[i].pair = UINT64_MAX;
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(merges, i);
        if (json_is_string(m) && !strncmp(json_string_value(m), "#version", 8))
            continue; /* the first line of a merges.txt, which some converters keep */
        if ((s = read_merge(b, m, i, err)))
            return s;
    }
    return CLD_OK;
}

enum cld_status cld_bpe_new(const json_t *model, struct cld_bpe **out, struct cld_error *err)
{
    enum cld_status s;
    *out = NULL;
    struct cld_bpe *b = calloc(1, sizeof *b);
    if (!b)
        return cld_fail_memory(err, "a tokenizer model");
    b->max_id = -1;
    if ((s = read_options(b, model, err)) ||
        (s = read_vocab(b, json_object_get(model, "vocab"), err)) ||
        (s = read_merges(b, model, err)))
        goto done;
    *out = b;
    b = NULL;
done:
    cld_bpe_free(b);
    return s;
}

/* ---- merging ---- */

struct symbol {
    int32_t id; /* -1: swallowed by its left neighbour */
    uint32_t previous, next;
};

/* A pair that may be merged: the lowest key first, that is by rank and then from left to right. */
struct candidate {
    uint64_t key; /* rank << 32 | position of the left symbol */
    uint64_t pair;
    int32_t id;
};

struct cached {
    uint8_t n_bytes, n_ids; /* 0: an empty slot */
    char bytes[CACHED_BYTES];
    int32_t ids[CACHED_IDS];
};

struct cld_bpe_work {
    struct cached *cache; /* [CACHE_SLOTS], by hash of the word, a newer word replaces an older */
    const struct cld_bpe *cached_of;
    struct symbol *symbols;
    struct candidate *heap;
    int32_t *ids;
    char *spelling;
    size_t cap_symbols, cap_heap, cap_ids, cap_spelling, n_heap;
};

enum { NONE = -1 };

void cld_bpe_work_free(struct cld_bpe_work *w)
{
    if (!w)
        return;
    free(w->cache);
    free(w->symbols);
    free(w->heap);
    free(w->ids);
    free(w->spelling);
    free(w);
}

enum cld_status cld_bpe_work_new(struct cld_bpe_work **out, struct cld_error *err)
{
    *out = calloc(1, sizeof **out);
    if (*out)
        (*out)->cache = calloc(CACHE_SLOTS, sizeof *(*out)->cache);
    if (!*out || !(*out)->cache) {
        cld_bpe_work_free(*out);
        *out = NULL;
        return cld_fail_memory(err, "a word cache of %zu bytes",
                               CACHE_SLOTS * sizeof(struct cached));
    }
    return CLD_OK;
}

static void heap_sink(struct candidate *heap, size_t n, size_t i)
{
    struct candidate c = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && heap[child + 1].key < heap[child].key;
        if (c.key <= heap[child].key)
            break;
        heap[i] = heap[child];
    }
    heap[i] = c;
}

static void heap_push(struct cld_bpe_work *w, struct candidate c)
{
    size_t i = w->n_heap++;
    for (; i && c.key < w->heap[(i - 1) / 2].key; i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
}

/* The pair of the symbols at `left` and `right`, if it can be merged. */
static bool candidate_of(const struct cld_bpe *b, const struct symbol *symbols, uint32_t left,
                         uint32_t right, struct candidate *c)
{
    uint64_t pair = pair_of(symbols[left].id, symbols[right].id);
    uint64_t hash = cld_mix64(pair);
    if (!maybe_merged(b, hash))
        return false;
    const struct merge *m = merge_slot(b, pair, hash);
    if (m->pair != pair)
        return false;
    *c = (struct candidate){(uint64_t)m->rank << 32 | left, pair, m->id};
    return true;
}

/* Merges symbols[0..n) until no pair is left. Each merge drops one symbol and adds at most two
 * candidates, so n log n steps suffice however long the word is. */
static void merge_all(const struct cld_bpe *b, struct cld_bpe_work *w, uint32_t n)
{
    struct symbol *symbols = w->symbols;
    struct candidate c;
    w->n_heap = 0;
    for (uint32_t i = 0; i + 1 < n; i++)
        if (candidate_of(b, symbols, i, i + 1, &c))
            w->heap[w->n_heap++] = c;
    for (size_t i = w->n_heap / 2; i-- > 0;)
        heap_sink(w->heap, w->n_heap, i);
    while (w->n_heap) {
        c = w->heap[0];
        w->heap[0] = w->heap[--w->n_heap];
        heap_sink(w->heap, w->n_heap, 0);
        uint32_t left = (uint32_t)c.key, right = symbols[left].next;
        /* Either symbol may have changed since the candidate was noted. */
        if (symbols[left].id < 0 || right == n ||
            pair_of(symbols[left].id, symbols[right].id) != c.pair)
            continue;
        symbols[left].id = c.id;
        symbols[left].next = symbols[right].next;
        symbols[right].id = NONE;
        if (symbols[left].next != n) {
            symbols[symbols[left].next].previous = left;
            if (candidate_of(b, symbols, left, symbols[left].next, &c))
                heap_push(w, c);
        }
        if (left && candidate_of(b, symbols, symbols[left].previous, left, &c))
            heap_push(w, c);
    }
}

/* The token that is the whole word, or -1. */
static enum cld_status whole_word(const struct cld_bpe *b, struct cld_bpe_work *w, const char *word,
                                  size_t n, int32_t *id, struct cld_error *err)
{
    size_t len = 0;
    enum cld_status s = cld_grow(&w->spelling, &w->cap_spelling, cld_mul(n, 2), 1, err);
    if (s)
        return s;
    for (size_t i = 0; i < n; i++)
        len += cld_utf8_put(character_of((unsigned char)word[i]), w->spelling + len);
    *id = cld_bpe_find(b, w->spelling, len);
    return CLD_OK;
}

static enum cld_status tokenize(const struct cld_bpe *b, struct cld_bpe_work *w, const char *word,
                                size_t n, size_t *n_ids, struct cld_error *err)
{
    enum cld_status s;
    if (n >= UINT32_MAX / 4)
        return cld_fail(err, CLD_E_INPUT, "split the text into shorter rows",
                        "a word of %zu bytes is too long for the tokenizer", n);
    if ((s = cld_grow(&w->ids, &w->cap_ids, n, sizeof *w->ids, err)))
        return s;
    if (b->ignore_merges) {
        if ((s = whole_word(b, w, word, n, &w->ids[0], err)))
            return s;
        *n_ids = 1;
        if (w->ids[0] >= 0)
            return CLD_OK;
    }
    if ((s = cld_grow(&w->symbols, &w->cap_symbols, n, sizeof *w->symbols, err)) ||
        (s = cld_grow(&w->heap, &w->cap_heap, 3 * n, sizeof *w->heap, err)))
        return s;
    for (uint32_t i = 0; i < n; i++) {
        int32_t id = b->of_byte[(unsigned char)word[i]];
        if (id < 0)
            return cld_fail(err, CLD_E_INPUT, "the tokenizer was made for other text",
                            "the vocabulary has no token for byte 0x%02X", (unsigned char)word[i]);
        w->symbols[i] = (struct symbol){id, i - 1, i + 1};
    }
    merge_all(b, w, (uint32_t)n);
    *n_ids = 0;
    for (uint32_t i = 0; i < n; i = w->symbols[i].next)
        w->ids[(*n_ids)++] = w->symbols[i].id;
    return CLD_OK;
}

enum cld_status cld_bpe_word(const struct cld_bpe *b, struct cld_bpe_work *w, const char *word,
                             size_t n, const int32_t **ids, size_t *n_ids, struct cld_error *err)
{
    struct cached *slot = NULL;
    if (w->cached_of != b) { /* the cache speaks of one model */
        memset(w->cache, 0, CACHE_SLOTS * sizeof *w->cache);
        w->cached_of = b;
    }
    if (n <= CACHED_BYTES) {
        slot = &w->cache[hash_bytes(word, n) % CACHE_SLOTS];
        if (slot->n_bytes == n && !memcmp(slot->bytes, word, n)) {
            *ids = slot->ids;
            *n_ids = slot->n_ids;
            return CLD_OK;
        }
    }
    enum cld_status s = tokenize(b, w, word, n, n_ids, err);
    if (s)
        return s;
    *ids = w->ids;
    if (slot && *n_ids <= CACHED_IDS) {
        slot->n_bytes = (uint8_t)n;
        slot->n_ids = (uint8_t)*n_ids;
        memcpy(slot->bytes, word, n);
        memcpy(slot->ids, w->ids, *n_ids * sizeof *w->ids);
    }
    return CLD_OK;
}
