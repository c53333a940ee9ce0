/* Each law of the design is broken once, and seen. A kernel that the warm-up left out and a buffer
 * after the barrier are in test_queue.c; a plan that is over its budget in a whole run, and dense
 * attention, in test_plan.sh. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "small_drafter.h"

#ifdef CLD_DEBUG
static void *touch(void *q)
{
    struct cld_error err;
    cld_log_thread_name("the thief");
    cld_queue_flush(q, &err);
    return NULL;
}
#endif

static void a_second_thread_at_a_queue_aborts_in_debug_builds(void **state)
{
    (void)state;
#ifdef CLD_DEBUG
    struct small *r = open_small(&small_config, CLD_F32);
    int said[2], how = 0;
    char text[512] = "";
    assert_int_equal(pipe(said), 0);
    pid_t child = fork();
    if (!child) {
        pthread_t other;
        dup2(said[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        pthread_create(&other, NULL, touch, r->q);
        pthread_join(other, NULL);
        _exit(0);
    }
    close(said[1]);
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(read(said[0], text, sizeof text - 1) > 0);
    close(said[0]);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT);
    assert_non_null(strstr(text, "belongs to thread 'main' but thread 'the thief' touches it"));
    close_small(r);
#else
    skip();
#endif
}

static void tiles_that_are_off_by_one_stop_the_run(void **state)
{
    (void)state;
    static const char *const passes[3] = {"forward", "dQ", "dK/dV"};
    struct small *r = open_small(&small_config, CLD_F32);
    const int32_t one = 1;
    OK(cld_drafter_check_tiles(&r->d, &err));
    for (size_t i = 0; i < 3; i++) {
        r->d.tiles_expected[i] = 1; /* the kernel skipped a tile */
        FAILS(cld_drafter_check_tiles(&r->d, &err), CLD_E_NUMERIC, passes[i]);
        OK(cld_buf_write(r->d.visited.buf, i * sizeof one, &one, sizeof one, &err));
        OK(cld_drafter_check_tiles(&r->d, &err));
        OK(cld_buf_write(r->d.visited.buf, i * sizeof one, &one, sizeof one, &err));
        FAILS(cld_drafter_check_tiles(&r->d, &err), CLD_E_NUMERIC, passes[i]); /* one too many */
        r->d.tiles_expected[i] = 1;
        OK(cld_drafter_check_tiles(&r->d, &err));
    }
    close_small(r);
}

static void a_plan_may_be_no_byte_over(void **state)
{
    (void)state;
    struct cld_plan *plan = cld_plan_new();
    struct cld_buf *a, *b, *slot;
    void *host;
    cld_plan_buffer(plan, &a, 1000, CLD_FOR_TEMPORARY, "first");
    cld_plan_buffer(plan, &b, 3000, CLD_FOR_TEMPORARY, "second");
    OK(cld_plan_check(plan, "test", 4000, 3000, &err));
    FAILS(cld_plan_check(plan, "test", 3999, 3000, &err), CLD_E_MEMORY, "budget");
    FAILS(cld_plan_check(plan, "test", 4000, 2999, &err), CLD_E_MEMORY, "second");
    /* Pinned host memory does not count; on a CPU it is the same memory. */
    cld_plan_pinned(plan, &slot, &host, 5000, false, CLD_FOR_RING, "slot");
    OK(cld_plan_check(plan, "test", 4000, 3000, &err));
    assert_int_equal(cld_plan_pinned_bytes(plan), 5000);
    cld_plan_pinned(plan, &slot, &host, 8, true, CLD_FOR_RING, "slot");
    FAILS(cld_plan_check(plan, "test", 4000, 3000, &err), CLD_E_MEMORY, "budget");
    cld_plan_free(plan);
}

static void pinned_memory_is_in_the_ledger_of_a_cpu(void **state)
{
    (void)state;
    struct small *r = open_small(&small_config, CLD_F32);
    struct cld_buf *pinned = NULL, *device = NULL;
    void *host = NULL;
    float got[4], values[4] = {1, 2, 3, 4};
    size_t held = cld_queue_held_bytes(r->q);
    OK(cld_buf_pinned(r->q, "pinned", 4096, &pinned, &host, &err));
    assert_int_equal(cld_queue_held_bytes(r->q), held + 4096);
    assert_int_equal(((unsigned char *)host)[4095], 0);
    OK(cld_buf_create(r->q, "device", sizeof values, &device, &err));
    memcpy(host, values, sizeof values);
    OK(cld_buf_write(device, 0, host, sizeof values, &err));
    OK(cld_buf_read(device, 0, (char *)host + 64, sizeof values, &err));
    memcpy(got, (char *)host + 64, sizeof got);
    assert_memory_equal(got, values, sizeof got);
    cld_buf_free(pinned);
    cld_buf_free(device);
    assert_int_equal(cld_queue_held_bytes(r->q), held);
    cld_queue_seal(r->q);
    FAILS(cld_buf_pinned(r->q, "late", 64, &pinned, &host, &err), CLD_E_INTERNAL, "late");
    close_small(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_thread_at_a_queue_aborts_in_debug_builds),
        cmocka_unit_test(tiles_that_are_off_by_one_stop_the_run),
        cmocka_unit_test(a_plan_may_be_no_byte_over),
        cmocka_unit_test(pinned_memory_is_in_the_ledger_of_a_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
