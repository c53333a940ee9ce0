/* drafter_file.c - the parameters of a drafter as tensors of a file. */
#include "model/drafter_layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/size.h"
#include "ops/tensor_io.h"

/* Host memory that a transfer uses at once. */
static const size_t piece_bytes = (size_t)64 << 20;

struct tensor_name {
    char text[96];
};

static struct tensor_name name_of(const struct cld_drafter_part *part, const struct cld_param *p)
{
    struct tensor_name n;
    snprintf(n.text, sizeof n.text, "%s%s", part->prefix, p->name);
    return n;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* One parameter, in pieces of rows. */
static enum cld_status put_param(struct cld_safetensors_writer *w, size_t i_spec,
                                 const struct cld_drafter_part *part, const struct cld_param *p,
                                 float *values, uint16_t *halves, struct cld_error *err)
{
    struct cld_tensor t = {0};
    size_t rows = cld_max(1, piece_bytes / sizeof(float) / p->n_cols);
    enum cld_status s = CLD_OK;
    if (part->arena)
        t = cld_param_part(part->arena, p);
    for (size_t at = 0; at < p->n_rows && !s; at += rows) {
        size_t n = cld_min(rows, p->n_rows - at), n_elems = n * p->n_cols;
        if (!part->arena)
            memcpy(values, part->host + p->at + at * p->n_cols, n_elems * sizeof *values);
        else if ((s = cld_tensor_read(&t, at, n, values, err)))
            return s;
        for (size_t k = 0; k < n_elems && part->as == CLD_BF16; k++)
            halves[k] = cld_f32_to_bf16(values[k]);
        s = part->as == CLD_BF16
                ? cld_safetensors_put(w, i_spec, halves, n_elems * sizeof *halves, err)
                : cld_safetensors_put(w, i_spec, values, n_elems * sizeof *values, err);
    }
    return s;
}

/* Elements of the largest piece of any parameter. */
static size_t piece_elems(const struct cld_drafter *d)
{
    size_t most = 1;
    for (size_t i = 0; i < d->n_params; i++) {
        const struct cld_param *p = &d->params[i];
        size_t rows = cld_min(p->n_rows, cld_max(1, piece_bytes / sizeof(float) / p->n_cols));
        most = cld_max(most, cld_mul(rows, p->n_cols));
    }
    return most;
}

enum cld_status cld_drafter_write_parts(const struct cld_drafter *d, const char *path,
                                        const struct cld_drafter_part *parts, size_t n_parts,
                                        struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = cld_mul(d->n_params, n_parts), room = piece_elems(d);
    const struct cld_safetensors_pair format = {"format", "pt"};
    struct cld_safetensors_writer *w = NULL;
    struct cld_safetensors_spec *specs = calloc(n, sizeof *specs);
    struct tensor_name *names = calloc(n, sizeof *names);
    float *values = malloc(cld_mul(room, sizeof *values));
    uint16_t *halves = malloc(cld_mul(room, sizeof *halves));
    if (!specs || !names || !values || !halves) {
        s = cld_fail_memory(err, "the %zu tensors of %s", n, path);
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        const struct cld_drafter_part *part = &parts[i / d->n_params];
        const struct cld_param *p = &d->params[i % d->n_params];
        names[i] = name_of(part, p);
        specs[i] = (struct cld_safetensors_spec){
            .name = names[i].text, .dtype = part->as, .n_dims = p->is_vector ? 1 : 2, .id = i};
        specs[i].shape[0] = p->is_vector ? p->n_cols : p->n_rows;
        specs[i].shape[1] = p->n_cols;
    }
    if ((s = cld_safetensors_begin(path, specs, n, &format, 1, &w, err)))
        goto done;
    for (size_t i = 0; i < n; i++)
        if ((s = put_param(w, i, &parts[specs[i].id / d->n_params],
                           &d->params[specs[i].id % d->n_params], values, halves, err)))
            goto done;
    s = cld_safetensors_commit(w, err);
    w = NULL;
done:
    cld_safetensors_abort(w);
    free(specs);
    free(names);
    free(values);
    free(halves);
    return s;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* The tensor of a parameter in the file, by whichever name; NULL: not there. */
static const struct cld_safetensor *find_param(const struct cld_safetensors *st,
                                               const struct cld_drafter_part *part,
                                               const struct cld_param *p)
{
    struct tensor_name name = name_of(part, p);
    if (!part->foreign)
        return cld_safetensors_find(st, name.text);
    for (size_t i = 0; i < cld_safetensors_n(st); i++) {
        const struct cld_safetensor *t = cld_safetensors_at(st, i);
        if (!strcmp(cld_drafter_plain_name(t->name), name.text))
            return t;
    }
    return NULL;
}

static bool is_known(const struct cld_drafter *d, const struct cld_drafter_part *parts,
                     size_t n_parts, const char *name)
{
    for (size_t i = 0; i < n_parts; i++) {
        size_t n = strlen(parts[i].prefix);
        if (parts[i].foreign) {
            name = cld_drafter_plain_name(name);
            if (cld_drafter_is_borrowed(name))
                return true;
        }
        for (size_t k = 0; k < d->n_params && !strncmp(name, parts[i].prefix, n); k++)
            if (!strcmp(name + n, d->params[k].name))
                return true;
    }
    return false;
}

/* Nothing in the file that a drafter of this geometry does not have. */
static enum cld_status refuse_unknown(const struct cld_drafter *d, const struct cld_safetensors *st,
                                      const char *path, const struct cld_drafter_part *parts,
                                      size_t n_parts, struct cld_error *err)
{
    for (size_t i = 0; i < cld_safetensors_n(st); i++) {
        const char *name = cld_safetensors_at(st, i)->name;
        if (!is_known(d, parts, n_parts, name))
            return cld_fail(err, CLD_E_INPUT,
                            "names are as published, such as fc.weight and "
                            "layers.0.self_attn.q_proj.weight",
                            "%s: tensor '%.200s' is none of a drafter with %zu layers", path, name,
                            d->config.n_layers);
        for (size_t k = 0; k < i && parts[0].foreign; k++) {
            const char *other = cld_safetensors_at(st, k)->name;
            if (!strcmp(cld_drafter_plain_name(other), cld_drafter_plain_name(name)))
                return cld_fail(err, CLD_E_INPUT, "keep one of them",
                                "%s: '%.200s' and '%.200s' are two names of one tensor", path,
                                other, name);
        }
    }
    return CLD_OK;
}

static enum cld_status check_param(const struct cld_safetensors *st, const char *name,
                                   const struct cld_param *p, unsigned accepted,
                                   struct cld_error *err)
{
    const struct cld_safetensor *found = NULL;
    size_t shape[2] = {p->n_rows, p->n_cols};
    return cld_safetensors_expect(st, name, accepted, p->is_vector ? 1 : 2,
                                  p->is_vector ? shape + 1 : shape, &found, err);
}

enum cld_status cld_drafter_read_parts(struct cld_drafter *d, const char *path,
                                       const struct cld_drafter_part *parts, size_t n_parts,
                                       struct cld_error *err)
{
    struct cld_safetensors *st = NULL;
    enum cld_status s = cld_safetensors_open(path, &st, err);
    if (s || (s = refuse_unknown(d, st, path, parts, n_parts, err)))
        goto done;
    /* All are looked at before one is loaded: a refused file changes nothing. */
    for (int load = 0; load < 2; load++)
        for (size_t i = 0; i < n_parts; i++)
            for (size_t k = 0; k < d->n_params; k++) {
                const struct cld_param *p = &d->params[k];
                struct tensor_name name = name_of(&parts[i], p);
                const struct cld_safetensor *found = find_param(st, &parts[i], p);
                const char *there = found ? found->name : name.text;
                if (!load) {
                    s = check_param(st, there, p, parts[i].accepted, err);
                } else if (parts[i].arena) {
                    struct cld_tensor t = cld_param_part(parts[i].arena, p);
                    s = cld_tensor_load(st, there, &t, err);
                }
                if (s)
                    goto done;
            }
done:
    cld_safetensors_close(st);
    return s;
}

/* --- weights ---------------------------------------------------------------------------------- */

static struct cld_drafter_part weights_of(const struct cld_drafter *d)
{
    return (struct cld_drafter_part){"",       cld_drafter_master(d), NULL,
                                     CLD_BF16, CLD_DTYPES_FLOAT,      true};
}

enum cld_status cld_drafter_load(struct cld_drafter *d, const char *path, struct cld_error *err)
{
    struct cld_drafter_part part = weights_of(d);
    char *ours = cld_format("%s/drafter.safetensors", path);
    if (!ours)
        return cld_fail_memory(err, "the data of %s", path);
    enum cld_status s =
        cld_drafter_read_parts(d, cld_file_exists(ours) ? ours : path, &part, 1, err);
    for (size_t i = 0; i < d->n_params && !s; i++)
        s = cld_drafter_round(d, &d->params[i], err);
    free(ours);
    return s ? s : cld_drafter_adopt(d, err);
}

enum cld_status cld_drafter_write(const struct cld_drafter *d, const struct cld_image *image,
                                  const char *path, struct cld_error *err)
{
    struct cld_drafter_part part = weights_of(d);
    if (image) {
        part.arena = NULL;
        part.host = image->master;
    }
    return cld_drafter_write_parts(d, path, &part, 1, err);
}
