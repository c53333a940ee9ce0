/* step.h - one optimizer step on a worker: passes over the step's documents, whose gradients add
 * up, then the update.
 *
 * Thread: the owner of the worker's queue. */
#ifndef CLD_WORKERS_STEP_H
#define CLD_WORKERS_STEP_H

#include "workers/worker.h"

/* Parts of a step, in their order in a pass; the optimizer comes once, after the last pass. */
enum cld_step_part {
    CLD_STEP_BATCH,  /* documents laid out on the host */
    CLD_STEP_TARGET, /* features of their tokens */
    CLD_STEP_FORWARD,
    CLD_STEP_LOSS, /* head, cross-entropy, its gradient */
    CLD_STEP_BACKWARD,
    CLD_STEP_OPTIMIZER, /* norm of the gradient, clipping, AdamW */
    CLD_N_STEP_PARTS
};
const char *cld_step_part_name(enum cld_step_part p);

/* Zero-initialise, set the first two, free with cld_step_free. */
struct cld_step {
    struct cld_worker *w; /* borrowed */
    bool split; /* wait for the device after each part, so that part_ms is the time of its own work
                 */
    struct cld_batch batch; /* memory from step to step, like the rest */
    struct cld_document *pass;
    size_t n_pass;
};

struct cld_step_result {
    struct cld_score score;
    double grad_norm; /* before clipping */
    /* Host clock, all passes together. Without `split` work of the device may show in a later part
     * than its own. */
    double part_ms[CLD_N_STEP_PARTS];
    size_t n_tokens; /* of context */
    bool skipped;    /* the gradient was not finite: nothing was updated */
};

/* Target (if the worker runs it), forward, loss and backward of one laid-out micro-batch; adds
 * to *r. The batch is not needed after the call. */
enum cld_status cld_step_pass(struct cld_step *t, const struct cld_batch *b, double inv_sum_weight,
                              struct cld_step_result *r, struct cld_error *err);

/* Runs the documents in as many passes as the plan asks for. update: count of updates, from 1. */
enum cld_status cld_step_run(struct cld_step *t, const struct cld_document *docs, size_t n_docs,
                             double learning_rate, size_t update, struct cld_step_result *r,
                             struct cld_error *err);
void cld_step_free(struct cld_step *t); /* NULL-safe */

#endif
