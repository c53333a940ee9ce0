#include "model/plan.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"

struct entry {
    char *name;
    size_t n_bytes;
    enum cld_purpose purpose;
    struct cld_tensor *tensor;      /* or */
    struct cld_buf **slot;          /* a raw buffer */
    void **host;                    /* with slot: pinned host memory */
    bool elsewhere;                 /* not in the device's memory */
    const struct cld_tensor *whole; /* a part: uses the buffer of this one */
};

struct cld_plan {
    struct entry *at;
    size_t n, cap;
    bool no_memory;
};

const char *cld_purpose_name(enum cld_purpose p)
{
    static const char *const names[CLD_N_PURPOSES] = {
        "weights",  "frozen",    "optimizer", "gradients", "activations", "temporary",
        "kv-cache", "attention", "loss",      "input",     "ring",        "staging"};
    return names[p];
}

struct cld_plan *cld_plan_new(void)
{
    return calloc(1, sizeof(struct cld_plan));
}

void cld_plan_free(struct cld_plan *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++)
        free(p->at[i].name);
    free(p->at);
    free(p);
}

static struct entry *add(struct cld_plan *p, const char *fmt, va_list ap)
{
    struct cld_error ignored = CLD_ERROR_INIT;
    if (cld_grow(&p->at, &p->cap, p->n + 1, sizeof *p->at, &ignored)) {
        p->no_memory = true; /* reported by cld_plan_check */
        return NULL;
    }
    struct entry *e = &p->at[p->n];
    memset(e, 0, sizeof *e);
    char name[96];
    vsnprintf(name, sizeof name, fmt, ap);
    if (!(e->name = strdup(name))) {
        p->no_memory = true;
        return NULL;
    }
    p->n++;
    return e;
}

void cld_plan_tensor(struct cld_plan *p, struct cld_tensor *t, enum cld_dtype type, size_t n_rows,
                     size_t n_cols, enum cld_purpose purpose, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    struct entry *e = add(p, fmt, ap);
    va_end(ap);
    *t = (struct cld_tensor){NULL, type, n_rows, n_cols, n_cols, NULL, 0};
    if (!e)
        return;
    t->name = e->name;
    e->tensor = t;
    e->n_bytes = cld_tensor_bytes(t);
    e->purpose = purpose;
}

void cld_plan_buffer(struct cld_plan *p, struct cld_buf **slot, size_t n_bytes,
                     enum cld_purpose purpose, const char *fmt, ...)
{
    *slot = NULL;
    if (!n_bytes)
        return;
    va_list ap;
    va_start(ap, fmt);
    struct entry *e = add(p, fmt, ap);
    va_end(ap);
    if (!e)
        return;
    e->slot = slot;
    e->n_bytes = n_bytes;
    e->purpose = purpose;
}

void cld_plan_pinned(struct cld_plan *p, struct cld_buf **slot, void **host, size_t n_bytes,
                     bool counts, enum cld_purpose purpose, const char *fmt, ...)
{
    *slot = NULL;
    *host = NULL;
    va_list ap;
    va_start(ap, fmt);
    struct entry *e = add(p, fmt, ap);
    va_end(ap);
    if (!e)
        return;
    e->slot = slot;
    e->host = host;
    e->n_bytes = n_bytes;
    e->elsewhere = !counts;
    e->purpose = purpose;
}

void cld_plan_part(struct cld_plan *p, struct cld_tensor *t, const struct cld_tensor *whole,
                   size_t offset, size_t n_rows, size_t n_cols, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    struct entry *e = add(p, fmt, ap);
    va_end(ap);
    *t = (struct cld_tensor){
        NULL, whole->type, n_rows, n_cols, n_cols, NULL, cld_add(whole->offset, offset)};
    if (!e)
        return;
    t->name = e->name;
    e->tensor = t;
    e->whole = whole;
}

void cld_plan_columns(struct cld_plan *p, struct cld_tensor *t, const struct cld_tensor *whole,
                      size_t first, size_t n, const char *name)
{
    cld_plan_part(p, t, whole, first, whole->n_rows, n, "%s", name);
    t->ld = whole->ld;
}

size_t cld_plan_bytes(const struct cld_plan *p)
{
    size_t sum = 0;
    for (size_t i = 0; i < p->n; i++)
        if (!p->at[i].elsewhere)
            sum = cld_add(sum, p->at[i].n_bytes);
    return sum;
}

size_t cld_plan_pinned_bytes(const struct cld_plan *p)
{
    size_t sum = 0;
    for (size_t i = 0; i < p->n; i++)
        if (p->at[i].elsewhere)
            sum = cld_add(sum, p->at[i].n_bytes);
    return sum;
}

