/* Sweeps: values and ranges, what is crossed and what is zipped, what is refused and with which
 * words, and runs over points, one of them impossible. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench_journal.h"
#include "bench/bench_run.h"
#include "config/config_sweep.h"
#include "bench/sweep.h"
#include "temp_dir.h"

/* --- values ----------------------------------------------------------------------------------- */

static void expands(const char *name, const char *text, const char *want)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_text_list values;
    char got[512] = "";
    if (cld_config_expand(name, text, &values, &err))
        fail_msg("%s = %s: %s", name, text, err.what);
    for (size_t i = 0; i < values.n; i++) {
        strcat(got, i ? ";" : "");
        strcat(got, values.v[i]);
    }
    assert_string_equal(got, want);
    cld_config_values_free(&values);
}

static void does_not_expand(const char *name, const char *text, const char *words)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_text_list values;
    if (cld_config_expand(name, text, &values, &err) != CLD_E_USAGE || !strstr(err.what, words))
        fail_msg("%s = %s: wanted '%s', got '%s'", name, text, words, err.what);
    cld_config_values_free(&values);
}

static void values_are_lists_and_ranges(void **state)
{
    (void)state;
    expands("train.anchors", "64,128", "64;128");
    expands("train.anchors", " 64 , 128 ", "64;128");
    expands("train.anchors", "7", "7");
    expands("data.max_length", "1024..8192*2", "1024;2048;4096;8192");
    expands("data.max_length", "1000..8191*2", "1000;2000;4000;8000");
    expands("train.anchors", "1..9+2", "1;3;5;7;9");
    expands("train.anchors", "1..8+2", "1;3;5;7");
    expands("train.anchors", "2,4..6+1,32..64*2", "2;4;5;6;32;64");
    expands("train.anchors", "5..5+1", "5");
    expands("train.learning_rate", "1e-4..1e-2*10", "0.0001;0.001;0.01");
    expands("train.gamma", "0.1..0.4+0.1", "0.1;0.2;0.3;0.4");
    expands("train.gamma", "1e+1..2e+1+5", "10;15;20");
    expands("attention.backend", "sparse,dense", "sparse;dense");
    expands("bench.target", "yes,no", "yes;no");
    expands("target.taps", "1,3,4 | 0,2,5", "1,3,4;0,2,5");
    expands("bench.shapes", "8x8x8,4x4x4|NT:1x2x3", "8x8x8,4x4x4;NT:1x2x3");
    /* Dots are dots where the key takes no number. */
    expands("run.seed", "1..3+1", "1;2;3");
    expands("target.dir", "../a,../b", "../a;../b");
}

static void wrong_values_are_refused(void **state)
{
    (void)state;
    does_not_expand("train.anchor", "1", "unknown key 'train.anchor'");
    does_not_expand("train.anchors", "9..1+2", "empty range");
    does_not_expand("train.anchors", "1..9", "without a step");
    does_not_expand("train.anchors", "1..9*1", "does not ascend");
    does_not_expand("train.anchors", "1..9+0", "does not ascend");
    does_not_expand("train.anchors", "1..9+x", "not a range");
    does_not_expand("train.anchors", "..9+1", "not a range");
    does_not_expand("train.anchors", "1..9+0.5", "whole numbers");
    does_not_expand("train.anchors", "1..200000*2", "out of range");
    does_not_expand("train.anchors", "0..4+1", "out of range");
    does_not_expand("data.max_length", "2..1000000+1", "more than 10000 values");
    does_not_expand("train.anchors", "1,,2", "an empty value");
    does_not_expand("train.anchors", "64,64", "twice");
    does_not_expand("train.anchors", "64,1..64*2", "twice");
    does_not_expand("train.anchors", "64,abc", "not a whole number");
    does_not_expand("attention.backend", "sparse,dens", "unknown name");
    does_not_expand("bench.shapes", "8x8x8 | 8x8", "MxNxK");
}

/* --- points ----------------------------------------------------------------------------------- */

/* "" or the words of the error. */
static void has_points(const char *text, size_t n, const char *const *want, const char *words)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    struct cld_sweep sweep = {0};
    char got[256];
    enum cld_status s = cld_config_parse(text, "a test", &cfg, &err);
    if (!s)
        s = cld_sweep_open(&cfg, &sweep, &err);
    if (words) {
        if (s != CLD_E_USAGE || !strstr(err.what, words))
            fail_msg("wanted '%s', got '%s'", words, err.what);
    } else if (s) {
        fail_msg("%s", err.what);
    } else {
        assert_int_equal(sweep.n_points, n);
        for (size_t i = 0; i < n; i++)
            assert_string_equal(cld_sweep_text(&sweep, i, got, sizeof got), want[i]);
    }
    cld_sweep_close(&sweep);
    cld_config_free(&cfg);
}

