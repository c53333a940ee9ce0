#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "check/check.h"
#include "ops/op_gemm.h"
#include "test_device.h"

/* Both families and both storages, with the portable kernels and CLBlast. */
static void test_gemms(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_check_options options = {.op = "gemm", .seed = 7};
    size_t n_passed = 0, n_failed = 0;
    (void)state;
    if (cld_check_device(&cpu, &options, &n_passed, &n_failed, &err))
        fail_msg("%s", err.what);
    assert_int_equal(n_failed, 0);
    assert_true(n_passed > 800);
}

/* A product of 24 x 40 x 300 whose tensors share one buffer; k is long enough to need scratch. */
struct fixture {
    struct cld_queue *q;
    struct cld_buf *buf, *scratch;
    struct cld_tensor a, b, c, bias;
    struct cld_gemm g;
};

static void set_up(struct fixture *f)
{
    struct cld_error err = CLD_ERROR_INIT;
    *f = (struct fixture){.q = open_queue(CLD_KERNEL_FAMILY_CPU)};
    assert_int_equal(cld_buf_create(f->q, "all", 128 * 1024, &f->buf, &err), CLD_OK);
    f->a = (struct cld_tensor){"a", CLD_F32, 24, 300, 300, f->buf, 0};
    f->b = (struct cld_tensor){"b", CLD_F32, 40, 300, 300, f->buf, 8192};
    f->c = (struct cld_tensor){"c", CLD_F32, 24, 40, 40, f->buf, 24576};
    f->bias = (struct cld_tensor){"bias", CLD_F32, 1, 40, 40, f->buf, 28672};
    f->g = (struct cld_gemm){.kind = CLD_GEMM_NT, .a = &f->a, .b = &f->b, .c = &f->c};
    size_t n_bytes = cld_gemm_scratch_bytes(f->q, &f->g);
    assert_true(n_bytes > 0);
    assert_int_equal(cld_buf_create(f->q, "scratch", n_bytes, &f->scratch, &err), CLD_OK);
}

/* A plan asks for the largest product once; no smaller one may need more. */
static void test_scratch_covers_fewer_rows(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 7, 64, 65, 200, 1000, 1776, 2048, 9000};
    const size_t n_sizes = sizeof sizes / sizeof *sizes;
    for (enum cld_kernel_family family = CLD_KERNEL_FAMILY_CPU; family <= CLD_KERNEL_FAMILY_GPU;
         family++) {
        struct cld_queue *q = open_queue(family);
        for (enum cld_gemm_kind kind = CLD_GEMM_NT; kind <= CLD_GEMM_TN; kind++)
            for (size_t n = 0; n < n_sizes; n++)
                for (size_t k = 0; k < n_sizes; k++) {
                    size_t before = 0;
                    for (size_t m = 0; m < n_sizes; m++) {
                        /* The rows that a micro-batch has: of A and C, or, in TN, the sums. */
                        size_t rows = sizes[m], cols = sizes[n], deep = sizes[k];
                        bool tn = kind == CLD_GEMM_TN;
                        struct cld_tensor a = {"a", CLD_F32, rows, deep, deep, NULL, 0};
                        struct cld_tensor b = {"b", CLD_F32, deep, cols, cols, NULL, 0};
                        struct cld_tensor c = {"c", CLD_F32, rows, cols, cols, NULL, 0};
                        if (kind == CLD_GEMM_NT)
                            b = (struct cld_tensor){"b", CLD_F32, cols, deep, deep, NULL, 0};
                        if (tn) {
                            b = (struct cld_tensor){"b", CLD_F32, rows, cols, cols, NULL, 0};
                            c = (struct cld_tensor){"c", CLD_F32, deep, cols, cols, NULL, 0};
                        }
                        struct cld_gemm g = {.kind = kind, .a = &a, .b = &b, .c = &c};
                        size_t now = cld_gemm_scratch_bytes(q, &g);
                        if (now < before)
                            fail_msg("kind %d, %zu rows, %zu x %zu: %zu bytes, fewer rows %zu",
                                     kind, rows, cols, deep, now, before);
                        before = now;
                    }
                }
        cld_queue_close(q);
    }
}

static void refuse(struct fixture *f, enum cld_status status, const char *word)
{
    struct cld_error err = CLD_ERROR_INIT;
    assert_int_equal(cld_gemm(f->q, &f->g, f->scratch, &err), status);
    if (!strstr(err.what, word))
        fail_msg("'%s' does not say '%s'", err.what, word);
}

static void test_sealed(void **state)
{
    struct fixture f;
    struct cld_error err = CLD_ERROR_INIT;
    (void)state;
    set_up(&f);
    assert_int_equal(cld_gemm(f.q, &f.g, f.scratch, &err), CLD_OK);
    cld_queue_seal(f.q);
    size_t n_built = cld_queue_counts(f.q).n_builds;
    assert_int_equal(cld_gemm(f.q, &f.g, f.scratch, &err), CLD_OK);
    f.c.type = CLD_BF16; /* another variant of the kernel */
    refuse(&f, CLD_E_DEVICE, "gemm_cpu");
    f.c.type = CLD_F32;
    f.g.backend = CLD_GEMM_CLBLAST;
    refuse(&f, CLD_E_DEVICE, "CLBlast was not built");
    assert_int_equal(cld_queue_counts(f.q).n_builds, n_built);
    cld_queue_close(f.q);
}

