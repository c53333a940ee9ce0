/* trainer.h - a training run, from rows to checkpoints: starts the workers (pipeline.h), gives them
 * orders, and writes the run directory.
 *
 * Thread: main. Signals (signals.h) end it after a step with a checkpoint and CLD_E_INTERRUPTED. */
#ifndef CLD_TRAIN_TRAINER_H
#define CLD_TRAIN_TRAINER_H

#include "config/config.h"

/* Trains as cfg says (cld_config_check has passed). `resume`: a checkpoint directory, or a run
 * directory, whose newest valid checkpoint is taken; NULL begins anew. On an error what was trained
 * up to the last checkpoint is on disk. */
enum cld_status cld_train(const struct cld_config *cfg, const char *resume, struct cld_error *err);

#endif
