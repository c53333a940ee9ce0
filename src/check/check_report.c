/* check_report.c - a matrix of checks as a table, as JSON, as JUnit's XML. */
#include "check/check_matrix.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *storage_name(enum cld_dtype storage)
{
    return storage == CLD_BF16 ? "bf16" : "f32";
}

/* --- the table -------------------------------------------------------------------------------- */

/* Cases of one operation in one column. */
struct cell {
    size_t n[CLD_CHECK_UNSUPPORTED + 1]; /* by verdict */
    const char *why;                     /* of the first that is unsupported */
};

static struct cell cell_of(const struct cld_check_matrix *m, const struct cld_check_column *c,
                           const char *op)
{
    struct cell cell = {{0}, c->why};
    for (size_t i = c->first; i < c->first + c->n; i++) {
        const struct cld_check_result *r = &m->results.at[i];
        if (strcmp(r->op, op))
            continue;
        if (r->verdict == CLD_CHECK_UNSUPPORTED && !cell.n[CLD_CHECK_UNSUPPORTED])
            cell.why = r->why;
        cell.n[r->verdict]++;
    }
    return cell;
}

static void put_cell(const struct cell *c, FILE *to)
{
    size_t passed = c->n[CLD_CHECK_PASSED], failed = c->n[CLD_CHECK_FAILED];
    char text[48];
    if (failed)
        snprintf(text, sizeof text, "FAIL %zu of %zu", failed, passed + failed);
    else if (passed)
        snprintf(text, sizeof text, "pass %zu%s", passed,
                 c->n[CLD_CHECK_UNSUPPORTED] ? ", in part" : "");
    else
        snprintf(text, sizeof text, "unsupported");
    fprintf(to, " %-16s |", text);
}

/* Whether no result before this one is of the same operation. */
static bool first_of_op(const struct cld_check_matrix *m, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (!strcmp(m->results.at[i].op, m->results.at[at].op))
            return false;
    return true;
}

/* The time of the case in a column; 0: it has none. */
static double time_in(const struct cld_check_matrix *m, const struct cld_check_column *c,
                      const struct cld_check_result *like, double *gb_s)
{
    for (size_t i = c->first; i < c->first + c->n; i++) {
        const struct cld_check_result *r = &m->results.at[i];
        if (r->ms > 0 && r->family == like->family && r->storage == like->storage &&
            !strcmp(r->name, like->name)) {
            *gb_s = cld_check_gb_s(r);
            return r->ms;
        }
    }
    return 0;
}

/* Whether no column before it has the case. */
static bool first_of_case(const struct cld_check_matrix *m, size_t at)
{
    const struct cld_check_result *r = &m->results.at[at];
    double ignored;
    for (size_t c = 0; c < m->n_columns && m->columns[c].first + m->columns[c].n <= at; c++)
        if (time_in(m, &m->columns[c], r, &ignored) > 0)
            return false;
    return true;
}

/* What was timed: rows are cases. */
static void put_times(const struct cld_check_matrix *m, FILE *to)
{
    bool begun = false;
    for (size_t i = 0; i < m->results.n; i++) {
        const struct cld_check_result *r = &m->results.at[i];
        if (!(r->ms > 0) || !first_of_case(m, i))
            continue;
        if (!begun) {
            fputs("| ms (GB/s) |", to);
            for (size_t c = 0; c < m->n_columns; c++)
                fprintf(to, " %zu |", c + 1);
            fputs("\n| --- |", to);
            for (size_t c = 0; c < m->n_columns; c++)
                fputs(" ---: |", to);
            fputc('\n', to);
            begun = true;
        }
        fprintf(to, "| %s %s, %s |", cld_kernel_family_name(r->family), storage_name(r->storage),
                r->name);
        for (size_t c = 0; c < m->n_columns; c++) {
            double gb_s = 0, ms = time_in(m, &m->columns[c], r, &gb_s);
            if (ms > 0)
                fprintf(to, " %.4g (%.4g) |", ms, gb_s);
            else
                fputs(" |", to);
        }
        fputc('\n', to);
    }
    if (begun)
        fputc('\n', to);
}