static void test_refusals(void **state)
{
    struct fixture f;
    (void)state;
    set_up(&f);
    f.b.n_cols = 299; /* k does not fit */
    refuse(&f, CLD_E_INTERNAL, "[40, 299]");
    f.b.n_cols = 300;
    f.c.n_rows = 23;
    refuse(&f, CLD_E_INTERNAL, "[23, 40]");
    f.c.n_rows = 24;
    f.bias.n_cols = 39;
    f.g.bias = &f.bias;
    refuse(&f, CLD_E_INTERNAL, "[1, 39]");
    f.g.bias = NULL;
    f.g.residual = &f.a;
    refuse(&f, CLD_E_INTERNAL, "shapes do not fit");
    f.g.residual = NULL;
    f.a.ld = 299;
    refuse(&f, CLD_E_INTERNAL, "ld 299");
    f.a.ld = 300;
    f.c.offset = 32 * 1024 - 24 * 40 + 1; /* one element past the end */
    refuse(&f, CLD_E_INTERNAL, "inside its buffer");
    f.c.offset = 24576;
    f.a.type = CLD_I32;
    refuse(&f, CLD_E_INTERNAL, "I32");
    f.a.type = CLD_BF16;
    f.g.backend = CLD_GEMM_CLBLAST;
    refuse(&f, CLD_E_DEVICE, "F32");
    assert_int_equal(cld_queue_counts(f.q).n_launches, 0);
    cld_queue_close(f.q);
}

static void test_scratch(void **state)
{
    struct fixture f;
    struct cld_error err = CLD_ERROR_INIT;
    (void)state;
    set_up(&f);
    size_t n_bytes = cld_buf_bytes(f.scratch);
    cld_buf_free(f.scratch);
    f.scratch = NULL;
    refuse(&f, CLD_E_INTERNAL, "scratch holds 0");
    assert_int_equal(cld_buf_create(f.q, "small", n_bytes - 4, &f.scratch, &err), CLD_OK);
    refuse(&f, CLD_E_INTERNAL, "scratch holds");
    assert_int_equal(cld_queue_counts(f.q).n_launches, 0);
    cld_queue_close(f.q);
}

static void test_no_tensor_cores(void **state)
{
    struct fixture f;
    (void)state;
    set_up(&f);
    f.g.round_to_bf16 = true;
    for (int b = CLD_GEMM_SM80; b <= CLD_GEMM_SM90A; b++) {
        f.g.backend = (enum cld_gemm_backend)b;
        refuse(&f, CLD_E_DEVICE, "NVIDIA tensor cores");
        assert_string_equal(cld_gemm_backend_name(f.q, f.g.backend), "none");
        assert_int_equal(cld_gemm_scratch_bytes(f.q, &f.g), 0);
    }
    assert_int_equal(cld_queue_counts(f.q).n_builds, 0);
    cld_queue_close(f.q);
}

/* The plan asks before there are buffers, and at any offset; k == 0 and m == 0 need nothing. */
static void test_plan(void **state)
{
    struct fixture f;
    (void)state;
    set_up(&f);
    size_t n_bytes = cld_gemm_scratch_bytes(f.q, &f.g);
    f.a.buf = f.b.buf = f.c.buf = NULL;
    f.a.offset = f.c.offset = 3;
    assert_int_equal(cld_gemm_scratch_bytes(f.q, &f.g), n_bytes);
    f.a.n_cols = f.b.n_cols = 0;
    assert_int_equal(cld_gemm_scratch_bytes(f.q, &f.g), 0);
    f.a.n_cols = f.b.n_cols = 300;
    f.a.n_rows = f.c.n_rows = 0;
    assert_int_equal(cld_gemm_scratch_bytes(f.q, &f.g), 0);
    cld_queue_close(f.q);
}

static void test_names(void **state)
{
    (void)state;
    for (int family = CLD_KERNEL_FAMILY_CPU; family <= CLD_KERNEL_FAMILY_GPU; family++) {
        struct cld_queue *q = open_queue((enum cld_kernel_family)family);
        const char *name = cld_gemm_backend_name(q, CLD_GEMM_AUTO);
        assert_non_null(strstr(name, family == CLD_KERNEL_FAMILY_CPU ? "(cpu" : "(gpu"));
        assert_string_equal(name, cld_gemm_backend_name(q, CLD_GEMM_PORTABLE));
        assert_non_null(strstr(cld_gemm_backend_name(q, CLD_GEMM_CLBLAST), "CLBlast"));
        cld_queue_close(q);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),           cmocka_unit_test(test_plan),
        cmocka_unit_test(test_scratch),         cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_tensor_cores), cmocka_unit_test(test_scratch_covers_fewer_rows),
        cmocka_unit_test(test_sealed),          cmocka_unit_test(test_gemms),
    };
    return cmocka_run_group_tests(tests, find_cpu, close_devices);
}
