#include "config/config_value.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/old_names.h"
#include "base/size.h"
#include "config/config_scan.h"

static void *field_of(struct cld_config *cfg, const struct cld_config_key *key)
{
    return (char *)cfg + key->offset;
}

static const void *const_field_of(const struct cld_config *cfg, const struct cld_config_key *key)
{
    return (const char *)cfg + key->offset;
}

static size_t field_bytes(const struct cld_config_key *key)
{
    switch (key->type) {
    case CLD_KEY_BOOL:
        return sizeof(bool);
    case CLD_KEY_INT:
        return sizeof(int64_t);
    case CLD_KEY_SIZE:
        return sizeof(size_t);
    case CLD_KEY_REAL:
        return sizeof(double);
    case CLD_KEY_TEXT:
    case CLD_KEY_PATH:
        return sizeof(char *);
    case CLD_KEY_ENUM:
        return sizeof(int);
    case CLD_KEY_SIZES:
        return sizeof(struct cld_size_list);
    case CLD_KEY_REALS:
        return sizeof(struct cld_real_list);
    case CLD_KEY_TEXTS:
        return sizeof(struct cld_text_list);
    case CLD_KEY_ENUMS:
        return sizeof(struct cld_enum_list);
    case CLD_KEY_SHAPES:
        return sizeof(struct cld_shape_list);
    }
    return 0;
}

/* ---- what a key takes ---- */

static void describe_range(const struct cld_config_key *key, FILE *to)
{
    fprintf(to, ", %s %.16g", key->above_min ? "above" : "from", key->min);
    fprintf(to, " %s %.16g", key->below_max ? "to below" : "to", key->max);
    if (key->unit && *key->unit)
        fprintf(to, " %s", key->unit);
}

static void describe_names(const struct cld_config_key *key, FILE *to)
{
    for (size_t i = 0; key->names[i]; i++)
        fprintf(to, "%s%s", i ? ", " : "", key->names[i]);
}

void cld_config_value_describe(const struct cld_config_key *key, FILE *to)
{
    if (key->word)
        fprintf(to, "%s, or ", key->word);
    if (key->max_n && key->min_n == key->max_n)
        fprintf(to, "list of %zu: ", key->max_n);
    else if (key->max_n)
        fprintf(to, "list of %zu to %zu: ", key->min_n, key->max_n);
    switch (key->type) {
    case CLD_KEY_BOOL:
        fputs("yes or no", to);
        break;
    case CLD_KEY_INT:
    case CLD_KEY_SIZE:
    case CLD_KEY_SIZES:
        fputs("whole number", to);
        describe_range(key, to);
        break;
    case CLD_KEY_REAL:
    case CLD_KEY_REALS:
        fputs("number", to);
        describe_range(key, to);
        break;
    case CLD_KEY_TEXT:
    case CLD_KEY_TEXTS:
        fputs("text", to);
        break;
    case CLD_KEY_PATH:
        fputs("path", to);
        break;
    case CLD_KEY_ENUM:
    case CLD_KEY_ENUMS:
        fputs("one of ", to);
        describe_names(key, to);
        break;
    case CLD_KEY_SHAPES:
        fputs("MxNxK", to);
        describe_range(key, to);
        break;
    }
}

/* ---- text to value ---- */

static enum cld_status refuse(const struct cld_config_key *key, const char *text, const char *why,
                              struct cld_error *err)
{
    char hint[sizeof err->hint] = "";
    FILE *to = fmemopen(hint, sizeof hint, "w");
    if (to) {
        fprintf(to, "%s.%s accepts: ", key->section, key->name);
        cld_config_value_describe(key, to);
        fclose(to);
    }
    return cld_fail(err, CLD_E_USAGE, hint, "%s.%s = %.200s: %s", key->section, key->name, text,
                    why);
}

static bool in_range(const struct cld_config_key *key, double value)
{
    return (key->above_min ? value > key->min : value >= key->min) &&
           (key->below_max ? value < key->max : value <= key->max);
}

/* Decimal digits alone, without leading zeros, which some readers take for octal. Writes the number
 * to *to; `end` receives the first character that is not part of it. */
