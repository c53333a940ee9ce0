/* exchange.h - how several drafters take one optimizer step: gradients are summed, and optimizer
 * state kept, in shards.
 *
 * Every drafter has all weights and the gradient of its micro-batches. Drafter d sums shard d of
 * all gradients on its device, in the order 0, 1, ..., D - 1 whoever is ready first; the sums of
 * squares are added in that order too, on the host; it updates shard d of the weights, whose master
 * and moments only it has, and sends that shard to the others. Transfers go through host memory
 * pinned for each drafter's device (its staging area, one float a parameter). The bits do not
 * depend on timing.
 *
 * With one drafter nothing is exchanged: the same calls are one optimizer step on one device.
 *
 * Thread: _open and _close on one thread, before and after the others; the rest on the drafters'
 * threads, which all make the same calls in the same order. */
#ifndef CLD_EXCHANGE_H
#define CLD_EXCHANGE_H

#include "drafter_file.h"
#include "sync.h"
#include "worker.h"

struct cld_exchange {
    struct cld_sync *sync;
    struct cld_gate gate;
    size_t n; /* drafters */
    struct cld_worker *
        *workers;    /* [n] others' plans and staging areas are read, no queue is touched */
    double *squares; /* [n] */
};

enum cld_status cld_exchange_open(struct cld_exchange *x, struct cld_sync *sync, size_t n,
                                  struct cld_error *err);
void cld_exchange_close(struct cld_exchange *x);

/* Drafter d takes part; before the barrier that ends the warm-up. */
void cld_exchange_join(struct cld_exchange *x, size_t d, struct cld_worker *w);

/* All drafters get each shard of the weights from its owner. */
enum cld_status cld_exchange_weights(struct cld_exchange *x, size_t d, struct cld_error *err);

/* Global norm, clipping, AdamW, weights to all, gradients zeroed. A norm that is not finite changes
 * nothing anywhere and sets *skipped everywhere. */
enum cld_status cld_exchange_optimize(struct cld_exchange *x, size_t d, double learning_rate,
                                      size_t update, double *norm, bool *skipped,
                                      struct cld_error *err);

/* Drafter d's shard of what a checkpoint holds, into the image. */
enum cld_status cld_exchange_gather(struct cld_exchange *x, size_t d, const struct cld_image *image,
                                    struct cld_error *err);

/* All drafters are here. */
enum cld_status cld_exchange_meet(struct cld_exchange *x, struct cld_error *err);

#endif
