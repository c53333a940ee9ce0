#include "bench/bench_out.h"

#include <errno.h>
#include <string.h>

#include "base/build_info.h"
#include "bench/bench_result.h"

/* --- CSV and SQL: flat ------------------------------------------------------------------------ */

/* Calls `put` for each column: swept values are columns of their own, a shape is one text. */
typedef void put_column(const char *name, const json_t *value, bool first, FILE *to);

static void each_column(const json_t *record, put_column *put, FILE *to)
{
    const char *key, *name;
    json_t *value, *one, *all = json_deep_copy(record); /* the loops take no constant object */
    char shape[256];
    bool first = true;
    json_object_foreach (all, key, value) {
        if (!strcmp(key, "swept")) {
            json_object_foreach (value, name, one) {
                put(name, one, first, to);
                first = false;
            }
            continue;
        }
        json_t *text = NULL;
        if (json_is_object(value))
            value = text = json_string(cld_bench_pairs_text(value, shape, sizeof shape));
        put(key, value, first, to);
        json_decref(text);
        first = false;
    }
    json_decref(all);
}

/* `text` between quotes; a quote inside stands twice (RFC 4180, and SQL). */
static void put_quoted(const char *text, char quote, FILE *to)
{
    fputc(quote, to);
    for (; *text; text++) {
        if (*text == quote)
            fputc(quote, to);
        fputc(*text, to);
    }
    fputc(quote, to);
}

static void put_number(const json_t *value, FILE *to)
{
    if (json_is_integer(value))
        fprintf(to, "%lld", (long long)json_integer_value(value));
    else
        fprintf(to, "%.6g", json_real_value(value));
}

static void csv_name(const char *name, const json_t *value, bool first, FILE *to)
{
    (void)value;
    fprintf(to, "%s%s", first ? "" : ",", name);
}

static void csv_value(const char *name, const json_t *value, bool first, FILE *to)
{
    (void)name;
    fputs(first ? "" : ",", to);
    if (json_is_string(value))
        put_quoted(json_string_value(value), '"', to);
    else if (json_is_number(value))
        put_number(value, to);
}

static void sql_name(const char *name, const json_t *value, bool first, FILE *to)
{
    (void)value;
    fputs(first ? "" : ", ", to);
    put_quoted(name, '"', to);
}

/* The type is a hint: where the first record has null, any number may follow. */
static void sql_column(const char *name, const json_t *value, bool first, FILE *to)
{
    static const char *const texts[] = {"commit", "name", "storage", "variant", "error", "verdict"};
    bool text = json_is_string(value);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        text |= !strcmp(name, texts[i]);
    fputs(first ? "  " : ",\n  ", to);
    put_quoted(name, '"', to);
    fputs(text ? " TEXT" : json_is_integer(value) ? " INTEGER" : " REAL", to);
}

static void sql_value(const char *name, const json_t *value, bool first, FILE *to)
{
    (void)name;
    fputs(first ? "" : ", ", to);
    if (json_is_string(value))
        put_quoted(json_string_value(value), '\'', to);
    else if (json_is_number(value))
        put_number(value, to);
    else
        fputs("NULL", to);
}

static void put_csv(const json_t *record, bool head, FILE *to)
{
    if (head) {
        each_column(record, csv_name, to);
        fputc('\n', to);
    }
    each_column(record, csv_value, to);
    fputc('\n', to);
}

static void put_sql(const json_t *record, bool head, FILE *to)
{
    if (head) {
        fputs("CREATE TABLE IF NOT EXISTS bench (\n", to);
        each_column(record, sql_column, to);
        fputs("\n);\n", to);
    }
    fputs("INSERT INTO bench (", to);
    each_column(record, sql_name, to);
    fputs(") VALUES (", to);
    each_column(record, sql_value, to);
    fputs(");\n", to);
}

/* --- markdown --------------------------------------------------------------------------------- */

/* Digits enough for a look: 0.0123, 1.23, 123. */
static const char *cell(double v, char to[24])
{
    snprintf(to, 24, v <= 0 ? "" : v < 1 ? "%.4f" : v < 100 ? "%.3f" : "%.1f", v);
    return to;
}

static const char *percent(const json_t *record, const char *key, const char *format, char to[24])
{
    const json_t *v = json_object_get(record, key);
    *to = 0;
    if (json_is_number(v))
        snprintf(to, 24, format, 100 * json_number_value(v));
    return to;
}

/* A bar would end the cell, a line the table. */
static void put_cell(const char *text, FILE *to)
{
    for (; *text; text++)
        fputs(*text == '|' ? "\\|" : (char[]){*text == '\n' ? ' ' : *text, 0}, to);
}

static void put_swept(const json_t *record, FILE *to)
{
    const char *key;
    json_t *value, *swept = json_deep_copy(json_object_get(record, "swept"));
    json_object_foreach (swept, key, value) {
        fputs(" | ", to);
        if (json_is_string(value))
            put_cell(json_string_value(value), to);
        else
            fprintf(to, "%.12g", json_number_value(value));
    }
    json_decref(swept);
}

