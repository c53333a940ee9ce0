/* Checkpoints: bits come back, the newest whole one is found, old ones outlive every failure. */
#include "workers/checkpoint.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/ckptdir.h"
#include "base/file.h"
#include "base/log.h"
#include "small_checkpoint.h"
#include "temp_dir.h"

static enum cld_status save(const char *dir, struct small *r, int64_t step, int64_t best_step,
                            size_t keep, struct cld_error *err)
{
    struct cld_drafter_file f = small_file(&r->d.config);
    struct cld_train_state st = state_at(step, best_step);
    return cld_checkpoint_save(dir, &r->d, NULL, &f, &st, keep, err);
}

static bool exists(const char *dir, const char *name)
{
    struct stat st;
    char *path = cld_format("%s/%s", dir, name);
    bool there = !lstat(path, &st);
    free(path);
    return there;
}

/* Changes one byte of a file, its size kept. */
static void damage(const char *dir, const char *file)
{
    char *path = cld_format("%s/%s", dir, file), byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, 200) == 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, 200), 1);
    close(fd);
    free(path);
}

/* The step of what _find gives for `path`; -1 if it finds none. */
static int64_t found(const char *path, bool set_bad_aside)
{
    struct cld_error why = CLD_ERROR_INIT;
    struct cld_train_state st;
    char *resolved = NULL;
    if (cld_checkpoint_find(path, set_bad_aside, &resolved, &why)) {
        assert_int_equal(why.status, CLD_E_INPUT);
        assert_null(resolved);
        return -1;
    }
    OK(cld_checkpoint_state(resolved, &st, &err));
    int64_t step = st.step;
    cld_train_state_free(&st);
    free(resolved);
    return step;
}

static void every_bit_comes_back(void **state)
{
    const enum cld_dtype types[] = {CLD_F32, CLD_BF16};
    for (int k = 0; k < 2; k++) {
        char *dir = cld_format("%s/%d", (char *)*state, k), *resolved;
        struct small *a = open_small(&small_config, types[k]);
        struct small *b = open_small(&small_config, types[k]);
        fill_bits(a, &a->d.master, 1);
        fill_bits(a, &a->d.m, 2);
        fill_bits(a, &a->d.v, 3);
        fill_bits(b, &b->d.m, 4); /* what was there before is gone */
        OK(save(dir, a, 7, -1, 0, &err));
        OK(cld_checkpoint_find(dir, false, &resolved, &err));
        OK(cld_checkpoint_load(resolved, &b->d, &err));
        assert_arena_equal(a, &a->d.master, &b->d.master, sizeof(float));
        assert_arena_equal(a, &a->d.m, &b->d.m, sizeof(float));
        assert_arena_equal(a, &a->d.v, &b->d.v, sizeof(float));
        if (types[k] == CLD_BF16)
            assert_rounded(b);

        /* The drafter in it is one of its own: the same weights, rounded. */
        struct small *c = open_small(&small_config, CLD_BF16);
        OK(cld_drafter_load(&c->d, resolved, &err));
        if (types[k] == CLD_BF16)
            assert_arena_equal(a, &b->d.weights, &c->d.weights, sizeof(uint16_t));
        assert_rounded(c);
        free(resolved);
        free(dir);
        close_small(a);
        close_small(b);
        close_small(c);
    }
}

/* Saved, loaded and saved again, all files but the state's are the same bytes. */
static void files_are_reproducible(void **state)
{
    const char *const files[] = {"drafter.safetensors", "optimizer.safetensors", "config.json",
                                 "state.json", "manifest.json"};
    char *dirs[2], *resolved;
    struct small *r = open_small(&small_config, CLD_BF16);
    fill_bits(r, &r->d.master, 1);
    fill_bits(r, &r->d.m, 2);
    for (int i = 0; i < 2; i++) {
        dirs[i] = cld_format("%s/%d", (char *)*state, i);
        OK(save(dirs[i], r, 7, 7, 0, &err));
        OK(cld_checkpoint_find(dirs[i], false, &resolved, &err));
        OK(cld_checkpoint_load(resolved, &r->d, &err));
        free(resolved);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *text[2];
        size_t n[2];
        for (int k = 0; k < 2; k++) {
            char *path = cld_format("%s/step-7/%s", dirs[k], files[i]);
            OK(cld_file_read(path, 0, &text[k], &n[k], &err));
            free(path);
        }
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(text[0], text[1], n[0]);
        free(text[0]);
        free(text[1]);
    }
    free(dirs[0]);
    free(dirs[1]);
    close_small(r);
}

