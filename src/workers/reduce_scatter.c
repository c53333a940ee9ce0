/* reduce_scatter.c - gradients of all drafters are summed, each shard on the device of its owner.
 */
#include "workers/collectives_private.h"

#include <math.h>

#include "base/clock.h"
#include "base/log.h"

static struct cld_range bucket_of(const struct cld_collectives_member *m, size_t b)
{
    struct cld_range r;
    r.n = cld_drafter_bucket(&m->w->drafter, b, &r.first);
    return r;
}

/* The intersection; n = 0: it is empty. */
static struct cld_range both(struct cld_range a, struct cld_range b)
{
    size_t first = cld_max(a.first, b.first), end = cld_min(a.first + a.n, b.first + b.n);
    return (struct cld_range){first, end > first ? end - first : 0};
}

static float *inbox_of(const struct cld_collectives_member *m, size_t j)
{
    const struct cld_machines *all = m->x->machines;
    size_t place = j < all->first ? j : j - all->n_here;
    return m->w->inbox + place * m->w->drafter.shard_n;
}

/* Posts the receives of gradients of this shard from other machines. */
static enum cld_status receive_gradients(struct cld_collectives_member *m, struct cld_error *err)
{
    struct cld_collectives *x = m->x;
    enum cld_status s = CLD_OK;
    for (size_t j = 0; j < cld_collectives_n(x); j++)
        for (size_t b = 0; b < x->n_buckets && !cld_collectives_is_here(x, j) && !s; b++) {
            struct cld_range r = cld_collectives_part(m, b, m->at);
            if (r.n)
                s = cld_link_receive(x->machines->link, x->machines->rank_of[j],
                                     cld_collectives_gradient_tag(x, m->at, j, b),
                                     inbox_of(m, j) + (r.first - m->w->drafter.shard_first),
                                     r.n * sizeof(float), cld_collectives_arrivals(m, j, b), err);
        }
    return s;
}

static enum cld_status send_gradients(struct cld_collectives_member *m, size_t b,
                                      struct cld_error *err)
{
    struct cld_collectives *x = m->x;
    enum cld_status s = CLD_OK;
    for (size_t j = 0; j < cld_collectives_n(x) && !s; j++) {
        struct cld_range r = cld_collectives_part(m, b, j);
        if (!cld_collectives_is_here(x, j) && r.n)
            s = cld_collectives_send(m, x->machines->rank_of[j],
                                     cld_collectives_gradient_tag(x, j, m->at, b),
                                     m->w->staging + r.first, r.n * sizeof(float), err);
    }
    return s;
}

/* Whether the gradient of drafter j has a buffer that is free from the beginning. The first one has
 * its own, where the sum begins; the others share one (cld_worker_shard_place). */
static bool has_free_buffer(const struct cld_collectives_member *m, size_t j)
{
    return j != m->at && (!j || j == (m->at == 1 ? 2 : 1));
}

static enum cld_status copy_gradient_in(struct cld_collectives_member *m, size_t j, size_t b,
                                        struct cld_range r, struct cld_error *err)
{
    const struct cld_collectives *x = m->x;
    size_t at = r.first - m->w->drafter.shard_first;
    const float *from = cld_collectives_is_here(x, j)
                            ? cld_collectives_member_of(x, j)->w->staging + r.first
                            : inbox_of(m, j) + at;
    return cld_transfer_write(cld_worker_shard_place(m->w, j)->buf, at * sizeof(float), from,
                              r.n * sizeof(float), has_free_buffer(m, j) ? NULL : &m->added[b],
                              &m->in[j * x->n_buckets + b], err);
}

/* The kernels that make bucket b are enqueued: after them it is copied to the host, except for the
 * part that is summed here. */
static enum cld_status begin_bucket(struct cld_collectives_member *m, size_t b,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_drafter *own = &m->w->drafter;
    struct cld_range r = bucket_of(m, b), mine = cld_collectives_shard(m, m->at);
    size_t mine_end = mine.first + mine.n;
    const struct cld_range parts[2] = {
        both(r, (struct cld_range){0, mine.first}),
        both(r, (struct cld_range){mine_end, own->n_elems - mine_end})};
    cld_event_release(&m->out[b]);
    s = cld_event_after_kernels(m->w->q, &m->final[b], err);
    for (size_t i = 0; i < 2 && !s; i++)
        if (parts[i].n)
            s = cld_transfer_read(own->grads.buf, parts[i].first * sizeof(float),
                                  m->w->staging + parts[i].first, parts[i].n * sizeof(float),
                                  &m->final[b], &m->out[b], err);
    return s;
}

static enum cld_status on_gradients(void *arg, size_t n_done, struct cld_error *err)
{
    struct cld_collectives_member *m = arg;
    enum cld_status s = CLD_OK;
    if (!m->n_begun &&
        ((s = cld_all_gather_end(m->x, m->d, err)) || (s = cld_collectives_wait_read(m, err))))
        return s;
    while (m->n_begun < n_done && !s)
        s = begin_bucket(m, m->n_begun++, err);
    return s;
}

