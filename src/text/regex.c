#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/utf8.h"

struct cld_regex {
    pcre2_code *code;
};

struct cld_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* ---- translation ---- */

enum { MAX_DEPTH = 64 };

struct translation {
    const char *in;
    size_t n_in, at;
    char *out;
    size_t n_out, cap_out;
    bool caseless[MAX_DEPTH]; /* of each open group; [0] is the whole pattern */
    size_t depth;
    char last_literal; /* ASCII literal just before, lower case; 0: something else */
    struct cld_error *err;
};

/* White_Space of Unicode. PCRE2's \s has U+180E besides, which lost the property in Unicode 6.3. */
#define WHITE_SPACE                                                                                \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"        \
    "\\x{205f}\\x{3000}"

static enum cld_status emit(struct translation *t, const char *s, size_t n)
{
    enum cld_status status = cld_grow(&t->out, &t->cap_out, t->n_out + n, 1, t->err);
    if (!status) {
        memcpy(t->out + t->n_out, s, n);
        t->n_out += n;
    }
    return status;
}

static enum cld_status emit_string(struct translation *t, const char *s)
{
    return emit(t, s, strlen(s));
}

static enum cld_status __attribute__((format(printf, 2, 3)))
refuse(struct translation *t, const char *fmt, ...)
{
    char what[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return cld_fail(t->err, CLD_E_INPUT, "only constructs known to mean the same here are accepted",
                    "pattern \"%.*s\": %s at byte %zu is not supported", (int)cld_min(t->n_in, 300),
                    t->in, what, t->at);
}

static bool next_is(const struct translation *t, const char *s)
{
    size_t n = strlen(s);
    return t->n_in - t->at >= n && !memcmp(t->in + t->at, s, n);
}

/* General categories mean the same in both engines. Script names do not: PCRE2 takes \p{Han} as
 * script extensions, so that the plain script is asked for. */
static enum cld_status translate_property(struct translation *t)
{
    static const char *const categories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                             "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                             "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                             "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cn", "Co"};
    static const char *const scripts[] = {"Han",    "Hiragana", "Katakana", "Hangul",
                                          "Latin",  "Greek",    "Cyrillic", "Devanagari",
                                          "Arabic", "Hebrew",   "Thai"};
    const char *name = t->in + t->at + 3, *close;
    if (t->n_in - t->at < 4 || name[-1] != '{' || !(close = memchr(name, '}', t->n_in - t->at - 3)))
        return refuse(t, "a property without braces");
    size_t n = (size_t)(close - name);
    bool category = false, script = false;
    for (size_t i = 0; i < sizeof categories / sizeof *categories; i++)
        category |= strlen(categories[i]) == n && !memcmp(categories[i], name, n);
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++)
        script |= strlen(scripts[i]) == n && !memcmp(scripts[i], name, n);
    if (!category && !script)
        return refuse(t, "property \"%.*s\"", (int)cld_min(n, 40), name);
    char text[64];
    snprintf(text, sizeof text, "\\%c{%s%.*s}", name[-2], script ? "sc:" : "", (int)n, name);
    t->at += n + 4;
    t->last_literal = 0;
    return emit_string(t, text);
}

/* \uHHHH, \xHH and \x{H...}, as \x{...}. */
static enum cld_status translate_code_point(struct translation *t)
{
    bool braces = t->in[t->at + 1] == 'x' && t->at + 2 < t->n_in && t->in[t->at + 2] == '{';
    size_t begin = t->at + 2 + braces, want = t->in[t->at + 1] == 'u' ? 4 : 2, n = 0;
    unsigned long cp = 0;
    while (begin + n < t->n_in && n < (braces ? 6 : want)) {
        static const char digits[] = "0123456789abcdef";
        char c = t->in[begin + n];
        const char *d = c ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
        if (!d)
            break;
        cp = cp * 16 + (unsigned long)(d - digits);
        n++;
    }
    bool closed = !braces || (begin + n < t->n_in && t->in[begin + n] == '}');
    if (!n || !closed || (!braces && n != want))
        return refuse(t, "an incomplete escape");
    /* \xHH above 7F is a byte to Oniguruma, not a character. */
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000) || (want == 2 && !braces && cp > 0x7f))
        return refuse(t, "code point %lX", cp);
    if (t->caseless[t->depth] && cp >= 0x80)
        return refuse(t, "a character other than ASCII in a caseless group");
    char text[32];
    snprintf(text, sizeof text, "\\x{%lx}", cp);
    t->at = begin + n + braces;
    t->last_literal = 0;
    return emit_string(t, text);
}

