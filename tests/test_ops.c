/* The table of kernel checks on the first CPU device: every operation, both kernel families, both
 * storages. And what the table cannot say: refused shapes, sealed queues. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check.h"
#include "ops.h"

struct world {
    struct cld_devices *devices;
    struct cld_device_info device;
};

static int setup(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct world *w = calloc(1, sizeof *w);
    *state = w;
    if (!w || cld_devices_open(&w->devices, &err) ||
        cld_devices_pick(w->devices, "cpu:0/1", &w->device, &err)) {
        fprintf(stderr, "%s\n", err.what);
        return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    cld_devices_close(w->devices);
    free(w);
    return 0;
}

static void test_table(void **state)
{
    struct world *w = *state;
    struct cld_error err = CLD_ERROR_INIT;
    size_t n_passed, n_failed;
    struct cld_check_options options = {.seed = 1};
    assert_int_equal(cld_check_device(&w->device, &options, &n_passed, &n_failed, &err), CLD_OK);
    assert_int_equal(n_failed, 0);
    assert_true(n_passed > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
