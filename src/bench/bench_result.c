#include "bench/bench_result.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/build_info.h"
#include "base/error.h"
#include "base/size.h"
#include "formats/json_read.h"

const char *cld_bench_what_name(enum cld_bench_what what)
{
    return cld_config_value_name("bench.what", (int)what);
}

/* --- figures ---------------------------------------------------------------------------------- */

/* What happens a second, in units of `unit`; 0 where the record has no such figure. */
static double rate(const struct cld_bench_result *r, double of_a_run, double unit)
{
    return r->median_ms > 0 ? of_a_run / (r->median_ms * 1e-3) / unit : 0;
}

static const struct cld_bench_roof *roof_of(const struct cld_bench_context *c,
                                            const struct cld_bench_result *r)
{
    return &c->roofs[strstr(r->storage, "bf16") ? 1 : 0];
}

/* The most that the roof allows: the rate of products, or what bytes that must move let through. A
 * record that has operations alone, or bytes alone, has one bound. 0: not known, or the bytes do
 * not move within the device. */
static double share(const struct cld_bench_context *c, const struct cld_bench_result *r)
{
    const struct cld_bench_roof *roof = roof_of(c, r);
    if (r->off_device || r->median_ms <= 0)
        return 0;
    double least_s = 0;
    if (r->flop > 0) {
        if (roof->gflops <= 0)
            return 0;
        least_s = r->flop / (roof->gflops * 1e9);
    }
    if (r->bytes > 0) {
        if (roof->gb_per_s <= 0)
            return 0;
        least_s = fmax(least_s, r->bytes / (roof->gb_per_s * 1e9));
    }
    return least_s / (r->median_ms * 1e-3);
}

/* --- to JSON ---------------------------------------------------------------------------------- */

static json_t *number_or_null(double v)
{
    return v > 0 ? json_real(v) : json_null();
}

static json_t *text_or_null(const char *text)
{
    return *text ? json_string(text) : json_null();
}

/* A number where the text is one, for who sorts and draws. */
static json_t *swept_value(const char *text)
{
    char *end;
    double v = strtod(text, &end);
    if (!*text || *end || !isfinite(v) || text[strspn(text, "0123456789+-.eE")])
        return json_string(text);
    return v == floor(v) && fabs(v) < 1e15 ? json_integer((json_int_t)v) : json_real(v);
}

static int set_all(json_t *object, const char *const *keys, json_t *const *values, size_t n)
{
    int failed = 0;
    for (size_t i = 0; i < n; i++)
        failed |= json_object_set_new(object, keys[i], values[i]);
    return failed;
}

/* Fields that do not depend on what was measured. */
static int set_place(json_t *object, const struct cld_bench_context *c)
{
    const struct cld_device_info *d = c->device;
    json_t *swept = json_object();
    int failed = !swept;
    for (size_t i = 0; i < c->n_swept && !failed; i++)
        failed = json_object_set_new(swept, c->names[i], swept_value(c->values[i]));
    const char *const keys[] = {"version", "commit", "compiler", "platform",
                                "device",  "driver", "options",  "swept"};
    json_t *const values[] = {json_string(CLD_VERSION),
                              text_or_null(cld_build_commit()),
                              json_string(cld_build_compiler()),
                              json_string(d->platform),
                              json_string(d->name),
                              json_string(d->driver),
                              json_string(c->options),
                              swept};
    return failed | set_all(object, keys, values, sizeof keys / sizeof *keys);
}

static int set_work(json_t *object, const struct cld_bench_result *r)
{
    json_t *shape = json_object();
    int failed = !shape;
    for (size_t i = 0; i < r->n_dims && !failed; i++)
        failed =
            json_object_set_new(shape, r->shape[i].name, json_integer((json_int_t)r->shape[i].n));
    const char *const keys[] = {"what", "name", "shape", "storage", "variant"};
    json_t *const values[] = {json_string(r->what), text_or_null(r->name), shape,
                              text_or_null(r->storage), text_or_null(r->variant)};
    return failed | set_all(object, keys, values, sizeof keys / sizeof *keys);
}

