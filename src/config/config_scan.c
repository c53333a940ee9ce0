#include "config/config_scan.h"

#include <ctype.h>
#include <iniparser.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/grow.h"
#include "base/utf8.h"

enum {
    MAX_FILE_BYTES = 1 << 20,
    MAX_LINE_BYTES = 1000, /* iniparser's buffer holds 1024, the line's end included */
    MAX_NAME_BYTES = 64
};

/* What a scan of one file carries along. `line` is a copy that is cut up in place. */
struct scan {
    const char *path;
    int line_number;
    const char *section; /* of the entry that opened it; NULL before the first */
    struct cld_config_entries *out;
    struct cld_error *err;
};

#define FAIL(scan, hint, ...) fail_at(scan, cld_fail((scan)->err, CLD_E_USAGE, hint, __VA_ARGS__))

static enum cld_status fail_at(struct scan *scan, enum cld_status s)
{
    cld_fail_prefix(scan->err, "%s:%d", scan->path, scan->line_number);
    return s;
}

static bool has_control(const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        if (((unsigned char)text[i] < 32 && text[i] != '\t') || text[i] == 127)
            return true;
    return false;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static char *skip_blanks(char *p)
{
    while (is_blank(*p))
        p++;
    return p;
}

/* Cuts the blanks off the end of the string that begins at `begin`. */
static void strip_end(char *begin)
{
    size_t n = strlen(begin);
    while (n && is_blank(begin[n - 1]))
        begin[--n] = 0;
}

/* Letters, digits, _ and what is in `also`. */
static bool is_name(const char *name, const char *also)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && name[i] != '_' && !strchr(also, name[i]))
            return false;
    return n && n <= MAX_NAME_BYTES;
}

enum cld_status cld_config_value_ok(const char *value, struct cld_error *err)
{
    size_t n = strlen(value);
    if (!n)
        return cld_fail(err, CLD_E_USAGE, "write a value, or leave the key out for its default",
                        "the value is empty");
    if (n > CLD_CONFIG_MAX_VALUE)
        return cld_fail(err, CLD_E_USAGE, "shorten the value",
                        "a value of %zu bytes; %d is the most", n, CLD_CONFIG_MAX_VALUE);
    if (cld_utf8_valid(value, n) < n || has_control(value, n) || strchr(value, '\t'))
        return cld_fail(err, CLD_E_USAGE, "save the file as UTF-8",
                        "the value is not UTF-8 or has control characters");
    if (strchr(value, '"'))
        return cld_fail(err, CLD_E_USAGE, "remove it: a value cannot contain a double quote",
                        "the value has a double quote in it");
    return CLD_OK;
}

/* Appends an entry; the strings are copied. */
static enum cld_status add(struct scan *scan, const char *section, const char *key)
{
    struct cld_config_entries *out = scan->out;
    enum cld_status s = cld_grow(&out->v, &out->capacity, out->n + 1, sizeof *out->v, scan->err);
    if (s)
        return s;
    out->v[out->n] = (struct cld_config_entry){
        .line = scan->line_number, .section = strdup(section), .key = strdup(key)};
    struct cld_config_entry *e = &out->v[out->n++];
    if (!e->section || !e->key)
        return cld_fail_memory(scan->err, "reading %s", scan->path);
    return CLD_OK;
}

static const struct cld_config_entry *find(const struct cld_config_entries *e, const char *section,
                                           const char *key)
{
    /* iniparser folds case, so two spellings of a name are one to it. */
    for (size_t i = 0; i < e->n; i++)
        if (!strcasecmp(e->v[i].section, section) && !strcasecmp(e->v[i].key, key))
            return &e->v[i];
    return NULL;
}

static enum cld_status scan_section(struct scan *scan, char *line)
{
    char *end = strchr(line, ']');
    if (!end)
        return FAIL(scan, "write [section]", "'[' without ']'");
    if (end[1])
        return FAIL(scan, "put the comment on a line of its own",
                    "text after the ']' of a section");
    *end = 0;
    if (!is_name(line + 1, ""))
        return FAIL(scan, "write [section], in lower-case letters", "'%.80s' is no section name",
                    line + 1);
    const struct cld_config_entry *first = find(scan->out, line + 1, "");
    if (first)
        return FAIL(scan, "put its keys together", "section [%s] is there twice, first in line %d",
                    line + 1, first->line);
    enum cld_status s = add(scan, line + 1, "");
    if (!s)
        scan->section = scan->out->v[scan->out->n - 1].section;
    return s;
}

/* Checks the text after the '=' of a line that iniparser will read. */
static enum cld_status scan_value(struct scan *scan, const char *key, char *value)
{
    if (*value == '"' || *value == '\'') {
        char *end = strchr(value + 1, *value);
        if (!end)
            return FAIL(scan, "close the quote on the same line", "%s: unclosed quote", key);
        char *rest = skip_blanks(end + 1);
        if (*rest && *rest != '#' && *rest != ';')
            return FAIL(scan, "put the whole value in one pair of quotes",
                        "%s: text after the closing quote", key);
        *end = 0;
        value++;
    } else {
        char *comment = value + strcspn(value, "#;");
        if (*comment && comment > value && !is_blank(comment[-1]))
            return FAIL(scan, "put the value in double quotes, or a blank before the comment",
                        "%s: '%c' would cut the value", key, *comment);
        *comment = 0;
        strip_end(value);
    }
    if (!*value)
        return FAIL(scan, "write a value, or leave the line out for the default", "%s has no value",
                    key);
    enum cld_status s = cld_config_value_ok(value, scan->err);
    if (s) {
        cld_fail_prefix(scan->err, "%s", key);
        fail_at(scan, s);
    }
    return s;
}

