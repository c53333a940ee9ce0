/* Families of tuned kernels but those of GEMM: what their rows change, which rows there
 * cannot be, and what the tuner measures of each family. Nothing is timed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "bench/bench_subject.h"
#include "check/self_test.h"
#include "ops/ops.h"
#include "test_device.h"

#include "must.h"
#include "temp_dir.h"
#include "ops/tuning.h"

static struct cld_device_info device_of(enum cld_device_class class)
{
    struct cld_device_info d = cpu;
    d.class = class;
    return d;
}

/* Goes through the checks of a family with these rows, in one storage. With a list nothing is
 * computed. */
static void check(enum cld_tuned family, const struct cld_device_info *d,
                  const struct cld_tuning *rows, enum cld_dtype storage, bool whole,
                  struct cld_variants *list, size_t *n_passed)
{
    struct cld_check_op ops[2];
    size_t n_failed = 0;
    struct cld_check_options options = {.ops = ops,
                                        .seed = 1,
                                        .family = d->class == CLD_CLASS_CPU ? CLD_KERNEL_FAMILY_CPU
                                                                            : CLD_KERNEL_FAMILY_GPU,
                                        .tuning = rows,
                                        .list = list};
    options.skip[storage == CLD_F32 ? CLD_BF16 : CLD_F32] = true;
    cld_tuned_check(family, whole, ops);
    *n_passed = 0;
    OK(cld_check_device(d, &options, n_passed, &n_failed, &err));
    assert_int_equal(n_failed, 0);
}

/* --- what a row changes ----------------------------------------------------------------------- */

/* How many variants the checks of the family ask for in fp32 that have this build option. */
static size_t n_with(enum cld_tuned family, const struct cld_tuning *rows, const char *option)
{
    const struct cld_device_info d = device_of(CLD_CLASS_GPU);
    struct cld_variants list = {0};
    size_t n = 0, n_passed;
    check(family, &d, rows, CLD_F32, false, &list, &n_passed);
    for (size_t i = 0; i < list.n; i++)
        n += strstr(list.at[i].options, option) != NULL;
    cld_variants_free(&list);
    return n;
}

static size_t n_with_groups(enum cld_tuned family, const struct cld_tuning *rows, size_t local)
{
    char option[32];
    snprintf(option, sizeof option, "-DLOCAL=%zu ", local);
    return n_with(family, rows, option);
}

/* A value of one parameter of one class that gives a build option which the default does not. */
static const struct {
    enum cld_tuned family;
    size_t class, param, local;
} groups[] = {
    {CLD_TUNED_QKNORM_ROPE, 0, 0, 128},  {CLD_TUNED_QKNORM_ROPE, 0, 2, 512},
    {CLD_TUNED_SWIGLU, 0, 0, 64},        {CLD_TUNED_SWIGLU, 0, 1, 32},
    {CLD_TUNED_CROSS_ENTROPY, 0, 0, 64}, {CLD_TUNED_CROSS_ENTROPY, 1, 0, 1024},
};

/* Attention's rows: the size of a tile, a slice of columns, heads of a group in a tile. */
static const struct {
    size_t param, value;
    const char *option;
} attention[] = {{0, 32, "-DKT=32 "},
                 {0, 48, "-DKT=48 "},
                 {1, 8, "-DSTEP=8"},
                 {1, 32, "-DSTEP=32"},
                 {2, 1, "-DHG=1 "}};

static void test_row_is_built(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        const struct cld_device_info d = device_of(CLD_CLASS_GPU);
        struct cld_tuning rows;
        size_t local = groups[i].local;
        cld_tuning_defaults(&d, &rows);
        size_t n_before = n_with_groups(groups[i].family, &rows, local);
        rows.rows[groups[i].family][groups[i].class].v[groups[i].param] = local;
        size_t n_after = n_with_groups(groups[i].family, &rows, local);
        if (n_after <= n_before)
            fail_msg("%s: %zu variants have groups of %zu, %zu had",
                     cld_tunable_kernel(groups[i].family)->name, n_after, local, n_before);
    }
}

static void test_attention_row_is_built(void **state)
{
    const struct cld_device_info d = device_of(CLD_CLASS_GPU);
    (void)state;
    for (size_t i = 0; i < sizeof attention / sizeof *attention; i++) {
        struct cld_tuning rows;
        cld_tuning_defaults(&d, &rows);
        size_t n_before = n_with(CLD_TUNED_ATTENTION_GPU, &rows, attention[i].option);
        rows.rows[CLD_TUNED_ATTENTION_GPU][0].v[attention[i].param] = attention[i].value;
        assert_true(n_with(CLD_TUNED_ATTENTION_GPU, &rows, attention[i].option) > n_before);
    }
}

