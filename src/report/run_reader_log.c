/* Events out of log.txt: what did not go as usual, and what one wants to find again. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "report/run_reader_parts.h"

/* The number after the last `what` in text; NaN: there is none. */
static double number_after(const char *text, const char *what)
{
    double found = NAN;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what)) {
        char *end;
        double v = strtod(at + strlen(what), &end);
        if (end > at + strlen(what) && v >= 0)
            found = v;
    }
    return found;
}

static bool begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

/* One line without its end: "TIME LEVEL [THREAD] TEXT". *step: where the run was at it. */
static enum cld_status take_line(struct cld_run_data *r, char *line, double *step,
                                 struct cld_error *err)
{
    char *level = strchr(line, ' '), *thread = level ? strchr(level + 1, ' ') : NULL;
    char *text = thread ? strstr(thread, "] ") : NULL;
    if (!text || thread[1] != '[' || level - line != 20)
        return CLD_OK; /* goes on from the line above */
    *level++ = *thread++ = 0;
    text += 2;
    double named = begins(text, "resuming from ") ? number_after(text, " at step ")
                                                  : number_after(text, "step ");
    bool is_progress = !strcmp(level, "progress");
    bool is_checkpoint = begins(text, "step ") && strstr(text, ": checkpoint ");
    /* A checkpoint is reported when it is written, after later steps. */
    if (is_checkpoint && named < *step)
        return cld_run_data_event(r, CLD_EVENT_CHECKPOINT, named, line, text, err);
    if (isfinite(named) && (is_progress || begins(text, "step ") || begins(text, "resuming from ")))
        *step = named;
    if (is_progress)
        return CLD_OK;
    if (begins(text, "resuming from "))
        return cld_run_data_event(r, CLD_EVENT_RESUMED, *step, line, text, err);
    if (is_checkpoint)
        return cld_run_data_event(r, CLD_EVENT_CHECKPOINT, *step, line, text, err);
    if (!strcmp(level, "warning"))
        return cld_run_data_event(
            r, strstr(text, " was skipped: ") ? CLD_EVENT_SKIPPED : CLD_EVENT_WARNING, *step, line,
            text, err);
    return strcmp(level, "error") ? CLD_OK
                                  : cld_run_data_event(r, CLD_EVENT_ERROR, *step, line, text, err);
}

enum cld_status cld_run_reader_read_log(struct cld_run_data *r, const char *path,
                                        struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    double step = NAN;
    FILE *f = fopen(path, "r");
    if (!f)
        return cld_run_data_note(r, err, "log.txt cannot be read (%s): events are incomplete.",
                                 strerror(errno));
    while (!s && (n = getline(&line, &cap, f)) > 0 && line[n - 1] == '\n') {
        line[n - 1] = 0;
        s = take_line(r, line, &step, err);
    }
    fclose(f);
    free(line);
    return s;
}
