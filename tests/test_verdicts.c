/* Verdicts of probes: what is stored is found again for this device, driver and kernels alone, and
 * a queue that only plans does no work on a device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "ops/op_gemm.h"
#include "ops/verdicts.h"
#include "temp_dir.h"
#include "test_device.h"

/* The CPU device as NVIDIA's driver would describe one of its own. */
static struct cld_device_info pretended(const char *driver)
{
    struct cld_device_info d = cpu;
    d.class = CLD_CLASS_GPU;
    snprintf(d.platform, sizeof d.platform, "NVIDIA CUDA");
    snprintf(d.driver, sizeof d.driver, "%s", driver);
    return d;
}

static const struct cld_verdicts only_sm80 = {.is = {CLD_PROBE_WORKS, CLD_PROBE_WRONG},
                                              .why = {"", "element [0, 1] is 2, not 3"}};

static void test_known(void **state)
{
    struct cld_device_info d = pretended("1"), other = pretended("2");
    struct cld_verdicts v;
    (void)state;
    assert_false(cld_verdicts_read(&d, NULL, &v));
    cld_verdicts_write(&d, NULL, &only_sm80);
    assert_true(cld_verdicts_read(&d, NULL, &v));
    assert_memory_equal(&v, &only_sm80, sizeof v);
    assert_int_equal(cld_verdicts_bits(&v), cld_instruction_set_bit(CLD_PROBE_SM80));
    assert_false(cld_verdicts_read(&other, NULL, &v));
    snprintf(other.driver, sizeof other.driver, "1");
    snprintf(other.name, sizeof other.name, "another card");
    assert_false(cld_verdicts_read(&other, NULL, &v));
    assert_true(cld_verdicts_read(&cpu, NULL, &v)); /* not NVIDIA's: nothing to find */
    assert_int_equal(cld_verdicts_bits(&v), 0);
}

/* Probes of a driver without PTX are refused: they run once, and are not run again by the next
 * queue. */
static void test_open(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_device_info d = pretended("3");
    struct cld_queue *q = NULL;
    struct cld_verdicts v;
    (void)state;
    assert_int_equal(cld_queue_open_probed(&d, &(struct cld_queue_options){.name = "a"}, &q, &err),
                     CLD_OK);
    assert_false(cld_probe_usable(q, CLD_PROBE_SM80) || cld_probe_usable(q, CLD_PROBE_SM90A));
    cld_queue_close(q);
    assert_true(cld_verdicts_read(&d, NULL, &v));
    assert_int_equal(v.is[CLD_PROBE_SM90A], CLD_PROBE_REFUSED);
    assert_true(v.why[CLD_PROBE_SM90A][0]);
    v.is[CLD_PROBE_SM80] = CLD_PROBE_WORKS; /* as if: what is known is believed */
    cld_verdicts_write(&d, NULL, &v);
    assert_int_equal(cld_queue_open_probed(&d, &(struct cld_queue_options){.name = "b"}, &q, &err),
                     CLD_OK);
    assert_true(cld_probe_usable(q, CLD_PROBE_SM80));
    assert_false(cld_probe_usable(q, CLD_PROBE_SM90A));
    assert_int_equal(cld_queue_counts(q).n_builds, 0);
    cld_queue_close(q);
}

/* What another process stored is read from its file; memory that was short is not stored. */
static void test_stored(void **state)
{
    const char *dir = *state;
    struct cld_device_info d = pretended("4"), other = pretended("5");
    struct cld_verdicts v;
    int status = -1;
    pid_t child = fork();
    if (!child) {
        struct cld_verdicts transient = only_sm80;
        transient.transient = true;
        cld_verdicts_write(&d, dir, &only_sm80);
        cld_verdicts_write(&other, dir, &transient);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_false(cld_verdicts_read(&d, NULL, &v)); /* it is this process's first look */
    assert_true(cld_verdicts_read(&d, dir, &v));
    assert_memory_equal(&v, &only_sm80, sizeof v);
    assert_false(cld_verdicts_read(&other, dir, &v));
}

/* Choosing a kernel reads bits; asking for a kernel or a buffer is an error. */
static void test_plans_only(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_device_info d = pretended("6");
    const struct cld_queue_options options = {.name = "plan",
                                              .plans_only = true,
                                              .instruction_sets =
                                                  cld_instruction_set_bit(CLD_PROBE_SM90A)};
    const struct cld_kernel_spec spec = {"add.cl", "add", "", 1};
    struct cld_queue *q = NULL;
    struct cld_kernel *k = NULL;
    struct cld_buf *b = NULL;
    (void)state;
    assert_int_equal(cld_queue_open(&d, &options, &q, &err), CLD_OK);
    assert_non_null(strstr(cld_gemm_backend_name(q, CLD_GEMM_AUTO), "sm90a"));
    assert_int_equal(cld_buf_create(q, "b", 64, &b, &err), CLD_E_INTERNAL);
    assert_non_null(strstr(err.what, "by a plan"));
    assert_int_equal(cld_kernel_get(q, &spec, &k, &err), CLD_E_INTERNAL);
    assert_non_null(strstr(err.what, "by a plan"));
    assert_int_equal(cld_queue_counts(q).n_builds + cld_queue_counts(q).n_buffers, 0);
    cld_queue_close(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_open),
        cmocka_unit_test_setup_teardown(test_stored, make_temp_dir, remove_temp_dir),
        cmocka_unit_test(test_plans_only),
    };
    return cmocka_run_group_tests(tests, find_cpu, close_devices);
}
