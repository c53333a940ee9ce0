/* make_target FROM TO CHANGES: a copy of the model directory FROM in TO, with the changes of a JSON
 * object:
 *   "config.json", "generation_config.json", ...: keys to set in that file (null removes one)
 *   "tensors": a list of changes of model.safetensors, done in this order
 *      {"add": NAME, "shape": [...], "fill": VALUE}    a BF16 tensor of one value (0 by default)
 *      {"row": NAME, "index": ROW, "value": VALUE}     a row of a matrix
 *      {"copy": NAME, "to": NAME}, {"remove": PREFIX}, {"rename": PREFIX, "to": PREFIX}
 *   "beside": files to add, with their text
 * A value "NaN" stands for itself, since JSON has none. Tests of targets call it; it exits with 1
 * after any failure. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/file.h"
#include "formats/safetensors.h"

enum { MAX_TENSORS = 256 };

struct tensor {
    char name[160];
    size_t n_dims, shape[2], n_elems;
    uint16_t *values;
};

static struct tensor tensors[MAX_TENSORS];
static size_t n_tensors;

static void die(const char *what)
{
    fprintf(stderr, "make_target: %s\n", what);
    exit(1);
}

static void must(enum cld_status s, const struct cld_error *err)
{
    if (s)
        die(err->what);
}

static struct tensor *find(const char *name)
{
    for (size_t i = 0; name && i < n_tensors; i++)
        if (!strcmp(tensors[i].name, name))
            return &tensors[i];
    die(name ? name : "a change without a name");
    return NULL;
}

static struct tensor *add(const char *name, size_t n_dims, const size_t *shape)
{
    struct tensor *t = &tensors[n_tensors++];
    if (n_tensors == MAX_TENSORS || n_dims > 2)
        die("too many tensors or dimensions");
    snprintf(t->name, sizeof t->name, "%s", name);
    t->n_dims = n_dims;
    t->n_elems = 1;
    for (size_t i = 0; i < n_dims; i++)
        t->n_elems *= t->shape[i] = shape[i];
    if (!(t->values = calloc(t->n_elems + 1, sizeof *t->values)))
        die("no memory");
    return t;
}

static void load(const char *dir)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_safetensors *st = NULL;
    must(cld_safetensors_open(dir, &st, &err), &err);
    for (size_t i = 0; i < cld_safetensors_n(st); i++) {
        const struct cld_safetensor *t = cld_safetensors_at(st, i);
        struct tensor *to = add(t->name, t->n_dims, t->shape);
        must(cld_safetensors_read(st, t, CLD_BF16, to->values, &err), &err);
    }
    cld_safetensors_close(st);
}

static void save(const char *dir)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_safetensors_spec specs[MAX_TENSORS];
    struct cld_safetensors_writer *w = NULL;
    const struct cld_safetensors_pair format = {"format", "pt"};
    char *path = cld_format("%s/model.safetensors", dir);
    for (size_t i = 0; i < n_tensors; i++) {
        struct tensor *t = &tensors[i];
        specs[i] = (struct cld_safetensors_spec){
            .name = t->name, .dtype = CLD_BF16, .n_dims = t->n_dims, .id = i};
        memcpy(specs[i].shape, t->shape, sizeof t->shape);
    }
    must(cld_safetensors_begin(path, specs, n_tensors, &format, 1, &w, &err), &err);
    for (size_t i = 0; i < n_tensors; i++) {
        struct tensor *t = &tensors[specs[i].id];
        must(cld_safetensors_put(w, i, t->values, t->n_elems * sizeof *t->values, &err), &err);
    }
    must(cld_safetensors_commit(w, &err), &err);
    free(path);
}

static void fill(struct tensor *t, size_t first, size_t n, const json_t *value)
{
    float f = json_is_string(value) ? NAN : (float)json_number_value(value);
    for (size_t i = first; i < first + n && i < t->n_elems; i++)
        t->values[i] = cld_f32_to_bf16(f);
}

static const char *text(const json_t *change, const char *key)
{
    return json_string_value(json_object_get(change, key));
}

/* Names that begin with `prefix` get `to` in its place, or are removed. */
static void rename_all(const char *prefix, const char *to)
{
    size_t n_used = 0, n = strlen(prefix);
    for (size_t i = 0; i < n_tensors; i++) {
        struct tensor t = tensors[i];
        bool meant = !strncmp(t.name, prefix, n);
        if (meant && to)
            snprintf(t.name, sizeof t.name, "%s%.100s", to, tensors[i].name + n);
        if (!meant || to)
            tensors[n_used++] = t;
        else
            free(t.values);
    }
    n_tensors = n_used;
}