enum cld_status cld_reduce_scatter_begin(struct cld_collectives *x, size_t d, struct cld_error *err)
{
    struct cld_collectives_member *m = &x->members[d];
    if (cld_collectives_n(x) < 2)
        return CLD_OK;
    m->n_begun = 0;
    cld_collectives_begin_reading(m, CLD_CARGO_GRADIENTS, copy_gradient_in);
    m->w->drafter.on_gradients = on_gradients;
    m->w->drafter.hook_arg = m;
    return receive_gradients(m, err);
}

/* Passes each bucket on when it is in host memory. Meanwhile reads what others have, as far as
 * there is a buffer for it. */
static enum cld_status pass_buckets(struct cld_collectives_member *m, struct cld_error *err)
{
    struct cld_collectives *x = m->x;
    enum cld_status s = CLD_OK;
    for (size_t b = 0; b < x->n_buckets; b++) {
        if ((s = cld_event_wait(&m->final[b], err)))
            return s;
        m->last_ms = cld_clock_ms();
        if (!b)
            m->first_ms = m->last_ms;
        if ((s = cld_event_wait(&m->out[b], err)) || (s = send_gradients(m, b, err)))
            return s;
        cld_collectives_publish(m, &m->n_there[CLD_CARGO_GRADIENTS], 1);
        for (size_t j = 0; j < cld_collectives_n(x); j++)
            if (has_free_buffer(m, j) &&
                (s = cld_collectives_read(m, CLD_CARGO_GRADIENTS, j, x->n_buckets, CLD_READ_READY,
                                          err)))
                return s;
    }
    return CLD_OK;
}

/* Enqueued: adds the gradient of drafter j to the sum of the shard, each bucket after it arrived.
 */
static enum cld_status add_gradient(struct cld_collectives_member *m, size_t j,
                                    struct cld_error *err)
{
    const struct cld_collectives *x = m->x;
    bool own = j == m->at;
    enum cld_status s = CLD_OK;
    for (size_t b = 0; b < x->n_buckets; b++) {
        struct cld_range r = cld_collectives_part(m, b, m->at);
        if (r.n &&
            ((!own &&
              ((s = cld_collectives_read(m, CLD_CARGO_GRADIENTS, j, b + 1, CLD_READ_ALL, err)) ||
               (s = cld_kernels_after(m->w->q, &m->in[j * x->n_buckets + b], err)))) ||
             (s = cld_worker_add_shard(m->w, j, own ? CLD_GRADIENT_OWN : CLD_GRADIENT_ARRIVED,
                                       r.first, r.n, err)) ||
             (s = cld_event_after_kernels(m->w->q, &m->added[b], err))))
            return s;
    }
    return CLD_OK;
}

static enum cld_status sum_shard(struct cld_collectives_member *m, double *sum,
                                 struct cld_error *err)
{
    struct cld_collectives *x = m->x;
    enum cld_status s = CLD_OK;
    m->w->drafter.on_gradients = NULL;
    /* Buckets that no backward pass reported: all of them if it had no rows. */
    if ((s = on_gradients(m, x->n_buckets, err)) || (s = pass_buckets(m, err)))
        return s;
    for (size_t j = 0; j < cld_collectives_n(x) && !s; j++)
        s = add_gradient(m, j, err);
    if (s || (s = cld_worker_squares(m->w, sum, err)) || (s = cld_collectives_wait_sent(m, err)))
        return s;
    m->n_rounds[CLD_CARGO_GRADIENTS]++;
    return CLD_OK;
}

/* Global sum of squares: each drafter's own, added in order. */
static enum cld_status add_squares(struct cld_collectives_member *m, double own, double *sum,
                                   struct cld_error *err)
{
    struct cld_collectives *x = m->x;
    const struct cld_machines *all = x->machines;
    x->squares[m->at] = own;
    enum cld_status s = cld_collectives_barrier(x, err);
    if (all->link) {
        if (!s && !m->d)
            s = cld_machines_gather(all, x->squares + all->first, sizeof *x->squares, x->squares,
                                    err);
        s = s ? s : cld_collectives_barrier(x, err);
    }
    if (s)
        return s; /* other drafters may still read x->squares */
    *sum = 0;
    for (size_t j = 0; j < cld_collectives_n(x); j++)
        *sum += x->squares[j];
    return CLD_OK;
}

enum cld_status cld_reduce_scatter_norm(struct cld_collectives *x, size_t d, double *norm,
                                        struct cld_error *err)
{
    struct cld_collectives_member *m = &x->members[d];
    enum cld_status s = cld_drafter_finish_grads(&m->w->drafter, err);
    double squares = 0, sum = 0;
    if (s || (s = cld_collectives_n(x) > 1 ? sum_shard(m, &squares, err)
                                           : cld_worker_squares(m->w, &squares, err)))
        return s;
    double summed_ms = cld_clock_ms();
    if ((s = add_squares(m, squares, &sum, err)))
        return s;
    *norm = sqrt(sum);
    if (cld_collectives_n(x) < 2)
        return CLD_OK;
    double now_ms = cld_clock_ms();
    m->times.whole_ms = m->weights_times.whole_ms + now_ms - m->first_ms;
    m->times.exposed_ms = m->weights_times.exposed_ms + now_ms - m->last_ms;
    cld_debug(
        "reduce-scatter: %.3f ms after the backward pass, %.3f of them for sums here; all-gather "
        "before: %.3f ms",
        now_ms - m->last_ms, summed_ms - m->last_ms, m->weights_times.exposed_ms);
    return CLD_OK;
}
