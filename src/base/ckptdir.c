#define _GNU_SOURCE /* renameat2 */
#include "base/ckptdir.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/manifest.h"

struct cld_ckptdir {
    char *parent, *name;
    char *aside; /* PARENT/NAME.tmp-PID */
    char *final; /* PARENT/NAME */
    char *old;   /* PARENT/NAME.old-PID */
};

static enum cld_status no_memory(struct cld_error *err, const char *path)
{
    return cld_fail_memory(err, "a path of %s", path);
}

static enum cld_status io_failed(struct cld_error *err, const char *op, const char *path)
{
    return cld_fail(err, CLD_E_IO, cld_io_hint(errno), "%s: %s failed: %s", path, op,
                    strerror(errno));
}

static void ckptdir_free(struct cld_ckptdir *d)
{
    if (!d)
        return;
    free(d->parent);
    free(d->name);
    free(d->aside);
    free(d->final);
    free(d->old);
    free(d);
}

static enum cld_status check_space(const char *parent, uint64_t n_bytes, struct cld_error *err)
{
    struct statvfs fs;
    if (statvfs(parent, &fs))
        return io_failed(err, "statvfs", parent);
    double available = (double)fs.f_bavail * (double)fs.f_frsize, wanted = 1.1 * (double)n_bytes;
    if (fs.f_blocks && available < wanted) /* no blocks at all: a file system that does not count */
        return cld_fail(err, CLD_E_IO, "free some space, or keep fewer checkpoints",
                        "%s: %.0f bytes are free, a checkpoint of %" PRIu64
                        " bytes and a tenth more needs %.0f",
                        parent, available, n_bytes, wanted);
    return CLD_OK;
}

enum cld_status cld_ckptdir_begin(const char *parent, const char *name, uint64_t n_bytes,
                                  struct cld_ckptdir **out, struct cld_error *err)
{
    enum cld_status s;
    struct cld_ckptdir *d = calloc(1, sizeof *d);
    *out = NULL;
    if (d) {
        long pid = (long)getpid();
        d->parent = cld_format("%s", parent);
        d->name = cld_format("%s", name);
        d->aside = cld_format("%s/%s.tmp-%ld", parent, name, pid);
        d->final = cld_format("%s/%s", parent, name);
        d->old = cld_format("%s/%s.old-%ld", parent, name, pid);
    }
    if (!d || !d->parent || !d->name || !d->aside || !d->final || !d->old) {
        s = no_memory(err, parent);
        goto done;
    }
    if ((s = cld_dir_make(parent, err)) || (s = check_space(parent, n_bytes, err)) ||
        (s = cld_dir_remove(d->aside, err))) /* of an earlier process that had our PID */
        goto done;
    if (mkdir(d->aside, 0755)) {
        s = io_failed(err, "mkdir", d->aside);
        goto done;
    }
    *out = d;
    d = NULL;
done:
    ckptdir_free(d);
    return s;
}

const char *cld_ckptdir_path(const struct cld_ckptdir *d)
{
    return d->aside;
}

/* A later prune removes what is left. */
static void remove_or_warn(const char *path)
{
    struct cld_error why = CLD_ERROR_INIT;
    if (cld_dir_remove(path, &why))
        cld_warn("%s", why.what);
}

void cld_ckptdir_abort(struct cld_ckptdir *d)
{
    if (!d)
        return;
    remove_or_warn(d->aside);
    ckptdir_free(d);
}

static enum cld_status sync_file(const char *path, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return io_failed(err, "open", path);
    if (fsync(fd))
        s = io_failed(err, "fsync", path);
    close(fd);
    return s;
}

/* Every file of `dir`, however it was written. */
static enum cld_status sync_files(const char *dir, struct cld_error *err)
{
    char **names;
    size_t n;
    enum cld_status s = cld_dir_list(dir, &names, &n, err);
    for (size_t i = 0; i < n && !s; i++) {
        char *path = cld_format("%s/%s", dir, names[i]);
        s = path ? sync_file(path, err) : no_memory(err, dir);
        free(path);
    }
    cld_dir_list_free(names, n);
    return s;
}

static bool has_manifest(const char *dir)
{
    char *path = cld_format("%s/" CLD_MANIFEST_NAME, dir);
    bool has = path && cld_file_exists(path);
    free(path);
    return has;
}

