/* collectives.c - what the reduce-scatter and the all-gather of drafters share: members, messages
 * between machines, and reading what others have. */
#include "workers/collectives_private.h"

#include <stdlib.h>
#include <string.h>

#include "ops/tensor_io.h"

enum cld_status cld_collectives_open(struct cld_collectives *x, struct cld_sync *sync,
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
        struct cld_collectives_member *m = &x->members[d];
        m->x = x;
        m->d = d;
        m->at = machines->first + d;
        m->final = calloc(n_buckets, sizeof *m->final);
        m->out = calloc(n_buckets, sizeof *m->out);
        m->in = calloc(n * n_buckets, sizeof *m->in);
        m->added = calloc(n_buckets, sizeof *m->added);
        ok = m->final && m->out && m->in && m->added;
        for (int c = 0; c < CLD_N_CARGOES; c++)
            ok = (m->next[c] = calloc(n, sizeof *m->next[c])) && ok;
    }
    if (!ok)
        return cld_fail_memory(err, "the collectives of %zu drafters", n);
    if (machines->link && (n * n + n) * n_buckets + 4 * n > cld_link_n_tags(machines->link))
        return cld_fail(err, CLD_E_USAGE, "use fewer drafters",
                        "%zu drafters and %zu buckets need more message tags than there are", n,
                        n_buckets);
    return CLD_OK;
}

void cld_collectives_close(struct cld_collectives *x)
{
    for (size_t d = 0; x->members && d < x->machines->n_here; d++) {
        free(x->members[d].final);
        free(x->members[d].out);
        free(x->members[d].in);
        free(x->members[d].added);
        for (int c = 0; c < CLD_N_CARGOES; c++)
            free(x->members[d].next[c]);
    }
    free(x->members);
    free(x->squares);
    free(x->n_gradients);
    free(x->n_weights);
    memset(x, 0, sizeof *x);
}

void cld_collectives_join(struct cld_collectives *x, size_t d, struct cld_worker *w)
{
    pthread_mutex_lock(&x->sync->lock);
    x->members[d].w = w;
    pthread_mutex_unlock(&x->sync->lock);
}

void cld_collectives_leave(struct cld_collectives *x, size_t d)
{
    struct cld_collectives_member *m = &x->members[d];
    for (size_t b = 0; b < x->n_buckets; b++) {
        cld_event_release(&m->final[b]);
        cld_event_release(&m->out[b]);
        cld_event_release(&m->added[b]);
    }
    for (size_t i = 0; i < cld_collectives_n(x) * x->n_buckets; i++)
        cld_event_release(&m->in[i]);
    cld_event_release(&m->weights);
    cld_event_release(&m->free);
    cld_event_release(&m->busy);
}

enum cld_status cld_collectives_barrier(struct cld_collectives *x, struct cld_error *err)
{
    return x->machines->n_here > 1 ? cld_gate_pass(x->sync, &x->gate, x->machines->n_here, err)
                                   : CLD_OK;
}

struct cld_collectives_times cld_collectives_times(const struct cld_collectives *x, size_t d)
{
    return x->members[d].times;
}

/* --- messages between machines ---------------------------------------------------------------- */

size_t cld_collectives_gradient_tag(const struct cld_collectives *x, size_t owner, size_t j,
                                    size_t b)
{
    return (owner * cld_collectives_n(x) + j) * x->n_buckets + b;
}

size_t cld_collectives_weights_tag(const struct cld_collectives *x, size_t owner, size_t b)
{
    return cld_collectives_gradient_tag(x, cld_collectives_n(x), 0, 0) + owner * x->n_buckets + b;
}

size_t cld_collectives_image_tag(const struct cld_collectives *x, size_t owner, size_t which)
{
    return cld_collectives_weights_tag(x, cld_collectives_n(x), 0) + 4 * owner + which;
}

size_t *cld_collectives_arrivals(const struct cld_collectives_member *m, size_t j, size_t b)
{
    const struct cld_collectives *x = m->x;
    return &x->n_gradients[(m->d * cld_collectives_n(x) + j) * x->n_buckets + b];
}

enum cld_status cld_collectives_send(struct cld_collectives_member *m, size_t rank, size_t tag,
                                     const void *from, size_t n_bytes, struct cld_error *err)
{
    m->n_posted++;
    return cld_link_send(m->x->machines->link, rank, tag, from, n_bytes, &m->n_sent, err);
}

enum cld_status cld_collectives_wait_sent(struct cld_collectives_member *m, struct cld_error *err)
{
    return m->x->machines->link ? cld_link_wait(m->x->machines->link, &m->n_sent, m->n_posted, err)
                                : CLD_OK;
}

/* --- reading what others have ----------------------------------------------------------------- */

/* The lock is held. Is the i-th bucket of drafter j in host memory, in this round? */
static bool is_ready(const struct cld_collectives_member *m, enum cld_cargo cargo, size_t j,
                     size_t i)
{
    const struct cld_collectives *x = m->x;
    size_t b = cld_collectives_bucket(x, cargo, i), round = m->n_rounds[cargo];
    if (cld_collectives_is_here(x, j))
        return cld_collectives_member_of(x, j)->n_there[cargo] > round * x->n_buckets + i;
    return (cargo == CLD_CARGO_GRADIENTS ? *cld_collectives_arrivals(m, j, b)
                                         : x->n_weights[j * x->n_buckets + b]) > round;
}

