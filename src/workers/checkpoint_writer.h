/* checkpoint_writer.h - writes a checkpoint on a thread of its own while training goes on.
 *
 * The arrays are copied to host memory first (the snapshot, a struct cld_image); the writer hashes
 * and writes from there. At most one checkpoint is being written. A run that is killed meanwhile
 * keeps its older checkpoints: an unfinished one has no name yet (ckptdir.h).
 *
 * Thread: one thread opens, starts and closes; any thread may wait. */
#ifndef CLD_WORKERS_CHECKPOINT_WRITER_H
#define CLD_WORKERS_CHECKPOINT_WRITER_H

#include <pthread.h>
#include <stdbool.h>

#include "workers/checkpoint.h"

struct cld_checkpoint_writer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open, stop;        /* under the lock, as all below */
    bool busy;              /* a checkpoint is being written */
    struct cld_error error; /* of a checkpoint that failed, until _wait or _poll returned it */
    /* The checkpoint: set by _start while the thread is idle. */
    const struct cld_drafter *drafter; /* names and shapes are read, no device memory */
    struct cld_image image;
    struct cld_drafter_file file;
    struct cld_checkpoint_place place; /* texts are owned */
};

/* Starts the thread. CLD_E_MEMORY. */
enum cld_status cld_checkpoint_writer_open(struct cld_checkpoint_writer *w, struct cld_error *err);

/* Begins to write a checkpoint of `image`, which must not change until the writer is idle again;
 * everything else is copied. The writer must be idle (_wait). CLD_E_MEMORY, CLD_E_NUMERIC. */
enum cld_status cld_checkpoint_writer_start(struct cld_checkpoint_writer *w, const char *dir,
                                            const struct cld_drafter *d,
                                            const struct cld_image *image,
                                            const struct cld_drafter_file *f,
                                            const struct cld_train_state *st, size_t keep,
                                            struct cld_error *err);

/* Waits until no checkpoint is being written. Returns the error of the one before, once. Returns at
 * once for a writer that is not open. */
enum cld_status cld_checkpoint_writer_wait(struct cld_checkpoint_writer *w, struct cld_error *err);

/* The same, and leaves the error to others: for the thread that owns the memory of the image,
 * before it frees it. */
void cld_checkpoint_writer_wait_idle(struct cld_checkpoint_writer *w);

/* The error of a checkpoint that has failed, once; does not wait. */
enum cld_status cld_checkpoint_writer_poll(struct cld_checkpoint_writer *w, struct cld_error *err);

/* Finishes what is being written and ends the thread. An error that was not collected becomes a
 * warning. */
void cld_checkpoint_writer_close(struct cld_checkpoint_writer *w);

#endif