static void keys_are_crossed(void **state)
{
    (void)state;
    static const char *const crossed[] = {
        "train.anchors=1 data.max_length=8", "train.anchors=1 data.max_length=16",
        "train.anchors=2 data.max_length=8", "train.anchors=2 data.max_length=16",
        "train.anchors=3 data.max_length=8", "train.anchors=3 data.max_length=16"};
    has_points("[sweep]\ntrain.anchors = 1,2,3\ndata.max_length = 8,16\n", 6, crossed, NULL);
    has_points("[bench]\nrepeats = 1\n", 1, (const char *const[]){""}, NULL);
}

static void keys_are_zipped(void **state)
{
    (void)state;
    static const char *const all[] = {"train.anchors=1 data.max_length=8",
                                      "train.anchors=2 data.max_length=16"};
    static const char *const groups[] = {"train.anchors=1 data.max_length=8 run.seed=5",
                                         "train.anchors=1 data.max_length=8 run.seed=6",
                                         "train.anchors=2 data.max_length=16 run.seed=5",
                                         "train.anchors=2 data.max_length=16 run.seed=6"};
    static const char *const apart[] = {"run.seed=5 train.anchors=1 data.max_length=8",
                                        "run.seed=6 train.anchors=1 data.max_length=16"};
    has_points("[sweep]\ntrain.anchors = 1,2\ndata.max_length = 8,16\nzip = all\n", 2, all, NULL);
    has_points("[sweep]\ntrain.anchors = 1,2\ndata.max_length = 8,16\nrun.seed = 5,6\n"
               "zip = data.max_length, train.anchors\n",
               4, groups, NULL);
    /* Two groups, one of them of a single key; and a group whose keys do not stand together. */
    has_points("[sweep]\ntrain.anchors = 1,2\ndata.max_length = 8,16\nrun.seed = 5,6\n"
               "zip = train.anchors,data.max_length | run.seed\n",
               4, groups, NULL);
    has_points("[sweep]\nrun.seed = 5,6\ntrain.anchors = 1\ndata.max_length = 8,16\n"
               "zip = run.seed,data.max_length\n",
               2, (const char *const[]){apart[0], "run.seed=6 train.anchors=1 data.max_length=16"},
               NULL);
    has_points("[sweep]\ntrain.anchors = 1,2\ndata.max_length = 8\nzip = all\n", 0, NULL,
               "train.anchors has 2 values, data.max_length has 1");
    has_points("[sweep]\ntrain.anchors = 1,2\nzip = train.anchors,run.seed\n", 0, NULL,
               "'run.seed' is not swept");
    has_points("[sweep]\ntrain.anchors = 1,2\nzip = train.anchors,train.anchors\n", 0, NULL,
               "there twice");
    has_points("[sweep]\ntrain.anchors = 1,2\nx = run.seed\n", 0, NULL,
               "sweep.x: 'run.seed' is not swept");
}

static void wrong_sweeps_are_refused(void **state)
{
    (void)state;
    has_points("[sweep]\ntrain.anchors = 1..100+1\nrun.seed = 1..100+1\n", 0, NULL,
               "10000 points, sweep.max_points is 1000");
    has_points("[sweep]\ntrain.anchor = 1\n", 0, NULL, "unknown key 'anchor' in [train]");
    has_points("[sweep]\ntrian.anchors = 1\n", 0, NULL, "unknown section [trian]");
    has_points("[sweep]\nzipp = all\n", 0, NULL, "unknown key 'zipp' in [sweep]");
    has_points("[sweep]\nlog.level = debug,info\n", 0, NULL, "log.level changes no measurement");
    has_points("[sweep]\nsweep.zip = all\n", 0, NULL, "changes no measurement");
    has_points("\n[sweep]\ntrain.anchors = 5..1+1\n", 0, NULL, ":3: [sweep]: ");
    /* A training has one value. */
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    assert_int_equal(cld_config_parse("[sweep]\ntrain.anchors = 1,2\n", "a test", &cfg, &err),
                     CLD_OK);
    assert_int_equal(cld_config_check(&cfg, CLD_CONFIG_TRAIN, &err), CLD_E_USAGE);
    assert_non_null(strstr(err.what, "[sweep] gives several values to train.anchors"));
    cld_config_free(&cfg);
}

