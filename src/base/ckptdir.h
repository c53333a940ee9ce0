/* ckptdir.h - directories that appear whole or not at all, and the row of checkpoints step-N.
 *
 * Files are written into PARENT/NAME.tmp-PID; commit writes the manifest, fsyncs everything,
 * renames the directory to PARENT/NAME and fsyncs PARENT. Where NAME exists already, the two change
 * places in one step, so that at no moment is there no NAME; a file system that cannot do this
 * keeps the old one as NAME.old-PID for that moment, and the next _latest or _prune puts it back if
 * need be.
 *
 * Checkpoints are named step-N (decimal, no leading zeros). The search for the newest deletes
 * nothing: what does not verify is skipped with a warning and, where asked, renamed to bad-step-N.
 * `best` is a symbolic link.
 *
 * Threads and processes: one thread at a time works on a PARENT, on one machine (the PIDs of
 * another mean nothing here), and does not prune while it has a directory open for writing. _latest
 * without set_bad_aside may be called beside a process that trains. */
#ifndef CLD_BASE_CKPTDIR_H
#define CLD_BASE_CKPTDIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct cld_ckptdir; /* a directory being written */

/* Makes PARENT (as mkdir -p) and PARENT/NAME.tmp-PID. First checks that 1.1 x n_bytes are free:
 * CLD_E_IO with the numbers otherwise. */
enum cld_status cld_ckptdir_begin(const char *parent, const char *name, uint64_t n_bytes,
                                  struct cld_ckptdir **out, struct cld_error *err);

/* Where to put files (no sub-directories) until the commit; lives as long as the handle. */
const char *cld_ckptdir_path(const struct cld_ckptdir *d);

/* Makes it visible as PARENT/NAME. What was there is removed if it has a manifest, else it is not
 * ours to remove and is renamed to bad-NAME. The handle is gone either way; on failure so are the
 * files, and an earlier NAME is as it was. */
enum cld_status cld_ckptdir_commit(struct cld_ckptdir *d, struct cld_error *err);
void cld_ckptdir_abort(struct cld_ckptdir *d); /* removes the files; NULL-safe */

/* The newest step-N that verifies: *path (the caller frees it) and *step. *path is NULL, with
 * CLD_OK, if there is none or no PARENT. Newer ones that do not verify are warned about, and
 * renamed to bad-step-N if `set_bad_aside`. */
enum cld_status cld_ckptdir_latest(const char *parent, bool set_bad_aside, char **path,
                                   int64_t *step, struct cld_error *err);

/* Points PARENT/best at step-N, in one step. */
enum cld_status cld_ckptdir_mark_best(const char *parent, int64_t step, struct cld_error *err);

/* The run of PARENT goes on from `step`: later ones, which another course of it left, are renamed
 * to old-step-N, so that the newest is always the present course's. A `best` among them names step
 * `best` instead (-1: none), or goes if that is not there. No PARENT is fine. */
enum cld_status cld_ckptdir_rewind(const char *parent, int64_t step, int64_t best,
                                   struct cld_error *err);

/* Removes what dead processes left half written. Then, if the newest step-N verifies (its error
 * otherwise, and nothing more is removed), removes all but the `keep` newest, the step `also_keep`
 * (-1: none) and the one that `best` names, and what a rewind left of another course up to the
 * newest's step. keep = 0 keeps all. */
enum cld_status cld_ckptdir_prune(const char *parent, size_t keep, int64_t also_keep,
                                  struct cld_error *err);

#endif
