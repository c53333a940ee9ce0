#include "formats/safetensors_header.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/grow.h"
#include "base/size.h"

#define MAX_JSON_DEPTH 4
/* A tensor's entry has at most 15 commas and opening brackets; the rest is for metadata. */
#define MAX_JSON_VALUES (20u * CLD_SAFETENSORS_MAX_TENSORS)

/* The types of the format (its README and Rust source), ours with their enum. */
static const struct file_dtype {
    const char *name;
    size_t bits;
    int ours; /* enum cld_dtype, or -1 */
} file_dtypes[] = {
    {"BF16", 16, CLD_BF16}, {"F16", 16, CLD_F16}, {"F32", 32, CLD_F32},   {"I32", 32, CLD_I32},
    {"I64", 64, CLD_I64},   {"U8", 8, CLD_U8},    {"BOOL", 8, -1},        {"F4", 4, -1},
    {"F6_E2M3", 6, -1},     {"F6_E3M2", 6, -1},   {"I8", 8, -1},          {"F8_E5M2", 8, -1},
    {"F8_E4M3", 8, -1},     {"F8_E8M0", 8, -1},   {"F8_E4M3FNUZ", 8, -1}, {"F8_E5M2FNUZ", 8, -1},
    {"I16", 16, -1},        {"U16", 16, -1},      {"U32", 32, -1},        {"F64", 64, -1},
    {"U64", 64, -1},        {"C64", 64, -1},
};

static const struct file_dtype *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof file_dtypes / sizeof *file_dtypes; i++)
        if (!strcmp(file_dtypes[i].name, name))
            return &file_dtypes[i];
    return NULL;
}

enum cld_status cld_safetensors_refuse(struct cld_error *err, const char *path, const char *name,
                                       const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return cld_fail(err, CLD_E_INPUT, HINT_DAMAGED, "%.300s: tensor %.128s: %s", path, name, text);
}

/* jansson builds the whole tree before anything of ours looks at it, at tens of bytes a value; so
 * what a hostile text may cost is bounded first: nesting, and the number of values. */
static enum cld_status bound_json(const char *path, const char *text, size_t n_bytes,
                                  struct cld_error *err)
{
    bool in_string = false;
    size_t depth = 0, n_values = 1;
    for (size_t i = 0; i < n_bytes; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            n_values++;
            if (++depth > MAX_JSON_DEPTH)
                return cld_fail(err, CLD_E_INPUT, HINT_DAMAGED,
                                "%s: JSON nested deeper than %d at byte %zu", path, MAX_JSON_DEPTH,
                                i);
        } else if (c == '}' || c == ']') {
            depth -= depth > 0;
        } else if (c == ',') {
            n_values++;
        }
    }
    if (n_values > MAX_JSON_VALUES)
        return cld_fail(err, CLD_E_INPUT, HINT_DAMAGED, "%s: %zu JSON values, at most %u are read",
                        path, n_values, MAX_JSON_VALUES);
    return CLD_OK;
}

/* Text to a JSON object; jansson checks UTF-8, duplicate keys, and that nothing but white space
 * follows. *out is released with json_decref. */
enum cld_status cld_safetensors_parse_object(const char *path, const char *text, size_t n_bytes,
                                             json_t **out, struct cld_error *err)
{
    json_error_t e;
    *out = NULL;
    enum cld_status s = bound_json(path, text, n_bytes, err);
    if (s)
        return s;
    *out = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &e);
    if (!*out)
        return cld_fail(err, CLD_E_INPUT, HINT_DAMAGED, "%s: bad JSON, line %d column %d: %s", path,
                        e.line, e.column, e.text);
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return cld_fail(err, CLD_E_INPUT, HINT_DAMAGED, "%s: the JSON is not an object", path);
    }
    return CLD_OK;
}

/* {"key": "value", ...} of __metadata__, added to what earlier shards said. */
static enum cld_status take_metadata(struct cld_safetensors *st, const char *path, json_t *from,
                                     struct cld_error *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(from))
        return cld_fail(err, CLD_E_INPUT, HINT_DAMAGED, "%s: __metadata__ is not an object", path);
    json_object_foreach (from, key, value)
        if (!json_is_string(value))
            return cld_fail(err, CLD_E_INPUT, HINT_DAMAGED,
                            "%s: __metadata__ entry %.128s is not a string", path, key);
    if (json_object_update_missing(st->metadata, from))
        return cld_fail_memory(err, "the metadata of %s", path);
    return CLD_OK;
}

