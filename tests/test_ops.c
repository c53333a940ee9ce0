/* The table of kernel checks on the first CPU device: every operation, both kernel families, both
 * storages. And what the table cannot say: refused shapes, sealed queues. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "base/random.h"
#include "check/check.h"
#include "ops/ops.h"
#include "test_device.h"

static void test_table(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    size_t n_passed, n_failed, n_all = 0;
    /* Products and attention have programs of their own (test_gemm, test_attention). */
    for (const struct cld_check_op *o = cld_check_ops; o->name; o++) {
        struct cld_check_options options = {.op = o->name, .seed = 1};
        if (strstr(o->name, "gemm") || strstr(o->name, "attention"))
            continue;
        assert_int_equal(cld_check_device(&cpu, &options, &n_passed, &n_failed, &err), CLD_OK);
        assert_int_equal(n_failed, 0);
        n_all += n_passed;
    }
    assert_true(n_all > 100);
}

/* A queue of one family, tensors made by hand. */
struct bench {
    struct cld_queue *q;
    struct cld_error err;
};

static struct bench open_bench(enum cld_kernel_family family)
{
    return (struct bench){open_queue(family), CLD_ERROR_INIT};
}

static struct cld_tensor make(struct bench *b, enum cld_dtype type, size_t n_rows, size_t n_cols)
{
    struct cld_tensor t = {"t", type, n_rows, n_cols, n_cols, NULL, 0};
    assert_int_equal(cld_buf_create(b->q, "t", cld_tensor_bytes(&t), &t.buf, &b->err), CLD_OK);
    return t;
}

static void write_ints(struct bench *b, const struct cld_tensor *t, const int32_t *values)
{
    assert_int_equal(cld_buf_write(t->buf, 0, values, t->n_cols * sizeof *values, &b->err), CLD_OK);
}

static void read_floats(struct bench *b, const struct cld_tensor *t, float *values)
{
    assert_int_equal(cld_buf_read(t->buf, 0, values, cld_tensor_bytes(t), &b->err), CLD_OK);
}

static void test_refused_shapes(void **state)
{
    (void)state;
    struct bench b = open_bench(CLD_KERNEL_FAMILY_AUTO);
    struct cld_tensor x = make(&b, CLD_F32, 3, 8), y = make(&b, CLD_F32, 3, 7),
                      w = make(&b, CLD_F32, 1, 8), n = make(&b, CLD_I32, 3, 8), past = x,
                      nowhere = x;
    assert_int_equal(cld_rmsnorm_forward(b.q, &x, &w, 1e-6f, &y, NULL, &b.err), CLD_E_INTERNAL);
    assert_non_null(strstr(b.err.what, "[3, 8]"));
    assert_non_null(strstr(b.err.what, "[3, 7]"));
    assert_int_equal(cld_add_tensors(b.q, &x, NULL, &y, &b.err), CLD_E_INTERNAL);
    assert_int_equal(cld_add_tensors(b.q, &x, NULL, &n, &b.err), CLD_E_INTERNAL); /* storage */
    past.offset = 1;
    assert_int_equal(cld_add_tensors(b.q, &x, NULL, &past, &b.err),
                     CLD_E_INTERNAL); /* its buffer */
    nowhere.buf = NULL;
    assert_int_equal(cld_add_tensors(b.q, &nowhere, NULL, &x, &b.err), CLD_E_INTERNAL);
    /* a head of 6 is no multiple of 8 */
    struct cld_tensor p = make(&b, CLD_I32, 1, 3), table = make(&b, CLD_F32, 4, 6),
                      h = make(&b, CLD_F32, 3, 12);
    assert_int_equal(cld_qknorm_rope_forward(b.q, &h, NULL, 1e-6f, 6, &p, &table, &h, NULL, &b.err),
                     CLD_E_INTERNAL);
    assert_int_equal(cld_queue_counts(b.q).n_launches, 0);
    cld_queue_close(b.q);
}

