#include "workers/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/size.h"
#include "workers/transport.h"

/* Larger messages go in pieces, one after the other. */
static const size_t piece_bytes = (size_t)256 << 20;
/* Intervals at which unfinished messages are tested; longer while nothing happens. */
static const long least_nap_ns = 10000, most_nap_ns = 500000;
/* At the end of a run that failed: sends that are not received are given up after this time. */
static const double patience_ms = 500;

enum { TAG_END, TAG_QUIET, TAG_GATHER, N_OWN_TAGS };

/* A message that is posted or under way. */
struct post {
    bool sends;
    size_t peer;
    int tag;
    char *at; /* next piece */
    size_t n_left, n_now;
    size_t *n_done;
    void *request; /* NULL: not begun */
    struct post *next;
};

/* What a process sends the others at its end. */
struct farewell {
    int status;
    char what[512];
};

struct cld_link {
    const struct cld_transport *transport;
    size_t rank, n;
    int max_tag;
    struct cld_sync sync;
    pthread_t thread;
    bool halted;
    struct farewell mine, *others; /* [n]; of this one under the lock until it is sent */
    size_t n_farewells;            /* of others that arrived; under the lock */
    struct cld_error failure;      /* of the transport, or of another process; under the lock */
    /* posts that the thread has not seen yet, and whether it is to end */
    pthread_mutex_t lock;
    pthread_cond_t woken;
    struct post *fresh, **fresh_end;
    bool cancelling, ending;
};

size_t cld_link_rank(const struct cld_link *l)
{
    return l ? l->rank : 0;
}

size_t cld_link_n(const struct cld_link *l)
{
    return l ? l->n : 1;
}

size_t cld_link_n_tags(const struct cld_link *l)
{
    return (size_t)l->max_tag - N_OWN_TAGS;
}

struct cld_sync *cld_link_sync(struct cld_link *l)
{
    return &l->sync;
}

/* --- the thread ------------------------------------------------------------------------------- */

static void stop_with(struct cld_link *l, const struct cld_error *why)
{
    pthread_mutex_lock(&l->sync.lock);
    if (!l->failure.status)
        l->failure = *why;
    l->sync.stopped = true;
    pthread_cond_broadcast(&l->sync.changed);
    pthread_mutex_unlock(&l->sync.lock);
}

static enum cld_status begin_piece(struct cld_link *l, struct post *p, struct cld_error *err)
{
    p->n_now = cld_min(p->n_left, piece_bytes);
    return p->sends ? l->transport->send(p->at, p->n_now, p->peer, p->tag, &p->request, err)
                    : l->transport->receive(p->at, p->n_now, p->peer, p->tag, &p->request, err);
}

/* Another process ended. If it failed, so does this one. */
static void take_farewell(struct cld_link *l, size_t peer)
{
    const struct farewell *f = &l->others[peer];
    struct cld_error why = CLD_ERROR_INIT;
    if (!f->status)
        return;
    cld_fail(&why, (enum cld_status)f->status, "look at the log of that machine",
             "machine %zu: %.500s", peer, f->what);
    stop_with(l, &why);
}

static void tell_done(struct cld_link *l, const struct post *p)
{
    pthread_mutex_lock(&l->sync.lock);
    ++*p->n_done;
    pthread_cond_broadcast(&l->sync.changed);
    pthread_mutex_unlock(&l->sync.lock);
}

/* The transport failed: all that the end waits for counts as arrived. */
static bool give_up(struct cld_link *l, const struct post *p, const struct cld_error *why)
{
    stop_with(l, why);
    if (p->tag == TAG_END || p->tag == TAG_QUIET)
        tell_done(l, p);
    return true;
}

/* Advances a message; true: it is over. */
static bool advance(struct cld_link *l, struct post *p, bool *moved)
{
    struct cld_error err = CLD_ERROR_INIT;
    bool done = false;
    if (!p->request) {
        *moved = true;
        if (begin_piece(l, p, &err))
            return give_up(l, p, &err);
    }
    if (l->transport->test(p->request, &done, &err))
        return give_up(l, p, &err);
    if (!done)
        return false;
    *moved = true;
    p->request = NULL;
    p->at += p->n_now;
    p->n_left -= p->n_now;
    if (p->n_left)
        return false;
    if (p->tag == TAG_END && !p->sends)
        take_farewell(l, p->peer);
    tell_done(l, p);
    return true;
}