/* Renames PARENT/NAME to the first free one of WHY-NAME, WHY-NAME.2, WHY-NAME.3, ... */
static enum cld_status set_aside(const char *parent, const char *name, const char *why,
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *from = cld_format("%s/%s", parent, name), *to = cld_format("%s/%s-%s", parent, why, name);
    struct stat st;
    for (int k = 2; to && !lstat(to, &st); k++) {
        free(to);
        to = cld_format("%s/%s-%s.%d", parent, why, name, k);
    }
    if (!from || !to)
        s = no_memory(err, parent);
    else if (rename(from, to))
        s = io_failed(err, "rename to set it aside", from);
    else
        cld_warn("%s is kept as %s", from, to);
    free(from);
    free(to);
    return s;
}

/* Puts d->aside in the place of an existing d->final, which is then at d->aside or d->old. */
static enum cld_status replace(const struct cld_ckptdir *d, struct cld_error *err)
{
    if (!renameat2(AT_FDCWD, d->aside, AT_FDCWD, d->final, RENAME_EXCHANGE))
        return CLD_OK;
    /* NFS and others cannot: two renames; repair() knows what to do if we die between them. */
    if (rename(d->final, d->old))
        return io_failed(err, "rename", d->final);
    if (rename(d->aside, d->final)) {
        enum cld_status s = io_failed(err, "rename", d->aside);
        if (rename(d->old, d->final))
            cld_warn("%s could not be put back: %s; it is at %s", d->final, strerror(errno),
                     d->old);
        return s;
    }
    return CLD_OK;
}

enum cld_status cld_ckptdir_commit(struct cld_ckptdir *d, struct cld_error *err)
{
    struct stat st;
    enum cld_status s;
    /* The manifest, as the last file, brings the fsync of the directory with it. */
    if ((s = sync_files(d->aside, err)) || (s = cld_manifest_write(d->aside, err)))
        goto done;
    bool taken = !lstat(d->final, &st);
    if (taken && !has_manifest(d->final)) {
        if ((s = set_aside(d->parent, d->name, "bad", err)))
            goto done;
        taken = false;
    }
    if (taken) {
        if ((s = replace(d, err)))
            goto done;
    } else if (rename(d->aside, d->final)) {
        s = io_failed(err, "rename", d->aside);
        goto done;
    }
    if ((s = cld_dir_sync(d->parent, err))) {
        ckptdir_free(d); /* not known to be durable: what was replaced must stay */
        d = NULL;
        goto done;
    }
    remove_or_warn(d->old);
done:
    /* d->aside is now what was replaced, or a failure's remains, or nothing. */
    cld_ckptdir_abort(d);
    return s;
}

/* --- the row of checkpoints --- */

enum kind { OTHER, STEP, LEFT_TMP, LEFT_OLD };

/* step-N, step-N.tmp-PID, step-N.old-PID; best.tmp-PID is a leftover too (of no step: -1). */
static enum kind classify(const char *name, int64_t *step, long *pid)
{
    char again[96];
    const char *rest = name;
    char *end;
    *step = -1;
    if (!strncmp(name, "step-", 5)) {
        errno = 0;
        *step = strtoll(name + 5, &end, 10);
        rest = end;
        snprintf(again, sizeof again, "step-%" PRId64, *step);
        if (errno || *step < 0 || strncmp(again, name, strlen(again)) ||
            strlen(again) != (size_t)(rest - name)) /* signs, spaces, leading zeros */
            return OTHER;
        if (!*rest)
            return STEP;
    } else if (!strncmp(name, "best.tmp-", 9)) {
        rest = name + 4;
    }
    enum kind kind = !strncmp(rest, ".tmp-", 5)   ? LEFT_TMP
                     : !strncmp(rest, ".old-", 5) ? LEFT_OLD
                                                  : OTHER;
    if (kind == OTHER || rest == name)
        return OTHER;
    *pid = strtol(rest + 5, &end, 10);
    return rest[5] && !*end && *pid > 0 ? kind : OTHER;
}

/* Our own count as leftovers: the caller is not writing. */
static bool is_abandoned(long pid)
{
    return pid == (long)getpid() || (kill((pid_t)pid, 0) && errno == ESRCH);
}

static enum cld_status verify_step(const char *parent, int64_t step, struct cld_error *err)
{
    char *path = cld_format("%s/step-%" PRId64, parent, step);
    enum cld_status s = path ? cld_manifest_verify(path, err) : no_memory(err, parent);
    free(path);
    return s;
}

/* A replacement by two renames was cut: NAME.old-PID is the good old one. It goes back if there is
 * no NAME, and goes away if there is one that verifies. */