void cld_check_write_table(const struct cld_check_matrix *m, FILE *to)
{
    for (size_t c = 0; c < m->n_columns; c++)
        fprintf(to, "%zu. %s, %s, driver %s: %s\n", c + 1, m->columns[c].platform,
                m->columns[c].device, m->columns[c].driver, m->columns[c].path);
    fprintf(to, "\n| %-16s |", "operation");
    for (size_t c = 0; c < m->n_columns; c++)
        fprintf(to, " %-16zu |", c + 1);
    fputs("\n| --- |", to);
    for (size_t c = 0; c < m->n_columns; c++)
        fputs(" --- |", to);
    fputc('\n', to);
    for (size_t i = 0; i < m->results.n; i++) {
        if (!first_of_op(m, i))
            continue;
        fprintf(to, "| %-16s |", m->results.at[i].op);
        for (size_t c = 0; c < m->n_columns; c++) {
            struct cell cell = cell_of(m, &m->columns[c], m->results.at[i].op);
            put_cell(&cell, to);
        }
        fputc('\n', to);
    }
    fputc('\n', to);
    put_times(m, to);
    for (size_t c = 0; c < m->n_columns; c++)
        if (m->columns[c].why[0])
            fprintf(to, "Column %zu: %s.\n", c + 1, m->columns[c].why);
    for (size_t i = 0; i < m->results.n; i++)
        for (size_t c = 0; c < m->n_columns && first_of_op(m, i); c++) {
            struct cell cell = cell_of(m, &m->columns[c], m->results.at[i].op);
            if (cell.n[CLD_CHECK_UNSUPPORTED])
                fprintf(to, "Column %zu, %s: unsupported because %s.\n", c + 1, m->results.at[i].op,
                        cell.why);
        }
}

/* --- JSON ------------------------------------------------------------------------------------- */

static json_t *case_json(const struct cld_check_column *c, const struct cld_check_result *r)
{
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "version",
                          CLD_VERSION, "platform", c->platform, "device", c->device, "driver",
                          c->driver, "path", c->path, "op", r->op, "kernels",
                          cld_kernel_family_name(r->family), "storage", storage_name(r->storage),
                          "case", r->name, "verdict", cld_check_verdict_name(r->verdict));
    double rel = cld_check_bounds[r->bound].rel;
    if (!o || r->verdict == CLD_CHECK_UNSUPPORTED) {
        if (o)
            json_object_set_new(o, "why", json_string(r->why));
        return o;
    }
    json_object_set_new(o, "bound", json_string(cld_check_bounds[r->bound].name));
    /* json_real gives NULL, which sets nothing, for what is not finite */
    json_object_set_new(o, "nmse", json_real(r->nmse));
    json_object_set_new(o, "nmse_allowed", json_real(rel * rel));
    json_object_set_new(o, "max", json_real(r->max));
    json_object_set_new(o, "max_allowed", json_real(8 * rel));
    if (r->ms > 0) {
        json_object_set_new(o, "ms", json_real(r->ms));
        json_object_set_new(o, "gb_s", json_real(cld_check_gb_s(r)));
        json_object_set_new(o, "clock", json_string(r->by_events ? "events" : "host"));
    }
    if (r->verdict == CLD_CHECK_FAILED) {
        json_object_set_new(o, "why", json_string(r->why));
        json_object_set_new(o, "again", json_string(r->again));
    }
    return o;
}

/* What is said of a whole column, as an unsupported result. */
static json_t *column_json(const struct cld_check_column *c)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "version", CLD_VERSION, "platform",
                     c->platform, "device", c->device, "driver", c->driver, "path", c->path,
                     "verdict", cld_check_verdict_name(CLD_CHECK_UNSUPPORTED), "why", c->why);
}

static enum cld_status fail_write(FILE *to, struct cld_error *err)
{
    fflush(to);
    return ferror(to) ? cld_fail(err, CLD_E_IO, cld_io_hint(errno), "cannot write results: %s",
                                 strerror(errno))
                      : CLD_OK;
}

