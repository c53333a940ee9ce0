/* worker.h - one device at work: a queue, the target and the drafter on it, planned, budgeted,
 * created and warmed up together.
 *
 * Target features go from the target's taps straight into the drafter: both name the same tensor.
 * Thread: the thread that opens the worker owns everything in it. */
#ifndef CLD_WORKER_H
#define CLD_WORKER_H

#include "setup.h"
#include "target.h"

struct cld_worker_options {
    const char *name;
    bool train;    /* gradients and optimizer state */
    bool profile;  /* time every kernel */
    bool given_features; /* no target runs: the caller fills w->target.taps */
    size_t n_rows; /* rows of a micro-batch, at most */
};

struct cld_worker {
    const struct cld_setup *setup;
    const struct cld_config *cfg;
    struct cld_device_info device;
    struct cld_queue *q;
    struct cld_plan *plan;
    struct cld_target target;
    struct cld_drafter drafter;
    bool given_features;
    size_t budget_bytes, max_buffer_bytes;
};

/* Memory of the device that a run may use: memory.limit_gib, or what it reports less the reserve; and
 * its largest buffer. */
size_t cld_worker_budget_bytes(const struct cld_config *cfg, const struct cld_device_info *device);
size_t cld_worker_max_buffer_bytes(const struct cld_config *cfg,
                                   const struct cld_device_info *device);

/* Opens the queue and plans every buffer; nothing is allocated on the device. `cfg` and `setup` must
 * outlive the worker. Free with cld_worker_close whatever the result was. */
enum cld_status cld_worker_plan(struct cld_worker *w, const struct cld_config *cfg,
                                const struct cld_setup *setup, const struct cld_device_info *device,
                                const struct cld_worker_options *options, struct cld_error *err);

/* Checks the plan against the budget: CLD_E_MEMORY with the numbers, before anything is created. */
enum cld_status cld_worker_check(const struct cld_worker *w, struct cld_error *err);

/* Creates and touches the buffers and loads the target. The drafter's weights are still to be set. */
enum cld_status cld_worker_create(struct cld_worker *w, struct cld_error *err);

/* Builds and launches every kernel variant of the run by running one step of the largest shapes on
 * made-up rows and weights - target, drafter, loss, backward, optimizer - then seals the queue. The
 * drafter's weights and moments are to be set afterwards. */
enum cld_status cld_worker_warm_up(struct cld_worker *w, struct cld_error *err);

void cld_worker_close(struct cld_worker *w); /* NULL-safe */

/* Runs the target over the batch's context tokens, filling the drafter's features; does nothing where
 * they are given. */
enum cld_status cld_worker_features(struct cld_worker *w, const struct cld_batch *b,
                                    struct cld_error *err);

/* Sum of squares of the gradient, in *norm its root; one AdamW step with it clipped to cfg's
 * train.clip; gradients zeroed. A gradient that is not finite changes nothing and sets *skipped. */
enum cld_status cld_worker_optimize(struct cld_worker *w, double learning_rate, size_t step,
                                    double *norm, bool *skipped, struct cld_error *err);

#endif
