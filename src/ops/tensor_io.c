#include "ops/tensor_io.h"

#include <stdlib.h>
#include <string.h>

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
    return cld_fail(err, CLD_E_INTERNAL, "",
                    "rows [%zu, +%zu) of '%s' [%zu, %zu] %s cannot be moved", first, n, t->name,
                    t->n_rows, t->n_cols, cld_dtype_name(t->type));
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
        return cld_fail_memory(err, "writing '%s'", t->name);
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
        return cld_fail_memory(err, "reading '%s'", t->name);
    for (size_t at = 0; at < n && !s; at += piece) {
        size_t elems = cld_min(piece, n - at) * t->n_cols;
        s = cld_buf_read(t->buf, at_bytes + at * t->n_cols * size, host, elems * size, err);
        for (size_t i = 0; i < elems && !s; i++)
            to[at * t->n_cols + i] = cld_bf16_to_f32(host[i]);
    }
    free(host);
    return s;
}

/* n_rows of a file as they lie in a tensor: the gaps of `to` are zeros already. */
static void spread(const char *from, size_t n_rows, size_t n_cols, struct cld_spread rows,
                   struct cld_spread columns, size_t elem_bytes, char *to)
{
    size_t to_cols = n_cols / columns.run * columns.stride, run_bytes = columns.run * elem_bytes;
    for (size_t i = 0; i < n_rows; i++) {
        char *row = to + (i / rows.run * rows.stride + i % rows.run) * to_cols * elem_bytes;
        for (size_t j = 0; j < n_cols / columns.run; j++, from += run_bytes)
            memcpy(row + j * columns.stride * elem_bytes, from, run_bytes);
    }
}

enum cld_status cld_tensor_load_spread(const struct cld_safetensors *st, const char *name,
                                       const struct cld_tensor *t, struct cld_spread rows,
                                       struct cld_spread columns, struct cld_error *err)
{
    const struct cld_safetensor *file = NULL;
    /* The first dimension of a vector counts its elements. */
    bool vector = t->n_rows == 1, plain = rows.run == rows.stride && columns.run == columns.stride;
    size_t to_rows = vector ? t->n_cols : t->n_rows, to_cols = vector ? 1 : t->n_cols;
    size_t shape[2] = {to_rows / rows.stride * rows.run, to_cols / columns.stride * columns.run};
    enum cld_status s =
        cld_safetensors_expect(st, name, CLD_DTYPES_FLOAT, vector ? 1 : 2, shape, &file, err);
    if (s)
        return s;
    size_t elem_bytes = cld_dtype_bytes(t->type), n_runs = shape[0] / rows.run;
    size_t from_bytes = cld_mul3(rows.run, shape[1], elem_bytes); /* of a run of rows */
    size_t to_bytes = cld_mul3(rows.stride, to_cols, elem_bytes);
    size_t piece = cld_min(n_runs, cld_max(1, piece_bytes / cld_max(1, to_bytes)));
    char *host = malloc(cld_mul(piece, from_bytes));
    char *laid_out = plain ? host : calloc(cld_max(1, piece), to_bytes);
    if (!host || !laid_out)
        s = cld_fail_memory(err, "reading %s", name);
    for (size_t at = 0; at < n_runs && !s; at += piece) {
        size_t n = cld_min(piece, n_runs - at);
        if ((s = cld_safetensors_read_rows(st, file, at * rows.run, n * rows.run, t->type, host,
                                           err)))
            break;
        if (!plain)
            spread(host, n * rows.run, shape[1], rows, columns, elem_bytes, laid_out);
        s = cld_buf_write(t->buf, t->offset * elem_bytes + at * to_bytes, laid_out, n * to_bytes,
                          err);
    }
    if (!plain)
        free(laid_out);
    free(host);
    return s;
}

enum cld_status cld_tensor_load(const struct cld_safetensors *st, const char *name,
                                const struct cld_tensor *t, struct cld_error *err)
{
    const struct cld_spread as_in_file = {1, 1};
    return cld_tensor_load_spread(st, name, t, as_in_file, as_in_file, err);
}
