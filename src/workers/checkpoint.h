/* checkpoint.h - a run's checkpoints: RUN/checkpoints/step-N, each whole or not there.
 *
 *     config.json, drafter.safetensors   the drafter as published ones are laid out, bf16: it can
 *                                        be served or evaluated as it is
 *     drafter-ema.safetensors            with train.ema: the mean of weights, like that
 *     optimizer.safetensors              master., m., v. (and ema.) + published name, F32: exact
 *                                        bits
 *     state.json                         step, cursor, counters, configuration (train_state.h)
 *     manifest.json                      SHA-256 of each
 *
 * Resuming from one gives the bits of a run that was never stopped. `best` is a link to the one
 * with the best held-out accepted length. Crash safety and the choice of the newest are
 * ckptdir.h's.
 *
 * Thread: the queue's owner if device memory is read or written, and the rules of ckptdir.h. */
#ifndef CLD_WORKERS_CHECKPOINT_H
#define CLD_WORKERS_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/drafter_file.h"
#include "workers/train_state.h"

#define CLD_EMA_FILE "drafter-ema.safetensors"

/* Bytes of one checkpoint on disk, about. */
size_t cld_checkpoint_bytes(const struct cld_drafter *d);

/* Where a checkpoint goes and what is not an array. */
struct cld_checkpoint_place {
    const char *dir;   /* a run's checkpoints directory, made if need be */
    const char *state; /* the text of state.json (cld_train_state_text) */
    int64_t step, best_step;
    size_t keep; /* 0: all */
};

/* Writes DIR/step-N for N = place->step. If place->best_step is this step, `best` points at it.
 * Later steps become old-step-N (cld_ckptdir_rewind), and of the others only the `keep` newest and
 * the best stay. CLD_E_IO leaves the older ones as they were; a failure to remove old ones is a
 * warning, since the new one is there. `d` must be one that trains. With `image` the arrays are
 * read from there and any thread may call; NULL reads them from the device, of a drafter without
 * shards. */
enum cld_status cld_checkpoint_write(const struct cld_checkpoint_place *place,
                                     const struct cld_drafter *d, const struct cld_image *image,
                                     const struct cld_drafter_file *f, struct cld_error *err);

/* The same for a state that is not text yet. */
enum cld_status cld_checkpoint_save(const char *dir, const struct cld_drafter *d,
                                    const struct cld_image *image, const struct cld_drafter_file *f,
                                    const struct cld_train_state *st, size_t keep,
                                    struct cld_error *err);

/* Arrays of the optimizer state that a checkpoint of this drafter holds, [n_elems] F32 each. */
size_t cld_checkpoint_n_arrays(const struct cld_drafter *d);

/* Finds a checkpoint from what a person names: a checkpoint itself (also through `best`), a run
 * directory or its checkpoints directory. The newest valid one of a directory is used, and newer
 * ones are warned about (and renamed to bad-step-N if `set_bad_aside`). It has been verified. The
 * caller frees *resolved. CLD_E_INPUT if there is none. */
enum cld_status cld_checkpoint_find(const char *path, bool set_bad_aside, char **resolved,
                                    struct cld_error *err);

/* Finds a drafter from what a person names: a drafter's directory, a published one's or a
 * checkpoint's, as it is; else as _find does, moving nothing. The caller frees *out. */
enum cld_status cld_drafter_find(const char *path, char **out, struct cld_error *err);

/* The state of a checkpoint that _find gave. *st as in cld_train_state_read. */
enum cld_status cld_checkpoint_state(const char *resolved, struct cld_train_state *st,
                                     struct cld_error *err);

/* Master weights, moments and rounded weights of a checkpoint that _find gave into a drafter that
 * trains, its own part of them where it has shards. CLD_E_INPUT if its geometry is another. */
enum cld_status cld_checkpoint_load(const char *resolved, struct cld_drafter *d,
                                    struct cld_error *err);

/* The file of a checkpoint's mean of weights; the caller frees *out. CLD_E_INPUT if it has none. */
enum cld_status cld_checkpoint_ema(const char *dir, char **out, struct cld_error *err);

#endif
