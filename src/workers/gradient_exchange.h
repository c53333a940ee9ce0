/* gradient_exchange.h - how several drafters take one optimizer step: gradients are summed, and
 * optimizer state kept, in shards.
 *
 * Every drafter has all weights and the gradient of its micro-batches. Drafter d sums shard d of
 * all gradients on its device, in the order 0, 1, ..., D - 1 whoever is ready first; the sums of
 * squares are added in that order too, on the host; it updates shard d of the weights, whose master
 * and moments only it has, and sends that shard to the others. Transfers go through host memory
 * pinned for each drafter's device (its staging area, one float a parameter), and between machines
 * from staging area to staging area. The bits depend neither on timing nor on who is where.
 *
 * Gradients travel in buckets (cld_drafter_bucket), beside the kernels: while the last backward
 * pass of a step runs, each bucket goes to the host as soon as it is final, and from there to the
 * device that sums it, where the first two foreign gradients have places of their own. What is left
 * when the backward pass ends is what drafters wait for.
 *
 * Weights come back in the same buckets, those that a forward pass needs first in front: a bucket
 * is updated, goes to the host while the next one is updated, and to the other devices as soon as
 * it is there. The next forward pass begins meanwhile; each half of a layer waits for its own
 * weights only (cld_drafter's on_weights). A staging area is written again when all drafters of
 * this process have taken what was there.
 *
 * With one drafter nothing is exchanged: the same calls are one optimizer step on one device.
 *
 * Thread: _open and _close on one thread, before and after the others; the rest on the drafters'
 * threads, which all make the same calls in the same order. d counts the drafters of this
 * process. */
#ifndef CLD_WORKERS_GRADIENT_EXCHANGE_H
#define CLD_WORKERS_GRADIENT_EXCHANGE_H

#include "base/sync.h"
#include "model/drafter_file.h"
#include "workers/machines.h"
#include "workers/worker.h"

/* Of the gradients of a drafter's last step, and of the weights that came before them. */
struct cld_gradient_exchange_times {
    double whole_ms;   /* while anything of them was under way */
    double exposed_ms; /* of these, in which the device had nothing else to do */
};

struct cld_gradient_exchange_member;
struct cld_gradient_exchange {
    struct cld_sync *sync;
    struct cld_gate gate;
    const struct cld_machines *machines;
    size_t n_buckets;
    struct cld_gradient_exchange_member *members; /* [n_here] others' staging areas are read, no
                                            queue is touched */
    double *squares;                              /* [n_drafters] */
    /* Messages that came from drafters on other machines, ever; under the lock. */
    size_t *n_gradients; /* [n_here, n_drafters, n_buckets] for the shard of one here */
    size_t *n_weights;   /* [n_drafters, n_buckets] */
    size_t n_images;
};

enum cld_status cld_gradient_exchange_open(struct cld_gradient_exchange *x, struct cld_sync *sync,
                                           const struct cld_machines *machines, size_t n_buckets,
                                           struct cld_error *err);
void cld_gradient_exchange_close(struct cld_gradient_exchange *x);

/* Drafter d takes part, before the barrier that ends the warm-up; and no more, when all messages
 * have ended and before its queue is closed. */
void cld_gradient_exchange_join(struct cld_gradient_exchange *x, size_t d, struct cld_worker *w);
void cld_gradient_exchange_part(struct cld_gradient_exchange *x, size_t d);

/* All drafters get each shard of the weights from its owner, and have it when the call returns. */
enum cld_status cld_gradient_exchange_weights(struct cld_gradient_exchange *x, size_t d,
                                              struct cld_error *err);

/* The next backward pass is the last one of this step: buckets may go as they become final. */
enum cld_status cld_gradient_exchange_expect(struct cld_gradient_exchange *x, size_t d,
                                             struct cld_error *err);

/* The two halves of an optimizer step. _norm: gradients are summed, *norm is the global one. The
 * device has nothing left to do then. _update: clipping, AdamW, gradients zeroed, and the weights
 * are on their way to all; a norm that is not finite changes nothing anywhere. */
enum cld_status cld_gradient_exchange_norm(struct cld_gradient_exchange *x, size_t d, double *norm,
                                           struct cld_error *err);
enum cld_status cld_gradient_exchange_update(struct cld_gradient_exchange *x, size_t d, double norm,
                                             double learning_rate, size_t update,
                                             struct cld_error *err);
/* Waits until weights that are on their way have come, and gone. Before anything but the next
 * forward pass, and before a wait for anything that other drafters may hold up: they wait for this
 * one's weights. */
enum cld_status cld_gradient_exchange_settle(struct cld_gradient_exchange *x, size_t d,
                                             struct cld_error *err);
struct cld_gradient_exchange_times
cld_gradient_exchange_times(const struct cld_gradient_exchange *x, size_t d);

/* Drafter d's shard of what a checkpoint holds, into the image, which rank 0 has; its first drafter
 * takes those from other machines, too. */
enum cld_status cld_gradient_exchange_gather(struct cld_gradient_exchange *x, size_t d,
                                             const struct cld_image *image, struct cld_error *err);

/* All drafters of this process are here. */
enum cld_status cld_gradient_exchange_meet(struct cld_gradient_exchange *x, struct cld_error *err);

#endif
