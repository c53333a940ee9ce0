/* ring.h - slots of host memory through which target workers hand micro-batches and their features
 * to drafter workers.
 *
 * Each target worker has n_slots of its own, pinned for its device. Micro-batches are numbered in
 * one fixed order (batch_schedule.h); number i is made by target i % n_targets, in slot (i /
 * n_targets) % n_slots of it. So the worker and the slot of each micro-batch are known beforehand:
 * nothing depends on which thread is faster.
 *
 * No deadlock: let m be the lowest number that no drafter has used up. The slot of m is empty,
 * since its earlier contents have lower numbers. Target m % n_targets works in ascending order and
 * has m next: m gets made. The drafter of m works in ascending order too, and waits for other
 * drafters only after its part of a job; all jobs before that of m are done: m gets used up. One
 * slot a target is enough; with two it works while its last one is being read.
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

/* Target: waits until the slot of this number is empty; counts the wait.
 * CLD_E_INTERRUPTED: the run stops. */
enum cld_status cld_ring_empty(struct cld_ring *r, size_t number, struct cld_slot **out,
                               struct cld_error *err);
/* Whether it is empty now; a slot that the target is filling is not. */
bool cld_ring_is_empty(struct cld_ring *r, size_t number);
/* Target: the slot is ready. busy_ms: the time that its contents took. */
void cld_ring_put(struct cld_ring *r, struct cld_slot *slot, size_t number, double busy_ms);

/* Drafter: waits until this number is in its slot. */
enum cld_status cld_ring_full(struct cld_ring *r, size_t drafter, size_t number,
                              struct cld_slot **out, struct cld_error *err);
/* Whether it is there now. It stays until the drafter is done with it. */
bool cld_ring_is_full(struct cld_ring *r, size_t number);
/* Drafter: the slot may be filled again. */
void cld_ring_done(struct cld_ring *r, struct cld_slot *slot);

/* Waits of single workers go to waits_ms [n_targets + n_drafters]. */
struct cld_ring_times cld_ring_times(struct cld_ring *r, double *waits_ms, size_t n_drafters);

#endif
