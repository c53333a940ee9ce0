#include "data/ready_row.h"

#include <string.h>

#include "base/grow.h"
#include "base/size.h"
#include "formats/json_read.h"

enum { NOT_LEARNED = -100 }; /* a label */

static const char *const mask_keys[] = {"loss_mask", "completion_mask", "assistant_mask",
                                        "assistant_masks", "labels"};
enum { N_MASKS = sizeof mask_keys / sizeof *mask_keys, LABELS = N_MASKS - 1 };

void cld_ready_row_release(struct cld_ready_row *row)
{
    if (!row)
        return;
    free(row->ids);
    free(row->mask);
    free(row->starts);
    *row = (struct cld_ready_row){0};
}

static const json_t *given(const json_t *row, const char *key)
{
    const json_t *v = json_object_get(row, key);
    return json_is_null(v) ? NULL : v;
}

bool cld_is_ready_row(const json_t *row)
{
    if (!given(row, "input_ids"))
        return false;
    for (size_t i = 0; i < N_MASKS; i++)
        if (given(row, mask_keys[i]))
            return true;
    return false;
}

static enum cld_status no_memory(size_t n, struct cld_error *err)
{
    return cld_fail_memory(err, "a row of %zu tokens", n);
}

/* The whole numbers of a list; [n] if n is not SIZE_MAX. malloc'd. */
static enum cld_status numbers(const json_t *row, const char *key, size_t n, int64_t **out,
                               struct cld_row_reading *r, struct cld_error *err)
{
    const json_t *list = json_object_get(row, key);
    size_t n_list = json_array_size(list);
    *out = NULL;
    if (!json_is_array(list))
        return cld_row_refuse(r, CLD_ROW_BAD_SHAPE, key, err,
                              "%s must be an array of numbers, it is %s", key, cld_json_kind(list));
    if (n != SIZE_MAX && n_list != n)
        return cld_row_refuse(r, CLD_ROW_BAD_SHAPE, key, err,
                              "input_ids has %zu tokens and %s has %zu", n, key, n_list);
    if (!(*out = malloc(cld_mul(cld_max(1, n_list), sizeof **out))))
        return no_memory(n_list, err);
    for (size_t i = 0; i < n_list; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) && !json_is_boolean(v))
            return cld_row_refuse(r, CLD_ROW_BAD_SHAPE, key, err,
                                  "%s[%zu] must be a whole number, it is %s", key, i,
                                  cld_json_kind(v));
        (*out)[i] = json_is_boolean(v) ? json_is_true(v) : json_integer_value(v);
    }
    return CLD_OK;
}

/* ---- ids, and what is learned ---- */

static enum cld_status read_ids(const json_t *row, struct cld_ready_row *out,
                                struct cld_row_reading *r, struct cld_error *err)
{
    const json_t *list = json_object_get(row, "input_ids");
    size_t n = json_array_size(list);
    enum cld_status s;
    if (!json_is_array(list))
        return cld_row_refuse(r, CLD_ROW_BAD_SHAPE, "input_ids", err,
                              "input_ids must be an array, it is %s", cld_json_kind(list));
    if ((s = cld_grow(&out->ids, &out->cap_ids, n, sizeof *out->ids, err)) ||
        (s = cld_grow(&out->mask, &out->cap_mask, n, 1, err)) ||
        (s = cld_grow(&out->starts, &out->cap_starts, n, 1, err)))
        return s;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < 0 || v > INT32_MAX)
            return cld_row_refuse(r, CLD_ROW_BAD_SHAPE, "input_ids", err,
                                  "input_ids[%zu] is no token id", i);
        out->ids[i] = (int32_t)v;
    }
    out->n = n;
    return CLD_OK;
}

/* One of the keys that say what is learned, as 0 and 1 into v [n]. */
static enum cld_status to_mask(const struct cld_ready_row *row, size_t which, int64_t *v,
                               struct cld_row_reading *r, struct cld_error *err)
{
    const char *key = mask_keys[which];
    for (size_t i = 0; i < row->n; i++) {
        if (which == LABELS && v[i] != NOT_LEARNED && v[i] != row->ids[i])
            return cld_row_refuse(r, CLD_ROW_CONTRADICTORY, key, err,
                                  "labels[%zu] is %lld and input_ids[%zu] is %d: a label is -100 "
                                  "or the token itself",
                                  i, (long long)v[i], i, row->ids[i]);
        if (which == LABELS)
            v[i] = v[i] != NOT_LEARNED;
        else if (v[i] != 0 && v[i] != 1)
            return cld_row_refuse(r, CLD_ROW_BAD_SHAPE, key, err, "%s[%zu] is neither 0 nor 1", key,
                                  i);
    }
    return CLD_OK;
}

static size_t n_ones(const uint8_t *mask, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += mask[i];
    return sum;
}

