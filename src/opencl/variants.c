#include "opencl/variants.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/grow.h"

static int compare(const struct cld_variant *v, const char *file, const char *options)
{
    int by_file = strcmp(v->file, file);
    return by_file ? by_file : strcmp(v->options, options);
}

enum cld_status cld_variants_add(struct cld_variants *v, const char *file, const char *options,
                                 struct cld_error *err)
{
    size_t at = 0;
    while (at < v->n && compare(&v->at[at], file, options) < 0)
        at++;
    if (at < v->n && !compare(&v->at[at], file, options))
        return CLD_OK;
    enum cld_status s = cld_grow(&v->at, &v->cap, v->n + 1, sizeof *v->at, err);
    if (s)
        return s;
    struct cld_variant new = {strdup(file), strdup(options)};
    if (!new.file || !new.options) {
        free(new.file);
        free(new.options);
        return cld_fail_memory(err, "a variant");
    }
    memmove(&v->at[at + 1], &v->at[at], (v->n - at) * sizeof *v->at);
    v->at[at] = new;
    v->n++;
    return CLD_OK;
}

enum cld_status cld_variants_read(struct cld_variants *v, const char *path, struct cld_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0, number = 0;
    enum cld_status s = cld_file_read(path, (size_t)16 << 20, &text, &n_bytes, err);
    for (char *line = text, *next; !s && line && *line; line = next) {
        next = line + strcspn(line, "\n");
        if (*next)
            *next++ = 0;
        number++;
        if (!*line || *line == '#')
            continue;
        char *blank = strchr(line, ' ');
        if (!blank || blank == line) {
            s = cld_fail(err, CLD_E_INPUT, "write FILE OPTIONS", "%s:%zu: '%.80s' is no variant",
                         path, number, line);
            break;
        }
        *blank = 0;
        s = cld_variants_add(v, line, blank + 1, err);
    }
    free(text);
    return s;
}

void cld_variants_write(const struct cld_variants *v, FILE *to)
{
    for (size_t i = 0; i < v->n; i++)
        fprintf(to, "%s %s\n", v->at[i].file, v->at[i].options);
}

void cld_variants_free(struct cld_variants *v)
{
    for (size_t i = 0; i < v->n; i++) {
        free(v->at[i].file);
        free(v->at[i].options);
    }
    free(v->at);
    memset(v, 0, sizeof *v);
}
