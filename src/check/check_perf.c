/* check_perf.c - the time that an operation under test takes, on the tensors of its case. */
#include "check/check.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/size.h"

/* A batch is long enough for a clock; the shortest of a few is the least disturbed. */
static const double batch_ms = 10;
enum { n_batches = 5, most_runs = 200 };

static double bytes_of(const struct cld_check *c)
{
    double n = 0;
    for (size_t i = 0; i < c->n_tensors; i++) {
        const struct cld_check_tensor *t = &c->tensors[i];
        bool both = t->output && t->value;
        n += (both ? 2.0 : 1.0) * (double)cld_tensor_bytes(&t->t);
    }
    return n;
}

/* Enqueues n runs and waits. *events_ms: what the device says of its kernels; 0 where it has no
 * events of ours (a library's kernels), or they have no times. */
static enum cld_status
run_batch(struct cld_check *c, size_t n,
          enum cld_status (*body)(struct cld_check *c, void *arg, struct cld_error *err), void *arg,
          double *host_ms, double *events_ms, struct cld_error *err)
{
    enum cld_status s = cld_queue_finish(c->q, err);
    struct cld_kernel_time *times = NULL;
    size_t n_times = 0;
    if (s)
        return s;
    cld_queue_times_reset(c->q);
    double begun = cld_clock_ms();
    for (size_t i = 0; i < n && !s; i++)
        s = body(c, arg, err);
    if (s || (s = cld_queue_finish(c->q, err)))
        return s;
    *host_ms = cld_clock_ms() - begun;
    *events_ms = 0;
    if (!(s = cld_queue_times(c->q, &times, &n_times, err)))
        for (size_t i = 0; i < n_times; i++)
            *events_ms += times[i].ms;
    free(times);
    return s;
}

enum cld_status cld_check_time(struct cld_check *c,
                               enum cld_status (*body)(struct cld_check *c, void *arg,
                                                       struct cld_error *err),
                               void *arg, struct cld_error *err)
{
    double host = 0, events = 0;
    struct cld_check_result *r = &c->now;
    enum cld_status s = run_batch(c, 1, body, arg, &host, &events, err);
    size_t n = host > 0 && host < batch_ms ? cld_min((size_t)(batch_ms / host) + 1, most_runs) : 1;
    for (size_t i = 0; i < n_batches && !s && (!i || host * (double)n < 50 * batch_ms); i++) {
        if ((s = run_batch(c, n, body, arg, &host, &events, err)))
            break;
        double ms = (events > 0 ? events : host) / (double)n;
        if (!i || ms < r->ms) {
            r->ms = ms;
            r->by_events = events > 0;
        }
        host /= (double)n;
    }
    r->bytes = bytes_of(c);
    return s;
}
