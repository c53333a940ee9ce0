/* The OpenCL layer on the first CPU device: ledger, budget, seal, views, builds, ownership. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "opencl/queue.h"
#include "opencl/transfer.h"
#include "test_device.h"

static struct cld_queue *open_with_budget(size_t budget_bytes)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_queue *q = NULL;
    struct cld_queue_options options = {.name = "test", .budget_bytes = budget_bytes};
    if (cld_queue_open(&cpu, &options, &q, &err))
        fail_msg("%s", err.what);
    return q;
}

static void ledger_counts_and_refuses(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_queue *q = open_with_budget(10000);
    struct cld_buf *a = NULL, *b = NULL;
    assert_int_equal(cld_buf_create(q, "first", 6000, &a, &err), CLD_OK);
    assert_int_equal(cld_queue_held_bytes(q), 6000);
    assert_int_equal(cld_buf_create(q, "second", 4004, &b, &err), CLD_E_MEMORY); /* 4 too many */
    assert_non_null(strstr(err.what, "second"));
    assert_int_equal(cld_queue_held_bytes(q), 6000);
    assert_int_equal(cld_buf_create(q, "second", 4000, &b, &err), CLD_OK);
    cld_buf_free(a);
    assert_int_equal(cld_queue_held_bytes(q), 4000);
    assert_int_equal(cld_queue_peak_bytes(q), 10000);
    cld_queue_close(q);
}

static void new_buffers_are_zero_and_bounds_are_kept(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_queue *q = open_with_budget(0);
    struct cld_buf *b = NULL, *view = NULL;
    unsigned char got[64], ones[64];
    memset(ones, 1, sizeof ones);
    memset(got, 7, sizeof got);
    size_t align = cld_buf_align(q);
    assert_int_equal(cld_buf_create(q, "b", align + 64, &b, &err), CLD_OK);
    assert_int_equal(cld_buf_read(b, align, got, 64, &err), CLD_OK);
    for (size_t i = 0; i < sizeof got; i++)
        assert_int_equal(got[i], 0);
    assert_int_equal(cld_buf_view(b, "tail", align, 64, &view, &err), CLD_OK);
    assert_int_equal(cld_buf_write(view, 0, ones, 64, &err), CLD_OK);
    assert_int_equal(cld_buf_read(b, align, got, 64, &err), CLD_OK);
    assert_memory_equal(got, ones, 64);
    assert_int_equal(cld_buf_write(b, align + 1, ones, 64, &err), CLD_E_INTERNAL);
    assert_int_equal(cld_buf_read(b, SIZE_MAX, got, 64, &err), CLD_E_INTERNAL);
    assert_int_equal(cld_buf_view(b, "bad", align, 65, &view, &err), CLD_E_INTERNAL);
    assert_int_equal(cld_buf_view(b, "bad", 4, 8, &view, &err), CLD_E_INTERNAL);
    cld_queue_close(q);
}

static void sealed_queue_refuses_what_the_warm_up_left_out(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_queue *q = open_with_budget(0);
    struct cld_kernel *k = NULL, *again = NULL;
    struct cld_buf *b = NULL;
    struct cld_kernel_spec spec = {"fill.cl", "fill", "-DT=f32", 1};
    struct cld_kernel_spec other = {"fill.cl", "fill", "-DT=bf16", 1};
    if (cld_kernel_get(q, &spec, &k, &err))
        fail_msg("%s", err.what);
    assert_int_equal(cld_queue_counts(q).n_builds, 1);
    cld_queue_seal(q);
    assert_int_equal(cld_kernel_get(q, &spec, &again, &err), CLD_OK);
    assert_ptr_equal(k, again);
    assert_int_equal(cld_kernel_get(q, &other, &again, &err), CLD_E_DEVICE);
    assert_non_null(strstr(err.what, "-DT=bf16"));
    assert_int_equal(cld_buf_create(q, "late", 4, &b, &err), CLD_E_INTERNAL);
    assert_non_null(strstr(err.what, "late"));
    assert_int_equal(cld_queue_counts(q).n_builds, 1);
    assert_int_equal(cld_queue_counts(q).n_buffers, 0);
    cld_queue_close(q);
}

static void broken_builds_and_names_are_errors(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_queue *q = open_with_budget(0);
    struct cld_kernel *k = NULL;
    struct cld_kernel_spec no_file = {"nothing.cl", "x", "", 1};
    struct cld_kernel_spec no_kernel = {"fill.cl", "nothing", "-DT=f32", 1};
    struct cld_kernel_spec no_build = {"fill.cl", "fill", "-DT=nonsense", 1};
    assert_int_equal(cld_kernel_get(q, &no_file, &k, &err), CLD_E_INTERNAL);
    assert_int_equal(cld_kernel_get(q, &no_kernel, &k, &err), CLD_E_DEVICE);
    assert_int_equal(cld_kernel_get(q, &no_build, &k, &err), CLD_E_DEVICE);
    assert_non_null(strstr(err.what, "CL_BUILD_PROGRAM_FAILURE"));
    cld_queue_close(q);
}

