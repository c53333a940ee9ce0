#include "config/config_sweep.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "config/config_table.h"
#include "config/config_value.h"

/* Values of one key at most. */
enum { max_values = 10000 };

static bool is_list(const struct cld_config_key *key)
{
    return key->max_n > 0;
}

static bool is_whole(const struct cld_config_key *key)
{
    return key->type == CLD_KEY_INT || key->type == CLD_KEY_SIZE;
}

/* --- the values ------------------------------------------------------------------------------- */

/* What a line of values is made of. */
struct line {
    const struct cld_config_key *key;
    const char *text; /* all of it, for messages */
    struct cld_text_list *out;
    size_t capacity; /* of out */
    struct cld_error *err;
};

static enum cld_status refuse(const struct line *l, const char *hint, const char *why)
{
    return cld_fail(l->err, CLD_E_USAGE, hint, "%s.%s = %.200s: %s", l->key->section, l->key->name,
                    l->text, why);
}

/* Takes one value: valid for the key by itself, and not there yet. */
static enum cld_status add(struct line *l, const char *value)
{
    struct cld_config scratch = {0};
    cld_config_value_open(&scratch, l->key);
    enum cld_status s = cld_config_value_set(&scratch, l->key, value, l->err);
    cld_config_value_free(&scratch, l->key);
    if (s)
        return s;
    for (size_t i = 0; i < l->out->n; i++)
        if (!strcmp(l->out->v[i], value))
            return refuse(l, "name each value once", "a value stands there twice");
    if (l->out->n == max_values)
        return refuse(l, "make the range coarser", "more than 10000 values");
    s = cld_grow(&l->out->v, &l->capacity, l->out->n + 1, sizeof *l->out->v, l->err);
    if (s)
        return s;
    if (!(l->out->v[l->out->n] = strdup(value)))
        return cld_fail_memory(l->err, "%s.%s", l->key->section, l->key->name);
    l->out->n++;
    return CLD_OK;
}

/* A number that is all of text[0..n). */
static bool read_number(const char *text, size_t n, double *to)
{
    char copy[64], *end;
    if (!n || n >= sizeof copy)
        return false;
    memcpy(copy, text, n);
    copy[n] = 0;
    /* strtod also takes blanks, hexadecimal, "inf" and "nan". */
    if (copy[strspn(copy, "0123456789+-.eE")])
        return false;
    *to = strtod(copy, &end);
    return end != copy && !*end && isfinite(*to);
}

static enum cld_status add_number(struct line *l, double v)
{
    char text[40];
    if (is_whole(l->key)) {
        snprintf(text, sizeof text, "%.0f", v);
        return add(l, text);
    }
    /* As many digits as people write by hand: steps of 0.1 add up to 0.3, not
     * 0.30000000000000004. */
    snprintf(text, sizeof text, "%.12g", v);
    return add(l, text);
}

/* FROM..TO*F or FROM..TO+STEP; `dots` is where the dots are. A plus after an e belongs to an
 * exponent.
 */
static enum cld_status add_range(struct line *l, const char *item, const char *dots)
{
    const char *hint = "write FROM..TO*FACTOR or FROM..TO+STEP, for example 1024..8192*2 or 1..9+2";
    const char *to = dots + 2, *sign = strrchr(to, '*');
    double first, last, step;
    enum cld_status s = CLD_OK;
    for (const char *p = to; *p && !sign; p++)
        if (*p == '+' && p > to && p[-1] != 'e' && p[-1] != 'E')
            sign = p;
    if (!sign)
        return refuse(l, hint, "a range without a step");
    if (!read_number(item, (size_t)(dots - item), &first) ||
        !read_number(to, (size_t)(sign - to), &last) ||
        !read_number(sign + 1, strlen(sign + 1), &step))
        return refuse(l, hint, "not a range");
    if (is_whole(l->key) && (first != floor(first) || step != floor(step)))
        return refuse(l, hint, "the key takes whole numbers");
    if (*sign == '*' ? step <= 1 || first <= 0 : step <= 0)
        return refuse(l, hint, "the range does not ascend");
    if (first > last)
        return refuse(l, hint, "an empty range");
    /* A hair more than TO: steps that are no binary fractions do not add up exactly. */
    double most = last + (is_whole(l->key) ? 0 : 1e-9 * fabs(last));
    for (size_t i = 0; !s; i++) {
        double v = *sign == '*' ? first * pow(step, (double)i) : first + step * (double)i;
        if (v > most)
            break;
        s = add_number(l, v);
    }
    return s;
}

