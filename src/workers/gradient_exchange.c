#include "workers/gradient_exchange.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "ops/tensor_io.h"

/* Elements [first, first + n) of the arenas. */
struct range {
    size_t first, n;
};

/* What is taken: gradients of this shard, or weights of another's. Buckets of weights travel in the
 * reverse order. */
enum cargo { GRADIENTS, WEIGHTS, N_CARGOES };

/* A drafter of this process. Its thread changes it; others read n_there and n_accepted under the
 * lock, and the staging area when these say that something is there. */
struct cld_gradient_exchange_member {
    struct cld_gradient_exchange *x;
    struct cld_worker *w;
    size_t d, at;             /* among those here, among all */
    struct cld_event *final;  /* [n_buckets] where kernels of a bucket end */
    struct cld_event *out;    /* [n_buckets] where its way to the host ends */
    struct cld_event *in;     /* [n_drafters, n_buckets] where the copy of a gradient ends */
    struct cld_event *added;  /* [n_buckets] where the last addition to it ends */
    struct cld_event weights; /* where the last copy of weights to the device ends */
    struct cld_event free;    /* kernels before it may read weights that are to be replaced */
    struct cld_event busy;    /* kernels that the device had when it was to wait for weights */
    size_t *next[N_CARGOES];  /* [n_drafters] of each, how many buckets were taken in this round */
    size_t n_begun;           /* buckets of gradients of this step that are on their way */
    size_t n_passed;          /* buckets of weights that others were told of in this round */
    bool moving;              /* weights are */
    size_t n_rounds[N_CARGOES]; /* exchanges done */
    size_t n_posted, n_sent;    /* messages to other machines; the second under the lock */
    /* under the lock: buckets that were in the staging area, ever; rounds of weights taken whole */
    size_t n_there[N_CARGOES], n_accepted;
    double first_ms, last_ms; /* when the first and the last bucket of gradients were final */
    double begun_ms;          /* of this round of weights */
    struct cld_gradient_exchange_times weights_times; /* of it */
    struct cld_gradient_exchange_times times;
};

static size_t n_drafters(const struct cld_gradient_exchange *x)
{
    return x->machines->n_drafters;
}

static bool is_here(const struct cld_gradient_exchange *x, size_t j)
{
    return j - x->machines->first < x->machines->n_here;
}

static struct cld_gradient_exchange_member *member_of(const struct cld_gradient_exchange *x,
                                                      size_t j)
{
    return &x->members[j - x->machines->first];
}

enum cld_status cld_gradient_exchange_open(struct cld_gradient_exchange *x, struct cld_sync *sync,
                                           const struct cld_machines *machines, size_t n_buckets,
                                           struct cld_error *err)
{
    size_t n = machines->n_drafters, n_here = machines->n_here;
    memset(x, 0, sizeof *x);
    x->sync = sync;
    x->machines = machines;
    x->n_buckets = n_buckets;
    x->members = calloc(n_here, sizeof *x->members);
    x->squares = calloc(n, sizeof *x->squares);
    x->n_gradients = calloc(n_here * n * n_buckets, sizeof *x->n_gradients);
    x->n_weights = calloc(n * n_buckets, sizeof *x->n_weights);
    bool ok = x->members && x->squares && x->n_gradients && x->n_weights;
    for (size_t d = 0; d < n_here && ok; d++) {
        struct cld_gradient_exchange_member *m = &x->members[d];
        m->x = x;
        m->d = d;
        m->at = machines->first + d;
        m->final = calloc(n_buckets, sizeof *m->final);
        m->out = calloc(n_buckets, sizeof *m->out);
        m->in = calloc(n * n_buckets, sizeof *m->in);
        m->added = calloc(n_buckets, sizeof *m->added);
        ok = m->final && m->out && m->in && m->added;
        for (int c = 0; c < N_CARGOES; c++)
            ok = (m->next[c] = calloc(n, sizeof *m->next[c])) && ok;
    }
    if (!ok)
        return cld_fail(err, CLD_E_MEMORY, "", "no host memory for an exchange of %zu drafters", n);
    if (machines->link && (n * n + n) * n_buckets + 4 * n > cld_link_n_tags(machines->link))
        return cld_fail(err, CLD_E_USAGE, "take fewer drafters",
                        "%zu drafters and %zu buckets need more message tags than there are", n,
                        n_buckets);
    return CLD_OK;
}

