/* ring.h - slots of host memory through which target workers hand micro-batches and their features
 * to drafter workers.
 *
 * Each target worker has n_slots of its own, pinned for its device. Micro-batches are numbered in
 * one fixed order (batch_schedule.h); number i is made by target i % n_targets, in slot (i /
 * n_targets) % n_slots of it. So who makes what, and where, is known beforehand: nothing depends on
 * which thread is faster.
 *
 * No deadlock: take the lowest number m that no drafter has used up. All lower ones are used up, so
 * the slot of m, whose earlier guests have lower numbers, is empty, and target m % n_targets, which
 * works in ascending order, has m next: m gets made. The drafter that m is for works in ascending
 * order too and does not wait for others before it has used up its part of a job, and all jobs
 * before that of m are done: so m gets used up. One slot a target is enough for this; two let it
 * work while its last one is being read.
 *
 * Thread: any; a slot's content belongs to the target from _empty to _put and to the drafter from
 * _full to _done. */
#ifndef CLD_WORKERS_RING_H
#define CLD_WORKERS_RING_H

#include "base/sync.h"
#include "data/batch.h"

struct cld_slot {
    struct cld_batch batch;
    void
        *features; /* [n_ctx, K*H] in the storage of the run; pinned memory of the target's queue */
    size_t number;
    bool filling, full; /* between _empty and _put; between _put and _done */
};

/* Waits and work since the run began; changed under the lock. */
struct cld_ring_times {
    double target_wait_ms, target_busy_ms, drafter_wait_ms; /* summed over workers */
    size_t n_made, n_full;
};

struct cld_ring {
    struct cld_sync *sync;
    size_t n_targets, n_slots; /* slots of one target */
    struct cld_slot *slots;    /* [n_targets * n_slots] */
    struct cld_ring_times times;
    double *target_wait_ms, *drafter_wait_ms; /* [n_targets], [n_drafters] */
};

enum cld_status cld_ring_open(struct cld_ring *r, struct cld_sync *sync, size_t n_targets,
                              size_t n_slots, size_t n_drafters, struct cld_error *err);
void cld_ring_close(struct cld_ring *r); /* all threads are gone */

/* Target: waits until the slot of this number is empty; full or not, the wait is counted.
 * CLD_E_INTERRUPTED: the run stops. */
enum cld_status cld_ring_empty(struct cld_ring *r, size_t number, struct cld_slot **out,
                               struct cld_error *err);
/* Is it empty now? Not while the target is still filling it. */
bool cld_ring_is_empty(struct cld_ring *r, size_t number);
/* Target: the slot is ready. busy_ms: what making it took. */
void cld_ring_put(struct cld_ring *r, struct cld_slot *slot, size_t number, double busy_ms);

/* Drafter: waits until this number is there. */
enum cld_status cld_ring_full(struct cld_ring *r, size_t drafter, size_t number,
                              struct cld_slot **out, struct cld_error *err);
/* Is it there now? It stays so until the drafter is done with it. */
bool cld_ring_is_full(struct cld_ring *r, size_t number);
/* Drafter: the slot may be filled again. */
void cld_ring_done(struct cld_ring *r, struct cld_slot *slot);

/* Waits of single workers go to waits_ms [n_targets + n_drafters]. */
struct cld_ring_times cld_ring_times(struct cld_ring *r, double *waits_ms, size_t n_drafters);

#endif
