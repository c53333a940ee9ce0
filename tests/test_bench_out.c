/* Records of measurements: that every format can be read, marks beside a baseline, drawings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_compare.h"
#include "bench/bench_journal.h"
#include "bench/bench_out.h"
#include "bench/bench_plot.h"
#include "bench/bench_result.h"
#include "temp_dir.h"

/* --- examples --------------------------------------------------------------------------------- */

static const struct cld_device_info device = {
    .name = "a device", .platform = "it's a platform", .driver = "1.0, \"beta\""};

static struct cld_bench_result example(void)
{
    struct cld_bench_result r = {.what = "gemm",
                                 .name = "NT",
                                 .storage = "fp32",
                                 .variant = "12x32, \"wide\" | tall",
                                 .flop = 4e6,
                                 .repeats = 5,
                                 .runs = 7,
                                 .median_ms = 2,
                                 .min_ms = 1,
                                 .max_ms = 4};
    cld_bench_dim(&r, "m", 3);
    cld_bench_dim(&r, "n", 4);
    return r;
}

/* At train.anchors = `anchors`. */
static json_t *record_at(const struct cld_bench_result *r, const char *anchors)
{
    static const char *const names[] = {"train.anchors", "attention.backend"};
    const char *const values[] = {anchors, "sparse"};
    struct cld_bench_context c = {.device = &device,
                                  .options = "train.anchors=1",
                                  .names = names,
                                  .values = values,
                                  .n_swept = 2,
                                  .roofs = {{.gb_per_s = 10, .gflops = 8}, {0, 0}}};
    struct cld_error err = CLD_ERROR_INIT;
    json_t *record = NULL;
    if (cld_bench_json(&c, r, &record, &err))
        fail_msg("%s", err.what);
    return record;
}

static json_t *failure_at(const char *anchors)
{
    static const char *const names[] = {"train.anchors", "attention.backend"};
    const char *const values[] = {anchors, "sparse"};
    struct cld_bench_context c = {
        .device = &device, .options = "", .names = names, .values = values, .n_swept = 2};
    struct cld_error err = CLD_ERROR_INIT, why = CLD_ERROR_INIT;
    json_t *record = NULL;
    cld_fail(&why, CLD_E_MEMORY, "", "too large | by far");
    assert_int_equal(cld_bench_json_failed(&c, "gemm", &why, &record, &err), CLD_OK);
    return record;
}

/* The example, written twice, and a failure. */
static char *write_example(enum cld_bench_format format, bool compared)
{
    static const char *const swept[] = {"train.anchors", "attention.backend"};
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_bench_result r = example();
    json_t *records[] = {record_at(&r, "64"), record_at(&r, "128"), failure_at("256")};
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    struct cld_bench_out out = {.to = to, .format = format, .compared = compared};
    cld_bench_out_begin(&out, &device, swept, 2);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cld_bench_out_put(&out, records[i], &err), CLD_OK);
        json_decref(records[i]);
    }
    assert_int_equal(cld_bench_out_end(&out, &err), CLD_OK);
    fclose(to);
    return text;
}

/* --- formats ---------------------------------------------------------------------------------- */

/* Cuts a line of CSV in place into fields without their quotes; moves *at after the line. */
static size_t cut_csv(char **at, char *fields[64])
{
    size_t n = 0;
    char *p = *at;
    for (bool more = true; more && n < 64;) {
        char *to = fields[n++] = p;
        bool quoted = *p == '"';
        p += quoted;
        for (; quoted ? *p != '"' || p[1] == '"' : *p != ',' && *p != '\n'; p++) {
            assert_int_not_equal(*p, 0);
            p += quoted && *p == '"';
            *to++ = *p;
        }
        p += quoted;
        more = *p == ',';
        assert_true(more || *p == '\n');
        *to = 0;
        p++;
    }
    *at = p;
    return n;
}

static const char *field(const char *name, char **names, char **values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i], name))
            return values[i];
    fail_msg("no column '%s'", name);
    return NULL;
}