void cld_gradient_exchange_close(struct cld_gradient_exchange *x)
{
    for (size_t d = 0; x->members && d < x->machines->n_here; d++) {
        free(x->members[d].final);
        free(x->members[d].out);
        free(x->members[d].in);
        free(x->members[d].added);
        for (int c = 0; c < N_CARGOES; c++)
            free(x->members[d].next[c]);
    }
    free(x->members);
    free(x->squares);
    free(x->n_gradients);
    free(x->n_weights);
    memset(x, 0, sizeof *x);
}

void cld_gradient_exchange_join(struct cld_gradient_exchange *x, size_t d, struct cld_worker *w)
{
    pthread_mutex_lock(&x->sync->lock);
    x->members[d].w = w;
    pthread_mutex_unlock(&x->sync->lock);
}

void cld_gradient_exchange_part(struct cld_gradient_exchange *x, size_t d)
{
    struct cld_gradient_exchange_member *m = &x->members[d];
    for (size_t b = 0; b < x->n_buckets; b++) {
        cld_event_release(&m->final[b]);
        cld_event_release(&m->out[b]);
        cld_event_release(&m->added[b]);
    }
    for (size_t i = 0; i < n_drafters(x) * x->n_buckets; i++)
        cld_event_release(&m->in[i]);
    cld_event_release(&m->weights);
    cld_event_release(&m->free);
    cld_event_release(&m->busy);
}

enum cld_status cld_gradient_exchange_meet(struct cld_gradient_exchange *x, struct cld_error *err)
{
    return x->machines->n_here > 1 ? cld_gate_pass(x->sync, &x->gate, x->machines->n_here, err)
                                   : CLD_OK;
}

struct cld_gradient_exchange_times
cld_gradient_exchange_times(const struct cld_gradient_exchange *x, size_t d)
{
    return x->members[d].times;
}

/* --- parts of arenas -------------------------------------------------------------------------- */

static struct range bucket_of(const struct cld_gradient_exchange_member *m, size_t b)
{
    struct range r;
    r.n = cld_drafter_bucket(&m->w->drafter, b, &r.first);
    return r;
}

static struct range shard_of(const struct cld_gradient_exchange_member *m, size_t j)
{
    struct range r;
    r.n = cld_drafter_shard(&m->w->drafter, j, n_drafters(m->x), &r.first);
    return r;
}

/* What is in both; n = 0: nothing. */
static struct range both(struct range a, struct range b)
{
    size_t first = cld_max(a.first, b.first), end = cld_min(a.first + a.n, b.first + b.n);
    return (struct range){first, end > first ? end - first : 0};
}

/* The part of bucket b that is in the shard of drafter j. */
static struct range part_of(const struct cld_gradient_exchange_member *m, size_t b, size_t j)
{
    struct range r;
    r.n = cld_drafter_bucket_part(&m->w->drafter, b, j, &r.first);
    return r;
}

/* --- messages between machines ---------------------------------------------------------------- */

static size_t gradient_tag(const struct cld_gradient_exchange *x, size_t owner, size_t j, size_t b)
{
    return (owner * n_drafters(x) + j) * x->n_buckets + b;
}

static size_t weights_tag(const struct cld_gradient_exchange *x, size_t owner, size_t b)
{
    return gradient_tag(x, n_drafters(x), 0, 0) + owner * x->n_buckets + b;
}

