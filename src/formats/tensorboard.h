/* tensorboard.h - event files that TensorBoard reads: a TFRecord stream of Event protocol buffers
 * with scalar summaries.
 *
 * The tag of a metric follows from its key alone, so all runs have the same: train/loss,
 * heldout/accepted_length, decoding/tokens_per_cycle, position/accuracy_1,
 * heldout_position/accuracy_1, decoding_position/taken_1, speed/step_ms. A number that is not
 * finite is left out.
 *
 * Event files are a convenience: one that cannot be written any more is a warning, once, and the
 * run goes on. Thread: one at a time. */
#ifndef CLD_FORMATS_TENSORBOARD_H
#define CLD_FORMATS_TENSORBOARD_H

#include <stdint.h>

#include "base/error.h"

struct cld_tensorboard;

/* Begins a new file in `dir`, whatever files are there. The run goes on after `resume_step` (0: it
 * begins): readers forget what earlier files say of later steps. CLD_E_IO. */
enum cld_status cld_tensorboard_open(const char *dir, int64_t resume_step,
                                     struct cld_tensorboard **out, struct cld_error *err);

/* One event with the scalars of a step. All of these do nothing for NULL. */
void cld_tensorboard_begin(struct cld_tensorboard *t, int64_t step);
void cld_tensorboard_scalar(struct cld_tensorboard *t, const char *key, double value);
void cld_tensorboard_end(struct cld_tensorboard *t);
void cld_tensorboard_close(struct cld_tensorboard *t);

#endif