/* A row of bf16 is nothing to fp32. */
static void test_storages_are_apart(void **state)
{
    static const enum cld_tuned families[] = {CLD_TUNED_QKNORM_ROPE, CLD_TUNED_SWIGLU};
    const struct cld_device_info d = device_of(CLD_CLASS_GPU);
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        struct cld_tuning rows;
        cld_tuning_defaults(&d, &rows);
        size_t n_before = n_with_groups(families[i], &rows, 128);
        rows.rows[families[i]][1].v[0] = 128;
        assert_int_equal(n_with_groups(families[i], &rows, 128), n_before);
    }
}

/* Scratch for gradients of weights is that of the largest row, of either storage. */
static void test_scratch_follows(void **state)
{
    enum { head_dim = 64, n_default = 64, n_parts = 512, parts = 3 };
    const size_t part_bytes = head_dim * sizeof(float);
    struct cld_tuning rows;
    (void)state;
    for (size_t storage = 0; storage < 2; storage++) {
        struct cld_queue *q = NULL;
        const struct cld_queue_options options = {
            .name = "test", .family = CLD_KERNEL_FAMILY_CPU, .tuning = &rows};
        cld_tuning_defaults(&cpu, &rows);
        OK(cld_queue_open(&cpu, &options, &q, &err));
        assert_int_equal(cld_norm_scratch_bytes(q, head_dim), n_default * part_bytes);
        cld_queue_close(q);
        rows.rows[CLD_TUNED_QKNORM_ROPE][storage].v[parts] = n_parts;
        OK(cld_queue_open(&cpu, &options, &q, &err));
        assert_int_equal(cld_norm_scratch_bytes(q, head_dim), n_parts * part_bytes);
        cld_queue_close(q);
    }
}

/* --- rows are right, or cannot be ------------------------------------------------------------- */

/* Every parameter at its least value that the device can have, or at its largest. */
static void far_row(const struct cld_tunable_kernel *f, const struct cld_device_info *d,
                    bool largest, struct cld_tuned_row *row)
{
    char why[256];
    *row = f->defaults(d);
    for (size_t p = 0; p < f->n_params; p++) {
        const struct cld_tuned_param *param = &f->params[p];
        size_t standard = row->v[p];
        row->v[p] = param->values[largest ? param->n_values - 1 : 0];
        if (cld_tuned_row_objection(f, d, row, why, sizeof why))
            row->v[p] = standard;
    }
}

/* All checks of the operation - of attention, whose kernels for GPUs are slow on a CPU, the quick
 * ones - pass with rows that have hardly a value of the default's. */
static void test_values_are_right(void **state)
{
    static const struct {
        enum cld_tuned family;
        enum cld_device_class class;
        enum cld_dtype storage;
    } all[] = {
        {CLD_TUNED_QKNORM_ROPE, CLD_CLASS_GPU, CLD_F32},
        {CLD_TUNED_QKNORM_ROPE, CLD_CLASS_CPU, CLD_BF16},
        {CLD_TUNED_SWIGLU, CLD_CLASS_GPU, CLD_BF16},
        {CLD_TUNED_CROSS_ENTROPY, CLD_CLASS_GPU, CLD_F32},
        {CLD_TUNED_ATTENTION_GPU, CLD_CLASS_GPU, CLD_F32},
        {CLD_TUNED_ATTENTION_GPU, CLD_CLASS_GPU, CLD_BF16},
    };
    (void)state;
    for (size_t i = 0; i < 2 * sizeof all / sizeof *all; i++) {
        const struct cld_device_info d = device_of(all[i / 2].class);
        const struct cld_tunable_kernel *f = cld_tunable_kernel(all[i / 2].family);
        struct cld_tuning rows;
        size_t n_passed = 0;
        cld_tuning_defaults(&d, &rows);
        for (size_t c = 0; c < cld_tuned_n_classes(f); c++)
            far_row(f, &d, i % 2, &rows.rows[all[i / 2].family][c]);
        if (!cld_tuning_changes(&rows, all[i / 2].family, &d))
            continue; /* the least value is the default's */
        bool slow = all[i / 2].family == CLD_TUNED_ATTENTION_GPU;
        check(all[i / 2].family, &d, &rows, all[i / 2].storage, !slow, NULL, &n_passed);
        assert_true(n_passed >= (slow ? 2 : 5));
    }
}

static void test_no_such_groups(void **state)
{
    struct cld_device_info small = device_of(CLD_CLASS_GPU);
    char why[256];
    (void)state;
    small.max_group = 128;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        const struct cld_tunable_kernel *f = cld_tunable_kernel(groups[i].family);
        struct cld_tuned_row row = {{0}};
        for (size_t p = 0; p < f->n_params; p++)
            row.v[p] = f->params[p].values[0];
        assert_null(cld_tuned_row_objection(f, &small, &row, why, sizeof why));
        row.v[groups[i].param] = 256;
        assert_string_equal(cld_tuned_row_objection(f, &small, &row, why, sizeof why),
                            "work-groups: of 128 at most");
    }
}

