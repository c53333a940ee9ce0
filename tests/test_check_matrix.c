/* Tests of the matrix of checks, with operations and kernels of this program alone: each planted
 * fault is caught, and reports and golden files say so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check/check_matrix.h"
#include "opencl/embedded.h"
#include "temp_dir.h"
#include "test_device.h"

/* Where a program has kernels of its own the library's are not linked. */
static const char planted[] =
    "#ifndef FACTOR\n"
    "#define FACTOR 2.0f\n"
    "#endif\n"
    "#ifndef EXTRA\n"
    "#define EXTRA 0l /* elements that are written too many */\n"
    "#endif\n"
    "#ifndef BARRIER\n"
    "#define BARRIER 1\n"
    "#endif\n"
    "#ifndef TURN\n"
    "#define TURN 0ul\n"
    "#endif\n"
    "#define TAKES __global const float *x, ulong x_at, __global float *y, ulong y_at, \\\n"
    "              __global uint *tickets, ulong n\n"
    "__kernel void scale(TAKES)\n"
    "{\n"
    "    for (long i = get_global_id(0); i < (long)n + EXTRA; i += get_global_size(0))\n"
    "        y[y_at + i] = FACTOR * (i < (long)n ? x[x_at + i] : 1.0f);\n"
    "}\n"
    "__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void neighbour(TAKES)\n"
    "{\n"
    "    __local float all[64];\n"
    "    const uint me = get_local_id(0);\n"
    "    for (ulong at = get_group_id(0) * 64; at < n; at += get_num_groups(0) * 64) {\n"
    "        all[me] = x[x_at + at + me];\n"
    "#if BARRIER\n"
    "        barrier(CLK_LOCAL_MEM_FENCE);\n"
    "#endif\n"
    "        y[y_at + at + me] = all[(me + 1) % 64];\n"
    "        barrier(CLK_LOCAL_MEM_FENCE);\n"
    "    }\n"
    "}\n"
    "__kernel void sum(TAKES)\n"
    "{\n"
    "    if (get_global_id(0))\n"
    "        return;\n"
    "    const ulong start = TURN * atomic_inc(tickets);\n"
    "    float all = 0.0f;\n"
    "    for (ulong i = 0; i < n; i++)\n"
    "        all += x[x_at + (start + i) % n];\n"
    "    y[y_at] = all;\n"
    "}\n";
const struct cld_embedded cld_embedded_files[] = {{"planted.cl", planted, sizeof planted - 1},
                                                  {0, 0, 0}};

/* The kernels are right without `fault`; `faults` puts it in. */
static const struct plant {
    const char *name, *kernel, *fault, *why;
} plants[] = {
    {"constant", "scale", "-DFACTOR=2.0001f", "relative error"},
    {"outside", "scale", "-DEXTRA=1l", "wrote outside, element +256"},
    {"unwritten", "scale", "-DEXTRA=-1l", "element (0, 255) is nan"},
    {"race", "neighbour", "-DBARRIER=0", ""}, /* wrong, not a number or not the same twice */
    {"unordered", "sum", "-DTURN=97ul", "two runs differ"},
};
enum { n_plants = sizeof plants / sizeof *plants, n_elements = 256 };
static bool faults;

struct work {
    const struct plant *plant;
    struct cld_check_tensor *x, *y;
    struct cld_buf *tickets;
};

static enum cld_status body(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct work *w = arg;
    const struct cld_kernel_spec spec = {"planted.cl", w->plant->kernel,
                                         faults ? w->plant->fault : "", 64};
    return CLD_RUN(c->q, &spec, n_elements / 64, err, CLD_BUF(w->x->t.buf), CLD_U64(w->x->t.offset),
                   CLD_BUF(w->y->t.buf), CLD_U64(w->y->t.offset), CLD_BUF(w->tickets),
                   CLD_U64(n_elements));
}

