/* run_data.h - what the files of a run directory hold, for reports: series of metrics.jsonl, the
 * status, devices, the configuration, events and checkpoints. run_reader.h fills it. Any thread; a
 * run's data belong to one caller. */
#ifndef CLD_REPORT_RUN_DATA_H
#define CLD_REPORT_RUN_DATA_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "base/error.h"

/* The values of one key of metrics.jsonl, in ascending steps. A null is a NaN. */
struct cld_series {
    char *key;
    size_t n, step_cap, value_cap;
    double *step, *value;
};

struct cld_run_data_key {                  /* of the configuration */
    char *section, *name, *value, *origin; /* origin "" where the file does not say */
};

enum cld_event_kind {
    CLD_EVENT_CHECKPOINT,
    CLD_EVENT_SKIPPED,
    CLD_EVENT_WARNING,
    CLD_EVENT_ERROR,
    CLD_EVENT_RESUMED,
    CLD_EVENT_ENDED
};

struct cld_event {
    enum cld_event_kind kind;
    double first, last; /* steps, equal but for several alike in a row; NaN: before the first */
    size_t n;           /* how many it stands for */
    char time[24];      /* of the first, as the log has it; "" if it is not known */
    char *text;
};

struct cld_run_data {
    char *dir, *name; /* as given; its last component */
    bool alive;       /* a process holds the directory's lock */

    struct cld_series *series;
    size_t n_series, series_cap;
    size_t n_lines, n_bad; /* of metrics.jsonl: all whole lines, those that are no metrics */
    size_t n_again;        /* steps whose lines came again after a resume: the later ones count */
    bool torn;             /* its last line has no end */

    json_t *status, *devices; /* NULL: not there; else an object, an array */

    struct cld_run_data_key *config;
    size_t n_config, config_cap;

    struct cld_event *events; /* in the order of the log, the end at the end */
    size_t n_events, events_cap;

    double *checkpoints; /* steps of those that are there, ascending */
    size_t n_checkpoints, checkpoints_cap;
    double best_step; /* where checkpoints/best leads; NaN: nowhere */

    char **notes; /* what is missing, for people */
    size_t n_notes, notes_cap;
};

void cld_run_data_free(struct cld_run_data *r);

/* NULL: no line has the key. */
const struct cld_series *cld_run_data_series(const struct cld_run_data *r, const char *key);
/* The last value that is a number; NaN: none. */
double cld_series_last(const struct cld_series *s);
/* Texts and numbers of status.json; "" and NaN where it has none. */
const char *cld_run_data_status_text(const struct cld_run_data *r, const char *key);
double cld_run_data_status_number(const struct cld_run_data *r, const char *key);
/* "" where the configuration does not have the key. */
const char *cld_run_data_value(const struct cld_run_data *r, const char *section, const char *name);

/* --- for the files run_reader*.c alone --- */

enum cld_status cld_run_data_note(struct cld_run_data *r, struct cld_error *err, const char *fmt,
                                  ...) __attribute__((format(printf, 3, 4)));
/* Takes over nothing; one like the last (checkpoints, skipped steps) is counted with it. */
enum cld_status cld_run_data_event(struct cld_run_data *r, enum cld_event_kind kind, double step,
                                   const char *time, const char *text, struct cld_error *err);
#endif
