/* batch_schedule.h - which micro-batch is for which drafter, and in which order: the jobs of a run.
 *
 * A job is one optimizer step or one evaluation of the held-out rows. The order of jobs follows
 * from the configuration alone. The rows of a step are split into equal contiguous parts, one a
 * drafter, and each part is cut into micro-batches that fit the plan. Micro-batches are numbered
 * through all jobs. In a job drafters alternate: the first micro-batch of each drafter, the second
 * of each, ... So do held-out micro-batches. With drafters on several machines all machines compute
 * the same schedule; each uses the micro-batches of its own drafters and numbers these.
 *
 * Thread: any. Each thread that works through the jobs is one of the n_users of the schedule. The
 * first user that asks for a job lays it out; it is freed when all users are past it. */
#ifndef CLD_WORKERS_BATCH_SCHEDULE_H
#define CLD_WORKERS_BATCH_SCHEDULE_H

#include "data/feature_store.h"
#include "data/feed.h"
#include "model/drafter.h"
#include "workers/machines.h"

enum cld_job_kind { CLD_JOB_STEP, CLD_JOB_EVALUATE };

struct cld_item {
    size_t number, drafter;
    const struct cld_document *docs;
    size_t n_docs;
};

struct cld_job {
    enum cld_job_kind kind;
    size_t step;           /* its number (from 0), or the steps done before an evaluation */
    double inv_sum_weight; /* 1 / sum of the loss weights of all its documents; 0: no weight */
    uint64_t digest;       /* of its tokens and anchors: equal on all machines, if rows are */
    struct cld_item *items;
    size_t n_items;
    /* of batch_schedule.c */
    struct cld_document *docs;
    int32_t *anchors, *prefixes;
    size_t n_docs, cap_docs, cap_items, n_left;
    struct cld_job *next;
};

/* Lays out the held-out rows (at most cfg's eval.rows) by themselves, for n_drafters. *out is freed
 * with cld_job_free. */
enum cld_status cld_job_heldout(struct cld_feed *f, const struct cld_config *cfg,
                                const struct cld_batch_rules *rules,
                                const struct cld_drafter_limits *limits, size_t n_drafters,
                                struct cld_job **out, struct cld_error *err);
void cld_job_free(struct cld_job *j); /* NULL-safe */

/* Whether there is an evaluation after this many steps. */
bool cld_batch_schedule_evaluates(const struct cld_config *cfg, const struct cld_feed *f,
                                  size_t n_done);

struct cld_batch_schedule;

/* Jobs from step `first` on. All arguments must outlive the schedule, which alone uses the feed.
 * An item's `drafter` counts those of this machine. Rows are claimed in `store` (NULL: none) as
 * their micro-batches are laid out. */
enum cld_status cld_batch_schedule_open(struct cld_feed *f, const struct cld_config *cfg,
                                        const struct cld_batch_rules *rules,
                                        const struct cld_drafter_limits *limits,
                                        struct cld_feature_store *store,
                                        const struct cld_machines *machines, size_t n_users,
                                        size_t first, struct cld_batch_schedule **out,
                                        struct cld_error *err);
void cld_batch_schedule_close(struct cld_batch_schedule *d); /* NULL-safe; all users are gone */

/* The job after `done` (NULL: the first), which this user gives back. NULL: there are no more. */
enum cld_status cld_batch_schedule_next(struct cld_batch_schedule *d, const struct cld_job *done,
                                        const struct cld_job **out, struct cld_error *err);

#endif