static enum cld_status check_case(struct cld_check *c, const struct plant *plant, size_t skew,
                                  struct cld_error *err)
{
    struct work w = {.plant = plant};
    double x[n_elements], want[n_elements], total = 0;
    bool sum = !strcmp(plant->kernel, "sum"), scale = !strcmp(plant->kernel, "scale");
    enum cld_status s = CLD_OK;
    cld_check_begin(c, "%s skew=%zu", plant->name, skew);
    c->skew = skew;
    for (size_t i = 0; i < n_elements; i++)
        x[i] = 1 + (double)(i * 37 % 101) / 103;
    if (c->skip || (s = cld_check_values(c, "x", CLD_F32, 1, n_elements, x, &w.x, err)) ||
        (s = cld_check_output(c, "y", CLD_F32, 1, sum ? 1 : n_elements, &w.y, err)) ||
        (s = cld_check_scratch(c, 4, &w.tickets, err)))
        return s;
    for (size_t i = 0; i < n_elements; i++) {
        want[i] = scale ? 2 * x[i] : x[i / 64 * 64 + (i + 1) % 64];
        total += x[i];
    }
    if ((s = cld_check_twice(c, body, &w, err)) ||
        (s = cld_check_compare(c, w.y, sum ? &total : want, CLD_BOUND_F32, err)))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

static enum cld_status check_plant(struct cld_check *c, struct cld_error *err)
{
    for (size_t i = 0; i < n_plants; i++)
        if (!strcmp(plants[i].name, c->op->name)) {
            enum cld_status s = check_case(c, &plants[i], 0, err);
            return s ? s : check_case(c, &plants[i], 3, err);
        }
    return cld_fail(err, CLD_E_DEVICE, "", "there is no <plant> of this name");
}

static enum cld_status check_nothing(struct cld_check *c, struct cld_error *err)
{
    (void)err;
    cld_check_unsupported(c, "it is \"not\" there & never was");
    return CLD_OK;
}

static const struct cld_check_op ops[] = {
    {"constant", check_plant, 1u << CLD_BOUND_F32, false, 0},
    {"outside", check_plant, 1u << CLD_BOUND_F32, false, 0},
    {"unwritten", check_plant, 1u << CLD_BOUND_F32, false, 0},
    {"race", check_plant, 1u << CLD_BOUND_F32, false, 0},
    {"unordered", check_plant, 1u << CLD_BOUND_F32, false, 0},
    {"nothing", check_nothing, 0, false, 0},
    {NULL, NULL, 0, false, 0},
};

static struct cld_check_options options_of(const char *op)
{
    struct cld_check_options o = {.op = op,
                                  .ops = ops,
                                  .family = CLD_KERNEL_FAMILY_CPU,
                                  .keep_going = true,
                                  .skip = {[CLD_BF16] = true}};
    return o;
}

static void run(struct cld_check_matrix *m, const struct cld_check_options *options)
{
    struct cld_error err = CLD_ERROR_INIT;
    *m = (struct cld_check_matrix){0};
    if (cld_check_matrix_add(m, &cpu, CLD_CHECK_SOURCE, options, &err))
        fail_msg("%s", err.what);
}

static void test_right_kernels_pass(void **state)
{
    (void)state;
    struct cld_check_matrix m;
    struct cld_check_options options = options_of(NULL);
    options.family = CLD_KERNEL_FAMILY_AUTO;
    faults = false;
    run(&m, &options);
    assert_int_equal(m.n_passed, 2 * 2 * n_plants);
    assert_int_equal(m.n_failed, 0);
    assert_int_equal(m.n_unsupported, 2);
    cld_check_matrix_free(&m);
}

static void test_faults_are_caught(void **state)
{
    (void)state;
    faults = true;
    for (size_t i = 0; i < n_plants; i++) {
        struct cld_check_matrix m;
        struct cld_check_options options = options_of(plants[i].name);
        char again[200];
        run(&m, &options);
        if (cpu.quirks & CLD_QUIRK_SEES_MEMORY) { /* its log has what values may not show there */
            cld_check_matrix_free(&m);
            continue;
        }
        assert_int_equal(m.n_failed, 2);
        assert_int_equal(m.n_passed, 0);
        snprintf(again, sizeof again,
                 "cldraft check-kernels --op %s --seed 0 --precision fp32 --kernels cpu --case "
                 "'%s skew=3'",
                 plants[i].name, plants[i].name);
        assert_string_equal(m.results.at[1].again, again);
        if (!strstr(m.results.at[0].why, plants[i].why))
            fail_msg("%s: %s", plants[i].name, m.results.at[0].why);
        cld_check_matrix_free(&m);
    }
}

static void test_one_case(void **state)
{
    (void)state;
    struct cld_check_matrix m;
    struct cld_check_options options = options_of(NULL);
    faults = false;
    options.only = "race skew=3";
    run(&m, &options);
    assert_int_equal(m.n_passed, 1);
    assert_string_equal(m.results.at[0].name, "race skew=3");
    cld_check_matrix_free(&m);
}

static void test_modes(void **state)
{
    (void)state;
    struct cld_check_matrix m = {0};
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_check_options options = options_of(NULL);
    faults = false;
    options.mode = CLD_CHECK_SUPPORT;
    run(&m, &options);
    assert_int_equal(m.n_passed, n_plants);
    assert_int_equal(m.n_unsupported, 1);
    cld_check_matrix_free(&m);
    options.mode = CLD_CHECK_GRAD; /* which none of these has */
    assert_int_equal(cld_check_matrix_add(&m, &cpu, CLD_CHECK_SOURCE, &options, &err), CLD_E_USAGE);
    cld_check_matrix_free(&m);
}

/* A bound that the operation does not list may not be used; a driver's error is a failed case. */
static void test_broken_operations(void **state)
{
    (void)state;
    static const struct cld_check_op broken[] = {
        {"race", check_plant, 1u << CLD_BOUND_BF16, false, 0},
        {"no such", check_plant, 0, false, 0},
        {"outside", check_plant, 1u << CLD_BOUND_F32, false, 0},
        {NULL, NULL, 0, false, 0},
    };
    struct cld_check_matrix m;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_check_options options = options_of(NULL);
    faults = false;
    options.ops = broken;
    run(&m, &options);
    assert_int_equal(m.n_failed, 3);
    assert_int_equal(m.n_passed, 2);
    assert_non_null(strstr(m.results.at[0].why, "the bound 'f32' is not among those of race"));
    assert_non_null(strstr(m.results.at[2].why, "there is no <plant> of this name"));
    cld_check_matrix_free(&m);
    options.keep_going = false;
    assert_int_equal(cld_check_matrix_add(&m, &cpu, CLD_CHECK_SOURCE, &options, &err),
                     CLD_E_DEVICE);
    cld_check_matrix_free(&m);
}

/* Source, then its binaries; modules of these kernels do not exist. */
static void test_all_paths(void **state)
{
    (void)state;
    struct cld_check_matrix m = {0};
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_check_options options = options_of("outside");
    faults = false;
    options.programs.modules = "/nonexistent";
    assert_int_equal(cld_check_matrix_add_paths(&m, &cpu, CLD_CHECK_MODULES, &options, &err),
                     CLD_OK);
    assert_int_equal(m.n_columns, 3);
    assert_int_equal(m.columns[0].n, 2);
    assert_int_equal(m.columns[1].n, 2);
    assert_string_equal(m.columns[1].path, "cached binary");
    assert_string_equal(m.columns[1].why, ""); /* nothing was built again */
    assert_int_equal(m.columns[2].n, 0);
    assert_true(m.columns[2].why[0]);
    cld_check_matrix_free(&m);
}

static char *text_of(const struct cld_check_matrix *m, const char *format)
{
    struct cld_error err = CLD_ERROR_INIT;
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *to = open_memstream(&text, &n_bytes);
    assert_non_null(to);
    if (!strcmp(format, "json"))
        assert_int_equal(cld_check_write_json(m, to, &err), CLD_OK);
    else if (!strcmp(format, "junit"))
        assert_int_equal(cld_check_write_junit(m, to, &err), CLD_OK);
    else
        cld_check_write_table(m, to);
    fclose(to);
    return text;
}

static void test_reports(void **state)
{
    (void)state;
    struct cld_check_matrix m;
    struct cld_check_options options = options_of(NULL);
    faults = true;
    run(&m, &options);
    char *text = text_of(&m, "table");
    assert_non_null(strstr(text, "| outside          | FAIL 2 of 2"));
    assert_non_null(strstr(text, "| nothing          | unsupported"));
    assert_non_null(strstr(text, "Column 1, nothing: unsupported because it is \"not\" there"));
    free(text);

    text = text_of(&m, "json");
    json_error_t where;
    json_t *all = json_loads(text, 0, &where);
    assert_int_equal(json_array_size(all), m.results.n);
    const json_t *first = json_array_get(all, 0);
    assert_string_equal(json_string_value(json_object_get(first, "case")), "constant skew=0");
    assert_string_equal(json_string_value(json_object_get(first, "verdict")), "FAIL");
    assert_true(json_real_value(json_object_get(first, "nmse")) >
                json_real_value(json_object_get(first, "nmse_allowed")));
    json_decref(all);
    free(text);

    text = text_of(&m, "junit");
    assert_non_null(
        strstr(text, "<testsuites name=\"cldraft check-kernels\" tests=\"11\" failures=\"10\">"));
    assert_non_null(strstr(text, "<testcase classname=\"outside.cpu.f32\" name=\"outside skew=0\" "
                                 "time=\"0\"><failure message=\"'y' [1, 256]"));
    assert_non_null(
        strstr(text, "<skipped message=\"it is &quot;not&quot; there &amp; never was\">"));
    free(text);
    cld_check_matrix_free(&m);
}

/* Compares a run with the file; `part`: one case. */
static struct cld_check_golden compare(const char *path, const char *op, const char *only)
{
    struct cld_check_matrix m;
    struct cld_check_golden g;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_check_options options = options_of(op);
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *to = open_memstream(&text, &n_bytes);
    assert_non_null(to);
    options.only = only;
    run(&m, &options);
    assert_int_equal(cld_check_golden_compare(&m, path, only, to, &g, &err), CLD_OK);
    fclose(to);
    assert_int_equal(strstr(text, "REGRESSION") != NULL, g.n_regressions > 0);
    assert_int_equal(strstr(text, "FIX") != NULL, g.n_fixes > 0);
    assert_int_equal(strstr(text, "DIFFERENCE") != NULL, g.n_differences > 0);
    free(text);
    cld_check_matrix_free(&m);
    return g;
}

static void update(const char *path, const char *op, const char *only)
{
    struct cld_check_matrix m;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_check_options options = options_of(op);
    options.only = only;
    run(&m, &options);
    assert_int_equal(cld_check_golden_update(&m, path, only, &err), CLD_OK);
    cld_check_matrix_free(&m);
}

static void test_golden(void **state)
{
    char *path = cld_format("%s/golden.json", (char *)*state);
    struct cld_check_golden g;
    faults = false;
    update(path, "un", NULL); /* unwritten, unordered */
    g = compare(path, "un", NULL);
    assert_int_equal(g.n_fixes + g.n_regressions + g.n_differences, 0);
    g = compare(path, "race", NULL); /* not in the file */
    assert_int_equal(g.n_differences, 1);
    faults = true;
    g = compare(path, "un", NULL);
    assert_int_equal(g.n_regressions, 4);
    g = compare(path, "un", "unwritten skew=3"); /* the others did not run */
    assert_int_equal(g.n_regressions, 1);
    assert_int_equal(g.n_differences, 0);
    update(path, "unordered", NULL); /* unwritten stays as it was */
    g = compare(path, "un", NULL);
    assert_int_equal(g.n_regressions, 2);
    faults = false;
    g = compare(path, "un", NULL);
    assert_int_equal(g.n_fixes, 2);
    update(path, "unordered", "unordered skew=3");
    g = compare(path, "un", NULL);
    assert_int_equal(g.n_fixes, 1);
    free(path);
}

static void test_damaged_golden(void **state)
{
    char *path = cld_format("%s/damaged.json", (char *)*state);
    struct cld_check_matrix m = {0};
    struct cld_check_golden g;
    struct cld_error err = CLD_ERROR_INIT;
    assert_int_equal(cld_check_golden_compare(&m, path, false, stderr, &g, &err), CLD_E_INPUT);
    assert_int_equal(cld_file_write(path, "{\"format\": 7}", 13, &err), CLD_OK);
    assert_int_equal(cld_check_golden_compare(&m, path, false, stderr, &g, &err), CLD_E_INPUT);
    assert_int_equal(cld_check_golden_update(&m, path, false, &err), CLD_E_INPUT);
    free(path);
}

/* With a name, only the test of that name: to see what it does to a device. */
int main(int argc, char **argv)
{
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_kernels_pass),
        cmocka_unit_test(test_faults_are_caught),
        cmocka_unit_test(test_one_case),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_broken_operations),
        cmocka_unit_test(test_all_paths),
        cmocka_unit_test(test_reports),
        cmocka_unit_test_setup_teardown(test_golden, make_temp_dir, remove_temp_dir),
        cmocka_unit_test_setup_teardown(test_damaged_golden, make_temp_dir, remove_temp_dir),
    };
    return cmocka_run_group_tests(tests, find_cpu, close_devices);
}
