/* tune.h - finds parameters of kernels by trying them: one family and class of shapes at a time.
 *
 * Every candidate is filtered (its rule, then what the driver says of the built kernel), compared
 * with a reference in double precision, and then timed by events, alternating with the default. The
 * best of them must beat the default by more than the noise of these measurements, pass all checks
 * of its operation, and beat it once more; else the default stays. Parameters are tried one after
 * the other, each from the best row so far.
 *
 * Thread: the queue's owner. */
#ifndef CLD_BENCH_TUNE_H
#define CLD_BENCH_TUNE_H

#include <stdio.h>

#include "check/check.h"
#include "config/config.h"
#include "ops/tuning.h"

/* What is tuned. Functions return an error only if the device or memory fails; CLD_E_DEVICE while
 * a candidate is at work is the end of that candidate alone. */
struct cld_tune_subject {
    enum cld_tuned family;
    size_t class;
    enum cld_dtype storage;
    char of[256]; /* the shapes, in words */
    void *arg;
    /* Builds, or enqueues, what the queue's rows make of one pass over the shapes. */
    enum cld_status (*build)(struct cld_queue *q, void *arg, struct cld_error *err);
    enum cld_status (*pass)(struct cld_queue *q, void *arg, struct cld_error *err);
    const struct cld_check_op *quick, *whole; /* checks, with the row for all classes */
};

struct cld_tune_limits {
    size_t repeats;     /* samples of a candidate, each beside one of the default */
    double min_ms;      /* of a sample */
    double deadline_ms; /* cld_clock_ms() after which no candidate begins; 0: none */
};

struct cld_tune_result {
    struct cld_tuned_result record;
    bool complete; /* all candidates were looked at before the deadline */
    size_t n_candidates, n_filtered, n_wrong, n_slower;
};

/* The queue times its kernels (profile) and is not sealed; its rows are the defaults, and are so
 * again afterwards. With `to` a line for each candidate is printed. CLD_E_INTERRUPTED after a
 * signal. */
enum cld_status cld_tune_class(struct cld_queue *q, const struct cld_tune_subject *subject,
                               const struct cld_tune_limits *limits, FILE *to,
                               struct cld_tune_result *out, struct cld_error *err);

/* --- all families of a configuration (bench_tune.c) ------------------------------------------- */

struct cld_tune_options {
    const char *device;     /* as --device; NULL: the configuration's */
    const char *out;        /* the table's path; NULL: that of the device in runtime.cache_dir */
    double limit_s;         /* 0: none */
    bool skip[CLD_N_TUNED]; /* families that keep what they have */
    bool verbose;           /* a line for each candidate */
    FILE *to;               /* the result, as a table */
};

/* All that the configuration's plan has of what families of tuned kernels do (bench_subject.h);
 * without a target the products of bench.shapes. Writes the table of what was tuned, also after a
 * signal (then CLD_E_INTERRUPTED) or a failure. CLD_E_USAGE if there is nowhere to write, or
 * nothing was tuned. */
enum cld_status cld_tune_run(const struct cld_config *cfg, const struct cld_tune_options *o,
                             struct cld_error *err);

#endif
