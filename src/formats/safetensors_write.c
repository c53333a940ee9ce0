#include "formats/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/size.h"

struct cld_safetensors_writer {
    struct cld_file_writer *file;
    char *path;
    size_t *n_bytes; /* of each tensor, in file order */
    size_t n_tensors;
    size_t i_now, done_bytes; /* the tensor being filled, and how far */
};

static int by_width_and_name(const void *a, const void *b)
{
    const struct cld_safetensors_spec *x = a, *y = b;
    size_t wide_x = cld_dtype_bytes(x->dtype), wide_y = cld_dtype_bytes(y->dtype);
    if (wide_x != wide_y)
        return wide_x > wide_y ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_key(const void *a, const void *b)
{
    const struct cld_safetensors_pair *x = a, *y = b;
    return strcmp(x->key, y->key);
}

static enum cld_status add_metadata(json_t *header, const char *path,
                                    const struct cld_safetensors_pair *metadata, size_t n_metadata,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    json_t *pairs = json_object();
    struct cld_safetensors_pair *sorted = malloc(cld_max(n_metadata, 1) * sizeof *sorted);
    if (!pairs || !sorted) {
        s = cld_fail_memory(err, "the header of %s", path);
        goto done;
    }
    if (n_metadata) {
        memcpy(sorted, metadata, n_metadata * sizeof *sorted);
        qsort(sorted, n_metadata, sizeof *sorted, by_key);
    }
    for (size_t i = 0; i < n_metadata; i++) {
        /* jansson refuses what is not UTF-8 */
        if (json_object_get(pairs, sorted[i].key) ||
            json_object_set_new(pairs, sorted[i].key, json_string(sorted[i].value))) {
            s = cld_fail(err, CLD_E_INTERNAL, "",
                         "%s: metadata %s given twice or not writable as UTF-8", path,
                         sorted[i].key);
            goto done;
        }
    }
    if (n_metadata && json_object_set(header, "__metadata__", pairs))
        s = cld_fail_memory(err, "the header of %s", path);
done:
    json_decref(pairs);
    free(sorted);
    return s;
}

/* The entry of one tensor whose data is at [begin, end). */
static json_t *make_entry(const struct cld_safetensors_spec *spec, size_t begin, size_t end)
{
    json_t *shape = json_array();
    for (size_t d = 0; shape && d < spec->n_dims; d++) {
        if (json_array_append_new(shape, json_integer((json_int_t)spec->shape[d]))) {
            json_decref(shape);
            shape = NULL;
        }
    }
    /* "o" takes over `shape` and makes json_pack fail if it is NULL */
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", cld_dtype_name(spec->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)end);
}

/* The same rules as the reader's: what is written here must be readable. Sets w->n_bytes. */
static enum cld_status add_tensors(json_t *header, struct cld_safetensors_writer *w,
                                   const struct cld_safetensors_spec *specs, struct cld_error *err)
{
    size_t begin = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        const struct cld_safetensors_spec *spec = &specs[i];
        if (strlen(spec->name) > CLD_SAFETENSORS_MAX_NAME_BYTES ||
            spec->n_dims > CLD_SAFETENSORS_MAX_DIMS || !strcmp(spec->name, "__metadata__") ||
            json_object_get(header, spec->name))
            return cld_fail(err, CLD_E_INTERNAL, "",
                            "%.300s: tensor %.128s: name taken or too long, or %zu dimensions",
                            w->path, spec->name, spec->n_dims);
        size_t n_bytes = cld_dtype_bytes(spec->dtype);
        for (size_t d = 0; d < spec->n_dims; d++)
            n_bytes = cld_mul(n_bytes, spec->shape[d]);
        size_t end = cld_add(begin, n_bytes);
        if (end > INT64_MAX)
            return cld_fail(err, CLD_E_INTERNAL, "", "%.300s: tensor %.128s: its size overflows",
                            w->path, spec->name);
        if (json_object_set_new(header, spec->name, make_entry(spec, begin, end)))
            return cld_fail(err, CLD_E_INTERNAL, "",
                            "%.300s: tensor %.128s: name not UTF-8, or no memory", w->path,
                            spec->name);
        w->n_bytes[i] = n_bytes;
        begin = end;
    }
    return CLD_OK;
}