/* After all processes have announced that they post nothing more: cancels receives whose message
 * will not come. */
static void cancel_receives(struct cld_link *l, struct post *all)
{
    for (struct post *p = all; p; p = p->next)
        if (!p->sends && p->tag >= N_OWN_TAGS && p->request)
            l->transport->cancel(p->request);
}

static void nap(struct cld_link *l, bool busy, long *ns)
{
    struct timespec t;
    if (busy) {
        t = (struct timespec){0, *ns};
        *ns = *ns * 2 < most_nap_ns ? *ns * 2 : most_nap_ns;
        nanosleep(&t, NULL);
        return;
    }
    /* Only ends of others can come, unless a thread posts. */
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 2000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_mutex_lock(&l->lock);
    if (!l->fresh && !l->ending && !l->cancelling)
        pthread_cond_timedwait(&l->woken, &l->lock, &t);
    pthread_mutex_unlock(&l->lock);
}

static void *run_link(void *arg)
{
    struct cld_link *l = arg;
    struct post *all = NULL, **end = &all;
    long nap_ns = least_nap_ns;
    double still_since = cld_clock_ms();
    bool cancelled = false;
    cld_log_thread_name("link");
    for (;;) {
        pthread_mutex_lock(&l->lock);
        bool ending = l->ending, cancel = l->cancelling && !cancelled;
        if ((*end = l->fresh))
            end = l->fresh_end;
        l->fresh = NULL;
        l->fresh_end = &l->fresh;
        pthread_mutex_unlock(&l->lock);
        bool moved = false, busy = false;
        for (struct post **at = &all; *at;) {
            struct post *p = *at;
            if (advance(l, p, &moved)) {
                *at = p->next;
                free(p);
                continue;
            }
            busy |= p->tag != TAG_END || p->sends;
            at = &p->next;
        }
        for (end = &all; *end;)
            end = &(*end)->next;
        if (cancel) {
            cancel_receives(l, all);
            cancelled = true;
        }
        if (moved) {
            still_since = cld_clock_ms();
            nap_ns = least_nap_ns;
            continue;
        }
        if (ending && (!all || cld_clock_ms() - still_since > patience_ms))
            break;
        nap(l, busy, &nap_ns);
    }
    for (struct post *p; (p = all);) {
        all = p->next;
        if (p->request)
            l->transport->drop(p->request);
        free(p);
    }
    return NULL;
}

/* --- posting ---------------------------------------------------------------------------------- */

static enum cld_status post(struct cld_link *l, const struct post *what, struct cld_error *err)
{
    struct post *p = malloc(sizeof *p);
    if (!p)
        return cld_fail_memory(err, "a message");
    *p = *what;
    pthread_mutex_lock(&l->lock);
    *l->fresh_end = p;
    l->fresh_end = &p->next;
    pthread_cond_signal(&l->woken);
    pthread_mutex_unlock(&l->lock);
    return CLD_OK;
}

static enum cld_status post_send(struct cld_link *l, size_t to, int tag, const void *from,
                                 size_t n_bytes, size_t *n_done, struct cld_error *err)
{
    union {
        const void *from;
        char *at;
    } u = {from}; /* sends only read it */
    struct post p = {true, to, tag, u.at, n_bytes, 0, n_done, NULL, NULL};
    return post(l, &p, err);
}

static enum cld_status post_receive(struct cld_link *l, size_t from, int tag, void *to,
                                    size_t n_bytes, size_t *n_done, struct cld_error *err)
{
    struct post p = {false, from, tag, to, n_bytes, 0, n_done, NULL, NULL};
    return post(l, &p, err);
}

