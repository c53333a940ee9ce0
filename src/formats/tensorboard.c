#include "formats/tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/grow.h"
#include "base/log.h"

/* Fields of the protocol buffers tensorflow.Event, Summary, Summary.Value and SessionLog. */
enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY = 5,
    EVENT_SESSION_LOG = 7,
    SUMMARY_VALUE = 1,
    VALUE_TAG = 1,
    VALUE_SIMPLE = 2,
    SESSION_STATUS = 1,
    SESSION_START = 1, /* a value of the status */
};
enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct bytes {
    unsigned char *v;
    size_t n, cap;
    bool failed; /* no memory */
};

struct cld_tensorboard {
    int fd;
    char *path;
    int64_t step;
    struct bytes summary, event, record;
};

/* --- bytes ------------------------------------------------------------------------------------ */

static void put(struct bytes *b, const void *from, size_t n)
{
    struct cld_error err;
    if (b->failed || (b->failed = cld_grow(&b->v, &b->cap, b->n + n, 1, &err)))
        return;
    if (n)
        memcpy(b->v + b->n, from, n);
    b->n += n;
}

static void put_little(struct bytes *b, uint64_t v, size_t n_bytes)
{
    unsigned char text[8];
    for (size_t i = 0; i < n_bytes; i++)
        text[i] = (unsigned char)(v >> 8 * i);
    put(b, text, n_bytes);
}

static void put_varint(struct bytes *b, uint64_t v)
{
    unsigned char text[10];
    size_t n = 0;
    do {
        text[n] = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        v >>= 7;
        n++;
    } while (v);
    put(b, text, n);
}

static void put_key(struct bytes *b, unsigned field, unsigned wire)
{
    put_varint(b, field << 3 | wire);
}

static void put_bytes(struct bytes *b, unsigned field, const void *from, size_t n)
{
    put_key(b, field, WIRE_BYTES);
    put_varint(b, n);
    put(b, from, n);
}

static void put_double(struct bytes *b, unsigned field, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(b, field, WIRE_64);
    put_little(b, bits, 8);
}

static void put_float(struct bytes *b, unsigned field, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(b, field, WIRE_32);
    put_little(b, bits, 4);
}

/* --- records ---------------------------------------------------------------------------------- */

