#define _GNU_SOURCE /* vasprintf, nftw */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/grow.h"

char *cld_format(const char *fmt, ...)
{
    char *s = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    return n < 0 ? NULL : s;
}

enum cld_status cld_file_read_at(int fd, const char *path, uint64_t offset, void *to,
                                 size_t n_bytes, struct cld_error *err)
{
    char *p = to;
    size_t done = 0;
    while (done < n_bytes) {
        ssize_t n = pread(fd, p + done, n_bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return cld_fail(err, CLD_E_INPUT, "check that the file is whole and the disk works",
                            "%s: read of %zu bytes at %llu failed: %s", path, n_bytes,
                            (unsigned long long)offset, strerror(errno));
        if (n == 0)
            return cld_fail(err, CLD_E_INPUT, "the file is truncated; fetch or copy it again",
                            "%s: ends after %zu of %zu bytes wanted at %llu", path, done, n_bytes,
                            (unsigned long long)offset);
        done += (size_t)n;
    }
    return CLD_OK;
}

enum cld_status cld_file_open(const char *path, int *fd, uint64_t *n_bytes, struct cld_error *err)
{
    struct stat st;
    /* Without O_NONBLOCK a named pipe would keep us here for ever; regular files do not care. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return cld_fail(err, CLD_E_INPUT, "check the path and its permissions",
                        "%s: cannot open: %s", path, strerror(errno));
    if (fstat(*fd, &st) || !S_ISREG(st.st_mode)) {
        close(*fd);
        *fd = -1;
        return cld_fail(err, CLD_E_INPUT, "name a file", "%s: not a regular file", path);
    }
    *n_bytes = (uint64_t)st.st_size;
    return CLD_OK;
}

enum cld_status cld_file_read(const char *path, size_t max_bytes, char **out, size_t *n_bytes,
                              struct cld_error *err)
{
    char *data = NULL;
    uint64_t size;
    int fd;
    *out = NULL;
    if (!max_bytes)
        max_bytes = (size_t)4 << 30;
    enum cld_status s = cld_file_open(path, &fd, &size, err);
    if (s)
        return s;
    if (size > max_bytes) {
        s = cld_fail(err, CLD_E_INPUT, "name another file, or make this one smaller",
                     "%s: %llu bytes, at most %zu are read here", path, (unsigned long long)size,
                     max_bytes);
        goto done;
    }
    *n_bytes = (size_t)size;
    data = malloc(*n_bytes + 1);
    if (!data) {
        s = cld_fail_memory(err, "the %zu bytes of %s", *n_bytes, path);
        goto done;
    }
    if ((s = cld_file_read_at(fd, path, 0, data, *n_bytes, err)))
        goto done;
    data[*n_bytes] = 0;
    *out = data;
    data = NULL;
done:
    free(data);
    close(fd);
    return s;
}

struct cld_file_writer {
    int fd;
    char *path, *aside;
};

static void writer_free(struct cld_file_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    free(w->path);
    free(w->aside);
    free(w);
}

enum cld_status cld_file_begin(const char *path, struct cld_file_writer **out,
                               struct cld_error *err)
{
    struct cld_file_writer *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w) {
        w->fd = -1;
        w->path = cld_format("%s", path);
        w->aside = cld_format("%s.tmp-%ld", path, (long)getpid());
    }
    if (!w || !w->path || !w->aside) {
        writer_free(w);
        return cld_fail_memory(err, "opening %s", path);
    }
    struct stat st;
    if (!stat(path, &st) && !S_ISREG(st.st_mode)) { /* renaming would replace a device by a file */
        enum cld_status s =
            cld_fail(err, CLD_E_IO, "name a file", "%s: is there, and is no regular file", path);
        writer_free(w);
        return s;
    }
    w->fd = open(w->aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (w->fd < 0) {
        enum cld_status s = cld_fail(err, CLD_E_IO, "check that the directory exists and is yours",
                                     "%s: cannot create: %s", w->aside, strerror(errno));
        writer_free(w);
        return s;
    }
    *out = w;
    return CLD_OK;
}

enum cld_status cld_file_put(struct cld_file_writer *w, const void *bytes, size_t n_bytes,
                             struct cld_error *err)
{
    const char *p = bytes;
    while (n_bytes) {
        ssize_t n = write(w->fd, p, n_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return cld_fail(err, CLD_E_IO, cld_io_hint(errno), "%s: write failed: %s", w->aside,
                            strerror(errno));
        p += n;
        n_bytes -= (size_t)n;
    }
    return CLD_OK;
}

enum cld_status cld_dir_sync(const char *path, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return cld_fail(err, CLD_E_IO, cld_io_hint(errno), "%s: cannot open directory: %s", path,
                        strerror(errno));
    /* EINVAL and EBADF: a file system that cannot sync directories; nothing better can be done. */
    if (fsync(fd) && errno != EINVAL && errno != EBADF)
        s = cld_fail(err, CLD_E_IO, cld_io_hint(errno), "%s: fsync of the directory failed: %s",
                     path, strerror(errno));
    close(fd);
    return s;
}

static enum cld_status sync_parent(const char *path, struct cld_error *err)
{
    char *dir = cld_format("%s", path);
    if (!dir)
        return cld_fail_memory(err, "the data of %s", path);
    char *slash = strrchr(dir, '/');
    if (slash == dir)
        slash[1] = 0;
    else if (slash)
        *slash = 0;
    enum cld_status s = cld_dir_sync(slash ? dir : ".", err);
    free(dir);
    return s;
}

enum cld_status cld_file_commit(struct cld_file_writer *w, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const char *op = NULL;
    if (fsync(w->fd))
        op = "fsync";
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) && !op)
        op = "close";
    if (!op && rename(w->aside, w->path))
        op = "rename";
    if (op) {
        s = cld_fail(err, CLD_E_IO, cld_io_hint(errno), "%s: %s failed: %s", w->aside, op,
                     strerror(errno));
        unlink(w->aside);
    } else {
        s = sync_parent(w->path, err);
    }
    writer_free(w);
    return s;
}

