#include "op_rows.h"

#include <stdio.h>
#include <string.h>

enum { chunk = 4096, wide_gpu = 8 }; /* CHUNK and WIDE of cl/wide.clh */

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
    bool all_aligned = true;
    options[0] = 0;
    for (size_t i = 0; i < n; i++) {
        if (!o[i].t)
            continue;
        if (o[i].macro)
            at += (size_t)snprintf(options + at, cld_options_bytes - at, "-D%s=%s ", o[i].macro,
                                   cld_tensor_elem(o[i].t));
        all_aligned = all_aligned && aligned(&o[i]);
    }
    if (cld_queue_class(q) == CLD_CLASS_GPU) /* the CPU family has these fixed */
        at += (size_t)snprintf(options + at, cld_options_bytes - at, "-DLOCAL=%zu -DALIGNED=%d ",
                               local, all_aligned);
    snprintf(options + at, cld_options_bytes - at, "%s", extra);
}

size_t cld_row_pieces(size_t n_rows, size_t n_cols)
{
    return cld_mul(n_rows, cld_div_up(n_cols, chunk));
}

struct cld_elements cld_elements(const struct cld_queue *q, const struct cld_operand *o, size_t n)
{
    struct cld_elements e = {o[0].t->n_rows, o[0].t->n_cols, 0, 0};
    bool gaps = false;
    for (size_t i = 0; i < n; i++)
        gaps = gaps || (o[i].t && o[i].t->ld != e.n_cols);
    if (!gaps) {
        e.n_cols = cld_mul(e.n_rows, e.n_cols);
        e.n_rows = 1;
    }
    e.n_pieces = cld_row_pieces(e.n_rows, e.n_cols);
    e.local = cld_row_local(q, chunk, 256);
    return e;
}