static size_t image_tag(const struct cld_gradient_exchange *x, size_t owner, size_t which)
{
    return weights_tag(x, n_drafters(x), 0) + 4 * owner + which;
}

static size_t *arrivals_of(const struct cld_gradient_exchange_member *m, size_t j, size_t b)
{
    const struct cld_gradient_exchange *x = m->x;
    return &x->n_gradients[(m->d * n_drafters(x) + j) * x->n_buckets + b];
}

static float *inbox_of(const struct cld_gradient_exchange_member *m, size_t j)
{
    const struct cld_machines *all = m->x->machines;
    size_t place = j < all->first ? j : j - all->n_here;
    return m->w->inbox + place * m->w->drafter.shard_n;
}

static enum cld_status send_to(struct cld_gradient_exchange_member *m, size_t rank, size_t tag,
                               const void *from, size_t n_bytes, struct cld_error *err)
{
    m->n_posted++;
    return cld_link_send(m->x->machines->link, rank, tag, from, n_bytes, &m->n_sent, err);
}

/* The staging area is free of messages. */
static enum cld_status wait_sent(struct cld_gradient_exchange_member *m, struct cld_error *err)
{
    return m->x->machines->link ? cld_link_wait(m->x->machines->link, &m->n_sent, m->n_posted, err)
                                : CLD_OK;
}

/* Gradients of this shard from other machines may come. */
static enum cld_status receive_gradients(struct cld_gradient_exchange_member *m,
                                         struct cld_error *err)
{
    struct cld_gradient_exchange *x = m->x;
    enum cld_status s = CLD_OK;
    for (size_t j = 0; j < n_drafters(x); j++)
        for (size_t b = 0; b < x->n_buckets && !is_here(x, j) && !s; b++) {
            struct range r = part_of(m, b, m->at);
            if (r.n)
                s = cld_link_receive(x->machines->link, x->machines->rank_of[j],
                                     gradient_tag(x, m->at, j, b),
                                     inbox_of(m, j) + (r.first - m->w->drafter.shard_first),
                                     r.n * sizeof(float), arrivals_of(m, j, b), err);
        }
    return s;
}

static enum cld_status send_gradients(struct cld_gradient_exchange_member *m, size_t b,
                                      struct cld_error *err)
{
    struct cld_gradient_exchange *x = m->x;
    enum cld_status s = CLD_OK;
    for (size_t j = 0; j < n_drafters(x) && !s; j++) {
        struct range r = part_of(m, b, j);
        if (!is_here(x, j) && r.n)
            s = send_to(m, x->machines->rank_of[j], gradient_tag(x, j, m->at, b),
                        m->w->staging + r.first, r.n * sizeof(float), err);
    }
    return s;
}

static size_t weight_bytes(const struct cld_gradient_exchange_member *m)
{
    return cld_dtype_bytes(m->w->drafter.weights.type);
}

/* Weights in a staging area lie as in their arena. */
static char *weights_at(const struct cld_gradient_exchange_member *m, size_t element)
{
    return (char *)m->w->staging + element * weight_bytes(m);
}

/* Weights from other machines come once a process, to the staging area of its first drafter. */
static enum cld_status receive_weights(struct cld_gradient_exchange_member *m,
                                       struct cld_error *err)
{
    struct cld_gradient_exchange *x = m->x;
    enum cld_status s = CLD_OK;
    for (size_t j = 0; j < n_drafters(x) && !m->d; j++)
        for (size_t b = 0; b < x->n_buckets && !is_here(x, j) && !s; b++) {
            struct range r = part_of(m, b, j);
            if (r.n)
                s = cld_link_receive(x->machines->link, x->machines->rank_of[j],
                                     weights_tag(x, j, b), weights_at(m, r.first),
                                     r.n * weight_bytes(m), &x->n_weights[j * x->n_buckets + b],
                                     err);
        }
    return s;
}

