#include "text/pretokenize.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "formats/json_read.h"

enum behavior { ISOLATED, REMOVED, CONTIGUOUS };

struct step {
    struct cld_regex *regex;
    enum behavior behavior;
    bool invert; /* what the pattern does not match are the delimiters */
};

enum { MAX_STEPS = 16 };

struct cld_pretokenizer {
    struct step steps[MAX_STEPS];
    size_t n_steps;
    bool prefix_space;
    size_t n_before_prefix; /* steps that come before the space is added */
};

/* The pattern that ByteLevel with use_regex cuts by (from GPT-2). */
static const char byte_level_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

void cld_pretokenizer_free(struct cld_pretokenizer *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n_steps; i++)
        cld_regex_free(p->steps[i].regex);
    free(p);
}

static enum cld_status add_step(struct cld_pretokenizer *p, const char *pattern, size_t n,
                                bool literal, enum behavior behavior, bool invert,
                                struct cld_error *err)
{
    if (p->n_steps == MAX_STEPS)
        return cld_fail(err, CLD_E_INPUT,
                        "the tokenizer is damaged, or needs something that cldraft does not "
                        "support; download it again or use another target",
                        "pre_tokenizer has more than %d steps", MAX_STEPS);
    struct step *step = &p->steps[p->n_steps];
    enum cld_status s = literal ? cld_regex_new_literal(pattern, n, &step->regex, err)
                                : cld_regex_new(pattern, n, &step->regex, err);
    if (s)
        return s;
    step->behavior = behavior;
    step->invert = invert;
    p->n_steps++;
    return CLD_OK;
}