static void found_from_any_name(void **state)
{
    const char *run = *state;
    char *dir = cld_format("%s/checkpoints", run), *step = cld_format("%s/step-20", dir);
    char *best = cld_format("%s/best", dir);
    struct small *r = open_small(&small_config, CLD_F32);
    assert_int_equal(found(run, false), -1);
    OK(save(dir, r, 20, 20, 0, &err));
    OK(save(dir, r, 100, 20, 0, &err));
    assert_int_equal(found(run, false), 100);
    assert_int_equal(found(dir, false), 100);
    assert_int_equal(found(step, false), 20);
    assert_int_equal(found(best, false), 20);
    assert_int_equal(found("tests", false), -1);
    free(dir);
    free(step);
    free(best);
    close_small(r);
}

static void the_damaged_are_passed_over(void **state)
{
    const char *dir = *state;
    char *step = cld_format("%s/step-30", dir);
    struct small *r = open_small(&small_config, CLD_F32);
    for (int64_t i = 10; i <= 40; i += 10)
        OK(save(dir, r, i, -1, 0, &err));
    damage(dir, "step-40/optimizer.safetensors");
    damage(dir, "step-30/drafter.safetensors");
    assert_int_equal(found(dir, false), 20);
    assert_int_equal(found(step, false), -1); /* asked for by name: an error, not another one */
    assert_true(exists(dir, "step-40"));
    assert_int_equal(found(dir, true), 20);
    assert_true(exists(dir, "bad-step-40") && exists(dir, "bad-step-30"));
    OK(save(dir, r, 30, -1, 0, &err));
    assert_int_equal(found(dir, true), 30);
    free(step);
    close_small(r);
}

static void keeps_the_newest_and_the_best(void **state)
{
    const char *dir = *state;
    struct small *r = open_small(&small_config, CLD_F32);
    OK(save(dir, r, 10, 10, 2, &err));
    OK(save(dir, r, 20, 20, 2, &err)); /* better: step-10 is not the best any more */
    OK(save(dir, r, 30, 20, 2, &err));
    assert_false(exists(dir, "step-10"));
    OK(save(dir, r, 40, 20, 2, &err));
    OK(save(dir, r, 50, 20, 2, &err));
    assert_true(exists(dir, "step-20") && exists(dir, "step-40") && exists(dir, "step-50"));
    assert_false(exists(dir, "step-30"));
    char *best = cld_format("%s/best", dir);
    assert_int_equal(found(best, false), 20);
    OK(save(dir, r, 60, 60, 1, &err));
    assert_int_equal(found(best, false), 60);
    assert_false(exists(dir, "step-20") || exists(dir, "step-50"));
    OK(save(dir, r, 70, 60, 0, &err)); /* 0: all */
    OK(save(dir, r, 80, 60, 0, &err));
    assert_true(exists(dir, "step-60") && exists(dir, "step-70") && exists(dir, "step-80"));
    free(best);
    close_small(r);
}

static void going_on_from_an_older_one(void **state)
{
    const char *dir = *state;
    struct small *r = open_small(&small_config, CLD_F32);
    char *best = cld_format("%s/best", dir);
    OK(save(dir, r, 2, 2, 0, &err));
    OK(save(dir, r, 4, 2, 0, &err));
    OK(save(dir, r, 6, 6, 0, &err));
    OK(save(dir, r, 3, 2, 1, &err)); /* what was just written stays, whatever its number */
    assert_true(exists(dir, "step-3") && exists(dir, "step-2"));
    assert_true(exists(dir, "old-step-4") && exists(dir, "old-step-6"));
    assert_false(exists(dir, "step-4") || exists(dir, "step-6"));
    assert_int_equal(found(best, false), 2); /* not one of the other course */
    assert_int_equal(found(dir, false), 3);
    OK(cld_ckptdir_rewind(dir, -1, -1, &err)); /* another run */
    assert_true(exists(dir, "old-step-2") && exists(dir, "old-step-3"));
    assert_false(exists(dir, "best"));
    OK(cld_ckptdir_rewind(best, 1, -1, &err)); /* nothing there: nothing to do */
    free(best);
    close_small(r);
}

