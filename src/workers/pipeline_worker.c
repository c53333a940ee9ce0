/* pipeline_worker.c - what the worker threads of a pipeline do: get ready, then run targets or
 * drafters until their orders end. */
#include "ops/tensor_io.h"
#include "workers/pipeline_private.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "ops/tuning.h"
#include "workers/checkpoint.h"
#include "workers/evaluate.h"
#include "workers/feature_source.h"

enum cld_status (*cld_pipeline_fault)(const char *worker, size_t number, struct cld_error *err);

static void note_state(const struct cld_member *m, enum cld_worker_state state)
{
    cld_status_file_worker(m->p->status, (size_t)(m - m->p->members), state);
}

static void note_facts(const struct cld_member *m, struct cld_worker_facts *f)
{
    const struct cld_worker *w = &m->w;
    bool drafts = cld_worker_has_drafter(w->role);
    snprintf(f->name, sizeof f->name, "%s", m->who->name);
    snprintf(f->attention, sizeof f->attention, "%s",
             w->role == CLD_ROLE_READER ? "none"
             : drafts                   ? w->drafter.attention.variant
                                        : w->target.attention.variant);
    snprintf(f->gemm, sizeof f->gemm, "%s",
             w->role == CLD_ROLE_READER
                 ? "none"
                 : cld_gemm_backend_name(w->q, drafts ? w->drafter.gemm : w->target.gemm));
    snprintf(f->program, sizeof f->program, "%s", cld_queue_program_origin(w->q));
    cld_tuning_text(w->q, f->tuning, sizeof f->tuning);
    f->device = w->device;
    f->storage = w->cfg->runtime.precision;
    f->planned_bytes = cld_plan_bytes(w->plan);
    f->pinned_bytes = cld_plan_pinned_bytes(w->plan);
    f->held_bytes = cld_queue_held_bytes(w->q);
    f->peak_bytes = cld_queue_peak_bytes(w->q);
    f->budget_bytes = w->budget_bytes;
    f->counts = cld_queue_counts(w->q);
}

/* Queue, plan, buffers, target, warm-up, seal. */
static enum cld_status get_ready(struct cld_member *m, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_pipeline *p = m->p;
    struct cld_worker *w = &m->w;
    double begun = cld_clock_ms();
    if ((s = cld_worker_plan(w, p->cfg, p->setup, &m->who->device, &m->who->options, err)) ||
        (s = cld_worker_check(w, err)) || (s = cld_worker_create(w, err)) ||
        (w->role == CLD_ROLE_DRAFTER_WITHOUT_RING && (s = cld_worker_make_up_features(w, err))))
        return s;
    note_state(m, CLD_WORKER_WARMING);
    if ((s = cld_worker_warm_up(w, err)))
        return s;
    for (size_t i = 0; !cld_worker_has_drafter(w->role) && i < p->ring.n_slots; i++)
        p->ring.slots[m->index * p->ring.n_slots + i].features = w->slots[i].host;
    m->step.w = w;
    if (cld_worker_has_drafter(w->role))
        cld_collectives_join(&p->collectives, m->index, w);
    note_facts(m, &m->ready);
    note_state(m, CLD_WORKER_WAITING);
    cld_status_file_memory(p->status, (size_t)(m - p->members), m->ready.held_bytes,
                           m->ready.budget_bytes);
    const struct cld_queue_counts *n = &m->ready.counts;
    const char *cache = cld_queue_cache_dir(w->q);
    cld_info("%s warmed up in %.1f s: %zu programs from source, %zu from the cache (%s), %zu from "
             "SPIR-V "
             "modules in %.1f s "
             "(%.1f s waiting for others' builds), %zu kernels",
             m->who->name, (cld_clock_ms() - begun) * 1e-3, n->n_builds, n->n_cached,
             cache ? cache : w->no_cache, n->n_modules, n->build_ms * 1e-3, n->build_wait_ms * 1e-3,
             n->n_kernels);
    return CLD_OK;
}

static enum cld_status ask_fault(const struct cld_member *m, size_t number, struct cld_error *err)
{
    return cld_pipeline_fault ? cld_pipeline_fault(m->who->name, number, err) : CLD_OK;
}

