/* data_checks.h - is what a run is about to learn true? Looked at before its first step: most
 * faults of training data and targets are silent, and show in what a served drafter is worth.
 *
 * Section [checks] of the configuration says which failures end the run; the others are warnings.
 * Main thread; the feed is loaded. */
#ifndef CLD_TRAIN_DATA_CHECKS_H
#define CLD_TRAIN_DATA_CHECKS_H

#include "data/feed.h"
#include "model/setup.h"

/* CLD_E_INPUT with what is wrong: template, supervision, mask token, vocabulary. Reads the target's
 * small files and headers and, if its head is the embedding and also in the file, all of both. */
enum cld_status cld_data_checks_run(const struct cld_config *cfg, const struct cld_setup *setup,
                                    const struct cld_feed *feed, struct cld_error *err);

/* The part of it that needs no rows, for commands that use the target without training. */
enum cld_status cld_data_checks_target(const struct cld_config *cfg,
                                       const struct cld_model_config *model,
                                       const struct cld_tokenizer *t, struct cld_error *err);

/* Logs what a person should see once: template and its hash, supervised tokens by role, rows cut,
 * taps, and the supervised spans of some rows as text with their boundaries. */
enum cld_status cld_data_checks_log(const struct cld_config *cfg, const struct cld_setup *setup,
                                    const struct cld_feed *feed, struct cld_error *err);

/* The line on supervised tokens: "1200 of 5000 tokens (24.0 %): assistant 1200 of 1400, ...". */
void cld_data_checks_shares(const struct cld_dataset_counts *c, char *to, size_t n);

/* A supervised span of a row, with the tokens around it: ...<|assistant|>\n [[Hello!<|im_end|>]]\n
 * Text in between the double brackets carries loss; control characters are escaped. malloc'd; NULL:
 * no memory. `t` NULL: as ids. */
char *cld_data_checks_span(const struct cld_tokenizer *t, const struct cld_row *row, size_t begin,
                           size_t end);

#endif
