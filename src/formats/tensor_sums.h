/* tensor_sums.h - checksums of tensors, made of their bytes as a reader passes them on, and the
 * first value that is not finite: so that a file need not be read once more to be known.
 *
 * A reader that watches (cld_safetensors_watch) adds the bytes of each tensor that is read from its
 * first row on, in order. Several readers may share one object, each on its thread; a tensor that
 * two of them read is summed by the one that begins first. Large pieces are summed by several
 * threads. The sum covers name, type, shape and all bytes, and depends on nothing else. Any
 * thread. */
#ifndef CLD_FORMATS_TENSOR_SUMS_H
#define CLD_FORMATS_TENSOR_SUMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct cld_tensor_sums;
struct cld_safetensor;

enum cld_status cld_tensor_sums_new(struct cld_tensor_sums **out, struct cld_error *err);
void cld_tensor_sums_free(struct cld_tensor_sums *s); /* NULL-safe */

/* n bytes of the tensor, from `at` on, as they are in the file that `reader` (any address of its
 * own) reads. CLD_E_MEMORY only. */
enum cld_status cld_tensor_sums_see(struct cld_tensor_sums *s, const void *reader,
                                    const struct cld_safetensor *t, uint64_t at, const void *bytes,
                                    size_t n, struct cld_error *err);

/* The sum of a tensor; false where it was not read to its end. */
bool cld_tensor_sums_get(struct cld_tensor_sums *s, const char *name, uint64_t *sum);

/* One sum of all tensors whose names begin with `prefix`, in the order of their names; false where
 * none was read to its end. */
bool cld_tensor_sums_of(struct cld_tensor_sums *s, const char *prefix, uint64_t *sum);

/* The first element so far that is infinite or no number; false: none. */
bool cld_tensor_sums_not_finite(struct cld_tensor_sums *s, const char *name, size_t *element);

#endif
