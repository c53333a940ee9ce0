/* tuning_file.c - tables of tuned rows as JSON: reading, judging, writing.
 *
 * {"format": 1, "device": ..., "vendor": ..., "platform": ..., "platform_version": ...,
 *  "driver": ..., "rows": [{"kernel": "gemm_cpu", "class": "other", "sources": SHA-256 of its
 *  kernel files, "parameters": {"depth": 384, ...}, "ms": ..., "default_ms": ..., "noise": ...,
 *  "shapes": what was measured, "measured": when}, ...]}
 *
 * A row counts only for the kernel sources it was measured with, and only as a whole. */
#include "ops/tuning.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "formats/json_fields.h"
#include "formats/json_read.h"
#include "opencl/cache.h"
#include "opencl/embedded.h"

enum { format = 1, most_bytes = 1 << 20 };

/* A table on its way in. */
struct reader {
    const char *name; /* for messages */
    const struct cld_device_info *device;
    struct cld_tuning *out;
    enum cld_tuning_origin origin;
    bool seen[CLD_N_TUNED][cld_tuned_classes];
};

__attribute__((format(printf, 2, 3))) static void note(struct cld_tuning *t, const char *fmt, ...)
{
    size_t at = strlen(t->note);
    va_list args;
    if (at && at + 2 < sizeof t->note)
        at += (size_t)snprintf(t->note + at, sizeof t->note - at, "; ");
    va_start(args, fmt);
    vsnprintf(t->note + at, sizeof t->note - at, fmt, args);
    va_end(args);
}

/* --- reading ---------------------------------------------------------------------------------- */

static enum cld_status refuse(const struct reader *r, const char *where, const char *why,
                              struct cld_error *err)
{
    return cld_fail(err, CLD_E_INPUT,
                    "tune again with 'cldraft bench --tune', or set runtime.tuning"
                    " = off",
                    "%s: %s%s%s", r->name, where, *where ? ": " : "", why);
}

/* Rows of tables that earlier versions wrote. */
static void rename_keys(const json_t *root)
{
    const json_t *rows = json_object_get(root, "rows");
    for (size_t i = 0; i < json_array_size(rows); i++)
        cld_json_rename_keys(json_array_get(rows, i), CLD_NAME_TUNING);
}

/* Every parameter once, and no other. */
static enum cld_status read_row(const struct reader *r, const struct cld_tunable_kernel *f,
                                const json_t *values, struct cld_tuned_row *row,
                                struct cld_error *err)
{
    char why[256];
    const char *key;
    json_t *value;
    *row = (struct cld_tuned_row){{0}};
    if (!json_is_object(values))
        return refuse(r, f->name, "'parameters' is not an object", err);
    json_object_foreach ((json_t *)(uintptr_t)values, key, value) {
        size_t i = 0;
        while (i < f->n_params && strcmp(f->params[i].name, key))
            i++;
        if (i == f->n_params) {
            snprintf(why, sizeof why, "there is no parameter '%.80s'", key);
            return refuse(r, f->name, why, err);
        }
        if (!json_is_integer(value) || json_integer_value(value) < 0) {
            snprintf(why, sizeof why, "'%s' is not a whole number", key);
            return refuse(r, f->name, why, err);
        }
        row->v[i] = (size_t)json_integer_value(value);
    }
    if (json_object_size(values) != f->n_params) {
        snprintf(why, sizeof why, "it has %zu parameters, not %zu", json_object_size(values),
                 f->n_params);
        return refuse(r, f->name, why, err);
    }
    const char *objection = cld_tuned_row_objection(f, r->device, row, why, sizeof why);
    return objection ? refuse(r, f->name, objection, err) : CLD_OK;
}

