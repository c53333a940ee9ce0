/* check_vendors.c - docs/vendors.md: what golden files say of each platform, and the quirks. */
#include "check/check_matrix.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"

/* A column of a golden file; the texts are the file's. */
struct column {
    const json_t *json;
    const char *platform, *device, *driver, *path;
};

/* All columns of all files, in their order, those of one platform, device and driver after each
 * other. */
struct page {
    json_t **roots;
    size_t n_roots, cap_roots;
    struct column *columns;
    size_t n_columns, cap_columns;
};

struct counts {
    size_t passed, failed, unsupported;
};

static const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* --- read ------------------------------------------------------------------------------------- */

static bool same_device(const struct column *a, const struct column *b)
{
    return !strcmp(a->platform, b->platform) && !strcmp(a->device, b->device) &&
           !strcmp(a->driver, b->driver);
}

/* After the last of the same device. */
static enum cld_status add_column(struct page *p, const json_t *json, struct cld_error *err)
{
    const struct column c = {json, text(json, "platform"), text(json, "device"),
                             text(json, "driver"), text(json, "path")};
    enum cld_status s =
        cld_grow(&p->columns, &p->cap_columns, p->n_columns + 1, sizeof *p->columns, err);
    size_t at = p->n_columns;
    if (s)
        return s;
    for (size_t i = 0; i < p->n_columns; i++)
        if (same_device(&p->columns[i], &c))
            at = i + 1;
    memmove(p->columns + at + 1, p->columns + at, (p->n_columns - at) * sizeof c);
    p->columns[at] = c;
    p->n_columns++;
    return CLD_OK;
}

static enum cld_status add_file(struct page *p, const char *path, struct cld_error *err)
{
    json_t *columns = NULL, *column;
    const char *name;
    enum cld_status s = cld_grow(&p->roots, &p->cap_roots, p->n_roots + 1, sizeof *p->roots, err);
    if (s || (s = cld_check_golden_load(path, &p->roots[p->n_roots], &columns, err)))
        return s;
    p->n_roots++;
    json_object_foreach (columns, name, column)
        if ((s = add_column(p, column, err)))
            return s;
    return CLD_OK;
}

/* --- counted ---------------------------------------------------------------------------------- */

/* "rmsnorm cpu f32" is of "rmsnorm"; NULL: all are. */
static bool is_of(const char *key, const char *op)
{
    size_t n = op ? strlen(op) : 0;
    return !op || (!strncmp(key, op, n) && key[n] == ' ');
}

static struct counts count(const json_t *column, const char *op)
{
    struct counts n = {0};
    const char *key, *name;
    json_t *operation, *other;
    json_object_foreach (json_object_get(column, "operations"), key, operation) {
        if (!is_of(key, op))
            continue;
        n.passed += (size_t)json_integer_value(json_object_get(operation, "passed"));
        json_object_foreach (json_object_get(operation, "others"), name, other)
            if (!strcmp(text(other, "verdict"), cld_check_verdict_name(CLD_CHECK_FAILED)))
                n.failed++;
            else
                n.unsupported++;
    }
    n.unsupported += *text(column, "why") != 0; /* the whole column */
    return n;
}

static void put_counts(struct counts n, FILE *to)
{
    if (n.failed)
        fprintf(to, " **%zu of %zu fail** |", n.failed, n.passed + n.failed);
    else if (n.passed)
        fprintf(to, " %zu pass%s |", n.passed, n.unsupported ? ", in part" : "");
    else
        fputs(n.unsupported ? " unsupported |" : " not run |", to);
}

/* --- written ---------------------------------------------------------------------------------- */

static void put_overview(const struct page *p, FILE *to)
{
    fputs("| platform | driver | programs | cases | date | cldraft |\n"
          "| --- | --- | --- | ---: | --- | --- |\n",
          to);
    for (size_t i = 0; i < p->n_columns; i++) {
        const struct column *c = &p->columns[i];
        fprintf(to, "| %s | %s | %s |", c->platform, c->driver, c->path);
        put_counts(count(c->json, NULL), to);
        fprintf(to, " %s | %s |\n", text(c->json, "date"), text(c->json, "version"));
    }
}

/* A row for each operation that one of the n columns has. */
static void put_operations(const struct column *c, size_t n, FILE *to)
{
    fputs("| operation |", to);
    for (size_t i = 0; i < n; i++)
        fprintf(to, " %s |", c[i].path);
    fputs("\n| --- |", to);
    for (size_t i = 0; i < n; i++)
        fputs(" ---: |", to);
    fputc('\n', to);
    for (const struct cld_check_op *o = cld_check_ops; o->name; o++) {
        fprintf(to, "| %s |", o->name);
        for (size_t i = 0; i < n; i++)
            put_counts(count(c[i].json, o->name), to);
        fputc('\n', to);
    }
    fputc('\n', to);
}

