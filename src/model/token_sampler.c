#include "model/token_sampler.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/random.h"
#include "ops/ops.h"
#include "ops/tensor_io.h"

void cld_token_sampler_describe(struct cld_token_sampler *p, struct cld_target *target,
                                size_t n_rows, struct cld_plan *plan)
{
    memset(p, 0, sizeof *p);
    p->target = target;
    cld_plan_tensor(plan, &p->choice, CLD_I32, 1, n_rows, CLD_FOR_KV_CACHE, "choices of a pass");
}

void cld_token_sampler_free(struct cld_token_sampler *p)
{
    if (!p)
        return;
    free(p->choices);
    free(p->logits);
    cld_nucleus_release(&p->nucleus);
    memset(p, 0, sizeof *p);
}

enum cld_status cld_token_sampler_first_max(struct cld_token_sampler *p,
                                            const struct cld_tensor *logits, size_t n, int32_t *to,
                                            struct cld_error *err)
{
    struct cld_tensor rows = cld_tensor_rows(logits, 0, n), at = cld_tensor_cols(&p->choice, 0, n);
    enum cld_status s = cld_first_max(p->target->q, &rows, &at, err);
    return s ? s : cld_buf_read(at.buf, at.offset * sizeof *to, to, n * sizeof *to, err);
}

enum cld_status cld_token_sampler_read(struct cld_token_sampler *p, const int32_t *rows, size_t n,
                                       struct cld_error *err)
{
    struct cld_target *t = p->target;
    size_t n_logits = cld_mul(n, t->config.vocab);
    enum cld_status s = cld_target_logits(t, rows, n, err);
    if (s)
        return s;
    if (p->rules.temperature <= 0) {
        s = cld_grow(&p->choices, &p->cap_choices, n, sizeof *p->choices, err);
        return s ? s : cld_token_sampler_first_max(p, &t->logits, n, p->choices, err);
    }
    s = cld_grow(&p->logits, &p->cap_logits, n_logits, sizeof *p->logits, err);
    return s ? s : cld_tensor_read(&t->logits, 0, n, p->logits, err);
}

enum cld_status cld_token_sampler_token(struct cld_token_sampler *p, size_t i, uint64_t number,
                                        size_t at, int32_t *token, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_vocab = p->target->config.vocab;
    *token = -1;
    if (p->rules.temperature <= 0) {
        *token = p->choices[i];
        if (*token < 0)
            s = cld_fail(
                err, CLD_E_NUMERIC,
                "check the weights; try runtime.precision = fp32, and run 'cldraft check-kernels'",
                "a logit is NaN");
    } else if (!(s = cld_probabilities(&p->nucleus, p->logits + i * n_vocab, n_vocab,
                                       p->rules.temperature, p->rules.top_p, err))) {
        uint64_t bits = cld_random_u64(p->rules.seed, CLD_RANDOM_DECODE, number, at, 0);
        *token = cld_nucleus_token(&p->nucleus, cld_random_unit(bits));
    }
    return s ? cld_fail_prefix(err, "text %llu, token %zu", (unsigned long long)number, at)
             : CLD_OK;
}

bool cld_token_sampler_ends(const struct cld_token_sampler *p, int32_t token)
{
    const struct cld_model_config *c = &p->target->config;
    for (size_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == token)
            return true;
    return false;
}
