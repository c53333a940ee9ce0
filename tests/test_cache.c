/* Built programs on disk: what is kept is found again and computes the same, and whatever is in
 * doubt - damaged, foreign, unsafe - is built from source instead. */
#define _GNU_SOURCE /* environ */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "opencl/cache.h"
#include "opencl/queue.h"
#include "ops/ops.h"
#include "temp_dir.h"
#include "ops/tensor_io.h"
#include "test_device.h"

enum { N_ROWS = 7, N_COLS = 33, N_VALUES = N_ROWS * N_COLS };

/* --- files, without a device ------------------------------------------------------------------ */

static const char key_a[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
static const char key_b[] = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

static char *entry_path(const char *dir, const char *key)
{
    char *path = cld_format("%s/%s.clbin", dir, key);
    assert_non_null(path);
    return path;
}

static bool has(const char *dir, const char *key)
{
    char *path = entry_path(dir, key);
    bool yes = cld_file_exists(path);
    free(path);
    return yes;
}

/* Lines of the log go to `dir`.log too, until `said`. */
static void listen(const char *dir)
{
    char *path = cld_format("%s.log", dir);
    assert_int_equal(cld_log_open(path), 0);
    free(path);
}

/* Whether something logged since `listen` has the words. */
static bool said(const char *dir, const char *words)
{
    struct cld_error err;
    char *path = cld_format("%s.log", dir), *text = NULL;
    size_t n = 0;
    cld_log_close();
    assert_int_equal(cld_file_read(path, 0, &text, &n, &err), CLD_OK);
    bool yes = strstr(text, words) != NULL;
    if (!yes)
        print_error("the log has no '%s':\n%s", words, text);
    remove(path);
    free(text);
    free(path);
    return yes;
}

static void payloads_come_back(void **state)
{
    const char *dir = *state;
    unsigned char *got = NULL;
    size_t n = 0;
    struct cld_cache *c = cld_cache_open(dir, CLD_CACHE_CAP_BYTES);
    assert_non_null(c);
    assert_false(cld_cache_get(c, key_a, &got, &n));
    cld_cache_put(c, key_a, "some bytes", 10);
    cld_cache_put(c, key_b, "", 0);
    assert_true(cld_cache_get(c, key_a, &got, &n));
    assert_int_equal(n, 10);
    assert_memory_equal(got, "some bytes", 10);
    free(got);
    assert_true(cld_cache_get(c, key_b, &got, &n));
    assert_int_equal(n, 0);
    free(got);
    cld_cache_put(c, key_a, "others", 6);
    assert_true(cld_cache_get(c, key_a, &got, &n));
    assert_int_equal(n, 6);
    free(got);
    cld_cache_drop(c, key_a);
    cld_cache_drop(c, key_a);
    assert_false(cld_cache_get(c, key_a, &got, &n));
    cld_cache_close(c);
}

static void keys_depend_on_every_text(void **state)
{
    (void)state;
    char one[CLD_SHA256_HEX_BYTES], other[CLD_SHA256_HEX_BYTES];
    cld_cache_key((const char *[]){"source", "-DX=1", "device"}, 3, one);
    cld_cache_key((const char *[]){"source", "-DX=1", "device"}, 3, other);
    assert_string_equal(one, other);
    cld_cache_key((const char *[]){"source", "-DX=1d", "evice"}, 3, other);
    assert_string_not_equal(one, other);
    cld_cache_key((const char *[]){"source", "-DX=2", "device"}, 3, other);
    assert_string_not_equal(one, other);
    cld_cache_key((const char *[]){"source", "-DX=1", "device", ""}, 4, other);
    assert_string_not_equal(one, other);
}

/* Any byte changed, any end cut off: the entry is gone, not used. */
static void every_damage_is_seen(void **state)
{
    const char *dir = *state;
    struct cld_error err;
    unsigned char *got = NULL;
    char *whole = NULL, *path = entry_path(dir, key_a);
    size_t n = 0, n_file = 0;
    struct cld_cache *c = cld_cache_open(dir, CLD_CACHE_CAP_BYTES);
    cld_cache_put(c, key_a, "some bytes", 10);
    assert_int_equal(cld_file_read(path, 0, &whole, &n_file, &err), CLD_OK);
    cld_log_set_level(CLD_LOG_ERROR);
    for (size_t i = 0; i < n_file; i++) {
        whole[i] ^= 1;
        assert_int_equal(cld_file_write(path, whole, n_file, &err), CLD_OK);
        assert_false(cld_cache_get(c, key_a, &got, &n));
        assert_null(got);
        assert_false(cld_file_exists(path));
        whole[i] ^= 1;
        assert_int_equal(cld_file_write(path, whole, i, &err), CLD_OK);
        assert_false(cld_cache_get(c, key_a, &got, &n));
        assert_false(cld_file_exists(path));
    }
    assert_int_equal(cld_file_write(path, whole, n_file + 1, &err), CLD_OK); /* one too long */
    assert_false(cld_cache_get(c, key_a, &got, &n));
    assert_int_equal(cld_file_write(path, whole, n_file, &err), CLD_OK);
    assert_int_equal(chmod(path, 0666), 0); /* others may have written it */
    assert_false(cld_cache_get(c, key_a, &got, &n));
    assert_int_equal(cld_file_write(path, whole, n_file, &err), CLD_OK);
    assert_true(cld_cache_get(c, key_a, &got, &n));
    cld_log_set_level(CLD_LOG_INFO);
    free(got);
    free(whole);
    free(path);
    cld_cache_close(c);
}

static void set_age(const char *dir, const char *key, long seconds)
{
    char *path = entry_path(dir, key);
    const struct timespec when[2] = {{1000000 - seconds, 0}, {1000000 - seconds, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, when, 0), 0);
    free(path);
}

static void the_oldest_make_room(void **state)
{
    const char *dir = *state;
    enum { SIZE = 10000 };
    static const char big[5 * SIZE];
    struct cld_error err;
    char keys[5][sizeof key_a], *notes = cld_format("%s/notes.txt", dir);
    unsigned char *got = NULL;
    size_t n = 0;
    assert_int_equal(cld_file_write(notes, big, sizeof big, &err), CLD_OK);
    struct cld_cache *c = cld_cache_open(dir, 4 * SIZE); /* three entries and their headers */
    for (int i = 0; i < 5; i++) {
        memset(keys[i], '0' + i, sizeof key_a);
        keys[i][sizeof key_a - 1] = 0;
    }
    for (int i = 0; i < 3; i++) {
        cld_cache_put(c, keys[i], big, SIZE);
        set_age(dir, keys[i], 100 - i);
    }
    cld_cache_close(c);
    c = cld_cache_open(dir, 4 * SIZE); /* what is there counts for the next handle too */
    assert_true(cld_cache_get(c, keys[0], &got, &n)); /* used now: no longer the oldest */
    free(got);
    cld_cache_put(c, keys[3], big, SIZE);
    assert_true(has(dir, keys[0]));
    assert_false(has(dir, keys[1]));
    assert_true(has(dir, keys[2]));
    assert_true(has(dir, keys[3]));
    cld_cache_put(c, keys[4], big, 4 * SIZE); /* more than the cap by its header */
    assert_false(has(dir, keys[4]));
    assert_true(has(dir, keys[3]));
    cld_cache_close(c);
    set_age(dir, keys[3], 50);
    c = cld_cache_open(dir, 2 * SIZE);
    assert_true(has(dir, keys[0]));
    assert_false(has(dir, keys[2]));
    assert_false(has(dir, keys[3]));
    assert_true(cld_file_exists(notes)); /* not ours to remove */
    cld_cache_close(c);
    free(notes);
}

static void unsafe_directories_are_refused(void **state)
{
    const char *dir = *state;
    struct cld_error err;
    struct stat st;
    char *ours = cld_format("%s/deep/er/ours", dir), *file = cld_format("%s/file", dir);
    char *below = cld_format("%s/cache", file);
    struct cld_cache *c = cld_cache_open(ours, CLD_CACHE_CAP_BYTES);
    assert_non_null(c);
    assert_string_equal(cld_cache_path(c), ours);
    cld_cache_close(c);
    assert_int_equal(stat(ours, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);

    static const mode_t open_to_others[] = {0770, 0702, 01777};
    for (size_t i = 0; i < sizeof open_to_others / sizeof *open_to_others; i++) {
        assert_int_equal(chmod(ours, open_to_others[i]), 0);
        listen(dir);
        assert_null(cld_cache_open(ours, CLD_CACHE_CAP_BYTES));
        assert_true(said(dir, "can be written by others"));
    }
    assert_int_equal(cld_file_write(file, "x", 1, &err), CLD_OK);
    listen(dir);
    assert_null(cld_cache_open(file, CLD_CACHE_CAP_BYTES));
    assert_true(said(dir, "is not a directory"));
    listen(dir);
    assert_null(cld_cache_open(below, CLD_CACHE_CAP_BYTES));
    assert_true(said(dir, "cannot be made"));

    /* One that we may not write; root may write everywhere, but can give it to somebody else. */
    assert_int_equal(chmod(ours, geteuid() ? 0500 : 0755), 0);
    if (!geteuid()) {
        assert_int_equal(chmod(dir, 0755) || chown(ours, 12345, (gid_t)-1), 0);
        listen(dir);
        assert_null(cld_cache_open(ours, CLD_CACHE_CAP_BYTES));
        assert_true(said(dir, "belongs to user 12345"));
    } else {
        listen(dir);
        assert_null(cld_cache_open(ours, CLD_CACHE_CAP_BYTES));
        assert_true(said(dir, "cannot be used"));
    }
    free(ours);
    free(file);
    free(below);
}

static char *resolved(const char *setting)
{
    struct cld_error err;
    char *path = NULL;
    assert_int_equal(cld_cache_dir(setting, &path, &err), CLD_OK);
    return path;
}

/* setenv, or unsetenv for NULL. */
static void set_env(const char *name, const char *value)
{
    assert_int_equal(value ? setenv(name, value, 1) : unsetenv(name), 0);
}

static void the_setting_names_a_directory(void **state)
{
    (void)state;
    static const struct {
        const char *setting, *home, *cache, *dir;
    } cases[] = {
        {"off", "/home/me", NULL, NULL},
        {"some/where", "/home/me", NULL, "some/where"},
        {NULL, "/home/me", NULL, "/home/me/.cache/cldraft"},
        {NULL, "/home/me", "relative", "/home/me/.cache/cldraft"},
        {NULL, "/home/me", "/cache", "/cache/cldraft"},
        {NULL, NULL, "/cache", "/cache/cldraft"},
        {NULL, NULL, NULL, NULL},
    };
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    char *cache = getenv("XDG_CACHE_HOME") ? strdup(getenv("XDG_CACHE_HOME")) : NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_env("HOME", cases[i].home);
        set_env("XDG_CACHE_HOME", cases[i].cache);
        char *dir = resolved(cases[i].setting);
        if (cases[i].dir)
            assert_string_equal(dir, cases[i].dir);
        else
            assert_null(dir);
        free(dir);
    }
    set_env("HOME", home);
    set_env("XDG_CACHE_HOME", cache);
    free(home);
    free(cache);
}

/* --- programs --------------------------------------------------------------------------------- */

struct work {
    const char *dir; /* NULL: no cache */
    const struct cld_device_info *device;
    enum cld_dtype storage;
    float values[N_VALUES];
    struct cld_queue_counts counts;
};

/* Opens a queue, makes normal values by one program, which is built or loaded, and reads them. */
static enum cld_status run_work(struct work *w, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_queue *q = NULL;
    struct cld_buf *b = NULL;
    struct cld_queue_options options = {.name = "test", .cache_dir = w->dir};
    if ((s = cld_queue_open(w->device, &options, &q, err)) ||
        (s = cld_buf_create(q, "t", N_VALUES * sizeof(float), &b, err)))
        goto done;
    struct cld_tensor t = {"t", w->storage, N_ROWS, N_COLS, N_COLS, b, 0};
    if ((s = cld_fill_normal(q, &t, 1, 2, 3.0f, err)) ||
        (s = cld_tensor_read(&t, 0, N_ROWS, w->values, err)))
        goto done;
    w->counts = cld_queue_counts(q);
done:
    cld_queue_close(q);
    return s;
}

static struct work do_work(const char *dir, enum cld_dtype storage)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct work w = {.dir = dir, .device = &cpu, .storage = storage};
    if (run_work(&w, &err))
        fail_msg("%s", err.what);
    return w;
}