/* After a full batch a shorter one, down to nothing, needs no variant that was not built. */
static void shorter_batches(enum cld_kernel_family family)
{
    struct bench b = open_bench(family);
    enum { n = 9, c = 40 };
    struct cld_tensor x = make(&b, CLD_BF16, n, c), g = make(&b, CLD_F32, n, c),
                      weight = make(&b, CLD_BF16, 1, c), rstd = make(&b, CLD_F32, 1, n),
                      dw = make(&b, CLD_F32, 1, c), labels = make(&b, CLD_I32, 1, n),
                      weights = make(&b, CLD_F32, 1, n), loss = make(&b, CLD_F32, 1, n),
                      hit = make(&b, CLD_I32, 1, n),
                      scratch =
                          make(&b, CLD_F32, 1, cld_norm_scratch_bytes(b.q, c) / sizeof(float));
    for (size_t i = n + 1; i-- > 0;) {
        struct cld_tensor xs = cld_tensor_rows(&x, n - i, i), gs = cld_tensor_rows(&g, n - i, i),
                          rs = cld_tensor_cols(&rstd, n - i, i),
                          ls = cld_tensor_cols(&labels, n - i, i),
                          ws = cld_tensor_cols(&weights, n - i, i),
                          ce = cld_tensor_cols(&loss, n - i, i),
                          hs = cld_tensor_cols(&hit, n - i, i);
        assert_int_equal(cld_rmsnorm_forward(b.q, &xs, &weight, 1e-6f, &xs, &rs, &b.err), CLD_OK);
        assert_int_equal(
            cld_rmsnorm_backward(b.q, &xs, &weight, &rs, &gs, NULL, &gs, &dw, scratch.buf, &b.err),
            CLD_OK);
        assert_int_equal(cld_swiglu_backward(b.q, &xs, &xs, &gs, &gs, &gs, &b.err), CLD_OK);
        assert_int_equal(cld_gather_rows(b.q, &x, &ls, &gs, &b.err), CLD_OK);
        assert_int_equal(cld_cross_entropy(b.q, &gs, &ls, &ws, &ce, &hs, &gs, &b.err), CLD_OK);
        cld_queue_seal(b.q);
    }
    assert_int_equal(cld_queue_finish(b.q, &b.err), CLD_OK);
    cld_queue_close(b.q);
}

enum { most_values = 1 << 16 }; /* of a tensor here */

static void test_shorter_batches(void **state)
{
    (void)state;
    shorter_batches(CLD_KERNEL_FAMILY_CPU);
    shorter_batches(CLD_KERNEL_FAMILY_GPU);
}

/* Labels, positions and indices outside their range: a broken promise of the host, which must not
 * become a read outside the tensors. Sentinels of 1000 stand where that read would go. */
static void indices_outside(enum cld_kernel_family family)
{
    struct bench b = open_bench(family);
    struct cld_tensor all = make(&b, CLD_F32, 3, 8), x = cld_tensor_rows(&all, 1, 1),
                      y = make(&b, CLD_F32, 4, 8), index = make(&b, CLD_I32, 1, 4);
    float values[24], got[32];
    for (size_t i = 0; i < 24; i++)
        values[i] = i / 8 == 1 ? 1.0f : 1000.0f;
    assert_int_equal(cld_buf_write(all.buf, 0, values, sizeof values, &b.err), CLD_OK);
    write_ints(&b, &index, (const int32_t[]){1, -1, INT32_MAX, INT32_MIN});
    assert_int_equal(cld_gather_rows(b.q, &x, &index, &y, &b.err), CLD_OK);
    read_floats(&b, &y, got);
    for (size_t i = 0; i < 32; i++)
        assert_true(got[i] == 0.0f);

    /* the table of angles is the one row of `all` in the middle: cos = sin = 1 for each position */
    struct cld_tensor ones = make(&b, CLD_F32, 4, 8);
    assert_int_equal(cld_fill(b.q, &ones, 1.0f, &b.err), CLD_OK);
    assert_int_equal(
        cld_qknorm_rope_forward(b.q, &ones, NULL, 0.0f, 8, &index, &x, &y, NULL, &b.err), CLD_OK);
    read_floats(&b, &y, got);
    for (size_t i = 0; i < 32; i++)
        assert_true(got[i] == (i % 8 < 4 ? 0.0f : 2.0f));

    struct cld_tensor label = cld_tensor_cols(&index, 2, 1), weight = cld_tensor_cols(&ones, 0, 1),
                      loss = make(&b, CLD_F32, 1, 1), hit = make(&b, CLD_I32, 1, 1);
    weight.n_rows = weight.ld = 1;
    assert_int_equal(cld_cross_entropy(b.q, &x, &label, &weight, &loss, &hit, &x, &b.err), CLD_OK);
    read_floats(&b, &loss, got);
    assert_true(got[0] > 2.07f && got[0] < 2.09f); /* log 8 */
    read_floats(&b, &all, values);
    for (size_t i = 0; i < 24; i++)
        assert_true(i / 8 == 1 ? values[i] < 1.0f : values[i] == 1000.0f);
    cld_queue_close(b.q);
}