static enum cld_status scan_key(struct scan *scan, char *line)
{
    char *equals = strchr(line, '=');
    if (!equals)
        return FAIL(scan, "write key = value, [section] or # comment", "no '=' in '%.80s'", line);
    *equals = 0;
    strip_end(line);
    if (!is_name(line, "."))
        return FAIL(scan, "write key = value", "'%.80s' is no key name", line);
    if (!scan->section)
        return FAIL(scan, "put it below a line such as [train]", "key '%s' before any section",
                    line);
    const struct cld_config_entry *first = find(scan->out, scan->section, line);
    if (first)
        return FAIL(scan, "keep one of them", "key '%s' of [%s] is there twice, first%s in line %d",
                    line, scan->section, strcmp(first->key, line) ? " in other case" : "",
                    first->line);
    enum cld_status s = scan_value(scan, line, skip_blanks(equals + 1));
    return s ? s : add(scan, scan->section, line);
}

static enum cld_status scan_line(struct scan *scan, char *line, size_t n_bytes)
{
    if (n_bytes > MAX_LINE_BYTES)
        return FAIL(scan, "shorten it", "a line of %zu bytes; %d is the most", n_bytes,
                    MAX_LINE_BYTES);
    if (n_bytes && line[n_bytes - 1] == '\r')
        line[--n_bytes] = 0;
    if (n_bytes >= 3 && !memcmp(line, "\xef\xbb\xbf", 3))
        return FAIL(scan, "save the file as UTF-8 without BOM", "a byte order mark");
    if (cld_utf8_valid(line, n_bytes) < n_bytes)
        return FAIL(scan, "save the file as UTF-8", "not UTF-8");
    if (has_control(line, n_bytes))
        return FAIL(scan, "remove them", "control characters");
    line = skip_blanks(line);
    strip_end(line);
    size_t n = strlen(line);
    if (n && line[n - 1] == '\\')
        return FAIL(scan, "write the value on one line, in quotes if it ends so",
                    "a backslash at the end of a line");
    if (!n || *line == '#' || *line == ';')
        return CLD_OK;
    return *line == '[' ? scan_section(scan, line) : scan_key(scan, line);
}

static char complaint[256]; /* the first one of iniparser; main thread only */

static int keep_complaint(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!complaint[0])
        vsnprintf(complaint, sizeof complaint, fmt, ap);
    va_end(ap);
    return 0;
}

/* Second half: the values, as iniparser reads them. */
static enum cld_status read_values(const char *path, struct cld_config_entries *e,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    complaint[0] = 0;
    iniparser_set_error_callback(keep_complaint);
    dictionary *d = iniparser_load(path);
    iniparser_set_error_callback(NULL);
    if (!d)
        return cld_fail(
            err, CLD_E_USAGE,
            "write key = value lines below [section] lines; docs/config.md describes the form",
            "%s: not readable as INI: %s", path, complaint);
    for (size_t i = 0; i < e->n && !s; i++) {
        char name[2 * MAX_NAME_BYTES + 2];
        if (!*e->v[i].key)
            continue; /* a lookup of a bare section name gives NULL or crashes */
        snprintf(name, sizeof name, "%s:%s", e->v[i].section, e->v[i].key);
        const char *value = iniparser_getstring(d, name, NULL);
        if (!value)
            s = cld_fail(err, CLD_E_USAGE, "try again", "%s:%d: %s changed while it was read", path,
                         e->v[i].line, e->v[i].key);
        else if (!(e->v[i].value = strdup(value)))
            s = cld_fail_memory(err, "reading %s", path);
    }
    iniparser_freedict(d);
    return s;
}

enum cld_status cld_config_scan(const char *path, struct cld_config_entries *out,
                                struct cld_error *err)
{
    struct scan scan = {.path = path, .out = out, .err = err};
    char *text = NULL;
    size_t n_bytes = 0;
    *out = (struct cld_config_entries){0};
    enum cld_status s = cld_file_read(path, MAX_FILE_BYTES, &text, &n_bytes, err);
    if (s == CLD_E_INPUT)
        s = err->status = CLD_E_USAGE; /* to the user this file is a part of the command line */
    if (s)
        goto done;
    for (char *line = text, *end = text + n_bytes; line < end && !s;) {
        char *next = memchr(line, '\n', (size_t)(end - line));
        if (!next)
            next = end; /* there is a NUL byte to overwrite */
        *next = 0;
        scan.line_number++;
        s = scan_line(&scan, line, (size_t)(next - line));
        line = next + 1;
    }
    if (!s)
        s = read_values(path, out, err);
done:
    free(text);
    return s;
}

void cld_config_entries_free(struct cld_config_entries *e)
{
    if (!e)
        return;
    for (size_t i = 0; i < e->n; i++) {
        free(e->v[i].section);
        free(e->v[i].key);
        free(e->v[i].value);
    }
    free(e->v);
    *e = (struct cld_config_entries){0};
}
