#include "opencl/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/size.h"

/* Raised with every change of struct header, or of what a payload means. */
static const uint32_t format = 1;
static const char magic[8] = "CLDCACHE"; /* no NUL: it fills the field */
static const char suffix[] = ".clbin";

enum { N_KEY = CLD_SHA256_HEX_BYTES - 1 };

/* In the byte order of the host: a file of another one has another format number. */
struct header {
    char magic[8];
    uint32_t format, header_bytes;
    uint64_t payload_bytes;
    char key[N_KEY], payload_sha256[N_KEY];
};
_Static_assert(sizeof(struct header) == 24 + 2 * N_KEY, "no padding goes to disk");

struct cld_cache {
    char *dir;
    size_t cap_bytes;
    size_t held_bytes; /* at the last look, with what was put since; others may have changed it */
    bool read_only;    /* a put failed */
};

/* --- the directory ---------------------------------------------------------------------------- */

enum cld_status cld_cache_dir(const char *setting, char **out, struct cld_error *err)
{
    *out = NULL;
    if (setting && !strcmp(setting, "off"))
        return CLD_OK;
    if (setting) {
        *out = cld_format("%s", setting);
    } else {
        const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
        if (cache && *cache == '/') { /* its specification ignores relative paths */
            *out = cld_format("%s/cldraft", cache);
        } else if (home && *home == '/') {
            *out = cld_format("%s/.cache/cldraft", home);
        } else {
            cld_warn("built programs are not stored: there is no HOME; set runtime.cache_dir");
            return CLD_OK;
        }
    }
    return *out ? CLD_OK : cld_fail_memory(err, "a path");
}

/* Makes the directory for us alone, the ones above it as usual. False with errno. */
static bool make_private(const char *dir)
{
    struct cld_error err;
    if (!mkdir(dir, 0700) || errno == EEXIST)
        return true;
    if (errno != ENOENT)
        return false;
    char *above = cld_format("%s", dir);
    char *slash = above ? strrchr(above, '/') : NULL;
    while (slash && slash > above && !slash[1]) { /* slashes at the end */
        *slash = 0;
        slash = strrchr(above, '/');
    }
    if (slash && slash > above) {
        *slash = 0;
        if (cld_dir_make(above, &err))
            cld_debug("%s", err.what);
    }
    free(above);
    return !mkdir(dir, 0700) || errno == EEXIST;
}

/* Why the directory cannot be a cache, or NULL. */
static const char *objection(const char *dir, char *text, size_t n_bytes)
{
    struct stat st;
    if (!make_private(dir) || stat(dir, &st)) {
        snprintf(text, n_bytes, "cannot be made: %s", strerror(errno));
        return text;
    }
    if (!S_ISDIR(st.st_mode))
        return "is not a directory";
    if (st.st_uid != geteuid()) {
        snprintf(text, n_bytes, "belongs to user %lu, not to us (%lu)", (unsigned long)st.st_uid,
                 (unsigned long)geteuid());
        return text;
    }
    if (st.st_mode & (S_IWGRP | S_IWOTH)) {
        snprintf(text, n_bytes,
                 "can be written by others (mode %04o), who could put code of theirs there; "
                 "chmod go-w it",
                 (unsigned)st.st_mode & 07777);
        return text;
    }
    if (access(dir, R_OK | W_OK | X_OK)) {
        snprintf(text, n_bytes, "cannot be used: %s", strerror(errno));
        return text;
    }
    return NULL;
}

/* --- the cap ---------------------------------------------------------------------------------- */

struct entry {
    char *path;
    size_t n_bytes;
    struct timespec used; /* modification time, which _get renews */
};

static int by_age(const void *a, const void *b)
{
    const struct timespec x = ((const struct entry *)a)->used, y = ((const struct entry *)b)->used;
    if (x.tv_sec != y.tv_sec)
        return x.tv_sec < y.tv_sec ? -1 : 1;
    return (x.tv_nsec > y.tv_nsec) - (x.tv_nsec < y.tv_nsec);
}

/* Entries, and what a killed process left of one ("KEY.clbin.tmp-PID"); others are not ours. */
static bool is_ours(const char *name)
{
    return strspn(name, "0123456789abcdef") == N_KEY &&
           !strncmp(name + N_KEY, suffix, sizeof suffix - 1);
}

/* Removes the oldest entries until at most max_bytes are left, and counts those. */
static void trim(struct cld_cache *c, size_t max_bytes)
{
    struct cld_error err;
    char **names = NULL;
    size_t n = 0, n_entries = 0, held = 0;
    struct stat st;
    if (cld_dir_list(c->dir, &names, &n, &err))
        return;
    struct entry *entries = calloc(cld_max(n, 1), sizeof *entries);
    for (size_t i = 0; entries && i < n; i++) {
        char *path = is_ours(names[i]) ? cld_format("%s/%s", c->dir, names[i]) : NULL;
        if (!path || lstat(path, &st) || !S_ISREG(st.st_mode)) {
            free(path);
            continue;
        }
        entries[n_entries++] = (struct entry){path, (size_t)st.st_size, st.st_mtim};
        held = cld_add(held, (size_t)st.st_size);
    }
    if (n_entries)
        qsort(entries, n_entries, sizeof *entries, by_age);
    for (size_t i = 0; i < n_entries; i++) {
        if (held > max_bytes && !unlink(entries[i].path))
            held -= entries[i].n_bytes;
        free(entries[i].path);
    }
    c->held_bytes = held;
    free(entries);
    cld_dir_list_free(names, n);
}

