/* bench.h - measurements on one device: what ran, how long it took.
 *
 * A record is one measured thing at one point: an operation with its shape, or a training step.
 * What is measured comes from a configuration ([bench] and the drafter's geometry). bench_run.h
 * goes through the points of a sweep.
 *
 * Thread: main. */
#ifndef CLD_BENCH_BENCH_H
#define CLD_BENCH_BENCH_H

#include <stdio.h>

#include "config/config.h"
#include "data/feed.h"
#include "model/setup.h"
#include "opencl/device.h"
#include "opencl/queue.h"

enum { cld_bench_max_dims = 12 };

struct cld_bench_dim {
    const char *name; /* "m" */
    size_t n;
};

struct cld_bench_result {
    const char *what; /* as in bench.what */
    char name[48];    /* "NT", "rmsnorm backward" */
    struct cld_bench_dim shape[cld_bench_max_dims];
    size_t n_dims;
    char storage[48];  /* "fp32", or of each operand */
    char variant[160]; /* kernels that ran, as the operation names them */
    /* Of one run; 0 where there is nothing to say. */
    double flop, bytes;  /* useful operations; bytes that must move */
    bool off_device;     /* they move to or from the host: its memory is no bound for them */
    double tokens;       /* of context */
    size_t device_bytes; /* held on the device at most */
    /* A repeat enqueues `runs` runs and waits; times are of one run, over the repeats. */
    size_t repeats, runs;
    double median_ms, min_ms, max_ms;
};

/* Adds a dimension; more than cld_bench_max_dims are a mistake of the caller and left out. */
void cld_bench_dim(struct cld_bench_result *r, const char *name, size_t n);

enum cld_bench_format {
    CLD_BENCH_MD,
    CLD_BENCH_CSV,
    CLD_BENCH_JSON,
    CLD_BENCH_JSONL,
    CLD_BENCH_SQL
};

/* Where records go, each when it is complete. */
struct cld_bench_sink {
    enum cld_status (*put)(void *arg, const struct cld_bench_result *r, struct cld_error *err);
    void *arg;
};
enum cld_status cld_bench_write(struct cld_bench_sink *sink, const struct cld_bench_result *r,
                                struct cld_error *err);

/* --- running ---------------------------------------------------------------------------------- */

struct cld_bench {
    const struct cld_config *cfg;
    const struct cld_setup *setup; /* NULL where products alone are measured */
    struct cld_feed *feed;         /* with training rows where steps are measured; else NULL */
    const struct cld_device_info *device;
    const struct cld_devices *devices; /* all; for workers of the configuration */
    struct cld_bench_sink *sink;
    bool kernel_times; /* log the time of each kernel of a step, and of the target's passes */
};

/* One kind of what can be measured. Products and transfers need no setup, steps a feed with rows.
 */
enum cld_status cld_bench_kind(const struct cld_bench *b, enum cld_bench_what what,
                               struct cld_error *err);
bool cld_bench_needs_setup(enum cld_bench_what what);
bool cld_bench_needs_rows(enum cld_bench_what what);
/* Which rates of a device bound its records: none of whole steps, that of copies, or products, too.
 */
enum cld_bench_bound { CLD_BENCH_UNBOUND, CLD_BENCH_BY_COPIES, CLD_BENCH_BY_BOTH };
enum cld_bench_bound cld_bench_bound(enum cld_bench_what what);

/* CLD_E_INTERRUPTED once a signal asked to stop. */
enum cld_status cld_bench_go_on(struct cld_error *err);
/* Whether bench.limit_s has passed since `begun_ms`. */
bool cld_bench_is_over(const struct cld_bench *b, double begun_ms);

/* Enqueues the work of one run. */
typedef enum cld_status cld_bench_fn(struct cld_queue *q, void *arg, struct cld_error *err);

/* Warms up, finds how many runs a repeat takes, measures, completes *r with times, writes it. */
enum cld_status cld_bench_measure(const struct cld_bench *b, struct cld_queue *q, cld_bench_fn *run,
                                  void *arg, struct cld_bench_result *r, struct cld_error *err);

/* Median, least and most of ms[0..n), n > 0, each of `runs` runs; sorts ms. */
void cld_bench_times(struct cld_bench_result *r, double *ms, size_t n, size_t runs);

/* --- what can be measured; each writes its records -------------------------------------------- */

enum cld_status cld_bench_gemm(const struct cld_bench *b, struct cld_queue *q,
                               struct cld_error *err);
enum cld_status cld_bench_attention(const struct cld_bench *b, struct cld_queue *q,
                                    struct cld_error *err);
enum cld_status cld_bench_loss(const struct cld_bench *b, struct cld_queue *q,
                               struct cld_error *err);
enum cld_status cld_bench_elementwise(const struct cld_bench *b, struct cld_queue *q,
                                      struct cld_error *err);
/* Copies of bench.transfer_kib within the device, and to and from the host. */
enum cld_status cld_bench_transfer(const struct cld_bench *b, struct cld_queue *q,
                                   struct cld_error *err);
/* The first of them alone, for any size. */
enum cld_status cld_bench_device_copy(const struct cld_bench *b, struct cld_queue *q,
                                      size_t n_bytes, struct cld_error *err);
/* Blocks of bench.transfer_kib from the first target's device to this one, through the ring. */
enum cld_status cld_bench_ring(const struct cld_bench *b, struct cld_queue *q,
                               struct cld_error *err);
/* These open queues of their own. */
enum cld_status cld_bench_build(const struct cld_bench *b, struct cld_error *err);
enum cld_status cld_bench_target(const struct cld_bench *b, struct cld_error *err);
enum cld_status cld_bench_step(const struct cld_bench *b, struct cld_error *err);
enum cld_status cld_bench_pipeline(const struct cld_bench *b, struct cld_error *err);

/* A queue of b->device as operations have it. `profile`: it times every kernel. */
enum cld_status cld_bench_open_queue(const struct cld_bench *b, bool profile,
                                     struct cld_queue **out, struct cld_error *err);

/* Logs the kernels of a queue that times them, of one of the n_runs runs which took wall_ms
 * together, longest first. `of`: "a step". */
enum cld_status cld_bench_log_kernels(struct cld_queue *q, const char *of, double n_runs,
                                      double wall_ms, struct cld_error *err);

/* The record of steps of one worker on b->device, which runs the target, too (with bench.target).
 * *cpu_ms: processor time of a step, on average. */
enum cld_status cld_bench_one_worker(const struct cld_bench *b, struct cld_bench_result *r,
                                     double *cpu_ms, struct cld_error *err);
/* A record of steps of the configuration: all but `variant` and `device_bytes`; sorts ms[n]. */
void cld_bench_step_result(const struct cld_bench *b, const char *what, const char *name,
                           double *ms, size_t n, double tokens, struct cld_bench_result *r);

#endif