static void csv_can_be_read(void **state)
{
    (void)state;
    char *text = write_example(CLD_BENCH_CSV, false), *at = text, *names[64], *values[64];
    size_t n = cut_csv(&at, names);
    assert_string_equal(names[0], "version");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cut_csv(&at, values), n);
        assert_string_equal(field("version", names, values, n), CLD_VERSION);
        assert_string_equal(field("driver", names, values, n), "1.0, \"beta\"");
        assert_string_equal(field("train.anchors", names, values, n), i ? "128" : "64");
        assert_string_equal(field("attention.backend", names, values, n), "sparse");
        assert_string_equal(field("shape", names, values, n), "m=3 n=4");
        assert_string_equal(field("variant", names, values, n), "12x32, \"wide\" | tall");
        assert_string_equal(field("repeats", names, values, n), "5");
        assert_string_equal(field("runs_per_repeat", names, values, n), "7");
        assert_string_equal(field("spread", names, values, n), "1.5");
        assert_string_equal(field("gflops", names, values, n), "2");
        assert_string_equal(field("tflops", names, values, n), "0.002");
        assert_string_equal(field("gb_per_s", names, values, n), "");
        assert_string_equal(field("roof_gflops", names, values, n), "8");
        assert_string_equal(field("share_of_roof", names, values, n), "0.25");
        assert_string_equal(field("error", names, values, n), "");
    }
    assert_int_equal(cut_csv(&at, values), n);
    assert_string_equal(field("error", names, values, n), "too large | by far");
    assert_string_equal(field("median_ms", names, values, n), "");
    assert_int_equal(*at, 0);
    free(text);
}

static void markdown_has_equal_columns(void **state)
{
    (void)state;
    for (int compared = 0; compared < 2; compared++) {
        char *text = write_example(CLD_BENCH_MD, compared), *rest = text, *line;
        size_t n_rows = 0, n_columns = 0;
        while ((line = strsep(&rest, "\n"))) {
            size_t n = 0;
            if (*line != '|')
                continue;
            for (const char *p = line; *p; p++)
                n += *p == '|' && (p == line || p[-1] != '\\');
            if (!n_rows)
                n_columns = n;
            assert_int_equal(n, n_columns);
            n_rows++;
        }
        assert_int_equal(n_rows, 5); /* head, rule, three records */
        free(text);
    }
}

static void json_is_an_array_and_jsonl_lines(void **state)
{
    (void)state;
    char *text = write_example(CLD_BENCH_JSON, false);
    json_t *all = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_int_equal(json_array_size(all), 3);
    const json_t *swept = json_object_get(json_array_get(all, 1), "swept");
    assert_int_equal(json_integer_value(json_object_get(swept, "train.anchors")), 128);
    assert_string_equal(json_string_value(json_object_get(swept, "attention.backend")), "sparse");
    free(text);
    text = write_example(CLD_BENCH_JSONL, false);
    char *rest = text, *line;
    for (size_t i = 0; i < 3; i++) {
        line = strsep(&rest, "\n");
        json_t *one = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_true(json_equal(one, json_array_get(all, i)));
        json_decref(one);
    }
    assert_string_equal(rest, "");
    json_decref(all);
    free(text);
}

/* What SQL is, as far as quotes go: statements end outside of them, and each has as many values as
 * names. tests/test_bench_sweep.sh gives it to sqlite3 where there is one. */
static void sql_is_quoted(void **state)
{
    (void)state;
    char *text = write_example(CLD_BENCH_SQL, false);
    size_t n_statements = 0, n_commas = 0;
    char quote = 0;
    for (const char *p = text; *p; p++) {
        if (quote) {
            quote = *p == quote ? 0 : quote; /* a doubled one opens again at once */
        } else if (*p == '\'' || *p == '"') {
            quote = *p;
        } else if (*p == ';') {
            n_statements++;
        } else {
            n_commas += *p == ',';
        }
    }
    assert_int_equal(quote, 0);
    assert_int_equal(n_statements, 1 + 1 + 3 + 1); /* begin, create, three inserts, commit */
    assert_int_equal(n_commas % 7, 0); /* one list of columns; names and values of each insert */
    assert_non_null(strstr(text, "CREATE TABLE"));
    assert_non_null(strstr(text, "'it''s a platform'"));
    assert_non_null(strstr(text, "\"train.anchors\""));
    free(text);
}

static void a_full_disk_is_an_error(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_bench_result r = example();
    json_t *record = record_at(&r, "1");
    FILE *to = fopen("/dev/full", "w");
    assert_non_null(to);
    struct cld_bench_out out = {.to = to, .format = CLD_BENCH_CSV};
    cld_bench_out_begin(&out, &device, NULL, 0);
    assert_int_equal(cld_bench_out_put(&out, record, &err), CLD_E_IO);
    assert_int_equal(cld_bench_out_end(&out, &err), CLD_E_IO);
    json_decref(record);
    fclose(to);
}

/* The bound of work that has operations and bytes is the lesser one; that of copies over a bus is
 * not the device's memory. */