static bool read_whole(const char *text, const char **end, int64_t *to)
{
    size_t n = strspn(text, "0123456789");
    if (!n || (n > 1 && *text == '0'))
        return false;
    errno = 0;
    *to = strtoll(text, NULL, 10);
    *end = text + n;
    return !errno;
}

typedef enum cld_status parse_fn(const struct cld_config_key *key, const char *text, void *to,
                                 struct cld_error *err);

static enum cld_status parse_bool(const struct cld_config_key *key, const char *text, void *to,
                                  struct cld_error *err)
{
    bool yes = !strcmp(text, "yes") || !strcmp(text, "true");
    if (!yes && strcmp(text, "no") && strcmp(text, "false"))
        return refuse(key, text, "neither yes nor no", err);
    *(bool *)to = yes;
    return CLD_OK;
}

static enum cld_status parse_integer(const struct cld_config_key *key, const char *text, void *to,
                                     struct cld_error *err)
{
    const char *end;
    int64_t value = 0;
    bool negative = *text == '-';
    if (!read_whole(text + negative, &end, &value) || *end)
        return refuse(key, text, "not a whole number", err);
    if (!in_range(key, negative ? -(double)value : (double)value))
        return refuse(key, text, "out of range", err);
    *(int64_t *)to = negative ? -value : value;
    return CLD_OK;
}

static enum cld_status parse_size(const struct cld_config_key *key, const char *text, void *to,
                                  struct cld_error *err)
{
    int64_t value = 0;
    enum cld_status s = parse_integer(key, text, &value, err);
    if (!s)
        *(size_t *)to = (size_t)value; /* the table's ranges are not negative */
    return s;
}

static enum cld_status parse_real(const struct cld_config_key *key, const char *text, void *to,
                                  struct cld_error *err)
{
    char *end;
    double value = strtod(text, &end);
    /* strtod also takes blanks, hexadecimal, "inf" and "nan". */
    if (end == text || text[strspn(text, "0123456789+-.eE")] || *end)
        return refuse(key, text, "not a number", err);
    if (!in_range(key, value))
        return refuse(key, text, "out of range", err);
    *(double *)to = value;
    return CLD_OK;
}

static enum cld_status parse_text(const struct cld_config_key *key, const char *text, void *to,
                                  struct cld_error *err)
{
    if (key->type == CLD_KEY_PATH && *text == '~')
        return refuse(key, text, "'~' is not expanded here; write the directory out", err);
    char *copy = strdup(text);
    if (!copy)
        return cld_fail_memory(err, "%s.%s", key->section, key->name);
    *(char **)to = copy;
    return CLD_OK;
}

static int find_name(const struct cld_config_key *key, const char *text)
{
    int i = 0;
    while (key->names[i] && strcmp(key->names[i], text))
        i++;
    return key->names[i] ? i : -1;
}

static enum cld_status parse_name(const struct cld_config_key *key, const char *text, void *to,
                                  struct cld_error *err)
{
    char name[2 * CLD_NAME_BYTES], now[CLD_NAME_BYTES];
    int i = find_name(key, text);
    snprintf(name, sizeof name, "%s.%s", key->section, key->name);
    if (i < 0 && cld_old_name(CLD_NAME_VALUE, name, text, now))
        i = find_name(key, now);
    if (i < 0)
        return refuse(key, text, "unknown name", err);
    memcpy(to, &i, sizeof i);
    return CLD_OK;
}

/* As enum cld_gemm_kind counts them. */
static const char *const shape_kinds[] = {"NT:", "NN:", "TN:"};

static enum cld_status parse_shape(const struct cld_config_key *key, const char *text, void *to,
                                   struct cld_error *err)
{
    int64_t v[3];
    int kind = -1;
    const char *p = text;
    for (int i = 0; i < 3 && kind < 0; i++)
        if (!strncmp(text, shape_kinds[i], 3))
            kind = i;
    p += kind < 0 ? 0 : 3;
    for (int i = 0; i < 3; i++) {
        if (!read_whole(p, &p, &v[i]) || *p != (i < 2 ? 'x' : 0))
            return refuse(key, text, "not of the form MxNxK", err);
        if (!in_range(key, (double)v[i]))
            return refuse(key, text, "out of range", err);
        p++;
    }
    *(struct cld_shape *)to = (struct cld_shape){(size_t)v[0], (size_t)v[1], (size_t)v[2], kind};
    return CLD_OK;
}