static enum cld_status translate_escape(struct translation *t, bool in_class)
{
    if (t->at + 1 >= t->n_in)
        return refuse(t, "a backslash at the end");
    char c = t->in[t->at + 1];
    if (c == 'p' || c == 'P')
        return translate_property(t);
    if (c == 'u' || c == 'x')
        return translate_code_point(t);
    const char *as = NULL;
    char copy[3] = {'\\', c, 0};
    if (c == 's')
        as = in_class ? WHITE_SPACE : "[" WHITE_SPACE "]";
    else if (c == 'S' && !in_class)
        as = "[^" WHITE_SPACE "]";
    else if (c == 'v') /* vertical tab here, any vertical white space in PCRE2 */
        as = "\\x0b";
    else if (c && strchr("dDrntfae", c))
        as = copy;
    else if ((c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') ||
             (c > 'z' && c < 0x7f))
        as = copy; /* an escaped sign is that sign */
    else
        return refuse(t, "\"\\%c\"%s", c, in_class ? " in a class" : "");
    t->at += 2;
    t->last_literal = 0;
    return emit_string(t, as);
}

/* A character that stands for itself. Caseless ASCII is the same in both engines as long as no
 * sequence is the folding of one character (U+00DF is "ss", U+FB01 is "fi", ...). */
static enum cld_status translate_literal(struct translation *t, bool in_class)
{
    uint32_t cp;
    size_t n = cld_utf8_get(t->in + t->at, t->n_in - t->at, &cp);
    if (!n)
        return refuse(t, "malformed UTF-8");
    char c = cp < 0x80 ? (char)cp : 0;
    if (c >= 'A' && c <= 'Z')
        c = (char)(c + 32);
    if (t->caseless[t->depth]) {
        if (cp >= 0x80)
            return refuse(t, "a character other than ASCII in a caseless group");
        static const char *const folded[] = {"ss", "ff", "fi", "fl", "st"};
        for (size_t i = 0; !in_class && i < sizeof folded / sizeof *folded; i++)
            if (t->last_literal == folded[i][0] && c == folded[i][1])
                return refuse(t, "\"%s\" in a caseless group", folded[i]);
    }
    t->last_literal = in_class ? 0 : c;
    enum cld_status s = emit(t, t->in + t->at, n);
    t->at += n;
    return s;
}

static enum cld_status translate_class(struct translation *t)
{
    enum cld_status s = emit(t, "[", 1);
    t->at++;
    if (!s && next_is(t, "^")) {
        s = emit(t, "^", 1);
        t->at++;
    }
    if (!s && next_is(t, "]"))
        return refuse(t, "\"]\" first in a class");
    while (!s) {
        if (t->at >= t->n_in)
            return refuse(t, "an open class");
        char c = t->in[t->at];
        if (c == ']')
            break;
        if (c == '[')
            s = refuse(t, "a class in a class");
        else if (next_is(t, "&&"))
            s = refuse(t, "\"&&\" in a class");
        else if (c == '\\')
            s = translate_escape(t, true);
        else
            s = translate_literal(t, true);
    }
    t->at++;
    t->last_literal = 0;
    return s ? s : emit(t, "]", 1);
}

static enum cld_status translate_group(struct translation *t)
{
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    const char *opening = "(";
    if (next_is(t, "(?")) {
        opening = NULL;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (next_is(t, known[i]))
                opening = known[i];
        if (!opening)
            return refuse(t, "group \"%.*s\"", (int)cld_min(t->n_in - t->at, 5), t->in + t->at);
    } else if (next_is(t, "(*")) {
        return refuse(t, "\"(*\"");
    }
    if (t->depth + 1 == MAX_DEPTH)
        return refuse(t, "deeper nesting than %d", MAX_DEPTH);
    t->depth++;
    t->caseless[t->depth] = t->caseless[t->depth - 1] || !strcmp(opening, "(?i:");
    t->at += strlen(opening);
    t->last_literal = 0;
    return emit_string(t, opening);
}

/* {n}, {n,} and {n,m}. What may follow differs: "{n}+" repeats the repetition in one engine and is
 * possessive in the other. */
static enum cld_status translate_interval(struct translation *t)
{
    size_t i = t->at + 1, n_digits = 0;
    for (; i < t->n_in && ((t->in[i] >= '0' && t->in[i] <= '9') || t->in[i] == ','); i++)
        n_digits += t->in[i] != ',';
    if (!n_digits || i >= t->n_in || t->in[i] != '}' || t->in[t->at + 1] == ',')
        return refuse(t, "\"{\" that is no interval");
    size_t n = i + 1 - t->at;
    enum cld_status s = emit(t, t->in + t->at, n);
    t->at += n;
    t->last_literal = 0;
    if (!s && (next_is(t, "+") || next_is(t, "?") || next_is(t, "*") || next_is(t, "{")))
        s = refuse(t, "\"%c\" after an interval", t->in[t->at]);
    return s;
}

static enum cld_status translate(struct translation *t)
{
    enum cld_status s = CLD_OK;
    while (!s && t->at < t->n_in) {
        char c = t->in[t->at];
        if (c == '\\') {
            s = translate_escape(t, false);
        } else if (c == '[') {
            s = translate_class(t);
        } else if (c == '(') {
            s = translate_group(t);
        } else if (c == '{') {
            s = translate_interval(t);
        } else if (c == '^' || c == '$') {
            s = refuse(t, "\"%c\"", c);
        } else if (c && strchr(")|*+?.", c)) { /* "." stops at \n only, see the compile context */
            if (c == ')' && !t->depth)
                return refuse(t, "\")\" without \"(\"");
            t->depth -= c == ')';
            t->last_literal = 0;
            t->at++;
            s = emit(t, &c, 1);
        } else {
            s = translate_literal(t, false);
        }
    }
    if (!s && t->depth)
        s = refuse(t, "an open group");
    return s;
}

/* ---- compilation and matching ---- */

void cld_regex_free(struct cld_regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    free(r);
}

static enum cld_status compile(const char *pattern, size_t n, uint32_t options, const char *shown,
                               size_t n_shown, struct cld_regex **out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int code = 0;
    PCRE2_SIZE at = 0;
    uint32_t may_be_empty = 0;
    struct cld_regex *r = calloc(1, sizeof *r);
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!r || !context) {
        s = cld_fail_memory(err, "compiling a pattern");
        goto done;
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR)pattern, n, options | PCRE2_UTF, &code, &at, context);
    if (!r->code) {
        PCRE2_UCHAR text[160];
        pcre2_get_error_message(code, text, sizeof text);
        s = cld_fail(err, CLD_E_INPUT,
                     "the tokenizer is damaged, or needs something that cldraft does not support; "
                     "download it again or use another target",
                     "pattern \"%.*s\" does not compile: %s", (int)cld_min(n_shown, 300), shown,
                     (const char *)text);
        goto done;
    }
    pcre2_pattern_info(r->code, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
    if (may_be_empty) {
        s = cld_fail(err, CLD_E_INPUT,
                     "the tokenizer is damaged, or needs something that cldraft does not support; "
                     "download it again or use another target",
                     "pattern \"%.*s\" can match the empty string, which is "
                     "not supported",
                     (int)cld_min(n_shown, 300), shown);
        goto done;
    }
    /* Where PCRE2 has no just-in-time compiler, its interpreter gives the same matches. */
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    *out = r;
    r = NULL;
done:
    pcre2_compile_context_free(context);
    cld_regex_free(r);
    return s;
}