/* What is printed reads back; --set replaces a line. */
static void a_sweep_is_printed_and_set(void **state)
{
    const char *const set = "sweep.target.taps=1,2 | 3,4";
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg, again;
    char *text = NULL, path[128];
    snprintf(path, sizeof path, "%s/a.ini", (const char *)*state);
    FILE *to = fopen(path, "w");
    fputs("[sweep]\ntarget.taps = 5\ntrain.anchors = 1..4*2\n", to);
    fclose(to);
    assert_int_equal(cld_config_load(path, &set, 1, &cfg, &err), CLD_OK);
    assert_int_equal(cfg.swept.n, 2);
    assert_int_equal(cld_config_text(&cfg, &text, &err), CLD_OK);
    if (cld_config_parse(text, "printed", &again, &err))
        fail_msg("%s", err.what);
    assert_int_equal(again.swept.n, 2);
    assert_string_equal(again.swept.v[0].name, "target.taps");
    assert_string_equal(again.swept.v[0].text, "1,2 | 3,4");
    assert_string_equal(again.swept.v[1].text, "1..4*2");
    free(text);
    cld_config_free(&cfg);
    cld_config_free(&again);
}

/* Every point of the sweeps that come along is valid. */
static void shipped_sweeps_are_valid(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        size_t n_points;
    } all[] = {{"configs/sweep-attention.ini", 12},
               {"configs/sweep-gemm.ini", 10},
               {"configs/sweep-step.ini", 4},
               {"configs/sweep-transfer.ini", 7}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct cld_error err = CLD_ERROR_INIT;
        struct cld_config cfg, point;
        struct cld_sweep sweep = {0};
        const char *values[8];
        assert_int_equal(cld_config_load(all[i].path, NULL, 0, &cfg, &err), CLD_OK);
        assert_int_equal(cld_sweep_open(&cfg, &sweep, &err), CLD_OK);
        assert_int_equal(sweep.n_points, all[i].n_points);
        for (size_t k = 0; k < sweep.n_points; k++) {
            cld_sweep_point(&sweep, k, values);
            if (cld_config_with(&cfg, sweep.names, values, sweep.n_keys, &point, &err) ||
                cld_config_check(&point, CLD_CONFIG_BENCH, &err))
                fail_msg("%s, point %zu: %s", all[i].path, k, err.what);
            cld_config_free(&point);
        }
        cld_sweep_close(&sweep);
        cld_config_free(&cfg);
    }
}

/* --- runs ------------------------------------------------------------------------------------- */

static const char sweep[] = "[bench]\nwhat = gemm\nrepeats = 2\nmin_ms = 0\nroofline = no\n"
                            "[sweep]\nbench.shapes = NT:3x4x5 | NT:6x7x8\n"
                            "runtime.precision = fp32,bf16\n";

struct outcome {
    enum cld_status status;
    struct cld_error err;
    json_t *records;
};

static struct outcome run(const char *text, const struct cld_bench_options *more)
{
    struct outcome o = {.err = CLD_ERROR_INIT};
    struct cld_config cfg;
    struct cld_bench_options options = more ? *more : (struct cld_bench_options){0};
    char *out = NULL;
    size_t n = 0;
    options.device = "cpu:0/1";
    options.format = CLD_BENCH_JSON;
    options.to = open_memstream(&out, &n);
    assert_int_equal(cld_config_parse(text, "a test", &cfg, &o.err), CLD_OK);
    o.status = cld_bench_run(&cfg, &options, &o.err);
    fclose(options.to);
    o.records = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
    free(out);
    cld_config_free(&cfg);
    return o;
}

static const json_t *field(const struct outcome *o, size_t i, const char *key)
{
    const json_t *v = json_object_get(json_array_get(o->records, i), key);
    if (!v)
        fail_msg("no '%s' in record %zu of %zu", key, i, json_array_size(o->records));
    return v;
}

static void every_point_is_measured(void **state)
{
    (void)state;
    struct outcome o = run(sweep, NULL);
    assert_int_equal(o.status, CLD_OK);
    assert_int_equal(json_array_size(o.records), 4);
    static const char *const shapes[] = {"NT:3x4x5", "NT:3x4x5", "NT:6x7x8", "NT:6x7x8"};
    for (size_t i = 0; i < 4; i++) {
        const json_t *swept = field(&o, i, "swept");
        assert_string_equal(json_string_value(json_object_get(swept, "bench.shapes")), shapes[i]);
        assert_string_equal(json_string_value(json_object_get(swept, "runtime.precision")),
                            i % 2 ? "bf16" : "fp32");
        assert_non_null(strstr(json_string_value(field(&o, i, "options")),
                               i % 2 ? "runtime.precision=bf16" : "runtime.precision=fp32"));
        assert_true(json_is_null(field(&o, i, "share_of_roof")));
    }
    json_decref(o.records);
}

