/* bench_transfer.c - copies of a block within the device, to and from the host, and through the
 * ring of slots as target workers hand features to drafter workers. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/bench.h"
#include "opencl/transfer.h"
#include "workers/ring.h"
#include "workers/worker.h"

/* --- one device ------------------------------------------------------------------------------- */

struct copies {
    size_t n_bytes;
    struct cld_buf *a, *b, *pinned_a, *pinned_b;
    void *host_a, *host_b; /* of the pinned buffers */
    void *pageable;
    struct cld_event in, out;
};

static enum cld_status run_device(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct copies *c = arg;
    (void)q;
    return cld_buf_copy(c->a, 0, c->b, 0, c->n_bytes, err);
}

static enum cld_status run_in(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct copies *c = arg;
    (void)q;
    return cld_transfer_write(c->a, 0, c->host_a, c->n_bytes, NULL, &c->in, err);
}

static enum cld_status run_out(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct copies *c = arg;
    (void)q;
    return cld_transfer_read(c->b, 0, c->host_b, c->n_bytes, NULL, &c->out, err);
}

static enum cld_status run_both(struct cld_queue *q, void *arg, struct cld_error *err)
{
    enum cld_status s = run_in(q, arg, err);
    return s ? s : run_out(q, arg, err);
}

static enum cld_status run_pageable_in(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct copies *c = arg;
    (void)q;
    return cld_buf_write(c->a, 0, c->pageable, c->n_bytes, err);
}

static enum cld_status run_pageable_out(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct copies *c = arg;
    (void)q;
    return cld_buf_read(c->b, 0, c->pageable, c->n_bytes, err);
}

static enum cld_status make_buffers(struct copies *c, struct cld_queue *q, size_t n_bytes,
                                    struct cld_error *err)
{
    enum cld_status s = cld_buf_create(q, "copied from", n_bytes, &c->a, err);
    c->n_bytes = n_bytes;
    return s ? s : cld_buf_create(q, "copied to", n_bytes, &c->b, err);
}

static enum cld_status make_host_memory(struct copies *c, struct cld_queue *q,
                                        struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if ((s = cld_buf_pinned(q, "pinned, to the device", c->n_bytes, &c->pinned_a, &c->host_a,
                            err)) ||
        (s = cld_buf_pinned(q, "pinned, from the device", c->n_bytes, &c->pinned_b, &c->host_b,
                            err)))
        return s;
    /* Written once: pages that do not exist yet would be part of the first copy alone. */
    if ((c->pageable = malloc(c->n_bytes)))
        memset(c->pageable, 1, c->n_bytes);
    return c->pageable ? CLD_OK
                       : cld_fail(err, CLD_E_MEMORY, "use a smaller bench.transfer_kib",
                                  "no host memory for %zu bytes", c->n_bytes);
}

static void free_copies(struct copies *c)
{
    cld_event_release(&c->in);
    cld_event_release(&c->out);
    cld_buf_free(c->a);
    cld_buf_free(c->b);
    cld_buf_free(c->pinned_a);
    cld_buf_free(c->pinned_b);
    free(c->pageable);
}

static struct cld_bench_result record_of(const char *name, const char *variant, size_t n_bytes,
                                         double times)
{
    struct cld_bench_result r = {.what = "transfer", .bytes = times * (double)n_bytes};
    snprintf(r.name, sizeof r.name, "%s", name);
    snprintf(r.storage, sizeof r.storage, "bytes");
    snprintf(r.variant, sizeof r.variant, "%s", variant);
    cld_bench_dim(&r, "bytes", n_bytes);
    return r;
}

static enum cld_status measure_device_copy(const struct cld_bench *b, struct cld_queue *q,
                                           struct copies *c, struct cld_error *err)
{
    /* Read and written. */
    struct cld_bench_result r = record_of("device copy", "the driver's", c->n_bytes, 2);
    return cld_bench_measure(b, q, run_device, c, &r, err);
}

