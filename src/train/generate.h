/* generate.h - answers of the target to a file of prompts, for training: several texts at a time,
 * and whenever one ends the next prompt takes its place.
 *
 * Every line of the prompts that is not blank ends in one of three ways: answered (a line of the
 * output), an error (its logits were no numbers, its bytes no text), or skipped (it is no prompt,
 * or too long). The output grows line by line, in the order in which answers end. A run goes on
 * with what is there: rows that it has are not answered again, a last line that has no end is cut
 * off, and rows of other prompts or settings are refused.
 *
 * Thread: main. */
#ifndef CLD_TRAIN_GENERATE_H
#define CLD_TRAIN_GENERATE_H

#include "config/config.h"
#include "text/messages.h"

struct cld_generate_counts {
    size_t n_rows;     /* lines that are not blank */
    size_t n_answered; /* those that were there before too */
    size_t n_before;
    size_t n_errors;
    size_t n_skipped, n_fault[CLD_N_ROW_FAULTS], n_too_long; /* the last two add up to the first */
    struct cld_key_counts refused; /* keys for which prompts are skipped */
    size_t n_cut;                  /* answers that ended at new_tokens */
    size_t n_beyond;               /* texts that passed the target's max_position_embeddings */
    size_t n_tokens;               /* of answers of this run */
    double ms;                     /* of passes */
};

/* *counts is filled whatever the result was. CLD_E_INTERRUPTED after a signal. */
enum cld_status cld_generate(const struct cld_config *cfg, const char *prompts, const char *out,
                             struct cld_generate_counts *counts, struct cld_error *err);

#endif
