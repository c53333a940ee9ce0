/* metrics.jsonl of any run, as columns. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "base/file.h"
#include "base/grow.h"
#include "formats/json_read.h"
#include "report/run_reader_parts.h"

/* Keys come in the same order in every line of a kind, so the one after the last is looked at
 * first. */
static enum cld_status find_series(struct cld_run_data *r, const char *key, size_t *at,
                                   struct cld_error *err)
{
    for (size_t i = 0; i < r->n_series; i++) {
        size_t k = (*at + 1 + i) % r->n_series;
        if (!strcmp(r->series[k].key, key)) {
            *at = k;
            return CLD_OK;
        }
    }
    enum cld_status s =
        cld_grow(&r->series, &r->series_cap, r->n_series + 1, sizeof *r->series, err);
    char *copy = s ? NULL : strdup(key);
    if (s)
        return s;
    if (!copy)
        return cld_fail_memory(err, "metrics");
    *at = r->n_series++;
    r->series[*at] = (struct cld_series){.key = copy};
    return CLD_OK;
}

/* Drops what a series has from `step` on; the number dropped. */
static size_t rewind_series(struct cld_series *s, double step)
{
    size_t n = s->n;
    while (s->n && s->step[s->n - 1] >= step)
        s->n--;
    return n - s->n;
}

static enum cld_status put(struct cld_series *s, double step, double value, struct cld_error *err)
{
    enum cld_status st;
    rewind_series(s, step);
    if ((st = cld_grow(&s->step, &s->step_cap, s->n + 1, sizeof *s->step, err)) ||
        (st = cld_grow(&s->value, &s->value_cap, s->n + 1, sizeof *s->value, err)))
        return st;
    s->step[s->n] = step;
    s->value[s->n++] = value;
    return CLD_OK;
}

static enum cld_status take_line(struct cld_run_data *r, json_t *line, double step, size_t *at,
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const char *key;
    json_t *v;
    if (json_object_get(line,
                        "loss")) /* a step: what was there of it and later was before a resume */
        for (size_t i = 0; i < r->n_series; i++) {
            size_t n = rewind_series(&r->series[i], step);
            r->n_again += strcmp(r->series[i].key, "loss") ? 0 : n;
        }
    cld_json_rename_keys(line, CLD_NAME_METRIC);
    json_object_foreach (line, key, v)
        if (strcmp(key, "step") && (json_is_number(v) || json_is_null(v)) &&
            ((s = find_series(r, key, at, err)) ||
             (s = put(&r->series[*at], step, json_is_null(v) ? NAN : json_number_value(v), err))))
            return s;
    return CLD_OK;
}

enum cld_status cld_run_reader_read_metrics(struct cld_run_data *r, const char *path,
                                            struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *text = NULL;
    size_t cap = 0, at = 0;
    ssize_t n;
    FILE *f = fopen(path, "r");
    if (!f)
        return cld_run_data_note(r, err, "metrics.jsonl cannot be read (%s): no curves.",
                                 strerror(errno));
    while (!s && (n = getline(&text, &cap, f)) > 0) {
        if (text[n - 1] != '\n') {
            r->torn = true; /* being written, or cut off in a crash */
            break;
        }
        r->n_lines++;
        json_t *line = json_loadb(text, (size_t)n - 1, JSON_REJECT_DUPLICATES, NULL);
        const json_t *step = json_object_get(line, "step");
        if (json_is_integer(step) && json_integer_value(step) >= 0)
            s = take_line(r, line, (double)json_integer_value(step), &at, err);
        else
            r->n_bad++;
        json_decref(line);
    }
    fclose(f);
    free(text);
    if (!s && r->torn)
        s = cld_run_data_note(r, err, "The last line of metrics.jsonl has no end: it is left out.");
    if (!s && r->n_bad)
        s = cld_run_data_note(r, err,
                              "%zu of %zu lines of metrics.jsonl are no metrics: they are left "
                              "out.",
                              r->n_bad, r->n_lines);
    if (!s && r->n_again)
        s = cld_run_data_note(r, err,
                              "%zu steps are in metrics.jsonl again after a resume: the later "
                              "lines count.",
                              r->n_again);
    if (!s && !cld_run_data_series(r, "loss"))
        s = cld_run_data_note(r, err, "metrics.jsonl has no step yet.");
    return s;
}
