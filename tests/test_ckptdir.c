/* The checkpoint protocol under kill -9 and under failing system calls, at every step of it.
 *
 * The functions that change the disk are defined here, before the C library's, and count down to
 * the moment where the process dies or the call fails. */
#define _GNU_SOURCE /* renameat2, unshare */
#include "base/ckptdir.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/log.h"
#include "base/manifest.h"
#include "formats/safetensors.h"
#include "temp_dir.h"

static struct {
    enum { NO_FAULT, DIE, FAIL } kind;
    unsigned countdown; /* calls before it */
    int error;          /* errno of FAIL, which happens once */
    bool fired;
    bool no_exchange; /* as on a file system without RENAME_EXCHANGE */
} fault;

/* What was fsynced, by inode, and what was renamed (0), in order. */
static struct {
    ino_t inodes[64];
    size_t n;
} events;

static void record(ino_t inode)
{
    if (events.n < sizeof events.inodes / sizeof *events.inodes)
        events.inodes[events.n++] = inode;
}

static bool now(void)
{
    if (fault.kind == NO_FAULT || fault.fired || fault.countdown--)
        return false;
    fault.fired = true;
    if (fault.kind == DIE)
        kill(getpid(), SIGKILL);
    errno = fault.error;
    return true;
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    if (fault.kind == DIE && !fault.fired && !fault.countdown) /* half of it gets through */
        syscall(SYS_write, fd, bytes, n / 2);
    return now() ? -1 : syscall(SYS_write, fd, bytes, n);
}

int fsync(int fd)
{
    struct stat st;
    record(fstat(fd, &st) ? 0 : st.st_ino);
    return now() ? -1 : (int)syscall(SYS_fsync, fd);
}

int mkdir(const char *path, mode_t mode)
{
    return now() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int symlink(const char *to, const char *path)
{
    return now() ? -1 : (int)syscall(SYS_symlinkat, to, AT_FDCWD, path);
}

int rename(const char *from, const char *to)
{
    record(0);
    return now() ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    if (fault.no_exchange) {
        errno = EINVAL;
        return -1;
    }
    return now() ? -1 : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}

int remove(const char *path)
{
    if (now())
        return -1;
    int failed = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (failed && errno == EISDIR)
        failed = (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
    return failed;
}

/* Step N with a tensor file whose bytes are all `mark` and a small state file. */
static enum cld_status write_step(const char *parent, int step, char mark, size_t n_elems,
                                  struct cld_error *err)
{
    struct cld_safetensors_spec spec = {"x", CLD_U8, 1, {n_elems}, 0};
    struct cld_safetensors_writer *w = NULL;
    struct cld_ckptdir *d = NULL;
    char *name = cld_format("step-%d", step), *weights = NULL, *state = NULL;
    char *data = malloc(n_elems);
    assert_true(name && data);
    memset(data, mark, n_elems);
    enum cld_status s = cld_ckptdir_begin(parent, name, 0, &d, err);
    if (s)
        goto done;
    weights = cld_format("%s/drafter.safetensors", cld_ckptdir_path(d));
    state = cld_format("%s/state.json", cld_ckptdir_path(d));
    if ((s = cld_safetensors_begin(weights, &spec, 1, NULL, 0, &w, err)) ||
        (s = cld_safetensors_put(w, 0, data, n_elems, err)))
        goto done;
    s = cld_safetensors_commit(w, err);
    w = NULL;
    if (s || (s = cld_file_write(state, &mark, 1, err)))
        goto done;
    s = cld_ckptdir_commit(d, err);
    d = NULL;
done:
    cld_safetensors_abort(w);
    cld_ckptdir_abort(d);
    free(data);
    free(name);
    free(weights);
    free(state);
    return s;
}

static void must_write(const char *parent, int step, char mark)
{
    struct cld_error err;
    assert_int_equal(write_step(parent, step, mark, 100, &err), CLD_OK);
}

/* The newest step, -1 if there is none; its mark in *mark (the weights agree with the state). */
static int64_t newest(const char *parent, char *mark)
{
    struct cld_error err;
    struct cld_safetensors *st;
    char *path = NULL, data[100];
    size_t n_bytes;
    int64_t step;
    assert_int_equal(cld_ckptdir_latest(parent, false, &path, &step, &err), CLD_OK);
    assert_true((path == NULL) == (step == -1));
    if (!path)
        return -1;
    char *weights = cld_format("%s/drafter.safetensors", path);
    char *state = cld_format("%s/state.json", path), *text;
    assert_int_equal(cld_safetensors_open(weights, &st, &err), CLD_OK);
    assert_int_equal(cld_safetensors_read(st, cld_safetensors_at(st, 0), CLD_U8, data, &err),
                     CLD_OK);
    assert_int_equal(cld_file_read(state, 0, &text, &n_bytes, &err), CLD_OK);
    *mark = text[0];
    for (size_t i = 0; i < sizeof data; i++)
        assert_int_equal(data[i], *mark);
    cld_safetensors_close(st);
    free(text);
    free(path);
    free(weights);
    free(state);
    return step;
}

static bool exists(const char *parent, const char *name)
{
    struct stat st;
    char *path = cld_format("%s/%s", parent, name);
    bool there = !lstat(path, &st);
    free(path);
    return there;
}

static size_t count_entries(const char *parent)
{
    struct cld_error err;
    char **names;
    size_t n;
    assert_int_equal(cld_dir_list(parent, &names, &n, &err), CLD_OK);
    cld_dir_list_free(names, n);
    return n;
}

/* Changes one byte of a file of a checkpoint, its size kept. */
static void damage(const char *parent, const char *file)
{
    char *path = cld_format("%s/%s", parent, file), byte = 0;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, 0) == 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, 0), 1);
    close(fd);
    free(path);
}

