#include "train/decode_eval.h"

#include <stdlib.h>
#include <string.h>

struct cld_decode_rules cld_decode_eval_rules(const struct cld_config *cfg)
{
    return (struct cld_decode_rules){.n_new = cfg->eval.new_tokens,
                                     .temperature = cfg->eval.temperature,
                                     .top_p = cfg->eval.top_p,
                                     .seed = (uint64_t)cfg->run.seed};
}

static void add_other(struct cld_decode_other *to, const struct cld_decode_other *from)
{
    cld_decode_stats_add(&to->stats, &from->stats);
    to->n_texts_differ += from->n_texts_differ;
    to->n_tokens_differ += from->n_tokens_differ;
}

void cld_decode_report_add(struct cld_decode_report *to, const struct cld_decode_report *from)
{
    cld_decode_stats_add(&to->drafted, &from->drafted);
    to->n_new += from->n_new;
    to->n_no_prompt += from->n_no_prompt;
    add_other(&to->by_token, &from->by_token);
    add_other(&to->by_block, &from->by_block);
}

/* The same text another way; `text` [n] is what the drafter gave. */
static enum cld_status decode_other(struct cld_worker *w, const struct cld_decode_rules *rules,
                                    enum cld_decode_way way, const int32_t *text, size_t n_prompt,
                                    size_t n, uint64_t number, struct cld_decode_other *o,
                                    struct cld_error *err)
{
    const struct cld_decoder *d = &w->decoder;
    size_t n_differ = 0;
    enum cld_status s =
        cld_decode_text(&w->decoder, rules, way, text, n_prompt, number, &o->stats, err);
    if (s)
        return s;
    for (size_t i = n_prompt; i < n; i++)
        n_differ += i >= d->n || d->ids[i] != text[i];
    o->n_tokens_differ += n_differ;
    o->n_texts_differ += n_differ || d->n != n;
    return CLD_OK;
}

static enum cld_status decode_row(struct cld_worker *w, const struct cld_row *row, bool compare,
                                  struct cld_decode_report *r, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_decoder *d = &w->decoder;
    struct cld_decode_rules rules = cld_decode_eval_rules(w->cfg);
    size_t n_prompt = cld_row_prompt(row), n = 0;
    int32_t *text = NULL;
    if (!n_prompt) {
        r->n_no_prompt++;
        return CLD_OK;
    }
    if ((s = cld_decode_text(d, &rules, CLD_DECODE_DRAFTED, row->ids, n_prompt, row->id,
                             &r->drafted, err)))
        return s;
    n = d->n;
    r->n_new += n - n_prompt;
    if (!compare)
        return CLD_OK;
    if (!(text = malloc(cld_mul(n, sizeof *text))))
        return cld_fail_memory(err, "a text of %zu tokens", n);
    memcpy(text, d->ids, n * sizeof *text);
    s = decode_other(w, &rules, CLD_DECODE_BY_TOKEN, text, n_prompt, n, row->id, &r->by_token, err);
    if (!s && w->cfg->eval.by_block)
        s = decode_other(w, &rules, CLD_DECODE_BY_BLOCK, text, n_prompt, n, row->id, &r->by_block,
                         err);
    free(text);
    return s;
}

enum cld_status cld_decode_eval(struct cld_worker *w, const struct cld_feed *f, bool compare,
                                struct cld_decode_report *r, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = cld_min(w->cfg->eval.decode_rows, cld_feed_n_heldout(f));
    memset(r, 0, sizeof *r);
    for (size_t i = 0; i < n && !s; i++) {
        struct cld_row row = cld_feed_heldout_row(f, i);
        s = decode_row(w, &row, compare, r, err);
    }
    return s ? s : cld_drafter_check_tiles(&w->drafter, err);
}
