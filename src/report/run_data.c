#include "report/run_data.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "formats/json_read.h"

/* --- what others ask -------------------------------------------------------------------------- */

const struct cld_series *cld_run_data_series(const struct cld_run_data *r, const char *key)
{
    for (size_t i = 0; i < r->n_series; i++)
        if (!strcmp(r->series[i].key, key))
            return r->series[i].n ? &r->series[i] : NULL;
    return NULL;
}

double cld_series_last(const struct cld_series *s)
{
    for (size_t i = s ? s->n : 0; i-- > 0;)
        if (isfinite(s->value[i]))
            return s->value[i];
    return NAN;
}

const char *cld_run_data_status_text(const struct cld_run_data *r, const char *key)
{
    return cld_json_text_or(r->status, key, "");
}

double cld_run_data_status_number(const struct cld_run_data *r, const char *key)
{
    return cld_json_number(r->status, key);
}

const char *cld_run_data_value(const struct cld_run_data *r, const char *section, const char *name)
{
    for (size_t i = 0; i < r->n_config; i++)
        if (!strcmp(r->config[i].section, section) && !strcmp(r->config[i].name, name))
            return r->config[i].value;
    return "";
}

/* --- filling ---------------------------------------------------------------------------------- */

enum cld_status cld_run_data_note(struct cld_run_data *r, struct cld_error *err, const char *fmt,
                                  ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    enum cld_status s = cld_grow(&r->notes, &r->notes_cap, r->n_notes + 1, sizeof *r->notes, err);
    if (s)
        return s;
    if (!(r->notes[r->n_notes] = strdup(text)))
        return cld_fail_memory(err, "a report");
    r->n_notes++;
    return CLD_OK;
}

enum cld_status cld_run_data_event(struct cld_run_data *r, enum cld_event_kind kind, double step,
                                   const char *time, const char *text, struct cld_error *err)
{
    struct cld_event *last = r->n_events ? &r->events[r->n_events - 1] : NULL;
    if (last && last->kind == kind && (kind == CLD_EVENT_CHECKPOINT || kind == CLD_EVENT_SKIPPED)) {
        last->last = step;
        last->n++;
        return CLD_OK;
    }
    enum cld_status s =
        cld_grow(&r->events, &r->events_cap, r->n_events + 1, sizeof *r->events, err);
    if (s)
        return s;
    struct cld_event *e = &r->events[r->n_events];
    *e = (struct cld_event){.kind = kind, .first = step, .last = step, .n = 1};
    snprintf(e->time, sizeof e->time, "%s", time);
    if (!(e->text = strdup(text)))
        return cld_fail_memory(err, "a report");
    r->n_events++;
    return CLD_OK;
}

void cld_run_data_free(struct cld_run_data *r)
{
    for (size_t i = 0; i < r->n_series; i++) {
        free(r->series[i].key);
        free(r->series[i].step);
        free(r->series[i].value);
    }
    for (size_t i = 0; i < r->n_config; i++) {
        free(r->config[i].section);
        free(r->config[i].name);
        free(r->config[i].value);
        free(r->config[i].origin);
    }
    for (size_t i = 0; i < r->n_events; i++)
        free(r->events[i].text);
    for (size_t i = 0; i < r->n_notes; i++)
        free(r->notes[i]);
    json_decref(r->status);
    json_decref(r->devices);
    free(r->series);
    free(r->config);
    free(r->events);
    free(r->checkpoints);
    free(r->notes);
    free(r->dir);
    free(r->name);
    *r = (struct cld_run_data){.best_step = NAN};
}