/* Keys that are given must say the same. */
static enum cld_status read_mask(const json_t *row, struct cld_ready_row *out,
                                 struct cld_row_reading *r, struct cld_error *err)
{
    const char *first = NULL;
    enum cld_status s = CLD_OK;
    for (size_t k = 0; k < N_MASKS && !s; k++) {
        int64_t *v = NULL;
        size_t n_other = 0, n_differ = 0;
        if (!given(row, mask_keys[k]))
            continue;
        if ((s = numbers(row, mask_keys[k], out->n, &v, r, err)) ||
            (s = to_mask(out, k, v, r, err))) {
            free(v);
            return s;
        }
        for (size_t i = 0; i < out->n; i++) {
            n_other += v[i] == 1;
            n_differ += first && out->mask[i] != v[i];
            if (!first)
                out->mask[i] = (uint8_t)v[i];
        }
        if (n_differ)
            s = cld_row_refuse(r, CLD_ROW_CONTRADICTORY, mask_keys[k], err,
                               "%s and %s contradict: %s has %zu learned tokens and %s %zu, %zu "
                               "tokens differ",
                               first, mask_keys[k], first, n_ones(out->mask, out->n), mask_keys[k],
                               n_other, n_differ);
        first = first ? first : mask_keys[k];
        free(v);
    }
    return s;
}

/* ---- padding ---- */

/* The tokens [begin, end) that are no padding, and documents if attention_mask numbers them. */
static enum cld_status read_attention(const json_t *row, struct cld_ready_row *out, size_t *begin,
                                      size_t *end, bool *numbered, struct cld_row_reading *r,
                                      struct cld_error *err)
{
    static const char *const key = "attention_mask";
    int64_t *v = NULL;
    *begin = 0;
    *end = out->n;
    *numbered = false;
    if (!given(row, key))
        return CLD_OK;
    enum cld_status s = numbers(row, key, out->n, &v, r, err);
    if (s)
        goto done;
    while (*begin < *end && !v[*begin])
        ++*begin;
    while (*end > *begin && !v[*end - 1])
        --*end;
    for (size_t i = 0; i < out->n && !s; i++) {
        bool inside = i >= *begin && i < *end;
        int64_t last = inside && i > *begin ? v[i - 1] : 1;
        if (inside && !v[i])
            s = cld_row_refuse(r, CLD_ROW_UNSUPPORTED, key, err,
                               "attention_mask[%zu] is 0 between tokens: only padding at the ends "
                               "is taken off",
                               i);
        else if (!inside && out->mask[i])
            s = cld_row_refuse(r, CLD_ROW_CONTRADICTORY, key, err,
                               "token %zu is learned, and attention_mask says that it is padding",
                               i);
        else if (inside && v[i] != last && v[i] != last + 1)
            s = cld_row_refuse(r, CLD_ROW_BAD_SHAPE, key, err,
                               "attention_mask[%zu] is %lld after %lld: it is 0 and 1, or counts "
                               "documents up from 1",
                               i, (long long)v[i], (long long)last);
        *numbered |= inside && v[i] > 1;
    }
done:
    free(v);
    return s;
}

static void take_off(struct cld_ready_row *row, size_t begin, size_t end)
{
    row->n = end - begin;
    memmove(row->ids, row->ids + begin, row->n * sizeof *row->ids);
    memmove(row->mask, row->mask + begin, row->n);
}

/* ---- documents ---- */

enum kind { BY_NUMBER, BY_POSITION, BY_LENGTH, BY_BORDER, BY_START };

static const struct {
    const char *key;
    enum kind kind;
} document_keys[] = {
    {"attention_mask", BY_NUMBER},   {"position_ids", BY_POSITION}, {"seq_lens", BY_LENGTH},
    {"sequence_lengths", BY_LENGTH}, {"cu_seqlens", BY_BORDER},     {"cu_seq_lens", BY_BORDER},
    {"cu_seq_lens_q", BY_BORDER},    {"cu_seq_lens_k", BY_BORDER},  {"seq_start_id", BY_START},
    {"seq_idx", BY_NUMBER},          {"segment_ids", BY_NUMBER},    {"document_ids", BY_NUMBER}};

/* Numbers of each token [n]: where do documents begin? */
static enum cld_status by_token(const char *key, enum kind kind, const int64_t *v, size_t n,
                                uint8_t *starts, struct cld_row_reading *r, struct cld_error *err)
{
    for (size_t i = 0; i < n; i++) {
        bool goes_on = i && v[i] == v[i - 1] + (kind == BY_POSITION);
        starts[i] = kind == BY_POSITION ? v[i] == 0 : !goes_on;
        if (kind == BY_POSITION && !starts[i] && !goes_on)
            return cld_row_refuse(r, CLD_ROW_UNSUPPORTED, key, err,
                                  "position_ids[%zu] is %lld%s: positions start at 0 and go up by "
                                  "one",
                                  i, (long long)v[i], i ? "" : ", the first");
        if (kind == BY_NUMBER && i && v[i] < v[i - 1])
            return cld_row_refuse(r, CLD_ROW_UNSUPPORTED, key, err,
                                  "%s[%zu] is %lld after %lld: documents stand one after the other",
                                  key, i, (long long)v[i], (long long)v[i - 1]);
    }
    return CLD_OK;
}

