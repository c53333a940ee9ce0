#include "train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/grow.h"
#include "formats/tensorboard.h"

struct cld_metrics {
    int fd;
    char *path;
    char *line; /* the line at work */
    size_t n_bytes, capacity;
    const char *wrong; /* what spoils it, or NULL */
    struct cld_tensorboard *mirror;
};

/* --- resuming --------------------------------------------------------------------------------- */

/* The step of a line of n bytes without its end; -1: not a line of ours. */
static int64_t step_of(const char *line, size_t n)
{
    json_t *o = json_loadb(line, n, JSON_REJECT_DUPLICATES, NULL);
    const json_t *step = json_object_get(o, "step");
    int64_t v =
        json_is_integer(step) && json_integer_value(step) >= 0 ? json_integer_value(step) : -1;
    json_decref(o);
    return v;
}

/* Puts the lines that stay into the writer; *n_dropped counts bytes. */
static enum cld_status keep_lines(struct cld_file_writer *w, const char *path, const char *text,
                                  size_t n_bytes, int64_t resume_step, size_t *n_dropped,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_line = 1;
    *n_dropped = 0;
    for (const char *at = text, *end = text + n_bytes; at < end; n_line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t n = stop ? (size_t)(stop - at) + 1 : (size_t)(end - at);
        int64_t step = stop ? step_of(at, n - 1) : INT64_MAX; /* cut off in a crash */
        if (step < 0)
            return cld_fail(err, CLD_E_INPUT, "move the file away if it is not a run's metrics",
                            "%s:%zu: not a JSON object with a step", path, n_line);
        if (step > resume_step)
            *n_dropped += n;
        else if ((s = cld_file_put(w, at, n, err)))
            return s;
        at += n;
    }
    return CLD_OK;
}

static enum cld_status drop_later(const char *path, int64_t resume_step, struct cld_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0, n_dropped = 0;
    struct cld_file_writer *w = NULL;
    enum cld_status s = cld_file_read(path, SIZE_MAX - 1, &text, &n_bytes, err);
    if (s || (s = cld_file_begin(path, &w, err)) ||
        (s = keep_lines(w, path, text, n_bytes, resume_step, &n_dropped, err)))
        goto done;
    if (n_dropped) {
        s = cld_file_commit(w, err);
        w = NULL;
    }
done:
    cld_file_abort(w);
    free(text);
    return s;
}

enum cld_status cld_metrics_open(const char *path, int64_t resume_step, struct cld_metrics **out,
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_metrics *m = calloc(1, sizeof *m);
    *out = NULL;
    if (m) {
        m->fd = -1;
        m->path = cld_format("%s", path);
    }
    if (!m || !m->path) {
        s = cld_fail_memory(err, "opening %s", path);
        goto done;
    }
    if (cld_file_exists(path) && (s = drop_later(path, resume_step, err)))
        goto done;
    m->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (m->fd < 0) {
        s = cld_fail(err, CLD_E_IO, "check that the directory exists and is yours",
                     "%s: cannot open for writing: %s", path, strerror(errno));
        goto done;
    }
    *out = m;
    m = NULL;
done:
    if (m)
        free(m->path);
    free(m);
    return s;
}

void cld_metrics_mirror(struct cld_metrics *m, struct cld_tensorboard *to)
{
    m->mirror = to;
}

/* --- lines ------------------------------------------------------------------------------------ */

static void add(struct cld_metrics *m, const char *text)
{
    size_t n = strlen(text);
    struct cld_error err;
    if (cld_grow(&m->line, &m->capacity, m->n_bytes + n + 1, 1, &err)) {
        m->wrong = "no memory";
        return;
    }
    memcpy(m->line + m->n_bytes, text, n + 1);
    m->n_bytes += n;
}

/* `json` is a value as it stands in the file. */
static void add_member(struct cld_metrics *m, const char *key, const char *json)
{
    char head[80];
    int n = snprintf(head, sizeof head, ", \"%s\": ", key);
    if (n < 0 || (size_t)n >= sizeof head || strpbrk(key, "\"\\"))
        m->wrong = "a key that is too long or needs escapes";
    else if (m->line && strstr(m->line, head)) /* in a text the quotes would be escaped */
        m->wrong = "a key given twice";
    add(m, head);
    add(m, json);
}

void cld_metrics_begin(struct cld_metrics *m, int64_t step)
{
    char text[48];
    m->n_bytes = 0;
    m->wrong = NULL;
    snprintf(text, sizeof text, "{\"step\": %" PRId64, step);
    add(m, text);
    cld_tensorboard_begin(m->mirror, step);
}

void cld_metrics_number(struct cld_metrics *m, const char *key, double value)
{
    char text[40] = "null";
    if (isfinite(value))
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, value);
            if (strtod(text, NULL) == value)
                break;
        }
    cld_tensorboard_scalar(m->mirror, key, value);
    add_member(m, key, text);
}

void cld_metrics_whole(struct cld_metrics *m, const char *key, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    cld_tensorboard_scalar(m->mirror, key, (double)value);
    add_member(m, key, text);
}

void cld_metrics_text(struct cld_metrics *m, const char *key, const char *value)
{
    json_t *v = json_string(value);
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
    if (!text)
        m->wrong = "a text that is not UTF-8, or no memory";
    add_member(m, key, text ? text : "null");
    json_decref(v);
    free(text);
}

enum cld_status cld_metrics_end(struct cld_metrics *m, struct cld_error *err)
{
    add(m, "}\n");
    if (m->wrong)
        return cld_fail(err, CLD_E_INTERNAL, "", "%s: a line with %s: %.300s", m->path, m->wrong,
                        m->line ? m->line : "");
    for (size_t at = 0; at < m->n_bytes;) {
        ssize_t n = write(m->fd, m->line + at, m->n_bytes - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return cld_fail(err, CLD_E_IO, cld_io_hint(errno), "%s: write failed: %s", m->path,
                            strerror(errno));
        at += (size_t)n;
    }
    cld_tensorboard_end(m->mirror);
    return CLD_OK;
}

enum cld_status cld_metrics_sync(struct cld_metrics *m, struct cld_error *err)
{
    if (!fsync(m->fd) || errno == EINVAL || errno == EROFS) /* a pipe, a device: nothing to keep */
        return CLD_OK;
    return cld_fail(err, CLD_E_IO, cld_io_hint(errno), "%s: fsync failed: %s", m->path,
                    strerror(errno));
}

enum cld_status cld_metrics_close(struct cld_metrics *m, struct cld_error *err)
{
    if (!m)
        return CLD_OK;
    enum cld_status s = cld_metrics_sync(m, err);
    if (close(m->fd) && !s)
        s = cld_fail(err, CLD_E_IO, cld_io_hint(errno), "%s: close failed: %s", m->path,
                     strerror(errno));
    free(m->path);
    free(m->line);
    free(m);
    return s;
}