static enum cld_status add_item(struct line *l, const char *item)
{
    bool number = is_whole(l->key) || l->key->type == CLD_KEY_REAL;
    const char *dots = number ? strstr(item, "..") : NULL;
    if (!*item)
        return refuse(l, "", "an empty value");
    return dots ? add_range(l, item, dots) : add(l, item);
}

enum cld_status cld_config_expand(const char *name, const char *text, struct cld_text_list *out,
                                  struct cld_error *err)
{
    struct line l = {.key = cld_config_key_named(name), .text = text, .out = out, .err = err};
    enum cld_status s = CLD_OK;
    *out = (struct cld_text_list){0};
    if (!l.key)
        return cld_fail(err, CLD_E_USAGE, "'cldraft help config' lists all keys",
                        "unknown key '%.80s'", name);
    char *copy = strdup(text);
    if (!copy)
        return cld_fail_memory(err, "the data of %s", name);
    for (char *rest = copy; rest && !s;) {
        char *item = rest, *cut = strchr(item, is_list(l.key) ? '|' : ',');
        rest = cut ? cut + 1 : NULL;
        if (cut)
            *cut = 0;
        item += strspn(item, " ");
        for (size_t n = strlen(item); n && item[n - 1] == ' '; n--)
            item[n - 1] = 0;
        s = add_item(&l, item);
    }
    free(copy);
    return s;
}

void cld_config_values_free(struct cld_text_list *values)
{
    for (size_t i = 0; i < values->n; i++)
        free(values->v[i]);
    free(values->v);
    *values = (struct cld_text_list){0};
}

/* --- the lines -------------------------------------------------------------------------------- */

static enum cld_status check_key(const char *name, struct cld_error *err)
{
    static const char *const fixed[] = {"sweep.", "log.", "run.dir"};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (!strncmp(name, fixed[i], strlen(fixed[i])))
            return cld_fail(err, CLD_E_USAGE, "give it one value, outside of [sweep]",
                            "%s changes no measurement", name);
    return CLD_OK;
}

enum cld_status cld_config_swept_set(struct cld_config *cfg, const char *name, const char *text,
                                     int origin, struct cld_error *err)
{
    struct cld_text_list values = {0};
    struct cld_swept_key *at = NULL;
    char *copy = NULL, *key = NULL;
    enum cld_status s = CLD_OK;
    if ((s = check_key(name, err)) || (s = cld_config_expand(name, text, &values, err)))
        goto done;
    copy = strdup(text);
    key = strdup(name);
    for (size_t i = 0; i < cfg->swept.n; i++)
        if (!strcmp(cfg->swept.v[i].name, name))
            at = &cfg->swept.v[i];
    if (!copy || !key) {
        s = cld_fail_memory(err, "the data of %s", name);
        goto done;
    }
    if (!at) {
        struct cld_swept_list *list = &cfg->swept;
        if ((s = cld_grow(&list->v, &list->capacity, list->n + 1, sizeof *list->v, err)))
            goto done;
        at = &list->v[list->n++];
        *at = (struct cld_swept_key){0};
    }
    free(at->name);
    free(at->text);
    *at = (struct cld_swept_key){key, copy, origin};
    copy = key = NULL;
done:
    cld_config_values_free(&values);
    free(copy);
    free(key);
    return s;
}

void cld_config_swept_free(struct cld_config *cfg)
{
    for (size_t i = 0; i < cfg->swept.n; i++) {
        free(cfg->swept.v[i].name);
        free(cfg->swept.v[i].text);
    }
    free(cfg->swept.v);
    cfg->swept = (struct cld_swept_list){0};
}
