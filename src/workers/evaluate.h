/* evaluate.h - teacher-forced evaluation: the accepted length on held-out rows,
 * with an anchor at every position p where p and p + 1 are supervised.
 *
 * Thread: the owner of the worker's queue. */
#ifndef CLD_WORKERS_EVALUATE_H
#define CLD_WORKERS_EVALUATE_H

#include "data/feature_store.h"
#include "data/feed.h"
#include "workers/worker.h"

/* Adds one laid-out micro-batch to *score. */
enum cld_status cld_evaluate_pass(struct cld_worker *w, const struct cld_batch *b,
                                  struct cld_score *score, struct cld_error *err);

/* Runs the held-out set (at most cfg's eval.rows rows) through the worker; *score is overwritten.
 * `store` has the features of a worker that runs no target, else NULL. */
enum cld_status cld_evaluate(struct cld_worker *w, struct cld_feed *f,
                             struct cld_feature_store *store, struct cld_score *score,
                             struct cld_error *err);

/* CLD_E_NUMERIC if the loss of an evaluation is not finite: the drafter is broken, whatever its
 * other figures are. */
enum cld_status cld_evaluate_finite(const struct cld_score *score, struct cld_error *err);

#endif