/* A process that is gone. */
static long dead_pid(void)
{
    pid_t pid = fork();
    if (!pid)
        _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return (long)pid;
}

/* Runs `write_step` of step 40, then marks and prunes, in a child that dies before its k-th change
 * of the disk. Returns whether it died (else it was done). */
static bool die_at(const char *parent, unsigned k, bool no_exchange)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        struct cld_error err;
        fault.kind = DIE;
        fault.countdown = k;
        fault.no_exchange = no_exchange;
        bool bad = write_step(parent, 40, 'n', 100, &err) ||
                   cld_ckptdir_mark_best(parent, 40, &err) ||
                   cld_ckptdir_prune(parent, 1, -1, &err);
        _exit(bad ? 1 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status)) {
        assert_int_equal(WTERMSIG(status), SIGKILL);
        return true;
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    return false;
}

static void killed_while_adding(void **state)
{
    unsigned k = 0, n_old = 0, n_new = 0;
    for (bool died = true; died; k++) {
        struct cld_error err;
        char mark;
        char *parent = cld_format("%s/%u", (char *)*state, k);
        must_write(parent, 20, 'o');
        died = die_at(parent, k, false);
        int64_t step = newest(parent, &mark);
        assert_true((step == 20 && mark == 'o') || (step == 40 && mark == 'n'));
        char *old = cld_format("%s/step-20", parent);
        assert_true(!cld_dir_exists(old) || !cld_manifest_verify(old, &err)); /* whole or gone */
        free(old);
        n_old += step == 20;
        n_new += step == 40;
        /* The next run cleans up and goes on. */
        assert_int_equal(cld_ckptdir_prune(parent, 1, -1, &err), CLD_OK);
        assert_int_equal(newest(parent, &mark), step);
        assert_int_equal(count_entries(parent), 1 + exists(parent, "best"));
        must_write(parent, 60, 'x');
        assert_int_equal(newest(parent, &mark), 60);
        free(parent);
    }
    assert_true(n_old >= 15 && n_new >= 5); /* both sides of the rename were seen, in many places */
}

/* Whether the file system of the tests can exchange two directories. */
static bool can_exchange(const char *dir)
{
    char *a = cld_format("%s/a", dir), *b = cld_format("%s/b", dir);
    assert_true(!mkdir(a, 0755) && !mkdir(b, 0755));
    bool can = !renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
    free(a);
    free(b);
    return can;
}

static void killed_while_replacing(void **state)
{
    for (int no_exchange = !can_exchange(*state); no_exchange < 2; no_exchange++) {
        unsigned k = 0, n_old = 0, n_new = 0, n_repaired = 0;
        for (bool died = true; died; k++) {
            struct cld_error err;
            char mark;
            char *parent = cld_format("%s/%d-%u", (char *)*state, no_exchange, k);
            must_write(parent, 40, 'o');
            died = die_at(parent, k, no_exchange);
            bool absent = !exists(parent, "step-40");
            assert_true(no_exchange || !absent);
            n_repaired += absent;
            assert_int_equal(newest(parent, &mark), 40); /* the only one, and always there */
            assert_true(exists(parent, "step-40"));
            n_old += mark == 'o';
            n_new += mark == 'n';
            assert_int_equal(cld_ckptdir_prune(parent, 1, -1, &err), CLD_OK);
            assert_int_equal(newest(parent, &mark), 40);
            assert_int_equal(count_entries(parent), 1 + exists(parent, "best"));
            free(parent);
        }
        assert_true(n_old >= 15 && n_new >= 3);
        assert_int_equal(n_repaired, no_exchange);
    }
}

