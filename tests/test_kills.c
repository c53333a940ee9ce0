/* Runs that end before their time: killed 20 times, in the middle of steps and in the middle of
 * writing checkpoints and features; by a target worker that fails; by an interrupt when the ring is
 * full. Resumed, they have lost nothing beyond the last checkpoint and end with the bits of a run
 * that nothing touched.
 *
 * Every life of the run is a process of its own. Where it dies is not left to a clock: at a
 * micro-batch of a worker, or just before one of its calls that write, sync or rename a file, by
 * number. */
#include <fcntl.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "train/trainer.h"
#include "workers/checkpoint.h"
#include "workers/pipeline.h"
#include "temp_dir.h"

enum { N_STEPS = 24, N_KILLS = 20, N_ROWS = 80 };

/* --- where a life ends ------------------------------------------------------------------------ */

enum death {
    AT_NOTHING,
    AT_DRAFTER, /* these four by SIGKILL */
    AT_TARGET,
    AT_CHECKPOINT,
    AT_FEATURES,
    N_KILLING,
    BY_ERROR = N_KILLING, /* of the target */
    BY_INTERRUPT          /* when the ring is full */
};

/* Shared by the test and the lives of the run. */
static struct {
    enum death death;
    size_t number;         /* of the micro-batch, or of the call from 1 */
    atomic_size_t n_calls; /* that were counted in this life */
    atomic_size_t n_asked; /* numbers below are made, or the target waits for a slot */
    atomic_long saved;     /* the last checkpoint that was renamed to its place */
} * plan;

/* Called by both workers before each micro-batch. */
static enum cld_status die_at(const char *worker, size_t number, struct cld_error *err)
{
    bool is_target = !strcmp(worker, "target 0");
    if (is_target)
        atomic_store(&plan->n_asked, number + 1);
    if (number != plan->number)
        return CLD_OK;
    if (plan->death == (is_target ? AT_TARGET : AT_DRAFTER))
        raise(SIGKILL);
    if (plan->death == BY_ERROR && is_target)
        return cld_fail(err, CLD_E_DEVICE, "", "the card fell out");
    if (plan->death == BY_INTERRUPT && !is_target) {
        /* Two slots are full and the target wants the third. */
        while (atomic_load(&plan->n_asked) < number + 3)
            usleep(1000);
        kill(getpid(), SIGINT);
    }
    return CLD_OK;
}

/* Called before a file below the run's directories is changed. */
static void count_call(const char *path)
{
    const char *where = plan->death == AT_CHECKPOINT ? "/checkpoints" : "/features";
    if (plan->death != AT_CHECKPOINT && plan->death != AT_FEATURES)
        return;
    if (strstr(path, where) && atomic_fetch_add(&plan->n_calls, 1) + 1 == plan->number)
        raise(SIGKILL);
}

static void count_call_on(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0)
        return;
    path[n] = 0;
    count_call(path);
}

/* These stand in for the C library's, for everything that is linked into this program. */
int fsync(int fd)
{
    if (plan)
        count_call_on(fd);
    return (int)syscall(SYS_fsync, fd);
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    if (plan)
        count_call_on(fd);
    return (ssize_t)syscall(SYS_write, fd, bytes, n);
}

int rename(const char *from, const char *to)
{
    if (plan)
        count_call(to);
    int failed = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    const char *at = strstr(to, "/checkpoints/step-");
    char *end = NULL;
    long step = at ? strtol(at + strlen("/checkpoints/step-"), &end, 10) : 0;
    if (plan && !failed && at && !*end)
        atomic_store(&plan->saved, step);
    return failed;
}

/* --- lives ------------------------------------------------------------------------------------ */

/* Trains in DIR/run; in a process of its own, which it ends. */
static void live(const char *dir, const char *resume)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    char *run = cld_format("run.dir=%s/run", dir);
    char *features = cld_format("features.dir=%s/features", dir);
    char *rows = cld_format("data.train=%s/../rows.jsonl", dir);
    const char *sets[] = {run,
                          features,
                          rows,
                          "features.mode=hybrid",
                          "train.steps=24",
                          "train.batch_rows=4",
                          "train.micro_rows=2",
                          "train.anchors=4",
                          "train.loss_chunk=4",
                          "data.max_length=64",
                          "eval.rows=2",
                          "train.evaluate_every=8",
                          "train.checkpoint_every=1",
                          "train.keep=2",
                          "devices.targets=0",
                          "devices.drafters=0",
                          "log.level=warning",
                          "target.taps=1",
                          "drafter.layers=1"};
    cld_log_set_level(CLD_LOG_ERROR);
    cld_pipeline_fault = die_at;
    enum cld_status s =
        cld_config_load("configs/tiny.ini", sets, sizeof sets / sizeof *sets, &cfg, &err);
    if (!s && !(s = cld_config_check(&cfg, CLD_CONFIG_TRAIN, &err)))
        s = cld_train(&cfg, resume, &err);
    if (s)
        fprintf(stderr, "%s: %s\n", dir, err.what);
    _exit((int)s);
}

