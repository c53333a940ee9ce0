#include "formats/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/grow.h"
#include "base/size.h"

_Static_assert(sizeof(size_t) == 8, "sizes from files are kept in size_t");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files and memory alike");

#define MAX_JSON_DEPTH 4
/* A tensor's entry has at most 15 commas and opening brackets; the rest is for metadata. */
#define MAX_JSON_VALUES (20u * CLD_SAFETENSORS_MAX_TENSORS)

#define HINT_DAMAGED "the file is damaged or not a safetensors file; fetch or convert it again"

struct shard {
    int fd;
    char *path;
    uint64_t data_bytes, data_start; /* bytes after the header, and where they begin */
};

struct cld_safetensors {
    char *path; /* as opened: the file or the directory */
    struct shard *shards;
    size_t n_shards;
    struct cld_safetensor *tensors; /* sorted by name once open */
    size_t n_tensors, capacity;
    json_t *metadata; /* object of strings */
};

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

/* Refuses a file because of one tensor; a long path and name are cut to leave room for the rest. */
static enum cld_status bad_tensor(struct cld_error *err, const char *path, const char *name,
                                  const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static enum cld_status bad_tensor(struct cld_error *err, const char *path, const char *name,
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
static enum cld_status parse_object(const char *path, const char *text, size_t n_bytes,
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
            return bad_tensor(err, path, t->name, "the product of its shape overflows at %zu",
                              t->shape[d]);
    }
    size_t n_bits = cld_mul(t->n_elems, bits);
    if (!cld_size_ok(n_bits))
        return bad_tensor(err, path, t->name, "%zu elements of %zu bits overflow", t->n_elems,
                          bits);
    if (n_bits % 8)
        return bad_tensor(err, path, t->name, "%zu elements of %zu bits do not fill whole bytes",
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
static enum cld_status take_tensor(const struct shard *shard, json_t *entry,
                                   struct cld_safetensor *t, struct cld_error *err)
{
    const char *path = shard->path, *name = t->name;
    size_t begin, end;
    if (!json_is_object(entry))
        return bad_tensor(err, path, name, "its entry is not an object");
    const json_t *dtype = json_object_get(entry, "dtype");
    const json_t *shape = json_object_get(entry, "shape");
    const json_t *range = json_object_get(entry, "data_offsets");
    if (!json_is_string(dtype) || !json_is_array(shape) || !json_is_array(range))
        return bad_tensor(err, path, name,
                          "needs dtype (a string), shape and data_offsets (arrays)");
    /* A further field could change what the bytes mean. */
    if (json_object_size(entry) != 3)
        return bad_tensor(err, path, name, "has %zu fields, not dtype, shape, data_offsets alone",
                          json_object_size(entry));

    const struct file_dtype *type = find_dtype(json_string_value(dtype));
    if (!type)
        return bad_tensor(err, path, name, "unknown dtype %.32s", json_string_value(dtype));
    t->dtype_name = type->name;
    t->readable = type->ours >= 0;
    if (t->readable)
        t->dtype = (enum cld_dtype)type->ours;

    t->n_dims = json_array_size(shape);
    if (t->n_dims > CLD_SAFETENSORS_MAX_DIMS)
        return bad_tensor(err, path, name, "%zu dimensions, at most %d are read", t->n_dims,
                          CLD_SAFETENSORS_MAX_DIMS);
    for (size_t d = 0; d < t->n_dims; d++)
        if (!take_size(json_array_get(shape, d), &t->shape[d]))
            return bad_tensor(err, path, name, "shape[%zu] is not a non-negative integer", d);
    enum cld_status s = measure(path, t, type->bits, err);
    if (s)
        return s;

    if (json_array_size(range) != 2 || !take_size(json_array_get(range, 0), &begin) ||
        !take_size(json_array_get(range, 1), &end))
        return bad_tensor(err, path, name, "data_offsets is not two non-negative integers");
    if (begin > end)
        return bad_tensor(err, path, name, "data_offsets [%zu, %zu] run backwards", begin, end);
    if (end > shard->data_bytes)
        return bad_tensor(err, path, name,
                          "data_offsets [%zu, %zu] reach past the %" PRIu64 " bytes of data", begin,
                          end, shard->data_bytes);
    if (end - begin != t->n_bytes)
        return bad_tensor(err, path, name,
                          "data_offsets [%zu, %zu] hold %zu bytes, its shape and %s need %zu",
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
                                    const struct shard *shard, struct cld_error *err)
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
            s = bad_tensor(err, shard->path, t->name,
                           "its data begins at %" PRIu64 ", the data before it ends at %" PRIu64
                           ": %s",
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
    const struct shard *shard = &st->shards[i_shard];
    if (strlen(name) > CLD_SAFETENSORS_MAX_NAME_BYTES)
        return bad_tensor(err, shard->path, name, "its name has %zu bytes, at most %d are read",
                          strlen(name), CLD_SAFETENSORS_MAX_NAME_BYTES);
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
static enum cld_status read_header(struct shard *shard, uint64_t file_bytes, char **out,
                                   size_t *n_bytes, struct cld_error *err)
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
static enum cld_status add_shard(struct cld_safetensors *st, size_t i, char *path,
                                 struct cld_error *err)
{
    struct shard *shard = &st->shards[i];
    char *text = NULL;
    json_t *header = NULL, *entry;
    const char *name;
    uint64_t file_bytes;
    size_t n_bytes = 0, first = st->n_tensors;
    *shard = (struct shard){.fd = -1, .path = path};
    st->n_shards = i + 1;
    if (!path)
        return cld_fail_memory(err, "opening %s", st->path);
    enum cld_status s = cld_file_open(path, &shard->fd, &file_bytes, err);
    if (s)
        return s;
    if ((s = read_header(shard, file_bytes, &text, &n_bytes, err)) ||
        (s = parse_object(path, text, n_bytes, &header, err)))
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

/* A shard is a plain file name beside the index; anything that could lead elsewhere is refused. */
static bool is_plain_name(const char *s)
{
    return *s && strlen(s) <= 255 && strcmp(s, ".") && strcmp(s, "..") && !strpbrk(s, "/\\");
}

/* Opens every shard that the index names, once. */
static enum cld_status add_shards(struct cld_safetensors *st, const char *path, json_t *weight_map,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const char *name;
    json_t *file, *seen = json_object();
    st->shards = calloc(cld_max(json_object_size(weight_map), 1), sizeof *st->shards);
    if (!seen || !st->shards) {
        s = cld_fail_memory(err, "the shards of %s", path);
        goto done;
    }
    json_object_foreach (weight_map, name, file) {
        const char *shard = json_string_value(file);
        if (!shard || !is_plain_name(shard)) {
            s = bad_tensor(err, path, name, "its shard %.128s is not a file name",
                           shard ? shard : "(not a string)");
            goto done;
        }
        if (json_object_get(seen, shard))
            continue;
        if (json_object_set(seen, shard, file)) {
            s = cld_fail_memory(err, "the shards of %s", path);
            goto done;
        }
        if ((s = add_shard(st, st->n_shards, cld_format("%s/%s", st->path, shard), err)))
            goto done;
    }
done:
    json_decref(seen);
    return s;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Both directions: every tensor of a shard stands in the index under that shard, and the index has
 * no further ones. The first also rules out one name in two shards. */
static enum cld_status check_index(const struct cld_safetensors *st, const char *path,
                                   json_t *weight_map, struct cld_error *err)
{
    const char *name;
    json_t *file;
    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct cld_safetensor *t = &st->tensors[i];
        const char *here = base_name(st->shards[t->i_shard].path);
        const char *said = json_string_value(json_object_get(weight_map, t->name));
        if (!said || strcmp(said, here))
            return bad_tensor(err, path, t->name, "is in %.100s, the index says %.100s", here,
                              said ? said : "nothing of it");
    }
    if (st->n_tensors == json_object_size(weight_map))
        return CLD_OK;
    json_object_foreach (weight_map, name, file)
        if (!cld_safetensors_find(st, name))
            return bad_tensor(err, path, name, "the index says %.128s, which does not have it",
                              json_string_value(file));
    return CLD_OK;
}

static int by_name(const void *a, const void *b)
{
    const struct cld_safetensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static void sort_tensors(struct cld_safetensors *st)
{
    if (st->n_tensors)
        qsort(st->tensors, st->n_tensors, sizeof *st->tensors, by_name);
}

static enum cld_status open_index(struct cld_safetensors *st, const char *path,
                                  struct cld_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    json_t *index = NULL;
    enum cld_status s = cld_file_read(path, CLD_SAFETENSORS_MAX_HEADER_BYTES, &text, &n_bytes, err);
    if (s || (s = parse_object(path, text, n_bytes, &index, err)))
        goto done;
    json_t *weight_map = json_object_get(index, "weight_map");
    if (!json_is_object(weight_map) || !json_object_size(weight_map)) {
        s = cld_fail(err, CLD_E_INPUT, HINT_DAMAGED, "%s: has no weight_map of tensors to shards",
                     path);
        goto done;
    }
    if ((s = add_shards(st, path, weight_map, err)))
        goto done;
    sort_tensors(st);
    s = check_index(st, path, weight_map, err);
done:
    json_decref(index);
    free(text);
    return s;
}

static enum cld_status open_single(struct cld_safetensors *st, const char *path,
                                   struct cld_error *err)
{
    st->shards = calloc(1, sizeof *st->shards);
    if (!st->shards)
        return cld_fail_memory(err, "opening %s", path);
    enum cld_status s = add_shard(st, 0, cld_format("%s", path), err);
    if (!s)
        sort_tensors(st);
    return s;
}

static enum cld_status open_directory(struct cld_safetensors *st, struct cld_error *err)
{
    enum cld_status s;
    char *single = cld_format("%s/model.safetensors", st->path);
    char *index = cld_format("%s/model.safetensors.index.json", st->path);
    if (!single || !index)
        s = cld_fail_memory(err, "opening %s", st->path);
    else if (cld_file_exists(single))
        s = open_single(st, single, err);
    else if (cld_file_exists(index))
        s = open_index(st, index, err);
    else
        s = cld_fail(err, CLD_E_INPUT, "other formats must be converted to safetensors first",
                     "%s: holds neither model.safetensors nor model.safetensors.index.json",
                     st->path);
    free(single);
    free(index);
    return s;
}

enum cld_status cld_safetensors_open(const char *path, struct cld_safetensors **out,
                                     struct cld_error *err)
{
    enum cld_status s;
    struct cld_safetensors *st = calloc(1, sizeof *st);
    *out = NULL;
    if (st) {
        st->path = cld_format("%s", path);
        st->metadata = json_object();
    }
    if (!st || !st->path || !st->metadata) {
        s = cld_fail_memory(err, "opening %s", path);
        goto done;
    }
    s = cld_dir_exists(path) ? open_directory(st, err) : open_single(st, path, err);
    if (s)
        goto done;
    *out = st;
    st = NULL;
done:
    cld_safetensors_close(st);
    return s;
}

void cld_safetensors_close(struct cld_safetensors *st)
{
    if (!st)
        return;
    for (size_t i = 0; i < st->n_tensors; i++)
        free((char *)(uintptr_t)st->tensors[i].name); /* const for readers, ours to free */
    for (size_t i = 0; i < st->n_shards; i++) {
        if (st->shards[i].fd >= 0)
            close(st->shards[i].fd);
        free(st->shards[i].path);
    }
    free(st->tensors);
    free(st->shards);
    json_decref(st->metadata);
    free(st->path);
    free(st);
}

size_t cld_safetensors_n(const struct cld_safetensors *st)
{
    return st->n_tensors;
}

const struct cld_safetensor *cld_safetensors_at(const struct cld_safetensors *st, size_t i)
{
    return &st->tensors[i];
}

const struct cld_safetensor *cld_safetensors_find(const struct cld_safetensors *st,
                                                  const char *name)
{
    const struct cld_safetensor key = {.name = name};
    if (!st->n_tensors)
        return NULL;
    return bsearch(&key, st->tensors, st->n_tensors, sizeof key, by_name);
}

bool cld_safetensors_reads(const struct cld_safetensors *st, const char *file)
{
    for (size_t i = 0; i < st->n_shards; i++)
        if (!strcmp(base_name(st->shards[i].path), file))
            return true;
    return false;
}

const char *cld_safetensors_metadata(const struct cld_safetensors *st, const char *key)
{
    return json_string_value(json_object_get(st->metadata, key));
}

/* "[2, 3]" */
static void print_shape(char *to, size_t room, size_t n_dims, const size_t *shape)
{
    size_t at = 0;
    for (size_t d = 0; d < n_dims && at < room; d++)
        at += (size_t)snprintf(to + at, room - at, "%s%zu", d ? ", " : "[", shape[d]);
    if (at < room)
        snprintf(to + at, room - at, "%s", n_dims ? "]" : "[]");
}

/* "F32 or BF16" */
static void print_dtypes(char *to, size_t room, unsigned dtypes)
{
    size_t at = 0;
    *to = 0;
    for (unsigned t = CLD_F32; t <= CLD_U8; t++)
        if (dtypes & CLD_DTYPE_BIT(t) && at < room)
            at += (size_t)snprintf(to + at, room - at, "%s%s", at ? " or " : "",
                                   cld_dtype_name((enum cld_dtype)t));
}

enum cld_status cld_safetensors_expect(const struct cld_safetensors *st, const char *name,
                                       unsigned dtypes, size_t n_dims, const size_t *shape,
                                       const struct cld_safetensor **out, struct cld_error *err)
{
    char wanted[192], found[192], types[48];
    const struct cld_safetensor *t = cld_safetensors_find(st, name);
    *out = NULL;
    print_dtypes(types, sizeof types, dtypes);
    print_shape(wanted, sizeof wanted, n_dims, shape);
    if (!t)
        return cld_fail(err, CLD_E_INPUT, "is it the right file, of the architecture expected?",
                        "%.300s: has no tensor %.128s (%s %s) among its %zu", st->path, name, types,
                        wanted, st->n_tensors);
    const char *path = st->shards[t->i_shard].path;
    if (t->n_dims != n_dims || (n_dims && memcmp(t->shape, shape, n_dims * sizeof *shape))) {
        print_shape(found, sizeof found, t->n_dims, t->shape);
        return cld_fail(err, CLD_E_INPUT, "do the weights belong to this configuration?",
                        "%.200s: tensor %.128s of the wrong shape: %s in the file, %s expected",
                        path, name, found, wanted);
    }
    if (!t->readable || !(dtypes & CLD_DTYPE_BIT(t->dtype)))
        return cld_fail(err, CLD_E_INPUT, "convert the file to a type that is read here",
                        "%.300s: tensor %.128s is %s in the file, %s expected", path, name,
                        t->dtype_name, types);
    *out = t;
    return CLD_OK;
}

/* n elements of `from` to F32 or BF16, all three being floating point. */
static void convert(enum cld_dtype from, const char *in, enum cld_dtype as, char *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float f;
        uint16_t h;
        if (from == CLD_F32) {
            memcpy(&f, in + i * sizeof f, sizeof f);
        } else {
            memcpy(&h, in + i * sizeof h, sizeof h);
            f = from == CLD_BF16 ? cld_bf16_to_f32(h) : cld_f16_to_f32(h);
        }
        if (as == CLD_F32) {
            memcpy(out + i * sizeof f, &f, sizeof f);
        } else {
            h = cld_f32_to_bf16(f);
            memcpy(out + i * sizeof h, &h, sizeof h);
        }
    }
}

/* n elements at `offset` of the shard, through a small buffer so that `to` is all the memory. */
static enum cld_status read_converted(const struct shard *shard, const struct cld_safetensor *t,
                                      uint64_t offset, size_t n, enum cld_dtype as, char *to,
                                      struct cld_error *err)
{
    char piece[1u << 16];
    size_t in_bytes = cld_dtype_bytes(t->dtype), out_bytes = cld_dtype_bytes(as);
    size_t room = sizeof piece / in_bytes;
    for (size_t at = 0; at < n; at += room) {
        size_t now = cld_min(room, n - at);
        enum cld_status s = cld_file_read_at(shard->fd, shard->path, offset + at * in_bytes, piece,
                                             now * in_bytes, err);
        if (s)
            return s;
        convert(t->dtype, piece, as, to + at * out_bytes, now);
    }
    return CLD_OK;
}

enum cld_status cld_safetensors_read_rows(const struct cld_safetensors *st,
                                          const struct cld_safetensor *t, size_t first_row,
                                          size_t n_rows, enum cld_dtype as, void *to,
                                          struct cld_error *err)
{
    const struct shard *shard = &st->shards[t->i_shard];
    size_t rows = t->n_dims ? t->shape[0] : 1;
    if (!t->readable)
        return cld_fail(err, CLD_E_INPUT, "convert the file to F32, F16 or BF16 weights",
                        "%.300s: tensor %.128s is %s, which is not read here", shard->path, t->name,
                        t->dtype_name);
    if (first_row > rows || n_rows > rows - first_row)
        return cld_fail(err, CLD_E_INPUT,
                        "the weights and config.json do not belong together; fetch both again",
                        "%.300s: tensor %.128s has %zu rows, %zu from %zu on were wanted",
                        shard->path, t->name, rows, n_rows, first_row);
    if (!n_rows)
        return CLD_OK;
    size_t row_elems = t->n_elems / rows, row_bytes = t->n_bytes / rows;
    /* Inside the file: checked at open. */
    uint64_t offset = t->offset_bytes + first_row * row_bytes;
    if (as == t->dtype)
        return cld_file_read_at(shard->fd, shard->path, offset, to, n_rows * row_bytes, err);
    if (!(CLD_DTYPES_FLOAT & CLD_DTYPE_BIT(t->dtype)) || (as != CLD_F32 && as != CLD_BF16))
        return cld_fail(err, CLD_E_INPUT, "convert the file to BF16, F16 or F32",
                        "%.300s: tensor %.128s is %s, not to be read as %s", shard->path, t->name,
                        t->dtype_name, cld_dtype_name(as));
    return read_converted(shard, t, offset, n_rows * row_elems, as, to, err);
}

enum cld_status cld_safetensors_read(const struct cld_safetensors *st,
                                     const struct cld_safetensor *t, enum cld_dtype as, void *to,
                                     struct cld_error *err)
{
    return cld_safetensors_read_rows(st, t, 0, t->n_dims ? t->shape[0] : 1, as, to, err);
}
