#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "small_drafter.h"
#include "model/target.h"
#include "ops/tensor_io.h"
#include "test_device.h"

/* Golden targets are test_cases.sh's; here is what it cannot see. */

struct fixture {
    struct cld_queue *q;
    struct cld_plan *plan;
    struct cld_target t;
};

static struct fixture *open_target(size_t head_dim)
{
    static const int taps[] = {0};
    struct fixture *f = calloc(1, sizeof *f);
    struct cld_model_config config = {.model_type = "qwen3",
                                      .n_layers = 1,
                                      .hidden = 24,
                                      .n_heads = 4,
                                      .n_kv_heads = 2,
                                      .head_dim = head_dim,
                                      .intermediate = 40,
                                      .vocab = 61,
                                      .max_positions = 32,
                                      .qkv_bias = true,
                                      .qk_norm = true,
                                      .tied = true,
                                      .rms_norm_eps = 1e-6,
                                      .rope = {.theta = 10000}};
    struct cld_target_options options = {
        .storage = CLD_F32, .n_tokens = 16, .n_positions = 16, .taps = taps, .n_taps = 1};
    assert_non_null(f);
    f->q = open_queue(CLD_KERNEL_FAMILY_AUTO);
    assert_non_null(f->plan = cld_plan_new());
    OK(cld_target_describe(&f->t, &config, &options, f->q, f->plan, &err));
    OK(cld_plan_create(f->plan, f->q, &err));
    OK(cld_target_random(&f->t, 5, &err));
    return f;
}

static void close_target(struct fixture *f)
{
    cld_plan_free(f->plan);
    cld_queue_close(f->q);
    cld_target_free(&f->t);
    free(f);
}

/* Of every `stride` times `unit` elements of t [n_rows * n_cols], those beyond `run` times `unit`
 * are a gap: they must be zeros, and the others not. */
static void assert_gaps(const struct cld_tensor *t, size_t run, size_t stride, size_t unit,
                        bool zeros)
{
    size_t n = cld_tensor_elems(t), n_filled = 0;
    float *v = malloc(n * sizeof *v);
    assert_non_null(v);
    OK(cld_tensor_read(t, 0, t->n_rows, v, &err));
    for (size_t i = 0; i < n; i++) {
        if (i / unit % stride >= run && v[i] != 0)
            fail_msg("%s: element %zu of a gap is %g", t->name, i, (double)v[i]);
        n_filled += v[i] != 0;
    }
    assert_int_equal(n_filled, zeros ? 0 : n / stride * run);
    free(v);
}

static void test_generated_heads_end_in_zeros(void **state)
{
    (void)state;
    struct fixture *f = open_target(12); /* halves of 6, padded to 8 */
    const struct cld_target_layer *l = &f->t.layers[0];
    assert_int_equal(l->wq.n_rows, 4 * 16);
    assert_int_equal(l->wo.n_cols, 4 * 16);
    assert_gaps(&l->wq, 6, 8, 24, false);
    assert_gaps(&l->wk, 6, 8, 24, false);
    assert_gaps(&l->wv, 6, 8, 24, false);
    assert_gaps(&l->wo, 6, 8, 1, false);
    assert_gaps(&l->qn, 6, 8, 1, false);
    assert_gaps(&l->kn, 6, 8, 1, false);
    assert_gaps(&l->bq, 6, 8, 1, true);
    assert_gaps(&l->wg, 1, 1, 1, false);
    close_target(f);
}

static void test_heads_that_kernels_take_have_no_gaps(void **state)
{
    (void)state;
    struct fixture *f = open_target(16);
    assert_gaps(&f->t.layers[0].wq, 1, 1, 1, false);
    assert_gaps(&f->t.layers[0].wo, 1, 1, 1, false);
    close_target(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated_heads_end_in_zeros),
        cmocka_unit_test(test_heads_that_kernels_take_have_no_gaps),
    };
    return cmocka_run_group_tests(tests, find_cpu, close_devices);
}