/* Sizes from the shape and the type, each step checked. */
static enum cld_status measure(const char *path, struct cld_safetensor *t, size_t bits,
                               struct cld_error *err)
{
    t->n_elems = 1;
    for (size_t d = 0; d < t->n_dims; d++) {
        t->n_elems = cld_mul(t->n_elems, t->shape[d]);
        if (!cld_size_ok(t->n_elems))
            return cld_safetensors_refuse(err, path, t->name,
                                          "the product of its shape overflows at %zu", t->shape[d]);
    }
    size_t n_bits = cld_mul(t->n_elems, bits);
    if (!cld_size_ok(n_bits))
        return cld_safetensors_refuse(err, path, t->name, "%zu elements of %zu bits overflow",
                                      t->n_elems, bits);
    if (n_bits % 8)
        return cld_safetensors_refuse(err, path, t->name,
                                      "%zu elements of %zu bits do not fill whole bytes",
                                      t->n_elems, bits);
    t->n_bytes = n_bits / 8;
    return CLD_OK;
}

/* A non-negative integer; jansson has refused what is beyond int64. */
static bool take_size(const json_t *v, size_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *out = (size_t)json_integer_value(v);
    return true;
}

/* One entry of the header into *t, t->name already set. */
static enum cld_status take_tensor(const struct cld_safetensors_shard *shard, json_t *entry,
                                   struct cld_safetensor *t, struct cld_error *err)
{
    const char *path = shard->path, *name = t->name;
    size_t begin, end;
    if (!json_is_object(entry))
        return cld_safetensors_refuse(err, path, name, "its entry is not an object");
    const json_t *dtype = json_object_get(entry, "dtype");
    const json_t *shape = json_object_get(entry, "shape");
    const json_t *range = json_object_get(entry, "data_offsets");
    if (!json_is_string(dtype) || !json_is_array(shape) || !json_is_array(range))
        return cld_safetensors_refuse(err, path, name,
                                      "needs dtype (a string), shape and data_offsets (arrays)");
    /* A further field could change what the bytes mean. */
    if (json_object_size(entry) != 3)
        return cld_safetensors_refuse(err, path, name,
                                      "has %zu fields, not dtype, shape, data_offsets alone",
                                      json_object_size(entry));

    const struct file_dtype *type = find_dtype(json_string_value(dtype));
    if (!type)
        return cld_safetensors_refuse(err, path, name, "unknown dtype %.32s",
                                      json_string_value(dtype));
    t->dtype_name = type->name;
    t->readable = type->ours >= 0;
    if (t->readable)
        t->dtype = (enum cld_dtype)type->ours;

    t->n_dims = json_array_size(shape);
    if (t->n_dims > CLD_SAFETENSORS_MAX_DIMS)
        return cld_safetensors_refuse(err, path, name, "%zu dimensions, at most %d are read",
                                      t->n_dims, CLD_SAFETENSORS_MAX_DIMS);
    for (size_t d = 0; d < t->n_dims; d++)
        if (!take_size(json_array_get(shape, d), &t->shape[d]))
            return cld_safetensors_refuse(err, path, name,
                                          "shape[%zu] is not a non-negative integer", d);
    enum cld_status s = measure(path, t, type->bits, err);
    if (s)
        return s;

    if (json_array_size(range) != 2 || !take_size(json_array_get(range, 0), &begin) ||
        !take_size(json_array_get(range, 1), &end))
        return cld_safetensors_refuse(err, path, name,
                                      "data_offsets is not two non-negative integers");
    if (begin > end)
        return cld_safetensors_refuse(err, path, name, "data_offsets [%zu, %zu] run backwards",
                                      begin, end);
    if (end > shard->data_bytes)
        return cld_safetensors_refuse(
            err, path, name, "data_offsets [%zu, %zu] reach past the %" PRIu64 " bytes of data",
            begin, end, shard->data_bytes);
    if (end - begin != t->n_bytes)
        return cld_safetensors_refuse(
            err, path, name, "data_offsets [%zu, %zu] hold %zu bytes, its shape and %s need %zu",
            begin, end, end - begin, t->dtype_name, t->n_bytes);
    t->offset_bytes = shard->data_start + begin;
    return CLD_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct cld_safetensor *const *x = a, *const *y = b;
    if ((*x)->offset_bytes != (*y)->offset_bytes)
        return (*x)->offset_bytes < (*y)->offset_bytes ? -1 : 1;
    return ((*x)->n_bytes > (*y)->n_bytes) - ((*x)->n_bytes < (*y)->n_bytes); /* empty ones first */
}

/* The ranges of the tensors from `first` on must tile the data of their shard: no overlap, no hole,
 * no tail that another format could hide in. */
static enum cld_status check_tiling(const struct cld_safetensors *st, size_t first,
                                    const struct cld_safetensors_shard *shard,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = st->n_tensors - first;
    uint64_t at = shard->data_start, end = shard->data_start + shard->data_bytes;
    const struct cld_safetensor **order = malloc(cld_max(n, 1) * sizeof *order);
    if (!order)
        return cld_fail_memory(err, "checking %s", shard->path);
    for (size_t i = 0; i < n; i++)
        order[i] = &st->tensors[first + i];
    qsort(order, n, sizeof *order, by_offset);
    for (size_t i = 0; i < n; i++) {
        const struct cld_safetensor *t = order[i];
        if (t->offset_bytes != at) {
            s = cld_safetensors_refuse(err, shard->path, t->name,
                                       "its data begins at %" PRIu64
                                       ", the data before it ends at %" PRIu64 ": %s",
                                       t->offset_bytes - shard->data_start, at - shard->data_start,
                                       t->offset_bytes < at ? "an overlap" : "a hole");
            goto done;
        }
        at += t->n_bytes;
    }
    if (at != end)
        s = cld_fail(err, CLD_E_INPUT, HINT_DAMAGED,
                     "%s: %" PRIu64 " bytes of data after the last tensor", shard->path, end - at);
done:
    free(order);
    return s;
}

