#include "train/data_checks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/size.h"
#include "formats/json_fields.h"
#include "model/compare_rows.h"

/* --- tokens that mean something -----------------------------------------------------------------
 */

enum { MAX_SPECIAL = 48 };

/* An id that one of the target's files gives a meaning. */
struct special {
    int64_t id;
    const char *file, *key;
    bool ends; /* an answer */
};

struct specials {
    struct special at[MAX_SPECIAL];
    size_t n;
};

static void add(struct specials *all, int64_t id, const char *file, const char *key, bool ends)
{
    if (id >= 0 && all->n < MAX_SPECIAL)
        all->at[all->n++] = (struct special){id, file, key, ends};
}

/* Many config.json have no pad token; what programs use then stands in the other files. */
static enum cld_status read_generation(const char *dir, struct specials *all, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const char *const file = "generation_config.json";
    json_t *root = NULL;
    char *path = cld_format("%s/%s", dir, file);
    int64_t ids[CLD_MAX_EOS_TOKENS];
    if (!path)
        return cld_fail(err, CLD_E_MEMORY, "", "no host memory for a path");
    if (!cld_file_exists(path) || (s = cld_json_load(path, &root, err)))
        goto done;
    const struct cld_fields r = {path, root, err};
    err->status = CLD_OK;
    size_t n = cld_fields_tokens(&r, "eos_token_id", CLD_MAX_EOS_TOKENS, ids);
    for (size_t i = 0; i < n; i++)
        add(all, ids[i], file, "eos_token_id", true);
    add(all, cld_fields_token_or_none(&r, "pad_token_id"), file, "pad_token_id", false);
    add(all, cld_fields_token_or_none(&r, "bos_token_id"), file, "bos_token_id", false);
    s = err->status;
done:
    json_decref(root);
    free(path);
    return s;
}

static enum cld_status read_tokenizer(const char *dir, const struct cld_tokenizer *t,
                                      struct specials *all, struct cld_error *err)
{
    static const char *const keys[] = {"eos_token", "pad_token", "bos_token"};
    enum cld_status s = CLD_OK;
    json_t *root = NULL;
    char *path = cld_format("%s/tokenizer_config.json", dir);
    if (!path)
        return cld_fail(err, CLD_E_MEMORY, "", "no host memory for a path");
    if (!t || !cld_file_exists(path) || (s = cld_json_load(path, &root, err)))
        goto done;
    for (size_t i = 0; i < 3; i++) {
        const json_t *v = json_object_get(root, keys[i]);
        const char *text = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
        if (text)
            add(all, cld_tokenizer_find(t, text), "tokenizer_config.json", keys[i], !i);
    }
done:
    json_decref(root);
    free(path);
    return s;
}

static enum cld_status read_specials(const struct cld_config *cfg, const struct cld_setup *setup,
                                     const struct cld_tokenizer *t, struct specials *all,
                                     struct cld_error *err)
{
    static const char *const marks[] = {"<|im_end|>", "<|eot_id|>"}; /* of the built-in templates */
    enum cld_status s = CLD_OK;
    all->n = 0;
    for (size_t i = 0; i < setup->target.n_eos; i++)
        add(all, setup->target.eos[i], "config.json", "eos_token_id", true);
    if ((s = read_generation(cfg->target.dir, all, err)) ||
        (s = read_tokenizer(cfg->target.dir, t, all, err)))
        return s;
    for (size_t i = 0; i < 2 && t; i++)
        add(all, cld_tokenizer_find(t, marks[i]), "tokenizer.json", marks[i], true);
    return CLD_OK;
}

