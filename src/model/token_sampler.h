/* token_sampler.h - the tokens that a target chooses after rows of its last pass, greedy or
 * sampled.
 *
 * A choice is a pure function of the row's logits, the seed, the text's number and the token's
 * place in the text. Thread: the owner of the target's queue; describe anywhere. */
#ifndef CLD_MODEL_TOKEN_SAMPLER_H
#define CLD_MODEL_TOKEN_SAMPLER_H

#include "model/sampling.h"
#include "model/target.h"

struct cld_decode_rules {
    size_t n_new;       /* a text ends with an eos token, or after this many new tokens */
    double temperature; /* 0: greedy, the first maximum of the logits */
    double top_p;
    uint64_t seed;
};

struct cld_token_sampler {
    struct cld_target *target; /* borrowed, with n_logits */
    struct cld_decode_rules rules;
    struct cld_tensor choice; /* [1, n_rows] first maxima */
    int32_t *choices;         /* of the last pass, if greedy */
    float *logits;            /* [rows, V] of the last pass, if sampled */
    size_t cap_choices, cap_logits;
    struct cld_nucleus nucleus;
};

/* For n_rows rows of a pass at most. The caller sets `rules`. */
void cld_token_sampler_describe(struct cld_token_sampler *p, struct cld_target *target,
                                size_t n_rows, struct cld_plan *plan);
void cld_token_sampler_free(struct cld_token_sampler *p); /* NULL-safe; host memory only */

/* First maxima of n rows of any logits, to host memory; -1 for a row with a NaN. */
enum cld_status cld_token_sampler_first_max(struct cld_token_sampler *p,
                                            const struct cld_tensor *logits, size_t n, int32_t *to,
                                            struct cld_error *err);

/* Gets ready to choose after these rows [n] of the target's last pass. */
enum cld_status cld_token_sampler_read(struct cld_token_sampler *p, const int32_t *rows, size_t n,
                                       struct cld_error *err);
/* The token after the i-th of them, for place `at` of text `number`. CLD_E_NUMERIC if a logit is
 * NaN. */
enum cld_status cld_token_sampler_token(struct cld_token_sampler *p, size_t i, uint64_t number,
                                        size_t at, int32_t *token, struct cld_error *err);

/* Does this token end a text? */
bool cld_token_sampler_ends(const struct cld_token_sampler *p, int32_t token);

#endif