/* Cuts `text` at its commas in place, without the blanks around the items. */
static char *next_item(char **rest)
{
    char *item = *rest, *comma = strchr(item, ',');
    *rest = comma ? comma + 1 : NULL;
    if (comma)
        *comma = 0;
    while (*item == ' ')
        item++;
    size_t n = strlen(item);
    while (n && item[n - 1] == ' ')
        item[--n] = 0;
    return item;
}

/* Parses the items of a list into a new array. Items of char * are the caller's to free, in the
 * failed case too: *n counts those that were made. */
static enum cld_status parse_list(const struct cld_config_key *key, const char *text,
                                  parse_fn *parse, size_t item_bytes, void *items, size_t *n,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *copy = strdup(text), *array = calloc(key->max_n, item_bytes);
    memcpy(items, &array, sizeof array);
    *n = 0;
    if (!copy || !array) {
        s = cld_fail_memory(err, "%s.%s", key->section, key->name);
        goto done;
    }
    for (char *rest = copy; rest;) {
        char *item = next_item(&rest);
        if (!*item)
            s = refuse(key, text, "an empty item", err);
        else if (*n == key->max_n)
            s = refuse(key, text, "too many items", err);
        else
            s = parse(key, item, array + *n * item_bytes, err);
        if (s)
            goto done;
        ++*n;
    }
    if (*n < key->min_n)
        s = refuse(key, text, "too few items", err);
done:
    free(copy);
    return s;
}

static enum cld_status parse(struct cld_config *cfg, const struct cld_config_key *key,
                             const char *text, struct cld_error *err)
{
    void *field = field_of(cfg, key);
    switch (key->type) {
    case CLD_KEY_BOOL:
        return parse_bool(key, text, field, err);
    case CLD_KEY_INT:
        return parse_integer(key, text, field, err);
    case CLD_KEY_SIZE:
        return parse_size(key, text, field, err);
    case CLD_KEY_REAL:
        return parse_real(key, text, field, err);
    case CLD_KEY_TEXT:
    case CLD_KEY_PATH:
        return parse_text(key, text, field, err);
    case CLD_KEY_ENUM:
        return parse_name(key, text, field, err);
    case CLD_KEY_SIZES: {
        struct cld_size_list *l = field;
        return parse_list(key, text, parse_size, sizeof *l->v, &l->v, &l->n, err);
    }
    case CLD_KEY_REALS: {
        struct cld_real_list *l = field;
        return parse_list(key, text, parse_real, sizeof *l->v, &l->v, &l->n, err);
    }
    case CLD_KEY_TEXTS: {
        struct cld_text_list *l = field;
        return parse_list(key, text, parse_text, sizeof *l->v, &l->v, &l->n, err);
    }
    case CLD_KEY_ENUMS: {
        struct cld_enum_list *l = field;
        return parse_list(key, text, parse_name, sizeof *l->v, &l->v, &l->n, err);
    }
    case CLD_KEY_SHAPES: {
        struct cld_shape_list *l = field;
        return parse_list(key, text, parse_shape, sizeof *l->v, &l->v, &l->n, err);
    }
    }
    return cld_fail(err, CLD_E_INTERNAL, "", "%s.%s has no type", key->section, key->name);
}

enum cld_status cld_config_value_set(struct cld_config *cfg, const struct cld_config_key *key,
                                     const char *text, struct cld_error *err)
{
    /* The value is made in a configuration of its own and moved when it is complete. */
    struct cld_config fresh = {0};
    cld_config_value_open(&fresh, key);
    enum cld_status s = cld_config_value_ok(text, err);
    if (s)
        cld_fail_prefix(err, "%s.%s", key->section, key->name);
    else if (!key->word || strcmp(text, key->word))
        s = parse(&fresh, key, text, err);
    if (s) {
        cld_config_value_free(&fresh, key);
        return s;
    }
    cld_config_value_free(cfg, key);
    memcpy(field_of(cfg, key), field_of(&fresh, key), field_bytes(key));
    return CLD_OK;
}

/* ---- life of a field ---- */

