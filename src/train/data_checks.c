#include "train/data_checks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/size.h"
#include "model/special_tokens.h"
#include "model/target_tensors.h"

/* Rows of ready ids may end with the mark of a template that is not known. */
static enum cld_status read_specials(const struct cld_config *cfg, const struct cld_setup *setup,
                                     const struct cld_tokenizer *t, struct cld_special_tokens *all,
                                     struct cld_error *err)
{
    static const char *const marks[] = {"<|im_end|>", "<|eot_id|>"}; /* of the built-in templates */
    enum cld_status s = cld_special_tokens_read(cfg, &setup->target, t, all, err);
    for (size_t i = 0; i < 2 && t && !s; i++)
        cld_special_tokens_add(all, cld_tokenizer_find(t, marks[i]), "tokenizer.json", marks[i],
                               true);
    return s;
}

/* --- checks ----------------------------------------------------------------------------------- */

/* The next supervised span of a row from *at on; false: none. */
static bool next_span(const struct cld_row *row, size_t *at, size_t *begin)
{
    while (*at < row->n && !row->loss_mask[*at])
        ++*at;
    *begin = *at;
    while (*at < row->n && row->loss_mask[*at])
        ++*at;
    return *begin < *at;
}

static bool has_chats(const struct cld_dataset *d)
{
    const struct cld_dataset_counts *c = cld_dataset_counts(d);
    size_t n = 0;
    for (int i = 0; i < CLD_N_ROLES; i++)
        n += c->n_of_role[i];
    return n > 0;
}

static enum cld_status check_supervision(const struct cld_dataset *d,
                                         const struct cld_special_tokens *all,
                                         struct cld_error *err)
{
    const struct cld_dataset_counts *c = cld_dataset_counts(d);
    size_t n_good = 0, n_short = 0, n_long = 0;
    if (c->n_supervised == c->n_tokens)
        return cld_fail(err, CLD_E_INPUT, "mask the prompts with 0 in loss_mask",
                        "all %zu tokens are supervised, prompts too", c->n_tokens);
    for (size_t i = 0; i < c->n_rows; i++) {
        struct cld_row row = cld_dataset_row(d, i);
        for (size_t at = 0, begin; next_span(&row, &at, &begin);) {
            if (cld_special_tokens_end(all, row.ids[at - 1]))
                n_good++;
            else if (at < row.n && cld_special_tokens_end(all, row.ids[at]))
                n_short++;
            else if (at - begin > 1 && cld_special_tokens_end(all, row.ids[at - 2]))
                n_long++;
        }
    }
    if (n_short <= n_good && n_long <= n_good)
        return CLD_OK;
    return cld_fail(
        err, CLD_E_INPUT,
        "the mask is 1 at the tokens to be predicted, the end mark the last of them",
        "loss_mask looks shifted by one: %zu supervised spans end a token before the end "
        "mark and %zu a token after it, %zu with it",
        n_short, n_long, n_good);
}

static enum cld_status check_mask_token(const struct cld_setup *setup, const struct cld_dataset *d,
                                        const struct cld_special_tokens *all, struct cld_error *err)
{
    int32_t mask = setup->drafter.mask_token;
    size_t n = 0, first = 0;
    for (size_t i = 0; i < all->n; i++)
        if (all->at[i].id == mask)
            return cld_fail(err, CLD_E_INPUT, "choose a reserved token that no text contains",
                            "drafter.mask_token %d is %s of the target's %s", (int)mask,
                            all->at[i].key, all->at[i].file);
    for (size_t i = cld_dataset_n_rows(d); i-- > 0;) {
        struct cld_row row = cld_dataset_row(d, i);
        for (size_t k = 0; k < row.n; k++)
            if (row.ids[k] == mask) {
                n++;
                first = (size_t)row.id;
            }
    }
    if (!n)
        return CLD_OK;
    return cld_fail(err, CLD_E_INPUT, "choose a reserved token that no text contains",
                    "drafter.mask_token %d stands %zu times in the training rows, first in row %zu",
                    (int)mask, n, first);
}