static enum cld_status add_tensor(struct cld_safetensors *st, size_t i_shard, const char *name,
                                  json_t *entry, struct cld_error *err)
{
    const struct cld_safetensors_shard *shard = &st->shards[i_shard];
    if (strlen(name) > CLD_SAFETENSORS_MAX_NAME_BYTES)
        return cld_safetensors_refuse(err, shard->path, name,
                                      "its name has %zu bytes, at most %d are read", strlen(name),
                                      CLD_SAFETENSORS_MAX_NAME_BYTES);
    if (st->n_tensors == CLD_SAFETENSORS_MAX_TENSORS)
        return cld_fail(err, CLD_E_INPUT, "split the file into shards with an index",
                        "%s: more than %u tensors", shard->path, CLD_SAFETENSORS_MAX_TENSORS);
    enum cld_status s =
        cld_grow(&st->tensors, &st->capacity, st->n_tensors + 1, sizeof *st->tensors, err);
    if (s)
        return s;
    struct cld_safetensor *t = &st->tensors[st->n_tensors];
    char *copy = cld_format("%s", name);
    *t = (struct cld_safetensor){.name = copy, .i_shard = i_shard};
    if (!copy)
        return cld_fail_memory(err, "a name of %s", shard->path);
    st->n_tensors++; /* close() frees the name from here on */
    return take_tensor(shard, entry, t, err);
}

/* The 8 bytes of length and the header text (NUL-terminated), from shard->fd. */
static enum cld_status read_header(struct cld_safetensors_shard *shard, uint64_t file_bytes,
                                   char **out, size_t *n_bytes, struct cld_error *err)
{
    uint64_t n;
    if (file_bytes < sizeof n)
        return cld_fail(err, CLD_E_INPUT, HINT_DAMAGED,
                        "%s: %" PRIu64 " bytes, too short for a safetensors file", shard->path,
                        file_bytes);
    enum cld_status s = cld_file_read_at(shard->fd, shard->path, 0, &n, sizeof n, err);
    if (s)
        return s;
    if (n > CLD_SAFETENSORS_MAX_HEADER_BYTES)
        return cld_fail(err, CLD_E_INPUT, HINT_DAMAGED,
                        "%s: claims a header of %" PRIu64 " bytes, at most %u are read",
                        shard->path, n, CLD_SAFETENSORS_MAX_HEADER_BYTES);
    if (n > file_bytes - sizeof n)
        return cld_fail(err, CLD_E_INPUT, HINT_DAMAGED,
                        "%s: claims a header of %" PRIu64 " bytes, the file has %" PRIu64,
                        shard->path, n, file_bytes);
    char *text = malloc(n + 1);
    if (!text)
        return cld_fail_memory(err, "the header of %s, %" PRIu64 " bytes", shard->path, n);
    if ((s = cld_file_read_at(shard->fd, shard->path, sizeof n, text, n, err))) {
        free(text);
        return s;
    }
    text[n] = 0;
    shard->data_start = sizeof n + n;
    shard->data_bytes = file_bytes - shard->data_start;
    *out = text;
    *n_bytes = n;
    return CLD_OK;
}

/* Opens one file as shard i (which takes over `path`) and adds its tensors. */
enum cld_status cld_safetensors_add_shard(struct cld_safetensors *st, size_t i, char *path,
                                          struct cld_error *err)
{
    struct cld_safetensors_shard *shard = &st->shards[i];
    char *text = NULL;
    json_t *header = NULL, *entry;
    const char *name;
    uint64_t file_bytes;
    size_t n_bytes = 0, first = st->n_tensors;
    *shard = (struct cld_safetensors_shard){.fd = -1, .path = path};
    st->n_shards = i + 1;
    if (!path)
        return cld_fail_memory(err, "opening %s", st->path);
    enum cld_status s = cld_file_open(path, &shard->fd, &file_bytes, err);
    if (s)
        return s;
    if ((s = read_header(shard, file_bytes, &text, &n_bytes, err)) ||
        (s = cld_safetensors_parse_object(path, text, n_bytes, &header, err)))
        goto done;
    json_object_foreach (header, name, entry) {
        s = strcmp(name, "__metadata__") ? add_tensor(st, i, name, entry, err)
                                         : take_metadata(st, path, entry, err);
        if (s)
            goto done;
    }
    s = check_tiling(st, first, shard, err);
done:
    json_decref(header);
    free(text);
    return s;
}