/* CRC-32C (Castagnoli), bit by bit: a step has a few hundred bytes. */
static uint32_t crc32c(const unsigned char *v, size_t n)
{
    uint32_t crc = ~(uint32_t)0;
    for (size_t i = 0; i < n; i++) {
        crc ^= v[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
    }
    return ~crc;
}

/* As TFRecord has it, so that a CRC over bytes that hold CRCs stays good. */
static uint32_t masked_crc(const unsigned char *v, size_t n)
{
    uint32_t crc = crc32c(v, n);
    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

/* errno; 0: all is in the file. */
static int write_whole(int fd, const unsigned char *v, size_t n)
{
    while (n) {
        ssize_t done = write(fd, v, n);
        if (done < 0 && errno != EINTR)
            return errno;
        if (done > 0) {
            v += done;
            n -= (size_t)done;
        }
    }
    return 0;
}

static void begin_event(struct cld_tensorboard *t, int64_t step)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    t->event.n = 0;
    put_double(&t->event, EVENT_WALL_TIME, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    put_key(&t->event, EVENT_STEP, WIRE_VARINT);
    put_varint(&t->event, (uint64_t)step);
}

/* A record is a length, its CRC, the event and its CRC; it goes out by one write. */
static int write_event(struct cld_tensorboard *t)
{
    struct bytes *r = &t->record;
    r->n = 0;
    put_little(r, t->event.n, 8);
    if (!r->failed)
        put_little(r, masked_crc(r->v, 8), 4);
    put(r, t->event.v, t->event.n);
    if (!t->event.failed)
        put_little(r, masked_crc(t->event.v, t->event.n), 4);
    if (r->failed || t->event.failed || t->summary.failed)
        return ENOMEM;
    return write_whole(t->fd, r->v, r->n);
}

/* --- the file --------------------------------------------------------------------------------- */

/* Every record of a file that readers may know it by: the format, and where the run goes on. */
static int write_head(struct cld_tensorboard *t, int64_t resume_step)
{
    static const char version[] = "brain.Event:2";
    struct bytes session = {NULL, 0, 0, false};
    begin_event(t, 0);
    put_bytes(&t->event, EVENT_FILE_VERSION, version, sizeof version - 1);
    int failed = write_event(t);
    if (failed || !resume_step)
        return failed;
    begin_event(t, resume_step + 1);
    put_key(&session, SESSION_STATUS, WIRE_VARINT);
    put_varint(&session, SESSION_START);
    put_bytes(&t->event, EVENT_SESSION_LOG, session.v, session.n);
    failed = session.failed ? ENOMEM : write_event(t);
    free(session.v);
    return failed;
}

/* TensorBoard takes files with "tfevents" in their names and reads them in the order of these. */
static int create(struct cld_tensorboard *t, const char *dir)
{
    char host[128] = "host";
    gethostname(host, sizeof host - 1);
    for (unsigned i = 0;; i++) {
        free(t->path);
        t->path = cld_format("%s/events.out.tfevents.%010lld.%s.%lld.%u", dir,
                             (long long)time(NULL), host, (long long)getpid(), i);
        if (!t->path)
            return ENOMEM;
        t->fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (t->fd >= 0 || errno != EEXIST)
            return t->fd >= 0 ? 0 : errno;
    }
}

enum cld_status cld_tensorboard_open(const char *dir, int64_t resume_step,
                                     struct cld_tensorboard **out, struct cld_error *err)
{
    struct cld_tensorboard *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return cld_fail_memory(err, "an event file");
    t->fd = -1;
    int failed = create(t, dir);
    if (!failed)
        failed = write_head(t, resume_step);
    if (failed) {
        cld_fail(err, CLD_E_IO,
                 failed == ENOSPC ? "free some space" : "or leave log.tensorboard off",
                 "%s: cannot write an event file: %s", dir, strerror(failed));
        cld_tensorboard_close(t);
        return err->status;
    }
    *out = t;
    return CLD_OK;
}

void cld_tensorboard_close(struct cld_tensorboard *t)
{
    if (!t)
        return;
    if (t->fd >= 0)
        close(t->fd);
    free(t->path);
    free(t->summary.v);
    free(t->event.v);
    free(t->record.v);
    free(t);
}

/* --- scalars ---------------------------------------------------------------------------------- */

static bool ends_in(const char *text, const char *with)
{
    size_t n = strlen(text), m = strlen(with);
    return n >= m && !strcmp(text + n - m, with);
}

/* Is it one of a row of keys, such as accuracy_7 or wait_slot_ms_0? */
static bool is_numbered(const char *key)
{
    const char *bar = strrchr(key, '_');
    return bar && bar[1] && !bar[1 + strspn(bar + 1, "0123456789")];
}

static void write_tag(const char *key, char *to, size_t n)
{
    static const char *const sides[][2] = {{"heldout_", "heldout"}, {"decoded_", "decoding"}};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        size_t length = strlen(sides[i][0]);
        if (!strncmp(key, sides[i][0], length)) {
            snprintf(to, n, "%s%s/%s", sides[i][1], is_numbered(key) ? "_position" : "",
                     key + length);
            return;
        }
    }
    bool is_speed = strstr(key, "_ms") || ends_in(key, "_per_s") || !strcmp(key, "ring_fill");
    snprintf(to, n, "%s/%s", is_speed ? "speed" : is_numbered(key) ? "position" : "train", key);
}

void cld_tensorboard_begin(struct cld_tensorboard *t, int64_t step)
{
    if (!t)
        return;
    t->step = step;
    t->summary.n = 0;
}

void cld_tensorboard_scalar(struct cld_tensorboard *t, const char *key, double value)
{
    char tag[96];
    struct bytes v = {NULL, 0, 0, false};
    if (!t || !isfinite(value))
        return;
    write_tag(key, tag, sizeof tag);
    put_bytes(&v, VALUE_TAG, tag, strlen(tag));
    put_float(&v, VALUE_SIMPLE, (float)value);
    put_bytes(&t->summary, SUMMARY_VALUE, v.v, v.n);
    t->summary.failed |= v.failed;
    free(v.v);
}

void cld_tensorboard_end(struct cld_tensorboard *t)
{
    if (!t || t->fd < 0)
        return;
    begin_event(t, t->step);
    put_bytes(&t->event, EVENT_SUMMARY, t->summary.v, t->summary.n);
    int failed = write_event(t);
    if (!failed)
        return;
    cld_warn("%s is no longer written: %s", t->path, strerror(failed));
    close(t->fd);
    t->fd = -1;
}