enum cld_status cld_link_send(struct cld_link *l, size_t to, size_t tag, const void *from,
                              size_t n_bytes, size_t *n_done, struct cld_error *err)
{
    return post_send(l, to, (int)tag + N_OWN_TAGS, from, n_bytes, n_done, err);
}

enum cld_status cld_link_receive(struct cld_link *l, size_t from, size_t tag, void *to,
                                 size_t n_bytes, size_t *n_done, struct cld_error *err)
{
    return post_receive(l, from, (int)tag + N_OWN_TAGS, to, n_bytes, n_done, err);
}

enum cld_status cld_link_wait(struct cld_link *l, const size_t *n_done, size_t n,
                              struct cld_error *err)
{
    pthread_mutex_lock(&l->sync.lock);
    bool going = !l->sync.stopped;
    while (going && *n_done < n)
        going = cld_sync_wait(&l->sync);
    pthread_mutex_unlock(&l->sync.lock);
    return going || !cld_link_failure(l, err) ? going ? CLD_OK : cld_sync_gave_up(err)
                                              : err->status;
}

enum cld_status cld_link_gather(struct cld_link *l, const void *mine, size_t n_bytes, void *all,
                                struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t at = cld_link_rank(l), n = cld_link_n(l);
    memcpy((char *)all + at * n_bytes, mine, n_bytes);
    if (n < 2)
        return CLD_OK;
    /* Not of this frame: messages may be under way when the wait is given up. */
    size_t *n_done = calloc(1, sizeof *n_done);
    char *out = malloc(n_bytes), *in = malloc(n * n_bytes);
    if (!n_done || !out || !in) {
        s = cld_fail_memory(err, "a message");
        goto done;
    }
    memcpy(out, mine, n_bytes);
    for (size_t i = 0; i < n && !s; i++)
        if (i != at &&
            !(s = post_receive(l, i, TAG_GATHER, in + i * n_bytes, n_bytes, n_done, err)))
            s = post_send(l, i, TAG_GATHER, out, n_bytes, n_done, err);
    if (s || (s = cld_link_wait(l, n_done, 2 * (n - 1), err)))
        return s; /* not freed before the process ends: the link may still write there */
    for (size_t i = 0; i < n; i++)
        if (i != at)
            memcpy((char *)all + i * n_bytes, in + i * n_bytes, n_bytes);
done:
    free(n_done);
    free(out);
    free(in);
    return s;
}

enum cld_status cld_link_any(struct cld_link *l, bool mine, bool *any, struct cld_error *err)
{
    size_t n = cld_link_n(l);
    bool *all = calloc(n, sizeof *all);
    enum cld_status s =
        all ? cld_link_gather(l, &mine, sizeof mine, all, err) : cld_fail_memory(err, "a message");
    *any = false;
    for (size_t i = 0; i < n && !s; i++)
        *any |= all[i];
    free(all);
    return s;
}

/* --- beginning and end ------------------------------------------------------------------------ */

void cld_link_blame(struct cld_link *l, const struct cld_error *why)
{
    if (!l || !why->status)
        return;
    pthread_mutex_lock(&l->sync.lock);
    /* A process that gave up because another one failed is not the cause. */
    if (!l->halted && !l->mine.status && !l->failure.status) {
        l->mine.status = (int)why->status;
        snprintf(l->mine.what, sizeof l->mine.what, "%s", why->what);
    }
    pthread_mutex_unlock(&l->sync.lock);
}

enum cld_status cld_link_failure(struct cld_link *l, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (!l)
        return CLD_OK;
    pthread_mutex_lock(&l->sync.lock);
    if ((s = l->failure.status))
        *err = l->failure;
    pthread_mutex_unlock(&l->sync.lock);
    return s;
}

/* As cld_link_wait, but also after the run has stopped. */
static void wait_for_all(struct cld_link *l, const size_t *n_done, size_t n)
{
    pthread_mutex_lock(&l->sync.lock);
    while (*n_done < n)
        pthread_cond_wait(&l->sync.changed, &l->sync.lock);
    pthread_mutex_unlock(&l->sync.lock);
}