/* Waits until the last features are in their slot, and passes the slot on. */
static enum cld_status put_item(struct cld_member *m, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    double begun = cld_clock_ms();
    if (!m->unsent)
        return CLD_OK;
    if ((s = cld_worker_features_moved(&m->w, err)))
        return s;
    cld_ring_put(&m->p->ring, m->unsent, m->unsent_number, m->unsent_ms + cld_clock_ms() - begun);
    m->unsent = NULL;
    return CLD_OK;
}

/* Makes one micro-batch and its features, and begins to copy them to its slot of the ring. The copy
 * of the features before ends meanwhile, or before a wait for a drafter. */
static enum cld_status make_item(struct cld_member *m, const struct cld_item *it,
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_slot *slot = NULL;
    note_state(m, CLD_WORKER_NO_SLOT);
    if ((s = ask_fault(m, it->number, err)) ||
        (!cld_ring_is_empty(&m->p->ring, it->number) && (s = put_item(m, err))) ||
        (s = cld_ring_empty(&m->p->ring, it->number, &slot, err)))
        return s;
    note_state(m, CLD_WORKER_COMPUTING);
    double begun = cld_clock_ms();
    if ((s = cld_batch_build(&slot->batch, it->docs, it->n_docs, &m->p->setup->rules, false,
                             err)) ||
        (m->p->store ? (s = cld_features_fill(m->p->store, m->p->sync, &m->w, it, &slot->batch,
                                              slot->features, err))
                     : (s = cld_worker_features(&m->w, &slot->batch, err))))
        return s;
    double made = cld_clock_ms();
    if (m->p->store) { /* rows come from the disk or go there, and are in the slot already */
        cld_ring_put(&m->p->ring, slot, it->number, made - begun);
        return CLD_OK;
    }
    if ((s = put_item(m, err)))
        return s;
    double sending = cld_clock_ms();
    if ((s = cld_worker_send_features(&m->w, slot->batch.n_ctx, slot->features, err)))
        return s;
    m->unsent = slot;
    m->unsent_number = it->number;
    m->unsent_ms = made - begun + cld_clock_ms() - sending;
    return CLD_OK;
}

static enum cld_status run_target(struct cld_member *m, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    while (!(s = cld_batch_schedule_next(m->p->schedule, m->job, &m->job, err)) && m->job)
        for (size_t i = 0; i < m->job->n_items; i++) {
            const struct cld_item *it = &m->job->items[i];
            if (it->number % m->p->set->n_targets == m->index && (s = make_item(m, it, err)))
                return s;
        }
    if (!s)
        s = put_item(m, err);
    note_state(m, CLD_WORKER_WAITING);
    return s;
}

/* The first micro-batch of this drafter among items [at, n) of its job; NULL: none. */
static const struct cld_item *own_item(const struct cld_member *m, size_t at)
{
    for (; m->job && at < m->job->n_items; at++)
        if (m->job->items[at].drafter == m->index)
            return &m->job->items[at];
    return NULL;
}

/* Begins to copy the features of this micro-batch from the ring. */
static enum cld_status fetch(struct cld_member *m, size_t number, struct cld_error *err)
{
    struct cld_slot *slot = NULL;
    enum cld_status s = cld_ring_full(&m->p->ring, m->index, number, &slot, err);
    if (s || (s = cld_worker_fetch_features(&m->w, slot->batch.n_ctx, slot->features, err)))
        return s;
    m->fetched = slot;
    return CLD_OK;
}

/* Prefetch: the same while this drafter computes, if they are there already. */
static enum cld_status fetch_ahead(struct cld_member *m, const struct cld_item *next,
                                   struct cld_error *err)
{
    if (!next || m->fetched || !cld_ring_is_full(&m->p->ring, next->number))
        return CLD_OK;
    return fetch(m, next->number, err);
}

static enum cld_status pass(struct cld_member *m, const struct cld_batch *b, struct cld_error *err)
{
    return m->job->kind == CLD_JOB_STEP
               ? cld_step_pass(&m->step, b, m->inv_sum_weight, &m->got, err)
               : cld_evaluate_pass(&m->w, b, &m->got.score, err);
}

