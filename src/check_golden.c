/* check_golden.c - verdicts of a matrix in a file, and what has changed since.
 *
 * {"format": 1, "columns": {"PLATFORM, DEVICE: PATH": {"driver": "...",
 *  "operations": {"rmsnorm cpu f32": {"CASE": "pass"}}}}}
 * An operation that is unsupported as a whole has the case "". */
#include "check_matrix.h"

#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "json_fields.h"

enum { golden_format = 1 };

/* The object `key` of `parent`, made if it is not there; NULL without memory. */
static json_t *object_at(json_t *parent, const char *key)
{
    json_t *o = json_object_get(parent, key);
    if (!o && json_object_set_new(parent, key, json_object()) == 0)
        o = json_object_get(parent, key);
    return o;
}

/* A name that stands twice has failed if one of its cases has. */
static int put_verdict(json_t *operations, const struct cld_check_result *r)
{
    char key[80];
    snprintf(key, sizeof key, "%s %s %s", r->op, cld_check_family_name(r->family),
             r->storage == CLD_BF16 ? "bf16" : "f32");
    json_t *cases = object_at(operations, key);
    if (r->verdict != CLD_CHECK_FAILED && json_object_get(cases, r->name))
        return 0;
    return json_object_set_new(cases, r->name, json_string(cld_check_verdict_name(r->verdict)));
}

static json_t *verdicts_of(const struct cld_check_matrix *m)
{
    json_t *columns = json_object();
    int failed = !columns;
    for (size_t c = 0; c < m->n_columns && !failed; c++) {
        const struct cld_check_column *from = &m->columns[c];
        char *name = cld_format("%s, %s: %s", from->platform, from->device, from->path);
        json_t *column = name ? object_at(columns, name) : NULL;
        json_t *operations = object_at(column, "operations");
        failed = !operations || json_object_set_new(column, "driver", json_string(from->driver));
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
    return cld_fail(err, CLD_E_MEMORY, "", "no memory for the verdicts of the checks");
}

/* The file's columns, borrowed from *root, which the caller drops. */
static enum cld_status load(const char *path, json_t **root, json_t **columns,
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

static void compare_case(const char *where, const char *name, const char *was, const char *is,
                         FILE *to, struct cld_check_golden *out)
{
    const char *failed = cld_check_verdict_name(CLD_CHECK_FAILED);
    const char *passed = cld_check_verdict_name(CLD_CHECK_PASSED), *what = "DIFFERENCE";
    if (was && is && !strcmp(was, is))
        return;
    if (was && is && !strcmp(was, failed) && !strcmp(is, passed)) {
        what = "FIX";
        out->n_fixes++;
    } else if (is && !strcmp(is, failed)) {
        what = "REGRESSION";
        out->n_regressions++;
    } else {
        out->n_differences++;
    }
    fprintf(to, "%-10s  %s  %s: %s, was %s\n", what, where, *name ? name : "the operation",
            is ? is : "gone", was ? was : "not there");
}

/* All cases of one operation in one column. */
static void compare_operation(const char *where, json_t *was, json_t *is, bool part, FILE *to,
                              struct cld_check_golden *out)
{
    const char *name;
    json_t *verdict;
    json_object_foreach (is, name, verdict)
        compare_case(where, name, json_string_value(json_object_get(was, name)),
                     json_string_value(verdict), to, out);
    if (part)
        return;
    json_object_foreach (was, name, verdict)
        if (!json_object_get(is, name))
            compare_case(where, name, json_string_value(verdict), NULL, to, out);
}

enum cld_status cld_check_golden_compare(const struct cld_check_matrix *m, const char *path,
                                         bool part, FILE *to, struct cld_check_golden *out,
                                         struct cld_error *err)
{
    json_t *root = NULL, *golden = NULL, *now = NULL, *column, *operation;
    const char *column_name, *operation_name;
    enum cld_status s = load(path, &root, &golden, err);
    *out = (struct cld_check_golden){0};
    if (s)
        return s;
    if (!(now = verdicts_of(m))) {
        s = fail_memory(err);
        goto done;
    }
    json_object_foreach (now, column_name, column) {
        const json_t *was = json_object_get(golden, column_name);
        const char *driver = json_string_value(json_object_get(was, "driver"));
        const char *current = json_string_value(json_object_get(column, "driver"));
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

/* Puts the verdicts of one column into the file's. */
static int update_column(json_t *columns, const char *name, const json_t *now, bool part)
{
    json_t *column = object_at(columns, name), *operations = object_at(column, "operations"),
           *cases;
    const char *key;
    int failed = !operations || json_object_set(column, "driver", json_object_get(now, "driver"));
    json_object_foreach (json_object_get(now, "operations"), key, cases)
        failed |= part ? json_object_update(object_at(operations, key), cases)
                       : json_object_set(operations, key, cases);
    return failed;
}

enum cld_status cld_check_golden_update(const struct cld_check_matrix *m, const char *path,
                                        bool part, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    json_t *root = NULL, *columns = NULL, *now = NULL, *column;
    const char *name;
    int failed = 0;
    if (cld_file_exists(path) && (s = load(path, &root, &columns, err)))
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