static enum cld_status take_row(struct reader *r, const json_t *object, struct cld_error *err)
{
    static const char *const known[] = {"kernel",     "class", "sources", "parameters", "ms",
                                        "default_ms", "noise", "shapes",  "measured",   NULL};
    struct cld_fields in = {r->name, object, err};
    struct cld_tuned_row row;
    char hash[CLD_SHA256_HEX_BYTES], why[160];
    enum cld_status s = cld_json_known(object, r->name, known, err);
    if (s)
        return s;
    const char *family = cld_fields_string(&in, "kernel"), *class = cld_fields_string(&in, "class");
    const char *sources = cld_fields_string(&in, "sources");
    if (err->status)
        return err->status;
    enum cld_tuned id = cld_tuned_named(family);
    if (id == CLD_N_TUNED) {
        snprintf(why, sizeof why, "there is no kernel '%.80s'", family);
        return refuse(r, "", why, err);
    }
    const struct cld_tunable_kernel *f = cld_tunable_kernel(id);
    size_t c = 0, n = cld_tuned_n_classes(f);
    while (c < n && strcmp(f->classes[c], class))
        c++;
    if (c == n) {
        snprintf(why, sizeof why, "there is no class '%.80s'", class);
        return refuse(r, f->name, why, err);
    }
    if ((s = cld_tuned_sources(f, hash, err)))
        return s;
    if (strcmp(hash, sources)) { /* judged by other rules, perhaps: not even looked at */
        note(r->out, "%s: the row of %s/%s is ignored, it was measured with other kernel sources",
             r->name, f->name, class);
        return CLD_OK;
    }
    if (r->seen[id][c]) { /* which of them was meant is anybody's guess */
        snprintf(why, sizeof why, "class '%s' has two rows", f->classes[c]);
        return refuse(r, f->name, why, err);
    }
    r->seen[id][c] = true;
    cld_fields_positive_or(&in, "ms", 1);
    cld_fields_positive_or(&in, "default_ms", 1);
    cld_fields_positive_or(&in, "noise", 1);
    if (err->status)
        return err->status;
    if ((s = read_row(r, f, json_object_get(object, "parameters"), &row, err)))
        return s;
    r->out->rows[id][c] = row;
    r->out->origin[id][c] = r->origin;
    return CLD_OK;
}

/* Whether the table is for this device at all; *current: with this driver, too. */
static bool is_for(const struct cld_fields *in, const struct cld_device_info *d, bool *current)
{
    const char *name = cld_fields_string(in, "device"), *vendor = cld_fields_string(in, "vendor");
    const char *platform = cld_fields_string(in, "platform");
    const char *version = cld_fields_string(in, "platform_version");
    const char *driver = cld_fields_string(in, "driver");
    *current = !strcmp(version, d->platform_version) && !strcmp(driver, d->driver);
    return !strcmp(name, d->name) && !strcmp(vendor, d->vendor) && !strcmp(platform, d->platform);
}

static enum cld_status take_table(struct reader *r, const json_t *root, bool *is_of_device,
                                  struct cld_error *err)
{
    static const char *const known[] = {"format",           "device", "vendor", "platform",
                                        "platform_version", "driver", "rows",   NULL};
    struct cld_fields in = {r->name, root, err};
    const json_t *rows = json_object_get(root, "rows");
    bool current = false;
    enum cld_status s = cld_json_known(root, r->name, known, err);
    if (s)
        return s;
    if (json_integer_value(json_object_get(root, "format")) != format)
        return refuse(r, "", "it has another format", err);
    *is_of_device = is_for(&in, r->device, &current);
    if (err->status)
        return err->status;
    if (!json_is_array(rows))
        return refuse(r, "", "'rows' is not an array", err);
    if (!*is_of_device)
        return CLD_OK;
    if (!current && r->origin != CLD_TUNING_SHIPPED) {
        note(r->out, "%s is ignored, it was measured with another driver (%s, %s)", r->name,
             json_string_value(json_object_get(root, "driver")),
             json_string_value(json_object_get(root, "platform_version")));
        return CLD_OK;
    }
    for (size_t i = 0; i < json_array_size(rows) && !s; i++)
        s = take_row(r, json_array_get(rows, i), err);
    return s;
}

enum cld_status cld_tuning_parse(const char *text, size_t n_bytes, const char *name,
                                 const struct cld_device_info *d, enum cld_tuning_origin origin,
                                 struct cld_tuning *out, bool *is_of_device, struct cld_error *err)
{
    json_error_t e;
    struct reader r = {.name = name, .device = d, .out = out, .origin = origin};
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &e);
    *is_of_device = false;
    *err = (struct cld_error)CLD_ERROR_INIT;
    rename_keys(root);
    enum cld_status s = json_is_object(root)
                            ? take_table(&r, root, is_of_device, err)
                            : cld_fail(err, CLD_E_INPUT, "tune again with 'cldraft bench --tune'",
                                       "%s:%d: not a JSON object: %s", name, root ? 1 : e.line,
                                       root ? "another value" : e.text);
    json_decref(root);
    return s;
}

/* --- which tables ----------------------------------------------------------------------------- */

const char *cld_tuning_shipped(size_t i, const char **name, size_t *n_bytes)
{
    for (const struct cld_embedded *e = cld_embedded_files; e->name; e++) {
        size_t n = strlen(e->name);
        if (n < 5 || strcmp(e->name + n - 5, ".json") || i--)
            continue;
        *name = e->name;
        *n_bytes = e->n_bytes;
        return e->text;
    }
    return NULL;
}

static enum cld_status load_shipped(const struct cld_device_info *d, struct cld_tuning *out,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const char *name, *text;
    size_t n_bytes;
    bool is_of_device;
    /* Good for any driver: every row is checked before it is used. */
    for (size_t i = 0; !s && (text = cld_tuning_shipped(i, &name, &n_bytes)); i++)
        s = cld_tuning_parse(text, n_bytes, name, d, CLD_TUNING_SHIPPED, out, &is_of_device, err);
    return s;
}

