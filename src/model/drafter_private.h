/* drafter_private.h - what the files of a drafter share: drafter.c, drafter_params.c,
 * drafter_memory.c, drafter_ops.c. */
#ifndef CLD_MODEL_DRAFTER_PRIVATE_H
#define CLD_MODEL_DRAFTER_PRIVATE_H

#include "model/drafter.h"

/* drafter_params.c: lists parameters and places them in the arenas (fills d->params, d->n_elems and
 * the shard), then declares the arenas and their parts. CLD_E_USAGE: a shard would be empty. */
enum cld_status cld_drafter_list_params(struct cld_drafter *d, struct cld_error *err);
void cld_drafter_plan_params(struct cld_drafter *d, struct cld_plan *plan);

/* drafter_ops.c: writes d->forward and d->backward; tensors are declared before. */
void cld_drafter_write_forward(struct cld_drafter *d);
void cld_drafter_write_backward(struct cld_drafter *d);

#endif
