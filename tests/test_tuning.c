#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "base/signals.h"
#include "check/check_gemm.h"
#include "check/self_test.h"
#include "ops/op_attention.h"
#include "ops/op_gemm.h"
#include "ops/ops.h"
#include "test_device.h"
#include "bench/tune.h"

#include "must.h"
#include "temp_dir.h"
#include "ops/tuning.h"

/* Parameters of gemm_cpu by their place. */
enum { ROWS, VECTORS, DEPTH, TOGETHER, STRIPS, PIECES };
enum { FEW_ROWS, LONG_SUM, OTHER };
/* Of attention_cpu. */
enum { HEADS, TILE_ROWS, KEYS };

static int set_up(void **state)
{
    int failed = find_cpu(state);
    cpu.float_width = 8; /* so that defaults and rules are the same on every machine */
    return failed;
}

static struct cld_tuned_row standard(void)
{
    return cld_tunable_kernel(CLD_TUNED_GEMM_CPU)->defaults(&cpu);
}

/* A measured row of gemm_cpu that has one value other than the default. */
static struct cld_tuned_result record_of(size_t class, size_t param, size_t value)
{
    struct cld_tuned_result r = {.family = CLD_TUNED_GEMM_CPU,
                                 .class = class,
                                 .row = standard(),
                                 .ms = 1.5,
                                 .default_ms = 2.25,
                                 .noise = 0.01,
                                 .of = "NT 1x2x3 fp32"};
    r.row.v[param] = value;
    return r;
}

/* --- tables ----------------------------------------------------------------------------------- */

static void test_defaults(void **state)
{
    struct cld_tuning t;
    (void)state;
    cld_tuning_defaults(&cpu, &t);
    for (int f = 0; f < CLD_N_TUNED; f++) {
        const struct cld_tunable_kernel *family = cld_tunable_kernel((enum cld_tuned)f);
        char why[256], hash[CLD_SHA256_HEX_BYTES];
        assert_int_equal(cld_tuned_named(family->name), f);
        assert_in_range(cld_tuned_n_classes(family), 1, cld_tuned_classes);
        assert_in_range(family->n_params, 1, cld_tuned_params);
        assert_false(cld_tuning_changes(&t, (enum cld_tuned)f, &cpu));
        for (size_t c = 0; c < cld_tuned_n_classes(family); c++)
            if (cld_tuned_row_objection(family, &cpu, &t.rows[f][c], why, sizeof why))
                fail_msg("%s: %s", family->name, why);
        OK(cld_tuned_sources(family, hash, &err));
        for (int whole = 0; whole < 2; whole++) {
            struct cld_check_op ops[2];
            cld_tuned_check((enum cld_tuned)f, whole, ops);
            assert_true(ops[0].run && ops[0].bounds && !ops[1].name);
        }
    }
    assert_int_equal(cld_tuned_named("gemm"), CLD_N_TUNED);
}

/* Those that come with the program can be read, and no row breaks a rule of its device. */
static void test_shipped(void **state)
{
    const char *name, *text;
    size_t n_bytes, n = 0;
    (void)state;
    for (; (text = cld_tuning_shipped(n, &name, &n_bytes)); n++) {
        struct cld_device_info d = cpu;
        struct cld_tuning t;
        bool is_of_device = false;
        json_t *root = json_loadb(text, n_bytes, 0, NULL);
        const char *device = NULL, *vendor = NULL, *platform = NULL;
        size_t n_rows = json_array_size(json_object_get(root, "rows")), n_stale = 0;
        assert_int_equal(json_unpack(root, "{s:s, s:s, s:s}", "device", &device, "vendor", &vendor,
                                     "platform", &platform),
                         0);
        d.class = CLD_CLASS_GPU; /* as all of them are */
        snprintf(d.name, sizeof d.name, "%s", device);
        snprintf(d.vendor, sizeof d.vendor, "%s", vendor);
        snprintf(d.platform, sizeof d.platform, "%s", platform);
        cld_tuning_defaults(&d, &t);
        OK(cld_tuning_parse(text, n_bytes, name, &d, CLD_TUNING_SHIPPED, &t, &is_of_device, &err));
        assert_true(is_of_device);
        assert_true(n_rows > 0);
        for (const char *at = t.note; (at = strstr(at, "is ignored")); at++)
            n_stale++;
        for (int f = 0; f < CLD_N_TUNED; f++)
            for (size_t c = 0; c < cld_tuned_classes; c++)
                n_rows -= t.origin[f][c] == CLD_TUNING_SHIPPED;
        assert_int_equal(n_rows, n_stale);
        json_decref(root);
    }
    assert_true(n > 0);
}

