/* run_reader.h - a run directory as it was left, for reports: metrics.jsonl, status.json,
 * devices.json, config.resolved.ini, log.txt, checkpoints/.
 *
 * The run may still be at work, may have died in the middle of a line, may have been resumed, may
 * be of another version: whatever can be read is, and what is missing or cannot be read becomes a
 * note. Nothing here is trusted to be what cldraft wrote. Any thread; a record belongs to one
 * caller. */
#ifndef CLD_REPORT_RUN_READER_H
#define CLD_REPORT_RUN_READER_H

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

struct cld_run_reader_key {                /* of the configuration */
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
    char time[24];      /* of the first, as the log has it; "" where nothing tells */
    char *text;
};

struct cld_run_reader {
    char *dir, *name; /* as given; its last component */
    bool alive;       /* a process holds the directory's lock */

    struct cld_series *series;
    size_t n_series, series_cap;
    size_t n_lines, n_bad; /* of metrics.jsonl: all whole lines, those that are no metrics */
    size_t n_again;        /* steps whose lines came again after a resume: the later ones count */
    bool torn;             /* its last line has no end */

    json_t *status, *devices; /* NULL: not there; else an object, an array */

    struct cld_run_reader_key *config;
    size_t n_config, config_cap;

    struct cld_event *events; /* in the order of the log, the end at the end */
    size_t n_events, events_cap;

    double *checkpoints; /* steps of those that are there, ascending */
    size_t n_checkpoints, checkpoints_cap;
    double best_step; /* where checkpoints/best leads; NaN: nowhere */

    char **notes; /* what is missing, for people */
    size_t n_notes, notes_cap;
};

/* CLD_E_INPUT only where `dir` is no directory or has none of a run's files. Freed with _free
 * whatever the result was. */
enum cld_status cld_run_reader_read(const char *dir, struct cld_run_reader *r,
                                    struct cld_error *err);
void cld_run_reader_free(struct cld_run_reader *r);

/* NULL: no line has the key. */
const struct cld_series *cld_run_reader_series(const struct cld_run_reader *r, const char *key);
/* The last value that is a number; NaN: none. */
double cld_series_last(const struct cld_series *s);
/* Texts and numbers of status.json; "" and NaN where it has none. */
const char *cld_run_reader_status_text(const struct cld_run_reader *r, const char *key);
double cld_run_reader_status_number(const struct cld_run_reader *r, const char *key);
/* "" where the configuration does not have the key. */
const char *cld_run_reader_value(const struct cld_run_reader *r, const char *section,
                                 const char *name);

/* --- for the files record*.c alone --- */

enum cld_status cld_run_reader_note(struct cld_run_reader *r, struct cld_error *err,
                                    const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Takes over nothing; one like the last (checkpoints, skipped steps) is counted with it. */
enum cld_status cld_run_reader_event(struct cld_run_reader *r, enum cld_event_kind kind,
                                     double step, const char *time, const char *text,
                                     struct cld_error *err);
/* Each reads one file; missing is not an error. */
enum cld_status cld_run_reader_read_metrics(struct cld_run_reader *r, const char *path,
                                            struct cld_error *err);
enum cld_status cld_run_reader_read_log(struct cld_run_reader *r, const char *path,
                                        struct cld_error *err);

#endif