static void expect_counts(const struct work *w, size_t n_builds, size_t n_cached)
{
    assert_int_equal(w->counts.n_builds, n_builds);
    assert_int_equal(w->counts.n_cached, n_cached);
}

/* Path of the only entry of a cache. */
static char *only_entry(const char *dir)
{
    struct cld_error err;
    char **names = NULL, *path = NULL;
    size_t n = 0;
    assert_int_equal(cld_dir_list(dir, &names, &n, &err), CLD_OK);
    assert_int_equal(n, 1);
    path = cld_format("%s/%s", dir, names[0]);
    cld_dir_list_free(names, n);
    return path;
}

static void a_second_queue_builds_nothing(void **state)
{
    const char *dir = *state;
    struct work without = do_work(NULL, CLD_F32), cold = do_work(dir, CLD_F32);
    struct work warm = do_work(dir, CLD_F32), other = do_work(dir, CLD_BF16);
    struct work warm_other = do_work(dir, CLD_BF16);
    expect_counts(&without, 1, 0);
    expect_counts(&cold, 1, 0);
    expect_counts(&warm, 0, 1);
    expect_counts(&other, 1, 0); /* other options are another program */
    expect_counts(&warm_other, 0, 1);
    assert_memory_equal(cold.values, without.values, sizeof cold.values);
    assert_memory_equal(warm.values, without.values, sizeof warm.values);
    assert_memory_equal(warm_other.values, other.values, sizeof other.values);
    assert_memory_not_equal(other.values, warm.values, sizeof warm.values);
}

