/* bench.h - measurements on one device: what ran, how long it took, and records of that as text.
 *
 * A record is one measured thing at one point: an operation with its shape, or a training step.
 * What is measured comes from a configuration ([bench] and the drafter's geometry); whoever wants
 * several points calls cld_bench_point once for each with the same sink.
 *
 * Thread: main. */
#ifndef CLD_BENCH_H
#define CLD_BENCH_H

#include <stdio.h>

#include "config.h"
#include "device.h"
#include "feed.h"
#include "queue.h"
#include "setup.h"

enum { cld_bench_max_dims = 12 };

struct cld_bench_dim {
    const char *name; /* "m" */
    size_t n;
};

struct cld_bench_record {
    const char *what;  /* as in bench.what */
    char name[48];     /* "NT", "rmsnorm backward" */
    struct cld_bench_dim shape[cld_bench_max_dims];
    size_t n_dims;
    char storage[48];  /* "fp32", or of each operand */
    char variant[160]; /* kernels that ran, as the operation names them */
    /* Of one run; 0 where there is nothing to say. */
    double flop, bytes; /* useful operations; bytes that must move */
    double tokens;      /* of context */
    size_t device_bytes; /* held on the device at most */
    /* A repeat enqueues `runs` runs and waits; times are of one run, over the repeats. */
    size_t repeats, runs;
    double median_ms, min_ms, max_ms;
};

/* Adds a dimension; more than cld_bench_max_dims are a mistake of the caller and left out. */
void cld_bench_dim(struct cld_bench_record *r, const char *name, size_t n);

/* --- records as text (bench_out.c) ------------------------------------------------------------ */

enum cld_bench_format { CLD_BENCH_MD, CLD_BENCH_CSV, CLD_BENCH_JSON, CLD_BENCH_JSONL };

/* Where records go. Each is written when it is complete. */
struct cld_bench_sink {
    FILE *to; /* borrowed */
    enum cld_bench_format format;
    const struct cld_device_info *device; /* borrowed */
    size_t n_records;                     /* so far */
};

/* Around all records; a sink that is begun is ended even after an error, or JSON has no end. */
void cld_bench_begin(struct cld_bench_sink *sink);
enum cld_status cld_bench_write(struct cld_bench_sink *sink, const struct cld_bench_record *r,
                                struct cld_error *err);
/* CLD_E_IO if something could not be written. */
enum cld_status cld_bench_end(struct cld_bench_sink *sink, struct cld_error *err);

/* --- running ---------------------------------------------------------------------------------- */

struct cld_bench {
    const struct cld_config *cfg;
    const struct cld_setup *setup; /* NULL where products alone are measured */
    struct cld_feed *feed;         /* with training rows where steps are measured; else NULL */
    const struct cld_device_info *device;
    const struct cld_devices *devices; /* all; for workers of the configuration */
    struct cld_bench_sink *sink;
    bool kernel_times; /* log the time of each kernel of a step */
};

/* Everything that cfg (checked for CLD_CONFIG_BENCH) asks for, on the device that `device` names
 * (NULL: the configuration's). */
enum cld_status cld_bench_run(const struct cld_config *cfg, const char *device,
                              enum cld_bench_format format, bool kernel_times, FILE *to,
                              struct cld_error *err);

/* One point: what the configuration in *b asks for. */
enum cld_status cld_bench_point(const struct cld_bench *b, struct cld_error *err);

/* Enqueues the work of one run. */
typedef enum cld_status cld_bench_fn(struct cld_queue *q, void *arg, struct cld_error *err);

/* Warms up, finds how many runs a repeat takes, measures, completes *r with times, writes it. */
enum cld_status cld_bench_measure(const struct cld_bench *b, struct cld_queue *q, cld_bench_fn *run,
                                  void *arg, struct cld_bench_record *r, struct cld_error *err);

/* Median, least and most of ms[0..n), n > 0, each of `runs` runs; sorts ms. */
void cld_bench_times(struct cld_bench_record *r, double *ms, size_t n, size_t runs);

/* --- what can be measured; each writes its records -------------------------------------------- */

enum cld_status cld_bench_gemm(const struct cld_bench *b, struct cld_queue *q,
                               struct cld_error *err);
enum cld_status cld_bench_attention(const struct cld_bench *b, struct cld_queue *q,
                                    struct cld_error *err);
enum cld_status cld_bench_loss(const struct cld_bench *b, struct cld_queue *q,
                               struct cld_error *err);
enum cld_status cld_bench_elementwise(const struct cld_bench *b, struct cld_queue *q,
                                      struct cld_error *err);
/* These open queues of their own. */
enum cld_status cld_bench_target(const struct cld_bench *b, struct cld_error *err);
enum cld_status cld_bench_step(const struct cld_bench *b, struct cld_error *err);
enum cld_status cld_bench_pipeline(const struct cld_bench *b, struct cld_error *err);

/* The record of steps of one worker on b->device, which runs the target, too (with bench.target).
 * *cpu_ms: processor time of a step, on average. */
enum cld_status cld_bench_one_worker(const struct cld_bench *b, struct cld_bench_record *r,
                                     double *cpu_ms, struct cld_error *err);
/* A record of steps of the configuration: all but `variant` and `device_bytes`; sorts ms[n]. */
void cld_bench_step_record(const struct cld_bench *b, const char *what, const char *name,
                           double *ms, size_t n, double tokens, struct cld_bench_record *r);

#endif
