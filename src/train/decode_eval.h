/* decode_eval.h - evaluation by real decoding: the last answers of held-out rows are decoded from
 * their prompts, with the drafter and, to compare, by the target alone.
 *
 * Thread: the owner of the worker's queue. */
#ifndef CLD_TRAIN_DECODE_EVAL_H
#define CLD_TRAIN_DECODE_EVAL_H

#include "data/feed.h"
#include "workers/worker.h"

/* Another way to the texts that the drafter gave, and where it led elsewhere. A token differs where
 * the other text has another one at its place, or none: after a first difference all may. */
struct cld_decode_other {
    struct cld_decode_stats stats;
    size_t n_texts_differ, n_tokens_differ;
};

struct cld_decode_report {
    struct cld_decode_stats drafted;
    size_t n_new;       /* new tokens of those texts, the prompt passes' ones too */
    size_t n_no_prompt; /* rows left out: their answer has nothing before it */
    struct cld_decode_other by_token, by_block; /* without texts where not asked for */
};

/* How the configuration wants texts. */
struct cld_decode_rules cld_decode_eval_rules(const struct cld_config *cfg);

/* Decodes the first cfg's eval.decode_rows rows of the feed's held-out set in use; with `compare`
 * also by the target alone. *r is overwritten. */
enum cld_status cld_decode_eval(struct cld_worker *w, const struct cld_feed *f, bool compare,
                                struct cld_decode_report *r, struct cld_error *err);
void cld_decode_report_add(struct cld_decode_report *to, const struct cld_decode_report *from);

#endif
