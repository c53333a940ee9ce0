#include "bench/bench_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "bench/bench_result.h"
#include "config/config.h"
#include "formats/json_read.h"

struct cld_bench_journal {
    char *path;
    int fd;
    json_t *records; /* of whole units, with "at" and "of" */
};

/* --- reading ---------------------------------------------------------------------------------- */

static size_t place(const json_t *record, const char *key)
{
    return (size_t)json_integer_value(json_object_get(record, key));
}

/* Reads lines of text[0..n_bytes) into an array. *whole: bytes up to the end of the last line that
 * is JSON; a last line that is not was never finished. CLD_E_INPUT for any other. */
static enum cld_status read_lines(const char *path, const char *text, size_t n_bytes,
                                  json_t *records, size_t *whole, struct cld_error *err)
{
    size_t line = 1;
    *whole = 0;
    for (const char *at = text, *end = text + n_bytes; at < end; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop)
            return CLD_OK;
        json_t *record = json_loadb(at, (size_t)(stop - at), JSON_REJECT_DUPLICATES, NULL);
        if (!json_is_object(record) || !json_is_string(json_object_get(record, "what"))) {
            json_decref(record);
            return stop + 1 == end
                       ? CLD_OK
                       : cld_fail(err, CLD_E_INPUT, "name a file that 'cldraft bench' wrote",
                                  "%s:%zu: no record of a benchmark", path, line);
        }
        if (json_array_append_new(records, record))
            return cld_fail_memory(err, "the records of %s", path);
        *whole = (size_t)(stop + 1 - text);
        at = stop + 1;
    }
    return CLD_OK;
}

/* Results of earlier versions: their keys, and the names of keys that a sweep gave values to. */
static enum cld_status rename_keys(json_t *records, const char *path, struct cld_error *err)
{
    size_t i;
    json_t *record, *value;
    const char *name;
    json_array_foreach (records, i, record) {
        const json_t *swept = json_object_get(record, "swept");
        json_t *now = json_object();
        int failed = !now;
        cld_json_rename_keys(record, CLD_NAME_RESULT);
        json_object_foreach ((json_t *)(uintptr_t)swept, name, value) {
            char text[2 * CLD_NAME_BYTES];
            failed |= json_object_set(now, cld_config_name_now(name, text, sizeof text), value);
        }
        if (json_is_object(swept))
            failed |= json_object_set(record, "swept", now);
        json_decref(now);
        if (failed)
            return cld_fail_memory(err, "the results of %s", path);
    }
    return CLD_OK;
}

enum cld_status cld_bench_read(const char *path, json_t **records, struct cld_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0, whole = 0;
    *records = NULL;
    enum cld_status s = cld_file_read(path, 0, &text, &n_bytes, err);
    if (s)
        goto done;
    if (*text == '[') {
        json_error_t why;
        *records = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &why);
        if (!*records)
            s = cld_fail(err, CLD_E_INPUT,
                         "name a file that 'cldraft bench' wrote as json or jsonl", "%s:%d: %s",
                         path, why.line, why.text);
    } else if (!(*records = json_array())) {
        s = cld_fail_memory(err, "the records of %s", path);
    } else {
        s = read_lines(path, text, n_bytes, *records, &whole, err);
    }
    for (size_t i = 0; !s && i < json_array_size(*records); i++)
        if (!json_is_string(json_object_get(json_array_get(*records, i), "what")))
            s = cld_fail(err, CLD_E_INPUT,
                         "name a file that 'cldraft bench' wrote as json or jsonl",
                         "%s: element %zu is no record of a benchmark", path, i + 1);
    if (!s)
        s = rename_keys(*records, path, err);
    if (!s && !json_array_size(*records))
        s = cld_fail(err, CLD_E_INPUT, "name a file that 'cldraft bench' wrote as json or jsonl",
                     "%s: no records", path);
done:
    free(text);
    if (s) {
        json_decref(*records);
        *records = NULL;
    }
    return s;
}

/* Records of other files have no place in a unit, and would be cut off as a part of one. */
static enum cld_status check_places(const char *path, const json_t *records, struct cld_error *err)
{
    for (size_t i = 0; i < json_array_size(records); i++)
        if (!json_is_integer(json_object_get(json_array_get(records, i), "of")))
            return cld_fail(err, CLD_E_INPUT, "name a file that --out wrote, or a new one",
                            "%s: record %zu is not from --out", path, i + 1);
    return CLD_OK;
}

/* Drops records of a unit that is not whole: the last one, if anything. */
static void drop_partial(json_t *records)
{
    size_t n = json_array_size(records);
    if (!n)
        return;
    const json_t *last = json_array_get(records, n - 1);
    if (place(last, "at") + 1 == place(last, "of"))
        return;
    for (size_t k = place(last, "at") + 1; k && n; k--)
        json_array_remove(records, --n);
}

