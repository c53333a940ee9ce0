#include "report/run_reader.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/grow.h"
#include "formats/json_fields.h"
#include "formats/json_read.h"
#include "report/run_reader_parts.h"
#include "workers/status_file.h"

/* --- configuration ---------------------------------------------------------------------------- */

/* A copy of [from, to) without blanks around it. */
static char *trimmed(const char *from, const char *to)
{
    while (from < to && (*from == ' ' || *from == '\t'))
        from++;
    while (to > from && (to[-1] == ' ' || to[-1] == '\t' || to[-1] == '\r'))
        to--;
    return strndup(from, (size_t)(to - from));
}

/* The value ends at its comment; one in quotes ends at the second of them. */
static const char *end_of_value(const char *value)
{
    const char *quoted = value + strspn(value, " \t");
    if (*quoted == '"' && strchr(quoted + 1, '"'))
        return strchr(quoted + 1, '"') + 1;
    for (const char *c = value; *c; c++)
        if ((*c == ' ' || *c == '\t') && (c[1] == '#' || c[1] == ';'))
            return c;
    return value + strlen(value);
}

static void replace(char **text, const char *by)
{
    char *copy = strdup(by);
    free(*text);
    *text = copy;
}

/* Runs of several versions are compared by the names of today. */
static void rename_key(struct cld_run_data_key *k)
{
    char now[CLD_NAME_BYTES], name[2 * CLD_NAME_BYTES];
    if (cld_old_name(CLD_NAME_KEY, k->section, k->name, now))
        replace(&k->name, now);
    snprintf(name, sizeof name, "%s.%s", k->section, k->name ? k->name : "");
    if (cld_old_name(CLD_NAME_VALUE, name, k->value, now))
        replace(&k->value, now);
}

/* A line "key = value  # origin" of a section. */
static enum cld_status take_key(struct cld_run_data *r, const char *section, const char *line,
                                struct cld_error *err)
{
    const char *equals = strchr(line, '=');
    enum cld_status s =
        cld_grow(&r->config, &r->config_cap, r->n_config + 1, sizeof *r->config, err);
    if (s)
        return s;
    const char *end = end_of_value(equals + 1), *origin = end + strspn(end, " \t#;");
    struct cld_run_data_key *k = &r->config[r->n_config++];
    *k = (struct cld_run_data_key){strdup(section), trimmed(line, equals), trimmed(equals + 1, end),
                                   trimmed(origin, origin + strlen(origin))};
    if (k->section && k->name && k->value)
        rename_key(k);
    return k->section && k->name && k->value && k->origin ? CLD_OK
                                                          : cld_fail_memory(err, "a report");
}

/* cld_config_text's form, read without judging: the file may be another version's. */
static enum cld_status read_config(struct cld_run_data *r, const char *path, struct cld_error *err)
{
    struct cld_error why = CLD_ERROR_INIT;
    enum cld_status s = CLD_OK;
    char *text = NULL, *section = NULL, *rest = NULL;
    size_t n_bytes = 0;
    if (cld_file_read(path, 1 << 20, &text, &n_bytes, &why))
        return cld_run_data_note(r, err, "config.resolved.ini cannot be read: no configuration.");
    for (char *line = strtok_r(text, "\n", &rest); line && !s; line = strtok_r(NULL, "\n", &rest)) {
        char *close = *line == '[' ? strchr(line, ']') : NULL;
        if (close) {
            *close = 0;
            section = line + 1;
        } else if (section && *line != '#' && *line != ';' && strchr(line, '=')) {
            s = take_key(r, section, line, err);
        }
    }
    free(text);
    return s;
}

/* --- status, devices, checkpoints ------------------------------------------------------------- */

/* NULL and a note where the file is not there or not what it should be. */
static enum cld_status read_json(struct cld_run_data *r, const char *path, const char *name,
                                 const char *without, json_t **out, struct cld_error *err)
{
    json_error_t where;
    *out = json_load_file(path, JSON_REJECT_DUPLICATES, &where);
    if (*out)
        return CLD_OK;
    return cld_run_data_note(r, err, "%s %s: %s.", name,
                             cld_file_exists(path) ? "cannot be read" : "is not there", without);
}

