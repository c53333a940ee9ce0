/* tensor_io.h - tensors between host floats, files and device storage. All calls block.
 * Thread: the queue's owner. */
#ifndef CLD_OPS_TENSOR_IO_H
#define CLD_OPS_TENSOR_IO_H

#include "formats/safetensors.h"
#include "opencl/queue.h"
#include "opencl/tensor.h"

/* Rows [first, first + n) of an F32 or BF16 tensor without gaps, from or to host floats
 * [n * n_cols]; BF16 is rounded to nearest even. */
enum cld_status cld_tensor_write(const struct cld_tensor *t, size_t first, size_t n,
                                 const float *from, struct cld_error *err);
enum cld_status cld_tensor_read(const struct cld_tensor *t, size_t first, size_t n, float *to,
                                struct cld_error *err);

/* A whole tensor of a file, which must have t's name and shape (vectors: one dimension), piece by
 * piece into t in its storage. CLD_E_INPUT names the tensor and both shapes, or, if the file is
 * watched (tensor_sums.h), a value that is not finite. */
enum cld_status cld_tensor_load(const struct cld_safetensors *st, const char *name,
                                const struct cld_tensor *t, struct cld_error *err);

/* How a dimension of a file lies in a tensor: every `run` elements of it begin at the next multiple
 * of `stride`, with zeros in between. {1, 1}: as in the file. */
struct cld_spread {
    size_t run, stride;
};
/* The same into a tensor whose rows and columns (vectors: elements are rows) are spread; t's own
 * dimensions are whole strides. */
enum cld_status cld_tensor_load_spread(const struct cld_safetensors *st, const char *name,
                                       const struct cld_tensor *t, struct cld_spread rows,
                                       struct cld_spread columns, struct cld_error *err);

#endif
