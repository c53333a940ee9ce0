/* check_golden.c - verdicts of a matrix in a file, and what has changed since.
 *
 * {"format": 2, "columns": {"PLATFORM, DEVICE: PATH": {
 *   "platform": "...", "device": "...", "path": "...", "driver": "...", "version": "0.1.0",
 *   "date": "2026-11-30", "quirks": ["..."], "limit": 0, "why": "...",
 *   "operations": {"rmsnorm cpu f32": {"passed": 18, "others": {"CASE": {
 *     "verdict": "FAIL", "why": "..."}}}}}}}
 * Cases that pass are many and are only counted. An operation that is unsupported as a whole is the
 * case "". */
#include "check/check_matrix.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "formats/json_fields.h"

enum { golden_format = 2 };

static const char *text_at(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

/* The object `key` of `parent`, made if it is not there; NULL without memory. */
static json_t *object_at(json_t *parent, const char *key)
{
    json_t *o = json_object_get(parent, key);
    if (!o && json_object_set_new(parent, key, json_object()) == 0)
        o = json_object_get(parent, key);
    return o;
}

/* --- what a matrix says: every case by name --------------------------------------------------- */

/* A name that stands twice has failed if one of its cases has. */
static int put_verdict(json_t *operations, const struct cld_check_result *r)
{
    char key[80];
    snprintf(key, sizeof key, "%s %s %s", r->op, cld_kernel_family_name(r->family),
             r->storage == CLD_BF16 ? "bf16" : "f32");
    json_t *cases = object_at(operations, key);
    if (r->verdict != CLD_CHECK_FAILED && json_object_get(cases, r->name))
        return 0;
    return json_object_set_new(
        cases, r->name,
        json_pack("{s:s, s:s}", "verdict", cld_check_verdict_name(r->verdict), "why", r->why));
}

static json_t *quirks_of(const struct cld_check_column *c)
{
    json_t *names = json_array();
    const struct cld_quirk_info *q;
    for (size_t i = 0; (q = cld_quirk_at(i)); i++)
        if (cld_quirk_fits(q, c->platform, c->platform_version, c->driver))
            json_array_append_new(names, json_string(q->name));
    return names;
}

/* What is said of a column as a whole. */
static json_t *column_of(const struct cld_check_column *c)
{
    char date[16];
    struct tm tm;
    time_t now = time(NULL);
    gmtime_r(&now, &tm);
    strftime(date, sizeof date, "%Y-%m-%d", &tm);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:I, s:s, s:{}}", "platform", c->platform,
                     "device", c->device, "path", c->path, "driver", c->driver, "version",
                     CLD_VERSION, "date", date, "quirks", quirks_of(c), "limit",
                     (json_int_t)c->max_elems, "why", c->why, "operations");
}

static json_t *verdicts_of(const struct cld_check_matrix *m)
{
    json_t *columns = json_object();
    int failed = !columns;
    for (size_t c = 0; c < m->n_columns && !failed; c++) {
        const struct cld_check_column *from = &m->columns[c];
        char *name = cld_format("%s, %s: %s", from->platform, from->device, from->path);
        json_t *column = column_of(from), *operations = json_object_get(column, "operations");
        failed = !name || !operations || json_object_set_new(columns, name, column);
        for (size_t i = from->first; i < from->first + from->n && !failed; i++)
            failed = put_verdict(operations, &m->results.at[i]);
        free(name);
    }
    if (!failed)
        return columns;
    json_decref(columns);
    return NULL;
}

static enum cld_status fail_memory(struct cld_error *err)
{
    return cld_fail_memory(err, "the verdicts of the checks");
}

enum cld_status cld_check_golden_load(const char *path, json_t **root, json_t **columns,
                                      struct cld_error *err)
{
    enum cld_status s = cld_json_load(path, root, err);
    if (s)
        return s;
    *columns = json_object_get(*root, "columns");
    if (json_integer_value(json_object_get(*root, "format")) == golden_format &&
        json_is_object(*columns))
        return CLD_OK;
    json_decref(*root);
    *root = NULL;
    return cld_fail(err, CLD_E_INPUT, "make it with --golden FILE --update-golden",
                    "%s has no verdicts of format %d", path, golden_format);
}

/* --- compared --------------------------------------------------------------------------------- */

static void say(const char *what, const char *where, const char *name, const char *is,
                const char *was, FILE *to)
{
    fprintf(to, "%-10s  %s  %s: %s, was %s\n", what, where, *name ? name : "the operation", is,
            was);
}

/* One case that ran; `was` is its verdict in the file, where it is only named if it did not pass.
 */
static void compare_case(const char *where, const char *name, const char *was, const char *is,
                         FILE *to, struct cld_check_golden *out)
{
    const char *failed = cld_check_verdict_name(CLD_CHECK_FAILED);
    const char *passed = cld_check_verdict_name(CLD_CHECK_PASSED);
    if (!strcmp(was ? was : passed, is))
        return;
    if (was && !strcmp(was, failed) && !strcmp(is, passed)) {
        say("FIX", where, name, is, was, to);
        out->n_fixes++;
    } else if (!strcmp(is, failed)) {
        say("REGRESSION", where, name, is, was ? was : "not among those that failed", to);
        out->n_regressions++;
    } else {
        say("DIFFERENCE", where, name, is, was ? was : passed, to);
        out->n_differences++;
    }
}

