/* safetensors.h - weights and golden cases in files: a strict reader, a streaming writer.
 *
 * The reader checks everything before it returns: header size, JSON (no duplicate keys, bounded
 * depth and count), names, ranks, products, ranges (contiguous, no overlap, no hole, no tail), and
 * for a sharded model that the index and the shards agree in both directions. It refuses; it never
 * truncates or guesses. White space before the header's `{` is accepted, as the format's own tests
 * do, and never written. Bytes are read with pread into the caller's memory, not mapped: a file may
 * change underneath.
 *
 * Element types that the format knows and we do not (F64, F8_E4M3, ...) do not spoil a file: their
 * ranges are checked at open, and a tensor of this kind is refused by name when it is read. A type
 * that the format does not know is refused at open, since its size cannot be checked.
 *
 * Thread: an open reader is read-only, so any threads may share it; a writer belongs to one. */
#ifndef CLD_FORMATS_SAFETENSORS_H
#define CLD_FORMATS_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"

#define CLD_SAFETENSORS_MAX_DIMS         8
#define CLD_SAFETENSORS_MAX_NAME_BYTES   512
#define CLD_SAFETENSORS_MAX_TENSORS      100000u
#define CLD_SAFETENSORS_MAX_HEADER_BYTES 100000000u

struct cld_safetensors;

/* One tensor of an open file or model; owned by the reader, valid until close. */
struct cld_safetensor {
    const char *name;
    const char *dtype_name; /* as the file has it */
    bool readable;          /* false: a type we have no enum for; `dtype` then means nothing */
    enum cld_dtype dtype;
    size_t n_dims; /* 0: a scalar, one element */
    size_t shape[CLD_SAFETENSORS_MAX_DIMS];
    size_t n_elems, n_bytes;
    size_t i_shard;
    uint64_t offset_bytes; /* from the start of the shard's file */
};

/* Opens a file, or a directory with model.safetensors or else model.safetensors.index.json and the
 * shards that it names. CLD_E_INPUT says which rule was broken. */
enum cld_status cld_safetensors_open(const char *path, struct cld_safetensors **out,
                                     struct cld_error *err);
void cld_safetensors_close(struct cld_safetensors *st); /* NULL-safe */

/* Tensors in the order of their names (bytewise). */
size_t cld_safetensors_n(const struct cld_safetensors *st);
const struct cld_safetensor *cld_safetensors_at(const struct cld_safetensors *st, size_t i);

/* NULL if there is no such tensor. */
const struct cld_safetensor *cld_safetensors_find(const struct cld_safetensors *st,
                                                  const char *name);

/* Is this file, by its name in the directory, one of those that were opened? */
bool cld_safetensors_reads(const struct cld_safetensors *st, const char *file);

/* A value of __metadata__, NULL if absent; of shards, the first that has the key. */
const char *cld_safetensors_metadata(const struct cld_safetensors *st, const char *key);

/* A set of element types for _expect. */
#define CLD_DTYPE_BIT(t) (1u << (t))
#define CLD_DTYPES_FLOAT (CLD_DTYPE_BIT(CLD_F32) | CLD_DTYPE_BIT(CLD_BF16) | CLD_DTYPE_BIT(CLD_F16))

/* The tensor `name`, which must have one of `dtypes` and exactly this shape; CLD_E_INPUT says what
 * was wanted and what is there. */
enum cld_status cld_safetensors_expect(const struct cld_safetensors *st, const char *name,
                                       unsigned dtypes, size_t n_dims, const size_t *shape,
                                       const struct cld_safetensor **out, struct cld_error *err);

/* Reads rows [first_row, first_row + n_rows) of the first dimension (a scalar is one row) as
 * elements of `as`: the tensor's own type, or F32 or BF16 from any of F32, BF16, F16 (to bf16
 * rounded to nearest even). `to` holds n_rows x (elements of a row) of `as`. Other
 * conversions and rows outside the tensor are CLD_E_INPUT. */
enum cld_status cld_safetensors_read_rows(const struct cld_safetensors *st,
                                          const struct cld_safetensor *t, size_t first_row,
                                          size_t n_rows, enum cld_dtype as, void *to,
                                          struct cld_error *err);

/* All rows. */
enum cld_status cld_safetensors_read(const struct cld_safetensors *st,
                                     const struct cld_safetensor *t, enum cld_dtype as, void *to,
                                     struct cld_error *err);

/* What a file to be written holds. */
struct cld_safetensors_spec {
    const char *name;
    enum cld_dtype dtype;
    size_t n_dims, shape[CLD_SAFETENSORS_MAX_DIMS];
    size_t id; /* the caller's; travels along when the writer sorts */
};

struct cld_safetensors_pair {
    const char *key, *value;
};

/* Begins `path`, crash-safe as in file.h. Sorts `specs` in place - wider types first, so that every
 * tensor is aligned in the file, then by name - and the data is pushed in that order: equal content
 * gives equal bytes whatever the caller's order. Nothing is kept of the arguments. A broken rule is
 * CLD_E_INTERNAL. */
struct cld_safetensors_writer;
enum cld_status cld_safetensors_begin(const char *path, struct cld_safetensors_spec *specs,
                                      size_t n_specs, const struct cld_safetensors_pair *metadata,
                                      size_t n_metadata, struct cld_safetensors_writer **out,
                                      struct cld_error *err);

/* The next n_bytes of tensor i of the sorted list; in pieces of any size, tensor after tensor. */
enum cld_status cld_safetensors_put(struct cld_safetensors_writer *w, size_t i, const void *bytes,
                                    size_t n_bytes, struct cld_error *err);

/* Makes the file visible; CLD_E_INTERNAL if data is missing. The handle is gone either way. */
enum cld_status cld_safetensors_commit(struct cld_safetensors_writer *w, struct cld_error *err);
void cld_safetensors_abort(struct cld_safetensors_writer *w); /* NULL-safe */

#endif