enum cld_status cld_check_write_json(const struct cld_check_matrix *m, FILE *to,
                                     struct cld_error *err)
{
    json_t *all = json_array();
    int failed = !all;
    for (size_t c = 0; c < m->n_columns && !failed; c++) {
        const struct cld_check_column *column = &m->columns[c];
        if (!column->n)
            failed = json_array_append_new(all, column_json(column));
        for (size_t i = column->first; i < column->first + column->n && !failed; i++)
            failed = json_array_append_new(all, case_json(column, &m->results.at[i]));
    }
    if (!failed)
        failed = json_dumpf(all, to, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) < 0;
    fputc('\n', to);
    json_decref(all);
    if (failed && !ferror(to))
        return cld_fail_memory(err, "the results as JSON");
    return fail_write(to, err);
}

/* --- JUnit ------------------------------------------------------------------------------------ */

/* Text of an attribute or an element; XML has no control characters. */
static void put_xml(const char *text, FILE *to)
{
    for (; *text; text++)
        switch (*text) {
        case '&':
            fputs("&amp;", to);
            break;
        case '<':
            fputs("&lt;", to);
            break;
        case '>':
            fputs("&gt;", to);
            break;
        case '"':
            fputs("&quot;", to);
            break;
        default:
            fputc((unsigned char)*text < ' ' ? ' ' : *text, to);
        }
}

/* NAME="..." with the n texts, one after the other. */
static void put_attribute(const char *name, const char *const *texts, size_t n, FILE *to)
{
    fprintf(to, " %s=\"", name);
    for (size_t i = 0; i < n; i++)
        put_xml(texts[i], to);
    fputc('"', to);
}

static void put_case(const struct cld_check_result *r, FILE *to)
{
    const char *const class[] = {r->op, ".", cld_kernel_family_name(r->family), ".",
                                 storage_name(r->storage)};
    const char *const name[] = {r->name[0] ? r->name : r->op}, *const why[] = {r->why};
    fputs("    <testcase", to);
    put_attribute("classname", class, 5, to);
    put_attribute("name", name, 1, to);
    fprintf(to, " time=\"%.9g\"", r->ms / 1e3);
    if (r->verdict == CLD_CHECK_PASSED) {
        fputs("/>\n", to);
        return;
    }
    fputs(r->verdict == CLD_CHECK_FAILED ? "><failure" : "><skipped", to);
    put_attribute("message", why, 1, to);
    fputc('>', to);
    put_xml(r->again, to);
    fputs(r->verdict == CLD_CHECK_FAILED ? "</failure></testcase>\n" : "</skipped></testcase>\n",
          to);
}

enum cld_status cld_check_write_junit(const struct cld_check_matrix *m, FILE *to,
                                      struct cld_error *err)
{
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n", to);
    fprintf(to, "<testsuites name=\"cldraft check-kernels\" tests=\"%zu\" failures=\"%zu\">\n",
            m->results.n, m->n_failed);
    for (size_t c = 0; c < m->n_columns; c++) {
        const struct cld_check_column *column = &m->columns[c];
        const char *const name[] = {column->platform, ", ", column->device, ", driver ",
                                    column->driver,   ": ", column->path};
        size_t n[CLD_CHECK_UNSUPPORTED + 1] = {0};
        for (size_t i = column->first; i < column->first + column->n; i++)
            n[m->results.at[i].verdict]++;
        fputs("  <testsuite", to);
        put_attribute("name", name, 7, to);
        fprintf(to, " tests=\"%zu\" failures=\"%zu\" errors=\"0\" skipped=\"%zu\">\n", column->n,
                n[CLD_CHECK_FAILED], n[CLD_CHECK_UNSUPPORTED]);
        for (size_t i = column->first; i < column->first + column->n; i++)
            put_case(&m->results.at[i], to);
        if (column->why[0]) {
            fputs("    <system-out>", to);
            put_xml(column->why, to);
            fputs("</system-out>\n", to);
        }
        fputs("  </testsuite>\n", to);
    }
    fputs("</testsuites>\n", to);
    return fail_write(to, err);
}
