#include "tensor_io.h"

#include <stdlib.h>

/* Host memory that a transfer uses at once. */
static const size_t piece_bytes = (size_t)64 << 20;

static size_t rows_of_piece(const struct cld_tensor *t)
{
    size_t row_bytes = cld_mul(t->n_cols, sizeof(float));
    return cld_max(1, piece_bytes / cld_max(1, row_bytes));
}

static enum cld_status check(const struct cld_tensor *t, size_t first, size_t n,
                             struct cld_error *err)
{
    if (cld_add(first, n) <= t->n_rows && t->ld == t->n_cols &&
        (t->type == CLD_F32 || t->type == CLD_BF16))
        return CLD_OK;
    return cld_fail(err, CLD_E_INTERNAL, "", "rows [%zu, +%zu) of '%s' [%zu, %zu] %s cannot be moved",
                    first, n, t->name, t->n_rows, t->n_cols, cld_dtype_name(t->type));
}

enum cld_status cld_tensor_write(const struct cld_tensor *t, size_t first, size_t n,
                                 const float *from, struct cld_error *err)
{
    enum cld_status s = check(t, first, n, err);
    size_t size = cld_dtype_bytes(t->type), at_bytes = (t->offset + first * t->n_cols) * size;
    if (s || t->type == CLD_F32)
        return s ? s : cld_buf_write(t->buf, at_bytes, from, n * t->n_cols * size, err);
    size_t piece = cld_min(rows_of_piece(t), cld_max(1, n));
    uint16_t *host = malloc(cld_mul3(piece, t->n_cols, size));
    if (!host)
        return cld_fail(err, CLD_E_MEMORY, "", "no host memory to write '%s'", t->name);
    for (size_t at = 0; at < n && !s; at += piece) {
        size_t elems = cld_min(piece, n - at) * t->n_cols;
        for (size_t i = 0; i < elems; i++)
            host[i] = cld_f32_to_bf16(from[at * t->n_cols + i]);
        s = cld_buf_write(t->buf, at_bytes + at * t->n_cols * size, host, elems * size, err);
    }
    free(host);
    return s;
}

enum cld_status cld_tensor_read(const struct cld_tensor *t, size_t first, size_t n, float *to,
                                struct cld_error *err)
{
    enum cld_status s = check(t, first, n, err);
    size_t size = cld_dtype_bytes(t->type), at_bytes = (t->offset + first * t->n_cols) * size;
    if (s || t->type == CLD_F32)
        return s ? s : cld_buf_read(t->buf, at_bytes, to, n * t->n_cols * size, err);
    size_t piece = cld_min(rows_of_piece(t), cld_max(1, n));
    uint16_t *host = malloc(cld_mul3(piece, t->n_cols, size));
    if (!host)
        return cld_fail(err, CLD_E_MEMORY, "", "no host memory to read '%s'", t->name);
    for (size_t at = 0; at < n && !s; at += piece) {
        size_t elems = cld_min(piece, n - at) * t->n_cols;
        s = cld_buf_read(t->buf, at_bytes + at * t->n_cols * size, host, elems * size, err);
        for (size_t i = 0; i < elems && !s; i++)
            to[at * t->n_cols + i] = cld_bf16_to_f32(host[i]);
    }
    free(host);
    return s;
}

enum cld_status cld_tensor_load(const struct cld_safetensors *st, const char *name,
                                const struct cld_tensor *t, struct cld_error *err)
{
    const struct cld_safetensor *file = NULL;
    bool vector = t->n_rows == 1;
    size_t shape[2] = {t->n_rows, t->n_cols};
    enum cld_status s = cld_safetensors_expect(st, name, CLD_DTYPES_FLOAT, vector ? 1 : 2,
                                               vector ? shape + 1 : shape, &file, err);
    if (s)
        return s;
    /* The first dimension of a vector counts its elements. */
    size_t n = vector ? t->n_cols : t->n_rows, width = vector ? 1 : t->n_cols;
    size_t unit_bytes = cld_mul(width, cld_dtype_bytes(t->type));
    size_t piece = cld_min(n, cld_max(1, piece_bytes / cld_max(1, unit_bytes)));
    char *host = malloc(cld_mul(piece, unit_bytes));
    if (!host)
        return cld_fail(err, CLD_E_MEMORY, "", "no host memory to read %s", name);
    for (size_t at = 0; at < n && !s; at += piece) {
        size_t rows = cld_min(piece, n - at);
        if (!(s = cld_safetensors_read_rows(st, file, at, rows, t->type, host, err)))
            s = cld_buf_write(t->buf, t->offset * cld_dtype_bytes(t->type) + at * unit_bytes, host,
                              rows * unit_bytes, err);
    }
    free(host);
    return s;
}