/* Whether an operation as a whole was said to be unsupported for this reason in a column before c,
 * or before `key` in c. */
static bool is_said(const struct column *first, const struct column *c, const char *op,
                    const char *key, const char *why)
{
    const char *k;
    json_t *operation;
    for (const struct column *at = first; at <= c; at++)
        json_object_foreach (json_object_get(at->json, "operations"), k, operation) {
            const json_t *whole = json_object_get(json_object_get(operation, "others"), "");
            if (at == c && !strcmp(k, key))
                return false;
            if (whole && is_of(k, op) && !strcmp(text(whole, "why"), why))
                return true;
        }
    return false;
}

/* Why cases of c, one of the columns of a device from `first` on, did not pass: of each operation
 * the first case. */
static void put_reasons(const struct column *first, const struct column *c, FILE *to)
{
    const char *key, *name;
    json_t *operation, *other;
    if (*text(c->json, "why"))
        fprintf(to, "* %s: %s.\n", c->path, text(c->json, "why"));
    json_object_foreach (json_object_get(c->json, "operations"), key, operation) {
        json_t *others = json_object_get(operation, "others");
        const char *whole = text(json_object_get(others, ""), "why");
        char op[64];
        snprintf(op, sizeof op, "%.*s", (int)strcspn(key, " "), key);
        if (*whole && !is_said(first, c, op, key, whole))
            fprintf(to, "* %s: unsupported: %s.\n", op, whole);
        json_object_foreach (others, name, other)
            if (*name) {
                fprintf(to, "* %s, %s, %s: %s: %s\n", c->path, key, name, text(other, "verdict"),
                        text(other, "why"));
                break;
            }
    }
}

/* The n columns of one device. */
static void put_device(const struct column *c, size_t n, FILE *to)
{
    json_t *quirks = json_object_get(c->json, "quirks");
    json_int_t limit = json_integer_value(json_object_get(c->json, "limit"));
    fprintf(to, "\n## %s, driver %s\n\n%s.", c->platform, c->driver, c->device);
    if (limit)
        fprintf(to, " Cases of up to %" JSON_INTEGER_FORMAT " elements.", limit);
    for (size_t i = 0; i < json_array_size(quirks); i++)
        fprintf(to, "%s%s", i ? ", " : " Quirks: ", json_string_value(json_array_get(quirks, i)));
    fputs(json_array_size(quirks) ? ".\n\n" : "\n\n", to);
    put_operations(c, n, to);
    for (size_t i = 0; i < n; i++)
        put_reasons(c, &c[i], to);
}

static void put_quirks(FILE *to)
{
    const struct cld_quirk_info *q;
    fputs("\n## Quirks\n\n"
          "`cldraft devices` prints these as `quirk`. The table is in `src/opencl/quirks.c`.\n\n"
          "| quirk | platform | versions | what is wrong | what is done | more |\n"
          "| --- | --- | --- | --- | --- | --- |\n",
          to);
    for (size_t i = 0; (q = cld_quirk_at(i)); i++) {
        fprintf(to, "| %s | %s | %s | %s | %s |", q->name, q->platform, q->range, q->what,
                q->action);
        if (*q->link)
            fprintf(to, " [link](%s) |\n", q->link);
        else
            fputs(" found by these checks |\n", to);
    }
}

static void put_page(const struct page *p, FILE *to)
{
    fputs("# Vendors\n\n"
          "Platforms on which `cldraft check-kernels` ([checks.md](checks.md)) compared every "
          "kernel with a "
          "double-precision\nreference, for every kind of program that the platform accepts. "
          "[setup.md](setup.md) explains how to install a platform.\n\n"
          "`cldraft check-kernels --summary` makes this page from the golden files in "
          "`tests/data/golden`;\n`benchmarks/vendor_matrix.sh` makes a golden file.\n\n",
          to);
    put_overview(p, to);
    for (size_t i = 0, n = 0; i < p->n_columns; i += n) {
        for (n = 1; i + n < p->n_columns && same_device(&p->columns[i], &p->columns[i + n]); n++)
            ;
        put_device(&p->columns[i], n, to);
    }
    put_quirks(to);
}

enum cld_status cld_check_vendors_write(const char *const *paths, size_t n_paths, FILE *to,
                                        struct cld_error *err)
{
    struct page p = {0};
    enum cld_status s = CLD_OK;
    if (!n_paths)
        return cld_fail(err, CLD_E_USAGE, "name golden files", "there is nothing to summarize");
    for (size_t i = 0; i < n_paths && !s; i++)
        s = add_file(&p, paths[i], err);
    if (!s)
        put_page(&p, to);
    for (size_t i = 0; i < p.n_roots; i++)
        json_decref(p.roots[i]);
    free(p.roots);
    free(p.columns);
    return s;
}
