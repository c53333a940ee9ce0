/* tuning.h - all families of tuned kernels (tunable_kernel.h), and the rows that a run uses.
 *
 * Measured rows come from a table on disk (tuning_file.c) or from one that is built in. Every other
 * row is the family's default; without a table all of them are.
 *
 * A struct cld_tuning is a value: filled once, then read. Queues copy the one they are opened with
 * (queue.h), so rows are the queue's and need no lock. Functions here are pure or read files; any
 * thread. */
#ifndef CLD_OPS_TUNING_H
#define CLD_OPS_TUNING_H

#include "ops/tunable_kernel.h"

/* The family of an index, and the index of a name (CLD_N_TUNED: no family has it). */
const struct cld_tunable_kernel *cld_tunable_kernel(enum cld_tuned f);
enum cld_tuned cld_tuned_named(const char *name);
/* --- rows that a run uses --------------------------------------------------------------------- */

/* All rows of the queue, with defaults for families that have none yet. Thread: the queue's owner.
 */
const struct cld_tuning *cld_queue_tuning(const struct cld_queue *q);

void cld_tuning_defaults(const struct cld_device_info *d, struct cld_tuning *out);

/* The rows of `setting`, which is runtime.tuning: NULL or "auto" is the table that was measured on
 * this machine, in `cache_dir` (cache.h; NULL: there is none), and where that has no row the one
 * that is built in; "off" is no table; all else a file. What is wrong with an automatic table is
 * said in out->note and costs its rows; a named file is refused: CLD_E_INPUT. Rows of other kernel
 * sources, or of another driver, are passed over and noted. */
enum cld_status cld_tuning_load(const char *setting, const char *cache_dir,
                                const struct cld_device_info *d, struct cld_tuning *out,
                                struct cld_error *err);

/* Rows of the family that are not the default. */
bool cld_tuning_changes(const struct cld_tuning *t, enum cld_tuned f,
                        const struct cld_device_info *d);

/* "gemm_cpu: default", "gemm_cpu: few_rows default, other cache depth=384; ...": of each family
 * that works on the queue. */
enum { cld_tuning_text_bytes = 1536 };
void cld_tuning_text(const struct cld_queue *q, char *to, size_t n_bytes);

/* --- tables on disk (tuning_file.c) ----------------------------------------------------------- */

/* A row as it was measured. */
struct cld_tuned_result {
    enum cld_tuned family;
    size_t class;
    struct cld_tuned_row row;
    double ms, default_ms; /* of a pass over the shapes; equal where the default won */
    double noise;          /* share of it */
    char of[256];          /* the shapes */
};

/* Where the table of a device is kept: DIR/tuning-HASH.json. NULL without memory; freed with
 * free(). */
char *cld_tuning_path(const char *cache_dir, const struct cld_device_info *d);

/* Whether a table of this device may be written to `path`, before there is anything to write: the
 * file is empty or a table of this device (CLD_E_INPUT if not), and a file can be made beside it
 * (CLD_E_USAGE without a name, CLD_E_IO). CLD_TUNING_AUTOMATIC: that of cld_tuning_path, where what
 * others may have written is refused too. Warns of rows that will be lost. */
enum cld_tuning_place { CLD_TUNING_NAMED, CLD_TUNING_AUTOMATIC };
enum cld_status cld_tuning_writable(const char *path, enum cld_tuning_place place,
                                    const struct cld_device_info *d, struct cld_error *err);

/* Writes the records into the table of this device at `path`, written aside and renamed. Rows that
 * are there for other families and classes stay if they are still good: of these kernel sources and
 * this driver. CLD_E_IO, CLD_E_MEMORY. */
enum cld_status cld_tuning_save(const char *path, const struct cld_device_info *d,
                                const struct cld_tuned_result *records, size_t n,
                                struct cld_error *err);

/* Reads the text of a table; rows that fit the device go to *out with this origin. Unless
 * the table is built in, its driver and platform must be this device's, or its rows are ignored.
 * CLD_E_INPUT if anything about it is wrong. *is_of_device: it is for this device. */
enum cld_status cld_tuning_parse(const char *text, size_t n_bytes, const char *name,
                                 const struct cld_device_info *d, enum cld_tuning_origin origin,
                                 struct cld_tuning *out, bool *is_of_device, struct cld_error *err);

/* The i-th table that is built in, and its file's name; NULL after the last. */
const char *cld_tuning_shipped(size_t i, const char **name, size_t *n_bytes);

#endif