static enum cld_status add_split(struct cld_pretokenizer *p, const json_t *config,
                                 struct cld_error *err)
{
    static const char where[] = "pre_tokenizer Split";
    static const char *const known[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const pattern_known[] = {"Regex", "String", NULL};
    static const char *const behaviors[] = {"Isolated", "Removed", "Contiguous"};
    const json_t *pattern = json_object_get(config, "pattern");
    const char *text, *behavior;
    size_t n_text, n_behavior;
    bool invert = false;
    enum cld_status s;
    if ((s = cld_json_known(config, where, known, err)) ||
        (s = cld_json_known(pattern, "pre_tokenizer Split pattern", pattern_known, err)) ||
        (s = cld_json_bool(config, where, "invert", &invert, err)) ||
        (s = cld_json_string(config, where, "behavior", &behavior, &n_behavior, err)))
        return s;
    bool literal = json_object_get(pattern, "String") != NULL;
    if ((s = cld_json_string(pattern, where, literal ? "String" : "Regex", &text, &n_text, err)))
        return s;
    for (size_t i = 0; i < 3; i++)
        if (!strcmp(behavior, behaviors[i]))
            return add_step(p, text, n_text, literal, (enum behavior)i, invert, err);
    return cld_fail(err, CLD_E_INPUT, "supported: Isolated, Removed, Contiguous",
                    "%s: behavior \"%s\" is not supported", where, behavior);
}

static enum cld_status add_digits(struct cld_pretokenizer *p, const json_t *config,
                                  struct cld_error *err)
{
    static const char where[] = "pre_tokenizer Digits";
    static const char *const known[] = {"type", "individual_digits", NULL};
    bool individual = false;
    enum cld_status s = cld_json_known(config, where, known, err);
    if (s || (s = cld_json_bool(config, where, "individual_digits", &individual, err)))
        return s;
    return add_step(p, "\\p{N}", 5, false, individual ? ISOLATED : CONTIGUOUS, false, err);
}

/* trim_offsets only moves reported offsets over leading spaces, never past a place where a chat
 * template begins or ends what is supervised; ids do not depend on it. */
static enum cld_status add_byte_level(struct cld_pretokenizer *p, const json_t *config,
                                      struct cld_error *err)
{
    static const char where[] = "pre_tokenizer ByteLevel";
    static const char *const known[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                        NULL};
    bool use_regex = true, trim = true;
    p->prefix_space = true;
    enum cld_status s = cld_json_known(config, where, known, err);
    if (s || (s = cld_json_bool(config, where, "add_prefix_space", &p->prefix_space, err)) ||
        (s = cld_json_bool(config, where, "trim_offsets", &trim, err)) ||
        (s = cld_json_bool(config, where, "use_regex", &use_regex, err)))
        return s;
    p->n_before_prefix = p->n_steps;
    if (!use_regex)
        return CLD_OK;
    return add_step(p, byte_level_pattern, sizeof byte_level_pattern - 1, false, ISOLATED, false,
                    err);
}

static enum cld_status add(struct cld_pretokenizer *p, const json_t *config, bool last,
                           struct cld_error *err)
{
    const char *type;
    size_t n_type;
    enum cld_status s = cld_json_string(config, "pre_tokenizer", "type", &type, &n_type, err);
    if (s)
        return s;
    if (last && strcmp(type, "ByteLevel"))
        return cld_fail(err, CLD_E_INPUT, "only byte-level BPE is supported",
                        "pre_tokenizer ends with \"%s\", not with ByteLevel", type);
    if (last)
        return add_byte_level(p, config, err);
    if (!strcmp(type, "Split"))
        return add_split(p, config, err);
    if (!strcmp(type, "Digits"))
        return add_digits(p, config, err);
    return cld_fail(err, CLD_E_INPUT, "supported: Split and Digits before a ByteLevel at the end",
                    "pre_tokenizer \"%s\" is not supported there", type);
}

enum cld_status cld_pretokenizer_new(const json_t *config, struct cld_pretokenizer **out,
                                     struct cld_error *err)
{
    static const char *const known[] = {"type", "pretokenizers", NULL};
    enum cld_status s = CLD_OK;
    const json_t *list = NULL;
    *out = NULL;
    struct cld_pretokenizer *p = calloc(1, sizeof *p);
    if (!p)
        return cld_fail_memory(err, "the pre_tokenizer");
    const char *type = json_string_value(json_object_get(config, "type"));
    if (type && !strcmp(type, "Sequence")) {
        if ((s = cld_json_known(config, "pre_tokenizer Sequence", known, err)) ||
            (s = cld_json_array(config, "pre_tokenizer Sequence", "pretokenizers", &list, err)))
            goto done;
        size_t n = json_array_size(list);
        if (!n)
            s = cld_fail(err, CLD_E_INPUT, "only byte-level BPE is supported",
                         "pre_tokenizer Sequence is empty");
        for (size_t i = 0; !s && i < n; i++)
            s = add(p, json_array_get(list, i), i + 1 == n, err);
    } else if (!json_is_object(config)) {
        s = cld_fail(err, CLD_E_INPUT, "only byte-level BPE is supported", "pre_tokenizer is %s",
                     cld_json_kind(config));
    } else {
        s = add(p, config, true, err);
    }
    if (s)
        goto done;
    *out = p;
    p = NULL;
done:
    cld_pretokenizer_free(p);
    return s;
}

/* ---- cutting ---- */

struct cutter {
    const struct cld_pretokenizer *p;
    struct cld_pretokenizer_scratch *scratch;
    cld_word_fn *fn;
    void *to;
    struct cld_error *err;
};

static enum cld_status cut(const struct cutter *c, size_t step, struct cld_word w);

/* The space is added to each piece that reaches ByteLevel, unless it begins with one. */
static enum cld_status cut_with_space(const struct cutter *c, size_t step, struct cld_word w)
{
    struct cld_pretokenizer_scratch *scratch = c->scratch;
    enum cld_status s = cld_grow(&scratch->text, &scratch->cap_text, w.n + 1, 1, c->err);
    if (s)
        return s;
    scratch->text[0] = ' ';
    memcpy(scratch->text + 1, w.bytes, w.n);
    w.bytes = scratch->text;
    w.n++;
    w.n_added = 1;
    return cut(c, step, w);
}

/* The part [begin, end) of w goes on to the next step. */
static enum cld_status pass(const struct cutter *c, size_t step, const struct cld_word *w,
                            size_t begin, size_t end)
{
    struct cld_word part = {w->bytes + begin, end - begin, w->at + begin, w->n_added};
    if (w->n_added && begin) { /* the added space stays in an earlier part */
        part.at--;
        part.n_added = 0;
    }
    return cut(c, step, part);
}

/* Runs the steps from `step` on over one piece. */
static enum cld_status cut(const struct cutter *c, size_t step, struct cld_word w)
{
    if (!w.n)
        return CLD_OK;
    if (step == c->p->n_before_prefix && c->p->prefix_space && !w.n_added && w.bytes[0] != ' ')
        return cut_with_space(c, step, w);
    if (step == c->p->n_steps)
        return c->fn(c->to, &w, c->err);
    const struct step *st = &c->p->steps[step];
    size_t done = 0; /* w[0..done) has been passed on or removed */
    for (size_t at = 0, begin, end; at < w.n; at = end) {
        enum cld_status s =
            cld_regex_find(st->regex, c->scratch->matcher, w.bytes, w.n, at, &begin, &end, c->err);
        if (s)
            return s;
        /* Contiguous: a delimiter goes on as long as the next match touches it. */
        for (size_t b = end, e = end; st->behavior == CONTIGUOUS && b == end && end < w.n;) {
            if ((s = cld_regex_find(st->regex, c->scratch->matcher, w.bytes, w.n, end, &b, &e,
                                    c->err)))
                return s;
            if (b == end && e > b)
                end = b = e;
        }
        bool keep_gap = st->behavior != REMOVED || !st->invert;
        bool keep_match = st->behavior != REMOVED || st->invert;
        if ((keep_gap && (s = pass(c, step + 1, &w, done, begin))) ||
            (keep_match && (s = pass(c, step + 1, &w, begin, end))))
            return s;
        done = end;
    }
    return CLD_OK;
}

enum cld_status cld_pretokenize(const struct cld_pretokenizer *p,
                                struct cld_pretokenizer_scratch *scratch, const char *text,
                                size_t n, cld_word_fn *fn, void *to, struct cld_error *err)
{
    struct cutter c = {p, scratch, fn, to, err};
    return cut(&c, 0, (struct cld_word){text, n, 0, 0});
}