char *cld_tuning_path(const char *cache_dir, const struct cld_device_info *d)
{
    char key[CLD_SHA256_HEX_BYTES];
    /* The GPU family's kernels on a CPU have rows of their own. */
    const char *what = d->host_memory && d->class == CLD_CLASS_GPU ? "tuning, gpu" : "tuning";
    const char *texts[] = {what,       d->name,     d->vendor,          d->driver,
                           d->version, d->platform, d->platform_version};
    cld_cache_key(texts, sizeof texts / sizeof *texts, key);
    return cld_format("%s/tuning-%.16s.json", cache_dir, key);
}

/* Why a file in the cache is not to be trusted, or NULL. */
static const char *distrust(const char *path)
{
    struct stat st;
    if (lstat(path, &st))
        return "cannot be looked at";
    if (!S_ISREG(st.st_mode))
        return "is not a regular file";
    return st.st_uid != geteuid() || st.st_mode & (S_IWGRP | S_IWOTH) ? "can be written by others"
                                                                      : NULL;
}

/* The table that was measured on this machine. Whatever is wrong with it is a note. */
static void load_cached(const char *cache_dir, const struct cld_device_info *d,
                        struct cld_tuning *out)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_tuning read = *out;
    struct cld_cache *cache = NULL;
    char *text = NULL, *path = cld_tuning_path(cache_dir, d);
    size_t n_bytes = 0;
    const char *why;
    bool is_of_device = false;
    if (!path || !cld_file_exists(path) ||
        !(cache = cld_cache_open(cache_dir, CLD_CACHE_CAP_BYTES)))
        goto done;
    if ((why = distrust(path)))
        note(out, "%s is ignored: it %s", path, why);
    else if (cld_file_read(path, most_bytes, &text, &n_bytes, &err) ||
             cld_tuning_parse(text, n_bytes, path, d, CLD_TUNING_CACHE, &read, &is_of_device, &err))
        note(out, "the table of tuned kernels is ignored: %s", err.what);
    else
        *out = read;
done:
    cld_cache_close(cache);
    free(text);
    free(path);
}

static enum cld_status load_named(const char *path, const struct cld_device_info *d,
                                  struct cld_tuning *out, struct cld_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    bool is_of_device = false;
    enum cld_status s = cld_file_read(path, most_bytes, &text, &n_bytes, err);
    if (!s)
        s = cld_tuning_parse(text, n_bytes, path, d, CLD_TUNING_FILE, out, &is_of_device, err);
    if (!s && !is_of_device)
        s = cld_fail(err, CLD_E_INPUT,
                     "set runtime.tuning = auto, which reads the table of each device",
                     "%s is not a table for %s (%s, %s)", path, d->name, d->vendor, d->platform);
    free(text);
    return s;
}

enum cld_status cld_tuning_load(const char *setting, const char *cache_dir,
                                const struct cld_device_info *d, struct cld_tuning *out,
                                struct cld_error *err)
{
    cld_tuning_defaults(d, out);
    if (setting && !strcmp(setting, "off"))
        return CLD_OK;
    enum cld_status s = load_shipped(d, out, err);
    if (s)
        return s;
    if (setting && strcmp(setting, "auto"))
        return load_named(setting, d, out, err);
    if (cache_dir)
        load_cached(cache_dir, d, out);
    return CLD_OK;
}

/* --- writing ---------------------------------------------------------------------------------- */

static json_t *parameters_of(const struct cld_tuned_result *r)
{
    const struct cld_tunable_kernel *f = cld_tunable_kernel(r->family);
    json_t *to = json_object();
    for (size_t i = 0; i < f->n_params; i++)
        json_object_set_new(to, f->params[i].name, json_integer((json_int_t)r->row.v[i]));
    return to;
}

static json_t *row_of(const struct cld_tuned_result *r, const char *sources)
{
    const struct cld_tunable_kernel *f = cld_tunable_kernel(r->family);
    char when[32];
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    return json_pack("{s:s, s:s, s:s, s:o, s:f, s:f, s:f, s:s, s:s}", "kernel", f->name, "class",
                     f->classes[r->class], "sources", sources, "parameters", parameters_of(r), "ms",
                     r->ms, "default_ms", r->default_ms, "noise", r->noise, "shapes", r->of,
                     "measured", when);
}