static size_t file_bytes(const char *dir, const char *name)
{
    struct stat st;
    char *path = cld_format("%s/%s", dir, name);
    assert_int_equal(stat(path, &st), 0);
    free(path);
    return (size_t)st.st_size;
}

/* A disk that is full after n bytes of a file, for every file that is written. */
static void a_full_disk_leaves_the_old(void **state)
{
    const char *dir = *state;
    struct rlimit old, tight;
    struct small *r = open_small(&small_config, CLD_F32);
    OK(save(dir, r, 10, 10, 1, &err));
    size_t most = file_bytes(dir, "step-10/optimizer.safetensors"), n_failed = 0;
    signal(SIGXFSZ, SIG_IGN); /* so that a write fails, as on a full disk */
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    for (size_t room = 0; room < most; room = room * 2 + 100) {
        struct cld_error why = CLD_ERROR_INIT;
        tight = (struct rlimit){room, old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
        enum cld_status s = save(dir, r, 20, 20, 1, &why);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(s, CLD_E_IO);
        assert_non_null(strstr(why.what, "write failed"));
        assert_int_equal(found(dir, false), 10);
        assert_false(exists(dir, "step-20"));
        n_failed++;
    }
    assert_true(n_failed >= 5);
    OK(save(dir, r, 20, 20, 1, &err));
    assert_int_equal(found(dir, false), 20);
    close_small(r);
}

static void where_nothing_can_be_made(void **state)
{
    char *file = cld_format("%s/file", (char *)*state), *dir = cld_format("%s/checkpoints", file);
    struct small *r = open_small(&small_config, CLD_F32);
    OK(cld_file_write(file, "x", 1, &err));
    FAILS(save(dir, r, 1, -1, 1, &err), CLD_E_IO, "/file");
    free(file);
    free(dir);
    close_small(r);
}

/* A checkpoint of another drafter is refused by what differs, and changes nothing. */
static void other_geometry(void **state)
{
    struct cld_drafter_config wide = small_config, window = small_config;
    char *resolved;
    wide.intermediate = 48;
    window.sliding_window = 10;
    struct small *a = open_small(&small_config, CLD_F32), *b = open_small(&wide, CLD_F32);
    struct small *c = open_small(&window, CLD_F32);
    OK(save(*state, a, 1, -1, 1, &err));
    OK(cld_checkpoint_find(*state, false, &resolved, &err));
    FAILS(cld_checkpoint_load(resolved, &b->d, &err), CLD_E_INPUT, "intermediate size 40");
    FAILS(cld_checkpoint_load(resolved, &c->d, &err), CLD_E_INPUT, "sliding window 9");
    free(resolved);
    close_small(a);
    close_small(b);
    close_small(c);
}

/* --- state.json ------------------------------------------------------------------------------- */

static void state_round_trip(void **state)
{
    char *path = cld_format("%s/state.json", (char *)*state), *text, *again;
    const double values[] = {0, 0.1, 1.0 / 3, 1e300, 4.9e-324, 2.8571428571428572, 7};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct cld_train_state st = state_at(INT64_MAX, i ? 5 : -1), back;
        st.n_rows = INT64_MAX - 1;
        st.seed = INT64_MIN;
        st.n_context_tokens = (int64_t)1 << 60;
        st.n_supervised_tokens = 3;
        st.n_skipped_steps = 2;
        st.best_accepted = values[i];
        OK(cld_train_state_fact(&st, "device 0", "PoCL \"cpu\"\n", &err));
        OK(cld_train_state_fact(&st, "attention", "sparse", &err));
        OK(cld_train_state_text(&st, &text, &err));
        OK(cld_file_write(path, text, strlen(text), &err));
        OK(cld_train_state_read(path, &back, &err));
        assert_int_equal(back.step, INT64_MAX);
        assert_int_equal(back.n_rows, INT64_MAX - 1);
        assert_int_equal(back.seed, INT64_MIN);
        assert_int_equal(back.n_context_tokens, (int64_t)1 << 60);
        assert_int_equal(back.best_step, i ? 5 : -1);
        assert_true(back.best_accepted == values[i]);
        assert_string_equal(back.config, st.config);
        assert_string_equal(back.template_name, "qwen3");
        assert_string_equal(cld_train_state_find(&back, "device 0"), "PoCL \"cpu\"\n");
        assert_string_equal(cld_train_state_find(&back, "attention"), "sparse");
        assert_null(cld_train_state_find(&back, "gemm"));
        OK(cld_train_state_text(&back, &again, &err));
        assert_string_equal(text, again);
        cld_train_state_free(&back);
        st.config = st.version = st.target_sha256 = st.tokenizer_sha256 = st.template_name = NULL;
        cld_train_state_free(&st); /* the facts */
        free(text);
        free(again);
    }
    struct cld_train_state bad = state_at(1, -1);
    bad.best_accepted = (double)NAN;
    FAILS(cld_train_state_text(&bad, &text, &err), CLD_E_NUMERIC, "not finite");
    free(path);
}

