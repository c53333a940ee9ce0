#include "workers/status_file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/size.h"
#include "formats/json_fields.h"

static const time_t period_s = 2;

struct worker {
    char name[32], device[160];
    enum cld_worker_state state;
    double since_ms, busy_ms,
        seen_ms; /* state since; computing since the last look, and when that was */
    double busy_share;
    size_t held_bytes, budget_bytes;
};

struct cld_status_file {
    char *path, *lock_path;
    int lock_fd;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t ending;
    bool ends;
    enum cld_run_state state;
    int64_t step, heldout_step;
    size_t n_steps;
    double loss, accepted_length, tokens_per_s, heldout_loss, heldout_accepted_length;
    char error[sizeof((struct cld_error *)0)->what], features[512];
    struct worker *workers;
    size_t n_workers;
};

static const char *run_state_name(enum cld_run_state s)
{
    static const char *const names[] = {"starting", "training",    "evaluating", "saving",
                                        "finished", "interrupted", "failed"};
    return names[s];
}

bool cld_run_has_ended(const char *state)
{
    for (enum cld_run_state s = CLD_RUN_FINISHED; s <= CLD_RUN_FAILED; s++)
        if (!strcmp(state, run_state_name(s)))
            return true;
    return false;
}

static const char *worker_state_name(enum cld_worker_state s)
{
    static const char *const names[] = {"starting",
                                        "building and warming up",
                                        "waiting",
                                        "waiting for a slot",
                                        "waiting for features",
                                        "computing",
                                        "saving",
                                        "ended"};
    return names[s];
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Accounts for the time up to now. The lock is held. */
static void settle(struct worker *w, double now_ms)
{
    if (w->state == CLD_WORKER_COMPUTING)
        w->busy_ms += now_ms - w->since_ms;
    w->since_ms = now_ms;
}

static json_t *describe_worker(struct worker *w)
{
    double now = cld_clock_ms();
    settle(w, now);
    if (now > w->seen_ms)
        w->busy_share = w->busy_ms / (now - w->seen_ms);
    w->busy_ms = 0;
    w->seen_ms = now;
    return json_pack("{s:s, s:s, s:s, s:f, s:I, s:I}", "name", w->name, "device", w->device,
                     "state", worker_state_name(w->state), "busy", fmin(w->busy_share, 1),
                     "held_bytes", (json_int_t)w->held_bytes, "budget_bytes",
                     (json_int_t)w->budget_bytes);
}

/* What is not known yet is null. */
static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

/* The lock is held. NULL: no memory. */
static json_t *describe(struct cld_status_file *b)
{
    json_t *workers = json_array();
    for (size_t i = 0; i < b->n_workers && workers; i++)
        json_array_append_new(workers, describe_worker(&b->workers[i]));
    return json_pack("{s:s, s:i, s:s, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:o, s:o, s:s, s:s, s:o}",
                     "format", "cldraft-status-1", "pid", (int)getpid(), "state",
                     run_state_name(b->state), "updated_unix", (json_int_t)time(NULL), "step",
                     (json_int_t)b->step, "steps", (json_int_t)b->n_steps, "loss", number(b->loss),
                     "accepted_length", number(b->accepted_length), "context_tokens_per_s",
                     number(b->tokens_per_s), "heldout_step", (json_int_t)b->heldout_step,
                     "heldout_loss", number(b->heldout_loss), "heldout_accepted_length",
                     number(b->heldout_accepted_length), "error", b->error, "features", b->features,
                     "workers", workers);
}

/* A status that cannot be written must not end a training: it is a warning, once. */
static bool write_now(struct cld_status_file *b)
{
    struct cld_error err = CLD_ERROR_INIT;
    pthread_mutex_lock(&b->lock);
    json_t *root = describe(b);
    pthread_mutex_unlock(&b->lock);
    enum cld_status s = cld_json_save(b->path, root, &err);
    if (s)
        cld_warn("status.json is no longer written: %s", err.what);
    json_decref(root);
    return !s;
}

static void *keep_writing(void *arg)
{
    struct cld_status_file *b = arg;
    bool ends = false, works = true;
    cld_log_thread_name("status");
    while (!ends) {
        struct timespec until;
        works = works && write_now(b);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += period_s;
        pthread_mutex_lock(&b->lock);
        while (!b->ends && pthread_cond_timedwait(&b->ending, &b->lock, &until) != ETIMEDOUT)
            ;
        ends = b->ends;
        pthread_mutex_unlock(&b->lock);
    }
    if (works)
        write_now(b); /* how it ended */
    return NULL;
}

/* --- beginning and end ------------------------------------------------------------------------ */

static void free_status_file(struct cld_status_file *b)
{
    if (b->lock_fd >= 0)
        close(b->lock_fd);
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->ending);
    free(b->path);
    free(b->lock_path);
    free(b->workers);
    free(b);
}

