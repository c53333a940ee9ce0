/* collectives_private.h - what reduce_scatter.c, all_gather.c and collectives.c share. */
#ifndef CLD_WORKERS_COLLECTIVES_PRIVATE_H
#define CLD_WORKERS_COLLECTIVES_PRIVATE_H

#include "workers/collectives.h"

/* Elements [first, first + n) of the arenas. */
struct cld_range {
    size_t first, n;
};

/* What travels: gradients of the reader's shard, or weights of another drafter's shard. Buckets of
 * weights travel in the reverse order. */
enum cld_cargo { CLD_CARGO_GRADIENTS, CLD_CARGO_WEIGHTS, CLD_N_CARGOES };

/* Begins to copy r, a part of bucket b of drafter j, to the device of `m`. */
struct cld_collectives_member;
typedef enum cld_status cld_copy_in_fn(struct cld_collectives_member *m, size_t j, size_t b,
                                       struct cld_range r, struct cld_error *err);

/* A drafter of this process. Its thread changes it; others read n_there and n_read under the lock,
 * and the staging area when these say that something is there. */
struct cld_collectives_member {
    struct cld_collectives *x;
    struct cld_worker *w;
    size_t d, at;                /* its number in this process, and among all */
    struct cld_event *final;     /* [n_buckets] end of the kernels that make a bucket */
    struct cld_event *out;       /* [n_buckets] end of its copy to the host */
    struct cld_event *in;        /* [n_drafters, n_buckets] end of the copy of a gradient to here */
    struct cld_event *added;     /* [n_buckets] end of the last addition to it */
    struct cld_event weights;    /* end of the last copy of weights to the device */
    struct cld_event free;       /* end of kernels that may read weights that are to be replaced */
    struct cld_event busy;       /* end of the kernels enqueued when it began to wait for weights */
    size_t *next[CLD_N_CARGOES]; /* [n_drafters] buckets of each that were read in this round */
    cld_copy_in_fn *copy_in[CLD_N_CARGOES];
    size_t n_begun;                 /* buckets of gradients of this step that are travelling */
    size_t n_passed;                /* buckets of weights that others may read in this round */
    bool moving;                    /* weights are travelling */
    size_t n_rounds[CLD_N_CARGOES]; /* collectives done */
    size_t n_posted, n_sent;        /* messages to other machines; the second under the lock */
    /* under the lock: buckets that ever were in the staging area; rounds of weights read whole */
    size_t n_there[CLD_N_CARGOES], n_read;
    double first_ms, last_ms; /* when the first and the last bucket of gradients were final */
    double begun_ms;          /* start of this round of weights */
    struct cld_collectives_times weights_times; /* of this round */
    struct cld_collectives_times times;
};

static inline size_t cld_collectives_n(const struct cld_collectives *x)
{
    return x->machines->n_drafters;
}

static inline bool cld_collectives_is_here(const struct cld_collectives *x, size_t j)
{
    return j - x->machines->first < x->machines->n_here;
}

static inline struct cld_collectives_member *
cld_collectives_member_of(const struct cld_collectives *x, size_t j)
{
    return &x->members[j - x->machines->first];
}

/* The part of bucket b that is in the shard of drafter j. */
static inline struct cld_range cld_collectives_part(const struct cld_collectives_member *m,
                                                    size_t b, size_t j)
{
    struct cld_range r;
    r.n = cld_drafter_bucket_part(&m->w->drafter, b, j, &r.first);
    return r;
}

static inline struct cld_range cld_collectives_shard(const struct cld_collectives_member *m,
                                                     size_t j)
{
    struct cld_range r;
    r.n = cld_drafter_shard(&m->w->drafter, j, cld_collectives_n(m->x), &r.first);
    return r;
}

/* The i-th bucket that travels. */
static inline size_t cld_collectives_bucket(const struct cld_collectives *x, enum cld_cargo cargo,
                                            size_t i)
{
    return cargo == CLD_CARGO_GRADIENTS ? i : x->n_buckets - 1 - i;
}

/* collectives.c. Tags of messages: the gradient of drafter j for the shard of `owner`; weights of
 * that shard; arrays of a checkpoint. */
size_t cld_collectives_gradient_tag(const struct cld_collectives *x, size_t owner, size_t j,
                                    size_t b);
size_t cld_collectives_weights_tag(const struct cld_collectives *x, size_t owner, size_t b);
size_t cld_collectives_image_tag(const struct cld_collectives *x, size_t owner, size_t which);
/* How often bucket b of drafter j, on another machine, came for the shard of m. */
size_t *cld_collectives_arrivals(const struct cld_collectives_member *m, size_t j, size_t b);

enum cld_status cld_collectives_send(struct cld_collectives_member *m, size_t rank, size_t tag,
                                     const void *from, size_t n_bytes, struct cld_error *err);
/* Waits until the staging area has no message left to send. */
enum cld_status cld_collectives_wait_sent(struct cld_collectives_member *m, struct cld_error *err);

/* Begins a round of reading: `copy_in` is used for all that is read in it. */
void cld_collectives_begin_reading(struct cld_collectives_member *m, enum cld_cargo cargo,
                                   cld_copy_in_fn *copy_in);
/* Copies what drafter j has for this one to the device, in order, up to the n-th bucket: what is
 * ready, or all. */
enum cld_read_until { CLD_READ_READY, CLD_READ_ALL };
enum cld_status cld_collectives_read(struct cld_collectives_member *m, enum cld_cargo cargo,
                                     size_t j, size_t n, enum cld_read_until until,
                                     struct cld_error *err);
/* Adds n to a count that other members read. */
void cld_collectives_publish(struct cld_collectives_member *m, size_t *count, size_t n);
/* Waits until all members have read the weights of the rounds that this one has done: its staging
 * area, and the one for weights from other machines, may be written again. */
enum cld_status cld_collectives_wait_read(struct cld_collectives_member *m, struct cld_error *err);

#endif