/* The entry of the work in `dir` is not to be used: it is built, and the entry is good again. */
static void expect_rebuild(const char *dir, const struct work *good, const char *why)
{
    listen(dir);
    struct work w = do_work(dir, CLD_F32);
    expect_counts(&w, 1, 0);
    assert_true(said(dir, why));
    assert_memory_equal(w.values, good->values, sizeof w.values);
    w = do_work(dir, CLD_F32);
    expect_counts(&w, 0, 1);
}

static void entries_in_doubt_are_built_again(void **state)
{
    const char *dir = *state;
    struct cld_error err;
    struct work good = do_work(dir, CLD_F32);
    char *path = only_entry(dir), *whole = NULL;
    char key[sizeof key_a];
    size_t n_file = 0, n = 0;
    unsigned char *payload = NULL;
    snprintf(key, sizeof key, "%s", strrchr(path, '/') + 1);
    assert_int_equal(cld_file_read(path, 0, &whole, &n_file, &err), CLD_OK);

    whole[n_file / 2] ^= 0x10;
    assert_int_equal(cld_file_write(path, whole, n_file, &err), CLD_OK);
    expect_rebuild(dir, &good, "hash is wrong");
    whole[n_file / 2] ^= 0x10;
    assert_int_equal(cld_file_write(path, whole, n_file / 2, &err), CLD_OK);
    expect_rebuild(dir, &good, "length is wrong");
    assert_int_equal(cld_file_write(path, whole, 0, &err), CLD_OK);
    expect_rebuild(dir, &good, "too short");

    /* Whole entries with a payload that is of no use. */
    struct cld_cache *c = cld_cache_open(dir, CLD_CACHE_CAP_BYTES);
    assert_true(cld_cache_get(c, key, &payload, &n));
    payload[0] ^= 2; /* the number of kernels */
    cld_cache_put(c, key, payload, n);
    expect_rebuild(dir, &good, "does not give its kernels");
    cld_cache_put(c, key, payload, sizeof(uint64_t));
    expect_rebuild(dir, &good, "does not load");
    memset(payload + sizeof(uint64_t), 'x', n - sizeof(uint64_t));
    cld_cache_put(c, key, payload, n);
    expect_rebuild(dir, &good, "does not load");
    cld_cache_close(c);
    free(payload);
    free(whole);
    free(path);
}

