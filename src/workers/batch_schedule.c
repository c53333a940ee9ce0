#include "workers/batch_schedule.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"

struct cld_batch_schedule {
    pthread_mutex_t lock; /* guards the feed and the list of jobs */
    struct cld_feed *feed;
    const struct cld_config *cfg;
    const struct cld_batch_rules *rules;
    const struct cld_drafter_limits *limits;
    const struct cld_machines *machines;
    struct cld_feature_store *store; /* NULL: none */
    size_t n_users, first;
    size_t n_items; /* scheduled so far for drafters here */
    struct cld_job *oldest, *newest;
};

void cld_job_free(struct cld_job *j)
{
    if (!j)
        return;
    free(j->items);
    free(j->docs);
    free(j->anchors);
    free(j->prefixes);
    free(j);
}

static enum cld_status no_memory(struct cld_error *err)
{
    return cld_fail_memory(err, "the micro-batches of a step");
}

/* The feed's documents hold until its next call; those of a job hold as long as the job. */
static enum cld_status copy_documents(struct cld_job *j, struct cld_document *docs, size_t n_docs,
                                      struct cld_error *err)
{
    size_t n_anchors = 0, at = 0;
    for (size_t i = 0; i < n_docs; i++)
        n_anchors = cld_add(n_anchors, docs[i].n_anchors);
    n_anchors = cld_max(1, n_anchors);
    j->anchors = malloc(cld_mul(n_anchors, sizeof *j->anchors));
    j->prefixes = malloc(cld_mul(n_anchors, sizeof *j->prefixes));
    if (!j->anchors || !j->prefixes)
        return no_memory(err);
    for (size_t i = 0; i < n_docs; i++) {
        if (docs[i].n_anchors)
            memcpy(j->anchors + at, docs[i].anchors, docs[i].n_anchors * sizeof *j->anchors);
        docs[i].anchors = j->anchors + at;
        if (docs[i].prefixes) {
            memcpy(j->prefixes + at, docs[i].prefixes, docs[i].n_anchors * sizeof *j->prefixes);
            docs[i].prefixes = j->prefixes + at;
        }
        at += docs[i].n_anchors;
    }
    return CLD_OK;
}

/* Cuts documents into items for `drafter`, after those that are there. An item's docs are an
 * offset into j->docs until finish(). */
static enum cld_status cut(struct cld_job *j, struct cld_cutter c, size_t drafter,
                           struct cld_error *err)
{
    for (;;) {
        enum cld_status s = CLD_OK;
        if ((s = cld_grow(&j->docs, &j->cap_docs, cld_add(j->n_docs, c.n_docs), sizeof *j->docs,
                          err)) ||
            (s = cld_grow(&j->items, &j->cap_items, j->n_items + 1, sizeof *j->items, err)))
            return s;
        size_t n = cld_cut(&c, j->docs + j->n_docs);
        if (!n)
            return CLD_OK;
        j->items[j->n_items++] = (struct cld_item){0, drafter, NULL, n};
        j->n_docs += n;
    }
}

/* Puts items in their order: `number` holds the place among the items of the same drafter. */
static int compare_places(const void *a, const void *b)
{
    const struct cld_item *x = a, *y = b;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x->drafter < y->drafter ? -1 : x->drafter > y->drafter;
}

static void finish(struct cld_job *j, size_t first_number)
{
    size_t at = 0, place = 0;
    for (size_t i = 0; i < j->n_items; i++) {
        struct cld_item *it = &j->items[i];
        place = i && it[-1].drafter == it->drafter ? place + 1 : 0;
        it->number = place;
        it->docs = j->docs + at;
        at += it->n_docs;
    }
    if (j->n_items)
        qsort(j->items, j->n_items, sizeof *j->items, compare_places);
    for (size_t i = 0; i < j->n_items; i++)
        j->items[i].number = first_number + i;
}

static struct cld_job *new_job(enum cld_job_kind kind, size_t step)
{
    struct cld_job *j = calloc(1, sizeof *j);
    if (j) {
        j->kind = kind;
        j->step = step;
    }
    return j;
}