/* All processes announce that they post no more; then receives that will not be served are
 * cancelled, and all announce that. Nothing reads messages that are still under way after that. */
void cld_link_halt(struct cld_link *l)
{
    struct cld_error err = CLD_ERROR_INIT;
    size_t n_said = 0, n_quiet = 0;
    char quiet = 0, *heard;
    if (!l || l->halted)
        return;
    pthread_mutex_lock(&l->sync.lock);
    l->halted = true; /* the farewell does not change any more */
    pthread_mutex_unlock(&l->sync.lock);
    heard = malloc(l->n);
    for (size_t i = 0; i < l->n; i++)
        if (i != l->rank)
            post_send(l, i, TAG_END, &l->mine, sizeof l->mine, &n_said, &err);
    wait_for_all(l, &n_said, l->n - 1);
    wait_for_all(l, &l->n_farewells, l->n - 1);
    pthread_mutex_lock(&l->lock);
    l->cancelling = true;
    pthread_cond_signal(&l->woken);
    pthread_mutex_unlock(&l->lock);
    for (size_t i = 0; i < l->n && heard; i++)
        if (i != l->rank) {
            post_send(l, i, TAG_QUIET, &quiet, 1, &n_quiet, &err);
            post_receive(l, i, TAG_QUIET, heard + i, 1, &n_quiet, &err);
        }
    wait_for_all(l, &n_quiet, heard ? 2 * (l->n - 1) : 0);
    pthread_mutex_lock(&l->lock);
    l->ending = true;
    pthread_cond_signal(&l->woken);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    free(heard);
}

static void free_link(struct cld_link *l)
{
    free(l->others);
    cld_sync_destroy(&l->sync);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->woken);
    free(l);
}

enum cld_status cld_link_close(struct cld_link *l, struct cld_error *err)
{
    if (!l)
        return CLD_OK;
    cld_link_halt(l);
    enum cld_status s = cld_link_failure(l, err);
    l->transport->close();
    free_link(l);
    return s;
}

/* The number of processes in the launcher's environment; 0: none. */
static size_t n_launched(void)
{
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *text = getenv(sizes[i]);
        if (text)
            return (size_t)strtoul(text, NULL, 10);
    }
    return getenv("PMIX_RANK") ? 2 : 0; /* some launchers give a rank only */
}

static enum cld_status start(struct cld_link *l, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (!(l->others = calloc(l->n, sizeof *l->others)))
        return cld_fail_memory(err, "a link of %zu machines", l->n);
    for (size_t i = 0; i < l->n && !s; i++)
        if (i != l->rank)
            s = post_receive(l, i, TAG_END, &l->others[i], sizeof *l->others, &l->n_farewells, err);
    int failed = s ? 0 : pthread_create(&l->thread, NULL, run_link, l);
    if (failed)
        s = cld_fail(err, CLD_E_MEMORY,
                     "raise the limit of threads (`ulimit -u`) or end other processes",
                     "cannot start the thread of the link: %s", strerror(failed));
    return s;
}

/* The transport of this build; NULL: none. */
static const struct cld_transport *transport(void)
{
#ifdef CLD_MPI
    return &cld_transport_mpi;
#else
    return NULL;
#endif
}

enum cld_status cld_link_open(struct cld_link **out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = n_launched();
    *out = NULL;
    if (n < 2)
        return CLD_OK;
    if (!transport())
        return cld_fail(err, CLD_E_USAGE, "build with MPI (docs/machines.md), or start one process",
                        "%zu processes were started together, and this cldraft was built without "
                        "MPI",
                        n);
    struct cld_link *l = calloc(1, sizeof *l);
    if (!l)
        return cld_fail_memory(err, "a link");
    l->transport = transport();
    l->fresh_end = &l->fresh;
    cld_sync_init(&l->sync);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->woken, NULL);
    if ((s = l->transport->open(&l->rank, &l->n, &l->max_tag, err)))
        goto done;
    if (l->n > 1 && !(s = start(l, err))) {
        *out = l;
        return CLD_OK;
    }
    l->transport->close();
done:
    free_link(l);
    return s;
}
