/* all_gather.c - each drafter updates its shard of the weights and sends it to all others. */
#include "workers/collectives_private.h"

#include <math.h>

#include "base/clock.h"

static size_t weight_bytes(const struct cld_collectives_member *m)
{
    return cld_dtype_bytes(m->w->drafter.weights.type);
}

/* Weights in a staging area have the layout of their arena. */
static char *weights_at(const struct cld_collectives_member *m, size_t element)
{
    return (char *)m->w->staging + element * weight_bytes(m);
}

/* Weights from other machines arrive once a process, in the staging area of its first drafter. */
static enum cld_status receive_weights(struct cld_collectives_member *m, struct cld_error *err)
{
    struct cld_collectives *x = m->x;
    enum cld_status s = CLD_OK;
    for (size_t j = 0; j < cld_collectives_n(x) && !m->d; j++)
        for (size_t b = 0; b < x->n_buckets && !cld_collectives_is_here(x, j) && !s; b++) {
            struct cld_range r = cld_collectives_part(m, b, j);
            if (r.n)
                s = cld_link_receive(x->machines->link, x->machines->rank_of[j],
                                     cld_collectives_weights_tag(x, j, b), weights_at(m, r.first),
                                     r.n * weight_bytes(m), &x->n_weights[j * x->n_buckets + b],
                                     err);
        }
    return s;
}

static enum cld_status send_weights(struct cld_collectives_member *m, size_t b,
                                    struct cld_error *err)
{
    const struct cld_machines *all = m->x->machines;
    struct cld_range r = cld_collectives_part(m, b, m->at);
    enum cld_status s = CLD_OK;
    for (size_t rank = 0; rank < cld_link_n(all->link) && r.n && !s; rank++)
        if (rank != cld_link_rank(all->link))
            s = cld_collectives_send(m, rank, cld_collectives_weights_tag(m->x, m->at, b),
                                     weights_at(m, r.first), r.n * weight_bytes(m), err);
    return s;
}

static enum cld_status copy_weights_in(struct cld_collectives_member *m, size_t j, size_t b,
                                       struct cld_range r, struct cld_error *err)
{
    const struct cld_collectives *x = m->x;
    const struct cld_collectives_member *from =
        cld_collectives_is_here(x, j) ? cld_collectives_member_of(x, j) : x->members;
    (void)b;
    return cld_transfer_write(m->w->drafter.weights.buf, r.first * weight_bytes(m),
                              weights_at(from, r.first), r.n * weight_bytes(m), &m->free,
                              &m->weights, err);
}

/* The optimizer step of the shard. */
struct update {
    double norm, learning_rate;
    size_t step;
};

/* Begins to send the weights of the shard, bucket by bucket: a bucket is updated, if `u` is not
 * NULL, and copied to the host while the next one is updated. */
static enum cld_status begin_weights(struct cld_collectives_member *m, const struct update *u,
                                     struct cld_error *err)
{
    struct cld_collectives *x = m->x;
    enum cld_status s = CLD_OK;
    m->begun_ms = cld_clock_ms();
    m->weights_times = (struct cld_collectives_times){0, 0};
    if ((s = cld_collectives_wait_read(m, err)) || (s = receive_weights(m, err)) ||
        (s = cld_event_after_kernels(m->w->q, &m->free, err)))
        return s;
    cld_collectives_begin_reading(m, CLD_CARGO_WEIGHTS, copy_weights_in);
    m->n_passed = 0;
    m->moving = true;
    for (size_t i = 0; i < x->n_buckets && !s; i++) {
        size_t b = cld_collectives_bucket(x, CLD_CARGO_WEIGHTS, i);
        struct cld_range r = cld_collectives_part(m, b, m->at);
        cld_event_release(&m->out[b]);
        if (!r.n || (u && (s = cld_worker_update_part(m->w, u->norm, u->learning_rate, u->step,
                                                      r.first, r.n, err))))
            continue;
        if (!(s = cld_event_after_kernels(m->w->q, &m->final[b], err)))
            s = cld_transfer_read(m->w->drafter.weights.buf, r.first * weight_bytes(m),
                                  weights_at(m, r.first), r.n * weight_bytes(m), &m->final[b],
                                  &m->out[b], err);
    }
    return s;
}

/* Waits until the next bucket of weights is in host memory, and passes it on, with those after it
 * that are there too. */