/* A binary that loads, but is of a program without the kernel. */
static void a_binary_without_the_kernel_is_built_again(void **state)
{
    const char *dir = *state;
    struct cld_error err = CLD_ERROR_INIT;
    unsigned char *payload = NULL;
    size_t n = 0;
    struct cld_queue *q = NULL;
    struct cld_kernel *k = NULL;
    struct cld_kernel_spec spec = {"add.cl", "add", "", 1};
    struct cld_queue_options options = {.name = "other", .cache_dir = dir};
    char key_add[sizeof key_a], key_fill[sizeof key_a];
    assert_int_equal(cld_queue_open(&cpu, &options, &q, &err), CLD_OK);
    if (cld_kernel_get(q, &spec, &k, &err))
        fail_msg("%s", err.what);
    cld_queue_close(q);
    char *path = only_entry(dir);
    snprintf(key_add, sizeof key_add, "%s", strrchr(path, '/') + 1);
    struct cld_cache *c = cld_cache_open(dir, CLD_CACHE_CAP_BYTES);
    assert_true(cld_cache_get(c, key_add, &payload, &n));
    cld_cache_drop(c, key_add);
    free(path);
    struct work good = do_work(dir, CLD_F32);
    path = only_entry(dir);
    snprintf(key_fill, sizeof key_fill, "%s", strrchr(path, '/') + 1);
    assert_string_not_equal(key_fill, key_add);
    cld_cache_put(c, key_fill, payload, n);
    expect_rebuild(dir, &good, "does not give its kernels");
    cld_cache_close(c);
    free(payload);
    free(path);
}

