#include "evaluate.h"

#include <math.h>
#include <string.h>

#include "deal.h"

enum cld_status cld_evaluate_pass(struct cld_worker *w, const struct cld_batch *b,
                                  struct cld_score *score, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if ((s = cld_worker_features(w, b, err)) || (s = cld_drafter_forward(&w->drafter, b, err)))
        return s;
    return cld_drafter_loss(&w->drafter, b, 0, false, score, err);
}

enum cld_status cld_evaluate(struct cld_worker *w, struct cld_feed *f, struct cld_score *score,
                             struct cld_error *err)
{
    struct cld_batch b = {0};
    struct cld_job *job = NULL;
    memset(score, 0, sizeof *score);
    enum cld_status s =
        cld_job_heldout(f, w->cfg, &w->setup->rules, &w->drafter.limits, 1, &job, err);
    for (size_t i = 0; !s && i < job->n_items; i++)
        if (!(s = cld_batch_build(&b, job->items[i].docs, job->items[i].n_docs, &w->setup->rules,
                                  false, err)))
            s = cld_evaluate_pass(w, &b, score, err);
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
