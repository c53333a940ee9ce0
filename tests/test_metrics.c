/* metrics.jsonl: lines read back exactly; a resumed run's file is that of a run without a stop. */
#include "train/metrics.h"

#include <float.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <cmocka.h>

#include "base/file.h"
#include "temp_dir.h"
#include "must.h"

static char *text_of(const char *path)
{
    char *text;
    size_t n;
    OK(cld_file_read(path, 0, &text, &n, &err));
    assert_int_equal(strlen(text), n);
    return text;
}

static void step_line(struct cld_metrics *m, int64_t step)
{
    cld_metrics_begin(m, step);
    cld_metrics_number(m, "loss", 5 / (double)(step + 1));
    OK(cld_metrics_end(m, &err));
    if (step % 2)
        return;
    cld_metrics_begin(m, step);
    cld_metrics_number(m, "heldout_loss", 6 / (double)(step + 1));
    OK(cld_metrics_end(m, &err));
}

static void lines_are_as_they_were_given(void **state)
{
    char *path = cld_format("%s/metrics.jsonl", (char *)*state);
    struct cld_metrics *m;
    OK(cld_metrics_open(path, -1, &m, &err));
    cld_metrics_begin(m, 3);
    cld_metrics_number(m, "loss", 0.1);
    cld_metrics_whole(m, "rows", INT64_MIN);
    cld_metrics_number(m, "accuracy", 1);
    cld_metrics_number(m, "grad_norm", (double)INFINITY);
    cld_metrics_number(m, "nan", (double)NAN);
    cld_metrics_text(m, "attention", "a \"b\"\n\xc3\xa4");
    OK(cld_metrics_end(m, &err));
    cld_metrics_begin(m, 4);
    OK(cld_metrics_end(m, &err));
    char *text = text_of(path); /* before it is closed */
    assert_string_equal(text, "{\"step\": 3, \"loss\": 0.1, \"rows\": -9223372036854775808, "
                              "\"accuracy\": 1, \"grad_norm\": null, \"nan\": null, "
                              "\"attention\": \"a \\\"b\\\"\\n\xc3\xa4\"}\n{\"step\": 4}\n");
    OK(cld_metrics_sync(m, &err));
    OK(cld_metrics_close(m, &err));
    free(text);
    free(path);
}

static void numbers_read_back(void **state)
{
    const double values[] = {0,
                             -0.0,
                             1.0 / 3,
                             DBL_MAX,
                             DBL_MIN,
                             4.9406564584124654e-324,
                             -1e-300,
                             1e22,
                             123456789012345678.0,
                             0.30000000000000004};
    const size_t n = sizeof values / sizeof *values;
    char *path = cld_format("%s/metrics.jsonl", (char *)*state);
    struct cld_metrics *m;
    OK(cld_metrics_open(path, -1, &m, &err));
    for (size_t i = 0; i < n; i++) {
        cld_metrics_begin(m, (int64_t)i);
        cld_metrics_number(m, "x", values[i]);
        OK(cld_metrics_end(m, &err));
    }
    OK(cld_metrics_close(m, &err));
    char *text = text_of(path), *at = text;
    for (size_t i = 0; i < n; i++, at = strchr(at, '\n') + 1) {
        json_t *o = json_loads(at, JSON_DISABLE_EOF_CHECK, NULL);
        double x = json_number_value(json_object_get(o, "x"));
        assert_true(x == values[i]);
        json_decref(o);
    }
    assert_int_equal(*at, 0);
    free(text);
    free(path);
}

static void a_resumed_file_is_an_uninterrupted_one(void **state)
{
    char *whole = cld_format("%s/whole", (char *)*state);
    char *broken = cld_format("%s/broken", (char *)*state);
    struct cld_metrics *m;
    OK(cld_metrics_open(whole, -1, &m, &err));
    for (int64_t step = 1; step <= 40; step++)
        step_line(m, step);
    OK(cld_metrics_close(m, &err));
    char *want = text_of(whole);
    for (int64_t checkpoint = 0; checkpoint <= 30; checkpoint += 10) {
        OK(cld_metrics_open(broken, -1, &m, &err)); /* a run that begins drops what was there */
        for (int64_t step = 1; step <= 33; step++)
            step_line(m, step);
        OK(cld_metrics_close(m, &err));
        OK(cld_metrics_open(broken, checkpoint, &m, &err));
        for (int64_t step = checkpoint + 1; step <= 40; step++)
            step_line(m, step);
        OK(cld_metrics_close(m, &err));
        char *got = text_of(broken);
        assert_string_equal(got, want);
        free(got);
    }
    free(want);
    free(whole);
    free(broken);
}

