#include "evaluate.h"

#include <stdlib.h>
#include <string.h>

enum cld_status cld_evaluate(struct cld_worker *w, struct cld_feed *f, struct cld_score *score,
                             struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_batch b = {0};
    struct cld_document *pass = NULL;
    size_t n_rows = cld_feed_n_heldout(f), group = w->cfg->train.micro_rows;
    memset(score, 0, sizeof *score);
    if (w->cfg->eval.rows)
        n_rows = cld_min(n_rows, w->cfg->eval.rows);
    for (size_t at = 0; at < n_rows && !s; at += group) {
        const struct cld_document *docs = NULL;
        size_t n_docs = 0, n;
        if ((s = cld_feed_heldout(f, at, cld_min(group, n_rows - at), &docs, &n_docs, err)))
            break;
        struct cld_document *grown = realloc(pass, cld_mul(n_docs + 1, sizeof *grown));
        if (!grown) {
            s = cld_fail(err, CLD_E_MEMORY, "", "no host memory for the evaluation");
            break;
        }
        pass = grown;
        struct cld_cutter cut = {docs, n_docs, w->drafter.limits.n_ctx, w->drafter.limits.n_blocks,
                                 group, 0, 0};
        while (!s && (n = cld_cut(&cut, pass)))
            if (!(s = cld_batch_build(&b, pass, n, &w->setup->rules, false, err)) &&
                !(s = cld_worker_features(w, &b, err)) &&
                !(s = cld_drafter_forward(&w->drafter, &b, err)))
                s = cld_drafter_loss(&w->drafter, &b, 0, false, score, err);
    }
    cld_batch_free(&b);
    free(pass);
    return s ? s : cld_drafter_check_tiles(&w->drafter, err);
}