enum cld_status cld_bench_device_copy(const struct cld_bench *b, struct cld_queue *q,
                                      size_t n_bytes, struct cld_error *err)
{
    struct copies c = {0};
    enum cld_status s = make_buffers(&c, q, n_bytes, err);
    if (!s)
        s = measure_device_copy(b, q, &c, err);
    free_copies(&c);
    return s;
}

enum cld_status cld_bench_transfer(const struct cld_bench *b, struct cld_queue *q,
                                   struct cld_error *err)
{
    static const struct {
        const char *name, *variant;
        cld_bench_fn *run;
        double times; /* that the block moves */
    } all[] = {{"host to device", "pinned", run_in, 1},
               {"device to host", "pinned", run_out, 1},
               {"both ways", "pinned", run_both, 2},
               {"host to device, pageable", "pageable", run_pageable_in, 1},
               {"device to host, pageable", "pageable", run_pageable_out, 1}};
    struct copies c = {0};
    enum cld_status s = CLD_OK;
    if ((s = make_buffers(&c, q, cld_mul(b->cfg->bench.transfer_kib, 1024), err)) ||
        (s = measure_device_copy(b, q, &c, err)) || (s = make_host_memory(&c, q, err)))
        goto done;
    for (size_t i = 0; i < sizeof all / sizeof *all && !s; i++) {
        struct cld_bench_result r = record_of(all[i].name, all[i].variant, c.n_bytes, all[i].times);
        r.off_device = true;
        s = cld_bench_measure(b, q, all[i].run, &c, &r, err);
    }
done:
    free_copies(&c);
    return s;
}

/* --- the ring --------------------------------------------------------------------------------- */

/* The thread that plays the target: it fills slots as fast as they are empty. */
struct producer {
    const struct cld_bench *b;
    struct cld_device_info device;
    struct cld_ring ring;
    struct cld_sync sync;
    size_t n_bytes, n_blocks;
    enum cld_status status;
    struct cld_error err;
};

/* Slots are the producer's pinned memory, so it stays until all of them were emptied. */
static enum cld_status produce(struct producer *p, struct cld_queue *q, struct cld_error *err)
{
    struct cld_buf *from = NULL, *pinned[CLD_MAX_SLOTS] = {NULL};
    struct cld_event done = {0};
    struct cld_slot *slot;
    enum cld_status s = cld_buf_create(q, "features", p->n_bytes, &from, err);
    for (size_t i = 0; i < p->ring.n_slots && !s; i++)
        s = cld_buf_pinned(q, "slot", p->n_bytes, &pinned[i], &p->ring.slots[i].features, err);
    for (size_t i = 0; i < p->n_blocks && !s; i++) {
        double begun = cld_clock_ms();
        if ((s = cld_ring_empty(&p->ring, i, &slot, err)) ||
            (s = cld_transfer_read(from, 0, slot->features, p->n_bytes, NULL, &done, err)) ||
            (s = cld_event_wait(&done, err)))
            break;
        cld_ring_put(&p->ring, slot, i, cld_clock_ms() - begun);
    }
    for (size_t i = 0; i < p->ring.n_slots && !s; i++)
        s = cld_ring_empty(&p->ring, p->n_blocks + i, &slot, err);
    cld_event_release(&done);
    for (size_t i = 0; i < CLD_MAX_SLOTS; i++)
        cld_buf_free(pinned[i]);
    cld_buf_free(from);
    return s;
}

static void *producer_thread(void *arg)
{
    struct producer *p = arg;
    struct cld_queue *q = NULL;
    struct cld_queue_options options = {
        .name = "ring", .budget_bytes = cld_plan_budget_bytes(p->b->cfg, &p->device)};
    p->status = cld_queue_open(&p->device, &options, &q, &p->err);
    if (!p->status)
        p->status = produce(p, q, &p->err);
    if (p->status)
        cld_sync_stop(&p->sync);
    cld_queue_close(q);
    return NULL;
}