static void the_share_is_of_the_lesser_bound(void **state)
{
    (void)state;
    static const struct {
        double flop, bytes;
        bool off_device;
        double share; /* of 10 GB/s and 8 GFLOP/s, in 2 ms */
    } cases[] = {{4e6, 0, false, 0.25}, {4e6, 1e6, false, 0.25}, {4e6, 1e7, false, 0.5},
                 {0, 1e7, false, 0.5},  {0, 1e7, true, 0},       {0, 0, false, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cld_bench_result r = example();
        r.flop = cases[i].flop;
        r.bytes = cases[i].bytes;
        r.off_device = cases[i].off_device;
        json_t *record = record_at(&r, "1");
        assert_float_equal(cld_bench_number(record, "share_of_roof"), cases[i].share, 1e-9);
        json_decref(record);
    }
}

/* --- beside a baseline ------------------------------------------------------------------------ */

static json_t *timed(const char *anchors, double min_ms, double median_ms, double max_ms,
                     size_t repeats)
{
    struct cld_bench_result r = example();
    r.min_ms = min_ms;
    r.median_ms = median_ms;
    r.max_ms = max_ms;
    r.repeats = repeats;
    return record_at(&r, anchors);
}

static void marks(struct cld_bench_baseline *b, json_t *record, const char *want, double change)
{
    struct cld_error err = CLD_ERROR_INIT;
    assert_int_equal(cld_bench_baseline_judge(b, record, &err), CLD_OK);
    assert_string_equal(cld_bench_string(record, "verdict"), want);
    assert_float_equal(cld_bench_number(record, "change"), change, 1e-9);
    json_decref(record);
}

static struct cld_bench_baseline *baseline_of(const char *path, json_t *const *records, size_t n)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_bench_baseline *b = NULL;
    FILE *to = fopen(path, "w");
    for (size_t i = 0; i < n; i++) {
        json_dumpf(records[i], to, 0);
        fputc('\n', to);
        json_decref(records[i]);
    }
    fclose(to);
    if (cld_bench_baseline_open(path, &b, &err))
        fail_msg("%s", err.what);
    return b;
}

static void changes_beyond_the_noise_are_marked(void **state)
{
    char path[256];
    snprintf(path, sizeof path, "%s/base.jsonl", (const char *)*state);
    json_t *const then[] = {timed("1", 9, 10, 11, 5), timed("2", 9, 10, 11, 5),
                            timed("3", 9, 10, 11, 5), timed("4", 5, 10, 15, 5),
                            timed("5", 9, 10, 11, 1), timed("6", 9, 10, 11, 5),
                            timed("7", 9, 10, 11, 5), failure_at("8")};
    struct cld_bench_baseline *b = baseline_of(path, then, 8);
    marks(b, timed("1", 11.9, 12, 12.1, 5), "same", 0.2); /* by just the spread of the baseline */
    marks(b, timed("2", 12, 12.5, 13, 5), "slower", 0.25);
    marks(b, timed("3", 7, 7.5, 8, 5), "faster", -0.25);
    marks(b, timed("4", 12, 12.5, 13, 5), "same", 0.25); /* the baseline was that noisy */
    marks(b, timed("5", 12, 12.5, 13, 5), "unsure", 0.25);
    marks(b, failure_at("6"), "fails", 0);
    marks(b, timed("8", 9, 10, 11, 5), "new", 0);
    marks(b, timed("9", 9, 10, 11, 5), "new", 0);
    marks(b, failure_at("10"), "new", 0);
    assert_int_equal(cld_bench_baseline_report(b), 2); /* slower, and fails */
    cld_bench_baseline_close(b);
}

/* Two back-ends of one product: first by their kernels, then in their order. */
static void equal_work_is_told_apart(void **state)
{
    char path[256];
    snprintf(path, sizeof path, "%s/base.jsonl", (const char *)*state);
    json_t *one = timed("1", 9, 10, 11, 5), *two = timed("1", 19, 20, 21, 5);
    json_object_set_new(two, "variant", json_string("other"));
    json_t *const then[] = {one, two};
    struct cld_bench_baseline *b = baseline_of(path, then, 2);
    json_t *now = timed("1", 19, 20, 21, 5);
    json_object_set_new(now, "variant", json_string("other"));
    marks(b, now, "same", 0);
    now = timed("1", 9, 10, 11, 5);
    json_object_set_new(now, "variant", json_string("renamed"));
    marks(b, now, "same", 0);
    marks(b, timed("1", 9, 10, 11, 5), "new", 0);
    cld_bench_baseline_close(b);
}

