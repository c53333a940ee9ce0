#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "opencl/ptx.h"
#include "ops/gemm_tensor.h"
#include "ops/probe.h"
#include "test_device.h"

/* The copies that tensor cores read are made by plain OpenCL C, so a CPU can check them. */

/* A value that bf16 must round, and its rounding. */
static float value(size_t row, size_t column)
{
    return (float)(row * 31 + column * 7 + 1) / 97.0f;
}

static struct cld_tensor make_tensor(struct cld_queue *q, const char *name, enum cld_dtype type,
                                     size_t n_rows, size_t n_cols, size_t ld, size_t offset)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_tensor t = {name, type, n_rows, n_cols, ld, NULL, offset};
    size_t n = offset + n_rows * ld, n_bytes = n * cld_dtype_bytes(type);
    float *f = malloc(n * sizeof *f);
    uint16_t *h = malloc(n * sizeof *h);
    assert_true(f && h);
    for (size_t i = 0; i < n; i++)
        f[i] = -1.0f; /* between rows; no value of the tensor is negative */
    for (size_t i = 0; i < n_rows * n_cols; i++)
        f[offset + i / n_cols * ld + i % n_cols] = value(i / n_cols, i % n_cols);
    for (size_t i = 0; i < n; i++)
        h[i] = cld_f32_to_bf16(f[i]);
    assert_int_equal(cld_buf_create(q, name, n_bytes, &t.buf, &err), CLD_OK);
    assert_int_equal(
        cld_buf_write(t.buf, 0, type == CLD_F32 ? (void *)f : (void *)h, n_bytes, &err), CLD_OK);
    free(f);
    free(h);
    return t;
}

/* Runs the copies of a product and gives the scratch, poisoned before. */
static uint16_t *copy(struct cld_queue *q, const struct cld_gemm *g,
                      const struct cld_gemm_operands *o)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_buf *scratch = NULL;
    uint16_t *got = malloc(o->n_scratch_bytes);
    assert_non_null(got);
    assert_int_equal(cld_buf_create(q, "scratch", o->n_scratch_bytes, &scratch, &err), CLD_OK);
    assert_int_equal(cld_buf_fill(scratch, 0, o->n_scratch_bytes, 0xa5a5a5a5u, &err), CLD_OK);
    if (cld_gemm_copy_operands(q, g, o, scratch, &err))
        fail_msg("%s", err.what);
    assert_int_equal(cld_buf_read(scratch, 0, got, o->n_scratch_bytes, &err), CLD_OK);
    return got;
}

static void check_rows(const struct cld_gemm_operand *o, const uint16_t *got)
{
    const struct cld_tensor *t = o->t;
    assert_false(o->in_place);
    assert_int_equal(o->ld, (t->n_cols + 7) / 8 * 8);
    assert_int_equal(o->at % 64, 0);
    for (size_t i = 0; i < t->n_rows; i++)
        for (size_t j = 0; j < o->ld; j++)
            assert_int_equal(got[o->at + i * o->ld + j],
                             j < t->n_cols ? cld_f32_to_bf16(value(i, j)) : 0);
}

/* A is where the product before left it: only B is copied. */
static void test_same_a(void **state)
{
    struct cld_queue *q = open_queue(CLD_KERNEL_FAMILY_GPU);
    (void)state;
    struct cld_tensor a = make_tensor(q, "a", CLD_F32, 65, 70, 70, 0);
    struct cld_tensor b = make_tensor(q, "b", CLD_F32, 90, 70, 70, 0);
    struct cld_gemm g = {
        .kind = CLD_GEMM_NT, .a = &a, .b = &b, .round_to_bf16 = true, .same_a = true};
    struct cld_gemm_operands o = cld_gemm_plan_operands(&g, 260);
    uint16_t *got = copy(q, &g, &o);
    assert_true(o.a.at >= 130 && o.b.at >= o.a.at + 65 * o.a.ld);
    for (size_t i = 0; i < 65 * o.a.ld; i++)
        assert_int_equal(got[o.a.at + i], 0xa5a5);
    check_rows(&o.b, got);
    free(got);
    cld_queue_close(q);
}

/* Copies, and operands that are read where they are, in whatever orientation. */
static void test_rows(void **state)
{
    struct cld_queue *q = open_queue(CLD_KERNEL_FAMILY_GPU);
    (void)state;
    struct cld_tensor a = make_tensor(q, "a", CLD_F32, 33, 2051, 2051, 5);
    struct cld_tensor b =
        make_tensor(q, "b", CLD_BF16, 33, 17, 24, 1); /* ld fits, offset does not */
    struct cld_gemm g = {.kind = CLD_GEMM_TN, .a = &a, .b = &b, .round_to_bf16 = true};
    struct cld_gemm_operands o = cld_gemm_plan_operands(&g, 0);
    uint16_t *got = copy(q, &g, &o);
    check_rows(&o.a, got);
    check_rows(&o.b, got);
    free(got);
    b.offset = 8;
    for (int kind = CLD_GEMM_NT; kind <= CLD_GEMM_TN; kind++) {
        g.kind = (enum cld_gemm_kind)kind;
        o = cld_gemm_plan_operands(&g, 0);
        assert_true(o.b.in_place);
        assert_int_equal(o.b.at, 8);
        assert_int_equal(o.b.ld, 24);
        assert_false(o.a.in_place);
    }
    cld_queue_close(q);
}

static void test_fits(void **state)
{
    struct cld_tensor a = {"a", CLD_BF16, 8, 16, 16, NULL, 0},
                      b = {"b", CLD_BF16, 8, 16, 16, NULL, 0};
    struct cld_gemm g = {.kind = CLD_GEMM_NT, .a = &a, .b = &b};
    (void)state;
    assert_true(cld_gemm_fits_tensor_cores(NULL));
    assert_true(cld_gemm_fits_tensor_cores(&g));
    b.type = CLD_F32; /* would be rounded: only with leave */
    assert_false(cld_gemm_fits_tensor_cores(&g));
    g.round_to_bf16 = true;
    assert_true(cld_gemm_fits_tensor_cores(&g));
    a.n_rows = (size_t)1 << 31;
    assert_false(cld_gemm_fits_tensor_cores(&g));
}

/* Elsewhere than under NVIDIA's driver, PTX is refused before anything is built. */
static void test_no_ptx_here(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_queue *q = open_queue(CLD_KERNEL_FAMILY_GPU);
    struct cld_ptx_change change = {.target = "sm_90a", .max_registers = 128};
    struct cld_kernel_spec spec = {"gemm_sm90a.cl", "gemm_sm90a", "", 160};
    struct cld_kernel *k = NULL;
    char why[128];
    (void)state;
    assert_false(cld_queue_has_ptx(q));
    assert_int_equal(cld_kernel_get_ptx(q, &spec, &change, &k, &err), CLD_E_DEVICE);
    assert_non_null(strstr(err.what, "NVIDIA"));
    assert_null(k);
    for (int f = 0; f < CLD_N_PROBES; f++) {
        bool transient = true;
        assert_int_equal(cld_probe_run(q, (enum cld_instruction_set)f, why, sizeof why, &transient),
                         CLD_PROBE_REFUSED);
        assert_non_null(strstr(why, "PTX"));
        assert_false(transient);
        assert_false(cld_probe_usable(q, (enum cld_instruction_set)f));
    }
    assert_int_equal(cld_queue_counts(q).n_builds, 0);
    cld_queue_close(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_a),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_fits),
        cmocka_unit_test(test_no_ptx_here),
    };
    return cmocka_run_group_tests(tests, find_cpu, close_devices);
}