static void change(const json_t *c)
{
    const json_t *shape = json_object_get(c, "shape");
    if (text(c, "add")) {
        size_t dims[2] = {(size_t)json_integer_value(json_array_get(shape, 0)),
                          (size_t)json_integer_value(json_array_get(shape, 1))};
        struct tensor *t = add(text(c, "add"), json_array_size(shape), dims);
        fill(t, 0, t->n_elems, json_object_get(c, "fill"));
    } else if (text(c, "row")) {
        struct tensor *t = find(text(c, "row"));
        size_t width = t->n_elems / t->shape[0];
        fill(t, (size_t)json_integer_value(json_object_get(c, "index")) * width, width,
             json_object_get(c, "value"));
    } else if (text(c, "copy")) {
        const struct tensor *from = find(text(c, "copy"));
        rename_all(text(c, "to"), NULL);
        from = find(text(c, "copy"));
        memcpy(add(text(c, "to"), from->n_dims, from->shape)->values, from->values,
               from->n_elems * sizeof *from->values);
    } else if (text(c, "rename")) {
        rename_all(text(c, "rename"), text(c, "to"));
    } else if (text(c, "remove")) {
        rename_all(text(c, "remove"), NULL);
    } else {
        die("an unknown change");
    }
}

/* A small file of FROM with its keys changed; there need be none. */
static void copy_json(const char *from, const char *to, const char *name, const json_t *keys)
{
    char *path = cld_format("%s/%s", from, name), *out = cld_format("%s/%s", to, name);
    json_t *root = cld_file_exists(path) ? json_load_file(path, 0, NULL) : json_object(), *v;
    const char *key;
    if (!root)
        die(path);
    json_object_foreach ((json_t *)(uintptr_t)keys, key, v)
        if (json_is_null(v))
            json_object_del(root, key);
        else
            json_object_set(root, key, v);
    if ((cld_file_exists(path) || keys) && json_dump_file(root, out, JSON_INDENT(1)))
        die(out);
    json_decref(root);
    free(path);
    free(out);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"config.json", "generation_config.json",
                                        "tokenizer_config.json", "special_tokens_map.json",
                                        "tokenizer.json"};
    struct cld_error err = CLD_ERROR_INIT;
    json_error_t e;
    json_t *what = argc == 4 ? json_loads(argv[3], 0, &e) : NULL, *v;
    const char *key;
    size_t i;
    if (!what)
        die(argc == 4 ? e.text : "make_target FROM TO CHANGES");
    must(cld_dir_make(argv[2], &err), &err);
    for (i = 0; i < sizeof names / sizeof *names; i++)
        copy_json(argv[1], argv[2], names[i], json_object_get(what, names[i]));
    load(argv[1]);
    json_array_foreach (json_object_get(what, "tensors"), i, v)
        change(v);
    save(argv[2]);
    json_object_foreach (json_object_get(what, "beside"), key, v) {
        char *path = cld_format("%s/%s", argv[2], key);
        must(cld_file_write(path, json_string_value(v), json_string_length(v), &err), &err);
        free(path);
    }
    for (i = 0; i < n_tensors; i++)
        free(tensors[i].values);
    json_decref(what);
    return 0;
}