static void test_round_trip(void **state)
{
    const char *dir = *state;
    struct cld_tuned_result r[2] = {record_of(OTHER, DEPTH, 384), record_of(FEW_ROWS, ROWS, 4)};
    struct cld_tuned_result again = record_of(OTHER, DEPTH, 128);
    struct cld_tuning t;
    char *path = cld_tuning_path(dir, &cpu);
    OK(cld_tuning_save(path, &cpu, r, 2, &err));
    OK(cld_tuning_load(path, NULL, &cpu, &t, &err));
    assert_string_equal(t.note, "");
    assert_true(cld_tuned_row_equal(&t.rows[CLD_TUNED_GEMM_CPU][OTHER], &r[0].row));
    assert_true(cld_tuned_row_equal(&t.rows[CLD_TUNED_GEMM_CPU][FEW_ROWS], &r[1].row));
    assert_int_equal(t.rows[CLD_TUNED_GEMM_CPU][LONG_SUM].v[ROWS], 6);
    assert_int_equal(t.origin[CLD_TUNED_GEMM_CPU][OTHER], CLD_TUNING_FILE);
    assert_int_equal(t.origin[CLD_TUNED_GEMM_CPU][LONG_SUM], CLD_TUNING_DEFAULT);
    /* The same as the automatic one; what is measured again replaces, the rest stays. */
    OK(cld_tuning_save(path, &cpu, &again, 1, &err));
    OK(cld_tuning_load(NULL, dir, &cpu, &t, &err));
    assert_int_equal(t.origin[CLD_TUNED_GEMM_CPU][FEW_ROWS], CLD_TUNING_CACHE);
    assert_int_equal(t.rows[CLD_TUNED_GEMM_CPU][OTHER].v[DEPTH], 128);
    assert_int_equal(t.rows[CLD_TUNED_GEMM_CPU][FEW_ROWS].v[ROWS], 4);
    OK(cld_tuning_load("off", dir, &cpu, &t, &err));
    assert_false(cld_tuning_changes(&t, CLD_TUNED_GEMM_CPU, &cpu));
    free(path);
}