static enum cld_status check_vocabulary(const struct cld_config *cfg,
                                        const struct cld_model_config *model,
                                        const struct cld_tokenizer *t, struct cld_error *err)
{
    if (t && (size_t)cld_tokenizer_max_id(t) >= model->vocab)
        return cld_fail(err, CLD_E_INPUT, "use the target's own tokenizer.json",
                        "%s: tokenizer.json has ids up to %d, the vocabulary has %zu rows",
                        cfg->target.dir, (int)cld_tokenizer_max_id(t), model->vocab);
    return cfg->target.random_weights >= 0
               ? CLD_OK
               : cld_target_vocabulary_check(cfg->target.dir, model, err);
}

/* A check that is switched off still speaks. */
static enum cld_status judge(bool on, const char *key, enum cld_status s, struct cld_error *err)
{
    if (s != CLD_E_INPUT || on)
        return s;
    cld_warn("%s; checks.%s = no lets it pass", err->what, key);
    return CLD_OK;
}

enum cld_status cld_data_checks_target(const struct cld_config *cfg,
                                       const struct cld_model_config *model,
                                       const struct cld_tokenizer *t, struct cld_error *err)
{
    return judge(cfg->checks.vocabulary, "vocabulary", check_vocabulary(cfg, model, t, err), err);
}

enum cld_status cld_data_checks_run(const struct cld_config *cfg, const struct cld_setup *setup,
                                    const struct cld_feed *feed, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_tokenizer *t = cld_feed_tokenizer(feed);
    const struct cld_dataset *d = cld_feed_train(feed);
    struct cld_special_tokens all;
    cld_feed_check_positions(feed, setup->target.max_positions);
    if ((s = cld_data_checks_target(cfg, &setup->target, t, err)) ||
        cfg->data.synthetic.n) /* random tokens mean nothing */
        return s;
    if ((s = read_specials(cfg, setup, t, &all, err)) ||
        (s = judge(cfg->checks.mask_token, "mask_token", check_mask_token(setup, d, &all, err),
                   err)))
        return s;
    return judge(cfg->checks.supervision, "supervision", check_supervision(d, &all, err), err);
}

/* --- what is logged --------------------------------------------------------------------------- */

void cld_data_checks_shares(const struct cld_dataset_counts *c, char *to, size_t n)
{
    const char *before = ": ";
    int got = snprintf(to, n, "%zu of %zu tokens (%.1f %%)", c->n_supervised, c->n_tokens,
                       100 * (double)c->n_supervised / (double)cld_max(1, c->n_tokens));
    for (int r = 0; r < CLD_N_ROLES; r++) {
        size_t at = strlen(to);
        if (got < 0 || at + 1 >= n || !c->n_of_role[r])
            continue;
        got = snprintf(to + at, n - at, "%s%s %zu of %zu", before, cld_role_name((enum cld_role)r),
                       c->n_supervised_of_role[r], c->n_of_role[r]);
        before = ", ";
    }
}

/* Tokens [begin, end) as text that fits in a line, malloc'd. */
static char *line_of(const struct cld_tokenizer *t, const struct cld_row *row, size_t begin,
                     size_t end)
{
    struct cld_error ignored = CLD_ERROR_INIT;
    char *bytes = NULL, *line = NULL;
    size_t n = 0, n_line = 0;
    if (t && cld_decode(t, row->ids + begin, end - begin, &bytes, &n, &ignored))
        t = NULL; /* an id without a text */
    if (!(line = calloc(cld_add(cld_mul(t ? n : end - begin, t ? 4 : 12), 1), 1)))
        goto done;
    for (size_t i = begin; i < end && !t; i++)
        n_line += (size_t)sprintf(line + n_line, "%s%d", i > begin ? " " : "", (int)row->ids[i]);
    for (size_t i = 0; i < n && t; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '\n')
            n_line += (size_t)sprintf(line + n_line, "\\n");
        else if (c < 0x20 || c == 0x7f)
            n_line += (size_t)sprintf(line + n_line, "\\x%02x", c);
        else
            line[n_line++] = (char)c;
    }
done:
    free(bytes);
    return line;
}

