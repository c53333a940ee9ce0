/* check.h - operations against double-precision references, on any device.
 *
 * A check makes inputs (from a seed, rounded to their storage), runs an operation, and compares
 * with a reference that it computes itself in double. Outputs are poisoned before and have guard
 * zones around them; every case runs twice and must give equal bits. `cldraft check-kernels` runs
 * the table of all checks (check_table.c); tests run it on PoCL. Thread: the queue's owner. */
#ifndef CLD_CHECK_H
#define CLD_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "queue.h"
#include "tensor.h"

/* A tensor under test: device memory with guards before, after and between its rows, and its values
 * on the host in double. The operation may change an input only where the check says so, by setting
 * `output` on it (an in-out tensor). */
struct cld_check_tensor {
    struct cld_tensor t;
    double *value; /* [n_rows * n_cols], of inputs: what the device holds, exactly; else NULL */
    bool output;
    /* check.c's own: the buffer's bytes before the operation and after its first run */
    size_t n_bytes;
    unsigned char *before, *after;
};

struct cld_check {
    struct cld_queue *q;
    uint64_t seed;
    enum cld_dtype storage; /* of activations and weights in this run: F32 or BF16 */
    FILE *out;              /* a line a case; NULL: only failures, to stderr */
    const char *rerun;      /* command that repeats a failing case, printed with it; or NULL */
    size_t n_passed, n_failed;
    /* Layout of the tensors made next; cld_check_begin sets both to 0. */
    size_t pad;  /* elements between one row and the next: ld = n_cols + pad */
    size_t skew; /* elements added to `offset`, which is a multiple of 64 without it */
    /* the case at work */
    char name[160];
    struct cld_check_tensor *tensors;
    size_t n_tensors, cap_tensors;
    double *owned[64]; /* arrays of cld_check_doubles */
    size_t n_owned;
    struct cld_buf *scratch;
    uint64_t n_random;
    double worst; /* largest error of the case as a part of what is allowed */
    bool failed;
    char why[240];
};

/* One operation of the table. `run` goes through its cases; it returns an error only when the
 * device or memory fails, not when numbers are wrong. */
struct cld_check_op {
    const char *name; /* "rmsnorm" */
    enum cld_status (*run)(struct cld_check *c, struct cld_error *err);
};
extern const struct cld_check_op cld_check_ops[]; /* ends with a NULL name */

/* Runs the table, or one operation of it, on a device: both kernel families, on queues of their
 * own, with activations in F32 and in BF16. */
struct cld_check_options {
    const char *op; /* only those whose name has it in it (CLD_E_USAGE: none has); NULL: all */
    bool skip[CLD_BF16 + 1]; /* by storage */
    uint64_t seed;
    const char *device; /* as on the command line, for the commands that repeat failures; or NULL */
    FILE *out;          /* a line a case; NULL: failures only, to stderr */
    struct cld_program_options programs;
    struct cld_variants *list; /* not NULL: nothing is computed, variants are noted (queue.h) */
    enum cld_family family;    /* AUTO: both */
};
/* Operations run beside each other, in up to eight threads with queues of their own: builds, waits
 * and references overlap. Lines come in the order of the table. */
enum cld_status cld_check_device(const struct cld_device_info *device,
                                 const struct cld_check_options *options, size_t *n_passed,
                                 size_t *n_failed, struct cld_error *err);

/* Begins a case: frees the tensors of the last one, sets the name (printf), restarts the inputs,
 * which are a pure function of seed, name and the order in which they are made. */
void cld_check_begin(struct cld_check *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* An input [n_rows, n_cols] of about normal values times `scale`, and its exact host copy. The
 * returned pointer stays valid until the next cld_check_begin (at most 64 tensors a case). */
enum cld_status cld_check_input(struct cld_check *c, const char *name, enum cld_dtype type,
                                size_t n_rows, size_t n_cols, double scale,
                                struct cld_check_tensor **out, struct cld_error *err);
/* The same with given values (rounded to the storage; `value` then holds the rounded ones). I32
 * too. */
enum cld_status cld_check_values(struct cld_check *c, const char *name, enum cld_dtype type,
                                 size_t n_rows, size_t n_cols, const double *values,
                                 struct cld_check_tensor **out, struct cld_error *err);
/* An output, poisoned with NaN (I32: a pattern), with guards around it. */
enum cld_status cld_check_output(struct cld_check *c, const char *name, enum cld_dtype type,
                                 size_t n_rows, size_t n_cols, struct cld_check_tensor **out,
                                 struct cld_error *err);

/* Host memory of n zeros for a reference, and device scratch of n_bytes (poisoned with NaN, one at
 * a time); both live as long as the case. */
enum cld_status cld_check_doubles(struct cld_check *c, size_t n, double **out,
                                  struct cld_error *err);
enum cld_status cld_check_scratch(struct cld_check *c, size_t n_bytes, struct cld_buf **out,
                                  struct cld_error *err);

/* Reads the output back, looks at its guards and compares with want [n_rows * n_cols]:
 * ||got - want|| / ||want|| <= rel (0/0 passes), and max |got - want| <= 8 * rel * max |want| when
 * want is not all zero; non-finite never passes, on either side. I32 must be equal. A difference
 * marks the case as failed. */
enum cld_status cld_check_compare(struct cld_check *c, const struct cld_check_tensor *t,
                                  const double *want, double rel, struct cld_error *err);

/* Runs `body(c, arg, err)` (enqueues the operation), keeps a copy of every output, poisons, runs it
 * again and demands equal bits. In-out tensors are restored in between. Guards must be whole and
 * plain inputs unchanged. */
enum cld_status cld_check_twice(struct cld_check *c,
                                enum cld_status (*body)(struct cld_check *c, void *arg,
                                                        struct cld_error *err),
                                void *arg, struct cld_error *err);

/* Marks the case as failed for another reason. */
void cld_check_fail(struct cld_check *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Ends the case: prints its line and counts it. */
void cld_check_end(struct cld_check *c);

/* Frees what the last case held. */
void cld_check_close(struct cld_check *c);

#endif