/* *yes: it is ready. CLD_READ_ALL waits until it is. */
static enum cld_status look(const struct cld_collectives_member *m, enum cld_cargo cargo, size_t j,
                            size_t i, enum cld_read_until until, bool *yes, struct cld_error *err)
{
    struct cld_sync *sync = m->x->sync;
    pthread_mutex_lock(&sync->lock);
    bool going = true;
    while (!(*yes = is_ready(m, cargo, j, i)) && until == CLD_READ_ALL && going)
        going = cld_sync_wait(sync);
    pthread_mutex_unlock(&sync->lock);
    return going || *yes ? CLD_OK : cld_sync_gave_up(err);
}

enum cld_status cld_collectives_read(struct cld_collectives_member *m, enum cld_cargo cargo,
                                     size_t j, size_t n, enum cld_read_until until,
                                     struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (size_t *i = &m->next[cargo][j]; *i < n; ++*i) {
        size_t b = cld_collectives_bucket(m->x, cargo, *i);
        struct cld_range r = cld_collectives_part(m, b, cargo == CLD_CARGO_GRADIENTS ? m->at : j);
        bool yes = false;
        if (r.n && ((s = look(m, cargo, j, *i, until, &yes, err)) || !yes ||
                    (s = m->copy_in[cargo](m, j, b, r, err))))
            return s;
    }
    return CLD_OK;
}

void cld_collectives_begin_reading(struct cld_collectives_member *m, enum cld_cargo cargo,
                                   cld_copy_in_fn *copy_in)
{
    m->copy_in[cargo] = copy_in;
    memset(m->next[cargo], 0, cld_collectives_n(m->x) * sizeof *m->next[cargo]);
}

void cld_collectives_publish(struct cld_collectives_member *m, size_t *count, size_t n)
{
    pthread_mutex_lock(&m->x->sync->lock);
    *count += n;
    pthread_cond_broadcast(&m->x->sync->changed);
    pthread_mutex_unlock(&m->x->sync->lock);
}

enum cld_status cld_collectives_wait_read(struct cld_collectives_member *m, struct cld_error *err)
{
    struct cld_collectives *x = m->x;
    bool going = true;
    pthread_mutex_lock(&x->sync->lock);
    for (size_t d = 0; d < x->machines->n_here && going; d++)
        while (going && x->members[d].n_read < m->n_rounds[CLD_CARGO_WEIGHTS])
            going = cld_sync_wait(x->sync);
    pthread_mutex_unlock(&x->sync->lock);
    return going ? CLD_OK : cld_sync_gave_up(err);
}

/* --- checkpoints ------------------------------------------------------------------------------ */

/* On rank 0: receives the shards of other machines into the image. */
static enum cld_status receive_images(struct cld_collectives_member *m,
                                      const struct cld_image *image, struct cld_error *err)
{
    struct cld_collectives *x = m->x;
    float *const arrays[4] = {image->master, image->m, image->v, image->ema};
    size_t n_arrays = m->w->drafter.options.ema ? 4 : 3;
    enum cld_status s = CLD_OK;
    size_t n = 0;
    pthread_mutex_lock(&x->sync->lock);
    x->n_images = 0;
    pthread_mutex_unlock(&x->sync->lock);
    for (size_t j = 0; j < cld_collectives_n(x); j++)
        for (size_t i = 0; i < n_arrays && !cld_collectives_is_here(x, j) && !s; i++, n++) {
            struct cld_range r = cld_collectives_shard(m, j);
            s = cld_link_receive(x->machines->link, x->machines->rank_of[j],
                                 cld_collectives_image_tag(x, j, i), arrays[i] + r.first,
                                 r.n * sizeof(float), &x->n_images, err);
        }
    return s || !n ? s : cld_link_wait(x->machines->link, &x->n_images, n, err);
}

enum cld_status cld_collectives_gather_image(struct cld_collectives *x, size_t d,
                                             const struct cld_image *image, struct cld_error *err)
{
    struct cld_collectives_member *m = &x->members[d];
    const struct cld_drafter *own = &m->w->drafter;
    const struct cld_tensor *const arrays[4] = {&own->master, &own->m, &own->v, &own->ema};
    size_t n_arrays = own->options.ema ? 4 : 3;
    bool writes = !cld_link_rank(x->machines->link);
    enum cld_status s = cld_collectives_wait_read(m, err); /* the staging area is free */
    for (size_t i = 0; i < n_arrays && !s; i++) {
        float *to = m->w->staging;
        if (writes)
            to = (i == 0   ? image->master
                  : i == 1 ? image->m
                  : i == 2 ? image->v
                           : image->ema) +
                 own->shard_first;
        if (!(s = cld_tensor_read(arrays[i], 0, 1, to, err)) && !writes &&
            !(s = cld_collectives_send(m, 0, cld_collectives_image_tag(x, m->at, i), to,
                                       own->shard_n * sizeof(float), err)))
            s = cld_collectives_wait_sent(m, err);
    }
    return s || !writes || d ? s : receive_images(m, image, err);
}
