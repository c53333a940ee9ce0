#include "pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "clock.h"
#include "deal.h"
#include "evaluate.h"
#include "exchange.h"
#include "feature_source.h"
#include "log.h"
#include "ring.h"

enum cld_status (*cld_pipeline_fault)(const char *worker, size_t number, struct cld_error *err);

enum order_kind { ORDER_BEGIN, ORDER_STEP, ORDER_EVALUATE, ORDER_WEIGHTS, ORDER_SAVE };

/* What all drafters are to do now. Written by main while they wait. */
struct order {
    enum order_kind kind;
    const char *resumed, *init;
    double learning_rate;
    size_t update;
    void *weights;
    const char *dir;
    const struct cld_drafter_file *file;
    const struct cld_train_state *state;
    const struct cld_image *image;
    size_t keep;
};

/* A thread and what is its own; main reads results when the thread says that its order is done. */
struct member {
    struct cld_pipeline *p;
    const struct cld_crew_member *who;
    size_t index; /* among the targets, or among the drafters */
    pthread_t thread;
    struct cld_worker w;
    const struct cld_job *job; /* done last, or, if `ahead`, to be done next; NULL: no more */
    bool ahead;
    size_t n_items;        /* micro-batches of the job for drafters here */
    double inv_sum_weight; /* of the job */
    uint64_t mark;
    struct cld_slot *fetched; /* of the ring, whose features are on their way */
    struct cld_slot *unsent;  /* a target's: features are on their way there */
    size_t unsent_number;
    double unsent_ms;
    struct cld_step step;
    struct cld_step_result got;
    double data_ms, busy_ms; /* of this step; of all steps, waits left out */
    struct cld_worker_facts ready, end;
};

/* What a drafter did in a job, on any machine. */
struct result {
    struct cld_score score;
    size_t n_tokens;
    uint64_t mark; /* of the job */
};

struct cld_pipeline {
    const struct cld_config *cfg;
    const struct cld_setup *setup;
    const struct cld_crew *crew;
    struct cld_board *board;
    struct cld_deal *deal;
    const struct cld_machines *machines;
    struct cld_sync own_sync, *sync; /* the link's, where there is one */
    struct cld_feature_store *store; /* NULL: none */
    struct cld_ring ring;
    struct cld_exchange exchange;
    struct member *members; /* targets, then drafters */
    size_t n_members, n_started;
    double *waits_now, *waits_before; /* [n_members] */
    struct result *results;           /* [drafters of all machines] */
    struct cld_ring_times times_before;
    size_t n_used; /* micro-batches of steps that drafters have used up */
    /* while a checkpoint of shards is written; drafters may outlast the call */
    struct cld_image image;
    /* under the lock */
    size_t n_ready, n_out, order_number, n_done;
    bool all_out;
    struct order order;
    struct cld_error failure; /* of the worker that failed first */
};

static bool has_ring(const struct cld_pipeline *p)
{
    return p->crew->n_targets > 0;
}

static struct member *drafter_of(const struct cld_pipeline *p, size_t d)
{
    return &p->members[p->crew->n_targets + d];
}

/* --- what a worker thread does ---------------------------------------------------------------- */

static void note_state(const struct member *m, enum cld_worker_state state)
{
    cld_board_worker(m->p->board, (size_t)(m - m->p->members), state);
}

