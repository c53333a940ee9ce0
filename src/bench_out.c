/* bench_out.c - records of measurements as a markdown table, as JSON, or as CSV. */
#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

static const double gib = 1024.0 * 1024.0 * 1024.0;

/* "m=512 n=512 k=512" */
static void shape_text(const struct cld_bench_record *r, char *to, size_t n_bytes)
{
    size_t at = 0;
    *to = 0;
    for (size_t i = 0; i < r->n_dims && at < n_bytes; i++)
        at += (size_t)snprintf(to + at, n_bytes - at, "%s%s=%zu", i ? " " : "", r->shape[i].name,
                               r->shape[i].n);
}

/* What happens a second, in units of `unit`; 0 where the record has no such figure. */
static double rate(const struct cld_bench_record *r, double of_a_run, double unit)
{
    return r->median_ms > 0 ? of_a_run / (r->median_ms * 1e-3) / unit : 0;
}

static double spread(const struct cld_bench_record *r)
{
    return r->median_ms > 0 ? (r->max_ms - r->min_ms) / r->median_ms : 0;
}

/* --- JSON, and CSV from it -------------------------------------------------------------------- */

static json_t *number_or_null(double v)
{
    return v > 0 ? json_real(v) : json_null();
}

/* A flat object but for `shape`; NULL without memory or where a text is not UTF-8. */
static json_t *to_json(const struct cld_bench_sink *sink, const struct cld_bench_record *r)
{
    const struct cld_device_info *d = sink->device;
    json_t *shape = json_object(), *object = NULL;
    int failed = !shape;
    for (size_t i = 0; i < r->n_dims && !failed; i++)
        failed = json_object_set_new(shape, r->shape[i].name,
                                     json_integer((json_int_t)r->shape[i].n));
    if (failed) {
        json_decref(shape);
        return NULL;
    }
    object = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:s, s:s}", "version", CLD_VERSION,
                       "platform", d->platform, "device", d->name, "driver", d->driver, "what",
                       r->what, "name", r->name, "shape", shape, "storage", r->storage, "variant",
                       r->variant);
    if (!object)
        return NULL;
    const struct {
        const char *key;
        json_t *value;
    } rest[] = {{"repeats", json_integer((json_int_t)r->repeats)},
                {"runs_per_repeat", json_integer((json_int_t)r->runs)},
                {"median_ms", json_real(r->median_ms)},
                {"min_ms", json_real(r->min_ms)},
                {"max_ms", json_real(r->max_ms)},
                {"spread", json_real(spread(r))},
                {"gflops", number_or_null(rate(r, r->flop, 1e9))},
                {"gb_per_s", number_or_null(rate(r, r->bytes, 1e9))},
                {"context_tokens_per_s", number_or_null(rate(r, r->tokens, 1))},
                {"device_gib", number_or_null((double)r->device_bytes / gib)}};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        failed |= json_object_set_new(object, rest[i].key, rest[i].value);
    if (failed) {
        json_decref(object);
        return NULL;
    }
    return object;
}

/* A quote inside stands twice (RFC 4180). */
static void put_quoted(const char *text, FILE *to)
{
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', to);
        fputc(*text, to);
    }
    fputc('"', to);
}

static void put_csv(const struct cld_bench_record *r, json_t *object, bool header, FILE *to)
{
    const char *key, *comma = "";
    json_t *value;
    char shape[256];
    if (header) {
        json_object_foreach(object, key, value) {
            fprintf(to, "%s%s", comma, key);
            comma = ",";
        }
        fputc('\n', to);
        comma = "";
    }
    shape_text(r, shape, sizeof shape);
    json_object_foreach(object, key, value) {
        fputs(comma, to);
        comma = ",";
        if (json_is_object(value))
            put_quoted(shape, to);
        else if (json_is_string(value))
            put_quoted(json_string_value(value), to);
        else if (json_is_integer(value))
            fprintf(to, "%lld", (long long)json_integer_value(value));
        else if (json_is_real(value))
            fprintf(to, "%.6g", json_real_value(value));
    }
    fputc('\n', to);
}