static void an_unsafe_directory_only_turns_the_cache_off(void **state)
{
    const char *dir = *state;
    struct cld_error err;
    char *ours = cld_format("%s/ours", dir), **names = NULL;
    size_t n = 0;
    assert_int_equal(mkdir(ours, 0700) || chmod(ours, 0777), 0);
    for (int i = 0; i < 2; i++) {
        listen(dir);
        struct work w = do_work(ours, CLD_F32);
        expect_counts(&w, 1, 0);
        assert_true(said(dir, "can be written by others"));
    }
    assert_int_equal(cld_dir_list(ours, &names, &n, &err), CLD_OK);
    assert_int_equal(n, 0);
    cld_dir_list_free(names, n);
    free(ours);
}

static void parts_of_a_device_share_its_programs(void **state)
{
    const char *dir = *state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_device_info half;
    if (cpu.n_compute_units < 2)
        skip();
    if (cld_devices_find(devices, "cpu:1/2", &half, &err))
        fail_msg("%s", err.what);
    struct work whole = do_work(dir, CLD_F32);
    struct work part = {.dir = dir, .device = &half, .storage = CLD_F32};
    if (run_work(&part, &err))
        fail_msg("%s", err.what);
    expect_counts(&part, 0, 1);
    assert_memory_equal(part.values, whole.values, sizeof whole.values);
}