/* Lengths, borders or beginnings [n_list] of n tokens. */
static enum cld_status by_list(const char *key, enum kind kind, const int64_t *v, size_t n_list,
                               size_t n, uint8_t *starts, struct cld_row_reading *r,
                               struct cld_error *err)
{
    int64_t at = 0, last = kind == BY_LENGTH ? 0 : -1;
    memset(starts, 0, n);
    for (size_t i = 0; i < n_list; i++) {
        bool closes = kind == BY_BORDER && i + 1 == n_list;
        at = kind == BY_LENGTH ? at : v[i];
        bool bad = kind == BY_LENGTH ? v[i] < 1 || v[i] > (int64_t)n - at
                                     : (!i && at) || at <= last || at > (int64_t)n ||
                                           (!closes && at == (int64_t)n);
        if (bad)
            return cld_row_refuse(r, CLD_ROW_BAD_SHAPE, key, err,
                                  "%s[%zu] is %lld, it does not fit a row of %zu tokens", key, i,
                                  (long long)v[i], n);
        if (!closes)
            starts[at] = 1;
        last = at;
        at += kind == BY_LENGTH ? v[i] : 0;
    }
    if ((kind == BY_LENGTH && at != (int64_t)n) || (kind == BY_BORDER && last != (int64_t)n))
        return cld_row_refuse(r, CLD_ROW_BAD_SHAPE, key, err,
                              "%s ends at token %lld of a row of %zu tokens", key,
                              (long long)(kind == BY_LENGTH ? at : last), n);
    if (!starts[0])
        return cld_row_refuse(r, CLD_ROW_BAD_SHAPE, key, err, "%s is empty", key);
    return CLD_OK;
}

/* The documents by one key, to starts [row->n]. The row had n_all tokens before the padding was
 * taken off, which numbers of each token count too. */
static enum cld_status read_documents(const json_t *row, size_t which, size_t begin, size_t n_all,
                                      size_t n, uint8_t *starts, struct cld_row_reading *r,
                                      struct cld_error *err)
{
    const char *key = document_keys[which].key;
    enum kind kind = document_keys[which].kind;
    bool by_tokens = kind == BY_NUMBER || kind == BY_POSITION;
    int64_t *v = NULL;
    enum cld_status s = numbers(row, key, by_tokens ? n_all : SIZE_MAX, &v, r, err);
    if (!s && by_tokens)
        s = by_token(key, kind, v + begin, n, starts, r, err);
    else if (!s)
        s = by_list(key, kind, v, json_array_size(json_object_get(row, key)), n, starts, r, err);
    free(v);
    return s;
}

/* Every key that says something about documents; they must say the same. */
static enum cld_status find_documents(const json_t *row, struct cld_ready_row *out, size_t begin,
                                      size_t n_all, bool numbered, struct cld_row_reading *r,
                                      struct cld_error *err)
{
    const char *first = NULL;
    enum cld_status s = CLD_OK;
    uint8_t *starts = malloc(cld_max(1, out->n));
    if (!starts)
        return no_memory(out->n, err);
    memset(out->starts, 0, out->n);
    out->starts[0] = 1;
    for (size_t k = 0; k < sizeof document_keys / sizeof *document_keys && !s; k++) {
        const char *key = document_keys[k].key;
        if (!given(row, key) || (!k && !numbered))
            continue;
        if ((s = read_documents(row, k, begin, n_all, out->n, starts, r, err)))
            break;
        if (first && memcmp(starts, out->starts, out->n))
            s = cld_row_refuse(r, CLD_ROW_CONTRADICTORY, key, err,
                               "%s and %s contradict: %zu and %zu documents, or others", first, key,
                               n_ones(out->starts, out->n), n_ones(starts, out->n));
        memcpy(out->starts, starts, out->n);
        first = key;
    }
    free(starts);
    return s;
}

enum cld_status cld_ready_row_read(const json_t *row, struct cld_ready_row *out,
                                   struct cld_row_reading *r, struct cld_error *err)
{
    size_t begin, end, n_all;
    bool numbered;
    enum cld_status s;
    out->n = out->n_documents = 0;
    if ((s = cld_row_keys_check(row, CLD_KEY_OF_IDS, "", r, err)) ||
        (s = read_ids(row, out, r, err)))
        return s;
    n_all = out->n;
    if ((s = read_mask(row, out, r, err)) ||
        (s = read_attention(row, out, &begin, &end, &numbered, r, err)))
        return s;
    take_off(out, begin, end);
    if (!out->n)
        return CLD_OK;
    if ((s = find_documents(row, out, begin, n_all, numbered, r, err)))
        return s;
    out->n_documents = n_ones(out->starts, out->n);
    return CLD_OK;
}
