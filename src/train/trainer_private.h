/* trainer_private.h - a training run at work, for the files trainer*.c alone. Thread: main. */
#ifndef CLD_TRAIN_TRAINER_PRIVATE_H
#define CLD_TRAIN_TRAINER_PRIVATE_H

#include "formats/tensorboard.h"
#include "model/drafter_layout.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/run_decoder.h"
#include "train/trainer.h"
#include "workers/machines.h"
#include "workers/pipeline.h"
#include "workers/status_file.h"
#include "workers/worker_set.h"

struct cld_trainer {
    const struct cld_config *cfg;
    struct cld_setup setup;
    struct cld_feed *feed;
    struct cld_feature_store *store; /* NULL: features online */
    char features[300];              /* where they come from, for people */
    struct cld_devices *devices;
    struct cld_link *link; /* NULL: no other machine takes part */
    struct cld_machines machines;
    struct cld_worker_set set;
    struct cld_pipeline *pipeline;
    struct cld_run_decoder decoder; /* if set.decodes */
    struct cld_status_file *status;
    struct cld_worker_facts *ends; /* [n_workers], after the pipeline was closed */
    struct cld_drafter_file file;  /* config.json of checkpoints */
    struct cld_train_state state;
    struct cld_metrics *metrics;
    struct cld_tensorboard *events; /* NULL: not asked for */
    struct cld_progress progress;
    char *dir, *checkpoints, *resumed, *init; /* directories; `dir` is run.dir, resolved */
    bool goes_on; /* the resumed checkpoint is one of this directory's run */
    int64_t skips_in_a_row, saved_step;
};

/* What one step gave. */
struct cld_trainer_step {
    struct cld_step_result got;
    struct cld_pipeline_waits waits;
    double learning_rate, step_ms;
};

/* --- trainer_state.c: the state of a run, new or resumed --- */

/* Workers of this process. */
size_t cld_trainer_n_workers(const struct cld_trainer *t);

/* One of several machines keeps the run's directory. */
bool cld_trainer_writes(const struct cld_trainer *t);

/* Facts of the first drafter, which stand for the run in metrics. */
const struct cld_worker_facts *cld_trainer_first_drafter(const struct cld_trainer *t);

/* Reads the checkpoint that the run resumes from, or makes a new state. CLD_E_USAGE: the
 * configuration has changed. */
enum cld_status cld_trainer_begin_state(struct cld_trainer *t, const char *resume,
                                        struct cld_error *err);
/* Finds the drafter that the weights start from (drafter.init). */
enum cld_status cld_trainer_find_init(struct cld_trainer *t, struct cld_error *err);
/* Gives the workers their first weights. */
enum cld_status cld_trainer_begin_weights(struct cld_trainer *t, struct cld_error *err);
/* Stores in the state what ran where, for checkpoints. */
enum cld_status cld_trainer_note_facts(struct cld_trainer *t, struct cld_error *err);

/* --- trainer_metrics.c: results of a step, an evaluation, a decoding --- */

enum cld_status cld_trainer_write_step(struct cld_trainer *t, const struct cld_trainer_step *r,
                                       struct cld_error *err);
enum cld_status cld_trainer_evaluate(struct cld_trainer *t, struct cld_error *err);
enum cld_status cld_trainer_decode(struct cld_trainer *t, struct cld_error *err);

#endif