static void *thread_work(void *to)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct work *w = to;
    if (run_work(w, &err)) {
        print_error("%s\n", err.what);
        w->counts.n_builds = SIZE_MAX;
    }
    return NULL;
}

/* One builds, the others wait for the lock and load what it built. */
static void threads_share_what_one_built(void **state)
{
    const char *dir = *state;
    enum { N = 4 };
    pthread_t threads[N];
    struct work works[N];
    size_t n_builds = 0, n_cached = 0;
    for (int i = 0; i < N; i++) {
        works[i] = (struct work){.dir = dir, .device = &cpu, .storage = CLD_F32};
        assert_int_equal(pthread_create(&threads[i], NULL, thread_work, &works[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        assert_memory_equal(works[i].values, works[0].values, sizeof works[0].values);
        n_builds += works[i].counts.n_builds;
        n_cached += works[i].counts.n_cached;
    }
    assert_int_equal(n_builds, 1);
    assert_int_equal(n_cached, N - 1);
}

/* Whole processes, since OpenCL does not survive a fork: this program with the directory as its
 * argument, see main. */
static void processes_share_a_directory(void **state)
{
    char *dir = *state;
    enum { N = 3 };
    pid_t pids[N];
    char program[] = "/proc/self/exe";
    char *const arguments[] = {program, dir, NULL};
    for (int i = 0; i < N; i++)
        assert_int_equal(posix_spawn(&pids[i], program, NULL, NULL, arguments, environ), 0);
    for (int i = 0; i < N; i++) {
        int status = -1;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    struct work after = do_work(dir, CLD_F32), after_other = do_work(dir, CLD_BF16);
    struct work without = do_work(NULL, CLD_F32);
    expect_counts(&after, 0, 1);
    expect_counts(&after_other, 0, 1);
    assert_memory_equal(after.values, without.values, sizeof after.values);
    struct cld_error err;
    char **names = NULL;
    size_t n = 0;
    assert_int_equal(cld_dir_list(dir, &names, &n, &err), CLD_OK);
    assert_int_equal(n, 2); /* and nothing half written */
    cld_dir_list_free(names, n);
}

/* The part of a process of processes_share_a_directory: both programs, against each other. */
static int work_in(const char *dir)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct work without = {.device = &cpu, .storage = CLD_F32}, with = without, other = without;
    with.dir = other.dir = dir;
    other.storage = CLD_BF16;
    if (find_cpu(NULL))
        return 1;
    int failed = run_work(&with, &err) || run_work(&other, &err) || run_work(&without, &err);
    if (failed)
        print_error("%s\n", err.what);
    cld_devices_close(devices);
    return failed || memcmp(with.values, without.values, sizeof with.values);
}

#define WITH_DIR(f) cmocka_unit_test_setup_teardown(f, make_temp_dir, remove_temp_dir)

int main(int n_args, char **args)
{
    if (n_args == 2)
        return work_in(args[1]);
    const struct CMUnitTest files[] = {
        WITH_DIR(payloads_come_back),
        cmocka_unit_test(keys_depend_on_every_text),
        WITH_DIR(every_damage_is_seen),
        WITH_DIR(the_oldest_make_room),
        WITH_DIR(unsafe_directories_are_refused),
        cmocka_unit_test(the_setting_names_a_directory),
    };
    const struct CMUnitTest programs[] = {
        WITH_DIR(a_second_queue_builds_nothing),
        WITH_DIR(entries_in_doubt_are_built_again),
        WITH_DIR(a_binary_without_the_kernel_is_built_again),
        WITH_DIR(an_unsafe_directory_only_turns_the_cache_off),
        WITH_DIR(parts_of_a_device_share_its_programs),
        WITH_DIR(threads_share_what_one_built),
        WITH_DIR(processes_share_a_directory),
    };
    int n_failed = cmocka_run_group_tests(files, NULL, NULL);
    return n_failed + cmocka_run_group_tests(programs, find_cpu, close_devices);
}
