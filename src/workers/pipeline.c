/* pipeline.c - the main thread's side of a pipeline: starts workers, gives orders, joins threads.
 * What workers do is in pipeline_worker.c. */
#include "workers/pipeline_private.h"

#include <stdlib.h>
#include <string.h>

#include "workers/evaluate.h"
#include "workers/feature_source.h"

static struct cld_member *drafter_of(const struct cld_pipeline *p, size_t d)
{
    return &p->members[p->set->n_targets + d];
}

/* The error of a run that has stopped; it does not change any more. */
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
        struct cld_member *m = &p->members[i];
        m->p = p;
        m->who = &p->set->workers[i];
        m->index = i < p->set->n_targets ? i : i - p->set->n_targets;
        int failed = pthread_create(&m->thread, NULL, cld_member_run, m);
        if (failed)
            s = cld_fail(err, CLD_E_MEMORY,
                         "raise the limit of threads (`ulimit -u`) or end other processes",
                         "cannot start the thread of %s: %s", m->who->name, strerror(failed));
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
                                  const struct cld_worker_set *set,
                                  const struct cld_machines *machines, struct cld_feed *feed,
                                  struct cld_feature_store *store, struct cld_status_file *status,
                                  size_t first, struct cld_pipeline **out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = set->n_targets + set->n_drafters;
    struct cld_pipeline *p = *out = calloc(1, sizeof *p);
    if (!p)
        return cld_fail_memory(err, "a pipeline");
    p->cfg = cfg;
    p->setup = setup;
    p->set = set;
    p->status = status;
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
        return cld_fail_memory(err, "%zu workers", n);
    if ((s = cld_ring_open(&p->ring, p->sync, set->n_targets, cfg->devices.ring_slots,
                           set->n_drafters, err)) ||
        (s = cld_collectives_open(&p->collectives, p->sync, machines,
                                  cld_drafter_n_buckets_of(&setup->drafter), err)) ||
        (s = cld_batch_schedule_open(feed, cfg, &setup->rules, &set->limits, store, machines, n,
                                     first, &p->schedule, err)))
        return s;
    if (!cld_link_rank(machines->link) && (s = cld_checkpoint_writer_open(&p->writer, err)))
        return s;
    return start(p, err);
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
    cld_batch_schedule_close(p->schedule);
    cld_collectives_close(&p->collectives);
    cld_ring_close(&p->ring);
    cld_sync_destroy(&p->own_sync);
    cld_checkpoint_writer_close(&p->writer);
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
static enum cld_status give_order(struct cld_pipeline *p, const struct cld_order *o,
                                  struct cld_error *err)
{
    pthread_mutex_lock(&p->sync->lock);
    p->order = *o;
    p->order_number++;
    p->n_done = 0;
    pthread_cond_broadcast(&p->sync->changed);
    bool going = !p->sync->stopped;
    while (going && p->n_done < p->set->n_drafters)
        going = cld_sync_wait(p->sync);
    pthread_mutex_unlock(&p->sync->lock);
    return going ? CLD_OK : why_stopped(p, err);
}

enum cld_status cld_pipeline_begin(struct cld_pipeline *p, const char *resumed, const char *init,
                                   struct cld_error *err)
{
    struct cld_order o = {.kind = CLD_ORDER_BEGIN, .resumed = resumed, .init = init};
    return give_order(p, &o, err);
}

/* Means over the workers of each side since the last call. */
static void measure_waits(struct cld_pipeline *p, struct cld_pipeline_waits *waits)
{
    size_t n_targets = p->set->n_targets, n_drafters = p->set->n_drafters;
    memset(waits, 0, sizeof *waits);
    for (size_t d = 0; d < n_drafters; d++) {
        struct cld_collectives_times t = cld_collectives_times(&p->collectives, d);
        waits->data_ms += drafter_of(p, d)->data_ms / (double)n_drafters;
        waits->exchange_whole_ms += t.whole_ms / (double)n_drafters;
        waits->exchange_ms += t.exposed_ms / (double)n_drafters;
    }
    if (!cld_pipeline_has_ring(p))
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

/* Results of the drafters of all machines, in their order: the same everywhere. */
static enum cld_status gather_results(struct cld_pipeline *p, struct cld_score *score,
                                      size_t *n_tokens, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_member_result *here = p->results + p->machines->first;
    memset(score, 0, sizeof *score);
    *n_tokens = 0;
    for (size_t d = 0; d < p->set->n_drafters; d++) {
        const struct cld_member *m = drafter_of(p, d);
        here[d] = (struct cld_member_result){m->got.score, m->got.n_tokens, m->digest};
    }
    if (p->machines->link &&
        (s = cld_machines_gather(p->machines, here, sizeof *here, p->results, err)))
        return s;
    for (size_t j = 0; j < p->machines->n_drafters; j++) {
        if (p->results[j].digest != p->results[0].digest)
            return cld_fail(err, CLD_E_INPUT, "give all machines the same files",
                            "the rows of machine %zu in this step differ from those of machine 0",
                            p->machines->rank_of[j]);
        cld_score_merge(score, &p->results[j].score);
        *n_tokens += p->results[j].n_tokens;
    }
    return CLD_OK;
}

static enum cld_status merge_result(struct cld_pipeline *p, struct cld_step_result *r,
                                    struct cld_error *err)
{
    size_t n = p->set->n_drafters;
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
    struct cld_order o = {.kind = CLD_ORDER_STEP, .learning_rate = learning_rate, .update = update};
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
    struct cld_order o = {.kind = CLD_ORDER_EVALUATE};
    size_t n_tokens = 0;
    enum cld_status s = give_order(p, &o, err);
    return s ? s : gather_results(p, score, &n_tokens, err);
}

enum cld_status cld_pipeline_weights(struct cld_pipeline *p, void *to, struct cld_error *err)
{
    struct cld_order o = {.kind = CLD_ORDER_WEIGHTS, .weights = to};
    return give_order(p, &o, err);
}

enum cld_status cld_pipeline_save(struct cld_pipeline *p, const char *dir,
                                  const struct cld_drafter_file *f,
                                  const struct cld_train_state *st, size_t keep,
                                  struct cld_error *err)
{
    struct cld_order o = {.kind = CLD_ORDER_SAVE, .dir = dir, .file = f, .state = st, .keep = keep};
    enum cld_status s = cld_checkpoint_writer_wait(&p->writer, err); /* it reads the snapshot */
    return s ? s : give_order(p, &o, err);
}

enum cld_status cld_pipeline_check_saved(struct cld_pipeline *p, struct cld_error *err)
{
    return cld_checkpoint_writer_poll(&p->writer, err);
}

enum cld_status cld_pipeline_wait_saved(struct cld_pipeline *p, struct cld_error *err)
{
    return cld_checkpoint_writer_wait(&p->writer, err);
}

void cld_pipeline_balance(struct cld_pipeline *p, char *to, size_t n)
{
    size_t n_targets = p->set->n_targets, n_drafters = p->set->n_drafters;
    double busy_ms = 0;
    to[0] = 0;
    if (!cld_pipeline_has_ring(p) || !p->n_used)
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
    const char *maker = p->set->reads ? "reader" : "target";
    snprintf(to, n, "%ss are %.1f times too slow for %zu %s%s: %zu would balance",
             targets_slow ? maker : "drafter", ratio, targets_slow ? n_drafters : n_targets,
             targets_slow ? "drafter" : maker,
             (targets_slow ? n_drafters : n_targets) == 1 ? "" : "s",
             (size_t)((double)slow * ratio + 0.5));
}