static enum cld_status send_weights(struct cld_gradient_exchange_member *m, size_t b,
                                    struct cld_error *err)
{
    const struct cld_machines *all = m->x->machines;
    struct range r = part_of(m, b, m->at);
    enum cld_status s = CLD_OK;
    for (size_t rank = 0; rank < cld_link_n(all->link) && r.n && !s; rank++)
        if (rank != cld_link_rank(all->link))
            s = send_to(m, rank, weights_tag(m->x, m->at, b), weights_at(m, r.first),
                        r.n * weight_bytes(m), err);
    return s;
}

/* --- taking what others have ------------------------------------------------------------------ */

/* The i-th bucket that travels. */
static size_t bucket_at(const struct cld_gradient_exchange *x, enum cargo cargo, size_t i)
{
    return cargo == GRADIENTS ? i : x->n_buckets - 1 - i;
}

/* The lock is held. Is the i-th bucket of drafter j in host memory, in this round? */
static bool is_ready(const struct cld_gradient_exchange_member *m, enum cargo cargo, size_t j,
                     size_t i)
{
    const struct cld_gradient_exchange *x = m->x;
    size_t b = bucket_at(x, cargo, i), round = m->n_rounds[cargo];
    if (is_here(x, j))
        return member_of(x, j)->n_there[cargo] > round * x->n_buckets + i;
    return (cargo == GRADIENTS ? *arrivals_of(m, j, b) : x->n_weights[j * x->n_buckets + b]) >
           round;
}

/* *yes: it is ready; with `wait` it will be. */
static enum cld_status look(const struct cld_gradient_exchange_member *m, enum cargo cargo,
                            size_t j, size_t i, bool wait, bool *yes, struct cld_error *err)
{
    struct cld_sync *sync = m->x->sync;
    pthread_mutex_lock(&sync->lock);
    bool going = true;
    while (!(*yes = is_ready(m, cargo, j, i)) && wait && going)
        going = cld_sync_wait(sync);
    pthread_mutex_unlock(&sync->lock);
    return going || *yes ? CLD_OK : cld_sync_gave_up(err);
}

/* Has the gradient of drafter j a place that is free from the beginning? The first one has its own,
 * where the sum begins; the others take turns (cld_worker_shard_place). */
static bool has_place(const struct cld_gradient_exchange_member *m, size_t j)
{
    return j != m->at && (!j || j == (m->at == 1 ? 2 : 1));
}

/* Begins to copy a part of bucket b of drafter j to this device. */
static enum cld_status copy_in(struct cld_gradient_exchange_member *m, enum cargo cargo, size_t j,
                               size_t b, struct range r, struct cld_error *err)
{
    const struct cld_gradient_exchange *x = m->x;
    const struct cld_drafter *own = &m->w->drafter;
    if (cargo == WEIGHTS) {
        const struct cld_gradient_exchange_member *from =
            is_here(x, j) ? member_of(x, j) : x->members;
        return cld_transfer_write(own->weights.buf, r.first * weight_bytes(m),
                                  weights_at(from, r.first), r.n * weight_bytes(m), &m->free,
                                  &m->weights, err);
    }
    size_t at = r.first - own->shard_first;
    const float *from = is_here(x, j) ? member_of(x, j)->w->staging + r.first : inbox_of(m, j) + at;
    return cld_transfer_write(cld_worker_shard_place(m->w, j)->buf, at * sizeof(float), from,
                              r.n * sizeof(float), has_place(m, j) ? NULL : &m->added[b],
                              &m->in[j * x->n_buckets + b], err);
}

/* Copies what drafter j has for this one, in order, up to the n-th bucket: as far as it is there,
 * or all of it. */
static enum cld_status take(struct cld_gradient_exchange_member *m, enum cargo cargo, size_t j,
                            size_t n, bool wait, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (size_t *i = &m->next[cargo][j]; *i < n; ++*i) {
        size_t b = bucket_at(m->x, cargo, *i);
        struct range r = part_of(m, b, cargo == GRADIENTS ? m->at : j);
        bool yes = false;
        if (r.n && ((s = look(m, cargo, j, *i, wait, &yes, err)) || !yes ||
                    (s = copy_in(m, cargo, j, b, r, err))))
            return s;
    }
    return CLD_OK;
}

