/* pipeline.h - the threads of a run: target workers that fill the ring, drafter workers that train
 * from it, and the orders that drafters get.
 *
 * Every worker opens, plans, creates and warms up on a thread of its own, and only this thread uses
 * what it made (queue.h). The run begins when all have passed the barrier after the warm-up and are
 * sealed. Target workers follow the schedule of batches by themselves, as far ahead as the ring has
 * free slots. Drafter workers execute orders, all of them the same one at a time.
 *
 * A worker that fails stops the run: the others give up at their next wait, every thread ends, and
 * the error of the one that failed first is what calls here return.
 *
 * With drafters on several machines each has a pipeline, and all make the same calls in the same
 * order (link.h, machines.h).
 *
 * Thread: main only. */
#ifndef CLD_WORKERS_PIPELINE_H
#define CLD_WORKERS_PIPELINE_H

#include "data/feed.h"
#include "model/drafter_file.h"
#include "ops/tuning.h"
#include "workers/machines.h"
#include "workers/status_file.h"
#include "workers/step.h"
#include "workers/train_state.h"
#include "workers/worker_set.h"

/* Facts about a worker, after its warm-up and at its end. */
struct cld_worker_facts {
    char name[32], attention[96], gemm[96], program[64], tuning[cld_tuning_text_bytes];
    struct cld_device_info device;
    enum cld_dtype storage;
    size_t planned_bytes, pinned_bytes, held_bytes, peak_bytes, budget_bytes;
    struct cld_queue_counts counts;
};

struct cld_pipeline;

/* Starts all workers and waits until they are warmed up. Jobs begin at step `first`. `set` has been
 * planned; all arguments must outlive the pipeline, which alone uses the feed. `store`: of
 * features, NULL: none. Workers note their state in `status` (NULL: nowhere). Close *out whatever
 * the result was. */
enum cld_status cld_pipeline_open(const struct cld_config *cfg, const struct cld_setup *setup,
                                  const struct cld_worker_set *set,
                                  const struct cld_machines *machines, struct cld_feed *feed,
                                  struct cld_feature_store *store, struct cld_status_file *status,
                                  size_t first, struct cld_pipeline **out, struct cld_error *err);

/* Stops and joins all threads: what targets made ahead is dropped. NULL-safe. `ends`, if not NULL,
 * gets the facts of all workers at their end, targets first. CLD_E_INTERNAL if a program was built
 * or a buffer created after the barrier. */
enum cld_status cld_pipeline_close(struct cld_pipeline *p, struct cld_worker_facts *ends,
                                   struct cld_error *err);

/* Facts of worker i (targets, then drafters) as they were at the barrier. */
const struct cld_worker_facts *cld_pipeline_facts(const struct cld_pipeline *p, size_t i);

/* Sets the weights: of the checkpoint `resumed`; else fresh ones, or those of `init`. */
enum cld_status cld_pipeline_begin(struct cld_pipeline *p, const char *resumed, const char *init,
                                   struct cld_error *err);

/* One optimizer step. `update`: Adam's count. Scores are merged in the order of the drafters of all
 * machines; part_ms are means over those here. Waits and work of the ring since the last step are
 * in *waits. */
struct cld_pipeline_waits {
    double data_ms;        /* laying out batches, of a drafter without a ring */
    double slot_ms;        /* waiting for an empty slot, a target worker */
    double features_ms;    /* waiting for features, a drafter worker */
    const double *each_ms; /* [targets + drafters] of these, since the last step; the pipeline's */
    double ring_fill;      /* share of slots that are full now */
    /* Of the collectives between drafters: how long drafters waited for them, and how long they
     * were under way, including the time hidden by the backward pass. Means over the drafters here.
     */
    double exchange_ms, exchange_whole_ms;
};
enum cld_status cld_pipeline_step(struct cld_pipeline *p, double learning_rate, size_t update,
                                  struct cld_step_result *r, struct cld_pipeline_waits *waits,
                                  struct cld_error *err);

/* The evaluation that the schedule has after this step. */
enum cld_status cld_pipeline_evaluate(struct cld_pipeline *p, struct cld_score *score,
                                      struct cld_error *err);

/* The current weights of all drafters, as stored: [n_elems] in the storage of the run, to host
 * memory. */
enum cld_status cld_pipeline_weights(struct cld_pipeline *p, void *to, struct cld_error *err);

/* Copies what a checkpoint holds to host memory and begins to write it (checkpoint_writer.h) on
 * rank 0; all machines call it. Returns before it is written; waits first if the one before is not
 * written yet, and returns that one's error. */
enum cld_status cld_pipeline_save(struct cld_pipeline *p, const char *dir,
                                  const struct cld_drafter_file *f,
                                  const struct cld_train_state *st, size_t keep,
                                  struct cld_error *err);

/* The error of a checkpoint that could not be written, once. _check does not wait; _wait waits
 * until the last one is written. */
enum cld_status cld_pipeline_check_saved(struct cld_pipeline *p, struct cld_error *err);
enum cld_status cld_pipeline_wait_saved(struct cld_pipeline *p, struct cld_error *err);

/* A sentence: which side of the ring is too slow and how many workers would balance it. "" without
 * a ring or before it has worked. */
void cld_pipeline_balance(struct cld_pipeline *p, char *to, size_t n);

/* For tests: called by every worker before each of its micro-batches, on its thread; its error is
 * the worker's. NULL: not called. Set it while no pipeline is open. */
extern enum cld_status (*cld_pipeline_fault)(const char *worker, size_t number,
                                             struct cld_error *err);

#endif