static void every_call_fails_once(void **state)
{
    static const int errors[] = {ENOSPC, EIO};
    for (int e = 0; e < 2; e++) {
        bool fired = true;
        unsigned n_failed = 0;
        for (unsigned k = 0; fired; k++) {
            struct cld_error err = CLD_ERROR_INIT;
            char mark;
            char *parent = cld_format("%s/%d-%u", (char *)*state, e, k);
            must_write(parent, 20, 'o');
            fault.kind = FAIL;
            fault.countdown = k;
            fault.error = errors[e];
            fault.fired = false;
            enum cld_status s = write_step(parent, 40, 'n', 100, &err);
            fired = fault.fired;
            fault.kind = NO_FAULT;
            if (s) {
                assert_true(fired);
                assert_int_equal(s, CLD_E_IO);
                assert_non_null(strstr(err.what, strerror(errors[e])));
                n_failed++;
            }
            int64_t step = newest(parent, &mark);
            assert_true((s && step == 20 && mark == 'o') || (step == 40 && mark == 'n'));
            assert_int_equal(count_entries(parent), step == 20 ? 1 : 2); /* nothing left over */
            free(parent);
        }
        assert_true(n_failed >= 15);
    }
}

static bool synced_within(size_t from, size_t to, const char *parent, const char *name)
{
    struct stat st;
    char *path = cld_format("%s/%s", parent, name);
    assert_int_equal(stat(path, &st), 0);
    free(path);
    while (from < to && events.inodes[from] != st.st_ino)
        from++;
    return from < to;
}

/* A power cut keeps what was fsynced: everything inside before the rename, the parent after it. */
static void durable_before_and_after_the_rename(void **state)
{
    events.n = 0;
    must_write(*state, 40, 'n');
    size_t last = events.n;
    assert_in_range(last, 1, sizeof events.inodes / sizeof *events.inodes - 1);
    while (last && events.inodes[last - 1])
        last--;
    assert_true(last);
    assert_true(synced_within(0, last, *state, "step-40"));
    assert_true(synced_within(0, last, *state, "step-40/drafter.safetensors"));
    assert_true(synced_within(0, last, *state, "step-40/state.json"));
    assert_true(synced_within(0, last, *state, "step-40/" CLD_MANIFEST_NAME));
    assert_true(synced_within(last, events.n, *state, "."));
}

/* Exit status of the child below: which expectation was not met, or that there is no tmpfs. */
enum { NO_TMPFS = 77 };

static int fill_tmpfs(const char *dir)
{
    struct cld_error err;
    char mark;
    /* In a mount namespace of this process alone, so that nothing is left mounted. */
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", dir, "tmpfs", 0, "size=256k"))
        return NO_TMPFS;
    if (write_step(dir, 20, 'o', 100, &err))
        return 1;
    if (write_step(dir, 40, 'n', 1 << 20, &err) != CLD_E_IO ||
        !strstr(err.what, strerror(ENOSPC)) || !strstr(err.hint, "free some space"))
        return 2;
    if (count_entries(dir) != 1 || newest(dir, &mark) != 20 || mark != 'o')
        return 3;
    /* Refused before anything is written, where the size is known. */
    struct cld_ckptdir *d;
    if (cld_ckptdir_begin(dir, "step-40", 1 << 20, &d, &err) != CLD_E_IO ||
        !strstr(err.what, "bytes are free") || !strstr(err.what, "1153434") ||
        count_entries(dir) != 1)
        return 4;
    if (cld_ckptdir_begin(dir, "step-40", 1 << 16, &d, &err))
        return 5;
    cld_ckptdir_abort(d);
    return count_entries(dir) == 1 ? 0 : 6;
}