static void test_indices_outside(void **state)
{
    (void)state;
    indices_outside(CLD_KERNEL_FAMILY_CPU);
    indices_outside(CLD_KERNEL_FAMILY_GPU);
}

/* Broken numbers are seen, not swallowed: one NaN logit, one infinite gradient. */
static void non_finite(enum cld_kernel_family family)
{
    struct bench b = open_bench(family);
    struct cld_tensor z = make(&b, CLD_F32, 1, 40), label = make(&b, CLD_I32, 1, 1),
                      weight = make(&b, CLD_F32, 1, 1), loss = make(&b, CLD_F32, 1, 1),
                      hit = make(&b, CLD_I32, 1, 1), scratch = make(&b, CLD_F32, 1, 32768);
    float bad[2] = {NAN, INFINITY}, got;
    double sum;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(cld_buf_write(z.buf, 33 * sizeof *bad, &bad[i], sizeof *bad, &b.err),
                         CLD_OK);
        assert_int_equal(cld_cross_entropy(b.q, &z, &label, &weight, &loss, &hit, NULL, &b.err),
                         CLD_OK);
        read_floats(&b, &loss, &got);
        assert_false(isfinite(got));
        assert_int_equal(cld_sum_squares(b.q, &z, scratch.buf, &sum, &b.err), CLD_OK);
        assert_false(isfinite(sum));
    }
    cld_queue_close(b.q);
}

static void test_non_finite(void **state)
{
    (void)state;
    non_finite(CLD_KERNEL_FAMILY_CPU);
    non_finite(CLD_KERNEL_FAMILY_GPU);
}

/* Streams and seeds give different values, and a slice's values depend on its own numbering only.
 */
static void test_streams(void **state)
{
    (void)state;
    struct bench b = open_bench(CLD_KERNEL_FAMILY_AUTO);
    struct cld_tensor t = make(&b, CLD_F32, 1, 64);
    float first[64], other[64];
    const uint64_t keys[][2] = {{1, 1}, {1, 2}, {2, 1}, {1, (uint64_t)1 << 32}};
    assert_int_equal(cld_fill_normal(b.q, &t, 1, 1, 0.5f, &b.err), CLD_OK);
    read_floats(&b, &t, first);
    for (size_t k = 0; k < 4; k++) {
        size_t n_same = 0;
        assert_int_equal(cld_fill_normal(b.q, &t, keys[k][0], keys[k][1], 0.5f, &b.err), CLD_OK);
        read_floats(&b, &t, other);
        for (size_t i = 0; i < 64; i++)
            n_same += first[i] == other[i];
        assert_int_equal(n_same, k == 0 ? 64 : 0);
    }
    cld_queue_close(b.q);
}

static void test_unknown_op(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    size_t n_passed, n_failed;
    struct cld_check_options options = {.op = "no such thing"};
    assert_int_equal(cld_check_device(&cpu, &options, &n_passed, &n_failed, &err), CLD_E_USAGE);
    assert_non_null(strstr(err.hint, "rmsnorm"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),           cmocka_unit_test(test_refused_shapes),
        cmocka_unit_test(test_shorter_batches), cmocka_unit_test(test_indices_outside),
        cmocka_unit_test(test_non_finite),      cmocka_unit_test(test_streams),
        cmocka_unit_test(test_unknown_op),
    };
    return cmocka_run_group_tests(tests, find_cpu, close_devices);
}