static enum cld_status repair(const char *parent, const char *left, int64_t step,
                              struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_error why = CLD_ERROR_INIT;
    char *old = cld_format("%s/%s", parent, left);
    char *final = cld_format("%s/step-%" PRId64, parent, step);
    if (!old || !final)
        s = no_memory(err, parent);
    else if (cld_dir_exists(final))
        s = verify_step(parent, step, &why) ? CLD_OK : cld_dir_remove(old, err);
    else if (cld_manifest_verify(old, &why))
        cld_warn("%s is not used: %s", old, why.what);
    else if (rename(old, final))
        s = io_failed(err, "rename", old);
    free(old);
    free(final);
    return s;
}

static int newest_first(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x < *y) - (*x > *y);
}

/* Numbers of all step-N in PARENT, newest first, after repairs; with `clean` also removes half
 * written leftovers. *steps is freed by the caller. */
static enum cld_status list_steps(const char *parent, bool clean, int64_t **steps, size_t *n_steps,
                                  struct cld_error *err)
{
    char **names;
    size_t n;
    int64_t step;
    long pid;
    bool repaired = false;
    *steps = NULL;
    *n_steps = 0;
    enum cld_status s = cld_dir_list(parent, &names, &n, err);
    for (size_t i = 0; i < n && !s; i++) {
        enum kind kind = classify(names[i], &step, &pid);
        if ((kind != LEFT_TMP && kind != LEFT_OLD) || !is_abandoned(pid))
            continue;
        if (kind == LEFT_OLD) {
            s = repair(parent, names[i], step, err);
            repaired = true;
        } else if (clean) {
            char *path = cld_format("%s/%s", parent, names[i]);
            s = path ? cld_dir_remove(path, err) : no_memory(err, parent);
            free(path);
        }
    }
    if (repaired && !s) {
        cld_dir_list_free(names, n);
        s = cld_dir_list(parent, &names, &n, err);
    }
    if (!s && !(*steps = malloc((n + 1) * sizeof **steps)))
        s = no_memory(err, parent);
    for (size_t i = 0; i < n && !s; i++)
        if (classify(names[i], &step, &pid) == STEP)
            (*steps)[(*n_steps)++] = step;
    if (!s)
        qsort(*steps, *n_steps, sizeof **steps, newest_first);
    cld_dir_list_free(names, n);
    return s;
}

enum cld_status cld_ckptdir_latest(const char *parent, bool set_bad_aside, char **path,
                                   int64_t *step, struct cld_error *err)
{
    int64_t *steps = NULL;
    size_t n = 0;
    *path = NULL;
    *step = -1;
    if (!cld_dir_exists(parent))
        return CLD_OK;
    enum cld_status s = list_steps(parent, false, &steps, &n, err);
    for (size_t i = 0; i < n && !s; i++) {
        struct cld_error why = CLD_ERROR_INIT;
        enum cld_status verified = verify_step(parent, steps[i], &why);
        if (!verified) {
            *path = cld_format("%s/step-%" PRId64, parent, steps[i]);
            *step = steps[i];
            s = *path ? CLD_OK : no_memory(err, parent);
            break;
        }
        if (verified != CLD_E_INPUT) { /* no memory to look: says nothing about the checkpoint */
            *err = why;
            s = verified;
            break;
        }
        cld_warn("checkpoint skipped: %s", why.what);
        if (set_bad_aside) {
            char name[32];
            snprintf(name, sizeof name, "step-%" PRId64, steps[i]);
            s = set_aside(parent, name, "bad", err);
        }
    }
    free(steps);
    return s;
}

enum cld_status cld_ckptdir_mark_best(const char *parent, int64_t step, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char name[32];
    char *link = cld_format("%s/best", parent);
    char *aside = cld_format("%s/best.tmp-%ld", parent, (long)getpid());
    snprintf(name, sizeof name, "step-%" PRId64, step);
    if (!link || !aside) {
        s = no_memory(err, parent);
        goto done;
    }
    unlink(aside); /* of an earlier process that had our PID */
    if (symlink(name, aside))
        s = io_failed(err, "symlink", aside);
    else if (rename(aside, link))
        s = io_failed(err, "rename", aside);
    else
        s = cld_dir_sync(parent, err);
done:
    free(link);
    free(aside);
    return s;
}