/* One micro-batch of this drafter, from the ring. `next` comes after it in the job. */
static enum cld_status use_slot(struct cld_member *m, const struct cld_item *it,
                                const struct cld_item *next, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    note_state(m, CLD_WORKER_NO_FEATURES);
    if (!m->fetched && ((s = cld_all_gather_end(&m->p->collectives, m->index, err)) ||
                        (s = fetch(m, it->number, err))))
        return s;
    struct cld_slot *slot = m->fetched;
    m->fetched = NULL;
    note_state(m, CLD_WORKER_COMPUTING);
    if ((s = cld_worker_take_features(&m->w, err)) || (s = fetch_ahead(m, next, err)) ||
        (s = pass(m, &slot->batch, err)))
        return s;
    cld_ring_done(&m->p->ring, slot);
    return fetch_ahead(m, next, err);
}

/* One micro-batch of this drafter: from the ring, or laid out here for its own target. */
static enum cld_status use_item(struct cld_member *m, const struct cld_item *it,
                                const struct cld_item *next, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if ((s = ask_fault(m, it->number, err)))
        return s;
    if (!next && m->job->kind == CLD_JOB_STEP &&
        (s = cld_reduce_scatter_begin(&m->p->collectives, m->index, err)))
        return s;
    if (cld_pipeline_has_ring(m->p))
        return use_slot(m, it, next, err);
    double begun = cld_clock_ms();
    if ((s = cld_batch_build(&m->step.batch, it->docs, it->n_docs, &m->p->setup->rules, false,
                             err)))
        return s;
    m->data_ms += cld_clock_ms() - begun;
    return pass(m, &m->step.batch, err);
}

/* Goes on to the next job, once. */
static enum cld_status next_job(struct cld_member *m, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (!m->ahead && !(s = cld_batch_schedule_next(m->p->schedule, m->job, &m->job, err)))
        m->ahead = true;
    return s;
}

/* The next job, which must be of this kind, and all its micro-batches that are this drafter's. */
static enum cld_status use_job(struct cld_member *m, enum cld_job_kind kind, struct cld_error *err)
{
    double begun = cld_clock_ms();
    memset(&m->got, 0, sizeof m->got);
    enum cld_status s = next_job(m, err);
    if (s)
        return s;
    m->ahead = false;
    if (!m->job || m->job->kind != kind)
        return cld_fail(err, CLD_E_INTERNAL, "", "the schedule has another job than the order");
    m->n_items = m->job->n_items;
    m->inv_sum_weight = m->job->inv_sum_weight;
    m->digest = m->job->digest;
    m->data_ms = cld_clock_ms() - begun;
    const struct cld_item *next, *it = own_item(m, 0);
    /* Rows without anchors make no micro-batch; gradients of zero are reduced all the same. */
    if (!it && kind == CLD_JOB_STEP &&
        (s = cld_reduce_scatter_begin(&m->p->collectives, m->index, err)))
        return s;
    for (; it && !s; it = next) {
        next = own_item(m, (size_t)(it - m->job->items) + 1);
        s = use_item(m, it, next, err);
    }
    /* Prefetch features for the next job during the reduce-scatter. */
    if (!s && cld_pipeline_has_ring(m->p) && !(s = next_job(m, err)))
        s = fetch_ahead(m, own_item(m, 0), err);
    return s;
}

static enum cld_status take_step(struct cld_member *m, const struct cld_order *o,
                                 struct cld_error *err)
{
    enum cld_status s = use_job(m, CLD_JOB_STEP, err);
    double begun = cld_clock_ms();
    /* Counts of tiles are read where it costs nothing: not before the gradients have left, nor with
     * the weights on their way. */
    if (s || (s = cld_reduce_scatter_norm(&m->p->collectives, m->index, &m->got.grad_norm, err)) ||
        (s = cld_drafter_check_tiles(&m->w.drafter, err)) ||
        (s = cld_all_gather_update(&m->p->collectives, m->index, m->got.grad_norm, o->learning_rate,
                                   o->update, err)))
        return s;
    m->got.skipped = !isfinite(m->got.grad_norm);
    m->got.part_ms[CLD_STEP_OPTIMIZER] = cld_clock_ms() - begun;
    return CLD_OK;
}