/* Bytes of the first n lines. */
static size_t bytes_of_lines(const char *text, size_t n)
{
    const char *at = text;
    while (n--)
        at = strchr(at, '\n') + 1;
    return (size_t)(at - text);
}

enum cld_status cld_bench_journal_open(const char *path, struct cld_bench_journal **out,
                                       struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *text = NULL;
    size_t n_bytes = 0, whole = 0;
    struct cld_bench_journal *j = calloc(1, sizeof *j);
    *out = j;
    if (!j)
        return cld_fail_memory(err, "the data of %s", path);
    j->fd = -1;
    j->path = cld_format("%s", path);
    j->records = json_array();
    if (!j->path || !j->records) {
        s = cld_fail_memory(err, "the data of %s", path);
        goto done;
    }
    j->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (j->fd < 0) {
        s = cld_fail(err, CLD_E_IO, cld_io_hint(errno), "cannot open %s: %s", path,
                     strerror(errno));
        goto done;
    }
    if (flock(j->fd, LOCK_EX | LOCK_NB)) {
        s = cld_fail(err, CLD_E_INPUT, "name another file, or wait",
                     "%s: another process writes it", path);
        goto done;
    }
    if ((s = cld_file_read(path, 0, &text, &n_bytes, err)) ||
        (s = read_lines(path, text, n_bytes, j->records, &whole, err)) ||
        (s = check_places(path, j->records, err)) || (s = rename_keys(j->records, path, err)))
        goto done;
    /* What a kill left of a record begins as one; anything else is not ours to cut. */
    if (whole < n_bytes && text[whole] != '{') {
        s = cld_fail(err, CLD_E_INPUT, "name a file that --out wrote, or a new one",
                     "%s: its last line is not from --out", path);
        goto done;
    }
    drop_partial(j->records);
    whole = bytes_of_lines(text, json_array_size(j->records));
    if (whole < n_bytes && ftruncate(j->fd, (off_t)whole))
        s = cld_fail(err, CLD_E_IO, cld_io_hint(errno), "cannot cut %s: %s", path, strerror(errno));
done:
    free(text);
    if (s) {
        cld_bench_journal_close(j);
        *out = NULL;
    }
    return s;
}

void cld_bench_journal_close(struct cld_bench_journal *j)
{
    if (!j)
        return;
    if (j->fd >= 0)
        close(j->fd);
    json_decref(j->records);
    free(j->path);
    free(j);
}

/* --- units ------------------------------------------------------------------------------------ */

static bool same_unit(const json_t *a, const json_t *b)
{
    static const char *const keys[] = {"version", "commit",  "compiler", "platform", "device",
                                       "driver",  "options", "swept",    "what"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!json_equal(json_object_get(a, keys[i]), json_object_get(b, keys[i])))
            return false;
    return true;
}

json_t *cld_bench_journal_find(const struct cld_bench_journal *j, const json_t *like)
{
    size_t n = json_array_size(j->records), i = 0;
    while (i < n && !same_unit(json_array_get(j->records, i), like))
        i++;
    if (i == n)
        return NULL;
    json_t *unit = json_array();
    for (size_t k = 0, of = place(json_array_get(j->records, i), "of"); k < of && i + k < n; k++) {
        json_t *record = json_copy(json_array_get(j->records, i + k));
        json_object_del(record, "at");
        json_object_del(record, "of");
        json_array_append_new(unit, record);
    }
    return unit;
}

enum cld_status cld_bench_journal_append(struct cld_bench_journal *j, const json_t *records,
                                         struct cld_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0, n = json_array_size(records);
    FILE *to = open_memstream(&text, &n_bytes);
    bool failed = !to;
    for (size_t i = 0; i < n && !failed; i++) {
        json_t *record = json_copy(json_array_get(records, i));
        failed = !record || json_object_set_new(record, "at", json_integer((json_int_t)i)) ||
                 json_object_set_new(record, "of", json_integer((json_int_t)n)) ||
                 json_dumpf(record, to, JSON_REAL_PRECISION(6));
        json_decref(record);
        if (!failed)
            fputc('\n', to);
    }
    failed |= to && fclose(to);
    enum cld_status s = CLD_OK;
    if (failed)
        s = cld_fail_memory(err, "the records of %s", j->path);
    for (size_t at = 0; at < n_bytes && !s;) {
        ssize_t done = write(j->fd, text + at, n_bytes - at);
        if (done < 0 && errno != EINTR)
            s = cld_fail(err, CLD_E_IO, cld_io_hint(errno), "cannot write %s: %s", j->path,
                         strerror(errno));
        at += done > 0 ? (size_t)done : 0;
    }
    /* EINVAL: a pipe or a device, which has nothing to sync. */
    if (!s && fsync(j->fd) && errno != EINVAL)
        s = cld_fail(err, CLD_E_IO, cld_io_hint(errno), "cannot write %s: %s", j->path,
                     strerror(errno));
    free(text);
    return s;
}
