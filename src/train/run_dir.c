#include "train/run_dir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "base/file.h"
#include "base/log.h"

static bool holds(const char *dir, const char *name)
{
    char *path = cld_format("%s/%s", dir, name);
    bool yes = path && cld_file_exists(path);
    free(path);
    return yes;
}

enum cld_status cld_run_dir_resolve(const char *dir, char **out, struct cld_error *err)
{
    struct stat st;
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    *out = cld_format("%.*s", (int)n, dir);
    if (*out && !lstat(*out, &st) && S_ISLNK(st.st_mode)) {
        char *real = realpath(*out, NULL); /* fails where the link leads nowhere: _begin says so */
        if (real) {
            free(*out);
            *out = real;
        }
    }
    return *out ? CLD_OK : cld_fail_memory(err, "a path of %s", dir);
}

bool cld_run_dir_has(const char *dir, const char *path)
{
    char *top = realpath(dir, NULL), *real = realpath(path, NULL);
    size_t n = top ? strlen(top) : 0;
    bool has = top && real && !strncmp(top, real, n) && (real[n] == '/' || !real[n]);
    free(top);
    free(real);
    return has;
}

bool cld_run_dir_in_use(const char *dir)
{
    return holds(dir, "config.resolved.ini");
}

static enum cld_status keep_old_run(const char *dir, struct cld_error *err)
{
    if (!cld_run_dir_in_use(dir))
        return CLD_OK;
    for (int i = 1;; i++) {
        char *aside = cld_format("%s.%d", dir, i);
        if (!aside)
            return cld_fail_memory(err, "the path of %s", dir);
        if (cld_dir_exists(aside) || cld_file_exists(aside)) {
            free(aside);
            continue;
        }
        int failed = rename(dir, aside) ? errno : 0;
        if (failed)
            cld_fail(err, CLD_E_USAGE, "choose another run.dir",
                     "%s holds a run and cannot be renamed to keep it: %s", dir, strerror(failed));
        else
            cld_info("%s held another run: it was renamed to %s", dir, aside);
        free(aside);
        return failed ? err->status : CLD_OK;
    }
}

static enum cld_status write_text(const char *dir, const char *name, const char *text,
                                  struct cld_error *err)
{
    char *path = cld_format("%s/%s", dir, name);
    enum cld_status s = path ? cld_file_write(path, text, strlen(text), err)
                             : cld_fail_memory(err, "the path of %s", dir);
    free(path);
    return s;
}

enum cld_status cld_run_dir_begin(const char *dir, const struct cld_config *cfg, bool goes_on,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *text = NULL, *log = cld_format("%s/log.txt", dir);
    if (!log)
        return cld_fail_memory(err, "the path of %s", dir);
    if ((!goes_on && (s = keep_old_run(dir, err))) || (s = cld_dir_make(dir, err)) ||
        (s = cld_config_text(cfg, &text, err)) ||
        (s = write_text(dir, "config.resolved.ini", text, err)))
        goto done;
    int failed = cld_log_open(log);
    if (failed)
        s = cld_fail(err, CLD_E_IO, "choose a directory that you may write to",
                     "%s: cannot open: %s", log, strerror(failed));
done:
    free(text);
    free(log);
    return s;
}

static json_t *describe(const struct cld_worker_facts *f)
{
    const struct cld_device_info *d = &f->device;
    return json_pack(
        "{s:s, s:i, s:i, s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, "
        "s:I, s:I, s:I, s:I, "
        "s:f}",
        "worker", f->name, "device", (int)d->index, "part", (int)d->part, "parts", (int)d->n_parts,
        "name", d->name, "platform", d->platform, "driver", d->driver, "version", d->version,
        "storage", f->storage == CLD_BF16 ? "bf16" : "fp32", "attention", f->attention, "gemm",
        f->gemm, "program", f->program, "tuning", f->tuning, "planned_bytes",
        (json_int_t)f->planned_bytes, "pinned_bytes", (json_int_t)f->pinned_bytes, "held_bytes",
        (json_int_t)f->held_bytes, "budget_bytes", (json_int_t)f->budget_bytes, "programs_built",
        (json_int_t)f->counts.n_builds, "programs_cached", (json_int_t)f->counts.n_cached,
        "programs_from_modules", (json_int_t)f->counts.n_modules, "build_ms", f->counts.build_ms);
}

enum cld_status cld_run_dir_write_devices(const char *dir, const struct cld_pipeline *p, size_t n,
                                          struct cld_error *err)
{
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; i < n && ok; i++)
        ok = !json_array_append_new(list, describe(cld_pipeline_facts(p, i)));
    char *text = ok ? json_dumps(list, JSON_INDENT(2)) : NULL;
    enum cld_status s =
        text ? write_text(dir, "devices.json", text, err) : cld_fail_memory(err, "devices.json");
    free(text);
    json_decref(list);
    return s;
}
