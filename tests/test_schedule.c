#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "workers/schedule.h"

static struct cld_config config(enum cld_schedule schedule, size_t steps, double warmup)
{
    struct cld_config c;
    memset(&c, 0, sizeof c);
    c.train.schedule = schedule;
    c.train.steps = steps;
    c.train.warmup = warmup;
    c.train.learning_rate = 2e-3;
    c.train.wsd_decay = 0.2;
    return c;
}

static void assert_near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-15 + 1e-12 * fabs(b)))
        fail_msg("%.17g is not %.17g", a, b);
}

static void cosine_as_the_reference_has_it(void **state)
{
    (void)state;
    struct cld_config c = config(CLD_SCHEDULE_COSINE, 300, 0.04);
    for (size_t s = 0; s < 300; s++) {
        double t = fmax(0, (double)s - 12) / 288;
        assert_near(cld_learning_rate(&c, s),
                    2e-3 * fmin(((double)s + 1) / 12, 0.5 + 0.5 * cos(M_PI * t)));
    }
    c.train.min_lr_ratio = 0.1;
    assert_near(cld_learning_rate(&c, 156), 2e-3 * (0.1 + 0.9 * 0.5)); /* half way */
}

static void no_warm_up_starts_at_the_peak(void **state)
{
    (void)state;
    struct cld_config c = config(CLD_SCHEDULE_CONSTANT, 10, 0);
    assert_near(cld_learning_rate(&c, 0), 2e-3);
    assert_near(cld_learning_rate(&c, 9), 2e-3);
    c = config(CLD_SCHEDULE_CONSTANT, 10, 1); /* nothing but warm-up */
    assert_near(cld_learning_rate(&c, 4), 1e-3);
    assert_near(cld_learning_rate(&c, 9), 2e-3);
}

static void linear_and_wsd_go_down(void **state)
{
    (void)state;
    struct cld_config c = config(CLD_SCHEDULE_LINEAR, 100, 0);
    assert_near(cld_learning_rate(&c, 50), 1e-3);
    c = config(CLD_SCHEDULE_WSD, 100, 0);
    assert_near(cld_learning_rate(&c, 79), 2e-3);
    assert_near(cld_learning_rate(&c, 90), 1e-3);
    c.train.min_lr_ratio = 0.5;
    assert_near(cld_learning_rate(&c, 90), 1.5e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cosine_as_the_reference_has_it),
        cmocka_unit_test(no_warm_up_starts_at_the_peak),
        cmocka_unit_test(linear_and_wsd_go_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