static void begin_taking(struct cld_gradient_exchange_member *m, enum cargo cargo)
{
    memset(m->next[cargo], 0, n_drafters(m->x) * sizeof *m->next[cargo]);
}

/* Adds n to a count that others read. */
static void publish(struct cld_gradient_exchange_member *m, size_t *count, size_t n)
{
    pthread_mutex_lock(&m->x->sync->lock);
    *count += n;
    pthread_cond_broadcast(&m->x->sync->changed);
    pthread_mutex_unlock(&m->x->sync->lock);
}

/* Until all here have taken the weights of the rounds that this one has done: its staging area, and
 * that for weights from other machines, may be written again. */
static enum cld_status wait_consumed(struct cld_gradient_exchange_member *m, struct cld_error *err)
{
    struct cld_gradient_exchange *x = m->x;
    bool going = true;
    pthread_mutex_lock(&x->sync->lock);
    for (size_t d = 0; d < x->machines->n_here && going; d++)
        while (going && x->members[d].n_accepted < m->n_rounds[WEIGHTS])
            going = cld_sync_wait(x->sync);
    pthread_mutex_unlock(&x->sync->lock);
    return going ? CLD_OK : cld_sync_gave_up(err);
}

/* --- weights ---------------------------------------------------------------------------------- */

/* What is done to the weights of the shard before they leave. */
struct update {
    double norm, learning_rate;
    size_t step;
};

/* Weights of the shard begin to leave, bucket by bucket: updated, if `u` is not NULL, and sent to
 * the host while the next one is. */