/* All cases of one operation in one column. */
static void compare_operation(const char *where, json_t *was, json_t *is, bool part, FILE *to,
                              struct cld_check_golden *out)
{
    const char *name;
    json_t *now, *others = json_object_get(was, "others");
    size_t n_was =
        (size_t)json_integer_value(json_object_get(was, "passed")) + json_object_size(others);
    json_object_foreach (is, name, now)
        compare_case(where, name, text_at(json_object_get(others, name), "verdict"),
                     text_at(now, "verdict"), to, out);
    if ((was && part) || json_object_size(is) == n_was)
        return;
    fprintf(to, "%-10s  %s  %zu cases, were %zu\n", "DIFFERENCE", where, json_object_size(is),
            n_was);
    out->n_differences++;
}

enum cld_status cld_check_golden_compare(const struct cld_check_matrix *m, const char *path,
                                         bool part, FILE *to, struct cld_check_golden *out,
                                         struct cld_error *err)
{
    json_t *root = NULL, *golden = NULL, *now = NULL, *column, *operation;
    const char *column_name, *operation_name;
    enum cld_status s = cld_check_golden_load(path, &root, &golden, err);
    *out = (struct cld_check_golden){0};
    if (s)
        return s;
    if (!(now = verdicts_of(m))) {
        s = fail_memory(err);
        goto done;
    }
    json_object_foreach (now, column_name, column) {
        const json_t *was = json_object_get(golden, column_name);
        const char *driver = text_at(was, "driver"), *current = text_at(column, "driver");
        if (driver && strcmp(driver, current))
            fprintf(to, "%s: driver %s, was %s\n", column_name, current, driver);
        json_object_foreach (json_object_get(column, "operations"), operation_name, operation) {
            char *where = cld_format("%s, %s", column_name, operation_name);
            if (!where) {
                s = fail_memory(err);
                goto done;
            }
            compare_operation(where,
                              json_object_get(json_object_get(was, "operations"), operation_name),
                              operation, part, to, out);
            free(where);
        }
    }
done:
    json_decref(now);
    json_decref(root);
    return s;
}

/* --- written ---------------------------------------------------------------------------------- */

/* Puts one case into the counts of its operation; `known`: it is among those that are counted, if
 * it is not named. */
static int update_case(json_t *operation, const char *name, json_t *now, bool known)
{
    json_t *others = json_object_get(operation, "others");
    json_int_t passed = json_integer_value(json_object_get(operation, "passed"));
    bool named = json_object_get(others, name) != NULL;
    bool passes = !strcmp(text_at(now, "verdict"), cld_check_verdict_name(CLD_CHECK_PASSED));
    if (passes && named)
        json_object_del(others, name);
    if (passes && (named || !known))
        passed++;
    if (!passes && !named && known)
        passed--;
    return json_object_set_new(operation, "passed", json_integer(passed > 0 ? passed : 0)) ||
           (!passes && json_object_set(others, name, now));
}

static int update_operation(json_t *operations, const char *key, json_t *cases, bool part)
{
    const char *name;
    json_t *now;
    bool known = part && json_object_get(operations, key);
    int failed = 0;
    if (!known)
        failed =
            json_object_set_new(operations, key, json_pack("{s:i, s:{}}", "passed", 0, "others"));
    json_object_foreach (cases, name, now)
        failed |= update_case(json_object_get(operations, key), name, now, known);
    return failed;
}

/* Puts what ran of one column into the file's. */
static int update_column(json_t *columns, const char *name, json_t *now, bool part)
{
    json_t *column = object_at(columns, name), *operations = object_at(column, "operations");
    json_t *fresh = json_object_get(now, "operations"), *cases, *value;
    const char *key;
    int failed = !operations;
    json_object_foreach (now, key, value)
        if (value != fresh)
            failed |= json_object_set(column, key, value);
    json_object_foreach (fresh, key, cases)
        failed |= update_operation(operations, key, cases, part);
    return failed;
}

enum cld_status cld_check_golden_update(const struct cld_check_matrix *m, const char *path,
                                        bool part, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    json_t *root = NULL, *columns = NULL, *now = NULL, *column;
    const char *name;
    int failed = 0;
    if (cld_file_exists(path) && (s = cld_check_golden_load(path, &root, &columns, err)))
        return s;
    if (!root) {
        columns = json_object();
        root = json_pack("{s:i, s:o}", "format", golden_format, "columns", columns);
    }
    if (!root || !(now = verdicts_of(m))) {
        s = fail_memory(err);
        goto done;
    }
    json_object_foreach (now, name, column)
        failed |= update_column(columns, name, column, part);
    if (failed)
        s = fail_memory(err);
    else
        s = cld_json_save(path, root, err);
done:
    json_decref(now);
    json_decref(root);
    return s;
}