size_t cld_plan_bytes_for(const struct cld_plan *p, enum cld_purpose purpose)
{
    size_t sum = 0;
    for (size_t i = 0; i < p->n; i++)
        if (p->at[i].purpose == purpose)
            sum = cld_add(sum, p->at[i].n_bytes);
    return sum;
}

size_t cld_plan_largest(const struct cld_plan *p, const char **name)
{
    size_t most = 0;
    *name = "";
    for (size_t i = 0; i < p->n; i++)
        if (!p->at[i].elsewhere && p->at[i].n_bytes > most) {
            most = p->at[i].n_bytes;
            *name = p->at[i].name;
        }
    return most;
}

size_t cld_plan_budget_bytes(const struct cld_config *cfg, const struct cld_device_info *device)
{
    if (cfg->memory.limit_gib.n)
        return cld_config_gib(cfg->memory.limit_gib.v[0]);
    size_t reserve = cld_config_gib(cfg->memory.reserve_gib);
    return device->global_bytes > reserve ? device->global_bytes - reserve : 0;
}

size_t cld_plan_max_buffer_bytes(const struct cld_config *cfg, const struct cld_device_info *device)
{
    return cfg->memory.max_buffer_gib > 0 ? cld_config_gib(cfg->memory.max_buffer_gib)
                                          : device->max_alloc_bytes;
}

enum cld_status cld_plan_check_device(const struct cld_device_info *device, size_t n_plans,
                                      size_t sum_bytes, size_t budget_bytes, struct cld_error *err)
{
    if (sum_bytes <= budget_bytes)
        return CLD_OK;
    return cld_fail(
        err, CLD_E_MEMORY, "see `cldraft plan` for each buffer and what would fit",
        "device %zu (%s): its %zu workers need %.3f GiB together of a budget of %.3f GiB",
        device->index, device->name, n_plans, cld_gib(sum_bytes), cld_gib(budget_bytes));
}

enum cld_status cld_plan_check(const struct cld_plan *p, const char *who, size_t budget_bytes,
                               size_t max_buffer_bytes, struct cld_error *err)
{
    const char *name = "";
    size_t sum = cld_plan_bytes(p), largest = cld_plan_largest(p, &name);
    if (p->no_memory)
        return cld_fail_memory(err, "the plan of %s", who);
    if (!cld_size_ok(sum))
        return cld_fail(err, CLD_E_MEMORY, "look at lengths, rows and anchors",
                        "%s: the planned sizes overflow", who);
    if (largest > max_buffer_bytes)
        return cld_fail(
            err, CLD_E_MEMORY,
            "use smaller micro-batches, or memory.max_buffer_gib if the device allows more",
            "%s: buffer '%s' needs %.3f GiB, the device allows %.3f GiB in one buffer", who, name,
            cld_gib(largest), cld_gib(max_buffer_bytes));
    if (sum > budget_bytes)
        return cld_fail(err, CLD_E_MEMORY, "see `cldraft plan` for each buffer and what would fit",
                        "%s: needs %.3f GiB (largest '%s', %.3f GiB) of a budget of %.3f GiB", who,
                        cld_gib(sum), name, cld_gib(largest), cld_gib(budget_bytes));
    return CLD_OK;
}

void cld_plan_print(const struct cld_plan *p, const char *who, size_t budget_bytes, FILE *to)
{
    fprintf(to, "%s\n", who);
    for (size_t i = 0; i < p->n; i++)
        if (!p->at[i].whole)
            fprintf(to, "  %-11s %14zu  %s\n", cld_purpose_name(p->at[i].purpose), p->at[i].n_bytes,
                    p->at[i].name);
    for (int k = 0; k < CLD_N_PURPOSES; k++)
        fprintf(to, "  %-11s %14zu  sum\n", cld_purpose_name(k), cld_plan_bytes_for(p, k));
    size_t sum = cld_plan_bytes(p);
    fprintf(to, "  %-11s %14zu  bytes = %.3f GiB of a budget of %.3f GiB\n", "all", sum,
            cld_gib(sum), cld_gib(budget_bytes));
    if (cld_plan_pinned_bytes(p))
        fprintf(to, "  %-11s %14zu  bytes of pinned host memory besides\n", "host",
                cld_plan_pinned_bytes(p));
}

enum cld_status cld_plan_create(struct cld_plan *p, struct cld_queue *q, struct cld_error *err)
{
    for (size_t i = 0; i < p->n; i++) {
        struct entry *e = &p->at[i];
        struct cld_buf *b = NULL;
        enum cld_status s = CLD_OK;
        if (e->whole) {
            e->tensor->buf = e->whole->buf;
            continue;
        }
        if ((s = e->host ? cld_buf_pinned(q, e->name, e->n_bytes, &b, e->host, err)
                         : cld_buf_create(q, e->name, e->n_bytes, &b, err)))
            return s;
        if (e->tensor)
            e->tensor->buf = b;
        else
            *e->slot = b;
    }
    return CLD_OK;
}