void cld_file_abort(struct cld_file_writer *w)
{
    if (!w)
        return;
    unlink(w->aside);
    writer_free(w);
}

enum cld_status cld_file_write(const char *path, const void *bytes, size_t n_bytes,
                               struct cld_error *err)
{
    struct cld_file_writer *w = NULL;
    enum cld_status s = cld_file_begin(path, &w, err);
    if (s)
        return s;
    if ((s = cld_file_put(w, bytes, n_bytes, err))) {
        cld_file_abort(w);
        return s;
    }
    return cld_file_commit(w, err);
}

bool cld_file_exists(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode);
}

bool cld_dir_exists(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

enum cld_status cld_dir_make(const char *path, struct cld_error *err)
{
    char *p = cld_format("%s", path);
    if (!p)
        return cld_fail_memory(err, "the data of %s", path);
    enum cld_status s = CLD_OK;
    for (char *at = p + 1;; at++) {
        if (*at && *at != '/')
            continue;
        char c = *at;
        *at = 0;
        if (mkdir(p, 0755) && !cld_dir_exists(p)) {
            s = cld_fail(err, CLD_E_IO, "choose a directory that you may write to",
                         "%s: cannot make directory: %s", p, strerror(errno));
            break;
        }
        *at = c;
        if (!c)
            break;
    }
    free(p);
    return s;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void cld_dir_list_free(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

enum cld_status cld_dir_list(const char *path, char ***names, size_t *n, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct dirent *entry;
    size_t capacity = 0;
    *names = NULL;
    *n = 0;
    DIR *dir = opendir(path);
    if (!dir)
        return cld_fail(err, CLD_E_IO, cld_io_hint(errno), "%s: cannot list: %s", path,
                        strerror(errno));
    while (errno = 0, (entry = readdir(dir))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (cld_grow(names, &capacity, *n + 1, sizeof **names, err) ||
            !((*names)[*n] = cld_format("%s", entry->d_name)))
            break;
        ++*n;
    }
    if (entry || errno) {
        s = entry ? cld_fail_memory(err, "listing %s", path)
                  : cld_fail(err, CLD_E_IO, cld_io_hint(errno), "%s: cannot list: %s", path,
                             strerror(errno));
        cld_dir_list_free(*names, *n);
        *names = NULL;
        *n = 0;
    } else if (*n) {
        qsort(*names, *n, sizeof **names, by_bytes);
    }
    closedir(dir);
    return s;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

enum cld_status cld_dir_remove(const char *path, struct cld_error *err)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) && errno != ENOENT)
        return cld_fail(err, CLD_E_IO, cld_io_hint(errno), "%s: cannot remove: %s", path,
                        strerror(errno));
    return CLD_OK;
}
