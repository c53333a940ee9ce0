/* Tests of the table of quirks: which versions it is of, and that a device whose IL is wrong gets
 * no module. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "test_device.h"

static const char pocl[] = "Portable Computing Language";

static void test_versions(void **state)
{
    (void)state;
    unsigned old = cld_quirks_of(pocl, "OpenCL 3.0 PoCL 3.1+debian  Linux", "3.1+debian");
    unsigned now = cld_quirks_of(pocl, "OpenCL 3.0 PoCL 6.0+debian  Linux", "6.0+debian");
    assert_int_equal(old, CLD_QUIRK_FIXED_GRID | CLD_QUIRK_DEAR_BINARY);
    assert_int_equal(now, CLD_QUIRK_BAD_IL | CLD_QUIRK_DEAR_BINARY);
    assert_int_equal(cld_quirks_of("NVIDIA CUDA", "OpenCL 3.0 CUDA 13", "580"),
                     CLD_QUIRK_MAX_ALLOC_LOW);
    assert_int_equal(cld_quirks_of("Another", "OpenCL 3.0 PoCL 3.1", "6.0"), 0);
}

static void test_rows(void **state)
{
    (void)state;
    size_t n = 0;
    for (const struct cld_quirk_info *q; (q = cld_quirk_at(n)); n++) {
        if (q->bit != CLD_QUIRK_NOTED)
            assert_int_equal(cld_quirk_of(q->bit)->bit, q->bit);
        assert_true(q->name[0] && q->range[0] && q->what[0] && q->action[0]);
        assert_true(!strcmp(q->range, "all") == !q->versions);
    }
    assert_null(cld_quirk_at(n));
}

/* It has IL as far as it says, and would take a module by it. */
static void test_bad_il(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_device_info device = cpu;
    const struct cld_kernel_spec fill = {"fill.cl", "fill", "-DT=f32 ", 1};
    const struct cld_queue_options options = {.name = "test",
                                              .programs = {.source = CLD_PROGRAM_SPIRV}};
    struct cld_queue *q = NULL;
    struct cld_kernel *k = NULL;
    snprintf(device.il_version, sizeof device.il_version, "SPIR-V_1.2");
    device.quirks &= ~(unsigned)CLD_QUIRK_BAD_IL;
    assert_string_equal(cld_module_route(&device), "IL");
    device.quirks |= CLD_QUIRK_BAD_IL;
    assert_null(cld_module_route(&device));
    assert_non_null(strstr(cld_module_lacks(&device), "bad-il"));
    assert_int_equal(cld_queue_open(&device, &options, &q, &err), CLD_OK);
    assert_int_equal(cld_kernel_get(q, &fill, &k, &err), CLD_E_DEVICE);
    assert_non_null(strstr(err.what, "bad-il"));
    assert_non_null(strstr(err.hint, "runtime.program = source"));
    cld_queue_close(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_bad_il),
    };
    return cmocka_run_group_tests(tests, find_cpu, close_devices);
}