/* How it ended: an exit code, or -1 for killed. */
static int run_life(const char *dir, const char *resume)
{
    int how = 0;
    atomic_store(&plan->n_calls, 0);
    atomic_store(&plan->n_asked, 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        live(dir, resume);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    if (WIFSIGNALED(how)) {
        assert_int_equal(WTERMSIG(how), SIGKILL);
        return -1;
    }
    return WEXITSTATUS(how);
}

/* Fewer rows than the run takes: at its end they come again, from the disk. */
static void write_rows(const char *dir)
{
    char *path = cld_format("%s/rows.jsonl", dir), line[16384];
    FILE *from = fopen("examples/tiny/train.jsonl", "r"), *to = fopen(path, "w");
    assert_true(from && to);
    for (size_t i = 0; i < N_ROWS; i++) {
        assert_non_null(fgets(line, sizeof line, from));
        fputs(line, to);
    }
    fclose(from);
    assert_int_equal(fclose(to), 0);
    free(path);
}

/* The step of the newest checkpoint of DIR/run that verifies; 0: none. */
static long newest(const char *dir, char **run)
{
    struct cld_error err = CLD_ERROR_INIT;
    char *found = NULL;
    long step = 0;
    *run = cld_format("%s/run", dir);
    if (!cld_checkpoint_find(*run, false, &found, &err)) {
        const char *at = strstr(found, "/step-");
        assert_non_null(at);
        step = strtol(at + strlen("/step-"), NULL, 10);
    }
    free(found);
    return step;
}

/* --- comparing -------------------------------------------------------------------------------- */

static void assert_same_file(const char *a_dir, const char *b_dir, const char *name)
{
    struct cld_error err;
    char *path[2] = {cld_format("%s/%s", a_dir, name), cld_format("%s/%s", b_dir, name)}, *text[2];
    size_t n[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(cld_file_read(path[i], 0, &text[i], &n[i], &err), CLD_OK);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(text[0], text[1], n[0]);
    for (int i = 0; i < 2; i++) {
        free(path[i]);
        free(text[i]);
    }
}

/* A line of metrics without what depends on time, as text that the caller frees; NULL: no more. */
static char *timeless_line(FILE *f)
{
    char line[8192];
    const char *key;
    json_t *value;
    void *next;
    if (!fgets(line, sizeof line, f))
        return NULL;
    json_t *o = json_loads(line, 0, NULL);
    assert_non_null(o);
    json_object_foreach_safe(o, next, key, value)
    {
        if (strstr(key, "_ms") || strstr(key, "_per_s") || !strcmp(key, "ring_fill"))
            json_object_del(o, key);
    }
    char *text = json_dumps(o, JSON_SORT_KEYS);
    json_decref(o);
    return text;
}

static void assert_same_metrics(const char *a_dir, const char *b_dir)
{
    char *path[2] = {cld_format("%s/run/metrics.jsonl", a_dir),
                     cld_format("%s/run/metrics.jsonl", b_dir)},
         *line[2];
    FILE *f[2] = {fopen(path[0], "r"), fopen(path[1], "r")};
    size_t n = 0;
    assert_true(f[0] && f[1]);
    do {
        for (int i = 0; i < 2; i++)
            line[i] = timeless_line(f[i]);
        assert_int_equal(!line[0], !line[1]);
        if (line[0])
            assert_string_equal(line[0], line[1]);
        n += line[0] != NULL;
        free(line[0]);
        free(line[1]);
    } while (line[0]);
    assert_int_equal(n, N_STEPS + N_STEPS / 8);
    for (int i = 0; i < 2; i++) {
        fclose(f[i]);
        free(path[i]);
    }
}

/* --- the test --------------------------------------------------------------------------------- */

/* The k-th death. Numbers are such that a life gets about one step further. */
static void choose_death(size_t k)
{
    plan->death = AT_DRAFTER + k % (N_KILLING - AT_DRAFTER);
    uint64_t draw = cld_random_u64(7, CLD_RANDOM_TEST, k, 0, 0);
    switch (plan->death) {
    case AT_DRAFTER:
        plan->number = 1 + draw % 5;
        break;
    case AT_TARGET:
        plan->number = 3 + draw % 5;
        break;
    case AT_CHECKPOINT:
        plan->number = 1 + draw % 100;
        break;
    default:
        plan->number = 1 + draw % 12;
        break;
    }
}

/* Makes the directory of a run; the caller frees its path. */
static char *begin_run(const char *dir, const char *name)
{
    struct cld_error err;
    char *path = cld_format("%s/%s", dir, name);
    assert_int_equal(cld_dir_make(path, &err), CLD_OK);
    atomic_store(&plan->saved, 0);
    return path;
}

/* Resumes for the last time, and it is as if nothing had happened. */
static void ends_like_the_whole_run(const char *dir, const char *path)
{
    char *whole = cld_format("%s/whole", dir), *run = NULL;
    plan->death = AT_NOTHING;
    assert_true(newest(path, &run) > 0);
    assert_int_equal(run_life(path, run), CLD_OK);
    assert_same_metrics(whole, path);
    char *a = cld_format("%s/run/checkpoints/step-%d", whole, N_STEPS);
    char *b = cld_format("%s/run/checkpoints/step-%d", path, N_STEPS);
    assert_same_file(a, b, "drafter.safetensors");
    assert_same_file(a, b, "optimizer.safetensors");
    free(a);
    free(b);
    free(run);
    free(whole);
}

static void is_not_touched(void **state)
{
    char *path = begin_run(*state, "whole");
    plan->death = AT_NOTHING;
    assert_int_equal(run_life(path, NULL), CLD_OK);
    assert_int_equal(atomic_load(&plan->saved), N_STEPS);
    free(path);
}

static void is_killed_20_times(void **state)
{
    char *path = begin_run(*state, "killed"), *run = NULL;
    size_t killed_at[N_KILLING] = {0};
    for (size_t k = 0; k < N_KILLS; k++) {
        choose_death(k);
        long before = newest(path, &run);
        int how = run_life(path, before ? run : NULL);
        free(run);
        if (how >= 0)
            fail_msg("life %zu was not killed at %d, %zu: it went from step %ld to its end with %d",
                     k, plan->death, plan->number, before, how);
        killed_at[plan->death]++;
        long now = newest(path, &run);
        free(run);
        /* Whatever was renamed to its place is there and whole. */
        assert_true(now >= before && now >= atomic_load(&plan->saved) && now < N_STEPS);
    }
    assert_true(killed_at[AT_CHECKPOINT] == 5 && killed_at[AT_FEATURES] == 5);
    ends_like_the_whole_run(*state, path);
    free(path);
}

static void has_a_target_that_fails(void **state)
{
    char *path = begin_run(*state, "failed"), *run = NULL;
    plan->death = BY_ERROR;
    plan->number = 13;
    assert_int_equal(run_life(path, NULL), CLD_E_DEVICE);
    long step = newest(path, &run);
    assert_true(step == atomic_load(&plan->saved) && step > 0 && step < N_STEPS);
    free(run);
    ends_like_the_whole_run(*state, path);
    free(path);
}

static void is_interrupted_when_the_ring_is_full(void **state)
{
    char *path = begin_run(*state, "interrupted"), *run = NULL;
    plan->death = BY_INTERRUPT;
    plan->number = 10; /* the first micro-batch of step 6 */
    assert_int_equal(run_life(path, NULL), CLD_E_INTERRUPTED);
    assert_int_equal(newest(path, &run), 6);
    free(run);
    ends_like_the_whole_run(*state, path);
    free(path);
}

static int set_up(void **state)
{
    plan = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (plan == MAP_FAILED)
        return -1;
    plan->death = AT_NOTHING;
    cld_log_set_level(CLD_LOG_ERROR);
    if (make_temp_dir(state))
        return -1;
    write_rows(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_not_touched),
        cmocka_unit_test(is_killed_20_times),
        cmocka_unit_test(has_a_target_that_fails),
        cmocka_unit_test(is_interrupted_when_the_ring_is_full),
    };
    return cmocka_run_group_tests(tests, set_up, remove_temp_dir);
}
