#include "model/decode.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/grow.h"

void cld_decode_stats_add(struct cld_decode_stats *to, const struct cld_decode_stats *from)
{
    to->n_texts += from->n_texts;
    to->n_cycles += from->n_cycles;
    to->n_tokens += from->n_tokens;
    for (size_t i = 0; i < CLD_MAX_BLOCK; i++) {
        to->offered[i] += from->offered[i];
        to->accepted[i] += from->accepted[i];
    }
    for (size_t i = 0; i <= CLD_MAX_BLOCK; i++)
        to->by_tokens[i] += from->by_tokens[i];
    to->ms += from->ms;
}

double cld_decode_tokens_per_cycle(const struct cld_decode_stats *s)
{
    return s->n_cycles ? (double)s->n_tokens / (double)s->n_cycles : 0;
}

double cld_decode_tokens_per_s(const struct cld_decode_stats *s)
{
    return s->ms > 0 ? (double)s->n_tokens / (s->ms * 1e-3) : 0;
}

void cld_decoder_describe(struct cld_decoder *d, struct cld_target *target,
                          struct cld_drafter *drafter, const struct cld_batch_rules *block,
                          struct cld_plan *plan)
{
    memset(d, 0, sizeof *d);
    d->target = target;
    d->drafter = drafter;
    d->block = *block;
    cld_token_sampler_describe(&d->sampler, target, cld_rules_drafted(block) + 1, plan);
}

void cld_decoder_free(struct cld_decoder *d)
{
    if (!d)
        return;
    free(d->ids);
    cld_batch_free(&d->batch);
    cld_token_sampler_free(&d->sampler);
    memset(d, 0, sizeof *d);
}

/* Runs n tokens of the target and gets ready to choose after the last n_rows of them. */
static enum cld_status run_target(struct cld_decoder *d, const int32_t *ids, size_t n,
                                  size_t n_rows, struct cld_error *err)
{
    struct cld_target_run run = {0, n};
    int32_t rows[CLD_MAX_BLOCK];
    for (size_t i = 0; i < n_rows; i++)
        rows[i] = (int32_t)(n - n_rows + i);
    enum cld_status s = cld_target_extend(d->target, ids, &run, 1, err);
    return s ? s : cld_token_sampler_read(&d->sampler, rows, n_rows, err);
}

/* The token after this row of the last pass, for the end of the text. */
static enum cld_status choose(struct cld_decoder *d, size_t row, int32_t *token,
                              struct cld_error *err)
{
    return cld_token_sampler_token(&d->sampler, row, d->text_number, d->n, token, err);
}

/* The block after the text's last token: the drafted tokens, or none. */
static enum cld_status fill_block(struct cld_decoder *d, enum cld_decode_way way, int32_t *block,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_drafted = cld_rules_drafted(&d->block), n_before = d->n - 1;
    block[0] = d->ids[n_before];
    for (size_t o = 1; o <= n_drafted; o++)
        block[o] = d->block.mask_token;
    if (way != CLD_DECODE_DRAFTED)
        return CLD_OK;
    /* The first taps of the last pass are those of the tokens that joined the context in it. */
    if ((s = cld_batch_continue(&d->batch, d->ids, d->drafter->n_cached, n_before, &d->block,
                                err)) ||
        (s = cld_drafter_forward(d->drafter, &d->batch, err)))
        return s;
    d->drafter->n_cached = n_before;
    if ((s = cld_drafter_logits(d->drafter, cld_rules_first(&d->block), n_drafted, err)))
        return s;
    return cld_token_sampler_first_max(&d->sampler, &d->drafter->logits, n_drafted, block + 1, err);
}

static bool is_done(const struct cld_decoder *d)
{
    return d->n - d->n_prompt >= d->sampler.rules.n_new ||
           cld_token_sampler_ends(&d->sampler, d->ids[d->n - 1]);
}