struct cld_cache *cld_cache_open(const char *dir, size_t cap_bytes)
{
    char text[160];
    const char *why = objection(dir, text, sizeof text);
    if (why) {
        cld_warn("built programs are not stored: %s %s", dir, why);
        return NULL;
    }
    struct cld_cache *c = calloc(1, sizeof *c);
    if (!c || !(c->dir = cld_format("%s", dir))) {
        free(c);
        return NULL;
    }
    c->cap_bytes = cap_bytes;
    trim(c, cap_bytes);
    return c;
}

void cld_cache_close(struct cld_cache *c)
{
    if (!c)
        return;
    free(c->dir);
    free(c);
}

const char *cld_cache_path(const struct cld_cache *c)
{
    return c->dir;
}

/* --- entries ---------------------------------------------------------------------------------- */

static void add_text(struct cld_sha256 *h, const char *text)
{
    uint64_t n = strlen(text); /* first, so that no two lists of texts give the same bytes */
    cld_sha256_add(h, &n, sizeof n);
    cld_sha256_add(h, text, (size_t)n);
}

void cld_cache_key(const char *const *texts, size_t n, char key[CLD_SHA256_HEX_BYTES])
{
    struct cld_sha256 h;
    const uint32_t ours[] = {format, sizeof(void *)};
    cld_sha256_begin(&h);
    cld_sha256_add(&h, ours, sizeof ours);
    for (size_t i = 0; i < n; i++)
        add_text(&h, texts[i]);
    cld_sha256_end(&h, key);
}

static char *path_of(const struct cld_cache *c, const char *key)
{
    return cld_format("%s/%s%s", c->dir, key, suffix);
}

void cld_cache_drop(const struct cld_cache *c, const char *key)
{
    char *path = path_of(c, key);
    if (path)
        unlink(path);
    free(path);
}

static const char *check(const struct header *h, const char *key, const void *payload,
                         size_t n_bytes)
{
    char hash[CLD_SHA256_HEX_BYTES];
    if (memcmp(h->magic, magic, sizeof magic))
        return "its first bytes are wrong";
    if (h->format != format || h->header_bytes != sizeof *h)
        return "it has another format";
    if (memcmp(h->key, key, N_KEY))
        return "it is of another key";
    if (h->payload_bytes != n_bytes)
        return "its length is wrong";
    cld_sha256_of(payload, n_bytes, hash);
    return memcmp(h->payload_sha256, hash, N_KEY) ? "its hash is wrong" : NULL;
}

/* Reads an open entry. Returns what is wrong with it, or NULL and the payload. */
static const char *read_entry(const struct cld_cache *c, int fd, const char *path, const char *key,
                              uint64_t n_file, unsigned char **out, size_t *n_bytes)
{
    struct cld_error err;
    struct header h;
    struct stat st;
    /* The directory was looked at by name, some time ago: the file itself must be ours too. */
    if (fstat(fd, &st) || st.st_uid != geteuid() || st.st_mode & (S_IWGRP | S_IWOTH))
        return "others can write it";
    if (n_file < sizeof h)
        return "it is too short";
    if (n_file > c->cap_bytes)
        return "it is too long";
    *n_bytes = (size_t)(n_file - sizeof h);
    if (!(*out = malloc(cld_max(*n_bytes, 1))))
        return "there is no memory to read it";
    if (cld_file_read_at(fd, path, 0, &h, sizeof h, &err) ||
        cld_file_read_at(fd, path, sizeof h, *out, *n_bytes, &err))
        return "it cannot be read";
    return check(&h, key, *out, *n_bytes);
}

bool cld_cache_get(const struct cld_cache *c, const char *key, unsigned char **out, size_t *n_bytes)
{
    struct cld_error err;
    const char *wrong = NULL;
    uint64_t n_file = 0;
    int fd = -1;
    char *path = path_of(c, key);
    *out = NULL;
    if (!path || cld_file_open(path, &fd, &n_file, &err)) {
        free(path);
        return false;
    }
    if ((wrong = read_entry(c, fd, path, key, n_file, out, n_bytes))) {
        cld_warn("%s: %s; it is deleted and rebuilt", path, wrong);
        unlink(path);
        free(*out);
        *out = NULL;
    } else if (futimens(fd, NULL)) { /* used now: among the last to go */
        cld_debug("%s: cannot set its time: %s", path, strerror(errno));
    }
    close(fd);
    free(path);
    return !wrong;
}

static enum cld_status write_entry(const char *path, const struct header *h, const void *payload,
                                   struct cld_error *err)
{
    struct cld_file_writer *w = NULL;
    enum cld_status s = cld_file_begin(path, &w, err);
    if (s)
        return s;
    if ((s = cld_file_put(w, h, sizeof *h, err)) ||
        (s = cld_file_put(w, payload, (size_t)h->payload_bytes, err))) {
        cld_file_abort(w);
        return s;
    }
    return cld_file_commit(w, err);
}

void cld_cache_put(struct cld_cache *c, const char *key, const void *payload, size_t n_bytes)
{
    struct cld_error err;
    struct header h = {.format = format, .header_bytes = sizeof h, .payload_bytes = n_bytes};
    char hash[CLD_SHA256_HEX_BYTES];
    size_t n_file = cld_add(sizeof h, n_bytes);
    char *path = NULL;
    if (c->read_only || n_file > c->cap_bytes)
        return;
    if (cld_add(c->held_bytes, n_file) > c->cap_bytes)
        trim(c, c->cap_bytes - n_file);
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.key, key, N_KEY);
    cld_sha256_of(payload, n_bytes, hash);
    memcpy(h.payload_sha256, hash, N_KEY);
    if (!(path = path_of(c, key)))
        return;
    if (write_entry(path, &h, payload, &err)) {
        cld_warn("built programs are no longer stored: %s", err.what);
        c->read_only = true;
    } else {
        c->held_bytes = cld_add(c->held_bytes, n_file);
    }
    free(path);
}