static enum cld_status set_weights(struct cld_member *m, const struct cld_order *o,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_drafter *d = &m->w.drafter;
    const struct cld_config *cfg = m->p->cfg;
    if (o->resumed)
        s = cld_checkpoint_load(o->resumed, d, err);
    else if (!(s = cld_drafter_init(d, (uint64_t)cfg->run.seed, cfg->drafter.init_std, err)) &&
             o->init)
        s = cld_drafter_load(d, o->init, err);
    if (!s && !o->resumed)
        s = cld_drafter_begin_ema(d, err);
    /* Drafters on different kinds of devices may round an initial value differently. */
    return s ? s : cld_all_gather(&m->p->collectives, m->index, err);
}

/* The arrays of a drafter that has them in full. */
static enum cld_status copy_arrays(const struct cld_drafter *d, const struct cld_image *image,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_tensor *const arrays[] = {&d->master, &d->m, &d->v, &d->ema};
    float *const to[] = {image->master, image->m, image->v, image->ema};
    for (size_t i = 0; i < cld_checkpoint_n_arrays(d) && !s; i++)
        s = cld_tensor_read(arrays[i], 0, arrays[i]->n_rows, to[i], err);
    return s;
}

/* The snapshot is memory of the first drafter, which starts the writer when all have copied their
 * part; so its thread cannot free it meanwhile (see `leave`). */
static enum cld_status save(struct cld_member *m, const struct cld_order *o, struct cld_error *err)
{
    struct cld_pipeline *p = m->p;
    const struct cld_drafter *d = &m->w.drafter;
    const struct cld_image *image = &p->members[p->set->n_targets].w.image;
    enum cld_status s = CLD_OK;
    if (cld_drafter_is_sharded(d)) {
        if (!(s = cld_collectives_gather_image(&p->collectives, m->index, image, err)))
            s = cld_collectives_barrier(&p->collectives, err);
    } else {
        s = copy_arrays(d, image, err);
    }
    if (s || m->index || cld_link_rank(p->machines->link))
        return s;
    return cld_checkpoint_writer_start(&p->writer, o->dir, d, image, o->file, o->state, o->keep,
                                       err);
}

static enum cld_status give_weights(struct cld_member *m, const struct cld_order *o,
                                    struct cld_error *err)
{
    const struct cld_tensor *weights = &m->w.drafter.weights;
    return m->index ? CLD_OK
                    : cld_buf_read(weights->buf, 0, o->weights, cld_tensor_bytes(weights), err);
}

/* With eval.ema all drafters replace their weights by the mean while something reads them. */
static enum cld_status swap_ema(struct cld_member *m,
                                enum cld_status (*swap)(struct cld_drafter *d,
                                                        struct cld_error *err),
                                struct cld_error *err)
{
    if (!m->w.drafter.options.ema || !m->p->cfg->eval.ema)
        return CLD_OK;
    enum cld_status s = swap(&m->w.drafter, err);
    return s ? s : cld_all_gather(&m->p->collectives, m->index, err);
}

static enum cld_status evaluate(struct cld_member *m, struct cld_error *err)
{
    enum cld_status s = swap_ema(m, cld_drafter_show_ema, err);
    if (s || (s = use_job(m, CLD_JOB_EVALUATE, err)) ||
        (s = cld_drafter_check_tiles(&m->w.drafter, err)))
        return s;
    return swap_ema(m, cld_drafter_hide_ema, err);
}

static enum cld_status obey(struct cld_member *m, const struct cld_order *o, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (o->kind != CLD_ORDER_STEP && (s = cld_all_gather_end(&m->p->collectives, m->index, err)))
        return s;
    switch (o->kind) {
    case CLD_ORDER_BEGIN:
        return set_weights(m, o, err);
    case CLD_ORDER_STEP:
        return take_step(m, o, err);
    case CLD_ORDER_EVALUATE:
        return evaluate(m, err);
    case CLD_ORDER_WEIGHTS:
        return (s = swap_ema(m, cld_drafter_show_ema, err)) || (s = give_weights(m, o, err))
                   ? s
                   : swap_ema(m, cld_drafter_hide_ema, err);
    case CLD_ORDER_SAVE:
        return save(m, o, err);
    }
    return CLD_OK;
}