/* Tiles of attention: a square of work-items, and slices that fit into local memory. */
static void test_no_such_tiles(void **state)
{
    const struct cld_tunable_kernel *f = cld_tunable_kernel(CLD_TUNED_ATTENTION_GPU);
    struct cld_device_info d = device_of(CLD_CLASS_GPU);
    struct cld_tuned_row row = {{64, 16, 8}}, small = {{32, 16, 8}};
    char why[256];
    (void)state;
    d.max_group = 256;
    d.local_bytes = (size_t)32 << 10;
    assert_true(f->defaults(&d).v[0] == 64);
    assert_null(cld_tuned_row_objection(f, &d, &row, why, sizeof why));
    row.v[1] = 32;
    assert_non_null(cld_tuned_row_objection(f, &d, &row, why, sizeof why));
    assert_non_null(strstr(why, "local memory: 35840 bytes of 32768"));
    row = (struct cld_tuned_row){{48, 32, 8}};
    assert_non_null(strstr(cld_tuned_row_objection(f, &d, &row, why, sizeof why), "whole slices"));
    row.v[1] = 8;
    assert_null(cld_tuned_row_objection(f, &d, &row, why, sizeof why));
    d.max_group = 128;
    assert_string_equal(cld_tuned_row_objection(f, &d, &row, why, sizeof why),
                        "work-groups: of 128 at most");
    assert_true(f->defaults(&d).v[0] == 32);
    assert_null(cld_tuned_row_objection(f, &d, &small, why, sizeof why));
    d.max_group = 1024;
    d.local_bytes = (size_t)16 << 10;
    assert_true(f->defaults(&d).v[0] == 32);
}

/* Where groups have one work-item there is no number of them to choose. */
static void test_only_what_matters_on_cpus(void **state)
{
    const struct cld_tunable_kernel *rope = cld_tunable_kernel(CLD_TUNED_QKNORM_ROPE);
    struct cld_queue *q = open_queue(CLD_KERNEL_FAMILY_CPU),
                     *gpu = open_queue(CLD_KERNEL_FAMILY_GPU);
    struct cld_tuned_row row = rope->defaults(&cpu);
    char why[256];
    (void)state;
    row.v[3] = 128; /* parts */
    assert_null(cld_tuned_row_objection(rope, &cpu, &row, why, sizeof why));
    row.v[1] = 4; /* pieces */
    assert_non_null(strstr(cld_tuned_row_objection(rope, &cpu, &row, why, sizeof why), "a head"));
    assert_true(rope->works(q));
    for (int f = CLD_TUNED_SWIGLU; f <= CLD_TUNED_CROSS_ENTROPY; f++)
        assert_false(cld_tunable_kernel((enum cld_tuned)f)->works(q));
    assert_false(cld_tunable_kernel(CLD_TUNED_ATTENTION_GPU)->works(q));
    assert_true(cld_tunable_kernel(CLD_TUNED_ATTENTION_GPU)->works(gpu));
    for (int f = CLD_TUNED_QKNORM_ROPE; f <= CLD_TUNED_CROSS_ENTROPY; f++)
        assert_true(cld_tunable_kernel((enum cld_tuned)f)->works(gpu));
    cld_queue_close(q);
    cld_queue_close(gpu);
}

static void test_refused(void **state)
{
    const char *dir = *state;
    struct cld_tuned_result r = {.family = CLD_TUNED_QKNORM_ROPE,
                                 .row = {{64, 2, 256, 500}},
                                 .ms = 1,
                                 .default_ms = 2,
                                 .noise = 0.01,
                                 .of = "made up"};
    struct cld_tuning t;
    char *path = cld_tuning_path(dir, &cpu);
    OK(cld_tuning_save(path, &cpu, &r, 1, &err));
    FAILS(cld_tuning_load(path, NULL, &cpu, &t, &err), CLD_E_INPUT,
          "qknorm_rope: parts cannot be 500, only 0, 32, 64");
    r.row.v[3] = 512;
    OK(cld_tuning_save(path, &cpu, &r, 1, &err));
    OK(cld_tuning_load(path, NULL, &cpu, &t, &err));
    assert_int_equal(t.rows[CLD_TUNED_QKNORM_ROPE][0].v[3], 512);
    free(path);
}

/* --- what the tuner measures ------------------------------------------------------------------ */