static enum cld_status fill_step(struct cld_batch_schedule *d, struct cld_job *j,
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_document *fed = NULL;
    struct cld_document *docs = NULL;
    size_t n_docs = 0, n_supervised = 0, n_drafters = d->machines->n_drafters;
    size_t part = d->cfg->train.batch_rows / n_drafters, at = 0;
    double sum_weight = 0;
    if ((s = cld_feed_step(d->feed, j->step, &fed, &n_docs, err)))
        return s;
    if (!(docs = malloc(cld_mul(cld_max(1, n_docs), sizeof *docs))))
        return no_memory(err);
    if (n_docs)
        memcpy(docs, fed, n_docs * sizeof *docs);
    if ((s = copy_documents(j, docs, n_docs, err)))
        goto done;
    /* The whole global batch is normalised by one sum, known before its first micro-batch runs. */
    cld_batch_count(docs, n_docs, d->rules, &n_supervised, &sum_weight);
    j->inv_sum_weight = sum_weight > 0 ? 1 / sum_weight : 0;
    for (size_t i = 0; i < n_drafters && !s; i++) {
        size_t end = at;
        while (end < n_docs && docs[end].tag < (i + 1) * part)
            end++;
        struct cld_cutter c = {.docs = docs + at,
                               .n_docs = end - at,
                               .n_ctx = d->limits->n_ctx,
                               .n_blocks = d->limits->n_blocks,
                               .n_tags = d->cfg->train.micro_rows};
        s = cut(j, c, i, err);
        at = end;
    }
done:
    free(docs);
    return s;
}

static enum cld_status fill_heldout(struct cld_feed *f, const struct cld_config *cfg,
                                    const struct cld_batch_rules *rules,
                                    const struct cld_drafter_limits *limits, size_t n_drafters,
                                    struct cld_job *j, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_document *fed = NULL;
    struct cld_document *docs = NULL;
    size_t n_docs = 0, n_rows = cld_feed_n_heldout(f), n_supervised = 0;
    double sum_weight = 0;
    if (cfg->eval.rows)
        n_rows = cld_min(n_rows, cfg->eval.rows);
    if ((s = cld_feed_heldout(f, 0, n_rows, &fed, &n_docs, err)))
        return s;
    if (!(docs = malloc(cld_mul(cld_max(1, n_docs), sizeof *docs))))
        return no_memory(err);
    if (n_docs)
        memcpy(docs, fed, n_docs * sizeof *docs);
    struct cld_cutter c = {.docs = docs,
                           .n_docs = n_docs,
                           .n_ctx = limits->n_ctx,
                           .n_blocks = limits->n_blocks,
                           .n_tags = cfg->train.micro_rows};
    if (!(s = copy_documents(j, docs, n_docs, err)))
        s = cut(j, c, 0, err);
    cld_batch_count(docs, n_docs, rules, &n_supervised, &sum_weight);
    j->inv_sum_weight = sum_weight > 0 ? 1 / sum_weight : 0;
    free(docs);
    if (s)
        return s;
    finish(j, 0);
    for (size_t i = 0; i < j->n_items; i++)
        j->items[i].drafter = i % n_drafters;
    return CLD_OK;
}

enum cld_status cld_job_heldout(struct cld_feed *f, const struct cld_config *cfg,
                                const struct cld_batch_rules *rules,
                                const struct cld_drafter_limits *limits, size_t n_drafters,
                                struct cld_job **out, struct cld_error *err)
{
    *out = new_job(CLD_JOB_EVALUATE, 0);
    return *out ? fill_heldout(f, cfg, rules, limits, n_drafters, *out, err) : no_memory(err);
}

bool cld_batch_schedule_evaluates(const struct cld_config *cfg, const struct cld_feed *f,
                                  size_t n_done)
{
    size_t every = cfg->train.evaluate_every;
    return cld_feed_n_heldout(f) && (n_done == cfg->train.steps || (every && n_done % every == 0));
}

enum cld_status cld_batch_schedule_open(struct cld_feed *f, const struct cld_config *cfg,
                                        const struct cld_batch_rules *rules,
                                        const struct cld_drafter_limits *limits,
                                        struct cld_feature_store *store,
                                        const struct cld_machines *machines, size_t n_users,
                                        size_t first, struct cld_batch_schedule **out,
                                        struct cld_error *err)
{
    struct cld_batch_schedule *d = *out = calloc(1, sizeof *d);
    if (!d)
        return no_memory(err);
    pthread_mutex_init(&d->lock, NULL);
    d->feed = f;
    d->cfg = cfg;
    d->rules = rules;
    d->limits = limits;
    d->store = store;
    d->machines = machines;
    d->n_users = n_users;
    d->first = first;
    return CLD_OK;
}