static enum cld_status take_lock(struct cld_status_file *b, struct cld_error *err)
{
    b->lock_fd = open(b->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (b->lock_fd < 0)
        return cld_fail(err, CLD_E_IO, "choose a directory that you may write to",
                        "%s: cannot open: %s", b->lock_path, strerror(errno));
    /* `cldraft status` holds the lock for a moment. */
    for (int tries = 0; tries < 20; tries++) {
        if (!flock(b->lock_fd, LOCK_EX | LOCK_NB))
            return CLD_OK;
        if (errno != EWOULDBLOCK)
            break;
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    }
    if (errno == EWOULDBLOCK)
        return cld_fail(err, CLD_E_USAGE, "wait for it, or choose another run.dir",
                        "%s: another run is alive in this directory", b->lock_path);
    cld_warn("%s: cannot lock: %s; `cldraft status` will report this run as dead", b->lock_path,
             strerror(errno));
    return CLD_OK;
}

enum cld_status cld_status_file_open(const char *dir, size_t n_steps, size_t n_workers,
                                     const char *const *names, const char *const *devices,
                                     struct cld_status_file **out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_status_file *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b)
        return cld_fail_memory(err, "the status");
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->ending, NULL);
    b->lock_fd = -1;
    b->n_steps = n_steps;
    b->n_workers = n_workers;
    b->heldout_step = -1;
    b->loss = b->accepted_length = b->tokens_per_s = NAN;
    b->heldout_loss = b->heldout_accepted_length = NAN;
    b->path = cld_format("%s/status.json", dir);
    b->lock_path = cld_format("%s/status.lock", dir);
    b->workers = calloc(cld_max(1, n_workers), sizeof *b->workers);
    if (!b->path || !b->lock_path || !b->workers) {
        s = cld_fail_memory(err, "the status");
        goto done;
    }
    for (size_t i = 0; i < n_workers; i++) {
        snprintf(b->workers[i].name, sizeof b->workers[i].name, "%s", names[i]);
        snprintf(b->workers[i].device, sizeof b->workers[i].device, "%s", devices[i]);
        b->workers[i].since_ms = b->workers[i].seen_ms = cld_clock_ms();
    }
    if ((s = take_lock(b, err)))
        goto done;
    int failed = pthread_create(&b->thread, NULL, keep_writing, b);
    if (failed) {
        s = cld_fail(err, CLD_E_MEMORY,
                     "raise the limit of threads (`ulimit -u`) or end other processes",
                     "cannot start the status thread: %s", strerror(failed));
        goto done;
    }
    *out = b;
    b = NULL;
done:
    if (b)
        free_status_file(b);
    return s;
}

void cld_status_file_close(struct cld_status_file *b, const struct cld_error *why)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->state = !why                               ? CLD_RUN_FINISHED
               : why->status == CLD_E_INTERRUPTED ? CLD_RUN_INTERRUPTED
                                                  : CLD_RUN_FAILED;
    snprintf(b->error, sizeof b->error, "%s", why ? why->what : "");
    for (size_t i = 0; i < b->n_workers; i++)
        b->workers[i].state = CLD_WORKER_ENDED;
    b->ends = true;
    pthread_cond_signal(&b->ending);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    free_status_file(b);
}

/* --- notes ------------------------------------------------------------------------------------ */

void cld_status_file_features(struct cld_status_file *b, const char *text)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    snprintf(b->features, sizeof b->features, "%s", text);
    pthread_mutex_unlock(&b->lock);
}

void cld_status_file_run(struct cld_status_file *b, enum cld_run_state state)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->state = state;
    pthread_mutex_unlock(&b->lock);
}

void cld_status_file_step(struct cld_status_file *b, int64_t step, double loss,
                          double accepted_length, double tokens_per_s)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->step = step;
    b->loss = loss;
    b->accepted_length = accepted_length;
    b->tokens_per_s = tokens_per_s;
    pthread_mutex_unlock(&b->lock);
}

void cld_status_file_heldout(struct cld_status_file *b, int64_t step, double loss,
                             double accepted_length)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->heldout_step = step;
    b->heldout_loss = loss;
    b->heldout_accepted_length = accepted_length;
    pthread_mutex_unlock(&b->lock);
}

void cld_status_file_worker(struct cld_status_file *b, size_t worker, enum cld_worker_state state)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    settle(&b->workers[worker], cld_clock_ms());
    b->workers[worker].state = state;
    pthread_mutex_unlock(&b->lock);
}

void cld_status_file_memory(struct cld_status_file *b, size_t worker, size_t held_bytes,
                            size_t budget_bytes)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->workers[worker].held_bytes = held_bytes;
    b->workers[worker].budget_bytes = budget_bytes;
    pthread_mutex_unlock(&b->lock);
}

bool cld_status_file_alive(const char *dir)
{
    char *path = cld_format("%s/status.lock", dir);
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    bool alive = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    free(path);
    return alive;
}
