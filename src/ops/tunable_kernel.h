/* tunable_kernel.h - a family of tuned kernels: its parameters, their defaults, and the row that a
 * queue uses.
 *
 * A family is a group of kernels with parameters of its own, described beside its operation
 * (gemm_cpu.c and others). A row is one value for each parameter. There is a row for each class of
 * shapes, since GEMMs of few rows are fastest with other tiles than those of many. The registry of
 * all families, and tables on disk, are above this file (tuning.h).
 *
 * Functions here are pure; any thread, except where a queue is named: its owner. */
#ifndef CLD_OPS_TUNABLE_KERNEL_H
#define CLD_OPS_TUNABLE_KERNEL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/sha256.h"
#include "opencl/queue.h"

struct cld_tuned_param {
    const char *name, *unit; /* "depth", "steps of k" */
    size_t values[cld_tuned_values];
    size_t n_values; /* all that there can be, in rising order */
    const char *what;
};

struct cld_tunable_kernel {
    enum cld_tuned id; /* its index in the queue's rows */
    const char *name;  /* "gemm_cpu" */
    const char *what;
    const char *files[4];                   /* of its kernels, without includes; ends with NULL */
    const char *classes[cld_tuned_classes]; /* of shapes; fewer end with NULL */
    struct cld_tuned_param params[cld_tuned_params];
    size_t n_params;
    /* What runs if no row was measured. */
    struct cld_tuned_row (*defaults)(const struct cld_device_info *d);
    /* Why the device cannot run a row of possible values ("registers: ..."); NULL: it can. The
     * text may be written to `to`. */
    const char *(*objection)(const struct cld_device_info *d, const struct cld_tuned_row *row,
                             char *to, size_t n_bytes);
    /* Whether kernels of the family run on this queue. */
    bool (*works)(const struct cld_queue *q);
};

size_t cld_tuned_n_classes(const struct cld_tunable_kernel *f);
bool cld_tuned_row_equal(const struct cld_tuned_row *a, const struct cld_tuned_row *b);
/* "rows=6 vectors=1 ..."; with `other`, only what differs from that row ("" if nothing does). */
void cld_tuned_row_text(const struct cld_tunable_kernel *f, const struct cld_tuned_row *row,
                        const struct cld_tuned_row *other, char *to, size_t n_bytes);

/* Why this row cannot be: a value that the parameter does not have, or what the device cannot do;
 * NULL: it can be. */
const char *cld_tuned_row_objection(const struct cld_tunable_kernel *f,
                                    const struct cld_device_info *d,
                                    const struct cld_tuned_row *row, char *to, size_t n_bytes);

/* The hash of the family's kernel files with their includes. CLD_E_INTERNAL, CLD_E_MEMORY. */
enum cld_status cld_tuned_sources(const struct cld_tunable_kernel *f,
                                  char hash[CLD_SHA256_HEX_BYTES], struct cld_error *err);

/* The row that this queue uses for a class of shapes. If the queue was opened without rows it gets
 * the defaults of its device at the first call. */
const struct cld_tuned_row *cld_queue_row(const struct cld_queue *q,
                                          const struct cld_tunable_kernel *f, size_t class);
/* For tuners, on a queue that is not sealed: the row from now on. */
void cld_queue_set_row(struct cld_queue *q, const struct cld_tunable_kernel *f, size_t class,
                       const struct cld_tuned_row *row);

#endif