/* A point that is not valid, and one that does not fit, are records; the others are measured. */
static void what_cannot_be_is_a_record(void **state)
{
    (void)state;
    struct outcome o = run("[bench]\nwhat = gemm\nrepeats = 1\nmin_ms = 0\nroofline = no\n"
                           "[train]\nbatch_rows = 4\n"
                           "[sweep]\ntrain.micro_rows = 1,3,4\n"
                           "bench.shapes = NT:4x4x4 | NT:4096x4096x4096\n"
                           "[memory]\nlimit_gib = 0.01\nreserve_gib = 0\n",
                           NULL);
    assert_int_equal(o.status, CLD_OK);
    assert_int_equal(json_array_size(o.records), 6);
    for (size_t i = 0; i < 6; i++) {
        const char *why = json_string_value(field(&o, i, "error"));
        bool invalid = i / 2 == 1, large = i % 2;
        assert_string_equal(json_string_value(field(&o, i, "what")), "gemm");
        assert_int_equal(json_object_size(json_array_get(o.records, i)),
                         json_object_size(json_array_get(o.records, 0)));
        assert_true(json_is_null(field(&o, i, "median_ms")) == (invalid || large));
        if (invalid)
            assert_non_null(strstr(why, "train.micro_rows 3 does not divide"));
        else if (large)
            assert_non_null(strstr(why, "bench"));
        else
            assert_null(why);
    }
    json_decref(o.records);
    /* Nothing could be measured: that is an error. */
    o = run("[bench]\nwhat = gemm\nroofline = no\n[train]\nbatch_rows = 4\n"
            "[sweep]\ntrain.micro_rows = 3\n",
            NULL);
    assert_int_equal(o.status, CLD_E_USAGE);
    assert_int_equal(json_array_size(o.records), 1);
    json_decref(o.records);
}

static void the_roof_is_measured(void **state)
{
    (void)state;
    struct outcome o = run("[bench]\nwhat = gemm\nrepeats = 1\nmin_ms = 0\n"
                           "shapes = NT:64x64x64\n[runtime]\nprecision = fp32\n",
                           NULL);
    assert_int_equal(o.status, CLD_OK);
    double flops = json_number_value(field(&o, 0, "roof_gflops"));
    double bytes = json_number_value(field(&o, 0, "roof_gb_per_s"));
    double intensity = json_number_value(field(&o, 0, "flop_per_byte"));
    double share = json_number_value(field(&o, 0, "share_of_roof"));
    double rate = json_number_value(field(&o, 0, "gflops"));
    double bound = intensity * bytes < flops ? intensity * bytes : flops;
    assert_true(flops > 0 && bytes > 0);
    assert_float_equal(intensity, 2 * 64. * 64 * 64 / (3 * 64 * 64 * 4), 1e-3);
    assert_float_equal(share, rate / bound, 1e-3 * share);
    json_decref(o.records);
}

/* --- the journal ------------------------------------------------------------------------------ */

static size_t n_lines(const char *path)
{
    FILE *from = fopen(path, "r");
    size_t n = 0;
    assert_non_null(from);
    for (int c; (c = fgetc(from)) != EOF;)
        n += c == '\n';
    fclose(from);
    return n;
}

static void cut_file(const char *path, long less)
{
    FILE *f = fopen(path, "r+");
    fseek(f, 0, SEEK_END);
    assert_int_equal(ftruncate(fileno(f), ftell(f) - less), 0);
    fclose(f);
}

static double median(const struct outcome *o, size_t i)
{
    return json_number_value(field(o, i, "median_ms"));
}

/* The second call takes what is there; a line that was cut is measured again, with its unit. */
static void a_sweep_is_resumed(void **state)
{
    char path[128];
    snprintf(path, sizeof path, "%s/a.jsonl", (const char *)*state);
    const struct cld_bench_options o = {.out = path};
    char text[512];
    snprintf(text, sizeof text, "%s", sweep);
    struct outcome a = run(text, &o), b = run(text, &o);
    assert_int_equal(a.status, CLD_OK);
    assert_int_equal(b.status, CLD_OK);
    assert_int_equal(n_lines(path), 4);
    assert_int_equal(json_array_size(b.records), 4);
    for (size_t i = 0; i < 4; i++)
        assert_float_equal(median(&a, i), median(&b, i), 1e-12);
    json_decref(b.records);
    cut_file(path, 40);
    assert_int_equal(n_lines(path), 3);
    b = run(text, &o);
    assert_int_equal(b.status, CLD_OK);
    assert_int_equal(n_lines(path), 4);
    assert_int_equal(json_array_size(b.records), 4);
    for (size_t i = 0; i < 3; i++)
        assert_float_equal(median(&a, i), median(&b, i), 1e-12);
    json_decref(b.records);
    /* Other options are another measurement. */
    snprintf(text, sizeof text, "%s[run]\nseed = 7\n", sweep);
    b = run(text, &o);
    assert_int_equal(n_lines(path), 8);
    json_decref(b.records);
    /* The whole file is what --compare reads. */
    json_t *all = NULL;
    struct cld_error err = CLD_ERROR_INIT;
    assert_int_equal(cld_bench_read(path, &all, &err), CLD_OK);
    assert_int_equal(json_array_size(all), 8);
    json_decref(all);
    json_decref(a.records);
}

