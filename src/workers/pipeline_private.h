/* pipeline_private.h - what the main thread (pipeline.c) and the workers' threads
 * (pipeline_worker.c) of a pipeline share; for these two alone. */
#ifndef CLD_WORKERS_PIPELINE_PRIVATE_H
#define CLD_WORKERS_PIPELINE_PRIVATE_H

#include "workers/checkpoint_writer.h"
#include "workers/batch_schedule.h"
#include "workers/collectives.h"
#include "workers/pipeline.h"
#include "workers/ring.h"

enum cld_order_kind {
    CLD_ORDER_BEGIN,
    CLD_ORDER_STEP,
    CLD_ORDER_EVALUATE,
    CLD_ORDER_WEIGHTS,
    CLD_ORDER_SAVE
};

/* What all drafters are to do now. Written by main while they wait. */
struct cld_order {
    enum cld_order_kind kind;
    const char *resumed, *init;
    double learning_rate;
    size_t update;
    void *weights;
    const char *dir;
    const struct cld_drafter_file *file;
    const struct cld_train_state *state;
    size_t keep;
};

/* A thread and its data; the main thread reads results after the thread has finished its order. */
struct cld_member {
    struct cld_pipeline *p;
    const struct cld_planned_worker *who;
    size_t index; /* among the targets, or among the drafters */
    pthread_t thread;
    struct cld_worker w;
    const struct cld_job *job; /* done last, or, if `ahead`, to be done next; NULL: no more */
    bool ahead;
    size_t n_items;        /* micro-batches of the job for drafters here */
    double inv_sum_weight; /* of the job */
    uint64_t digest;
    struct cld_slot *fetched; /* of the ring, whose features are on their way */
    struct cld_slot *unsent;  /* a target's: features are on their way there */
    size_t unsent_number;
    double unsent_ms;
    struct cld_step step;
    struct cld_step_result got;
    double data_ms, busy_ms; /* of this step; of all steps, waits left out */
    struct cld_worker_facts ready, end;
};

/* What a drafter did in a job, on any machine. */
struct cld_member_result {
    struct cld_score score;
    size_t n_tokens;
    uint64_t digest; /* of the job */
};

struct cld_pipeline {
    const struct cld_config *cfg;
    const struct cld_setup *setup;
    const struct cld_worker_set *set;
    struct cld_status_file *status;
    struct cld_batch_schedule *schedule;
    const struct cld_machines *machines;
    struct cld_sync own_sync, *sync; /* the link's, where there is one */
    struct cld_feature_store *store; /* NULL: none */
    struct cld_ring ring;
    struct cld_collectives collectives;
    struct cld_member *members; /* targets, then drafters */
    size_t n_members, n_started;
    double *waits_now, *waits_before;  /* [n_members] */
    struct cld_member_result *results; /* [drafters of all machines] */
    struct cld_ring_times times_before;
    size_t n_used;                       /* micro-batches of steps that drafters have used up */
    struct cld_checkpoint_writer writer; /* open on rank 0 */
    /* under the lock */
    size_t n_ready, n_out, order_number, n_done;
    bool all_out;
    struct cld_order order;
    struct cld_error failure; /* of the worker that failed first */
};

/* A ring lies between targets and drafters. */
static inline bool cld_pipeline_has_ring(const struct cld_pipeline *p)
{
    return p->set->n_targets > 0;
}

/* What a thread does, from its queue to its end. `arg` is its member. */
void *cld_member_run(void *arg);

#endif