void cld_config_value_open(struct cld_config *cfg, const struct cld_config_key *key)
{
    memset(field_of(cfg, key), 0, field_bytes(key));
    if (key->type == CLD_KEY_INT)
        *(int64_t *)field_of(cfg, key) = -1;
}

bool cld_config_value_is_open(const struct cld_config *cfg, const struct cld_config_key *key)
{
    struct cld_config open;
    if (!key->word && key->default_text)
        return false;
    cld_config_value_open(&open, key);
    /* An open list has no items and no array, so equal bytes are equal values for every type. */
    return !memcmp(const_field_of(cfg, key), const_field_of(&open, key), field_bytes(key));
}

void cld_config_value_free(struct cld_config *cfg, const struct cld_config_key *key)
{
    void *field = field_of(cfg, key);
    switch (key->type) {
    case CLD_KEY_BOOL:
    case CLD_KEY_INT:
    case CLD_KEY_SIZE:
    case CLD_KEY_REAL:
    case CLD_KEY_ENUM:
        break;
    case CLD_KEY_TEXT:
    case CLD_KEY_PATH:
        free(*(char **)field);
        break;
    case CLD_KEY_SIZES:
        free(((struct cld_size_list *)field)->v);
        break;
    case CLD_KEY_REALS:
        free(((struct cld_real_list *)field)->v);
        break;
    case CLD_KEY_TEXTS: {
        struct cld_text_list *l = field;
        for (size_t i = 0; i < l->n; i++)
            free(l->v[i]);
        free(l->v);
        break;
    }
    case CLD_KEY_ENUMS:
        free(((struct cld_enum_list *)field)->v);
        break;
    case CLD_KEY_SHAPES:
        free(((struct cld_shape_list *)field)->v);
        break;
    }
    cld_config_value_open(cfg, key);
}

/* ---- value to text ---- */

/* The shortest decimal that reads back to the same double. */
static void print_real(double value, FILE *to)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    fputs(text, to);
}

static void print_list(const struct cld_config_key *key, const void *field, FILE *to)
{
    const struct cld_size_list *sizes = field;
    const struct cld_real_list *reals = field;
    const struct cld_text_list *texts = field;
    const struct cld_enum_list *names = field;
    const struct cld_shape_list *shapes = field;
    for (size_t i = 0, n = sizes->n; i < n; i++) { /* `n` is the first member of all of them */
        if (i)
            fputc(',', to);
        if (key->type == CLD_KEY_SIZES)
            fprintf(to, "%zu", sizes->v[i]);
        else if (key->type == CLD_KEY_REALS)
            print_real(reals->v[i], to);
        else if (key->type == CLD_KEY_TEXTS)
            fputs(texts->v[i], to);
        else if (key->type == CLD_KEY_ENUMS)
            fputs(key->names[names->v[i]], to);
        else
            fprintf(to, "%s%zux%zux%zu",
                    shapes->v[i].kind < 0 ? "" : shape_kinds[shapes->v[i].kind], shapes->v[i].m,
                    shapes->v[i].n, shapes->v[i].k);
    }
}

void cld_config_value_print(const struct cld_config *cfg, const struct cld_config_key *key,
                            FILE *to)
{
    const void *field = const_field_of(cfg, key);
    if (cld_config_value_is_open(cfg, key)) {
        if (key->word)
            fputs(key->word, to);
        return;
    }
    switch (key->type) {
    case CLD_KEY_BOOL:
        fputs(*(const bool *)field ? "yes" : "no", to);
        break;
    case CLD_KEY_INT:
        fprintf(to, "%lld", (long long)*(const int64_t *)field);
        break;
    case CLD_KEY_SIZE:
        fprintf(to, "%zu", *(const size_t *)field);
        break;
    case CLD_KEY_REAL:
        print_real(*(const double *)field, to);
        break;
    case CLD_KEY_TEXT:
    case CLD_KEY_PATH:
        fputs(*(char *const *)field, to);
        break;
    case CLD_KEY_ENUM:
        fputs(key->names[*(const unsigned *)field], to);
        break;
    case CLD_KEY_SIZES:
    case CLD_KEY_REALS:
    case CLD_KEY_TEXTS:
    case CLD_KEY_ENUMS:
    case CLD_KEY_SHAPES:
        print_list(key, field, to);
        break;
    }
}
