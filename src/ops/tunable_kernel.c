#include "ops/tunable_kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opencl/kernel_source.h"

size_t cld_tuned_n_classes(const struct cld_tunable_kernel *f)
{
    size_t n = 0;
    while (n < cld_tuned_classes && f->classes[n])
        n++;
    return n;
}

bool cld_tuned_row_equal(const struct cld_tuned_row *a, const struct cld_tuned_row *b)
{
    return !memcmp(a->v, b->v, sizeof a->v);
}

void cld_tuned_row_text(const struct cld_tunable_kernel *f, const struct cld_tuned_row *row,
                        const struct cld_tuned_row *other, char *to, size_t n_bytes)
{
    size_t at = 0;
    *to = 0;
    for (size_t i = 0; i < f->n_params && at < n_bytes; i++)
        if (!other || row->v[i] != other->v[i])
            at += (size_t)snprintf(to + at, n_bytes - at, "%s%s=%zu", at ? " " : "",
                                   f->params[i].name, row->v[i]);
}

const char *cld_tuned_row_objection(const struct cld_tunable_kernel *f,
                                    const struct cld_device_info *d,
                                    const struct cld_tuned_row *row, char *to, size_t n_bytes)
{
    for (size_t i = 0; i < f->n_params; i++) {
        const struct cld_tuned_param *p = &f->params[i];
        size_t v = 0;
        while (v < p->n_values && p->values[v] != row->v[i])
            v++;
        if (v < p->n_values)
            continue;
        size_t at = (size_t)snprintf(to, n_bytes, "%s cannot be %zu, only", p->name, row->v[i]);
        for (v = 0; v < p->n_values && at < n_bytes; v++)
            at += (size_t)snprintf(to + at, n_bytes - at, "%s %zu", v ? "," : "", p->values[v]);
        return to;
    }
    return f->objection ? f->objection(d, row, to, n_bytes) : NULL;
}

enum cld_status cld_tuned_sources(const struct cld_tunable_kernel *f,
                                  char hash[CLD_SHA256_HEX_BYTES], struct cld_error *err)
{
    struct cld_sha256 h;
    cld_sha256_begin(&h);
    for (size_t i = 0; f->files[i]; i++) {
        char *text = NULL;
        size_t n_bytes = 0;
        enum cld_status s = cld_kernel_source(f->files[i], &text, &n_bytes, err);
        if (s)
            return s;
        cld_sha256_add(&h, text, n_bytes + 1); /* with the NUL, which keeps files apart */
        free(text);
    }
    cld_sha256_end(&h, hash);
    return CLD_OK;
}

/* Rows of a family that nothing set are its defaults. */
static struct cld_tuning *rows_with(const struct cld_queue *q, const struct cld_tunable_kernel *f)
{
    struct cld_tuning *t = cld_queue_tuned_rows(q);
    for (size_t c = 0; !t->has[f->id] && c < cld_tuned_n_classes(f); c++)
        t->rows[f->id][c] = f->defaults(cld_queue_device(q));
    t->has[f->id] = true;
    return t;
}

const struct cld_tuned_row *cld_queue_row(const struct cld_queue *q,
                                          const struct cld_tunable_kernel *f, size_t class)
{
    return &rows_with(q, f)->rows[f->id][class];
}

void cld_queue_set_row(struct cld_queue *q, const struct cld_tunable_kernel *f, size_t class,
                       const struct cld_tuned_row *row)
{
    struct cld_tuning *t = rows_with(q, f); /* first, or later defaults would replace the row */
    if (!cld_queue_is_sealed(q))
        t->rows[f->id][class] = *row;
}