static bool ends_answer(const struct specials *all, int32_t id)
{
    for (size_t i = 0; i < all->n; i++)
        if (all->at[i].id == id && all->at[i].ends)
            return true;
    return false;
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

static enum cld_status check_supervision(const struct cld_dataset *d, const struct specials *all,
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
            if (ends_answer(all, row.ids[at - 1]))
                n_good++;
            else if (at < row.n && ends_answer(all, row.ids[at]))
                n_short++;
            else if (at - begin > 1 && ends_answer(all, row.ids[at - 2]))
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
                                        const struct specials *all, struct cld_error *err)
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

static enum cld_status check_head(const char *dir, const struct cld_safetensors *st,
                                  const struct cld_safetensor *embed, bool tied, size_t vocab,
                                  struct cld_error *err)
{
    const struct cld_safetensor *head = cld_safetensors_find(st, "lm_head.weight");
    size_t row = SIZE_MAX;
    if (!head && !tied)
        return cld_fail(err, CLD_E_INPUT, "fetch the weights again, or mend config.json",
                        "%s: tie_word_embeddings is false and there is no lm_head.weight", dir);
    if (!head)
        return CLD_OK;
    if (head->n_dims != 2 || head->shape[0] != vocab || head->shape[1] != embed->shape[1])
        return cld_fail(err, CLD_E_INPUT, "mend config.json, or pad head and embedding alike",
                        "%s: lm_head.weight has %zu rows, config.json says %zu", dir,
                        head->n_dims ? head->shape[0] : 0, vocab);
    enum cld_status s = tied ? cld_compare_rows(st, embed, st, head, &row, err) : CLD_OK;
    if (s || row == SIZE_MAX)
        return s;
    return cld_fail(err, CLD_E_INPUT, "set tie_word_embeddings to false in its config.json",
                    "%s: config.json says that the head is the embedding, but row %zu of "
                    "lm_head.weight is not that of the embedding",
                    dir, row);
}

static enum cld_status check_vocabulary(const struct cld_config *cfg, const struct cld_setup *setup,
                                        const struct cld_tokenizer *t, struct cld_error *err)
{
    const char *const name = "model.embed_tokens.weight", *dir = cfg->target.dir;
    size_t vocab = setup->target.vocab;
    struct cld_safetensors *st = NULL;
    enum cld_status s = CLD_OK;
    if (t && (size_t)cld_tokenizer_max_id(t) >= vocab)
        return cld_fail(err, CLD_E_INPUT, "use the target's own tokenizer.json",
                        "%s: tokenizer.json has ids up to %d, the vocabulary has %zu rows", dir,
                        (int)cld_tokenizer_max_id(t), vocab);
    if (cfg->target.random_weights >= 0 || (s = cld_safetensors_open(dir, &st, err)))
        return s;
    const struct cld_safetensor *embed = cld_safetensors_find(st, name);
    if (!embed || embed->n_dims != 2 || embed->shape[0] != vocab)
        s = cld_fail(err, CLD_E_INPUT, "mend vocab_size in its config.json",
                     "%s: %s has %zu rows, config.json says %zu", dir, name,
                     embed && embed->n_dims ? embed->shape[0] : 0, vocab);
    else
        s = check_head(dir, st, embed, setup->target.tied, vocab, err);
    cld_safetensors_close(st);
    return s;
}

/* A check that is switched off still speaks. */
static enum cld_status judge(bool on, const char *key, enum cld_status s, struct cld_error *err)
{
    if (s != CLD_E_INPUT || on)
        return s;
    cld_warn("%s; checks.%s = no lets it pass", err->what, key);
    return CLD_OK;
}

enum cld_status cld_data_checks_run(const struct cld_config *cfg, const struct cld_setup *setup,
                                    const struct cld_feed *feed, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_tokenizer *t = cld_feed_tokenizer(feed);
    const struct cld_dataset *d = cld_feed_train(feed);
    struct specials all;
    if ((s = judge(cfg->checks.vocabulary, "vocabulary", check_vocabulary(cfg, setup, t, err),
                   err)) ||
        cfg->data.synthetic.n) /* random tokens mean nothing */
        return s;
    if ((s = read_specials(cfg, setup, t, &all, err)) ||
        (s = judge(cfg->checks.mask_token, "mask_token", check_mask_token(setup, d, &all, err),
                   err)))
        return s;
    return judge(cfg->checks.supervision, "supervision", check_supervision(d, &all, err), err);
}

/* --- what is told ----------------------------------------------------------------------------- */

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
            return cld_fail(err, CLD_E_MEMORY, "", "no host memory for a line");
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
               {"history", cfg->checks.history != CLD_HISTORY_TELL},
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