static enum cld_status run_drafter(struct cld_member *m, struct cld_error *err)
{
    struct cld_pipeline *p = m->p;
    for (size_t number = 1;; number++) {
        pthread_mutex_lock(&p->sync->lock);
        bool going = !p->sync->stopped;
        while (going && p->order_number < number)
            going = cld_sync_wait(p->sync);
        struct cld_order o = p->order;
        pthread_mutex_unlock(&p->sync->lock);
        if (!going)
            return CLD_OK;
        note_state(m, o.kind == CLD_ORDER_SAVE ? CLD_WORKER_SAVING : CLD_WORKER_COMPUTING);
        enum cld_status s = obey(m, &o, err);
        if (s)
            return s;
        note_state(m, CLD_WORKER_WAITING);
        pthread_mutex_lock(&p->sync->lock);
        p->n_done++;
        pthread_cond_broadcast(&p->sync->changed);
        pthread_mutex_unlock(&p->sync->lock);
    }
}

/* Reaches the barrier of the warm-up and waits for all. */
static enum cld_status report_ready(struct cld_pipeline *p, struct cld_error *err)
{
    pthread_mutex_lock(&p->sync->lock);
    p->n_ready++;
    pthread_cond_broadcast(&p->sync->changed);
    bool going = !p->sync->stopped;
    while (going && p->n_ready < p->n_members)
        going = cld_sync_wait(p->sync);
    pthread_mutex_unlock(&p->sync->lock);
    return going ? CLD_OK : cld_sync_gave_up(err);
}

/* The first failure is the run's; those that follow from it give up with CLD_E_INTERRUPTED. */
static void report_failure(struct cld_member *m, struct cld_error *err)
{
    struct cld_pipeline *p = m->p;
    pthread_mutex_lock(&p->sync->lock);
    if (!p->sync->stopped && !p->failure.status) {
        if (p->n_members > 1)
            cld_fail_prefix(err, "%s", m->who->name);
        p->failure = *err;
    }
    bool first = p->failure.status && !p->sync->stopped;
    p->sync->stopped = true;
    pthread_cond_broadcast(&p->sync->changed);
    pthread_mutex_unlock(&p->sync->lock);
    if (first)
        cld_link_blame(p->machines->link, err);
}

/* Others may still be reading pinned memory of this worker, also on other machines: all leave
 * together. */
static void leave(struct cld_pipeline *p)
{
    pthread_mutex_lock(&p->sync->lock);
    bool last = ++p->n_out == p->n_started;
    pthread_mutex_unlock(&p->sync->lock);
    if (last)
        cld_link_halt(p->machines->link);
    pthread_mutex_lock(&p->sync->lock);
    p->all_out |= last;
    pthread_cond_broadcast(&p->sync->changed);
    while (!p->all_out)
        pthread_cond_wait(&p->sync->changed, &p->sync->lock);
    pthread_mutex_unlock(&p->sync->lock);
}

void *cld_member_run(void *arg)
{
    struct cld_member *m = arg;
    struct cld_error err = CLD_ERROR_INIT;
    cld_log_thread_name(m->who->name);
    if (get_ready(m, &err) || report_ready(m->p, &err) ||
        (cld_worker_has_drafter(m->w.role) ? run_drafter(m, &err) : run_target(m, &err)))
        report_failure(m, &err);
    if (m->w.q) {
        /* Copies under way read memory of other workers, which they may free after this. */
        struct cld_error ignored = CLD_ERROR_INIT;
        cld_queue_finish(m->w.q, &ignored);
        note_facts(m, &m->end);
    }
    if (m->w.image.master)
        cld_checkpoint_writer_wait_idle(&m->p->writer);
    leave(m->p);
    if (m->w.q && cld_worker_has_drafter(m->w.role))
        cld_collectives_leave(&m->p->collectives, m->index);
    cld_step_free(&m->step);
    cld_worker_close(&m->w);
    return NULL;
}
