/* check.h - operations against double-precision references, on any device.
 *
 * A check makes inputs (from a seed, rounded to their storage), runs an operation, and compares
 * with a reference that it computes itself in double. Outputs are poisoned before and have guard
 * zones around them; every case runs twice and must give equal bits. `cldraft check-kernels` runs
 * the table of all checks (check_table.c); tests run it on PoCL. Thread: the queue's owner. */
#ifndef CLD_CHECK_CHECK_H
#define CLD_CHECK_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "opencl/queue.h"
#include "opencl/tensor.h"

/* A tensor under test: device memory with guards before, after and between its rows (between them
 * alone on a device that sees stray accesses by itself), and its values on the host in double. The
 * operation may change an input only where the check says so, by setting `output` on it (an in-out
 * tensor). */
struct cld_check_tensor {
    struct cld_tensor t;
    double *value; /* [n_rows * n_cols], of inputs: what the device holds, exactly; else NULL */
    bool output;
    /* check.c's own: the buffer's bytes before the operation and after its first run */
    size_t n_bytes;
    unsigned char *before, *after;
};

/* How far a result may be from its reference: check_bounds.c says how much each is, and why. */
enum cld_check_bound {
    CLD_BOUND_EXACT,
    CLD_BOUND_F32_ONE,
    CLD_BOUND_F32,
    CLD_BOUND_F32_GRAD,
    CLD_BOUND_F32_SOFTMAX,
    CLD_BOUND_F32_LONG,
    CLD_BOUND_F32_TENSOR,
    CLD_BOUND_F32_STEEP,
    CLD_BOUND_F32_STEEP_GRAD,
    CLD_BOUND_BF16,
    CLD_BOUND_BF16_GRAD,
    CLD_BOUND_BF16_SOFTMAX_GRAD,
    CLD_BOUND_BF16_STEEP_GRAD,
    CLD_N_BOUNDS
};
struct cld_check_bound_info {
    const char *name; /* "bf16 gradient" */
    /* ||got - want||^2 <= rel^2 ||want||^2, and max |got - want| <= 8 rel max |want| */
    double rel;
    const char *why;
};
extern const struct cld_check_bound_info cld_check_bounds[CLD_N_BOUNDS];

enum cld_check_mode {
    CLD_CHECK_ALL,     /* every case */
    CLD_CHECK_GRAD,    /* cases with gradients that differences confirm, in more directions */
    CLD_CHECK_SUPPORT, /* the first case of each operation that has work to do */
    CLD_CHECK_PERF     /* cases of modest size, checked and timed; no other mode has them */
};

enum cld_check_verdict { CLD_CHECK_PASSED, CLD_CHECK_FAILED, CLD_CHECK_UNSUPPORTED };

/* What became of one case; of a whole operation where it is unsupported (name ""). */
struct cld_check_result {
    const char *op; /* borrowed from the table */
    char name[160];
    enum cld_kernel_family family;
    enum cld_dtype storage;
    enum cld_check_verdict verdict;
    /* The comparison that came closest to its bound, or passed it: the mean square of the errors
     * by that of the reference, the largest error by the reference's largest value. */
    enum cld_check_bound bound;
    double nmse, max;
    double worst; /* the larger part of what is allowed */
    /* Mode PERF: of one run, by the device's events or, where they say nothing, by the host's
     * clock; 0: not timed. Bytes of the operands, read and written once each. */
    double ms, bytes;
    bool by_events;
    char why[320];   /* it failed or is unsupported */
    char again[640]; /* the command that repeats a failure */
};
struct cld_check_results {
    size_t n, cap;
    struct cld_check_result *at;
};
void cld_check_results_free(struct cld_check_results *r);
/* Adds a copy of *result. CLD_E_MEMORY. */
enum cld_status cld_check_results_add(struct cld_check_results *r,
                                      const struct cld_check_result *result, struct cld_error *err);
/* "pass  cpu f32   NAME  (0.2 of tolerance)", or why not and the command that repeats it. */
void cld_check_print(const struct cld_check_result *r, FILE *to);
/* Of what was timed: 10^9 bytes of operands a second. */
double cld_check_gb_s(const struct cld_check_result *r);
/* "cpu" or "gpu"; "f32" or "bf16"; "pass", "FAIL" or "unsupported". */
const char *cld_kernel_family_name(enum cld_kernel_family family);
const char *cld_check_verdict_name(enum cld_check_verdict verdict);

struct cld_check_op;

struct cld_check {
    struct cld_queue *q;
    uint64_t seed;
    enum cld_dtype storage;        /* of activations and weights in this run: F32 or BF16 */
    const struct cld_check_op *op; /* whose bounds may be used; NULL: any */
    enum cld_check_mode mode;
    const char *only; /* the one case that runs; NULL: all */
    size_t max_elems; /* of all tensors of a case; larger ones are left out; 0: none */
    struct cld_check_results *results; /* NULL: cases are counted, no more */
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
    /* The case is not asked for: its function returns at once; calls that it makes anyway do
     * nothing. */
    bool skip;
    bool failed;
    struct cld_check_result now; /* errors and reason of the case */
    size_t n_gradients;          /* that differences confirmed in this case */
    bool worked;                 /* a case with work to do has run */
};

