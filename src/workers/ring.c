#include "workers/ring.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"

enum cld_status cld_ring_open(struct cld_ring *r, struct cld_sync *sync, size_t n_targets,
                              size_t n_slots, size_t n_drafters, struct cld_error *err)
{
    memset(r, 0, sizeof *r);
    r->sync = sync;
    r->n_targets = n_targets;
    r->n_slots = n_slots;
    r->slots = calloc(cld_max(1, cld_mul(n_targets, n_slots)), sizeof *r->slots);
    r->target_wait_ms = calloc(cld_max(1, n_targets), sizeof *r->target_wait_ms);
    r->drafter_wait_ms = calloc(n_drafters, sizeof *r->drafter_wait_ms);
    if (r->slots && r->target_wait_ms && r->drafter_wait_ms)
        return CLD_OK;
    return cld_fail_memory(err, "%zu ring slots", n_targets * n_slots);
}

void cld_ring_close(struct cld_ring *r)
{
    for (size_t i = 0; r->slots && i < r->n_targets * r->n_slots; i++)
        cld_batch_free(&r->slots[i].batch);
    free(r->slots);
    free(r->target_wait_ms);
    free(r->drafter_wait_ms);
    memset(r, 0, sizeof *r);
}

static struct cld_slot *slot_of(struct cld_ring *r, size_t number)
{
    return &r->slots[number % r->n_targets * r->n_slots + number / r->n_targets % r->n_slots];
}

enum cld_status cld_ring_empty(struct cld_ring *r, size_t number, struct cld_slot **out,
                               struct cld_error *err)
{
    double begun = cld_clock_ms();
    struct cld_slot *slot = slot_of(r, number);
    pthread_mutex_lock(&r->sync->lock);
    bool going = !r->sync->stopped;
    while (slot->full && going)
        going = cld_sync_wait(r->sync);
    slot->filling = going;
    double waited = cld_clock_ms() - begun;
    r->times.target_wait_ms += waited;
    r->target_wait_ms[number % r->n_targets] += waited;
    pthread_mutex_unlock(&r->sync->lock);
    *out = slot;
    return going ? CLD_OK : cld_sync_gave_up(err);
}

bool cld_ring_is_empty(struct cld_ring *r, size_t number)
{
    pthread_mutex_lock(&r->sync->lock);
    const struct cld_slot *slot = slot_of(r, number);
    bool yes = !slot->full && !slot->filling;
    pthread_mutex_unlock(&r->sync->lock);
    return yes;
}

bool cld_ring_is_full(struct cld_ring *r, size_t number)
{
    pthread_mutex_lock(&r->sync->lock);
    const struct cld_slot *slot = slot_of(r, number);
    bool yes = slot->full && slot->number == number;
    pthread_mutex_unlock(&r->sync->lock);
    return yes;
}

void cld_ring_put(struct cld_ring *r, struct cld_slot *slot, size_t number, double busy_ms)
{
    pthread_mutex_lock(&r->sync->lock);
    slot->number = number;
    slot->filling = false;
    slot->full = true;
    r->times.n_made++;
    r->times.n_full++;
    r->times.target_busy_ms += busy_ms;
    pthread_cond_broadcast(&r->sync->changed);
    pthread_mutex_unlock(&r->sync->lock);
}

enum cld_status cld_ring_full(struct cld_ring *r, size_t drafter, size_t number,
                              struct cld_slot **out, struct cld_error *err)
{
    double begun = cld_clock_ms();
    struct cld_slot *slot = slot_of(r, number);
    pthread_mutex_lock(&r->sync->lock);
    bool going = !r->sync->stopped;
    while (!(slot->full && slot->number == number) && going)
        going = cld_sync_wait(r->sync);
    double waited = cld_clock_ms() - begun;
    r->times.drafter_wait_ms += waited;
    r->drafter_wait_ms[drafter] += waited;
    pthread_mutex_unlock(&r->sync->lock);
    *out = slot;
    return going ? CLD_OK : cld_sync_gave_up(err);
}

void cld_ring_done(struct cld_ring *r, struct cld_slot *slot)
{
    pthread_mutex_lock(&r->sync->lock);
    slot->full = false;
    r->times.n_full--;
    pthread_cond_broadcast(&r->sync->changed);
    pthread_mutex_unlock(&r->sync->lock);
}

struct cld_ring_times cld_ring_times(struct cld_ring *r, double *waits_ms, size_t n_drafters)
{
    pthread_mutex_lock(&r->sync->lock);
    struct cld_ring_times t = r->times;
    memcpy(waits_ms, r->target_wait_ms, r->n_targets * sizeof *waits_ms);
    memcpy(waits_ms + r->n_targets, r->drafter_wait_ms, n_drafters * sizeof *waits_ms);
    pthread_mutex_unlock(&r->sync->lock);
    return t;
}