/* The step that PARENT/best points at, -1 if none. */
static int64_t best_step(const char *parent)
{
    char name[64] = "";
    long pid;
    int64_t step = -1;
    char *link = cld_format("%s/best", parent);
    ssize_t n = link ? readlink(link, name, sizeof name - 1) : -1;
    free(link);
    return n > 0 && classify(name, &step, &pid) == STEP ? step : -1;
}

/* A `best` that names a later step names this one's best instead, or goes if that is not there. */
static enum cld_status rewind_best(const char *parent, int64_t step, int64_t best,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (best_step(parent) <= step)
        return CLD_OK;
    char *link = cld_format("%s/best", parent);
    char *there = cld_format("%s/step-%" PRId64, parent, best);
    if (!link || !there)
        s = no_memory(err, parent);
    else if (best >= 0 && best <= step && cld_dir_exists(there))
        s = cld_ckptdir_mark_best(parent, best, err);
    else if (unlink(link))
        s = io_failed(err, "unlink", link);
    free(link);
    free(there);
    return s;
}

enum cld_status cld_ckptdir_rewind(const char *parent, int64_t step, int64_t best,
                                   struct cld_error *err)
{
    int64_t *steps = NULL;
    size_t n = 0;
    if (!cld_dir_exists(parent))
        return CLD_OK;
    enum cld_status s = list_steps(parent, false, &steps, &n, err);
    if (!s)
        s = rewind_best(parent, step, best, err);
    for (size_t i = 0; i < n && steps[i] > step && !s; i++) {
        char name[32];
        snprintf(name, sizeof name, "step-%" PRId64, steps[i]);
        s = set_aside(parent, name, "old", err);
    }
    free(steps);
    return s ? s : cld_dir_sync(parent, err);
}

/* PARENT/NAME, of step N, is renamed before it is removed, so that it is whole or not there. */
static enum cld_status discard(const char *parent, const char *name, int64_t step,
                               struct cld_error *err)
{
    enum cld_status s;
    char *path = cld_format("%s/%s", parent, name);
    char *doomed = cld_format("%s/step-%" PRId64 ".tmp-%ld", parent, step, (long)getpid());
    if (!path || !doomed)
        s = no_memory(err, parent);
    else if (rename(path, doomed))
        s = io_failed(err, "rename", path);
    else
        s = cld_dir_remove(doomed, err);
    free(path);
    free(doomed);
    return s;
}

/* The N of old-step-N or old-step-N.K, as set_aside names them; -1: another name. */
static int64_t old_step(const char *name)
{
    char base[40];
    long pid;
    int64_t step = -1;
    if (strncmp(name, "old-", 4))
        return -1;
    size_t n = strcspn(name + 4, ".");
    const char *suffix = name + 4 + n;
    size_t n_digits = *suffix ? strspn(suffix + 1, "0123456789") : 0;
    if (n >= sizeof base || (*suffix && (!n_digits || suffix[1 + n_digits])))
        return -1;
    memcpy(base, name + 4, n);
    base[n] = 0;
    return classify(base, &step, &pid) == STEP ? step : -1;
}

/* Those of another course go once this one has come as far as they had. */
static enum cld_status discard_old(const char *parent, int64_t reached, struct cld_error *err)
{
    char **names;
    size_t n;
    enum cld_status s = cld_dir_list(parent, &names, &n, err);
    for (size_t i = 0; i < n && !s; i++) {
        int64_t step = old_step(names[i]);
        char *path = cld_format("%s/%s", parent, names[i]);
        if (!path)
            s = no_memory(err, parent);
        else if (step >= 0 && step <= reached && has_manifest(path))
            s = discard(parent, names[i], step, err);
        free(path);
    }
    cld_dir_list_free(names, n);
    return s;
}

enum cld_status cld_ckptdir_prune(const char *parent, size_t keep, int64_t also_keep,
                                  struct cld_error *err)
{
    int64_t *steps = NULL;
    size_t n = 0;
    enum cld_status s = list_steps(parent, true, &steps, &n, err);
    if (s || !keep || !n || (s = verify_step(parent, steps[0], err)))
        goto done;
    int64_t best = best_step(parent);
    for (size_t i = keep; i < n && !s; i++)
        if (steps[i] != also_keep && steps[i] != best) {
            char name[32];
            snprintf(name, sizeof name, "step-%" PRId64, steps[i]);
            s = discard(parent, name, steps[i], err);
        }
    if (!s)
        s = discard_old(parent, steps[0], err);
done:
    free(steps);
    return s;
}