/* Length, JSON, and spaces up to a multiple of 8, so that the data is aligned in the file. */
static enum cld_status put_header(struct cld_safetensors_writer *w, const json_t *header,
                                  struct cld_error *err)
{
    static const char spaces[8] = "        ";
    char *text = json_dumps(header, JSON_COMPACT);
    if (!text)
        return cld_fail_memory(err, "the header of %s", w->path);
    enum cld_status s;
    size_t n = strlen(text);
    uint64_t padded = cld_round_up(n, 8);
    if (padded > CLD_SAFETENSORS_MAX_HEADER_BYTES)
        s = cld_fail(err, CLD_E_INTERNAL, "", "%s: a header of %zu bytes, at most %u are read",
                     w->path, n, CLD_SAFETENSORS_MAX_HEADER_BYTES);
    else if (!(s = cld_file_put(w->file, &padded, sizeof padded, err)) &&
             !(s = cld_file_put(w->file, text, n, err)))
        s = cld_file_put(w->file, spaces, padded - n, err);
    free(text);
    return s;
}

enum cld_status cld_safetensors_begin(const char *path, struct cld_safetensors_spec *specs,
                                      size_t n_specs, const struct cld_safetensors_pair *metadata,
                                      size_t n_metadata, struct cld_safetensors_writer **out,
                                      struct cld_error *err)
{
    enum cld_status s;
    json_t *header = json_object();
    struct cld_safetensors_writer *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w) {
        w->path = cld_format("%s", path);
        w->n_bytes = calloc(cld_max(n_specs, 1), sizeof *w->n_bytes);
        w->n_tensors = n_specs;
    }
    if (!w || !header || !w->path || !w->n_bytes) {
        s = cld_fail_memory(err, "the header of %zu tensors of %s", n_specs, path);
        goto done;
    }
    if (n_specs > CLD_SAFETENSORS_MAX_TENSORS) {
        s = cld_fail(err, CLD_E_INTERNAL, "", "%s: %zu tensors, at most %u are read", path, n_specs,
                     CLD_SAFETENSORS_MAX_TENSORS);
        goto done;
    }
    if (n_specs)
        qsort(specs, n_specs, sizeof *specs, by_width_and_name);
    if ((s = add_metadata(header, path, metadata, n_metadata, err)) ||
        (s = add_tensors(header, w, specs, err)) || (s = cld_file_begin(path, &w->file, err)) ||
        (s = put_header(w, header, err)))
        goto done;
    *out = w;
    w = NULL;
done:
    json_decref(header);
    cld_safetensors_abort(w);
    return s;
}

/* Steps over tensors that are complete, empty ones too. */
static void skip_complete(struct cld_safetensors_writer *w)
{
    while (w->i_now < w->n_tensors && w->done_bytes == w->n_bytes[w->i_now]) {
        w->i_now++;
        w->done_bytes = 0;
    }
}

enum cld_status cld_safetensors_put(struct cld_safetensors_writer *w, size_t i, const void *bytes,
                                    size_t n_bytes, struct cld_error *err)
{
    skip_complete(w);
    if (!n_bytes && i < w->n_tensors)
        return CLD_OK;
    if (i != w->i_now || i >= w->n_tensors || n_bytes > w->n_bytes[i] - w->done_bytes)
        return cld_fail(err, CLD_E_INTERNAL, "",
                        "%s: %zu bytes for tensor %zu of %zu, but tensor %zu is being written and "
                        "has %zu bytes",
                        w->path, n_bytes, i, w->n_tensors, w->i_now, w->done_bytes);
    w->done_bytes += n_bytes;
    return cld_file_put(w->file, bytes, n_bytes, err);
}

enum cld_status cld_safetensors_commit(struct cld_safetensors_writer *w, struct cld_error *err)
{
    enum cld_status s;
    skip_complete(w);
    if (w->i_now < w->n_tensors) {
        s = cld_fail(err, CLD_E_INTERNAL, "", "%s: tensor %zu of %zu has %zu of %zu bytes", w->path,
                     w->i_now, w->n_tensors, w->done_bytes, w->n_bytes[w->i_now]);
    } else {
        s = cld_file_commit(w->file, err);
        w->file = NULL;
    }
    cld_safetensors_abort(w);
    return s;
}

void cld_safetensors_abort(struct cld_safetensors_writer *w)
{
    if (!w)
        return;
    cld_file_abort(w->file);
    free(w->path);
    free(w->n_bytes);
    free(w);
}