/* --- markdown --------------------------------------------------------------------------------- */

/* Digits enough for a look: 0.0123, 1.23, 123. */
static const char *cell(double v, char to[24])
{
    snprintf(to, 24, v <= 0 ? "" : v < 1 ? "%.4f" : v < 100 ? "%.3f" : "%.1f", v);
    return to;
}

static void put_markdown(const struct cld_bench_record *r, FILE *to)
{
    char shape[256], median[24], least[24], most[24], flops[24], bytes[24], tokens[24], memory[24];
    shape_text(r, shape, sizeof shape);
    fprintf(to,
            "| %-11s | %-20s | %-20s | %9s | %9s | %9s | %5.1f%% | %4zu x %-5zu | "
            "%8s | %8s | %8s | %7s | %s | %s |\n",
            r->what, r->name, r->storage, cell(r->median_ms, median), cell(r->min_ms, least),
            cell(r->max_ms, most), 100 * spread(r), r->repeats, r->runs,
            cell(rate(r, r->flop, 1e9), flops), cell(rate(r, r->bytes, 1e9), bytes),
            cell(rate(r, r->tokens, 1), tokens), cell((double)r->device_bytes / gib, memory), shape,
            r->variant);
}

static void put_markdown_head(const struct cld_bench_sink *sink)
{
    const struct cld_device_info *d = sink->device;
    fprintf(sink->to, "cldraft %s on %s (%s, driver %s)\n\n", CLD_VERSION, d->name, d->platform,
            d->driver);
    fprintf(sink->to,
            "| %-11s | %-20s | %-20s | %9s | %9s | %9s | %6s | %-12s | "
            "%8s | %8s | %8s | %7s | %s | %s |\n",
            "what", "name", "storage", "median ms", "min ms", "max ms", "spread", "repeats",
            "GFLOP/s", "GB/s", "tokens/s", "GiB", "shape", "variant");
    fputs("| --- | --- | --- | ---: | ---: | ---: | ---: | --- | "
          "---: | ---: | ---: | ---: | --- | --- |\n",
          sink->to);
}

/* --- the sink --------------------------------------------------------------------------------- */

void cld_bench_begin(struct cld_bench_sink *sink)
{
    sink->n_records = 0;
    if (sink->format == CLD_BENCH_MD)
        put_markdown_head(sink);
    else if (sink->format == CLD_BENCH_JSON)
        fputc('[', sink->to);
}

static enum cld_status fail_write(const struct cld_bench_sink *sink, struct cld_error *err)
{
    if (!ferror(sink->to))
        return CLD_OK;
    return cld_fail(err, CLD_E_IO, "", "cannot write results: %s", strerror(errno));
}

enum cld_status cld_bench_write(struct cld_bench_sink *sink, const struct cld_bench_record *r,
                                struct cld_error *err)
{
    const size_t flags = JSON_REAL_PRECISION(6);
    json_t *object = NULL;
    size_t at = sink->n_records++;
    if (sink->format == CLD_BENCH_MD) {
        put_markdown(r, sink->to);
    } else if (!(object = to_json(sink, r))) {
        return cld_fail(err, CLD_E_INTERNAL, "", "cannot write the record of %s %s as JSON",
                        r->what, r->name);
    } else if (sink->format == CLD_BENCH_CSV) {
        put_csv(r, object, at == 0, sink->to);
    } else {
        if (sink->format == CLD_BENCH_JSON)
            fputs(at ? ",\n " : "\n ", sink->to);
        json_dumpf(object, sink->to, flags);
        if (sink->format == CLD_BENCH_JSONL)
            fputc('\n', sink->to);
    }
    json_decref(object);
    fflush(sink->to); /* who looks on sees what is done */
    return fail_write(sink, err);
}

enum cld_status cld_bench_end(struct cld_bench_sink *sink, struct cld_error *err)
{
    if (sink->format == CLD_BENCH_JSON)
        fputs(sink->n_records ? "\n]\n" : "]\n", sink->to);
    fflush(sink->to);
    return fail_write(sink, err);
}