/* Each side waits for the other one: kernels (fills and copies stand for them) make what is copied
 * out, and use what is copied in. */
static void copies_beside_kernels_wait_for_events(void **state)
{
    (void)state;
    enum { N_ROUNDS = 50, N = 1 << 14 };
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_queue *q = open_with_budget(0);
    struct cld_buf *a = NULL, *b = NULL, *c = NULL, *pinned = NULL;
    struct cld_event made = {0}, out = {0}, in = {0};
    void *memory = NULL;
    uint32_t got = 0;
    assert_int_equal(cld_buf_create(q, "a", N, &a, &err), CLD_OK);
    assert_int_equal(cld_buf_create(q, "b", N, &b, &err), CLD_OK);
    assert_int_equal(cld_buf_create(q, "c", N, &c, &err), CLD_OK);
    assert_int_equal(cld_buf_pinned(q, "pinned", 2 * N, &pinned, &memory, &err), CLD_OK);
    uint32_t *host = memory;
    cld_queue_seal(q); /* a run does this after the warm-up, too */
    for (uint32_t i = 1; i <= N_ROUNDS; i++) {
        assert_int_equal(cld_buf_fill(a, 0, N, i, &err), CLD_OK);
        assert_int_equal(cld_event_after_kernels(q, &made, &err), CLD_OK);
        assert_int_equal(cld_transfer_read(a, 4, host + 1, N - 4, &made, &out, &err), CLD_OK);
        assert_int_equal(cld_event_wait(&out, &err), CLD_OK);
        assert_int_equal(host[1], i);
        assert_int_equal(host[N / 4 - 1], i);
        host[N / 4] = i + 1000;
        assert_int_equal(cld_transfer_write(b, N - 4, host + N / 4, 4, &out, &in, &err), CLD_OK);
        assert_int_equal(cld_kernels_after(q, &in, &err), CLD_OK);
        assert_int_equal(cld_buf_copy(b, N - 4, c, 0, 4, &err), CLD_OK);
        assert_int_equal(cld_buf_read(c, 0, &got, 4, &err), CLD_OK);
        assert_int_equal(got, i + 1000);
    }
    assert_int_equal(host[0], 0); /* nothing touched it */
    assert_int_equal(cld_transfer_read(a, 4, host, N, NULL, &out, &err), CLD_E_INTERNAL);
    assert_int_equal(cld_transfer_write(a, SIZE_MAX, host, 4, NULL, &in, &err), CLD_E_INTERNAL);
    cld_event_release(&made);
    cld_event_release(&out);
    cld_event_release(&in);
    assert_int_equal(cld_event_wait(&in, &err), CLD_OK); /* nothing to wait for */
    cld_queue_close(q);
}

static void devices_are_chosen_by_number_name_and_part(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_device_info d;
    assert_int_equal(cld_devices_find(devices, "0", &d, &err), CLD_OK);
    assert_int_equal(d.index, 0);
    assert_int_equal(cld_devices_find(devices, "portable computing", &d, &err), CLD_OK);
    assert_int_equal(cld_devices_find(devices, "99", &d, &err), CLD_E_DEVICE);
    assert_int_equal(cld_devices_find(devices, "0x", &d, &err), CLD_E_DEVICE);
    assert_int_equal(cld_devices_find(devices, "no such device", &d, &err), CLD_E_DEVICE);
    assert_non_null(strstr(err.what, "no such device"));
    assert_int_equal(cld_devices_find(devices, "cpu:2/2", &d, &err), CLD_E_DEVICE);
    assert_int_equal(cld_devices_find(devices, "cpu:0/100000", &d, &err), CLD_E_DEVICE);
    assert_int_equal(cld_devices_find(devices, "cpu:0/1", &d, &err), CLD_OK);
    if (cpu.n_compute_units < 2)
        return;
    assert_int_equal(cld_devices_find(devices, "cpu:1/2", &d, &err), CLD_OK);
    struct cld_queue_options options = {.name = "half"};
    struct cld_queue *q = NULL;
    assert_int_equal(cld_queue_open(&d, &options, &q, &err), CLD_OK);
    assert_int_equal(cld_queue_device(q)->n_compute_units, cpu.n_compute_units / 2);
    cld_queue_close(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ledger_counts_and_refuses),
        cmocka_unit_test(new_buffers_are_zero_and_bounds_are_kept),
        cmocka_unit_test(sealed_queue_refuses_what_the_warm_up_left_out),
        cmocka_unit_test(broken_builds_and_names_are_errors),
        cmocka_unit_test(copies_beside_kernels_wait_for_events),
        cmocka_unit_test(devices_are_chosen_by_number_name_and_part),
    };
    return cmocka_run_group_tests(tests, find_cpu, close_devices);
}
