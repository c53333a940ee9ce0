#include "exchange.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor_io.h"

enum cld_status cld_exchange_open(struct cld_exchange *x, struct cld_sync *sync, size_t n,
                                  struct cld_error *err)
{
    memset(x, 0, sizeof *x);
    x->sync = sync;
    x->n = n;
    x->workers = calloc(n, sizeof *x->workers);
    x->squares = calloc(n, sizeof *x->squares);
    if (x->workers && x->squares)
        return CLD_OK;
    return cld_fail(err, CLD_E_MEMORY, "", "no host memory for an exchange of %zu drafters", n);
}

void cld_exchange_close(struct cld_exchange *x)
{
    free(x->workers);
    free(x->squares);
    memset(x, 0, sizeof *x);
}

void cld_exchange_join(struct cld_exchange *x, size_t d, struct cld_worker *w)
{
    pthread_mutex_lock(&x->sync->lock);
    x->workers[d] = w;
    pthread_mutex_unlock(&x->sync->lock);
}

enum cld_status cld_exchange_meet(struct cld_exchange *x, struct cld_error *err)
{
    return x->n > 1 ? cld_gate_pass(x->sync, &x->gate, x->n, err) : CLD_OK;
}

/* A staging area, outside of the phases in which it is written by its owner. */
static const float *staging_of(const struct cld_exchange *x, size_t d)
{
    return x->workers[d]->staging;
}

enum cld_status cld_exchange_weights(struct cld_exchange *x, size_t d, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_worker *w = x->workers[d];
    struct cld_drafter *own = &w->drafter;
    size_t size = cld_dtype_bytes(own->weights.type), first;
    if (x->n < 2)
        return CLD_OK;
    if ((s = cld_buf_read(own->weights.buf, own->shard_first * size, w->staging,
                          own->shard_n * size, err)) ||
        (s = cld_exchange_meet(x, err)))
        return s;
    for (size_t j = 0; j < x->n; j++) {
        size_t n = cld_drafter_shard(own, j, x->n, &first);
        if (j != d &&
            (s = cld_buf_write(own->weights.buf, first * size, staging_of(x, j), n * size, err)))
            return s;
    }
    /* Staging areas are free again only when all have read them. */
    return cld_exchange_meet(x, err);
}

/* Global sum of squares: each drafter's own, added in order. */
static enum cld_status add_squares(struct cld_exchange *x, size_t d, double own, double *sum,
                                   struct cld_error *err)
{
    x->squares[d] = own;
    enum cld_status s = cld_exchange_meet(x, err);
    if (s)
        return s; /* others may be on their way still */
    *sum = 0;
    for (size_t j = 0; j < x->n; j++)
        *sum += x->squares[j];
    return CLD_OK;
}

static enum cld_status sum_shard(struct cld_exchange *x, size_t d, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_worker *w = x->workers[d];
    struct cld_drafter *own = &w->drafter;
    if ((s = cld_drafter_finish_grads(own, err)) ||
        (s = cld_buf_read(own->grads.buf, 0, w->staging, cld_tensor_bytes(&own->grads), err)) ||
        (s = cld_exchange_meet(x, err)))
        return s;
    for (size_t j = 0; j < x->n && !s; j++)
        s = cld_worker_add_shard(w, j, j == d ? NULL : staging_of(x, j) + own->shard_first, err);
    return s;
}

enum cld_status cld_exchange_optimize(struct cld_exchange *x, size_t d, double learning_rate,
                                      size_t update, double *norm, bool *skipped,
                                      struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_worker *w = x->workers[d];
    double squares = 0, sum = 0;
    if ((x->n > 1 && (s = sum_shard(x, d, err))) || (s = cld_worker_squares(w, &squares, err)) ||
        (s = add_squares(x, d, squares, &sum, err)))
        return s;
    *norm = sqrt(sum);
    *skipped = !isfinite(*norm);
    if ((s = cld_worker_update(w, *norm, learning_rate, update, err)) || *skipped)
        return s;
    return cld_exchange_weights(x, d, err);
}

enum cld_status cld_exchange_gather(struct cld_exchange *x, size_t d, const struct cld_image *image,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_drafter *own = &x->workers[d]->drafter;
    size_t at = own->shard_first;
    if ((s = cld_tensor_read(&own->master, 0, 1, image->master + at, err)) ||
        (s = cld_tensor_read(&own->m, 0, 1, image->m + at, err)) ||
        (s = cld_tensor_read(&own->v, 0, 1, image->v + at, err)))
        return s;
    return CLD_OK;
}
