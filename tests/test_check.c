/* Tests of the test harness: a right operation passes, and every planted fault is caught. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "check/check.h"
#include "test_device.h"

enum fault {
    NONE,
    WRONG_VALUE,
    SMALL_ERROR,
    BEFORE,
    BEHIND,
    GAP,
    NONDETERMINISTIC,
    UNWRITTEN,
    A_NAN,
    AN_INF,
    INPUT_CHANGED
};

struct world {
    struct cld_queue *q;
};

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    *state = w;
    if (!w || find_cpu(NULL))
        return -1;
    w->q = open_queue(CLD_KERNEL_FAMILY_AUTO);
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    cld_queue_close(w->q);
    free(w);
    return close_devices(NULL);
}

/* y = 2 x, computed here and written to the device, with one fault. */
struct twice {
    struct cld_check_tensor *x, *y;
    enum fault fault;
    int n_runs;
};

static size_t store(enum cld_dtype type, double v, unsigned char *to)
{
    float f = (float)v;
    uint16_t h = cld_f32_to_bf16(f);
    int32_t n = (int32_t)v;
    if (type == CLD_BF16)
        memcpy(to, &h, sizeof h);
    else if (type == CLD_F32)
        memcpy(to, &f, sizeof f);
    else
        memcpy(to, &n, sizeof n);
    return cld_dtype_bytes(type);
}

static enum cld_status poke(const struct cld_tensor *t, long long at, double v,
                            struct cld_error *err)
{
    unsigned char b[4];
    size_t n = store(t->type, v, b);
    return cld_buf_write(t->buf, (size_t)((long long)t->offset + at) * n, b, n, err);
}

static enum cld_status run_twice(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct twice *op = arg;
    const struct cld_tensor *y = &op->y->t;
    enum cld_status s = CLD_OK;
    long long last = (long long)((y->n_rows - 1) * y->ld + y->n_cols) - 1;
    (void)c;
    op->n_runs++;
    for (size_t i = 0; i < y->n_rows * y->n_cols && !s; i++)
        if (op->fault != UNWRITTEN || i != 7)
            s = poke(y, (long long)(i / y->n_cols * y->ld + i % y->n_cols), 2 * op->x->value[i],
                     err);
    if (s)
        return s;
    double right = 2 * op->x->value[0];
    switch (op->fault) {
    case NONE:
    case UNWRITTEN:
        return CLD_OK;
    case WRONG_VALUE:
        return poke(y, 0, right + 1, err);
    case SMALL_ERROR:
        return poke(y, 0, right * (1 + 1e-3), err);
    case BEFORE:
        return poke(y, -1, 0, err);
    case BEHIND:
        return poke(y, last + 1, 0, err);
    case GAP:
        return poke(y, (long long)y->n_cols, 0, err);
    case NONDETERMINISTIC:
        return poke(y, 0, right * (1 + 1e-6 * op->n_runs), err);
    case A_NAN:
        return poke(y, 0, NAN, err);
    case AN_INF:
        return poke(y, 0, INFINITY, err);
    case INPUT_CHANGED:
        return poke(&op->x->t, 0, right + 1, err);
    }
    return CLD_OK;
}

/* Runs the case; true if it passed. */
static bool passes(struct world *w, enum cld_dtype type, enum fault fault, bool expect_inf)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_check c = {.q = w->q, .seed = 5, .storage = type};
    struct twice op = {.fault = fault};
    double want[21];
    cld_check_begin(&c, "planted fault %d", (int)fault);
    c.pad = 3;
    c.skew = 1;
    assert_int_equal(cld_check_input(&c, "x", type, 3, 7, type == CLD_I32 ? 100 : 1, &op.x, &err),
                     CLD_OK);
    assert_int_equal(cld_check_output(&c, "y", type, 3, 7, &op.y, &err), CLD_OK);
    for (size_t i = 0; i < 21; i++)
        want[i] = 2 * op.x->value[i];
    if (expect_inf)
        want[0] = INFINITY;
    assert_int_equal(cld_check_twice(&c, run_twice, &op, &err), CLD_OK);
    assert_int_equal(op.n_runs, 2);
    assert_int_equal(cld_check_compare(&c, op.y, want, CLD_BOUND_F32_TENSOR, &err), CLD_OK);
    cld_check_end(&c);
    assert_int_equal(c.n_passed + c.n_failed, 1);
    cld_check_close(&c);
    return c.n_passed == 1;
}

static void test_right_passes(void **state)
{
    assert_true(passes(*state, CLD_F32, NONE, false));
    assert_true(passes(*state, CLD_BF16, NONE, false));
    assert_true(passes(*state, CLD_I32, NONE, false));
}

static void test_wrong_value(void **state)
{
    assert_false(passes(*state, CLD_F32, WRONG_VALUE, false));
    assert_false(passes(*state, CLD_BF16, WRONG_VALUE, false));
    assert_false(passes(*state, CLD_I32, WRONG_VALUE, false));
    assert_false(passes(*state, CLD_F32, SMALL_ERROR, false));
}