static int by_number(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* N of "step-N"; NaN for other names. */
static double step_of(const char *name)
{
    char *end;
    if (strncmp(name, "step-", 5) || !name[5] || name[5 + strspn(name + 5, "0123456789")])
        return NAN;
    return strtod(name + 5, &end);
}

static enum cld_status read_checkpoints(struct cld_run_data *r, const char *path,
                                        struct cld_error *err)
{
    struct cld_error why = CLD_ERROR_INIT;
    enum cld_status s = CLD_OK;
    char **names = NULL, to[256], *best = NULL;
    size_t n = 0;
    if (!cld_dir_exists(path) || cld_dir_list(path, &names, &n, &why))
        return cld_run_data_note(r, err,
                                 "checkpoints/ is not there: no checkpoint was written yet.");
    for (size_t i = 0; i < n && !s; i++) {
        double step = step_of(names[i]);
        if (isfinite(step) && !(s = cld_grow(&r->checkpoints, &r->checkpoints_cap,
                                             r->n_checkpoints + 1, sizeof *r->checkpoints, err)))
            r->checkpoints[r->n_checkpoints++] = step;
    }
    cld_dir_list_free(names, n);
    if (s)
        return s;
    if (r->n_checkpoints)
        qsort(r->checkpoints, r->n_checkpoints, sizeof *r->checkpoints, by_number);
    if (!(best = cld_format("%s/best", path)))
        return cld_fail_memory(err, "a report");
    ssize_t n_bytes = readlink(best, to, sizeof to - 1);
    if (n_bytes > 0) {
        to[n_bytes] = 0;
        r->best_step = step_of(to);
    }
    free(best);
    return CLD_OK;
}

/* How it ended, as the last event. A state that only a living run can be in, and none alive: it
 * died. */
static enum cld_status note_end(struct cld_run_data *r, struct cld_error *err)
{
    const char *state = cld_run_data_status_text(r, "state"),
               *error = cld_run_data_status_text(r, "error");
    bool has_ended = cld_run_has_ended(state);
    char text[1024], when[24] = "";
    double unix_s = cld_run_data_status_number(r, "updated_unix");
    struct tm tm;
    if (!*state || (r->alive && !has_ended))
        return CLD_OK;
    time_t t = unix_s >= 0 && unix_s < 1e11 ? (time_t)unix_s : 0;
    if (t && gmtime_r(&t, &tm))
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (has_ended)
        snprintf(text, sizeof text, "%s%s%s", state, *error ? ": " : "", error);
    else
        snprintf(text, sizeof text, "died while it was %s; go on with --resume", state);
    return cld_run_data_event(r, CLD_EVENT_ENDED, cld_run_data_status_number(r, "step"), when, text,
                              err);
}

/* --- all of it -------------------------------------------------------------------------------- */

static const char *const files[] = {"config.resolved.ini", "metrics.jsonl", "status.json",
                                    "devices.json",        "log.txt",       "checkpoints"};

static enum cld_status check_dir(const char *dir, struct cld_error *err)
{
    bool any = false;
    for (size_t i = 0; i < sizeof files / sizeof *files && !any; i++) {
        char *path = cld_format("%s/%s", dir, files[i]);
        any = path && access(path, F_OK) == 0;
        free(path);
    }
    if (any)
        return CLD_OK;
    return cld_fail(err, CLD_E_INPUT, "name the directory that run.dir of a training names",
                    cld_dir_exists(dir) ? "%s holds no run: none of metrics.jsonl, status.json, "
                                          "config.resolved.ini and log.txt is in it"
                                        : "%s is no directory",
                    dir);
}

static char *last_component(const char *dir)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    size_t from = n;
    while (from && dir[from - 1] != '/')
        from--;
    return from == n ? strdup(dir) : strndup(dir + from, n - from);
}

static enum cld_status read_all(struct cld_run_data *r, char *const *path, struct cld_error *err)
{
    enum cld_status s;
    if ((s = read_config(r, path[0], err)) || (s = cld_run_reader_read_metrics(r, path[1], err)) ||
        (s = read_json(r, path[2], files[2], "how the run is doing is not known", &r->status,
                       err)) ||
        (s = read_json(r, path[3], files[3],
                       "devices and memory are not known (written once all "
                       "workers are ready)",
                       &r->devices, err)) ||
        (s = cld_run_reader_read_log(r, path[4], err)) || (s = read_checkpoints(r, path[5], err)))
        return s;
    for (size_t i = 0; i < json_array_size(r->devices); i++)
        cld_json_rename_keys(json_array_get(r->devices, i), CLD_NAME_DEVICE);
    return note_end(r, err);
}

enum cld_status cld_run_reader_read(const char *dir, struct cld_run_data *r, struct cld_error *err)
{
    enum { N_FILES = sizeof files / sizeof *files };
    char *path[N_FILES] = {NULL};
    enum cld_status s = check_dir(dir, err);
    *r = (struct cld_run_data){.best_step = NAN};
    if (s)
        return s;
    bool ok = (r->dir = strdup(dir)) && (r->name = last_component(dir));
    for (size_t i = 0; i < N_FILES; i++)
        ok = (path[i] = cld_format("%s/%s", dir, files[i])) && ok;
    /* Asked before the files are read: a run that ends in between is shown as it ended. */
    r->alive = cld_status_file_alive(dir);
    s = ok ? read_all(r, path, err) : cld_fail_memory(err, "a report");
    for (size_t i = 0; i < N_FILES; i++)
        free(path[i]);
    return s;
}