static void a_cut_line_goes(void **state)
{
    static const char text[] = "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 2, \"los";
    char *path = cld_format("%s/metrics.jsonl", (char *)*state);
    struct cld_metrics *m;
    OK(cld_file_write(path, text, strlen(text), &err));
    OK(cld_metrics_open(path, 5, &m, &err));
    step_line(m, 3);
    OK(cld_metrics_close(m, &err));
    char *got = text_of(path);
    assert_string_equal(got, "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3, \"loss\": 1.25}\n");
    free(got);
    free(path);
}

static void what_is_not_ours_stays(void **state)
{
    static const char *const texts[] = {"{\"step\": 1}\nhello\n{\"step\": 2}\n",
                                        "{\"step\": 1}\n{\"loss\": 1}\n",
                                        "{\"step\": 1}\n{\"step\": -1}\n",
                                        "{\"step\": 1}\n\n",
                                        "{\"step\": 1}\n[1]\n",
                                        "{\"step\": 1}\n{\"step\": \"2\"}\n"};
    char *path = cld_format("%s/metrics.jsonl", (char *)*state);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct cld_error why = CLD_ERROR_INIT;
        struct cld_metrics *m;
        OK(cld_file_write(path, texts[i], strlen(texts[i]), &err));
        assert_int_equal(cld_metrics_open(path, 0, &m, &why), CLD_E_INPUT);
        assert_non_null(strstr(why.what, "metrics.jsonl:2:"));
        assert_null(m);
        char *got = text_of(path);
        assert_string_equal(got, texts[i]);
        free(got);
    }
    free(path);
}

static void mistakes_spoil_one_line(void **state)
{
    char *path = cld_format("%s/metrics.jsonl", (char *)*state);
    struct cld_error why;
    struct cld_metrics *m;
    OK(cld_metrics_open(path, -1, &m, &err));
    cld_metrics_begin(m, 1);
    cld_metrics_text(m, "note", ", \"loss\": 1"); /* no key */
    cld_metrics_number(m, "loss", 1);
    cld_metrics_number(m, "loss", 2);
    assert_int_equal(cld_metrics_end(m, &why), CLD_E_INTERNAL);
    assert_non_null(strstr(why.what, "twice"));
    cld_metrics_begin(m, 2);
    cld_metrics_text(m, "note", "\xff");
    assert_int_equal(cld_metrics_end(m, &why), CLD_E_INTERNAL);
    cld_metrics_begin(m, 3);
    cld_metrics_number(m, "a\"b", 2);
    assert_int_equal(cld_metrics_end(m, &why), CLD_E_INTERNAL);
    cld_metrics_begin(m, 4);
    cld_metrics_text(m, "note", ", \"loss\": 1");
    cld_metrics_number(m, "loss", 1);
    OK(cld_metrics_end(m, &err));
    OK(cld_metrics_close(m, &err));
    char *got = text_of(path);
    assert_string_equal(got, "{\"step\": 4, \"note\": \", \\\"loss\\\": 1\", \"loss\": 1}\n");
    free(got);
    free(path);
}

static void a_full_disk_is_an_error(void **state)
{
    char *path = cld_format("%s/metrics.jsonl", (char *)*state);
    struct cld_error why = CLD_ERROR_INIT;
    struct cld_metrics *m;
    struct rlimit old, tight;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    tight = (struct rlimit){20, old.rlim_max};
    OK(cld_metrics_open(path, -1, &m, &err));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    cld_metrics_begin(m, 1);
    cld_metrics_text(m, "note", "longer than twenty bytes");
    enum cld_status s = cld_metrics_end(m, &why);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(s, CLD_E_IO);
    OK(cld_metrics_close(m, &err));
    OK(cld_metrics_open(path, 1, &m, &err)); /* the part that got through goes */
    step_line(m, 1);
    OK(cld_metrics_close(m, &err));
    char *got = text_of(path);
    assert_string_equal(got, "{\"step\": 1, \"loss\": 2.5}\n");
    free(got);
    free(path);

    path = cld_format("%s/no/metrics.jsonl", (char *)*state);
    assert_int_equal(cld_metrics_open(path, -1, &m, &why), CLD_E_IO);
    assert_null(m);
    free(path);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, make_temp_dir, remove_temp_dir)
    const struct CMUnitTest tests[] = {
        TEST(lines_are_as_they_were_given),
        TEST(numbers_read_back),
        TEST(a_resumed_file_is_an_uninterrupted_one),
        TEST(a_cut_line_goes),
        TEST(what_is_not_ours_stays),
        TEST(mistakes_spoil_one_line),
        TEST(a_full_disk_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