static void test_out_of_bounds(void **state)
{
    static const enum cld_dtype types[] = {CLD_F32, CLD_BF16, CLD_I32};
    for (size_t i = 0; i < 3; i++) {
        assert_false(passes(*state, types[i], BEFORE, false));
        assert_false(passes(*state, types[i], BEHIND, false));
        assert_false(passes(*state, types[i], GAP, false));
    }
}

static void test_nondeterministic(void **state)
{
    assert_false(passes(*state, CLD_F32, NONDETERMINISTIC, false));
}

static void test_unwritten(void **state)
{
    assert_false(passes(*state, CLD_F32, UNWRITTEN, false));
    assert_false(passes(*state, CLD_BF16, UNWRITTEN, false));
    assert_false(passes(*state, CLD_I32, UNWRITTEN, false));
}

static void test_non_finite(void **state)
{
    assert_false(passes(*state, CLD_F32, A_NAN, false));
    assert_false(passes(*state, CLD_BF16, A_NAN, false));
    assert_false(passes(*state, CLD_F32, AN_INF, false));
    /* not even where the reference is infinite too */
    assert_false(passes(*state, CLD_F32, AN_INF, true));
}

static void test_input_changed(void **state)
{
    assert_false(passes(*state, CLD_F32, INPUT_CHANGED, false));
}

static enum cld_status add_one(struct cld_check *c, void *arg, struct cld_error *err)
{
    const struct cld_check_tensor *t = arg;
    float v = 0;
    enum cld_status s = cld_buf_read(t->t.buf, t->t.offset * sizeof v, &v, sizeof v, err);
    (void)c;
    return s ? s : poke(&t->t, 0, v + 1, err);
}

/* An in-out tensor starts both runs from its input values. */
static void test_in_out(void **state)
{
    struct world *w = *state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_check c = {.q = w->q, .storage = CLD_F32};
    struct cld_check_tensor *t;
    double start = 4, want = 5;
    cld_check_begin(&c, "in-out");
    assert_int_equal(cld_check_values(&c, "t", CLD_F32, 1, 1, &start, &t, &err), CLD_OK);
    t->output = true;
    assert_int_equal(cld_check_twice(&c, add_one, t, &err), CLD_OK);
    assert_int_equal(cld_check_compare(&c, t, &want, CLD_BOUND_F32_ONE, &err), CLD_OK);
    assert_false(c.failed);
    cld_check_close(&c);
}

/* All zeros may be right, and then nothing but zeros is. */
static void test_zeros(void **state)
{
    struct world *w = *state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_check c = {.q = w->q, .storage = CLD_F32};
    struct cld_check_tensor *t;
    double zeros[4] = {0}, tiny[4] = {0, 0, 1e-30, 0};
    cld_check_begin(&c, "zeros");
    assert_int_equal(cld_check_values(&c, "t", CLD_F32, 1, 4, zeros, &t, &err), CLD_OK);
    assert_int_equal(cld_check_compare(&c, t, zeros, CLD_BOUND_F32_ONE, &err), CLD_OK);
    assert_false(c.failed);
    cld_check_begin(&c, "almost zeros");
    assert_int_equal(cld_check_values(&c, "t", CLD_F32, 1, 4, tiny, &t, &err), CLD_OK);
    assert_int_equal(cld_check_compare(&c, t, zeros, CLD_BOUND_F32_ONE, &err), CLD_OK);
    assert_true(c.failed);
    cld_check_close(&c);
}

/* Inputs are a function of seed, name and order, and hold exactly what `value` says. */
static void test_inputs(void **state)
{
    struct world *w = *state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_check c = {.q = w->q, .seed = 9, .storage = CLD_BF16};
    struct cld_check_tensor *t;
    double first[2] = {0};
    uint16_t h = 0;
    for (int i = 0; i < 4; i++) {
        c.seed = i == 2 ? 10 : 9;
        cld_check_begin(&c, i == 3 ? "other" : "inputs");
        assert_int_equal(cld_check_input(&c, "t", CLD_BF16, 2, 1, 3, &t, &err), CLD_OK);
        assert_int_equal(cld_buf_read(t->t.buf, (t->t.offset + t->t.ld) * 2, &h, 2, &err), CLD_OK);
        assert_true((double)cld_bf16_to_f32(h) == t->value[1]);
        if (i == 0)
            memcpy(first, t->value, sizeof first);
        assert_true((i < 2) == !memcmp(first, t->value, sizeof first));
    }
    cld_check_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_passes),  cmocka_unit_test(test_wrong_value),
        cmocka_unit_test(test_out_of_bounds), cmocka_unit_test(test_nondeterministic),
        cmocka_unit_test(test_unwritten),     cmocka_unit_test(test_non_finite),
        cmocka_unit_test(test_input_changed), cmocka_unit_test(test_in_out),
        cmocka_unit_test(test_zeros),         cmocka_unit_test(test_inputs),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