/* A row of the old table that stays: still good, and not measured again. */
static bool stays(const json_t *row, const struct cld_tuned_result *records, size_t n)
{
    struct cld_error ignored = CLD_ERROR_INIT;
    char hash[CLD_SHA256_HEX_BYTES];
    const char *family = json_string_value(json_object_get(row, "kernel"));
    const char *class = json_string_value(json_object_get(row, "class"));
    const char *sources = json_string_value(json_object_get(row, "sources"));
    enum cld_tuned id = family && class && sources ? cld_tuned_named(family) : CLD_N_TUNED;
    if (id == CLD_N_TUNED || cld_tuned_sources(cld_tunable_kernel(id), hash, &ignored) ||
        strcmp(hash, sources))
        return false;
    for (size_t i = 0; i < n; i++)
        if (records[i].family == id &&
            !strcmp(cld_tunable_kernel(id)->classes[records[i].class], class))
            return false;
    return true;
}

/* Whether the table was measured with this driver, too. */
static bool is_current(const json_t *root, const struct cld_device_info *d)
{
    struct cld_error ignored = CLD_ERROR_INIT;
    const struct cld_fields in = {"", root, &ignored};
    bool current = false;
    return is_for(&in, d, &current) && current;
}

/* Adds the old table's rows that stay: none of another driver's, which the new table would pass
 * off as this one's. A table that cannot be read is replaced. */
static void keep_rows(const char *path, const struct cld_device_info *d,
                      const struct cld_tuned_result *records, size_t n, json_t *to)
{
    struct cld_error ignored = CLD_ERROR_INIT;
    struct cld_tuning read;
    char *text = NULL;
    size_t n_bytes = 0;
    bool is_of_device = false;
    json_t *old = NULL, *row;
    size_t i;
    cld_tuning_defaults(d, &read);
    if (!cld_file_exists(path) || cld_file_read(path, most_bytes, &text, &n_bytes, &ignored) ||
        cld_tuning_parse(text, n_bytes, path, d, CLD_TUNING_FILE, &read, &is_of_device, &ignored) ||
        !is_of_device)
        goto done;
    old = json_loadb(text, n_bytes, 0, NULL);
    rename_keys(old);
    if (!is_current(old, d))
        goto done;
    json_array_foreach (json_object_get(old, "rows"), i, row)
        if (stays(row, records, n))
            json_array_append(to, row);
done:
    json_decref(old);
    free(text);
}

enum cld_status cld_tuning_writable(const char *path, enum cld_tuning_place place,
                                    const struct cld_device_info *d, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_file_writer *w = NULL;
    struct cld_tuning read;
    char *text = NULL;
    size_t n_bytes = 0;
    bool is_of_device = false;
    struct stat st;
    const char *why = place == CLD_TUNING_AUTOMATIC && !lstat(path, &st) ? distrust(path) : NULL;
    if (!*path)
        return cld_fail(err, CLD_E_USAGE, "name a file", "the table's file has no name");
    if (why)
        return cld_fail(err, CLD_E_INPUT, "look at it, and remove it; or add --out FILE",
                        "%s would be added to, and %s", path, why);
    if ((s = cld_file_begin(path, &w, err)))
        return s;
    cld_file_abort(w);
    if (!cld_file_exists(path))
        return CLD_OK;
    cld_tuning_defaults(d, &read);
    if ((s = cld_file_read(path, most_bytes, &text, &n_bytes, err)) || !n_bytes)
        goto done;
    s = cld_tuning_parse(text, n_bytes, path, d, CLD_TUNING_FILE, &read, &is_of_device, err);
    if (!s && !is_of_device)
        s = cld_fail(
            err, CLD_E_INPUT,
            "name another file, or tune this device: cldraft bench CONFIG --tune --out FILE",
            "it is for another device");
    if (s) {
        struct cld_error cause = *err;
        s = cld_fail(err, CLD_E_INPUT, "name another file by --out, or remove this one",
                     "%s would be replaced, and is not a good table of tuned kernels for %s: %s",
                     path, d->name, cause.what);
    } else if (read.note[0]) {
        cld_warn("%s; it is dropped", read.note);
    }
done:
    free(text);
    return s;
}

enum cld_status cld_tuning_save(const char *path, const struct cld_device_info *d,
                                const struct cld_tuned_result *records, size_t n,
                                struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    json_t *rows = json_array(), *root = NULL;
    if (rows)
        keep_rows(path, d, records, n, rows);
    for (size_t i = 0; i < n && !s; i++) {
        char sources[CLD_SHA256_HEX_BYTES];
        if ((s = cld_tuned_sources(cld_tunable_kernel(records[i].family), sources, err)))
            goto done;
        if (json_array_append_new(rows, row_of(&records[i], sources)))
            s = cld_fail_memory(err, "a table of tuned kernels");
    }
    if (s)
        goto done;
    root = json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:O}", "format", format, "device", d->name,
                     "vendor", d->vendor, "platform", d->platform, "platform_version",
                     d->platform_version, "driver", d->driver, "rows", rows);
    s = cld_json_save(path, root, err);
done:
    json_decref(root);
    json_decref(rows);
    return s;
}
