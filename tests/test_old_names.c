/* Names of earlier versions: configurations, command lines and files that have them still give the
 * same values, and each such name is mentioned once in the log. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/old_names.h"
#include "bench/bench_journal.h"
#include "bench/bench_result.h"
#include "bench/sweep.h"
#include "cli/args.h"
#include "config/config.h"
#include "ops/tuning.h"
#include "report/run_reader.h"

#include "must.h"
#include "temp_dir.h"
#include "test_device.h"

static void write_text(const char *dir, const char *name, const char *text)
{
    char *path = cld_format("%s/%s", dir, name);
    OK(cld_dir_make(dir, &err));
    OK(cld_file_write(path, text, strlen(text), &err));
    free(path);
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

/* Text up to `end` with every `from` written as `to`; freed with free(). */
static char *replaced(const char *text, const char *from, const char *to)
{
    char *out = NULL;
    size_t n;
    FILE *f = open_memstream(&out, &n);
    for (const char *at; (at = strstr(text, from)); text = at + strlen(from))
        fprintf(f, "%.*s%s", (int)(at - text), text, to);
    fputs(text, f);
    fclose(f);
    return out;
}

/* --- configuration ---------------------------------------------------------------------------- */

static const char old_ini[] =
    "[checks]\nhistory = tell\n[generate]\ntexts = 3\n[bench]\nleast_ms = 7\n"
    "[sweep]\nbench.least_ms = 1,2\ngenerate.texts = 4,5\n"
    "zip = generate.texts, bench.least_ms\nx = bench.least_ms\n";
static const char new_ini[] =
    "[checks]\nhistory = count\n[generate]\nbatch_size = 3\n[bench]\nmin_ms = 7\n"
    "[sweep]\nbench.min_ms = 1,2\ngenerate.batch_size = 4,5\n"
    "zip = generate.batch_size, bench.min_ms\nx = bench.min_ms\n";

static void test_configuration(void **state)
{
    const char *dir = *state;
    struct cld_config old, now, set;
    struct cld_sweep sweep;
    char *old_path = cld_format("%s/a.ini", dir), *now_path = cld_format("%s/b.ini", dir);
    const char *const sets[] = {"bench.least_ms=9", "checks.history=tell"};
    write_text(dir, "a.ini", old_ini);
    write_text(dir, "b.ini", new_ini);
    OK(cld_config_load(old_path, NULL, 0, &old, &err));
    OK(cld_config_load(now_path, NULL, 0, &now, &err));
    assert_int_equal(old.checks.history, CLD_HISTORY_COUNT);
    assert_int_equal(old.checks.history, now.checks.history);
    assert_int_equal(old.generate.batch_size, 3);
    assert_true(old.bench.min_ms == 7);
    assert_int_equal(old.swept.n, now.swept.n);
    for (size_t i = 0; i < old.swept.n; i++) {
        assert_string_equal(old.swept.v[i].name, now.swept.v[i].name);
        assert_string_equal(old.swept.v[i].text, now.swept.v[i].text);
    }
    OK(cld_sweep_open(&old, &sweep, &err));
    assert_int_equal(sweep.n_points, 2);
    assert_string_equal(sweep.x, "bench.min_ms");
    cld_sweep_close(&sweep);

    OK(cld_config_load(now_path, sets, 2, &set, &err));
    assert_true(set.bench.min_ms == 9);
    assert_int_equal(set.checks.history, CLD_HISTORY_COUNT);
    cld_config_free(&set);
    cld_config_free(&old);
    cld_config_free(&now);

    /* Both names of one key are the key twice. */
    write_text(dir, "a.ini", "[bench]\nleast_ms = 7\nmin_ms = 8\n");
    FAILS(cld_config_load(old_path, NULL, 0, &old, &err), CLD_E_USAGE,
          "a.ini:3: bench.min_ms is there twice");
    cld_config_free(&old);
    /* Names that were never any stay unknown. */
    write_text(dir, "a.ini", "[bench]\nleast = 7\n");
    FAILS(cld_config_load(old_path, NULL, 0, &old, &err), CLD_E_USAGE, "unknown key 'least'");
    cld_config_free(&old);
    write_text(dir, "a.ini", "[bench]\ntexts = 7\n");
    FAILS(cld_config_load(old_path, NULL, 0, &old, &err), CLD_E_USAGE, "unknown key 'texts'");
    cld_config_free(&old);
    free(old_path);
    free(now_path);
}