static void a_baseline_is_json_or_refused(void **state)
{
    char path[256];
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_bench_baseline *b = NULL;
    snprintf(path, sizeof path, "%s/base.json", (const char *)*state);
    char *text = write_example(CLD_BENCH_JSON, false);
    assert_int_equal(cld_file_write(path, text, strlen(text), &err), CLD_OK);
    free(text);
    assert_int_equal(cld_bench_baseline_open(path, &b, &err), CLD_OK);
    struct cld_bench_result r = example();
    marks(b, record_at(&r, "128"), "same", 0);
    cld_bench_baseline_close(b);
    text = write_example(CLD_BENCH_MD, false);
    assert_int_equal(cld_file_write(path, text, strlen(text), &err), CLD_OK);
    free(text);
    assert_int_equal(cld_bench_baseline_open(path, &b, &err), CLD_E_INPUT);
    assert_int_equal(cld_bench_baseline_open("no/such.json", &b, &err), CLD_E_INPUT);
}

/* --- drawings --------------------------------------------------------------------------------- */

/* *text is freed by the caller. */
static void read_text(const char *path, char **text)
{
    struct cld_error err = CLD_ERROR_INIT;
    size_t n = 0;
    if (cld_file_read(path, 0, text, &n, &err))
        fail_msg("%s", err.what);
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *p = strstr(text, what); p; p = strstr(p + 1, what))
        n++;
    return n;
}

/* Two lines over three anchors, of times and of rates; a failure is no point. */
static void a_sweep_is_drawn(void **state)
{
    char path[256], beside[256];
    struct cld_error err = CLD_ERROR_INIT;
    static const char *const anchors[] = {"16", "4", "8"};
    json_t *records = json_array();
    snprintf(path, sizeof path, "%s/a.svg", (const char *)*state);
    snprintf(beside, sizeof beside, "%s/a-roofline.svg", (const char *)*state);
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 2; k++) {
            struct cld_bench_result r = example();
            r.bytes = 1e6;
            snprintf(r.name, sizeof r.name, k ? "NN" : "NT");
            json_array_append_new(records, record_at(&r, anchors[i]));
        }
    json_array_append_new(records, failure_at("32"));
    assert_int_equal(cld_bench_plot(records, NULL, path, &err), CLD_OK);
    char *text = NULL;
    read_text(path, &text);
    assert_int_equal(count(text, "<svg class=\"cld-chart\""), 2);
    assert_int_equal(count(text, "<title>NT: "), 2 * 3);
    assert_int_equal(count(text, "<title>NN: "), 2 * 3);
    assert_int_equal(count(text, ">train.anchors (blocks)<"), 2);
    assert_int_equal(count(text, ">16</text>"), 2);
    assert_int_equal(count(text, "backend=sparse"), 0); /* the same everywhere */
    free(text);
    read_text(beside, &text);
    assert_int_equal(count(text, "<svg class=\"cld-chart\""), 1);
    assert_int_equal(count(text, "<title>gemm NT, fp32: 4, 2"), 3); /* FLOP/byte, GFLOP/s */
    assert_int_equal(count(text, "measured roof, fp32: 10 GB/s, 8 GFLOP/s"), 1);
    free(text);
    json_decref(records);
}

static void nothing_to_draw_is_an_error(void **state)
{
    char path[256];
    struct cld_error err = CLD_ERROR_INIT;
    snprintf(path, sizeof path, "%s/a.svg", (const char *)*state);
    json_t *records = json_array();
    json_array_append_new(records, failure_at("1"));
    assert_int_equal(cld_bench_plot(records, NULL, path, &err), CLD_E_USAGE);
    assert_false(cld_file_exists(path));
    json_decref(records);
}

#define WITH_DIR(f) cmocka_unit_test_setup_teardown(f, make_temp_dir, remove_temp_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(csv_can_be_read),
        cmocka_unit_test(markdown_has_equal_columns),
        cmocka_unit_test(json_is_an_array_and_jsonl_lines),
        cmocka_unit_test(sql_is_quoted),
        cmocka_unit_test(a_full_disk_is_an_error),
        cmocka_unit_test(the_share_is_of_the_lesser_bound),
        WITH_DIR(changes_beyond_the_noise_are_marked),
        WITH_DIR(equal_work_is_told_apart),
        WITH_DIR(a_baseline_is_json_or_refused),
        WITH_DIR(a_sweep_is_drawn),
        WITH_DIR(nothing_to_draw_is_an_error),
    };
    cld_log_set_level(CLD_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
