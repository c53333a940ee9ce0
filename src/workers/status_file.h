/* status_file.h - status.json of a run directory: the state of the run and of each worker, for
 * people and scripts.
 *
 * A thread of its own writes the file aside and renames it every two seconds, so it also shows a
 * worker that is stuck. A living run holds a lock on status.lock: if the lock can be acquired, the
 * run is over, however it ended.
 *
 * Thread: any; open and close on one. NULL is fine everywhere: nothing is noted. */
#ifndef CLD_WORKERS_STATUS_FILE_H
#define CLD_WORKERS_STATUS_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum cld_run_state {
    CLD_RUN_STARTING,
    CLD_RUN_TRAINING,
    CLD_RUN_EVALUATING,
    CLD_RUN_SAVING,
    CLD_RUN_FINISHED,
    CLD_RUN_INTERRUPTED,
    CLD_RUN_FAILED
};

enum cld_worker_state {
    CLD_WORKER_STARTING,    /* opens its device, plans, creates buffers, reads the target */
    CLD_WORKER_WARMING,     /* builds and launches every kernel */
    CLD_WORKER_WAITING,     /* for orders, or for the others */
    CLD_WORKER_NO_SLOT,     /* a target: the ring is full */
    CLD_WORKER_NO_FEATURES, /* a drafter: the ring is empty */
    CLD_WORKER_COMPUTING,
    CLD_WORKER_SAVING,
    CLD_WORKER_ENDED
};

struct cld_status_file;

/* Begins to write DIR/status.json. `names` [n_workers] and `devices` are copied. CLD_E_USAGE if
 * another process is running in the same directory; CLD_E_IO. */
enum cld_status cld_status_file_open(const char *dir, size_t n_steps, size_t n_workers,
                                     const char *const *names, const char *const *devices,
                                     struct cld_status_file **out, struct cld_error *err);
/* Writes the final state and stops; NULL-safe. `why` is NULL or the error. */
void cld_status_file_close(struct cld_status_file *b, const struct cld_error *why);

/* All of these do nothing for NULL. _features: where they come from, as text. */
void cld_status_file_features(struct cld_status_file *b, const char *text);
void cld_status_file_run(struct cld_status_file *b, enum cld_run_state state);
void cld_status_file_step(struct cld_status_file *b, int64_t step, double loss,
                          double accepted_length, double tokens_per_s);
void cld_status_file_heldout(struct cld_status_file *b, int64_t step, double loss,
                             double accepted_length);

void cld_status_file_worker(struct cld_status_file *b, size_t worker, enum cld_worker_state state);
void cld_status_file_memory(struct cld_status_file *b, size_t worker, size_t held_bytes,
                            size_t budget_bytes);

/* Whether a run whose status.json has this state has ended. Any other state belongs to a living
 * run: if none is alive, it died. */
bool cld_run_has_ended(const char *state);

/* Is the run in this directory alive? Also false where there is no lock file. */
bool cld_status_file_alive(const char *dir);

#endif