/* --- command line ----------------------------------------------------------------------------- */

static void test_command_line(void **state)
{
    static char program[] = "cldraft", command[] = "check-kernels", option[] = "--family",
                joined[] = "--family=gpu", value[] = "cpu", other[] = "plan", path[] = "x.ini",
                wrong[] = "both-of-them";
    char *spaced_line[] = {program, command, option, value},
         *joined_line[] = {program, command, joined};
    char *elsewhere[] = {program, other, path, option, value},
         *bad_value[] = {program, command, option, wrong};
    struct cld_args *a = NULL;
    (void)state;
    OK(cld_args_parse(4, spaced_line, &a, &err));
    assert_string_equal(cld_args_value(a, "kernels"), "cpu");
    cld_args_free(a);
    OK(cld_args_parse(3, joined_line, &a, &err));
    assert_string_equal(cld_args_value(a, "kernels"), "gpu");
    cld_args_free(a);
    FAILS(cld_args_parse(5, elsewhere, &a, &err), CLD_E_USAGE, "unknown option '--family'");
    FAILS(cld_args_parse(4, bad_value, &a, &err), CLD_E_USAGE, "--kernels");
}

/* --- files ------------------------------------------------------------------------------------ */

static void test_run_directory(void **state)
{
    struct cld_run_data r;
    char *dir = cld_format("%s/run", (char *)*state);
    write_text(dir, "metrics.jsonl",
               "{\"step\": 1, \"loss\": 2.5}\n{\"step\": 1, \"decoded_taken_1\": 0.5, "
               "\"decoded_taken_12\": 0.25, \"decoded_taken_x\": 1}\n");
    write_text(dir, "devices.json", "[{\"worker\": \"drafter 0\", \"programs_of_modules\": 3}]");
    write_text(dir, "config.resolved.ini",
               "[checks]\nhistory = tell  # default\n[bench]\nleast_ms = 20  # a.ini:3\n");
    OK(cld_run_reader_read(dir, &r, &err));
    assert_non_null(cld_run_data_series(&r, "decoded_accepted_1"));
    assert_true(cld_series_last(cld_run_data_series(&r, "decoded_accepted_12")) == 0.25);
    assert_null(cld_run_data_series(&r, "decoded_taken_1"));
    assert_non_null(cld_run_data_series(&r, "decoded_taken_x"));
    assert_int_equal(
        json_integer_value(json_object_get(json_array_get(r.devices, 0), "programs_from_modules")),
        3);
    assert_string_equal(cld_run_data_value(&r, "checks", "history"), "count");
    assert_string_equal(cld_run_data_value(&r, "bench", "min_ms"), "20");
    assert_string_equal(cld_run_data_value(&r, "bench", "least_ms"), "");
    cld_run_data_free(&r);
    free(dir);
}

static void test_results(void **state)
{
    json_t *results = NULL;
    char *path = cld_format("%s/results.jsonl", (char *)*state);
    write_text(*state, "results.jsonl",
               "{\"what\": \"gemm\", \"swept\": {\"bench.least_ms\": 2, \"train.anchors\": 4}, "
               "\"mark\": \"slower\", "
               "\"median_ms\": 1.5}\n");
    OK(cld_bench_read(path, &results, &err));
    const json_t *first = json_array_get(results, 0), *swept = json_object_get(first, "swept");
    assert_string_equal(cld_bench_string(first, "verdict"), "slower");
    assert_null(json_object_get(first, "mark"));
    assert_int_equal(json_object_size(swept), 2);
    assert_int_equal(json_integer_value(json_object_get(swept, "bench.min_ms")), 2);
    assert_true(cld_bench_number(first, "median_ms") == 1.5);
    json_decref(results);
    free(path);
}

