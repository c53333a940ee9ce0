/* collectives.h - how several drafters make one optimizer step: a reduce-scatter of gradients, an
 * update of shards, an all-gather of weights.
 *
 * Every drafter has all weights and the gradient of its micro-batches. Drafter d sums shard d of
 * all gradients on its device, in the order 0, 1, ..., D - 1 whichever is ready first. The sums of
 * squares are added in that order too, on the host. Drafter d then updates shard d of the weights -
 * only it has their master copies and moments - and sends them to the others. Transfers go through
 * host memory pinned for each drafter's device (its staging area, one float a parameter), and
 * between machines from staging area to staging area. The bits depend neither on timing nor on
 * which machine a drafter is on.
 *
 * Reduce-scatter: gradients travel in buckets (cld_drafter_bucket) while kernels run. In the last
 * backward pass of a step each bucket goes to the host as soon as it is final, and from there to
 * the device that sums it. The first two foreign gradients have buffers of their own there. When
 * the backward pass ends, drafters wait for the remaining buckets.
 *
 * All-gather: weights travel in the same buckets, those that a forward pass needs first at the
 * front. A bucket is updated, goes to the host while the next one is updated, and then to the other
 * devices. The next forward pass starts meanwhile; each half of a layer waits for its own weights
 * only (cld_drafter's on_weights). A staging area is written again when all drafters of this
 * process have read it.
 *
 * With one drafter nothing travels: the same calls are one optimizer step on one device.
 *
 * Thread: _open and _close on one thread, before and after the others; the rest on the drafters'
 * threads, which all make the same calls in the same order. d counts the drafters of this
 * process. */
#ifndef CLD_WORKERS_COLLECTIVES_H
#define CLD_WORKERS_COLLECTIVES_H

#include "base/sync.h"
#include "model/drafter_file.h"
#include "workers/machines.h"
#include "workers/worker.h"

/* Of the gradients of a drafter's last step, and of the weights that came before them. */
struct cld_collectives_times {
    double whole_ms;   /* while any of them were travelling */
    double exposed_ms; /* part of it in which the device had nothing else to do */
};

struct cld_collectives_member;
struct cld_collectives {
    struct cld_sync *sync;
    struct cld_gate gate;
    const struct cld_machines *machines;
    size_t n_buckets;
    /* [n_here]; members read each other's staging areas and touch no queue but their own */
    struct cld_collectives_member *members;
    double *squares; /* [n_drafters] */
    /* Messages that ever came from drafters on other machines; under the lock. */
    size_t *n_gradients; /* [n_here, n_drafters, n_buckets] for the shard of a drafter here */
    size_t *n_weights;   /* [n_drafters, n_buckets] */
    size_t n_images;
};

enum cld_status cld_collectives_open(struct cld_collectives *x, struct cld_sync *sync,
                                     const struct cld_machines *machines, size_t n_buckets,
                                     struct cld_error *err);
void cld_collectives_close(struct cld_collectives *x);

/* Drafter d joins before the barrier that ends the warm-up, and leaves when all messages have ended
 * and before its queue is closed. */
void cld_collectives_join(struct cld_collectives *x, size_t d, struct cld_worker *w);
void cld_collectives_leave(struct cld_collectives *x, size_t d);

/* Waits until all drafters of this process have called it. */
enum cld_status cld_collectives_barrier(struct cld_collectives *x, struct cld_error *err);

struct cld_collectives_times cld_collectives_times(const struct cld_collectives *x, size_t d);

/* Before the last backward pass of a step: its buckets are sent as they become final. */
enum cld_status cld_reduce_scatter_begin(struct cld_collectives *x, size_t d,
                                         struct cld_error *err);

/* Ends the reduce-scatter: *norm is the norm of the whole gradient. The device is idle then. */
enum cld_status cld_reduce_scatter_norm(struct cld_collectives *x, size_t d, double *norm,
                                        struct cld_error *err);

/* Clipping, AdamW of the own shard, gradients zeroed; begins the all-gather of the new weights. A
 * norm that is not finite changes nothing on any drafter. */
enum cld_status cld_all_gather_update(struct cld_collectives *x, size_t d, double norm,
                                      double learning_rate, size_t update, struct cld_error *err);

/* Ends an all-gather: all weights have arrived and left. Call it before anything but the next
 * forward pass, and before a wait that depends on other drafters: they wait for this one's
 * weights. */
enum cld_status cld_all_gather_end(struct cld_collectives *x, size_t d, struct cld_error *err);

/* All-gather of the weights as they are, from begin to end. */
enum cld_status cld_all_gather(struct cld_collectives *x, size_t d, struct cld_error *err);

/* Drafter d's shard of a checkpoint, into the image, which rank 0 has; rank 0's first drafter also
 * receives those of other machines. */
enum cld_status cld_collectives_gather_image(struct cld_collectives *x, size_t d,
                                             const struct cld_image *image, struct cld_error *err);

#endif