enum cld_status cld_regex_new(const char *pattern, size_t n_bytes, struct cld_regex **out,
                              struct cld_error *err)
{
    *out = NULL;
    struct translation t = {.in = pattern, .n_in = n_bytes, .err = err};
    enum cld_status s = translate(&t);
    if (!s)
        s = compile(t.out, t.n_out, PCRE2_UCP, pattern, n_bytes, out, err);
    free(t.out);
    return s;
}

enum cld_status cld_regex_new_literal(const char *text, size_t n_bytes, struct cld_regex **out,
                                      struct cld_error *err)
{
    *out = NULL;
    return compile(text, n_bytes, PCRE2_LITERAL, text, n_bytes, out, err);
}

void cld_matcher_free(struct cld_matcher *m)
{
    if (!m)
        return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

enum cld_status cld_matcher_new(struct cld_matcher **out, struct cld_error *err)
{
    struct cld_matcher *m = calloc(1, sizeof *m);
    *out = NULL;
    if (m) {
        m->data = pcre2_match_data_create(1, NULL);
        m->context = pcre2_match_context_create(NULL);
        m->stack = pcre2_jit_stack_create((size_t)64 << 10, (size_t)64 << 20, NULL);
    }
    if (!m || !m->data || !m->context || !m->stack) {
        cld_matcher_free(m);
        return cld_fail_memory(err, "a pattern matcher");
    }
    pcre2_jit_stack_assign(m->context, NULL, m->stack);
    *out = m;
    return CLD_OK;
}

enum cld_status cld_regex_find(const struct cld_regex *r, struct cld_matcher *m, const char *text,
                               size_t n, size_t from, size_t *begin, size_t *end,
                               struct cld_error *err)
{
    int got =
        pcre2_match(r->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (got == PCRE2_ERROR_NOMATCH) {
        *begin = *end = n;
        return CLD_OK;
    }
    if (got < 0) {
        PCRE2_UCHAR message[160];
        pcre2_get_error_message(got, message, sizeof message);
        return cld_fail(err, CLD_E_INPUT, "split the text into shorter rows",
                        "the tokenizer's pattern gave up at byte %zu of %zu: %s", from, n,
                        (const char *)message);
    }
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(m->data);
    *begin = span[0];
    *end = span[1];
    return CLD_OK;
}
