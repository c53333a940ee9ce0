/* The check of attention on the first device, in both kernel families and storages, and what a check
 * with tolerances cannot see: bits that must or must not change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check_attention.h"

struct world {
    struct cld_devices *devices;
    struct cld_queue *q[2]; /* by enum cld_device_class */
};

static int setup(void **state)
{
    static struct world w;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_device_info device;
    if (cld_devices_open(&w.devices, &err) || cld_devices_pick(w.devices, "0", &device, &err))
        return -1;
    for (int i = 0; i < 2; i++) {
        const struct cld_queue_options options = {
            .name = "test", .family = i == CLD_CLASS_CPU ? CLD_FAMILY_CPU : CLD_FAMILY_GPU};
        if (cld_queue_open(&device, &options, &w.q[i], &err)) {
            print_error("%s\n", err.what);
            return -1;
        }
    }
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < 2; i++)
        cld_queue_close(w->q[i]);
    cld_devices_close(w->devices);
    return 0;
}

static void run_check(struct cld_queue *q, enum cld_dtype storage)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_check c = {.q = q, .seed = 1, .storage = storage, .out = getenv("CLD_TEST_VERBOSE") ? stderr : NULL};
    enum cld_status s = cld_check_attention(&c, &err);
    cld_check_close(&c);
    if (s)
        print_error("%s\n", err.what);
    assert_int_equal(s, CLD_OK);
    assert_int_equal(c.n_failed, 0);
    assert_true(c.n_passed > 100);
}

static void test_cpu_f32(void **state)
{
    struct world *w = *state;
    run_check(w->q[CLD_CLASS_CPU], CLD_F32);
}

static void test_cpu_bf16(void **state)
{
    struct world *w = *state;
    run_check(w->q[CLD_CLASS_CPU], CLD_BF16);
}

static void test_gpu_f32(void **state)
{
    struct world *w = *state;
    run_check(w->q[CLD_CLASS_GPU], CLD_F32);
}

static void test_gpu_bf16(void **state)
{
    struct world *w = *state;
    run_check(w->q[CLD_CLASS_GPU], CLD_BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_f32),
        cmocka_unit_test(test_cpu_bf16),
        cmocka_unit_test(test_gpu_f32),
        cmocka_unit_test(test_gpu_bf16),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
