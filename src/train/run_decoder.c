#include "train/run_decoder.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/size.h"

enum cld_status cld_run_decoder_open(struct cld_run_decoder *r, const struct cld_config *cfg,
                                     const struct cld_setup *setup,
                                     const struct cld_planned_worker *who, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_worker *w = &r->w;
    if ((s = cld_worker_plan(w, cfg, setup, &who->device, &who->options, err)) ||
        (s = cld_worker_check(w, err)) || (s = cld_worker_create(w, err)) ||
        (s = cld_drafter_init(&w->drafter, 0, cfg->drafter.init_std, err)) ||
        (s = cld_decoder_warm_up(&w->decoder, cfg->data.max_length, err)) ||
        (s = cld_drafter_check_tiles(&w->drafter, err)))
        return s;
    cld_queue_seal(w->q);
    if (!(r->weights = malloc(cld_tensor_bytes(&w->drafter.weights))))
        return cld_fail_memory(err, "%zu weights", w->drafter.n_elems);
    cld_info("%s: %.3f GiB held of a budget of %.3f GiB", who->name,
             cld_gib((double)cld_queue_held_bytes(w->q)), cld_gib((double)w->budget_bytes));
    return CLD_OK;
}

void cld_run_decoder_close(struct cld_run_decoder *r)
{
    if (!r)
        return;
    cld_worker_close(&r->w);
    free(r->weights);
    memset(r, 0, sizeof *r);
}

enum cld_status cld_run_decoder_evaluate(struct cld_run_decoder *r, struct cld_pipeline *p,
                                         const struct cld_feed *f, struct cld_decode_report *out,
                                         struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_tensor *weights = &r->w.drafter.weights;
    if ((s = cld_pipeline_weights(p, r->weights, err)) ||
        (s = cld_buf_write(weights->buf, 0, r->weights, cld_tensor_bytes(weights), err)))
        return s;
    return cld_decode_eval(&r->w, f, false, out, err);
}
