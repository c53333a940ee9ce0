/* drafter_turned.h - matrices of a drafter kept turned beside themselves: for drafter.c and
 * drafter_run.c.
 *
 * The products y = x W^T of tensor cores read x and W turned, and turn what is not. Weights change
 * once a step, and AdamW has them at hand: it writes them turned as well (cl/adamw_turned.cl), which
 * costs less than to read them again. Norms and SwiGLU write x turned as well. The products of the
 * backward pass take weights as they lie. It costs the memory of the weights once more, so not with
 * recompute, which is there to save memory.
 *
 * Thread: as drafter.h. */
#ifndef CLD_DRAFTER_TURNED_H
#define CLD_DRAFTER_TURNED_H

#include "drafter.h"

/* Whether this drafter does so; before anything is planned, once the list of parameters is there. */
bool cld_drafter_would_turn(const struct cld_drafter *d);
/* Turned weights; after the weights themselves. */
void cld_drafter_plan_turned_weights(struct cld_drafter *d, struct cld_plan *plan);
/* Turned operands; after all other tensors. */
void cld_drafter_plan_turned_operands(struct cld_drafter *d, size_t n_ctx, size_t n_draft,
                                      struct cld_plan *plan);
/* Turns all matrices, if they are old. Enqueued. */
enum cld_status cld_drafter_turn_weights(struct cld_drafter *d, struct cld_error *err);

#endif
