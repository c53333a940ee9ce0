#include "model/sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/size.h"

void cld_nucleus_release(struct cld_nucleus *c)
{
    free(c->p);
    free(c->at);
    memset(c, 0, sizeof *c);
}

struct candidate {
    double p;
    int32_t id;
};

static int by_falling_p(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->p != y->p)
        return x->p > y->p ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* p = exp(z / t), normalised; *sum is what it added up to before. */
static enum cld_status softmax(double *p, const float *logits, size_t n, double temperature,
                               struct cld_error *err)
{
    double top = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return cld_fail(
                err, CLD_E_NUMERIC,
                "check the weights; try runtime.precision = fp32, and run 'cldraft check-kernels'",
                "logit %zu of %zu is %g", i, n, logits[i]);
        top = fmax(top, logits[i]);
    }
    if (top == -INFINITY)
        return cld_fail(
            err, CLD_E_NUMERIC,
            "check the weights; try runtime.precision = fp32, and run 'cldraft check-kernels'",
            "none of %zu logits is finite", n);
    for (size_t i = 0; i < n; i++)
        sum += p[i] = exp((logits[i] - top) / temperature);
    for (size_t i = 0; i < n; i++)
        p[i] /= sum;
    return CLD_OK;
}

/* Cuts c->p down to its nucleus. Tokens below (1 - top_p) / n together have less than 1 - top_p, so
 * the nucleus is complete before the first of them: only the others need sorting. */
static enum cld_status keep_nucleus(struct cld_nucleus *c, size_t n, double top_p,
                                    struct cld_error *err)
{
    struct candidate *likely = malloc(cld_mul(n, sizeof *likely));
    size_t n_likely = 0;
    double sum = 0;
    if (!likely)
        return cld_fail_memory(err, "%zu probabilities", n);
    for (size_t i = 0; i < n; i++)
        if (c->p[i] >= (1 - top_p) / (double)n)
            likely[n_likely++] = (struct candidate){c->p[i], (int32_t)i};
    qsort(likely, n_likely, sizeof *likely, by_falling_p);
    memset(c->p, 0, n * sizeof *c->p);
    c->n = 0;
    while (c->n < n_likely && sum < top_p) {
        sum += likely[c->n].p;
        c->at[c->n] = likely[c->n].id;
        c->n++;
    }
    for (size_t i = 0; i < c->n; i++)
        c->p[likely[i].id] = likely[i].p / sum;
    free(likely);
    return CLD_OK;
}

enum cld_status cld_probabilities(struct cld_nucleus *c, const float *logits, size_t n,
                                  double temperature, double top_p, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if ((s = cld_grow(&c->p, &c->cap_p, n, sizeof *c->p, err)) ||
        (s = cld_grow(&c->at, &c->cap_at, n, sizeof *c->at, err)) ||
        (s = softmax(c->p, logits, n, temperature, err)))
        return s;
    if (top_p < 1)
        return keep_nucleus(c, n, top_p, err);
    for (size_t i = 0; i < n; i++)
        c->at[i] = (int32_t)i;
    c->n = n;
    return CLD_OK;
}

int32_t cld_nucleus_token(const struct cld_nucleus *c, double u)
{
    int32_t last = c->at[0];
    double sum = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (c->p[c->at[i]] <= 0)
            continue;
        last = c->at[i];
        sum += c->p[last];
        if (u < sum)
            return last;
    }
    return last; /* rounding: the sum stayed a little below 1 */
}
