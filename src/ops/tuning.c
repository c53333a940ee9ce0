#include "ops/tuning.h"

#include <stdio.h>
#include <string.h>

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
    [CLD_TUNED_ATTENTION_CPU] = &cld_tuned_attention_cpu,
    [CLD_TUNED_ATTENTION_GPU] = &cld_tuned_attention_gpu};

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

void cld_tuning_defaults(const struct cld_device_info *d, struct cld_tuning *out)
{
    memset(out, 0, sizeof *out);
    for (int f = 0; f < CLD_N_TUNED; f++) {
        out->has[f] = true;
        for (size_t c = 0; c < cld_tuned_n_classes(families[f]); c++)
            out->rows[f][c] = families[f]->defaults(d);
    }
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
    for (int f = 0; f < CLD_N_TUNED; f++)
        cld_queue_row(q, families[f], 0);
    return cld_queue_tuned_rows(q);
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
