#include "ops/op_rows.h"

#include <stdio.h>
#include <string.h>

#include "ops/probe.h"

enum { chunk_cpu = 4096, chunk_gpu = 2048, wide_gpu = 8 }; /* CHUNK and WIDE of cl/wide.clh */

/* One past the last element, counted from the buffer's begin. */
static size_t end_of(const struct cld_tensor *t)
{
    if (!t->n_rows || !t->n_cols)
        return t->offset;
    return cld_add(t->offset, cld_add(cld_mul(t->n_rows - 1, t->ld), t->n_cols));
}

static bool operand_ok(const struct cld_operand *o)
{
    const struct cld_tensor *t = o->t;
    if (!t)
        return true;
    bool storage = o->macro ? t->type == CLD_F32 || t->type == CLD_BF16 : t->type == o->type;
    return storage && t->buf && (t->n_rows < 2 || t->ld >= t->n_cols) &&
           cld_mul(t->n_rows, cld_div_up(t->n_cols, chunk_gpu)) <= UINT32_MAX &&
           cld_mul(end_of(t), cld_dtype_bytes(t->type)) <= cld_buf_bytes(t->buf);
}

enum cld_status cld_operands_check(const char *op, const struct cld_operand *o, size_t n, bool fit,
                                   struct cld_error *err)
{
    char text[512] = "";
    bool ok = fit;
    for (size_t i = 0; i < n; i++)
        ok = ok && operand_ok(&o[i]);
    if (ok)
        return CLD_OK;
    for (size_t i = 0; i < n; i++) {
        const struct cld_tensor *t = o[i].t;
        size_t at = strlen(text);
        if (t)
            snprintf(text + at, sizeof text - at, "%s%.24s [%zu, %zu] ld %zu %s%s%s",
                     at ? ", " : "", t->name ? t->name : "?", t->n_rows, t->n_cols, t->ld,
                     cld_dtype_name(t->type), t->buf ? "" : " without buffer",
                     operand_ok(&o[i]) ? "" : " (!)");
    }
    return cld_fail(err, CLD_E_INTERNAL, "", "%s: operands do not fit together: %s", op, text);
}

size_t cld_row_local(const struct cld_queue *q, size_t n_cols, size_t most)
{
    size_t local = 32, device_most = cld_queue_device(q)->max_group;
    if (cld_queue_class(q) == CLD_CLASS_CPU)
        return 1;
    while (local < most && local * wide_gpu < n_cols)
        local *= 2;
    while (device_most && local > device_most)
        local /= 2;
    return local;
}

const char *cld_group_objection(const struct cld_device_info *d, size_t local, char *to,
                                size_t n_bytes)
{
    if (local <= cld_max(d->max_group, 32))
        return NULL;
    snprintf(to, n_bytes, "work-groups: of %zu at most", d->max_group);
    return to;
}

bool cld_has_groups(const struct cld_queue *q)
{
    return cld_queue_class(q) == CLD_CLASS_GPU;
}

static bool aligned(const struct cld_operand *o)
{
    size_t per_16 = 16 / cld_dtype_bytes(o->t->type);
    return o->access == CLD_BY_ELEMENT ||
           (o->t->offset % per_16 == 0 && (o->access == CLD_FLAT || o->t->ld % per_16 == 0));
}

void cld_row_options(const struct cld_queue *q, const struct cld_operand *o, size_t n, size_t local,
                     const char *extra, char options[cld_options_bytes])
{
    size_t at = 0;
    bool all_aligned = true, whole = true;
    options[0] = 0;
    for (size_t i = 0; i < n; i++) {
        if (!o[i].t)
            continue;
        if (o[i].macro)
            at += (size_t)snprintf(options + at, cld_options_bytes - at, "-D%s=%s ", o[i].macro,
                                   cld_tensor_elem(o[i].t));
        all_aligned = all_aligned && aligned(&o[i]);
        whole = whole && (o[i].access == CLD_BY_ELEMENT || o[i].t->n_cols % wide_gpu == 0);
    }
    if (cld_queue_class(q) == CLD_CLASS_GPU) /* the CPU family has these fixed */
        at += (size_t)snprintf(options + at, cld_options_bytes - at,
                               "-DLOCAL=%zu -DALIGNED=%d -DWHOLE=%d %s", local, all_aligned, whole,
                               cld_probe_usable(q, CLD_PROBE_SM80) ? "-DNVIDIA=1 " : "");
    snprintf(options + at, cld_options_bytes - at, "%s", extra);
}

void cld_held_options(const struct cld_queue *q, size_t n_cols, size_t local, char *to,
                      size_t n_bytes)
{
    size_t nv = cld_div_up(n_cols, cld_mul(local, wide_gpu));
    to[0] = 0;
    if (cld_queue_class(q) == CLD_CLASS_GPU)
        snprintf(to, n_bytes, "-DNV=%zu -DEXACT=%d", nv, n_cols == nv * local * wide_gpu);
}

struct cld_elements cld_elements_of(const struct cld_queue *q, const struct cld_operand *o,
                                    size_t n, size_t local, size_t pieces)
{
    bool gaps = false, cpu = cld_queue_class(q) == CLD_CLASS_CPU;
    struct cld_elements e = {o[0].t->n_rows, o[0].t->n_cols, 0, 0, ""};
    for (size_t i = 0; i < n; i++)
        gaps = gaps || (o[i].t && e.n_rows > 1 && o[i].t->ld != e.n_cols);
    if (!gaps) {
        e.n_cols = cld_mul(e.n_rows, e.n_cols);
        e.n_rows = 1;
        e.extra = cpu ? "" : "-DGAPLESS=1";
    }
    size_t n_pieces = cld_mul(e.n_rows, cld_div_up(e.n_cols, cpu ? chunk_cpu : chunk_gpu));
    e.n_groups = cpu ? n_pieces : cld_div_up(n_pieces, pieces);
    e.local = cld_row_local(q, chunk_gpu, local);
    return e;
}

struct cld_elements cld_elements(const struct cld_queue *q, const struct cld_operand *o, size_t n)
{
    return cld_elements_of(q, o, n, 256, 1);
}