static const char configuration[] = "[data]\n"
                                    "synthetic = 8,24\n"
                                    "max_length = 24\n"
                                    "[target]\n"
                                    "dir = examples/tiny\n"
                                    "taps = 1\n"
                                    "[drafter]\n"
                                    "layers = 1\n"
                                    "block_size = 4\n"
                                    "mask_token = <|mask|>\n"
                                    "[train]\n"
                                    "batch_rows = 2\n"
                                    "micro_rows = 1\n"
                                    "anchors = 3\n"
                                    "loss_chunk = 2\n"
                                    "[runtime]\n"
                                    "precision = fp32\n";

/* Builds and runs the subject with the default, and with a row that wants more scratch. */
static void run_subject(struct cld_queue *q, struct cld_tune_subject *subject)
{
    const struct cld_tunable_kernel *f = cld_tunable_kernel(subject->family);
    struct cld_tuned_row row;
    assert_true(subject->of[0]);
    OK(subject->build(q, subject->arg, &err));
    OK(subject->pass(q, subject->arg, &err));
    if (subject->family == CLD_TUNED_ATTENTION_GPU)
        return; /* drivers of CPUs build its kernels for a long time: test_values_are_right did */
    far_row(f, cld_queue_device(q), true, &row);
    cld_queue_set_row(q, f, subject->class, &row);
    OK(subject->build(q, subject->arg, &err));
    size_t n_launches = cld_queue_counts(q).n_launches, n_builds = cld_queue_counts(q).n_builds;
    OK(subject->pass(q, subject->arg, &err));
    OK(cld_queue_finish(q, &err));
    assert_true(cld_queue_counts(q).n_launches > n_launches);
    assert_int_equal(cld_queue_counts(q).n_builds, n_builds);
    row = f->defaults(cld_queue_device(q));
    cld_queue_set_row(q, f, subject->class, &row);
}

/* The subjects of a class of devices, which are "family/class ...". */
static void run_subjects(enum cld_device_class class, const char *want)
{
    struct cld_device_info d = device_of(class);
    struct cld_config cfg;
    struct cld_queue *q = NULL;
    struct cld_tune_shapes shapes = {.bench = {.cfg = &cfg, .device = &d, .devices = devices}};
    const struct cld_queue_options options = {
        .name = "test",
        .family = class == CLD_CLASS_CPU ? CLD_KERNEL_FAMILY_CPU : CLD_KERNEL_FAMILY_GPU};
    char got[512] = "";
    OK(cld_config_parse(configuration, "a test", &cfg, &err));
    OK(cld_tune_shapes_read(&shapes, &err));
    OK(cld_queue_open(&d, &options, &q, &err));
    for (size_t i = 0; i < CLD_N_TUNED * cld_tuned_classes; i++) {
        struct cld_tune_subject subject = {.family = (enum cld_tuned)(i / cld_tuned_classes),
                                           .class = i % cld_tuned_classes};
        const struct cld_tunable_kernel *f = cld_tunable_kernel(subject.family);
        size_t at = strlen(got);
        bool any = false;
        if (!f->works(q) || subject.class >= cld_tuned_n_classes(f) ||
            !cld_tune_subject_may_be(&shapes, subject.family, subject.class))
            continue;
        OK(cld_tune_subject_make(&shapes, q, &subject, &any, &err));
        if (any) {
            run_subject(q, &subject);
            snprintf(got + at, sizeof got - at, "%s%s/%s", at ? " " : "", f->name,
                     f->classes[subject.class]);
        }
        cld_tune_subject_free(&subject);
    }
    assert_string_equal(got, want);
    cld_tune_shapes_free(&shapes);
    cld_queue_close(q);
    cld_config_free(&cfg);
}

static void test_subjects(void **state)
{
    (void)state;
    run_subjects(CLD_CLASS_CPU, "gemm_cpu/few_rows gemm_cpu/other rmsnorm/fp32 qknorm_rope/fp32 "
                                "attention_cpu/fp32");
    run_subjects(CLD_CLASS_GPU, "gemm_gpu/few_rows gemm_gpu/other rmsnorm/fp32 qknorm_rope/fp32 "
                                "swiglu/fp32 cross_entropy/alone cross_entropy/gradient "
                                "attention_gpu/fp32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_is_built),
        cmocka_unit_test(test_attention_row_is_built),
        cmocka_unit_test(test_storages_are_apart),
        cmocka_unit_test(test_scratch_follows),
        cmocka_unit_test(test_values_are_right),
        cmocka_unit_test(test_no_such_groups),
        cmocka_unit_test(test_no_such_tiles),
        cmocka_unit_test(test_only_what_matters_on_cpus),
        cmocka_unit_test_setup_teardown(test_refused, make_temp_dir, remove_temp_dir),
        cmocka_unit_test(test_subjects),
    };
    return cmocka_run_group_tests(tests, find_cpu, close_devices);
}
