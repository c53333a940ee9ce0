/* sampling.h - the next token from logits, at a temperature and inside a nucleus.
 *
 * p = softmax(logits / temperature). The nucleus is the shortest run of tokens in order of falling
 * p (the lower id first if two are equal) whose p adds up to top_p at least; p is normalised
 * over it (Holtzman et al. 2020). The choice inverts the cumulative p in that order - in order of
 * ids if top_p is 1 - at a given u, so it is a pure function of its arguments.
 *
 * Pure but for the work space; any thread with a work space of its own. */
#ifndef CLD_MODEL_SAMPLING_H
#define CLD_MODEL_SAMPLING_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Zero-initialise; memory is reused from call to call. */
struct cld_nucleus {
    double *p;   /* [n] */
    int32_t *at; /* [n] the nucleus, in order */
    size_t cap_p, cap_at, n;
};
void cld_nucleus_release(struct cld_nucleus *c);

/* temperature > 0, 0 < top_p <= 1. Leaves the probabilities in c->p [n], normalised over the
 * nucleus and zero outside, and the nucleus in c->at [c->n]. CLD_E_NUMERIC if a logit is NaN
 * or +infinity, or all are -infinity; CLD_E_MEMORY. */
enum cld_status cld_probabilities(struct cld_nucleus *c, const float *logits, size_t n,
                                  double temperature, double top_p, struct cld_error *err);

/* The token at u in [0, 1) of the last probabilities. */
int32_t cld_nucleus_token(const struct cld_nucleus *c, double u);

#endif