static void put_markdown(const struct cld_bench_out *out, const json_t *r)
{
    FILE *to = out->to;
    char text[256], median[24], least[24], most[24], spread[24], flops[24], bytes[24], tokens[24],
        memory[24], share[24], change[24];
    fprintf(to, "| %-11s | %-20s", cld_bench_string(r, "what"), cld_bench_string(r, "name"));
    put_swept(r, to);
    fprintf(to,
            " | %-20s | %9s | %9s | %9s | %6s | %4.0f x %-5.0f | %8s | %8s | %8s | %7s | %5s | ",
            cld_bench_string(r, "storage"), cell(cld_bench_number(r, "median_ms"), median),
            cell(cld_bench_number(r, "min_ms"), least), cell(cld_bench_number(r, "max_ms"), most),
            percent(r, "spread", "%.1f%%", spread), cld_bench_number(r, "repeats"),
            cld_bench_number(r, "runs_per_repeat"), cell(cld_bench_number(r, "gflops"), flops),
            cell(cld_bench_number(r, "gb_per_s"), bytes),
            cell(cld_bench_number(r, "context_tokens_per_s"), tokens),
            cell(cld_bench_number(r, "device_gib"), memory),
            percent(r, "share_of_roof", "%.0f%%", share));
    if (out->compared)
        fprintf(to, "%7s | %-7s | ", percent(r, "change", "%+.1f%%", change),
                cld_bench_string(r, "verdict"));
    put_cell(cld_bench_pairs_text(json_object_get(r, "shape"), text, sizeof text), to);
    fputs(" | ", to);
    put_cell(cld_bench_string(r, cld_bench_is_failure(r) ? "error" : "variant"), to);
    fputs(" |\n", to);
}

static void put_markdown_head(const struct cld_bench_out *out, const struct cld_device_info *d,
                              const char *const *swept, size_t n_swept)
{
    FILE *to = out->to;
    const char *commit = cld_build_commit();
    fprintf(to, "cldraft %s%s%s%s on %s (%s, driver %s)\n\n", CLD_VERSION, *commit ? " (" : "",
            commit, *commit ? ")" : "", d->name, d->platform, d->driver);
    fprintf(to, "| %-11s | %-20s", "what", "name");
    for (size_t i = 0; i < n_swept; i++)
        fprintf(to, " | %s", swept[i]);
    fprintf(to,
            " | %-20s | %9s | %9s | %9s | %6s | %-12s | %8s | %8s | %8s | %7s | %5s | %s"
            "shape | variant |\n",
            "storage", "median ms", "min ms", "max ms", "spread", "repeats", "GFLOP/s", "GB/s",
            "tokens/s", "GiB", "share", out->compared ? "change  | verdict | " : "");
    fputs("| --- | ---", to);
    for (size_t i = 0; i < n_swept; i++)
        fputs(" | ---:", to);
    fprintf(to,
            " | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | %s--- | "
            "--- |\n",
            out->compared ? "---: | --- | " : "");
}

/* --- the whole -------------------------------------------------------------------------------- */

void cld_bench_out_begin(struct cld_bench_out *out, const struct cld_device_info *device,
                         const char *const *swept, size_t n_swept)
{
    out->n_records = 0;
    if (out->format == CLD_BENCH_MD)
        put_markdown_head(out, device, swept, n_swept);
    else if (out->format == CLD_BENCH_JSON)
        fputc('[', out->to);
    else if (out->format == CLD_BENCH_SQL)
        fputs("BEGIN;\n", out->to);
}

static enum cld_status fail_write(const struct cld_bench_out *out, struct cld_error *err)
{
    fflush(out->to); /* who looks on sees what is done */
    if (!ferror(out->to))
        return CLD_OK;
    return cld_fail(err, CLD_E_IO, cld_io_hint(errno), "cannot write results: %s", strerror(errno));
}

enum cld_status cld_bench_out_put(struct cld_bench_out *out, const json_t *record,
                                  struct cld_error *err)
{
    size_t at = out->n_records++;
    switch (out->format) {
    case CLD_BENCH_MD:
        put_markdown(out, record);
        break;
    case CLD_BENCH_CSV:
        put_csv(record, at == 0, out->to);
        break;
    case CLD_BENCH_SQL:
        put_sql(record, at == 0, out->to);
        break;
    case CLD_BENCH_JSON:
        fputs(at ? ",\n " : "\n ", out->to); /* fall through */
    case CLD_BENCH_JSONL:
        json_dumpf(record, out->to, JSON_REAL_PRECISION(6));
        if (out->format == CLD_BENCH_JSONL)
            fputc('\n', out->to);
        break;
    }
    return fail_write(out, err);
}

enum cld_status cld_bench_out_end(struct cld_bench_out *out, struct cld_error *err)
{
    if (out->format == CLD_BENCH_JSON)
        fputs(out->n_records ? "\n]\n" : "]\n", out->to);
    else if (out->format == CLD_BENCH_SQL)
        fputs("COMMIT;\n", out->to);
    return fail_write(out, err);
}