static enum cld_status begin_weights(struct cld_gradient_exchange_member *m, const struct update *u,
                                     struct cld_error *err)
{
    struct cld_gradient_exchange *x = m->x;
    enum cld_status s = CLD_OK;
    m->begun_ms = cld_clock_ms();
    m->weights_times = (struct cld_gradient_exchange_times){0, 0};
    if ((s = wait_consumed(m, err)) || (s = receive_weights(m, err)) ||
        (s = cld_event_after_kernels(m->w->q, &m->free, err)))
        return s;
    begin_taking(m, WEIGHTS);
    m->n_passed = 0;
    m->moving = true;
    for (size_t i = 0; i < x->n_buckets && !s; i++) {
        size_t b = bucket_at(x, WEIGHTS, i);
        struct range r = part_of(m, b, m->at);
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

/* Waits until the next bucket of weights is in host memory, and tells others. Those behind it that
 * are there go with it. */
static enum cld_status pass_weights(struct cld_gradient_exchange_member *m, struct cld_error *err)
{
    struct cld_gradient_exchange *x = m->x;
    enum cld_status s = CLD_OK;
    size_t n = 0;
    do {
        size_t b = bucket_at(x, WEIGHTS, m->n_passed + n);
        if ((s = cld_event_wait(&m->out[b], err)) || (s = send_weights(m, b, err)))
            return s;
        n++;
    } while (m->n_passed + n < x->n_buckets &&
             cld_event_is_complete(&m->out[bucket_at(x, WEIGHTS, m->n_passed + n)]));
    m->n_passed += n;
    publish(m, &m->n_there[WEIGHTS], n);
    return CLD_OK;
}

static enum cld_status take_weights(struct cld_gradient_exchange_member *m, size_t n, bool wait,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (size_t j = 0; j < n_drafters(m->x) && !s; j++)
        if (j != m->at)
            s = take(m, WEIGHTS, j, n, wait, err);
    return s;
}

/* Passes the first n buckets of weights on, and takes those of others: when it returns their copies
 * to the device are enqueued, and kernels that are enqueued from then on find them there. */
static enum cld_status move_weights(struct cld_gradient_exchange_member *m, size_t n,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    double idle_from = 0; /* about when the device had run out of kernels */
    if ((s = cld_event_after_kernels(m->w->q, &m->busy, err)))
        return s;
    while (m->n_passed < n) {
        if ((s = pass_weights(m, err)) || (s = take_weights(m, m->x->n_buckets, false, err)))
            return s;
        if (idle_from <= 0 && cld_event_is_complete(&m->busy))
            idle_from = cld_clock_ms();
    }
    if (idle_from <= 0)
        idle_from = cld_clock_ms();
    if ((s = take_weights(m, n, true, err)) || (s = cld_kernels_after(m->w->q, &m->weights, err)))
        return s;
    double now_ms = cld_clock_ms();
    m->weights_times.whole_ms = now_ms - m->begun_ms;
    if (cld_event_is_complete(&m->busy))
        m->weights_times.exposed_ms += now_ms - idle_from;
    return CLD_OK;
}

static enum cld_status on_weights(void *arg, size_t first, struct cld_error *err)
{
    struct cld_gradient_exchange_member *m = arg;
    if (!first)
        m->w->drafter.on_weights = NULL; /* all will have come */
    return move_weights(m, m->x->n_buckets - first, err);
}

enum cld_status cld_gradient_exchange_settle(struct cld_gradient_exchange *x, size_t d,
                                             struct cld_error *err)
{
    struct cld_gradient_exchange_member *m = &x->members[d];
    enum cld_status s = CLD_OK;
    if (!m->moving)
        return CLD_OK;
    m->w->drafter.on_weights = NULL;
    if ((s = move_weights(m, x->n_buckets, err)) || (s = cld_event_wait(&m->weights, err)) ||
        (s = wait_sent(m, err)))
        return s;
    m->moving = false;
    m->n_rounds[WEIGHTS]++;
    publish(m, &m->n_accepted, 1);
    return CLD_OK;
}

enum cld_status cld_gradient_exchange_weights(struct cld_gradient_exchange *x, size_t d,
                                              struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (n_drafters(x) < 2)
        return CLD_OK;
    return (s = begin_weights(&x->members[d], NULL, err)) ? s
                                                          : cld_gradient_exchange_settle(x, d, err);
}

/* --- gradients -------------------------------------------------------------------------------- */

/* Bucket b is made by kernels that are enqueued: it goes to the host behind them, but for the part
 * that is summed here. */
static enum cld_status begin_bucket(struct cld_gradient_exchange_member *m, size_t b,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_drafter *own = &m->w->drafter;
    struct range r = bucket_of(m, b), mine = shard_of(m, m->at);
    size_t mine_end = mine.first + mine.n;
    const struct range parts[2] = {both(r, (struct range){0, mine.first}),
                                   both(r, (struct range){mine_end, own->n_elems - mine_end})};
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
    struct cld_gradient_exchange_member *m = arg;
    enum cld_status s = CLD_OK;
    if (!m->n_begun &&
        ((s = cld_gradient_exchange_settle(m->x, m->d, err)) || (s = wait_consumed(m, err))))
        return s;
    while (m->n_begun < n_done && !s)
        s = begin_bucket(m, m->n_begun++, err);
    return s;
}

enum cld_status cld_gradient_exchange_expect(struct cld_gradient_exchange *x, size_t d,
                                             struct cld_error *err)
{
    struct cld_gradient_exchange_member *m = &x->members[d];
    if (n_drafters(x) < 2)
        return CLD_OK;
    m->n_begun = 0;
    begin_taking(m, GRADIENTS);
    m->w->drafter.on_gradients = on_gradients;
    m->w->drafter.hook_arg = m;
    return receive_gradients(m, err);
}

/* Buckets reach the host one after the other, and others are told; meanwhile what they have is
 * taken as far as there is a place. */
static enum cld_status pass_buckets(struct cld_gradient_exchange_member *m, struct cld_error *err)
{
    struct cld_gradient_exchange *x = m->x;
    enum cld_status s = CLD_OK;
    for (size_t b = 0; b < x->n_buckets; b++) {
        if ((s = cld_event_wait(&m->final[b], err)))
            return s;
        m->last_ms = cld_clock_ms();
        if (!b)
            m->first_ms = m->last_ms;
        if ((s = cld_event_wait(&m->out[b], err)) || (s = send_gradients(m, b, err)))
            return s;
        publish(m, &m->n_there[GRADIENTS], 1);
        for (size_t j = 0; j < n_drafters(x); j++)
            if (has_place(m, j) && (s = take(m, GRADIENTS, j, x->n_buckets, false, err)))
                return s;
    }
    return CLD_OK;
}

/* Enqueued: adds the gradient of drafter j to the sum of the shard, each bucket when it is there.
 */
static enum cld_status add_gradient(struct cld_gradient_exchange_member *m, size_t j,
                                    struct cld_error *err)
{
    const struct cld_gradient_exchange *x = m->x;
    bool own = j == m->at;
    enum cld_status s = CLD_OK;
    for (size_t b = 0; b < x->n_buckets; b++) {
        struct range r = part_of(m, b, m->at);
        if (r.n &&
            ((!own && ((s = take(m, GRADIENTS, j, b + 1, true, err)) ||
                       (s = cld_kernels_after(m->w->q, &m->in[j * x->n_buckets + b], err)))) ||
             (s = cld_worker_add_shard(m->w, j, own ? CLD_GRADIENT_OWN : CLD_GRADIENT_ARRIVED,
                                       r.first, r.n, err)) ||
             (s = cld_event_after_kernels(m->w->q, &m->added[b], err))))
            return s;
    }
    return CLD_OK;
}

static enum cld_status sum_shard(struct cld_gradient_exchange_member *m, double *sum,
                                 struct cld_error *err)
{
    struct cld_gradient_exchange *x = m->x;
    enum cld_status s = CLD_OK;
    m->w->drafter.on_gradients = NULL;
    /* All that a pass has told of, or, if it had nothing to do, all. */
    if ((s = on_gradients(m, x->n_buckets, err)) || (s = pass_buckets(m, err)))
        return s;
    for (size_t j = 0; j < n_drafters(x) && !s; j++)
        s = add_gradient(m, j, err);
    if (s || (s = cld_worker_squares(m->w, sum, err)) || (s = wait_sent(m, err)))
        return s;
    m->n_rounds[GRADIENTS]++;
    return CLD_OK;
}

/* Global sum of squares: each drafter's own, added in order. */
static enum cld_status add_squares(struct cld_gradient_exchange_member *m, double own, double *sum,
                                   struct cld_error *err)
{
    struct cld_gradient_exchange *x = m->x;
    const struct cld_machines *all = x->machines;
    x->squares[m->at] = own;
    enum cld_status s = cld_gradient_exchange_meet(x, err);
    if (all->link) {
        if (!s && !m->d)
            s = cld_machines_gather(all, x->squares + all->first, sizeof *x->squares, x->squares,
                                    err);
        s = s ? s : cld_gradient_exchange_meet(x, err);
    }
    if (s)
        return s; /* others may be on their way still */
    *sum = 0;
    for (size_t j = 0; j < n_drafters(x); j++)
        *sum += x->squares[j];
    return CLD_OK;
}

enum cld_status cld_gradient_exchange_norm(struct cld_gradient_exchange *x, size_t d, double *norm,
                                           struct cld_error *err)
{
    struct cld_gradient_exchange_member *m = &x->members[d];
    enum cld_status s = cld_drafter_finish_grads(&m->w->drafter, err);
    double squares = 0, sum = 0;
    if (s || (s = n_drafters(x) > 1 ? sum_shard(m, &squares, err)
                                    : cld_worker_squares(m->w, &squares, err)))
        return s;
    double summed_ms = cld_clock_ms();
    if ((s = add_squares(m, squares, &sum, err)))
        return s;
    *norm = sqrt(sum);
    if (n_drafters(x) < 2)
        return CLD_OK;
    double now_ms = cld_clock_ms();
    m->times.whole_ms = m->weights_times.whole_ms + now_ms - m->first_ms;
    m->times.exposed_ms = m->weights_times.exposed_ms + now_ms - m->last_ms;
    cld_debug("exchange: %.3f ms behind the backward pass, %.3f of them for own sums, and %.3f ms "
              "for weights before",
              now_ms - m->last_ms, summed_ms - m->last_ms, m->weights_times.exposed_ms);
    return CLD_OK;
}

enum cld_status cld_gradient_exchange_update(struct cld_gradient_exchange *x, size_t d, double norm,
                                             double learning_rate, size_t update,
                                             struct cld_error *err)
{
    struct cld_gradient_exchange_member *m = &x->members[d];
    const struct update u = {norm, learning_rate, update};
    enum cld_status s = CLD_OK;
    if (n_drafters(x) < 2 || !isfinite(norm))
        return cld_worker_update(m->w, norm, learning_rate, update, err);
    if ((s = begin_weights(m, &u, err)))
        return s;
    m->w->drafter.on_weights = on_weights;
    m->w->drafter.hook_arg = m;
    return cld_drafter_forget_grads(&m->w->drafter, err);
}

/* --- checkpoints ------------------------------------------------------------------------------ */

/* On rank 0: shards of other machines come to the image. */
static enum cld_status receive_images(struct cld_gradient_exchange_member *m,
                                      const struct cld_image *image, struct cld_error *err)
{
    struct cld_gradient_exchange *x = m->x;
    float *const arrays[4] = {image->master, image->m, image->v, image->ema};
    size_t n_arrays = m->w->drafter.options.ema ? 4 : 3;
    enum cld_status s = CLD_OK;
    size_t n = 0;
    pthread_mutex_lock(&x->sync->lock);
    x->n_images = 0;
    pthread_mutex_unlock(&x->sync->lock);
    for (size_t j = 0; j < n_drafters(x); j++)
        for (size_t i = 0; i < n_arrays && !is_here(x, j) && !s; i++, n++) {
            struct range r = shard_of(m, j);
            s = cld_link_receive(x->machines->link, x->machines->rank_of[j], image_tag(x, j, i),
                                 arrays[i] + r.first, r.n * sizeof(float), &x->n_images, err);
        }
    return s || !n ? s : cld_link_wait(x->machines->link, &x->n_images, n, err);
}

enum cld_status cld_gradient_exchange_gather(struct cld_gradient_exchange *x, size_t d,
                                             const struct cld_image *image, struct cld_error *err)
{
    struct cld_gradient_exchange_member *m = &x->members[d];
    const struct cld_drafter *own = &m->w->drafter;
    const struct cld_tensor *const arrays[4] = {&own->master, &own->m, &own->v, &own->ema};
    size_t n_arrays = own->options.ema ? 4 : 3;
    bool writes = !cld_link_rank(x->machines->link);
    enum cld_status s = wait_consumed(m, err); /* the staging area may be used */
    for (size_t i = 0; i < n_arrays && !s; i++) {
        float *to = m->w->staging;
        if (writes)
            to = (i == 0   ? image->master
                  : i == 1 ? image->m
                  : i == 2 ? image->v
                           : image->ema) +
                 own->shard_first;
        if (!(s = cld_tensor_read(arrays[i], 0, 1, to, err)) && !writes &&
            !(s = send_to(m, 0, image_tag(x, m->at, i), to, own->shard_n * sizeof(float), err)))
            s = wait_sent(m, err);
    }
    return s || !writes || d ? s : receive_images(m, image, err);
}