char *cld_data_checks_span(const struct cld_tokenizer *t, const struct cld_row *row, size_t begin,
                           size_t end)
{
    enum { AROUND = 4, HEAD = 24, TAIL = 8 };
    bool is_long = end - begin > HEAD + TAIL;
    size_t before = begin > AROUND ? begin - AROUND : 0;
    char *part[4] = {line_of(t, row, before, begin),
                     line_of(t, row, begin, is_long ? begin + HEAD : end),
                     line_of(t, row, is_long ? end - TAIL : end, end),
                     line_of(t, row, end, cld_min(row->n, end + AROUND))};
    char *line = NULL;
    if (part[0] && part[1] && part[2] && part[3])
        line = cld_format("%s%s [[%s%s%s]] %s%s", before ? "... " : "", part[0], part[1],
                          is_long ? " ... " : "", part[2], part[3],
                          end + AROUND < row->n ? " ..." : "");
    for (int i = 0; i < 4; i++)
        free(part[i]);
    return line;
}

static enum cld_status tell_row(const struct cld_tokenizer *t, const struct cld_row *row,
                                struct cld_error *err)
{
    enum { MOST = 8 };
    size_t n = 0;
    for (size_t at = 0, begin; next_span(row, &at, &begin); n++) {
        if (n >= MOST)
            continue;
        char *line = cld_data_checks_span(t, row, begin, at);
        if (!line)
            return cld_fail_memory(err, "a line");
        cld_info("row %llu, supervised tokens %zu to %zu of %zu: %s", (unsigned long long)row->id,
                 begin, at - 1, row->n, line);
        free(line);
    }
    if (n > MOST)
        cld_info("row %llu: %zu more supervised spans", (unsigned long long)row->id, n - MOST);
    return CLD_OK;
}

static enum cld_status tell_template(const struct cld_config *cfg, const struct cld_feed *feed,
                                     struct cld_error *err)
{
    char hash[65];
    bool is_known = false;
    enum cld_chat_template declared;
    enum cld_status s = cld_chat_declared(cfg->target.dir, hash, &is_known, &declared, err);
    if (s || !has_chats(cld_feed_train(feed)))
        return s;
    if (is_known)
        cld_info("template %s; the target's has SHA-256 %s, which is known to be %s",
                 cld_chat_template_name(cld_feed_used_template(feed)), hash,
                 cld_chat_template_name(declared));
    else
        cld_warn(
            "template %s; the target's is none of the known ones (SHA-256 %s): compare the rows "
            "below with what it writes",
            cld_chat_template_name(cld_feed_used_template(feed)),
            hash[0] ? hash : "of nothing, it declares none");
    return CLD_OK;
}

static void tell_switches(const struct cld_config *cfg)
{
    const struct {
        const char *key;
        bool on;
    } all[] = {{"template", cfg->checks.template},
               {"supervision", cfg->checks.supervision},
               {"mask_token", cfg->checks.mask_token},
               {"vocabulary", cfg->checks.vocabulary},
               {"history", cfg->checks.history != CLD_HISTORY_COUNT},
               {"rows", cfg->checks.rows > 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!all[i].on)
            cld_warn("checks.%s is switched off", all[i].key);
}

enum cld_status cld_data_checks_log(const struct cld_config *cfg, const struct cld_setup *setup,
                                    const struct cld_feed *feed, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_dataset *d = cld_feed_train(feed);
    const struct cld_dataset_counts *c = cld_dataset_counts(d);
    char text[512];
    size_t n = cld_min(cfg->checks.rows, c->n_rows), at = 0;
    tell_switches(cfg);
    for (size_t i = 0; i < setup->n_taps && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%d", i ? ", " : "", setup->taps[i]);
    cld_info("taps: outputs of layers %s, counted from 0, of %zu; mask token %d; vocabulary of %zu",
             text, setup->target.n_layers, (int)setup->drafter.mask_token, setup->target.vocab);
    if (cfg->data.synthetic.n)
        return CLD_OK;
    cld_data_checks_shares(c, text, sizeof text);
    cld_info(
        "supervised: %s; %zu rows lost in their prompt, %zu answers rewritten by later turns%s",
        text, c->n_fault[CLD_ROW_CUT_PROMPT], c->n_rewritten,
        c->n_rewritten && cfg->checks.history == CLD_HISTORY_MASK ? ", not supervised" : "");
    if ((s = tell_template(cfg, feed, err)))
        return s;
    for (size_t i = 0; i < n && !s; i++) {
        struct cld_row row = cld_dataset_row(d, i * c->n_rows / n);
        s = tell_row(cld_feed_tokenizer(feed), &row, err);
    }
    return s;
}
