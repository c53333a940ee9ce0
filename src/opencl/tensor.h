/* tensor.h - a named matrix on a device: what the plan counts, what operations take.
 *
 * A tensor is a plain record: [n_rows, n_cols], row-major, `ld` elements from one row to the next,
 * starting `offset` elements into `buf`. Vectors are one row. The plan fills the shape first and
 * the buffer when it is realised; before that `buf` is NULL. The buffer's owner is the plan (or
 * its creator), never the tensor. */
#ifndef CLD_OPENCL_TENSOR_H
#define CLD_OPENCL_TENSOR_H

#include <stddef.h>

#include "base/dtype.h"
#include "base/size.h"

struct cld_buf;

struct cld_tensor {
    const char *name;
    enum cld_dtype type;
    size_t n_rows, n_cols, ld;
    struct cld_buf *buf;
    size_t offset; /* elements */
};

static inline size_t cld_tensor_elems(const struct cld_tensor *t)
{
    return cld_mul(t->n_rows, t->n_cols);
}

/* Bytes of a tensor without gaps between rows; SIZE_MAX on overflow. */
static inline size_t cld_tensor_bytes(const struct cld_tensor *t)
{
    return cld_mul(cld_tensor_elems(t), cld_dtype_bytes(t->type));
}

/* The rows [first, first + n) of t as a tensor of its own; the caller keeps them inside t. */
static inline struct cld_tensor cld_tensor_rows(const struct cld_tensor *t, size_t first, size_t n)
{
    struct cld_tensor r = *t;
    r.n_rows = n;
    r.offset += first * t->ld;
    return r;
}

/* The columns [first, first + n) of t. */
static inline struct cld_tensor cld_tensor_cols(const struct cld_tensor *t, size_t first, size_t n)
{
    struct cld_tensor r = *t;
    r.n_cols = n;
    r.offset += first;
    return r;
}

/* "f32" or "bf16": the value of a kernel's -DX= for this storage (cl/common.clh). */
static inline const char *cld_tensor_elem(const struct cld_tensor *t)
{
    return t->type == CLD_BF16 ? "bf16" : "f32";
}

#endif
