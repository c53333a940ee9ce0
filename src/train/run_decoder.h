/* run_decoder.h - a training run's decodings of held-out rows: a worker with a target of its own on
 * the first drafter's device, which gets the drafter's weights whenever it is asked
 * (eval.decode_every).
 *
 * Thread: main, which owns its queue. */
#ifndef CLD_TRAIN_RUN_DECODER_H
#define CLD_TRAIN_RUN_DECODER_H

#include "train/decode_eval.h"
#include "workers/pipeline.h"

/* Zero-initialise. */
struct cld_run_decoder {
    struct cld_worker w;
    void *weights; /* [w.drafter.n_elems] on their way, in the storage of the run */
};

/* Plans, checks and creates the worker `who` of the set, warms it up and seals it. All but err
 * must outlive it; free with _close whatever the result was. */
enum cld_status cld_run_decoder_open(struct cld_run_decoder *r, const struct cld_config *cfg,
                                     const struct cld_setup *setup,
                                     const struct cld_planned_worker *who, struct cld_error *err);
void cld_run_decoder_close(struct cld_run_decoder *r); /* NULL-safe */

/* Decodes eval.decode_rows rows with the weights that the pipeline's drafters have now. */
enum cld_status cld_run_decoder_evaluate(struct cld_run_decoder *r, struct cld_pipeline *p,
                                         const struct cld_feed *f, struct cld_decode_report *out,
                                         struct cld_error *err);

#endif