static void note_facts(const struct member *m, struct cld_worker_facts *f)
{
    const struct cld_worker *w = &m->w;
    snprintf(f->name, sizeof f->name, "%s", m->who->name);
    snprintf(f->attention, sizeof f->attention, "%s",
             w->reads        ? "none"
             : w->no_drafter ? w->target.attention.variant
                             : w->drafter.attention.variant);
    snprintf(f->gemm, sizeof f->gemm, "%s",
             w->reads
                 ? "none"
                 : cld_gemm_backend_name(w->q, w->no_drafter ? w->target.gemm : w->drafter.gemm));
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
static enum cld_status get_ready(struct member *m, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_pipeline *p = m->p;
    struct cld_worker *w = &m->w;
    double begun = cld_clock_ms();
    if ((s = cld_worker_plan(w, p->cfg, p->setup, &m->who->device, &m->who->options, err)) ||
        (s = cld_worker_check(w, err)) || (s = cld_worker_create(w, err)) ||
        (w->given_features && !has_ring(p) && (s = cld_worker_make_up_features(w, err))))
        return s;
    note_state(m, CLD_WORKER_WARMING);
    if ((s = cld_worker_warm_up(w, err)))
        return s;
    for (size_t i = 0; w->no_drafter && i < p->ring.n_slots; i++)
        p->ring.slots[m->index * p->ring.n_slots + i].features = w->slots[i].host;
    m->step.w = w;
    if (!w->no_drafter)
        cld_exchange_join(&p->exchange, m->index, w);
    note_facts(m, &m->ready);
    note_state(m, CLD_WORKER_WAITING);
    cld_board_memory(p->board, (size_t)(m - p->members), m->ready.held_bytes,
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

static enum cld_status ask_fault(const struct member *m, size_t number, struct cld_error *err)
{
    return cld_pipeline_fault ? cld_pipeline_fault(m->who->name, number, err) : CLD_OK;
}

/* Waits until the features that were made last are in their slot, and hands it over. */
static enum cld_status put_item(struct member *m, struct cld_error *err)
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

/* Makes one micro-batch and its features, which begin their way into its slot of the ring. Those
 * made before arrive meanwhile, unless there is nothing to do until a drafter has used them. */
static enum cld_status make_item(struct member *m, const struct cld_item *it, struct cld_error *err)
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

static enum cld_status run_target(struct member *m, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    while (!(s = cld_deal_next(m->p->deal, m->job, &m->job, err)) && m->job)
        for (size_t i = 0; i < m->job->n_items; i++) {
            const struct cld_item *it = &m->job->items[i];
            if (it->number % m->p->crew->n_targets == m->index && (s = make_item(m, it, err)))
                return s;
        }
    if (!s)
        s = put_item(m, err);
    note_state(m, CLD_WORKER_WAITING);
    return s;
}

/* The first micro-batch of this drafter among items [at, n) of its job; NULL: none. */
static const struct cld_item *own_item(const struct member *m, size_t at)
{
    for (; m->job && at < m->job->n_items; at++)
        if (m->job->items[at].drafter == m->index)
            return &m->job->items[at];
    return NULL;
}

/* Features of this micro-batch begin to come from the ring. */
static enum cld_status fetch(struct member *m, size_t number, struct cld_error *err)
{
    struct cld_slot *slot = NULL;
    enum cld_status s = cld_ring_full(&m->p->ring, m->index, number, &slot, err);
    if (s || (s = cld_worker_fetch_features(&m->w, slot->batch.n_ctx, slot->features, err)))
        return s;
    m->fetched = slot;
    return CLD_OK;
}

/* The same while this drafter has something else to do, if they are there already. */
static enum cld_status fetch_ahead(struct member *m, const struct cld_item *next,
                                   struct cld_error *err)
{
    if (!next || m->fetched || !cld_ring_is_full(&m->p->ring, next->number))
        return CLD_OK;
    return fetch(m, next->number, err);
}

static enum cld_status pass(struct member *m, const struct cld_batch *b, struct cld_error *err)
{
    return m->job->kind == CLD_JOB_STEP
               ? cld_step_pass(&m->step, b, m->inv_sum_weight, &m->got, err)
               : cld_evaluate_pass(&m->w, b, &m->got.score, err);
}

/* One micro-batch of this drafter, from the ring. `next` comes after it in the job. */
static enum cld_status use_slot(struct member *m, const struct cld_item *it,
                                const struct cld_item *next, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    note_state(m, CLD_WORKER_NO_FEATURES);
    if (!m->fetched && ((s = cld_exchange_settle(&m->p->exchange, m->index, err)) ||
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
static enum cld_status use_item(struct member *m, const struct cld_item *it,
                                const struct cld_item *next, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if ((s = ask_fault(m, it->number, err)))
        return s;
    if (!next && m->job->kind == CLD_JOB_STEP &&
        (s = cld_exchange_expect(&m->p->exchange, m->index, err)))
        return s;
    if (has_ring(m->p))
        return use_slot(m, it, next, err);
    double begun = cld_clock_ms();
    if ((s = cld_batch_build(&m->step.batch, it->docs, it->n_docs, &m->p->setup->rules, false,
                             err)))
        return s;
    m->data_ms += cld_clock_ms() - begun;
    return pass(m, &m->step.batch, err);
}

/* Goes on to the next job, once. */
static enum cld_status next_job(struct member *m, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (!m->ahead && !(s = cld_deal_next(m->p->deal, m->job, &m->job, err)))
        m->ahead = true;
    return s;
}

/* The next job, which must be of this kind, and all its micro-batches that are this drafter's. */
static enum cld_status use_job(struct member *m, enum cld_job_kind kind, struct cld_error *err)
{
    double begun = cld_clock_ms();
    memset(&m->got, 0, sizeof m->got);
    enum cld_status s = next_job(m, err);
    if (s)
        return s;
    m->ahead = false;
    if (!m->job || m->job->kind != kind)
        return cld_fail(err, CLD_E_INTERNAL, "", "the deal has another job than the one ordered");
    m->n_items = m->job->n_items;
    m->inv_sum_weight = m->job->inv_sum_weight;
    m->mark = m->job->mark;
    m->data_ms = cld_clock_ms() - begun;
    const struct cld_item *next, *it = own_item(m, 0);
    /* Rows without anchors make no micro-batch; gradients of zero are exchanged all the same. */
    if (!it && kind == CLD_JOB_STEP && (s = cld_exchange_expect(&m->p->exchange, m->index, err)))
        return s;
    for (; it && !s; it = next) {
        next = own_item(m, (size_t)(it - m->job->items) + 1);
        s = use_item(m, it, next, err);
    }
    /* Features for what comes next may come while gradients are exchanged. */
    if (!s && has_ring(m->p) && !(s = next_job(m, err)))
        s = fetch_ahead(m, own_item(m, 0), err);
    return s;
}

static enum cld_status take_step(struct member *m, const struct order *o, struct cld_error *err)
{
    enum cld_status s = use_job(m, CLD_JOB_STEP, err);
    double begun = cld_clock_ms();
    /* Counts of tiles are read where it costs nothing: not before the gradients have left, nor with
     * the weights on their way. */
    if (s || (s = cld_exchange_norm(&m->p->exchange, m->index, &m->got.grad_norm, err)) ||
        (s = cld_drafter_check_tiles(&m->w.drafter, err)) ||
        (s = cld_exchange_update(&m->p->exchange, m->index, m->got.grad_norm, o->learning_rate,
                                 o->update, err)))
        return s;
    m->got.skipped = !isfinite(m->got.grad_norm);
    m->got.part_ms[CLD_STEP_OPTIMIZER] = cld_clock_ms() - begun;
    return CLD_OK;
}

static enum cld_status set_weights(struct member *m, const struct order *o, struct cld_error *err)
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
    return s ? s : cld_exchange_weights(&m->p->exchange, m->index, err);
}

static enum cld_status save(struct member *m, const struct order *o, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (cld_drafter_is_sharded(&m->w.drafter) &&
        ((s = cld_exchange_gather(&m->p->exchange, m->index, o->image, err)) ||
         (s = cld_exchange_meet(&m->p->exchange, err))))
        return s;
    return m->index || cld_link_rank(m->p->machines->link)
               ? CLD_OK
               : cld_checkpoint_save(o->dir, &m->w.drafter, o->image, o->file, o->state, o->keep,
                                     err);
}

static enum cld_status give_weights(struct member *m, const struct order *o, struct cld_error *err)
{
    const struct cld_tensor *weights = &m->w.drafter.weights;
    return m->index ? CLD_OK
                    : cld_buf_read(weights->buf, 0, o->weights, cld_tensor_bytes(weights), err);
}

/* Where the mean of weights is what is evaluated, all drafters put it in their place, and back. */
static enum cld_status show_ema(struct member *m, bool show, struct cld_error *err)
{
    if (!m->w.drafter.options.ema || !m->p->cfg->eval.ema)
        return CLD_OK;
    enum cld_status s = cld_drafter_show_ema(&m->w.drafter, show, err);
    return s ? s : cld_exchange_weights(&m->p->exchange, m->index, err);
}

static enum cld_status evaluate(struct member *m, struct cld_error *err)
{
    enum cld_status s = show_ema(m, true, err);
    if (s || (s = use_job(m, CLD_JOB_EVALUATE, err)) ||
        (s = cld_drafter_check_tiles(&m->w.drafter, err)))
        return s;
    return show_ema(m, false, err);
}

static enum cld_status obey(struct member *m, const struct order *o, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (o->kind != ORDER_STEP && (s = cld_exchange_settle(&m->p->exchange, m->index, err)))
        return s;
    switch (o->kind) {
    case ORDER_BEGIN:
        return set_weights(m, o, err);
    case ORDER_STEP:
        return take_step(m, o, err);
    case ORDER_EVALUATE:
        return evaluate(m, err);
    case ORDER_WEIGHTS:
        return (s = show_ema(m, true, err)) || (s = give_weights(m, o, err))
                   ? s
                   : show_ema(m, false, err);
    case ORDER_SAVE:
        return save(m, o, err);
    }
    return CLD_OK;
}

static enum cld_status run_drafter(struct member *m, struct cld_error *err)
{
    struct cld_pipeline *p = m->p;
    for (size_t number = 1;; number++) {
        pthread_mutex_lock(&p->sync->lock);
        bool going = !p->sync->stopped;
        while (going && p->order_number < number)
            going = cld_sync_wait(p->sync);
        struct order o = p->order;
        pthread_mutex_unlock(&p->sync->lock);
        if (!going)
            return CLD_OK;
        note_state(m, o.kind == ORDER_SAVE ? CLD_WORKER_SAVING : CLD_WORKER_COMPUTING);
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
static void report_failure(struct member *m, struct cld_error *err)
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

static void *run_member(void *arg)
{
    struct member *m = arg;
    struct cld_error err = CLD_ERROR_INIT;
    cld_log_thread_name(m->who->name);
    if (get_ready(m, &err) || report_ready(m->p, &err) ||
        (m->w.no_drafter ? run_target(m, &err) : run_drafter(m, &err)))
        report_failure(m, &err);
    if (m->w.q) {
        /* Copies that are under way read memory of others, who may free it after this. */
        struct cld_error ignored = CLD_ERROR_INIT;
        cld_queue_finish(m->w.q, &ignored);
        note_facts(m, &m->end);
    }
    leave(m->p);
    if (m->w.q && !m->w.no_drafter)
        cld_exchange_part(&m->p->exchange, m->index);
    cld_step_free(&m->step);
    cld_worker_close(&m->w);
    return NULL;
}

/* --- main --------------------------------------------------------------------------------------
 */

/* What to return when the run has stopped, after which the record does not change. */
static enum cld_status why_stopped(const struct cld_pipeline *p, struct cld_error *err)
{
    if (p->failure.status)
        *err = p->failure;
    else if (!cld_link_failure(p->machines->link, err))
        cld_sync_gave_up(err);
    return err->status;
}

static enum cld_status start(struct cld_pipeline *p, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    pthread_mutex_lock(&p->sync->lock);
    for (size_t i = 0; i < p->n_members && !s; i++) {
        struct member *m = &p->members[i];
        m->p = p;
        m->who = &p->crew->at[i];
        m->index = i < p->crew->n_targets ? i : i - p->crew->n_targets;
        int failed = pthread_create(&m->thread, NULL, run_member, m);
        if (failed)
            s = cld_fail(err, CLD_E_MEMORY, "", "cannot start the thread of %s: %s", m->who->name,
                         strerror(failed));
        else
            p->n_started++;
    }
    bool going = !s;
    while (going && p->n_ready < p->n_members)
        going = cld_sync_wait(p->sync);
    pthread_mutex_unlock(&p->sync->lock);
    return s || going ? s : why_stopped(p, err);
}

enum cld_status cld_pipeline_open(const struct cld_config *cfg, const struct cld_setup *setup,
                                  const struct cld_crew *crew, const struct cld_machines *machines,
                                  struct cld_feed *feed, struct cld_feature_store *store,
                                  struct cld_board *board, size_t first, struct cld_pipeline **out,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = crew->n_targets + crew->n_drafters;
    struct cld_pipeline *p = *out = calloc(1, sizeof *p);
    if (!p)
        return cld_fail(err, CLD_E_MEMORY, "", "no host memory for a pipeline");
    p->cfg = cfg;
    p->setup = setup;
    p->crew = crew;
    p->board = board;
    p->store = store;
    p->n_members = n;
    p->machines = machines;
    cld_sync_init(&p->own_sync);
    p->sync = machines->link ? cld_link_sync(machines->link) : &p->own_sync;
    p->members = calloc(n, sizeof *p->members);
    p->waits_now = calloc(n, sizeof *p->waits_now);
    p->waits_before = calloc(n, sizeof *p->waits_before);
    p->results = calloc(machines->n_drafters, sizeof *p->results);
    if (!p->members || !p->waits_now || !p->waits_before || !p->results)
        return cld_fail(err, CLD_E_MEMORY, "", "no host memory for %zu workers", n);
    if ((s = cld_ring_open(&p->ring, p->sync, crew->n_targets, cfg->devices.ring_slots,
                           crew->n_drafters, err)) ||
        (s = cld_exchange_open(&p->exchange, p->sync, machines,
                               cld_drafter_n_buckets_of(&setup->drafter), err)) ||
        (s = cld_deal_open(feed, cfg, &setup->rules, &crew->limits, store, machines, n, first,
                           &p->deal, err)))
        return s;
    return start(p, err);
}

static void free_image(struct cld_pipeline *p)
{
    free(p->image.master);
    free(p->image.m);
    free(p->image.v);
    free(p->image.ema);
    memset(&p->image, 0, sizeof p->image);
}

enum cld_status cld_pipeline_close(struct cld_pipeline *p, struct cld_worker_facts *ends,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (!p)
        return CLD_OK;
    cld_sync_stop(p->sync);
    for (size_t i = 0; i < p->n_started; i++)
        pthread_join(p->members[i].thread, NULL);
    for (size_t i = 0; i < p->n_started; i++) {
        const struct cld_queue_counts *a = &p->members[i].ready.counts,
                                      *b = &p->members[i].end.counts;
        if (ends)
            ends[i] = p->members[i].end;
        if (!s && p->members[i].ready.name[0] &&
            (a->n_builds != b->n_builds || a->n_cached != b->n_cached ||
             a->n_buffers != b->n_buffers))
            s = cld_fail(err, CLD_E_INTERNAL, "",
                         "%s built %zu programs and created %zu buffers after "
                         "the warm-up",
                         p->members[i].end.name,
                         b->n_builds + b->n_cached - a->n_builds - a->n_cached,
                         b->n_buffers - a->n_buffers);
    }
    cld_deal_close(p->deal);
    cld_exchange_close(&p->exchange);
    cld_ring_close(&p->ring);
    cld_sync_destroy(&p->own_sync);
    free_image(p);
    free(p->members);
    free(p->waits_now);
    free(p->waits_before);
    free(p->results);
    free(p);
    return s;
}

const struct cld_worker_facts *cld_pipeline_facts(const struct cld_pipeline *p, size_t i)
{
    return &p->members[i].ready;
}

/* Gives the order to all drafters and waits until the last of them is done. */
static enum cld_status give_order(struct cld_pipeline *p, const struct order *o,
                                  struct cld_error *err)
{
    pthread_mutex_lock(&p->sync->lock);
    p->order = *o;
    p->order_number++;
    p->n_done = 0;
    pthread_cond_broadcast(&p->sync->changed);
    bool going = !p->sync->stopped;
    while (going && p->n_done < p->crew->n_drafters)
        going = cld_sync_wait(p->sync);
    pthread_mutex_unlock(&p->sync->lock);
    return going ? CLD_OK : why_stopped(p, err);
}

enum cld_status cld_pipeline_begin(struct cld_pipeline *p, const char *resumed, const char *init,
                                   struct cld_error *err)
{
    struct order o = {.kind = ORDER_BEGIN, .resumed = resumed, .init = init};
    return give_order(p, &o, err);
}

/* Means over the workers of each side since the last call. */
static void measure_waits(struct cld_pipeline *p, struct cld_pipeline_waits *waits)
{
    size_t n_targets = p->crew->n_targets, n_drafters = p->crew->n_drafters;
    memset(waits, 0, sizeof *waits);
    for (size_t d = 0; d < n_drafters; d++) {
        struct cld_exchange_times t = cld_exchange_times(&p->exchange, d);
        waits->data_ms += drafter_of(p, d)->data_ms / (double)n_drafters;
        waits->exchange_whole_ms += t.whole_ms / (double)n_drafters;
        waits->exchange_ms += t.exposed_ms / (double)n_drafters;
    }
    if (!has_ring(p))
        return;
    struct cld_ring_times t = cld_ring_times(&p->ring, p->waits_now, n_drafters);
    waits->slot_ms = (t.target_wait_ms - p->times_before.target_wait_ms) / (double)n_targets;
    waits->features_ms = (t.drafter_wait_ms - p->times_before.drafter_wait_ms) / (double)n_drafters;
    waits->ring_fill = (double)t.n_full / (double)(n_targets * p->ring.n_slots);
    p->times_before = t;
    for (size_t i = 0; i < p->n_members; i++) {
        double now = p->waits_now[i];
        p->waits_now[i] -= p->waits_before[i];
        p->waits_before[i] = now;
    }
    waits->each_ms = p->waits_now;
}

/* What drafters of all machines did, in their order: the same everywhere. */
static enum cld_status gather_results(struct cld_pipeline *p, struct cld_score *score,
                                      size_t *n_tokens, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct result *here = p->results + p->machines->first;
    memset(score, 0, sizeof *score);
    *n_tokens = 0;
    for (size_t d = 0; d < p->crew->n_drafters; d++) {
        const struct member *m = drafter_of(p, d);
        here[d] = (struct result){m->got.score, m->got.n_tokens, m->mark};
    }
    if (p->machines->link &&
        (s = cld_machines_gather(p->machines, here, sizeof *here, p->results, err)))
        return s;
    for (size_t j = 0; j < p->machines->n_drafters; j++) {
        if (p->results[j].mark != p->results[0].mark)
            return cld_fail(err, CLD_E_INPUT, "give all machines the same files",
                            "machine %zu has other rows than machine 0 in this step",
                            p->machines->rank_of[j]);
        cld_score_merge(score, &p->results[j].score);
        *n_tokens += p->results[j].n_tokens;
    }
    return CLD_OK;
}

static enum cld_status merge_result(struct cld_pipeline *p, struct cld_step_result *r,
                                    struct cld_error *err)
{
    size_t n = p->crew->n_drafters;
    *r = drafter_of(p, 0)->got;
    for (size_t d = 0; d < n; d++)
        for (int k = 0; k < CLD_N_STEP_PARTS; k++) {
            drafter_of(p, d)->busy_ms += drafter_of(p, d)->got.part_ms[k];
            r->part_ms[k] += d ? drafter_of(p, d)->got.part_ms[k] : 0;
        }
    for (int k = 0; k < CLD_N_STEP_PARTS; k++)
        r->part_ms[k] /= (double)n;
    return gather_results(p, &r->score, &r->n_tokens, err);
}

enum cld_status cld_pipeline_step(struct cld_pipeline *p, double learning_rate, size_t update,
                                  struct cld_step_result *r, struct cld_pipeline_waits *waits,
                                  struct cld_error *err)
{
    struct order o = {.kind = ORDER_STEP, .learning_rate = learning_rate, .update = update};
    enum cld_status s = give_order(p, &o, err);
    if (s || (s = merge_result(p, r, err)))
        return s;
    measure_waits(p, waits);
    p->n_used += drafter_of(p, 0)->n_items;
    return CLD_OK;
}

enum cld_status cld_pipeline_evaluate(struct cld_pipeline *p, struct cld_score *score,
                                      struct cld_error *err)
{
    struct order o = {.kind = ORDER_EVALUATE};
    size_t n_tokens = 0;
    enum cld_status s = give_order(p, &o, err);
    return s ? s : gather_results(p, score, &n_tokens, err);
}

enum cld_status cld_pipeline_weights(struct cld_pipeline *p, void *to, struct cld_error *err)
{
    struct order o = {.kind = ORDER_WEIGHTS, .weights = to};
    return give_order(p, &o, err);
}

enum cld_status cld_pipeline_save(struct cld_pipeline *p, const char *dir,
                                  const struct cld_drafter_file *f,
                                  const struct cld_train_state *st, size_t keep,
                                  struct cld_error *err)
{
    const struct cld_drafter *d = &drafter_of(p, 0)->w.drafter;
    struct cld_image *image = &p->image;
    struct order o = {.kind = ORDER_SAVE, .dir = dir, .file = f, .state = st, .keep = keep};
    enum cld_status s = CLD_OK;
    if (cld_drafter_is_sharded(d) && !cld_link_rank(p->machines->link)) {
        image->master = malloc(cld_mul(d->n_elems, sizeof(float)));
        image->m = malloc(cld_mul(d->n_elems, sizeof(float)));
        image->v = malloc(cld_mul(d->n_elems, sizeof(float)));
        image->ema = d->options.ema ? malloc(cld_mul(d->n_elems, sizeof(float))) : NULL;
        o.image = image;
        if (!image->master || !image->m || !image->v || (d->options.ema && !image->ema))
            s = cld_fail(err, CLD_E_MEMORY, "",
                         "no host memory to gather a checkpoint of %zu "
                         "parameters",
                         d->n_elems);
    }
    if (s || (s = give_order(p, &o, err)))
        return s;
    free_image(p);
    return CLD_OK;
}

void cld_pipeline_balance(struct cld_pipeline *p, char *to, size_t n)
{
    size_t n_targets = p->crew->n_targets, n_drafters = p->crew->n_drafters;
    double busy_ms = 0;
    to[0] = 0;
    if (!has_ring(p) || !p->n_used)
        return;
    struct cld_ring_times t = cld_ring_times(&p->ring, p->waits_now, n_drafters);
    for (size_t d = 0; d < n_drafters; d++)
        busy_ms += drafter_of(p, d)->busy_ms;
    /* Time that a micro-batch takes on each side with all its workers. */
    double target_ms = t.target_busy_ms / (double)cld_max(1, t.n_made) / (double)n_targets;
    double drafter_ms = busy_ms / (double)p->n_used / (double)n_drafters;
    if (target_ms <= 0 || drafter_ms <= 0)
        return;
    double ratio = target_ms / drafter_ms;
    bool targets_slow = ratio > 1;
    size_t slow = targets_slow ? n_targets : n_drafters;
    if (!targets_slow)
        ratio = 1 / ratio;
    const char *maker = p->crew->reads ? "reader" : "target";
    snprintf(to, n, "%ss are %.1f times too slow for %zu %s%s: %zu would balance",
             targets_slow ? maker : "drafter", ratio, targets_slow ? n_drafters : n_targets,
             targets_slow ? "drafter" : maker,
             (targets_slow ? n_drafters : n_targets) == 1 ? "" : "s",
             (size_t)((double)slow * ratio + 0.5));
}