static void test_tuning(void **state)
{
    const struct cld_tunable_kernel *f = cld_tunable_kernel(CLD_TUNED_GEMM_CPU);
    struct cld_tuned_result r = {.family = CLD_TUNED_GEMM_CPU,
                                 .class = 0,
                                 .row = f->defaults(&cpu),
                                 .ms = 1.5,
                                 .default_ms = 2.25,
                                 .noise = 0.01,
                                 .of = "NT 1x2x3 fp32"};
    struct cld_tuning now, old;
    char *path = cld_format("%s/tuned.json", (char *)*state), *text = NULL;
    size_t n_bytes;
    bool is_of_device = false;
    r.row.v[0] = r.row.v[0] == 4 ? 6 : 4;
    OK(cld_tuning_save(path, &cpu, &r, 1, &err));
    OK(cld_file_read(path, 0, &text, &n_bytes, &err));
    cld_tuning_defaults(&cpu, &now);
    cld_tuning_defaults(&cpu, &old);
    OK(cld_tuning_parse(text, n_bytes, "now", &cpu, CLD_TUNING_FILE, &now, &is_of_device, &err));
    char *step = replaced(text, "\"kernel\"", "\"family\""),
         *before = replaced(step, "\"shapes\"", "\"of\"");
    assert_non_null(strstr(before, "\"family\""));
    assert_non_null(strstr(before, "\"of\""));
    OK(cld_tuning_parse(before, strlen(before), "old", &cpu, CLD_TUNING_FILE, &old, &is_of_device,
                        &err));
    assert_true(is_of_device);
    assert_memory_equal(&old.rows, &now.rows, sizeof now.rows);
    assert_int_equal(old.rows[CLD_TUNED_GEMM_CPU][0].v[0], r.row.v[0]);
    free(before);
    free(step);
    free(text);
    free(path);
}

/* --- notices ---------------------------------------------------------------------------------- */

/* After all of the above: one line for each old name that was met, however often it was. */
static void test_notices(void **state)
{
    static const char *const old[] = {"'bench.least_ms' is an old name",
                                      "'generate.texts' is an old name",
                                      "'checks.history = tell' is an old name",
                                      "'check-kernels --family' is an old name",
                                      "metrics.jsonl: 'decoded_taken_' is an old name",
                                      "results of a benchmark: 'mark' is an old name",
                                      "devices.json: 'programs_of_modules' is an old name",
                                      "tuned parameters: 'family' is an old name",
                                      "tuned parameters: 'of' is an old name"};
    char *path = cld_format("%s/log.txt", (char *)*state), *text = NULL;
    size_t n_bytes;
    cld_log_close();
    OK(cld_file_read(path, 0, &text, &n_bytes, &err));
    for (size_t i = 0; i < sizeof old / sizeof *old; i++)
        if (count(text, old[i]) != 1)
            fail_msg("%zu times in the log: %s\n%s", count(text, old[i]), old[i], text);
    assert_int_equal(count(text, "is an old name"), sizeof old / sizeof *old);
    free(text);
    free(path);
}

static int set_up(void **state)
{
    char *path = NULL;
    int failed = find_cpu(state) || make_temp_dir(state) ||
                 !(path = cld_format("%s/log.txt", (char *)*state)) || cld_log_open(path);
    free(path);
    return failed;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_configuration), cmocka_unit_test(test_command_line),
        cmocka_unit_test(test_run_directory), cmocka_unit_test(test_results),
        cmocka_unit_test(test_tuning),        cmocka_unit_test(test_notices)};
    return cmocka_run_group_tests(tests, set_up, remove_temp_dir);
}