/* One operation of the table. `run` goes through its cases; it returns an error only when the
 * device or memory fails, not when numbers are wrong. */
struct cld_check_op {
    const char *name; /* "rmsnorm" */
    enum cld_status (*run)(struct cld_check *c, struct cld_error *err);
    unsigned bounds; /* 1 << cld_check_bound of each that its cases may use */
    bool gradients;  /* it has gradients that differences confirm */
    unsigned quirks; /* a device with one of these does not have it */
};
extern const struct cld_check_op cld_check_ops[]; /* ends with a NULL name */

/* Runs the table, or one operation of it, on a device: both kernel families, on queues of their
 * own, with activations in F32 and in BF16. */
struct cld_check_options {
    const char *op; /* only those whose name has it in it (CLD_E_USAGE: none has); NULL: all */
    bool skip[CLD_BF16 + 1]; /* by storage */
    uint64_t seed;
    const char *only; /* name of the one case to run; NULL: all */
    size_t max_elems; /* cases with larger tensors, all together, are left out; 0: none */
    enum cld_check_mode mode;
    const struct cld_check_op *ops; /* NULL: cld_check_ops */
    /* As on the command line, for the commands that repeat failures; or NULL. */
    const char *device, *program, *tuned;
    FILE *out;                         /* a line a case; NULL: failures only, to stderr */
    struct cld_check_results *results; /* gets every case, in the order of the table; or NULL */
    struct cld_queue_counts *counts;   /* builds and loads are added; or NULL */
    const char *cache_dir;             /* of programs; NULL: none */
    struct cld_program_options programs;
    const struct cld_tuning *tuning; /* rows of the queues; NULL: the defaults */
    bool progress;                   /* a line to the log for each operation that is done */
    bool keep_going;       /* a driver's failure in an operation is a failed case, not the end */
    bool modules_optional; /* and a SPIR-V module that is missing an unsupported operation */
    struct cld_variants *list;     /* not NULL: nothing is computed, variants are noted (queue.h) */
    enum cld_kernel_family family; /* AUTO: both */
};
/* Operations run beside each other, in up to eight threads with queues of their own: builds, waits
 * and references overlap. Lines come in the order of the table. */
enum cld_status cld_check_device(const struct cld_device_info *device,
                                 const struct cld_check_options *options, size_t *n_passed,
                                 size_t *n_failed, struct cld_error *err);

/* Begins a case: frees the tensors of the last one, sets the name (printf), restarts the inputs,
 * which are a pure function of seed, name and the order in which they are made. With c->skip set
 * afterwards the case is to be left alone. */
void cld_check_begin(struct cld_check *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Whether this run takes a case: one of modest size that is there to be timed, or one of the
 * others. A run that only lists variants takes both. */
bool cld_check_takes(const struct cld_check *c, bool timed);

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

/* Reads the output back, looks at its guards and compares with want [n_rows * n_cols], by the bound
 * (0/0 passes); non-finite never passes, on either side. I32 must be equal. A difference marks the
 * case as failed, and so does a bound that is not among those of the operation. */
enum cld_status cld_check_compare(struct cld_check *c, const struct cld_check_tensor *t,
                                  const double *want, enum cld_check_bound bound,
                                  struct cld_error *err);

/* Runs `body(c, arg, err)` (enqueues the operation), keeps a copy of every output, poisons, runs it
 * again and demands equal bits. In-out tensors are restored in between. Guards must be whole and
 * plain inputs unchanged. In mode PERF the first body of a case is timed then (check_perf.c). */
enum cld_status cld_check_twice(struct cld_check *c,
                                enum cld_status (*body)(struct cld_check *c, void *arg,
                                                        struct cld_error *err),
                                void *arg, struct cld_error *err);

/* Notes errors that were computed elsewhere; false: they pass the bound, and the caller says of
 * what. */
bool cld_check_within(struct cld_check *c, enum cld_check_bound bound, double nmse, double max);

/* Notes that this device, or these programs, cannot have the operation, and why. */
void cld_check_unsupported(struct cld_check *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Marks the case as failed for another reason. */
void cld_check_fail(struct cld_check *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Ends the case: counts and notes it. */
void cld_check_end(struct cld_check *c);

/* Frees what the last case held. */
void cld_check_close(struct cld_check *c);

/* Times `body` on the tensors of the case and notes it in c->now; outputs are left as they are
 * then. For cld_check_twice. */
enum cld_status cld_check_time(struct cld_check *c,
                               enum cld_status (*body)(struct cld_check *c, void *arg,
                                                       struct cld_error *err),
                               void *arg, struct cld_error *err);

#endif