void cld_batch_schedule_close(struct cld_batch_schedule *d)
{
    if (!d)
        return;
    for (struct cld_job *j; (j = d->oldest);) {
        d->oldest = j->next;
        cld_job_free(j);
    }
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static uint64_t stir(uint64_t digest, uint64_t with)
{
    return (digest ^ with) * 0x100000001b3u; /* FNV-1a's prime */
}

static uint64_t mark_of(const struct cld_job *j)
{
    uint64_t digest = j->n_items;
    for (size_t i = 0; i < j->n_items; i++)
        for (size_t k = 0; k < j->items[i].n_docs; k++) {
            const struct cld_document *doc = &j->items[i].docs[k];
            for (size_t t = 0; t < doc->n; t++)
                digest = stir(digest, (uint64_t)(uint32_t)doc->ids[t] << 8 | doc->mask[t]);
            for (size_t t = 0; t < doc->n_anchors; t++)
                digest = stir(digest, (uint32_t)doc->anchors[t]);
        }
    return digest;
}

/* Keeps the items of drafters here and numbers them after those of earlier jobs. */
static void keep_own(struct cld_batch_schedule *d, struct cld_job *j)
{
    size_t n = 0;
    if (d->machines->link)
        j->digest = mark_of(j);
    for (size_t i = 0; i < j->n_items; i++) {
        struct cld_item it = j->items[i];
        it.drafter -= d->machines->first;
        if (it.drafter >= d->machines->n_here) /* before the first one, too: it wraps */
            continue;
        it.number = d->n_items + n;
        j->items[n++] = it;
    }
    j->n_items = n;
    d->n_items += n;
}

/* In the order of the items, whichever threads will make them. */
static enum cld_status claim_rows(struct cld_feature_store *store, const struct cld_job *j,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < j->n_items; i++)
        for (size_t k = 0; k < j->items[i].n_docs && !s; k++)
            if (j->items[i].docs[k].n_anchors)
                s = cld_feature_store_claim(store, &j->items[i].docs[k], j->items[i].number, err);
    return s;
}

/* Lays out the job after the newest; *out NULL: the run is over. The lock is held. */
static enum cld_status lay_out(struct cld_batch_schedule *d, struct cld_job **out,
                               struct cld_error *err)
{
    const struct cld_job *last = d->newest;
    size_t step = !last ? d->first : last->kind == CLD_JOB_STEP ? last->step + 1 : last->step;
    bool evaluates =
        last && last->kind == CLD_JOB_STEP && cld_batch_schedule_evaluates(d->cfg, d->feed, step);
    *out = NULL;
    if (!evaluates && step >= d->cfg->train.steps)
        return CLD_OK;
    struct cld_job *j = new_job(evaluates ? CLD_JOB_EVALUATE : CLD_JOB_STEP, step);
    if (!j)
        return no_memory(err);
    enum cld_status s = evaluates ? fill_heldout(d->feed, d->cfg, d->rules, d->limits,
                                                 d->machines->n_drafters, j, err)
                                  : fill_step(d, j, err);
    if (s) {
        cld_job_free(j);
        return s;
    }
    if (!evaluates)
        finish(j, 0);
    keep_own(d, j);
    if (d->store && (s = claim_rows(d->store, j, err))) {
        cld_job_free(j);
        return s;
    }
    j->n_left = d->n_users;
    if (d->newest)
        d->newest->next = j;
    else
        d->oldest = j;
    d->newest = j;
    *out = j;
    return CLD_OK;
}

enum cld_status cld_batch_schedule_next(struct cld_batch_schedule *d, const struct cld_job *done,
                                        const struct cld_job **out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    pthread_mutex_lock(&d->lock);
    /* The first job cannot be gone: a user that has not asked yet is not past it. */
    struct cld_job *next = done ? done->next : d->oldest;
    if (!next)
        s = lay_out(d, &next, err);
    *out = next;
    if (done && next) {
        /* The newest stays: the next one is laid out after it. Users pass jobs in order, so the
         * oldest is always the first that all are past. */
        struct cld_job *old = d->oldest;
        while (old != done)
            old = old->next;
        old->n_left--;
        while (d->oldest != d->newest && !d->oldest->n_left) {
            old = d->oldest;
            d->oldest = old->next;
            cld_job_free(old);
        }
    }
    pthread_mutex_unlock(&d->lock);
    return s;
}
