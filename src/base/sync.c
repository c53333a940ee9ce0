#include "base/sync.h"

void cld_sync_init(struct cld_sync *s)
{
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->stopped = false;
}

void cld_sync_destroy(struct cld_sync *s)
{
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
}

void cld_sync_stop(struct cld_sync *s)
{
    pthread_mutex_lock(&s->lock);
    s->stopped = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

bool cld_sync_wait(struct cld_sync *s)
{
    if (!s->stopped)
        pthread_cond_wait(&s->changed, &s->lock);
    return !s->stopped;
}

enum cld_status cld_sync_gave_up(struct cld_error *err)
{
    return cld_fail(err, CLD_E_INTERRUPTED, "", "the run is stopping");
}

enum cld_status cld_gate_pass(struct cld_sync *s, struct cld_gate *g, size_t n,
                              struct cld_error *err)
{
    bool going = true;
    pthread_mutex_lock(&s->lock);
    size_t round = g->round;
    if (++g->n_here == n) {
        g->n_here = 0;
        g->round++;
        pthread_cond_broadcast(&s->changed);
    }
    while (g->round == round && going)
        going = cld_sync_wait(s);
    /* The last thread opened the gate: a later stop belongs to the next call. */
    going = g->round != round;
    pthread_mutex_unlock(&s->lock);
    return going ? CLD_OK : cld_sync_gave_up(err);
}
