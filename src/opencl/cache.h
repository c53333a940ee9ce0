/* cache.h - built programs on disk, from one start to the next: a directory of checked files.
 *
 * An entry is what a driver gave for one program; its key is the hash of all that the program
 * depends on. Entries are code that will run, so the directory must belong to the user, who alone
 * may write it, and an entry counts only if every check of it passes. Nothing here is ever an error
 * of the run: without a usable directory there is no cache, and an entry in any doubt is removed
 * and is missing.
 *
 * Any number of threads and processes may use one directory: entries are written aside and renamed,
 * and one that another removes is missing, no more. A handle belongs to one thread; threads of one
 * process must not put at the same time (program.c does it under the build lock).
 *
 * File KEY.clbin: struct header of cache.c, then the payload. */
#ifndef CLD_OPENCL_CACHE_H
#define CLD_OPENCL_CACHE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/sha256.h"

/* A cache holds at most so much; a training run needs a few MiB for a device. */
#define CLD_CACHE_CAP_BYTES ((size_t)512 << 20)

struct cld_cache;

/* What runtime.cache_dir means, in *out (freed by the caller): NULL is $XDG_CACHE_HOME/cldraft or
 * ~/.cache/cldraft, "off" is no cache (*out = NULL), all else a path. Without a home directory *out
 * is NULL after a warning. CLD_E_MEMORY. */
enum cld_status cld_cache_dir(const char *setting, char **out, struct cld_error *err);

/* Uses `dir`, which is made with mode 0700 if missing. NULL after a warning that says why it cannot
 * be used: not ours, writable by others, not writable by us, no directory. */
struct cld_cache *cld_cache_open(const char *dir, size_t cap_bytes);
void cld_cache_close(struct cld_cache *c); /* NULL is fine; files stay */
const char *cld_cache_path(const struct cld_cache *c);

/* The key of n texts: of each with its length, of the width of a pointer and of the file format. */
void cld_cache_key(const char *const *texts, size_t n, char key[CLD_SHA256_HEX_BYTES]);

/* True: the payload of `key`, in *out (freed by the caller with free()). False: there is none, or
 * it was damaged and is gone now (said in a warning). */
bool cld_cache_get(const struct cld_cache *c, const char *key, unsigned char **out,
                   size_t *n_bytes);

/* Keeps a payload; the oldest used entries are removed where it would pass the cap. A failure is
 * said in a warning, after which this handle puts no more (the disk is full, or worse). */
void cld_cache_put(struct cld_cache *c, const char *key, const void *payload, size_t n_bytes);

/* Removes an entry that could not be used; missing is fine. */
void cld_cache_drop(const struct cld_cache *c, const char *key);

#endif
