/* sync.h - the one lock of a run's threads: a thread that waits for another waits here, and a
 * failure wakes all of them.
 *
 * Threads meet a few times a micro-batch, so one lock and one condition serve every hand-over. All
 * waits end when the run stops. Any thread. */
#ifndef CLD_BASE_SYNC_H
#define CLD_BASE_SYNC_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct cld_sync {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* broadcast after every change of what is waited for */
    bool stopped;           /* under the lock: the run ends, waits return */
};

void cld_sync_init(struct cld_sync *s);
void cld_sync_destroy(struct cld_sync *s);
/* Ends all waits, now and later. */
void cld_sync_stop(struct cld_sync *s);

/* With the lock held: sleeps until something changed. False: the run stops, give up. */
bool cld_sync_wait(struct cld_sync *s);

/* CLD_E_INTERRUPTED for a call that gave up because the run stops. It is no failure of its own: the
 * reason is with the thread that stopped it. */
enum cld_status cld_sync_gave_up(struct cld_error *err);

/* A place where n threads wait for each other, again and again. Zero-initialise. */
struct cld_gate {
    size_t n_here, round;
};
enum cld_status cld_gate_pass(struct cld_sync *s, struct cld_gate *g, size_t n,
                              struct cld_error *err);

#endif
