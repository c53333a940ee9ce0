#include "opencl/ptx.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char mark[] = "//WG ";
static const char hint[] =
    "use the portable kernels on this driver (the PTX path can be turned off)";

/* The oldest PTX that knows every instruction in marked lines of our kernels
 * (tensormap.replace: 8.3). */
enum { oldest_major = 8, oldest_minor = 3 };

/* A cursor over the text, line by line. */
struct line {
    const char *at, *end; /* without the newline */
    size_t number;
};

static bool next_line(struct line *l, const char *end)
{
    const char *begin = l->number ? l->end + 1 : l->at;
    if (begin >= end)
        return false;
    const char *newline = memchr(begin, '\n', (size_t)(end - begin));
    *l = (struct line){begin, newline ? newline : end, l->number + 1};
    return true;
}

static const char *skip_blanks(const struct line *l)
{
    const char *p = l->at;
    while (p < l->end && (*p == ' ' || *p == '\t' || *p == '\r'))
        p++;
    return p;
}

/* What follows `word` and blanks at p, or NULL. */
static const char *after_word(const char *p, const char *end, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(end - p) < n || memcmp(p, word, n))
        return NULL;
    p += n;
    if (p < end && *p != ' ' && *p != '\t')
        return NULL;
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    return p;
}

static const char *find(const char *from, const char *end, const char *what)
{
    size_t n = strlen(what);
    for (; (size_t)(end - from) >= n; from++)
        if (!memcmp(from, what, n))
            return from;
    return NULL;
}

/* The word at p, up to a blank, a comma or the end of the line. */
static void copy_word(const char *p, const char *end, char *to, size_t n_bytes)
{
    size_t n = 0;
    while (p + n < end && !strchr(" \t\r,", p[n]) && n + 1 < n_bytes)
        n++;
    memcpy(to, p, n);
    to[n] = '\0';
}

/* "sm_90a" is a variant of "sm_90". */
static bool is_base(const char *target, const char *base)
{
    size_t n = strlen(target);
    return n > 4 && strlen(base) == n - 1 && !strncmp(target, base, n - 1);
}

static enum cld_status read_header(const char *text, const char *end,
                                   const struct cld_ptx_change *change,
                                   struct cld_ptx_report *report, struct cld_error *err)
{
    int major = 0, minor = 0;
    struct line l = {text, text, 0};
    while (next_line(&l, end)) {
        const char *p = skip_blanks(&l), *value = NULL;
        if (!report->version[0] && (value = after_word(p, l.end, ".version")))
            copy_word(value, l.end, report->version, sizeof report->version);
        else if (!report->from[0] && (value = after_word(p, l.end, ".target")))
            copy_word(value, l.end, report->from, sizeof report->from);
    }
    if (sscanf(report->version, "%d.%d", &major, &minor) != 2)
        return cld_fail(err, CLD_E_DEVICE, hint, "program text has no .version: not PTX");
    if (!report->from[0])
        return cld_fail(err, CLD_E_DEVICE, hint, "program text has no .target");
    snprintf(report->to, sizeof report->to, "%s", change->target ? change->target : report->from);
    if (!change->target)
        return CLD_OK;
    if (major < oldest_major || (major == oldest_major && minor < oldest_minor))
        return cld_fail(err, CLD_E_DEVICE, hint, "program text is PTX %s; %s needs %d.%d or later",
                        report->version, change->target, oldest_major, oldest_minor);
    if (!is_base(change->target, report->from))
        return cld_fail(err, CLD_E_DEVICE, hint,
                        "program text is for %s, which is not the base of %s", report->from,
                        change->target);
    return CLD_OK;
}

/* The bytes of the array in local memory that a line declares (".shared .align 1024 .b8 name[N];"),
 * with the text of N from *digits up to *rest; 0 for all other lines. */
static size_t shared_bytes(const struct line *l, const char **digits, const char **rest)
{
    const char *p = after_word(skip_blanks(l), l->end, ".shared");
    const char *open = p ? find(p, l->end, "[") : NULL;
    size_t n = 0;
    if (!open || !find(p, open, ".b8 "))
        return 0;
    *digits = open + 1;
    for (p = *digits; p < l->end && *p >= '0' && *p <= '9' && n < SIZE_MAX / 16; p++)
        n = 10 * n + (size_t)(*p - '0');
    *rest = p;
    return p < l->end && *p == ']' ? n : 0;
}

