#include "formats/json_lenient.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum { FLAGS = JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES | JSON_DECODE_ANY };

/* Bytes of NaN, Infinity or -Infinity at `at`; 0: none of them. */
static size_t word(const char *at, const char *end)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(end - at) >= n && !memcmp(at, words[i], n) &&
            !(at + n < end && isalnum((unsigned char)at[n])))
            return n;
    }
    return 0;
}

/* Bytes of a number of JSON at `at`, 0: none; *whole: without point and exponent. */
static size_t number(const char *at, const char *end, bool *whole)
{
    const char *p = at + (at < end && *at == '-');
    const char *digits = p;
    *whole = true;
    while (p < end && isdigit((unsigned char)*p))
        p++;
    if (p == digits || (*digits == '0' && p - digits > 1))
        return 0;
    if (p + 1 < end && *p == '.' && isdigit((unsigned char)p[1])) {
        *whole = false;
        for (p++; p < end && isdigit((unsigned char)*p);)
            p++;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        const char *e = p + 1 + (p + 1 < end && (p[1] == '+' || p[1] == '-'));
        if (e >= end || !isdigit((unsigned char)*e))
            return 0;
        *whole = false;
        for (p = e; p < end && isdigit((unsigned char)*p);)
            p++;
    }
    return (size_t)(p - at);
}

/* Is the number at `at` [n] one that does not fit? The text goes on after it. */
static bool too_long(const char *at, bool whole)
{
    errno = 0;
    if (whole)
        (void)strtoll(at, NULL, 10);
    else if (!isinf(strtod(at, NULL)))
        errno = 0;
    return errno == ERANGE;
}

static size_t skip_string(const char *at, const char *end)
{
    const char *p = at + 1;
    while (p < end && *p != '"')
        p += *p == '\\' && p + 1 < end ? 2 : 1;
    return (size_t)(p < end ? p + 1 - at : end - at);
}

/* The text with each number that cannot be read as a text; malloc'd, NUL-terminated. NULL: nothing
 * to change, or no memory. */
static char *repair(const char *text, size_t n, size_t *n_out)
{
    static const char open[] = "\"\\u0000";
    size_t n_changed = 0, at = 0;
    /* The shortest that is replaced has 3 bytes and grows by 8. */
    char *to = malloc(cld_add(cld_mul(n, 4), 16));
    for (const char *p = text, *end = text + n; to && p < end;) {
        bool whole = true;
        size_t len = *p == '"' ? skip_string(p, end) : 1, n_word = 0, n_number = 0;
        if (*p == '-' || *p == 'N' || *p == 'I' || isdigit((unsigned char)*p)) {
            n_word = word(p, end);
            n_number = n_word ? 0 : number(p, end, &whole);
            len = n_word ? n_word : cld_max(1, n_number);
        }
        bool lost = n_word || (n_number && too_long(p, whole));
        if (lost) {
            memcpy(to + at, open, sizeof open - 1);
            at += sizeof open - 1;
        }
        memcpy(to + at, p, len);
        at += len;
        if (lost)
            to[at++] = '"';
        n_changed += lost;
        p += len;
    }
    if (to)
        to[at] = '\0';
    *n_out = at;
    if (n_changed)
        return to;
    free(to);
    return NULL;
}

json_t *cld_json_lenient(const char *text, size_t n, bool *repaired, json_error_t *where)
{
    json_t *value = json_loadb(text, n, FLAGS, where);
    size_t n_again = 0;
    *repaired = false;
    char *again = value ? NULL : repair(text, n, &n_again);
    if (again) {
        value = json_loadb(again, n_again, FLAGS, where);
        *repaired = value != NULL;
    }
    free(again);
    return value;
}

const char *cld_json_lost_text(const json_t *value)
{
    const char *text = json_string_value(value);
    return text && json_string_length(value) > 1 && !text[0] ? text + 1 : NULL;
}

bool cld_json_is_lost(const json_t *value)
{
    const char *key;
    json_t *v;
    size_t i;
    if (cld_json_lost_text(value))
        return true;
    json_array_foreach (value, i, v)
        if (cld_json_is_lost(v))
            return true;
    json_object_foreach ((json_t *)(uintptr_t)value, key, v)
        if (cld_json_is_lost(v))
            return true;
    return false;
}
