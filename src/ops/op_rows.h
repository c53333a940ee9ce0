/* op_rows.h - what operations over rows share: checks of operands, build options, shares of work.
 * For op_*.c of element-wise and row-wise operations only. The queue's owner thread. */
#ifndef CLD_OPS_OP_ROWS_H
#define CLD_OPS_OP_ROWS_H

#include <stdbool.h>

#include "opencl/queue.h"
#include "opencl/tensor.h"
#include "ops/tunable_kernel.h"

/* How a kernel reads an operand, which decides what alignment it needs for 16-byte accesses:
 * vectors along rows (begin and row stride), vectors along one row or a gapless whole (begin), or
 * elements. */
enum cld_access { CLD_BY_ROWS, CLD_FLAT, CLD_BY_ELEMENT };

/* An operand of a call; t may be NULL (an optional operand that was not given). */
struct cld_operand {
    const struct cld_tensor *t;
    enum cld_access access;
    const char *macro;   /* "X": its storage is the build option -DX=; F32 or BF16. NULL: fixed */
    enum cld_dtype type; /* the fixed storage, where macro is NULL */
};

/* True if every operand has a storage that its kernel reads, lies inside its buffer, makes less
 * than 2^32 pieces of work, and `fit`. Otherwise CLD_E_INTERNAL with every operand's name, shape
 * and storage. */
enum cld_status cld_operands_check(const char *op, const struct cld_operand *o, size_t n, bool fit,
                                   struct cld_error *err);

/* Work-items of a group that works on rows of n_cols; 1 on the CPU family. A power of two, at most
 * `most`. */
size_t cld_row_local(const struct cld_queue *q, size_t n_cols, size_t most);

/* For families of tuned kernels (tuning.h): why the device does not run groups of so many
 * work-items, NULL if it can; whether this queue's groups have more than one work-item at all. */
const char *cld_group_objection(const struct cld_device_info *d, size_t local, char *to,
                                size_t n_bytes);
bool cld_has_groups(const struct cld_queue *q);

/* Build options: storages of the operands, LOCAL, ALIGNED where all of them allow accesses of
 * 16 bytes, and WHOLE where no row has a tail. They depend on widths, strides and begins, not on
 * the number of rows, so that a shorter batch asks for no new variant. `extra` is appended ("" for
 * nothing). */
enum { cld_options_bytes = 256 };
void cld_row_options(const struct cld_queue *q, const struct cld_operand *o, size_t n, size_t local,
                     const char *extra, char options[cld_options_bytes]);

/* Options of a kernel that holds rows of n_cols in registers: "" on the CPU family. */
void cld_held_options(const struct cld_queue *q, size_t n_cols, size_t local, char *to,
                      size_t n_bytes);

/* Matrices of one shape as element-wise kernels see them: one long row where none has gaps between
 * its rows. Groups of the GPU family have `local` work-items at most and compute `pieces` pieces of
 * work each; cld_elements gives those of operations without tuned parameters. */
struct cld_elements {
    size_t n_rows, n_cols, n_groups, local;
    const char *extra; /* build option that says so to the GPU family */
};
struct cld_elements cld_elements_of(const struct cld_queue *q, const struct cld_operand *o,
                                    size_t n, size_t local, size_t pieces);
struct cld_elements cld_elements(const struct cld_queue *q, const struct cld_operand *o, size_t n);

/* Kernel arguments of a tensor that the kernel takes as (pointer, begin, row stride) or, for
 * vectors and gapless tensors, (pointer, begin). A NULL tensor gives a null pointer. */
#define CLD_MATRIX(t)                                                                              \
    CLD_BUF((t) ? (t)->buf : NULL), CLD_U64((t) ? (t)->offset : 0), CLD_U64((t) ? (t)->ld : 0)
#define CLD_VECTOR(t) CLD_BUF((t) ? (t)->buf : NULL), CLD_U64((t) ? (t)->offset : 0)

static inline bool cld_same_shape(const struct cld_tensor *a, const struct cld_tensor *b)
{
    return a->n_rows == b->n_rows && a->n_cols == b->n_cols;
}

static inline bool cld_is_vector(const struct cld_tensor *t, size_t n)
{
    return t->n_rows == 1 && t->n_cols == n;
}

#endif