/* The line that declares the largest array in local memory. */
static enum cld_status find_largest(const char *text, const char *end, size_t *line,
                                    struct cld_ptx_report *report, struct cld_error *err)
{
    struct line l = {text, text, 0};
    size_t n_largest = 0;
    while (next_line(&l, end)) {
        const char *digits = NULL, *rest = NULL;
        size_t n = shared_bytes(&l, &digits, &rest);
        if (n > report->local_from) {
            report->local_from = n;
            *line = l.number;
            n_largest = 1;
        } else if (n && n == report->local_from) {
            n_largest++;
        }
    }
    if (n_largest != 1)
        return cld_fail(err, CLD_E_DEVICE, hint,
                        "the program text has %zu largest arrays in local memory (of %zu bytes), "
                        "not one",
                        n_largest, report->local_from);
    return CLD_OK;
}

/* Copies a line with its mark blanked or its target replaced. */
static enum cld_status put_line(FILE *to, const struct line *l, const struct cld_ptx_change *change,
                                struct cld_ptx_report *report, struct cld_error *err)
{
    const char *p = skip_blanks(l), *found = find(l->at, l->end, mark), *value = NULL;
    if (found && found != p)
        return cld_fail(err, CLD_E_DEVICE, hint,
                        "line %zu of the program text has a mark after other text", l->number);
    if (found) {
        report->n_uncommented++;
        fwrite(l->at, 1, (size_t)(p - l->at), to);
        p += sizeof mark - 1;
    } else if (change->target && (value = after_word(p, l->end, ".target"))) {
        fwrite(l->at, 1, (size_t)(value - l->at), to);
        fputs(report->to, to);
        p = value + strlen(report->from);
    } else {
        p = l->at;
    }
    fwrite(p, 1, (size_t)(l->end - p), to);
    return CLD_OK;
}

/* A kernel is ".entry name(parameters) directives { body }"; a limit is a directive. The brace that
 * opens the body is the first one, and it stands at the begin of its line. */
static enum cld_status put_lines(FILE *to, const char *text, const char *end,
                                 const struct cld_ptx_change *change, struct cld_ptx_report *report,
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    bool in_head = false;
    size_t largest = 0; /* line of the array that gets another size */
    struct line l = {text, text, 0};
    if (change->local_bytes && (s = find_largest(text, end, &largest, report, err)))
        return s;
    while (!s && next_line(&l, end)) {
        const char *p = skip_blanks(&l);
        const char *comment = find(l.at, l.end, "//");
        if (find(l.at, comment ? comment : l.end, ".entry ")) {
            report->n_kernels++;
            in_head = true;
        } else if (in_head && p < l.end && *p == '{') {
            if (change->max_registers) {
                fprintf(to, ".maxnreg %u\n", change->max_registers);
                report->n_capped++;
            }
            in_head = false;
        }
        const char *digits = NULL, *rest = NULL;
        if (l.number == largest && shared_bytes(&l, &digits, &rest))
            fprintf(to, "%.*s%zu%.*s", (int)(digits - l.at), l.at, change->local_bytes,
                    (int)(l.end - rest), rest);
        else
            s = put_line(to, &l, change, report, err);
        if (l.end < end)
            fputc('\n', to);
    }
    if (!s && in_head)
        s = cld_fail(err, CLD_E_DEVICE, hint, "a kernel of the program text has no body");
    return s;
}

enum cld_status cld_ptx_change(const char *text, size_t n_bytes,
                               const struct cld_ptx_change *change, char **out, size_t *n_out,
                               struct cld_ptx_report *report, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    FILE *f = NULL;
    *out = NULL;
    *n_out = 0;
    *report = (struct cld_ptx_report){0};
    while (n_bytes && !text[n_bytes - 1])
        n_bytes--;
    if (!n_bytes || memchr(text, '\0', n_bytes))
        return cld_fail(err, CLD_E_DEVICE, hint, "the driver's program is %s: not PTX",
                        n_bytes ? "binary" : "empty");
    const char *end = text + n_bytes;
    if ((s = read_header(text, end, change, report, err)))
        return s;
    if (!(f = open_memstream(out, n_out)))
        return cld_fail_memory(err, "%zu bytes of program text", n_bytes);
    s = put_lines(f, text, end, change, report, err);
    if (fclose(f) && !s)
        s = cld_fail_memory(err, "%zu bytes of program text", n_bytes);
    if (!s && !report->n_kernels)
        s = cld_fail(err, CLD_E_DEVICE, hint, "the program text holds no kernel");
    if (!s && !change->target != !report->n_uncommented)
        s = cld_fail(err, CLD_E_DEVICE, "report it",
                     "the program text has %zu marked instructions for target %s",
                     report->n_uncommented, report->to);
    if (s) {
        free(*out);
        *out = NULL;
        *n_out = 0;
    }
    return s;
}
