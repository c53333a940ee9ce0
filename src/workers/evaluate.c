#include "workers/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "workers/batch_schedule.h"
#include "workers/feature_source.h"

enum cld_status cld_evaluate_pass(struct cld_worker *w, const struct cld_batch *b,
                                  struct cld_score *score, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if ((s = cld_worker_features(w, b, err)) || (s = cld_drafter_forward(&w->drafter, b, err)))
        return s;
    return cld_drafter_loss(&w->drafter, b, 0, CLD_LOSS_SCORE, score, err);
}

/* The rows' features from the store to the device, through host memory `features`. */
static enum cld_status give_features(struct cld_worker *w, struct cld_feature_store *store,
                                     const struct cld_item *it, const struct cld_batch *b,
                                     void *features, struct cld_error *err)
{
    enum cld_status s = cld_features_read(store, w, it, features, err);
    return s ? s : cld_worker_write_features(w, b->n_ctx, features, err);
}

enum cld_status cld_evaluate(struct cld_worker *w, struct cld_feed *f,
                             struct cld_feature_store *store, struct cld_score *score,
                             struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_batch b = {0};
    struct cld_job *job = NULL;
    const struct cld_drafter_limits *limits = &w->drafter.limits;
    void *features = NULL;
    memset(score, 0, sizeof *score);
    if (store && !(features = malloc(cld_mul(limits->n_ctx, cld_worker_feature_bytes(w)))))
        s = cld_fail_memory(err, "a micro-batch of features");
    if (!s)
        s = cld_job_heldout(f, w->cfg, &w->setup->rules, limits, 1, &job, err);
    for (size_t i = 0; !s && i < job->n_items; i++) {
        const struct cld_item *it = &job->items[i];
        if (!(s = cld_batch_build(&b, it->docs, it->n_docs, &w->setup->rules, false, err)) &&
            (!store || !(s = give_features(w, store, it, &b, features, err))))
            s = cld_evaluate_pass(w, &b, score, err);
    }
    free(features);
    cld_batch_free(&b);
    cld_job_free(job);
    return s ? s : cld_drafter_check_tiles(&w->drafter, err);
}

enum cld_status cld_evaluate_finite(const struct cld_score *score, struct cld_error *err)
{
    double loss = cld_score_loss(score);
    if (isfinite(loss))
        return CLD_OK;
    return cld_fail(err, CLD_E_NUMERIC, "take an earlier checkpoint",
                    "the held-out loss is %g over %zu supervised rows", loss, score->n_supervised);
}