/* One pass of the target; adds the accepted tokens and its own choice to the text. */
static enum cld_status cycle(struct cld_decoder *d, enum cld_decode_way way,
                             struct cld_decode_stats *stats, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int32_t block[CLD_MAX_BLOCK];
    size_t n_before = d->n - 1,
           n_rows = way == CLD_DECODE_BY_TOKEN ? 1 : cld_rules_drafted(&d->block) + 1;
    size_t n_most = way == CLD_DECODE_DRAFTED ? n_rows : 1, n_new = 0;
    bool goes_on = true;
    if ((s = fill_block(d, way, block, err)))
        return s;
    for (size_t o = 1; o < n_rows; o++)
        if (block[o] < 0)
            return cld_fail(err, CLD_E_NUMERIC, "use an earlier checkpoint",
                            "text %llu, token %zu: a logit of the drafter is NaN",
                            (unsigned long long)d->text_number, d->n - 1 + o);
    if ((s = run_target(d, block, n_rows, n_rows, err)))
        return s;
    while (goes_on) {
        int32_t token;
        if ((s = choose(d, n_new, &token, err)))
            return s;
        d->ids[d->n++] = token;
        n_new++;
        goes_on = n_new < n_most && token == block[n_new];
        if (n_new < n_most) {
            stats->offered[n_new]++;
            stats->accepted[n_new] += goes_on;
        }
        goes_on = goes_on && !cld_token_sampler_ends(&d->sampler, token);
    }
    cld_target_crop(d->target, 0, n_before + n_new);
    stats->n_cycles++;
    stats->n_tokens += n_new;
    stats->by_tokens[n_new]++;
    return CLD_OK;
}

/* A pass of the target over n tokens, and of the drafter with them as its new context. */
static enum cld_status warm_pass(struct cld_decoder *d, size_t n, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int32_t made_up[CLD_MAX_BLOCK];
    cld_target_crop(d->target, 0, 0);
    size_t n_rows = cld_min(n, cld_rules_drafted(&d->block) + 1);
    if ((s = run_target(d, d->ids, n, n_rows, err)) || !d->drafter)
        return s;
    d->n = n + 1;
    d->drafter->n_cached = 0;
    s = fill_block(d, CLD_DECODE_DRAFTED, made_up, err);
    d->drafter->n_cached = 0;
    return s;
}

enum cld_status cld_decoder_warm_up(struct cld_decoder *d, size_t n_prompt, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_block = cld_rules_drafted(&d->block) + 1, n = n_prompt;
    if ((s = cld_grow(&d->ids, &d->cap_ids, cld_max(n_prompt, n_block) + 1, sizeof *d->ids, err)))
        return s;
    memset(d->ids, 0, (cld_max(n_prompt, n_block) + 1) * sizeof *d->ids);
    for (; n > n_block && !s; n /= 2)
        s = warm_pass(d, n, err);
    for (n = n_block; n > 0 && !s; n--)
        s = warm_pass(d, n, err);
    return s ? s : cld_queue_finish(d->target->q, err);
}

enum cld_status cld_decode_text(struct cld_decoder *d, const struct cld_decode_rules *rules,
                                enum cld_decode_way way, const int32_t *prompt, size_t n_prompt,
                                uint64_t number, struct cld_decode_stats *stats,
                                struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_target *t = d->target;
    size_t n_capacity = cld_decode_cached(n_prompt, rules->n_new, cld_rules_drafted(&d->block) + 1);
    if (!n_prompt || n_prompt > t->options.n_tokens || n_capacity > t->options.n_cached)
        return cld_fail(err, CLD_E_INPUT, "raise data.max_length, or lower eval.new_tokens",
                        "a prompt of %zu tokens with %zu new ones: at most %zu at once and %zu "
                        "together were planned",
                        n_prompt, rules->n_new, t->options.n_tokens, t->options.n_cached);
    if ((s = cld_grow(&d->ids, &d->cap_ids, n_capacity, sizeof *d->ids, err)))
        return s;
    d->sampler.rules = *rules;
    d->text_number = number;
    memcpy(d->ids, prompt, n_prompt * sizeof *d->ids);
    d->n = d->n_prompt = n_prompt;
    cld_target_crop(d->target, 0, 0);
    if (d->drafter)
        d->drafter->n_cached = 0;
    if ((s = run_target(d, prompt, n_prompt, 1, err)) || (s = choose(d, 0, &d->ids[d->n], err)))
        return s;
    d->n++;
    stats->n_texts++;
    double begun = cld_clock_ms();
    while (!is_done(d) && !s)
        s = cycle(d, way, stats, err);
    stats->ms += cld_clock_ms() - begun;
    d->n = cld_min(d->n, n_prompt + rules->n_new);
    if (d->drafter)
        d->drafter->n_cached = 0; /* the next use of the drafter starts without a context */
    return s;
}
