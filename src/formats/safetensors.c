#include "formats/safetensors_header.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/size.h"

_Static_assert(sizeof(size_t) == 8, "sizes from files are kept in size_t");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files and memory alike");

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
            s = cld_safetensors_refuse(err, path, name, "its shard %.128s is not a file name",
                                       shard ? shard : "(not a string)");
            goto done;
        }
        if (json_object_get(seen, shard))
            continue;
        if (json_object_set(seen, shard, file)) {
            s = cld_fail_memory(err, "the shards of %s", path);
            goto done;
        }
        if ((s = cld_safetensors_add_shard(st, st->n_shards, cld_format("%s/%s", st->path, shard),
                                           err)))
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
            return cld_safetensors_refuse(err, path, t->name, "is in %.100s, the index says %.100s",
                                          here, said ? said : "nothing of it");
    }
    if (st->n_tensors == json_object_size(weight_map))
        return CLD_OK;
    json_object_foreach (weight_map, name, file)
        if (!cld_safetensors_find(st, name))
            return cld_safetensors_refuse(err, path, name,
                                          "the index says %.128s, which does not have it",
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
    if (s || (s = cld_safetensors_parse_object(path, text, n_bytes, &index, err)))
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
    enum cld_status s = cld_safetensors_add_shard(st, 0, cld_format("%s", path), err);
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
        return cld_fail(err, CLD_E_INPUT, "check that it is the right file for this architecture",
                        "%.300s: has no tensor %.128s (%s %s) among its %zu", st->path, name, types,
                        wanted, st->n_tensors);
    const char *path = st->shards[t->i_shard].path;
    if (t->n_dims != n_dims || (n_dims && memcmp(t->shape, shape, n_dims * sizeof *shape))) {
        print_shape(found, sizeof found, t->n_dims, t->shape);
        return cld_fail(err, CLD_E_INPUT, "check that the weights belong to this configuration",
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
static enum cld_status read_converted(const struct cld_safetensors_shard *shard,
                                      const struct cld_safetensor *t, uint64_t offset, size_t n,
                                      enum cld_dtype as, char *to, struct cld_error *err)
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
    const struct cld_safetensors_shard *shard = &st->shards[t->i_shard];
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