/* Replaces the first `from` of the text. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("no %s in %s", from, text);
    return cld_format("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static void bad_states(void **state)
{
    static const struct {
        const char *from, *to, *words;
    } cases[] = {
        {"cldraft-state-1", "cldraft-state-2", "cldraft-state-2"},
        {"\"step\": 12", "\"step\": -1", "'step'"},
        {"\"step\": 12", "\"step\": 12.0", "'step'"},
        {"\"step\": 12", "\"steps\": 12", "unknown key \"steps\""},
        {"\"step\": 12,", "", "missing key 'step'"},
        {"\"step\": 12", "\"step\": 99999999999999999999", "state.json"},
        {"\"step\": 12", "\"step\": 12, \"step\": 13", "state.json"},
        {"\"n_rows\": 96", "\"n_rows\": \"96\"", "'n_rows'"},
        {"\"best_accepted\": 2.5", "\"best_accepted\": \"2.5\"", "'best_accepted'"},
        {"\"best_accepted\": 2.5", "\"best_accepted\": null", "'best_accepted'"},
        {"\"best_step\": 8", "\"best_step\": 13", "'best_step'"},
        {"\"best_step\": 8", "\"best_step\": -2", "'best_step'"},
        {"\"template\": \"qwen3\"", "\"template\": 3", "'template'"},
        {"\"facts\": {}", "\"facts\": []", "'facts'"},
        {"\"facts\": {}", "\"facts\": {\"gemm\": 1}", "'gemm'"},
    };
    char *path = cld_format("%s/state.json", (char *)*state), *text;
    struct cld_train_state st = state_at(12, 8);
    OK(cld_train_state_text(&st, &text, &err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *changed = replaced(text, cases[i].from, cases[i].to);
        OK(cld_file_write(path, changed, strlen(changed), &err));
        FAILS(cld_train_state_read(path, &st, &err), CLD_E_INPUT, cases[i].words);
        cld_train_state_free(&st);
        free(changed);
    }
    free(text);
    free(path);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, make_temp_dir, remove_temp_dir)
    const struct CMUnitTest tests[] = {
        TEST(every_bit_comes_back),
        TEST(files_are_reproducible),
        TEST(found_from_any_name),
        TEST(the_damaged_are_passed_over),
        TEST(keeps_the_newest_and_the_best),
        TEST(going_on_from_an_older_one),
        TEST(a_full_disk_leaves_the_old),
        TEST(where_nothing_can_be_made),
        TEST(other_geometry),
        TEST(state_round_trip),
        TEST(bad_states),
    };
    cld_log_set_level(CLD_LOG_ERROR); /* skipped checkpoints are what is tested */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
