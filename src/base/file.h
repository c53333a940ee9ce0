/* file.h - whole files in, crash-safe files out.
 *
 * Reading copies into our own memory (a mapped file may change underneath). Writing goes to
 * `path.tmp-PID`, is fsynced, renamed over `path`, and the directory is fsynced: a reader sees the
 * old file or the new one, never a part. Every failing operation is named in the error.
 * Any thread; a handle belongs to one thread. */
#ifndef CLD_BASE_FILE_H
#define CLD_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* The whole file, with one NUL byte after it that `n_bytes` does not count. *out is freed by the
 * caller with free(). CLD_E_INPUT if it cannot be read or is larger than `max_bytes` (0: 4 GiB). */
enum cld_status cld_file_read(const char *path, size_t max_bytes, char **out, size_t *n_bytes,
                              struct cld_error *err);

/* Opens a regular file for reading and returns its size; anything else is CLD_E_INPUT and *fd = -1.
 * The caller closes *fd. */
enum cld_status cld_file_open(const char *path, int *fd, uint64_t *n_bytes, struct cld_error *err);

/* Exactly n_bytes at `offset`, or CLD_E_INPUT. `fd` stays the caller's; `path` is for messages. */
enum cld_status cld_file_read_at(int fd, const char *path, uint64_t offset, void *to,
                                 size_t n_bytes, struct cld_error *err);

/* A file being written aside. Opened by _begin, filled by _put, made visible by _commit; _abort
 * removes what was written and is NULL-safe. After _commit (good or bad) the handle is gone. */
struct cld_file_writer;
enum cld_status cld_file_begin(const char *path, struct cld_file_writer **out,
                               struct cld_error *err);
enum cld_status cld_file_put(struct cld_file_writer *w, const void *bytes, size_t n_bytes,
                             struct cld_error *err);
enum cld_status cld_file_commit(struct cld_file_writer *w, struct cld_error *err);
void cld_file_abort(struct cld_file_writer *w);

/* begin + put + commit. CLD_E_IO on failure, the old file untouched. */
enum cld_status cld_file_write(const char *path, const void *bytes, size_t n_bytes,
                               struct cld_error *err);

bool cld_file_exists(const char *path);
bool cld_dir_exists(const char *path);

/* mkdir -p; CLD_E_IO if it cannot be made. */
enum cld_status cld_dir_make(const char *path, struct cld_error *err);

/* Makes a rename or unlink inside `path` durable (file systems that cannot do so pass). */
enum cld_status cld_dir_sync(const char *path, struct cld_error *err);

/* The names in a directory but . and .., in bytewise order; freed with _list_free. CLD_E_IO. */
enum cld_status cld_dir_list(const char *path, char ***names, size_t *n, struct cld_error *err);
void cld_dir_list_free(char **names, size_t n);

/* rm -r of a directory tree that we own. Missing is fine. */
enum cld_status cld_dir_remove(const char *path, struct cld_error *err);

/* malloc'd printf, for paths; NULL when out of memory. */
char *cld_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