/* Takes all blocks; the times of repeats, of a block each, go to ms. */
static enum cld_status consume(struct producer *p, struct cld_buf *to, size_t a_repeat, double *ms,
                               struct cld_error *err)
{
    struct cld_event done = {0};
    enum cld_status s = CLD_OK;
    size_t n_warm = p->b->cfg->bench.warmup * a_repeat;
    double begun = 0;
    for (size_t i = 0; i < p->n_blocks && !s; i++) {
        struct cld_slot *slot;
        if (i % a_repeat == 0) {
            double now = cld_clock_ms();
            if (i > n_warm)
                ms[(i - n_warm) / a_repeat - 1] = now - begun;
            begun = now;
            if ((s = cld_bench_go_on(err)))
                break;
        }
        if ((s = cld_ring_full(&p->ring, 0, i, &slot, err)) ||
            (s = cld_transfer_write(to, 0, slot->features, p->n_bytes, NULL, &done, err)) ||
            (s = cld_event_wait(&done, err)))
            break;
        cld_ring_done(&p->ring, slot);
    }
    if (!s)
        ms[p->b->cfg->bench.repeats - 1] = cld_clock_ms() - begun;
    cld_event_release(&done);
    return s;
}

/* Runs both sides; an error of the producer is the reason, where the consumer only gave up. */
static enum cld_status pass_blocks(struct producer *p, struct cld_buf *to, size_t a_repeat,
                                   double *ms, struct cld_error *err)
{
    pthread_t thread;
    int code = pthread_create(&thread, NULL, producer_thread, p);
    if (code)
        return cld_fail(err, CLD_E_INTERNAL, "", "no thread for the ring: %s", strerror(code));
    enum cld_status s = consume(p, to, a_repeat, ms, err);
    if (s)
        cld_sync_stop(&p->sync);
    pthread_join(thread, NULL);
    if (p->status && (!s || p->status != CLD_E_INTERRUPTED)) {
        *err = p->err;
        s = p->status;
    }
    return s;
}

enum cld_status cld_bench_ring(const struct cld_bench *b, struct cld_queue *q,
                               struct cld_error *err)
{
    const struct cld_config *cfg = b->cfg;
    size_t n = cfg->bench.repeats, slots = cfg->devices.ring_slots,
           a_repeat = cld_max(8, 2 * slots);
    struct producer p = {.b = b,
                         .device = *b->device,
                         .n_bytes = cld_mul(cfg->bench.transfer_kib, 1024),
                         .n_blocks = (cfg->bench.warmup + n) * a_repeat};
    struct cld_bench_result r = record_of("through the ring", "pinned slots", p.n_bytes, 1);
    struct cld_buf *to = NULL;
    double *ms = calloc(n, sizeof *ms);
    enum cld_status s = CLD_OK;
    cld_sync_init(&p.sync);
    if (!ms) {
        s = cld_fail_memory(err, "%zu times", n);
        goto done;
    }
    if ((cfg->devices.targets.n &&
         (s = cld_devices_find(b->devices, cfg->devices.targets.v[0], &p.device, err))) ||
        (s = cld_buf_create(q, "features", p.n_bytes, &to, err)) ||
        (s = cld_ring_open(&p.ring, &p.sync, 1, slots, 1, err)) ||
        (s = pass_blocks(&p, to, a_repeat, ms, err)))
        goto done;
    cld_bench_dim(&r, "slots", slots);
    r.off_device = true;
    r.device_bytes = cld_queue_held_bytes(q);
    cld_bench_times(&r, ms, n, a_repeat);
    s = cld_bench_write(b->sink, &r, err);
done:
    cld_ring_close(&p.ring);
    cld_sync_destroy(&p.sync);
    cld_buf_free(to);
    free(ms);
    return s;
}
