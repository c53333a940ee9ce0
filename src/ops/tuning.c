#include "ops/tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opencl/kernel_source.h"
#include "opencl/queue.h"
#include "ops/gemm_backend.h"
#include "ops/op_attention.h"
#include "ops/ops.h"

static const struct cld_tunable_kernel *const families[CLD_N_TUNED] = {
    [CLD_TUNED_GEMM_CPU] = &cld_tuned_gemm_cpu,
    [CLD_TUNED_GEMM_GPU] = &cld_tuned_gemm_gpu,
    [CLD_TUNED_GEMM_SM90A] = &cld_tuned_gemm_sm90a,
    [CLD_TUNED_RMSNORM] = &cld_tuned_rmsnorm,
    [CLD_TUNED_QKNORM_ROPE] = &cld_tuned_qknorm_rope,
    [CLD_TUNED_SWIGLU] = &cld_tuned_swiglu,
    [CLD_TUNED_CROSS_ENTROPY] = &cld_tuned_cross_entropy,
    [CLD_TUNED_SUM_SQUARES] = &cld_tuned_sum_squares,
    [CLD_TUNED_ADAMW] = &cld_tuned_adamw,
    [CLD_TUNED_ATTENTION_CPU] = &cld_tuned_attention_cpu};

const struct cld_tunable_kernel *cld_tunable_kernel(enum cld_tuned f)
{
    return families[f];
}

enum cld_tuned cld_tuned_named(const char *name)
{
    int f = 0;
    while (f < CLD_N_TUNED && strcmp(families[f]->name, name))
        f++;
    return (enum cld_tuned)f;
}

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

void cld_tuning_defaults(const struct cld_device_info *d, struct cld_tuning *out)
{
    memset(out, 0, sizeof *out);
    out->filled = true;
    for (int f = 0; f < CLD_N_TUNED; f++)
        for (size_t c = 0; c < cld_tuned_n_classes(families[f]); c++)
            out->rows[f][c] = families[f]->defaults(d);
}

bool cld_tuning_changes(const struct cld_tuning *t, enum cld_tuned f,
                        const struct cld_device_info *d)
{
    struct cld_tuned_row standard = families[f]->defaults(d);
    for (size_t c = 0; c < cld_tuned_n_classes(families[f]); c++)
        if (!cld_tuned_row_equal(&t->rows[f][c], &standard))
            return true;
    return false;
}

/* Of one family: "default", or each class with its origin and what differs from the default. */
static size_t describe(const struct cld_tuning *t, enum cld_tuned id,
                       const struct cld_device_info *d, char *to, size_t n_bytes)
{
    static const char *const names[] = {"default", "shipped", "cache", "file"};
    const struct cld_tunable_kernel *f = families[id];
    struct cld_tuned_row standard = f->defaults(d);
    size_t at = 0, n = cld_tuned_n_classes(f), n_measured = 0;
    for (size_t c = 0; c < n; c++)
        n_measured += t->origin[id][c] != CLD_TUNING_DEFAULT;
    if (!n_measured)
        return (size_t)snprintf(to, n_bytes, "default");
    for (size_t c = 0; c < n && at < n_bytes; c++) {
        char values[160];
        cld_tuned_row_text(f, &t->rows[id][c], &standard, values, sizeof values);
        at += (size_t)snprintf(to + at, n_bytes - at, "%s%s %s%s%s", c ? ", " : "", f->classes[c],
                               names[t->origin[id][c]], *values ? " " : "", values);
    }
    return at;
}

const struct cld_tuning *cld_queue_tuning(const struct cld_queue *q)
{
    struct cld_tuning *t = cld_queue_tuned_rows(q);
    if (!t->filled)
        cld_tuning_defaults(cld_queue_device(q), t);
    return t;
}

const struct cld_tuned_row *cld_queue_row(const struct cld_queue *q, enum cld_tuned family,
                                          size_t class)
{
    return &cld_queue_tuning(q)->rows[family][class];
}

void cld_queue_set_row(struct cld_queue *q, enum cld_tuned family, size_t class,
                       const struct cld_tuned_row *row)
{
    cld_queue_tuning(q); /* or a later first call would fill in the defaults */
    if (!cld_queue_is_sealed(q))
        cld_queue_tuned_rows(q)->rows[family][class] = *row;
}

void cld_tuning_text(const struct cld_queue *q, char *to, size_t n_bytes)
{
    size_t at = 0;
    *to = 0;
    for (int f = 0; f < CLD_N_TUNED; f++) {
        if (!families[f]->works(q) || at >= n_bytes)
            continue;
        at += (size_t)snprintf(to + at, n_bytes - at, "%s%s: ", at ? "; " : "", families[f]->name);
        if (at < n_bytes)
            at += describe(cld_queue_tuning(q), (enum cld_tuned)f, cld_queue_device(q), to + at,
                           n_bytes - at);
    }
}