static void full_disk(void **state)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        _exit(fill_tmpfs(*state));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_TMPFS) {
        print_message("a tmpfs cannot be mounted here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void space_is_checked_first(void **state)
{
    struct cld_error err;
    struct cld_ckptdir *d;
    assert_int_equal(cld_ckptdir_begin(*state, "step-1", UINT64_MAX / 4, &d, &err), CLD_E_IO);
    assert_null(d);
    assert_non_null(strstr(err.what, "bytes are free"));
    assert_int_equal(count_entries(*state), 0);
}

static void latest_skips_what_does_not_verify(void **state)
{
    struct cld_error err;
    char mark, *path, *parent = *state;
    char *none = cld_format("%s/none", parent);
    int64_t step;
    assert_int_equal(newest(none, &mark), -1);
    assert_int_equal(newest(parent, &mark), -1);
    must_write(parent, 9, 'a');
    must_write(parent, 20, 'b');
    must_write(parent, 100, 'c'); /* newest by number, not by spelling */
    assert_int_equal(newest(parent, &mark), 100);
    assert_int_equal(mark, 'c');

    damage(parent, "step-100/drafter.safetensors");
    damage(parent, "step-20/" CLD_MANIFEST_NAME);
    assert_int_equal(newest(parent, &mark), 9);
    assert_true(exists(parent, "step-100") && exists(parent, "step-20")); /* not asked: not moved */

    assert_int_equal(cld_ckptdir_latest(parent, true, &path, &step, &err), CLD_OK);
    assert_int_equal(step, 9);
    free(path);
    assert_true(exists(parent, "bad-step-100") && exists(parent, "bad-step-20"));
    assert_false(exists(parent, "step-100") || exists(parent, "step-20"));

    must_write(parent, 100, 'd'); /* bad again: the first is kept */
    damage(parent, "step-100/state.json");
    assert_int_equal(cld_ckptdir_latest(parent, true, &path, &step, &err), CLD_OK);
    assert_int_equal(step, 9);
    free(path);
    assert_true(exists(parent, "bad-step-100") && exists(parent, "bad-step-100.2"));
    free(none);
}

static void other_names_are_not_checkpoints(void **state)
{
    static const char *const names[] = {"step-",       "step-07",      "step-+7",
                                        "step- 7",     "step--7",      "step-7x",
                                        "step-7.copy", "Step-7",       "xstep-7",
                                        "bad-step-7",  "step-7.tmp-x", "step-99999999999999999999",
                                        "drafter"};
    struct cld_error err;
    char mark;
    must_write(*state, 1, 'a');
    must_write(*state, 2, 'b');
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = cld_format("%s/%s", (char *)*state, names[i]);
        assert_int_equal(mkdir(path, 0755), 0);
        free(path);
    }
    assert_int_equal(newest(*state, &mark), 2);
    assert_int_equal(cld_ckptdir_prune(*state, 1, -1, &err), CLD_OK);
    assert_int_equal(count_entries(*state), 1 + sizeof names / sizeof *names);
}

static void replaces_ours_and_sets_aside_others(void **state)
{
    char mark;
    char *theirs = cld_format("%s/step-5", (char *)*state);
    char *file = cld_format("%s/precious", theirs);
    struct cld_error err;
    assert_int_equal(mkdir(theirs, 0755), 0);
    assert_int_equal(cld_file_write(file, "x", 1, &err), CLD_OK);
    must_write(*state, 5, 'a'); /* no manifest: not a directory that we may remove */
    assert_true(exists(*state, "bad-step-5/precious"));
    must_write(*state, 5, 'b');
    assert_int_equal(newest(*state, &mark), 5);
    assert_int_equal(mark, 'b');
    assert_int_equal(count_entries(*state), 2);
    free(theirs);
    free(file);
}

static void prune_keeps_what_it_must(void **state)
{
    struct cld_error err;
    char mark, *parent = *state;
    for (int step = 10; step <= 70; step += 10)
        must_write(parent, step, 'a');
    assert_int_equal(cld_ckptdir_prune(parent, 0, -1, &err), CLD_OK);
    assert_int_equal(count_entries(parent), 7);
    assert_int_equal(cld_ckptdir_mark_best(parent, 30, &err), CLD_OK);
    assert_int_equal(cld_ckptdir_mark_best(parent, 20, &err), CLD_OK); /* replaces the link */
    assert_int_equal(cld_ckptdir_prune(parent, 2, 10, &err), CLD_OK);
    assert_true(exists(parent, "step-70") && exists(parent, "step-60"));
    assert_true(exists(parent, "step-10") && exists(parent, "step-20"));
    assert_true(exists(parent, "best/state.json"));
    assert_int_equal(count_entries(parent), 5);

    /* The newest is bad: nothing goes, and the caller hears of it. */
    damage(parent, "step-70/state.json");
    assert_int_equal(cld_ckptdir_prune(parent, 1, -1, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "step-70"));
    assert_int_equal(count_entries(parent), 5);
    assert_int_equal(newest(parent, &mark), 60);
}

/* A rewind leaves old-step-N; what a crash cut off goes at the next prune, too. */
static void prune_removes_other_courses_that_are_reached(void **state)
{
    struct cld_error err;
    char *parent = *state, *theirs = cld_format("%s/old-step-1", parent);
    char *cut = cld_format("%s/old-step-4", parent);
    char *doomed = cld_format("%s/step-4.tmp-%ld", parent, dead_pid());
    for (int round = 0; round < 2; round++) {
        for (int step = 2; step <= 6; step++)
            must_write(parent, step, 'a');
        assert_int_equal(cld_ckptdir_rewind(parent, 2, -1, &err), CLD_OK);
    }
    assert_true(exists(parent, "old-step-6") && exists(parent, "old-step-6.2"));
    assert_int_equal(mkdir(theirs, 0755), 0); /* no manifest: not ours */
    must_write(parent, 4, 'b');
    assert_int_equal(cld_ckptdir_prune(parent, 0, -1, &err), CLD_OK);
    assert_true(exists(parent, "old-step-3") && exists(parent, "old-step-4.2"));

    assert_int_equal(rename(cut, doomed), 0); /* died between renaming and removing it */
    damage(parent, "step-4/state.json");
    assert_int_equal(cld_ckptdir_prune(parent, 3, -1, &err), CLD_E_INPUT);
    assert_true(exists(parent, "old-step-3") && !cld_dir_exists(doomed));
    must_write(parent, 4, 'b');
    assert_int_equal(cld_ckptdir_prune(parent, 3, -1, &err), CLD_OK);
    assert_false(exists(parent, "old-step-3") || exists(parent, "old-step-3.2"));
    assert_false(exists(parent, "old-step-4") || exists(parent, "old-step-4.2"));
    assert_true(exists(parent, "old-step-5") && exists(parent, "old-step-6.2"));
    assert_true(cld_dir_exists(theirs));
    free(theirs);
    free(cut);
    free(doomed);
}

static void prune_cleans_after_the_dead(void **state)
{
    struct cld_error err;
    const long dead = dead_pid();
    char *left[] = {cld_format("%s/step-2.tmp-%ld", (char *)*state, dead),
                    cld_format("%s/step-3.tmp-%ld", (char *)*state, (long)getpid()),
                    cld_format("%s/best.tmp-%ld", (char *)*state, dead),
                    cld_format("%s/step-4.tmp-%ld", (char *)*state, (long)getppid())};
    must_write(*state, 1, 'a');
    for (int i = 0; i < 4; i++)
        assert_int_equal(i == 2 ? symlink("step-1", left[i]) : mkdir(left[i], 0755), 0);
    assert_int_equal(cld_ckptdir_prune(*state, 3, -1, &err), CLD_OK);
    assert_int_equal(count_entries(*state), 2);
    assert_true(cld_dir_exists(left[3])); /* a live process may be writing it */
    for (int i = 0; i < 4; i++)
        free(left[i]);
}

static void abort_leaves_nothing(void **state)
{
    struct cld_error err;
    struct cld_ckptdir *d;
    assert_int_equal(cld_ckptdir_begin(*state, "export", 10, &d, &err), CLD_OK);
    char *file = cld_format("%s/config.json", cld_ckptdir_path(d));
    assert_int_equal(cld_file_write(file, "{}", 2, &err), CLD_OK);
    assert_int_equal(count_entries(*state), 1);
    cld_ckptdir_abort(d);
    assert_int_equal(count_entries(*state), 0);
    free(file);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, make_temp_dir, remove_temp_dir)
    const struct CMUnitTest tests[] = {
        TEST(killed_while_adding),
        TEST(killed_while_replacing),
        TEST(every_call_fails_once),
        TEST(durable_before_and_after_the_rename),
        TEST(full_disk),
        TEST(space_is_checked_first),
        TEST(latest_skips_what_does_not_verify),
        TEST(other_names_are_not_checkpoints),
        TEST(replaces_ours_and_sets_aside_others),
        TEST(prune_keeps_what_it_must),
        TEST(prune_removes_other_courses_that_are_reached),
        TEST(prune_cleans_after_the_dead),
        TEST(abort_leaves_nothing),
    };
    cld_log_set_level(CLD_LOG_ERROR); /* skipped checkpoints are what is tested */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