static enum cld_status pass_weights(struct cld_collectives_member *m, struct cld_error *err)
{
    struct cld_collectives *x = m->x;
    enum cld_status s = CLD_OK;
    size_t n = 0;
    do {
        size_t b = cld_collectives_bucket(x, CLD_CARGO_WEIGHTS, m->n_passed + n);
        if ((s = cld_event_wait(&m->out[b], err)) || (s = send_weights(m, b, err)))
            return s;
        n++;
    } while (m->n_passed + n < x->n_buckets &&
             cld_event_is_complete(
                 &m->out[cld_collectives_bucket(x, CLD_CARGO_WEIGHTS, m->n_passed + n)]));
    m->n_passed += n;
    cld_collectives_publish(m, &m->n_there[CLD_CARGO_WEIGHTS], n);
    return CLD_OK;
}

static enum cld_status read_weights(struct cld_collectives_member *m, size_t n,
                                    enum cld_read_until until, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (size_t j = 0; j < cld_collectives_n(m->x) && !s; j++)
        if (j != m->at)
            s = cld_collectives_read(m, CLD_CARGO_WEIGHTS, j, n, until, err);
    return s;
}

/* Passes the first n buckets of weights on and reads those of others. When it returns, their copies
 * to the device are enqueued before all later kernels. */
static enum cld_status move_weights(struct cld_collectives_member *m, size_t n,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    double idle_from = 0; /* about when the device became idle */
    if ((s = cld_event_after_kernels(m->w->q, &m->busy, err)))
        return s;
    while (m->n_passed < n) {
        if ((s = pass_weights(m, err)) ||
            (s = read_weights(m, m->x->n_buckets, CLD_READ_READY, err)))
            return s;
        if (idle_from <= 0 && cld_event_is_complete(&m->busy))
            idle_from = cld_clock_ms();
    }
    if (idle_from <= 0)
        idle_from = cld_clock_ms();
    if ((s = read_weights(m, n, CLD_READ_ALL, err)) ||
        (s = cld_kernels_after(m->w->q, &m->weights, err)))
        return s;
    double now_ms = cld_clock_ms();
    m->weights_times.whole_ms = now_ms - m->begun_ms;
    if (cld_event_is_complete(&m->busy))
        m->weights_times.exposed_ms += now_ms - idle_from;
    return CLD_OK;
}

static enum cld_status on_weights(void *arg, size_t first, struct cld_error *err)
{
    struct cld_collectives_member *m = arg;
    if (!first)
        m->w->drafter.on_weights = NULL; /* this call waits for all */
    return move_weights(m, m->x->n_buckets - first, err);
}

enum cld_status cld_all_gather_end(struct cld_collectives *x, size_t d, struct cld_error *err)
{
    struct cld_collectives_member *m = &x->members[d];
    enum cld_status s = CLD_OK;
    if (!m->moving)
        return CLD_OK;
    m->w->drafter.on_weights = NULL;
    if ((s = move_weights(m, x->n_buckets, err)) || (s = cld_event_wait(&m->weights, err)) ||
        (s = cld_collectives_wait_sent(m, err)))
        return s;
    m->moving = false;
    m->n_rounds[CLD_CARGO_WEIGHTS]++;
    cld_collectives_publish(m, &m->n_read, 1);
    return CLD_OK;
}

enum cld_status cld_all_gather(struct cld_collectives *x, size_t d, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (cld_collectives_n(x) < 2)
        return CLD_OK;
    return (s = begin_weights(&x->members[d], NULL, err)) ? s : cld_all_gather_end(x, d, err);
}

enum cld_status cld_all_gather_update(struct cld_collectives *x, size_t d, double norm,
                                      double learning_rate, size_t update, struct cld_error *err)
{
    struct cld_collectives_member *m = &x->members[d];
    const struct update u = {norm, learning_rate, update};
    enum cld_status s = CLD_OK;
    if (cld_collectives_n(x) < 2 || !isfinite(norm))
        return cld_worker_update(m->w, norm, learning_rate, update, err);
    if ((s = begin_weights(m, &u, err)))
        return s;
    m->w->drafter.on_weights = on_weights;
    m->w->drafter.hook_arg = m;
    return cld_drafter_forget_grads(&m->w->drafter, err);
}