/* The text of a good table, with `from` once replaced by `to`, written where it belongs. */
static char *damaged(const char *dir, const char *from, const char *to)
{
    const struct cld_tuned_result r = record_of(OTHER, DEPTH, 384);
    char *path = cld_tuning_path(dir, &cpu), *text = NULL;
    size_t n_bytes = 0;
    remove(path);
    OK(cld_tuning_save(path, &cpu, &r, 1, &err));
    OK(cld_file_read(path, 0, &text, &n_bytes, &err));
    char *at = strstr(text, from);
    assert_non_null(at);
    char *changed = cld_format("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    OK(cld_file_write(path, changed, strlen(changed), &err));
    free(changed);
    free(text);
    return path;
}

/* Named it is refused; found it costs its rows and is noted. */
static void expect_refused(const char *dir, const char *from, const char *to, const char *words)
{
    char *path = damaged(dir, from, to);
    struct cld_tuning t;
    FAILS(cld_tuning_load(path, NULL, &cpu, &t, &err), CLD_E_INPUT, words);
    OK(cld_tuning_load("auto", dir, &cpu, &t, &err));
    assert_false(cld_tuning_changes(&t, CLD_TUNED_GEMM_CPU, &cpu));
    assert_non_null(strstr(t.note, words));
    free(path);
}

static void test_refused(void **state)
{
    const char *dir = *state;
    struct cld_tuning t;
    expect_refused(dir, "\"rows\": [", "\"rows\": {", "not a JSON object");
    expect_refused(dir, "\"format\": 1", "\"format\": 2", "another format");
    expect_refused(dir, "\"format\": 1", "\"format\": 1, \"fromat\": 1", "fromat");
    expect_refused(dir, "\"gemm_cpu\"", "\"gemm_cqu\"", "no kernel 'gemm_cqu'");
    expect_refused(dir, "\"other\"", "\"others\"", "no class 'others'");
    expect_refused(dir, "\"depth\": 384", "\"depht\": 384", "no parameter 'depht'");
    expect_refused(dir, "\"depth\": 384,", "", "5 parameters, not 6");
    expect_refused(dir, "\"depth\": 384", "\"depth\": 384.5", "not a whole number");
    expect_refused(dir, "\"depth\": 384", "\"depth\": -4", "not a whole number");
    expect_refused(dir, "\"depth\": 384", "\"depth\": 385", "depth cannot be 385, only 64, 128");
    expect_refused(dir, "\"ms\": 1.5", "\"ms\": \"1.5\"", "'ms'");
    expect_refused(dir, "\"ms\": 1.5", "\"ms\": -1.5", "'ms'");
    expect_refused(dir, "\"rows\": 6", "\"rows\": 12", "registers: 27 of 16");
    FAILS(cld_tuning_load("/nonexistent/t.json", NULL, &cpu, &t, &err), CLD_E_INPUT, "t.json");
}

/* Which of two rows of one class was meant cannot be known. */
static void test_two_rows(void **state)
{
    const char *dir = *state;
    const struct cld_tuned_result r[2] = {record_of(OTHER, DEPTH, 384),
                                          record_of(OTHER, DEPTH, 64)};
    struct cld_tuning t;
    char *path = cld_tuning_path(dir, &cpu);
    OK(cld_tuning_save(path, &cpu, r, 2, &err));
    FAILS(cld_tuning_load(path, NULL, &cpu, &t, &err), CLD_E_INPUT, "'other' has two rows");
    OK(cld_tuning_load("auto", dir, &cpu, &t, &err));
    assert_false(cld_tuning_changes(&t, CLD_TUNED_GEMM_CPU, &cpu));
    free(path);
}

/* A table that is written again for another driver keeps no row of the old one's. */
static void test_other_driver_is_left(void **state)
{
    const char *dir = *state;
    const struct cld_tuned_result old = record_of(OTHER, DEPTH, 384),
                                  new = record_of(FEW_ROWS, DEPTH, 128);
    struct cld_device_info updated = cpu;
    struct cld_tuning t;
    char *path = cld_format("%s/table.json", dir);
    snprintf(updated.driver, sizeof updated.driver, "another");
    OK(cld_tuning_save(path, &cpu, &old, 1, &err));
    OK(cld_tuning_writable(path, CLD_TUNING_NAMED, &updated, &err));
    OK(cld_tuning_save(path, &updated, &new, 1, &err));
    OK(cld_tuning_load(path, NULL, &updated, &t, &err));
    assert_int_equal(t.origin[CLD_TUNED_GEMM_CPU][FEW_ROWS], CLD_TUNING_FILE);
    assert_int_equal(t.origin[CLD_TUNED_GEMM_CPU][OTHER], CLD_TUNING_DEFAULT);
    free(path);
}

/* What is no table for this device is not replaced by one. */
static void test_writable(void **state)
{
    const char *dir = *state;
    struct cld_device_info other = cpu;
    char *path = cld_format("%s/table.json", dir), *below = cld_format("%s/none/t.json", dir);
    const struct cld_tuned_result r = record_of(OTHER, DEPTH, 384);
    OK(cld_tuning_writable(path, CLD_TUNING_NAMED, &cpu, &err));
    assert_false(cld_file_exists(path)); /* looking leaves nothing */
    OK(cld_file_write(path, "", 0, &err));
    OK(cld_tuning_writable(path, CLD_TUNING_NAMED, &cpu, &err));
    OK(cld_file_write(path, "a thesis", 8, &err));
    FAILS(cld_tuning_writable(path, CLD_TUNING_NAMED, &cpu, &err), CLD_E_INPUT,
          "is not a good table");
    remove(path);
    OK(cld_tuning_save(path, &cpu, &r, 1, &err));
    OK(cld_tuning_writable(path, CLD_TUNING_NAMED, &cpu, &err));
    snprintf(other.name, sizeof other.name, "another");
    FAILS(cld_tuning_writable(path, CLD_TUNING_NAMED, &other, &err), CLD_E_INPUT,
          "not a good table of tuned kernels"
          " for another");
    FAILS(cld_tuning_writable(dir, CLD_TUNING_NAMED, &cpu, &err), CLD_E_IO, "no regular file");
    FAILS(cld_tuning_writable(below, CLD_TUNING_NAMED, &cpu, &err), CLD_E_IO, "cannot create");
    FAILS(cld_tuning_writable("", CLD_TUNING_NAMED, &cpu, &err), CLD_E_USAGE, "no name");
    free(below);
    free(path);
}

static void test_truncated(void **state)
{
    const char *dir = *state;
    char *path = damaged(dir, "384", "384"), *text = NULL;
    size_t n_bytes = 0;
    struct cld_tuning t;
    OK(cld_file_read(path, 0, &text, &n_bytes, &err));
    for (size_t n = 0; n + 2 < n_bytes; n += 41) {
        OK(cld_file_write(path, text, n, &err));
        FAILS(cld_tuning_load(path, NULL, &cpu, &t, &err), CLD_E_INPUT, "not a JSON object");
    }
    free(text);
    free(path);
}

/* Rows of other kernels, and those of another driver, are passed over and said so. */
static void test_stale(void **state)
{
    const char *dir = *state;
    struct cld_device_info other = cpu;
    struct cld_tuning t;
    char hash[CLD_SHA256_HEX_BYTES];
    OK(cld_tuned_sources(cld_tunable_kernel(CLD_TUNED_GEMM_CPU), hash, &err));
    char *path = damaged(dir, hash, "0123");
    OK(cld_tuning_load(path, NULL, &cpu, &t, &err));
    assert_false(cld_tuning_changes(&t, CLD_TUNED_GEMM_CPU, &cpu));
    assert_non_null(strstr(t.note, "gemm_cpu/other is ignored"));
    free(path);

    path = damaged(dir, "384", "384");
    snprintf(other.driver, sizeof other.driver, "another");
    OK(cld_tuning_load(path, NULL, &other, &t, &err));
    assert_false(cld_tuning_changes(&t, CLD_TUNED_GEMM_CPU, &other));
    assert_non_null(strstr(t.note, "another driver"));
    /* The automatic one of that driver has another name. */
    OK(cld_tuning_load("auto", dir, &other, &t, &err));
    assert_false(cld_tuning_changes(&t, CLD_TUNED_GEMM_CPU, &other));
    snprintf(other.name, sizeof other.name, "another");
    FAILS(cld_tuning_load(path, NULL, &other, &t, &err), CLD_E_INPUT, "is not a table for another");
    free(path);
}

/* What others can write is not read. */
static void test_distrusted(void **state)
{
    const char *dir = *state;
    char *path = damaged(dir, "384", "384");
    struct cld_tuning t;
    assert_int_equal(chmod(path, 0666), 0);
    OK(cld_tuning_load("auto", dir, &cpu, &t, &err));
    assert_false(cld_tuning_changes(&t, CLD_TUNED_GEMM_CPU, &cpu));
    assert_non_null(strstr(t.note, "can be written by others"));
    FAILS(cld_tuning_writable(path, CLD_TUNING_AUTOMATIC, &cpu, &err), CLD_E_INPUT,
          "can be written by others");
    OK(cld_tuning_writable(path, CLD_TUNING_NAMED, &cpu, &err));
    free(path);
}

/* The GPU family's kernels on a CPU have a table of their own, whose rows the other's would refuse.
 */
static void test_kernel_families_apart(void **state)
{
    struct cld_device_info own = cpu, other = cpu;
    own.host_memory = other.host_memory = true;
    other.class = CLD_CLASS_GPU;
    char *a = cld_tuning_path(*state, &own), *b = cld_tuning_path(*state, &other);
    assert_string_not_equal(a, b);
    free(a);
    free(b);
}

/* --- what rows do ----------------------------------------------------------------------------- */

/* A product [m, n, k] on a queue of its own buffers. */
struct product {
    struct cld_queue *q;
    struct cld_tensor a, b, c;
    struct cld_gemm g;
    struct cld_buf *scratch;
};

static void open_gemm(struct product *p, const struct cld_tuning *tuning, struct cld_variants *list,
                      bool profile, size_t m, size_t n, size_t k)
{
    const struct cld_queue_options options = {.name = "test",
                                              .family = CLD_KERNEL_FAMILY_CPU,
                                              .profile = profile,
                                              .tuning = tuning,
                                              .list = list};
    memset(p, 0, sizeof *p);
    OK(cld_queue_open(&cpu, &options, &p->q, &err));
    p->a = (struct cld_tensor){"a", CLD_F32, m, k, k, NULL, 0};
    p->b = (struct cld_tensor){"b", CLD_F32, n, k, k, NULL, 0};
    p->c = (struct cld_tensor){"c", CLD_F32, m, n, n, NULL, 0};
    struct cld_tensor *const all[] = {&p->a, &p->b, &p->c};
    for (int i = 0; i < 3; i++)
        OK(cld_buf_create(p->q, all[i]->name, cld_tensor_bytes(all[i]), &all[i]->buf, &err));
    p->g = (struct cld_gemm){.kind = CLD_GEMM_NT, .a = &p->a, .b = &p->b, .c = &p->c};
    OK(cld_buf_create(p->q, "scratch", cld_gemm_scratch_bytes(p->q, &p->g), &p->scratch, &err));
}

static void test_row_is_built(void **state)
{
    struct cld_tuning t;
    struct cld_variants list = {0};
    struct product p;
    (void)state;
    cld_tuning_defaults(&cpu, &t);
    open_gemm(&p, NULL, &list, false, 200, 50, 60);
    OK(cld_gemm(p.q, &p.g, p.scratch, &err));
    cld_queue_close(p.q);
    size_t n_default = list.n;
    t.rows[CLD_TUNED_GEMM_CPU][OTHER].v[ROWS] = 4;
    open_gemm(&p, &t, &list, false, 200, 50, 60);
    OK(cld_gemm(p.q, &p.g, p.scratch, &err));
    assert_non_null(strstr(cld_gemm_backend_name(p.q, CLD_GEMM_AUTO), "4x16"));
    cld_queue_close(p.q);
    assert_int_equal(list.n, n_default + 1); /* the default is there, of the other classes */
    bool found = false;
    for (size_t i = 0; i < list.n; i++)
        found |= strstr(list.at[i].options, "-DMR=4 ") != NULL;
    assert_true(found);
    cld_variants_free(&list);
}

/* Rows of all classes are built with the first product, whatever its class: none after the seal. */
static void test_classes_are_built(void **state)
{
    struct cld_tuning t;
    struct product p;
    (void)state;
    cld_tuning_defaults(&cpu, &t);
    t.rows[CLD_TUNED_GEMM_CPU][FEW_ROWS].v[ROWS] = 4;
    t.rows[CLD_TUNED_GEMM_CPU][FEW_ROWS].v[DEPTH] = 64; /* which needs scratch that others do not */
    open_gemm(&p, &t, NULL, false, 200, 50, 100);
    OK(cld_gemm(p.q, &p.g, p.scratch, &err));
    cld_queue_seal(p.q);
    size_t n_builds = cld_queue_counts(p.q).n_builds;
    assert_int_equal(n_builds, 2);
    p.a.n_rows = p.c.n_rows = 100;
    OK(cld_gemm(p.q, &p.g, p.scratch, &err));
    assert_int_equal(cld_queue_counts(p.q).n_builds, n_builds);
    cld_queue_close(p.q);
}

/* Tiles, and with them masks, follow the row of the storage; heads of a group are split evenly. */
static void test_attention_row(void **state)
{
    const struct cld_tuned_row small = {{2, 32, 16}};
    struct cld_tuning t;
    const struct cld_queue_options without = {.name = "test", .family = CLD_KERNEL_FAMILY_CPU},
                                   with = {.name = "test",
                                           .family = CLD_KERNEL_FAMILY_CPU,
                                           .tuning = &t};
    struct cld_attention_plan plain, tuned, other;
    struct cld_queue *q[2];
    (void)state;
    cld_tuning_defaults(&cpu, &t);
    t.rows[CLD_TUNED_ATTENTION_CPU][0] = small;
    OK(cld_queue_open(&cpu, &without, &q[0], &err));
    OK(cld_queue_open(&cpu, &with, &q[1], &err));
    for (size_t n_heads = 2; n_heads <= 6; n_heads++) {
        OK(cld_attention_plan(q[0], CLD_ATTENTION_SPARSE, 96, 192, n_heads, 1, 64, CLD_F32, CLD_F32,
                              true, &plain, &err));
        OK(cld_attention_plan(q[1], CLD_ATTENTION_SPARSE, 96, 192, n_heads, 1, 64, CLD_F32, CLD_F32,
                              true, &tuned, &err));
        OK(cld_attention_plan(q[1], CLD_ATTENTION_SPARSE, 96, 192, n_heads, 1, 64, CLD_BF16,
                              CLD_BF16, true, &other, &err));
        assert_non_null(strstr(tuned.options, "-DHG=2 -DQT=32 -DKT=16 "));
        assert_non_null(strstr(plain.options, "-DQT=16 -DKT=32 "));
        assert_int_equal(plain.heads_together, n_heads <= 4 ? n_heads : 3);
        assert_int_equal(other.k_tile, plain.k_tile);
        assert_int_equal(other.mask_bytes, plain.mask_bytes);
        /* 3 by 12 tiles are as many as 6 by 6, but their lists are three more. */
        assert_int_equal(tuned.mask_bytes, plain.mask_bytes + 3 * sizeof(int32_t));
    }
    cld_queue_close(q[0]);
    cld_queue_close(q[1]);
}

static void test_attention_refused(void **state)
{
    const char *dir = *state;
    const struct cld_tunable_kernel *f = cld_tunable_kernel(CLD_TUNED_ATTENTION_CPU);
    struct cld_device_info wide = cpu;
    struct cld_tuned_result r = {.family = CLD_TUNED_ATTENTION_CPU,
                                 .row = {{4, 0, 40}},
                                 .ms = 1,
                                 .default_ms = 2,
                                 .noise = 0.01,
                                 .of = "made up"};
    struct cld_tuning t;
    char why[160], *path = cld_tuning_path(dir, &cpu);
    OK(cld_tuning_save(path, &cpu, &r, 1, &err));
    FAILS(cld_tuning_load(path, NULL, &cpu, &t, &err), CLD_E_INPUT,
          "keys cannot be 40, only 16, 32, 48, 64");
    free(path);
    wide.float_width = 16;
    r.row = (struct cld_tuned_row){{4, 32, 32}};
    assert_null(cld_tuned_row_objection(f, &cpu, &r.row, why, sizeof why));
    assert_string_equal(cld_tuned_row_objection(f, &wide, &r.row, why, sizeof why),
                        "registers: 41 of 32");
    r.row.v[HEADS] = 2;
    assert_null(cld_tuned_row_objection(f, &wide, &r.row, why, sizeof why));
    r.row.v[HEADS] = 4;
    r.row.v[TILE_ROWS] = 16;
    r.row.v[KEYS] = 64;
    assert_null(cld_tuned_row_objection(f, &wide, &r.row, why, sizeof why));
}

/* Runs the family's quick checks with this row for every class, unless its rule refuses it. */
static bool is_right(enum cld_tuned id, enum cld_device_class class,
                     const struct cld_tuned_row *row)
{
    const struct cld_tunable_kernel *f = cld_tunable_kernel(id);
    struct cld_device_info d = cpu;
    struct cld_tuning t;
    char why[160];
    size_t n_passed = 0, n_failed = 0;
    struct cld_check_op ops[2];
    const struct cld_check_options options = {
        .ops = ops,
        .seed = 1,
        .family = class == CLD_CLASS_CPU ? CLD_KERNEL_FAMILY_CPU : CLD_KERNEL_FAMILY_GPU,
        .skip = {[CLD_BF16] = true},
        .tuning = &t};
    d.class = class;
    if (cld_tuned_row_objection(f, &d, row, why, sizeof why))
        return false;
    cld_tuned_check(id, false, ops);
    cld_tuning_defaults(&d, &t);
    for (size_t c = 0; c < cld_tuned_n_classes(f); c++)
        t.rows[id][c] = *row;
    OK(cld_check_device(&d, &options, &n_passed, &n_failed, &err));
    assert_int_equal(n_failed, 0);
    assert_true(n_passed > 5);
    return true;
}

/* The least and the largest value of each parameter of products on CPUs, one at a time; of the
 * other families a row that has none of the defaults, or one. */
static void test_values_are_right(void **state)
{
    const struct cld_tunable_kernel *f = cld_tunable_kernel(CLD_TUNED_GEMM_CPU);
    const struct cld_tuned_row small = {{64, 64, 32, 64}}, few_parts = {{128, 2, 256, 32}};
    const struct cld_tuned_row tiles[] = {{{1, 16, 16}}, {{2, 32, 48}}, {{4, 16, 64}}};
    size_t n_run = 0;
    (void)state;
    for (size_t p = 0; p < f->n_params; p++)
        for (size_t v = 0; v < f->params[p].n_values; v += f->params[p].n_values - 1) {
            struct cld_tuned_row row = standard();
            row.v[p] = f->params[p].values[v];
            n_run += is_right(CLD_TUNED_GEMM_CPU, CLD_CLASS_CPU, &row);
        }
    assert_true(n_run > 8);
    assert_true(is_right(CLD_TUNED_GEMM_GPU, CLD_CLASS_GPU, &small));
    assert_true(is_right(CLD_TUNED_RMSNORM, CLD_CLASS_CPU, &few_parts));
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        assert_true(is_right(CLD_TUNED_ATTENTION_CPU, CLD_CLASS_CPU, &tiles[i]));
}

/* --- the tuner -------------------------------------------------------------------------------- */

/* GEMMs; those with the planted row are quick and wrong: they are not computed. */
enum { planted = 8 }; /* panels laid out together */

struct subject {
    struct product p;
    size_t n_passes, n_planted; /* passes with that row */
    bool stop;                  /* a signal comes during the first pass */
};

static bool is_planted(const struct cld_queue *q, size_t class)
{
    return cld_queue_row(q, cld_tunable_kernel(CLD_TUNED_GEMM_CPU), class)->v[TOGETHER] == planted;
}

static enum cld_status build(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct subject *s = arg;
    return cld_gemm_build(q, &s->p.g, err);
}

static enum cld_status pass(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct subject *s = arg;
    s->n_passes++;
    if (is_planted(q, OTHER)) {
        s->n_planted++;
        return cld_fill(q, &s->p.c, 0, err);
    }
    if (s->stop) {
        s->stop = false;         /* a second signal would end the process */
        kill(getpid(), SIGTERM); /* raise() would leave it pending on this thread */
        while (!cld_signals_stop_asked())
            ;
    }
    return cld_gemm(q, &s->p.g, s->p.scratch, err);
}

/* Ones, unless the row is the planted one. */
static enum cld_status check_planted(struct cld_check *c, struct cld_error *err)
{
    struct cld_check_tensor *t;
    double want[4] = {1, 1, 1, 1};
    cld_check_begin(c, "ones");
    enum cld_status s = cld_check_output(c, "t", CLD_F32, 1, 4, &t, err);
    if (s || (s = cld_fill(c->q, &t->t, is_planted(c->q, LONG_SUM) ? 1.001f : 1, err)) ||
        (s = cld_check_compare(c, t, want, CLD_BOUND_F32, err)))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

static const struct cld_check_op planted_check[] = {
    {"planted", check_planted, 1u << CLD_BOUND_F32, false, 0}, {0}};

static enum cld_status tune(struct subject *s, double deadline_ms, struct cld_tune_result *r,
                            struct cld_error *err)
{
    const struct cld_tune_subject subject = {.family = CLD_TUNED_GEMM_CPU,
                                             .class = OTHER,
                                             .storage = CLD_F32,
                                             .of = "made up",
                                             .arg = s,
                                             .build = build,
                                             .pass = pass,
                                             .quick = planted_check,
                                             .whole = planted_check};
    const struct cld_tune_limits limits = {
        .repeats = 2, .min_ms = 0.01, .deadline_ms = deadline_ms};
    open_gemm(&s->p, NULL, NULL, true, 160, 96, 520);
    return cld_tune_class(s->p.q, &subject, &limits, NULL, r, err);
}

static void test_wrong_never_wins(void **state)
{
    struct subject s = {.n_passes = 0};
    struct cld_tune_result r;
    struct cld_tuned_row d = standard();
    (void)state;
    OK(tune(&s, 0, &r, &err));
    assert_true(r.complete);
    assert_int_equal(r.n_wrong, 1);
    assert_int_equal(s.n_planted, 0); /* not even timed */
    assert_true(s.n_passes > 20);
    assert_int_not_equal(r.record.row.v[TOGETHER], planted);
    /* rows 8 and 12, and two vectors, want more registers than there are. */
    assert_true(r.n_filtered >= 3);
    assert_true(r.n_candidates > r.n_filtered + r.n_wrong);
    assert_true(r.record.ms > 0 && r.record.default_ms >= r.record.ms);
    assert_string_equal(r.record.of, "made up");
    /* The queue is as it was. */
    for (size_t c = 0; c < cld_tuned_classes; c++)
        assert_true(cld_tuned_row_equal(
            cld_queue_row(s.p.q, cld_tunable_kernel(CLD_TUNED_GEMM_CPU), c), &d));
    cld_queue_close(s.p.q);
}

/* After its deadline no candidate begins, and the default has its time. */
static void test_deadline(void **state)
{
    struct subject s = {.n_passes = 0};
    struct cld_tune_result r;
    struct cld_tuned_row d = standard();
    (void)state;
    OK(tune(&s, 1e-3, &r, &err));
    assert_false(r.complete);
    assert_int_equal(r.n_candidates, 0);
    assert_true(cld_tuned_row_equal(&r.record.row, &d));
    assert_true(r.record.ms > 0 && r.record.ms == r.record.default_ms);
    cld_queue_close(s.p.q);
}

/* What the driver says of kernels. */
static void test_kernels_fit(void **state)
{
    struct product p;
    char why[160] = "";
    size_t private_bytes = 0;
    (void)state;
    open_gemm(&p, NULL, NULL, false, 200, 50, 60);
    OK(cld_gemm_build(p.q, &p.g, &err));
    assert_true(cld_kernels_fit(p.q, 0, SIZE_MAX, &private_bytes, why, sizeof why));
    const struct cld_kernel_spec spec = {"fill.cl", "fill", "-DTY=f32", 100000};
    struct cld_kernel *k = NULL;
    size_t n_before = cld_queue_counts(p.q).n_kernels;
    OK(cld_kernel_get(p.q, &spec, &k, &err));
    assert_false(cld_kernels_fit(p.q, n_before, SIZE_MAX, &private_bytes, why, sizeof why));
    assert_non_null(strstr(why, "registers: groups of"));
    assert_non_null(strstr(why, "it wants 100000"));
    cld_queue_close(p.q);
}

/* Last: the process is asked to stop. */
static void test_interrupted(void **state)
{
    struct subject s = {.stop = true};
    struct cld_tune_result r;
    (void)state;
    FAILS(tune(&s, 0, &r, &err), CLD_E_INTERRUPTED, "");
    cld_queue_close(s.p.q);
}

int main(void)
{
    struct cld_error err = CLD_ERROR_INIT;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_shipped),
        cmocka_unit_test_setup_teardown(test_round_trip, make_temp_dir, remove_temp_dir),
        cmocka_unit_test_setup_teardown(test_refused, make_temp_dir, remove_temp_dir),
        cmocka_unit_test_setup_teardown(test_two_rows, make_temp_dir, remove_temp_dir),
        cmocka_unit_test_setup_teardown(test_other_driver_is_left, make_temp_dir, remove_temp_dir),
        cmocka_unit_test_setup_teardown(test_writable, make_temp_dir, remove_temp_dir),
        cmocka_unit_test_setup_teardown(test_truncated, make_temp_dir, remove_temp_dir),
        cmocka_unit_test_setup_teardown(test_stale, make_temp_dir, remove_temp_dir),
        cmocka_unit_test_setup_teardown(test_distrusted, make_temp_dir, remove_temp_dir),
        cmocka_unit_test_setup_teardown(test_kernel_families_apart, make_temp_dir, remove_temp_dir),
        cmocka_unit_test(test_row_is_built),
        cmocka_unit_test(test_classes_are_built),
        cmocka_unit_test(test_attention_row),
        cmocka_unit_test_setup_teardown(test_attention_refused, make_temp_dir, remove_temp_dir),
        cmocka_unit_test(test_values_are_right),
        cmocka_unit_test(test_wrong_never_wins),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_kernels_fit),
        cmocka_unit_test(test_interrupted),
    };
    if (cld_signals_install(&err))
        return 1;
    return cmocka_run_group_tests(tests, set_up, close_devices);
}
