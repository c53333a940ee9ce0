/* visibility.h - a block must not see what decoding does not have: the target's state at its
 * anchor, and what follows. The check runs the kernels before the first step: which features change
 * a block's output?
 *
 * Thread: the owner of the drafter's queue. */
#ifndef CLD_MODEL_VISIBILITY_H
#define CLD_MODEL_VISIBILITY_H

#include "model/drafter.h"

/* Three forward passes over b, one document whose last anchor has tokens before and after it, with
 * made-up features, which overwrite the drafter's. Its weights must be those of a start, or
 * trained. CLD_E_NUMERIC: the last block sees a state at or after its anchor, or none before it.
 */
enum cld_status cld_drafter_check_visibility(struct cld_drafter *d, const struct cld_batch *b,
                                             struct cld_error *err);

#endif