/* Three records of one unit: without its end it is not there. */
static void half_a_unit_is_cut_off(void **state)
{
    static const char text[] = "[bench]\nwhat = gemm\nshapes = 3x4x5\nrepeats = 1\nmin_ms = 0\n"
                               "roofline = no\n[sweep]\nruntime.precision = fp32,bf16\n";
    char path[128];
    snprintf(path, sizeof path, "%s/a.jsonl", (const char *)*state);
    const struct cld_bench_options o = {.out = path};
    struct outcome a = run(text, &o);
    assert_int_equal(n_lines(path), 6);
    cut_file(path, 10);
    struct cld_bench_journal *j = NULL;
    struct cld_error err = CLD_ERROR_INIT;
    assert_int_equal(cld_bench_journal_open(path, &j, &err), CLD_OK);
    assert_int_equal(n_lines(path), 3);
    json_t *known = cld_bench_journal_find(j, json_array_get(a.records, 0));
    assert_int_equal(json_array_size(known), 3);
    assert_null(json_object_get(json_array_get(known, 0), "of"));
    assert_null(cld_bench_journal_find(j, json_array_get(a.records, 3)));
    json_decref(known);
    /* No other process may write it meanwhile. */
    struct cld_bench_journal *second = NULL;
    assert_int_equal(cld_bench_journal_open(path, &second, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "another process"));
    cld_bench_journal_close(j);
    json_decref(a.records);
}

static void other_files_are_left_alone(void **state)
{
    static const char *const texts[] = {"not a journal\nat all\n",
                                        "{\"what\": \"gemm\"}\n", /* as --format jsonl writes */
                                        "{\"a\": 1}\n{\"what\": \"gemm\"}\n"};
    char path[128];
    snprintf(path, sizeof path, "%s/a.jsonl", (const char *)*state);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct cld_error err = CLD_ERROR_INIT;
        struct cld_bench_journal *j = NULL;
        FILE *to = fopen(path, "w");
        fputs(texts[i], to);
        fclose(to);
        size_t n = n_lines(path);
        assert_int_equal(cld_bench_journal_open(path, &j, &err), CLD_E_INPUT);
        assert_null(j);
        assert_int_equal(n_lines(path), n);
    }
}

/* Without time nothing begins; what was left out is measured by the next call. */
static void time_can_be_up(void **state)
{
    char path[128], text[512];
    snprintf(path, sizeof path, "%s/a.jsonl", (const char *)*state);
    const struct cld_bench_options o = {.out = path};
    snprintf(text, sizeof text, "%slimit_s = 1e-6\n", sweep);
    struct outcome a = run(text, &o);
    assert_int_equal(a.status, CLD_OK);
    assert_int_equal(json_array_size(a.records), 0);
    json_decref(a.records);
    a = run(sweep, &o);
    assert_int_equal(json_array_size(a.records), 4);
    json_decref(a.records);
}

#define WITH_DIR(f) cmocka_unit_test_setup_teardown(f, make_temp_dir, remove_temp_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_lists_and_ranges),
        cmocka_unit_test(wrong_values_are_refused),
        cmocka_unit_test(keys_are_crossed),
        cmocka_unit_test(keys_are_zipped),
        cmocka_unit_test(wrong_sweeps_are_refused),
        WITH_DIR(a_sweep_is_printed_and_set),
        cmocka_unit_test(shipped_sweeps_are_valid),
        cmocka_unit_test(every_point_is_measured),
        cmocka_unit_test(what_cannot_be_is_a_record),
        cmocka_unit_test(the_roof_is_measured),
        WITH_DIR(a_sweep_is_resumed),
        WITH_DIR(half_a_unit_is_cut_off),
        WITH_DIR(other_files_are_left_alone),
        WITH_DIR(time_can_be_up),
    };
    cld_log_set_level(CLD_LOG_ERROR); /* points that fail are warned of */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
