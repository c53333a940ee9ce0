#include "workers/step.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/grow.h"

const char *cld_step_part_name(enum cld_step_part p)
{
    static const char *const names[CLD_N_STEP_PARTS] = {"batch", "target",   "forward",
                                                        "loss",  "backward", "optimizer"};
    return names[p];
}

/* Ends a part: its time since *begun; the next one begins there. */
static enum cld_status end_part(struct cld_step *t, enum cld_step_part part, double *begun,
                                struct cld_step_result *r, struct cld_error *err)
{
    enum cld_status s = t->split ? cld_queue_finish(t->w->q, err) : CLD_OK;
    double now = cld_clock_ms();
    r->part_ms[part] += now - *begun;
    *begun = now;
    return s;
}

enum cld_status cld_step_pass(struct cld_step *t, const struct cld_batch *b, double inv_sum_weight,
                              struct cld_step_result *r, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_drafter *d = &t->w->drafter;
    double begun = cld_clock_ms();
    r->n_tokens += b->n_ctx;
    if ((s = cld_worker_features(t->w, b, err)) ||
        (s = end_part(t, CLD_STEP_TARGET, &begun, r, err)) ||
        (s = cld_drafter_forward(d, b, err)) ||
        (s = end_part(t, CLD_STEP_FORWARD, &begun, r, err)) ||
        (s = cld_drafter_loss(d, b, inv_sum_weight, CLD_LOSS_GRADIENT, &r->score, err)) ||
        (s = end_part(t, CLD_STEP_LOSS, &begun, r, err)) || (s = cld_drafter_backward(d, b, err)))
        return s;
    return end_part(t, CLD_STEP_BACKWARD, &begun, r, err);
}

/* The same for n documents, laid out first. */
static enum cld_status run_pass(struct cld_step *t, size_t n, double inv_sum_weight,
                                struct cld_step_result *r, struct cld_error *err)
{
    double begun = cld_clock_ms();
    enum cld_status s = cld_batch_build(&t->batch, t->pass, n, &t->w->setup->rules, false, err);
    if (s || (s = end_part(t, CLD_STEP_BATCH, &begun, r, err)))
        return s;
    return cld_step_pass(t, &t->batch, inv_sum_weight, r, err);
}

enum cld_status cld_step_run(struct cld_step *t, const struct cld_document *docs, size_t n_docs,
                             double learning_rate, size_t update, struct cld_step_result *r,
                             struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_supervised = 0, n;
    double sum_weight = 0, begun = cld_clock_ms();
    const struct cld_drafter_limits *limits = &t->w->drafter.limits;
    memset(r, 0, sizeof *r);
    if ((s = cld_grow(&t->pass, &t->n_pass, n_docs, sizeof *t->pass, err)))
        return s;
    /* The whole global batch is normalised by one sum, known before its first pass. */
    cld_batch_count(docs, n_docs, &t->w->setup->rules, &n_supervised, &sum_weight);
    double inv = sum_weight > 0 ? 1 / sum_weight : 0;
    if ((s = end_part(t, CLD_STEP_BATCH, &begun, r, err)))
        return s;
    struct cld_cutter cut = {.docs = docs,
                             .n_docs = n_docs,
                             .n_ctx = limits->n_ctx,
                             .n_blocks = limits->n_blocks,
                             .n_tags = t->w->cfg->train.micro_rows};
    while ((n = cld_cut(&cut, t->pass)))
        if ((s = run_pass(t, n, inv, r, err)))
            return s;
    begun = cld_clock_ms();
    if ((s = cld_worker_optimize(t->w, learning_rate, update, &r->grad_norm, &r->skipped, err)))
        return s;
    return end_part(t, CLD_STEP_OPTIMIZER, &begun, r, err);
}

void cld_step_free(struct cld_step *t)
{
    if (!t)
        return;
    cld_batch_free(&t->batch);
    free(t->pass);
    memset(t, 0, sizeof *t);
}