static int set_figures(json_t *object, const struct cld_bench_context *c,
                       const struct cld_bench_result *r, const char *error)
{
    const struct cld_bench_roof *roof = roof_of(c, r);
    bool done = r->repeats > 0;
    double gflops = rate(r, r->flop, 1e9);
    const char *const keys[] = {"repeats",
                                "runs_per_repeat",
                                "median_ms",
                                "min_ms",
                                "max_ms",
                                "spread",
                                "gflops",
                                "tflops",
                                "gb_per_s",
                                "flop_per_byte",
                                "context_tokens_per_s",
                                "device_gib",
                                "roof_gflops",
                                "roof_gb_per_s",
                                "share_of_roof",
                                "error"};
    json_t *const values[] = {
        json_integer((json_int_t)r->repeats),
        json_integer((json_int_t)r->runs),
        done ? json_real(r->median_ms) : json_null(),
        done ? json_real(r->min_ms) : json_null(),
        done ? json_real(r->max_ms) : json_null(),
        done ? json_real(r->median_ms > 0 ? (r->max_ms - r->min_ms) / r->median_ms : 0)
             : json_null(),
        number_or_null(gflops),
        number_or_null(gflops * 1e-3),
        number_or_null(rate(r, r->bytes, 1e9)),
        number_or_null(r->bytes > 0 ? r->flop / r->bytes : 0),
        number_or_null(rate(r, r->tokens, 1)),
        number_or_null(cld_gib((double)r->device_bytes)),
        number_or_null(roof->gflops),
        number_or_null(roof->gb_per_s),
        number_or_null(share(c, r)),
        text_or_null(error)};
    return set_all(object, keys, values, sizeof keys / sizeof *keys);
}

static enum cld_status make(const struct cld_bench_context *c, const struct cld_bench_result *r,
                            const char *error, json_t **out, struct cld_error *err)
{
    *out = json_object();
    if (*out && !(set_place(*out, c) | set_work(*out, r) | set_figures(*out, c, r, error)))
        return CLD_OK;
    json_decref(*out);
    *out = NULL;
    return cld_fail(err, CLD_E_INTERNAL, "", "cannot write the record of %s %s as JSON", r->what,
                    r->name);
}

enum cld_status cld_bench_json(const struct cld_bench_context *c, const struct cld_bench_result *r,
                               json_t **out, struct cld_error *err)
{
    return make(c, r, "", out, err);
}

enum cld_status cld_bench_json_failed(const struct cld_bench_context *c, const char *what,
                                      const struct cld_error *why, json_t **out,
                                      struct cld_error *err)
{
    const struct cld_bench_result r = {.what = what};
    return make(c, &r, why->what[0] ? why->what : cld_status_name(why->status), out, err);
}

/* --- from JSON -------------------------------------------------------------------------------- */

const char *cld_bench_pairs_text(const json_t *object, char *to, size_t n_bytes)
{
    const char *key;
    const json_t *value;
    size_t at = 0;
    *to = 0;
    /* jansson's loop takes no constant object, and changes nothing. */
    for (void *i = json_object_iter((json_t *)(uintptr_t)object); i && at < n_bytes;
         i = json_object_iter_next((json_t *)(uintptr_t)object, i)) {
        key = json_object_iter_key(i);
        value = json_object_iter_value(i);
        at += (size_t)snprintf(to + at, n_bytes - at, "%s%s=", at ? " " : "", key);
        if (at >= n_bytes)
            break;
        if (json_is_string(value))
            at += (size_t)snprintf(to + at, n_bytes - at, "%s", json_string_value(value));
        else
            at += (size_t)snprintf(to + at, n_bytes - at, "%.12g", json_number_value(value));
    }
    return to;
}

double cld_bench_number(const json_t *record, const char *key)
{
    return json_number_value(json_object_get(record, key));
}

const char *cld_bench_string(const json_t *record, const char *key)
{
    return cld_json_text_or(record, key, "");
}

bool cld_bench_is_failure(const json_t *record)
{
    return *cld_bench_string(record, "error") != 0;
}

const char *cld_bench_identity(const json_t *record, char *to, size_t n_bytes)
{
    char swept[512], shape[256];
    snprintf(to, n_bytes, "%s|%s|%s|%s|%s", cld_bench_string(record, "what"),
             cld_bench_string(record, "name"),
             cld_bench_pairs_text(json_object_get(record, "swept"), swept, sizeof swept),
             cld_bench_pairs_text(json_object_get(record, "shape"), shape, sizeof shape),
             cld_bench_string(record, "storage"));
    return to;
}
