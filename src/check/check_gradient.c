#include "check/check_ops.h"

#include <math.h>
#include <stdlib.h>

#include "base/random.h"

enum cld_status cld_check_gradient(struct cld_check *c, const char *what,
                                   double (*f)(const double *x, const void *arg), const void *arg,
                                   const double *x, size_t n, const double *gradient,
                                   struct cld_error *err)
{
    if (c->skip || c->mode == CLD_CHECK_PERF || cld_queue_lists(c->q))
        return CLD_OK;
    double *moved = malloc((n + 1) * sizeof *moved), *along = malloc((n + 1) * sizeof *along);
    enum cld_status s = CLD_OK;
    if (!moved || !along) {
        s = cld_fail_memory(err, "differences in %zu directions", n);
        goto done;
    }
    c->n_gradients++;
    for (uint64_t d = 0; d < (c->mode == CLD_CHECK_GRAD ? 8 : 2); d++) {
        double x2 = 0, g2 = 0, u2 = 0, inner = 0, value[2];
        for (size_t i = 0; i < n; i++) {
            along[i] =
                cld_random_normal(cld_random_u64(c->seed, CLD_RANDOM_TEST, 0x64697265, d, i));
            inner += along[i] * gradient[i];
            x2 += x[i] * x[i];
            g2 += gradient[i] * gradient[i];
            u2 += along[i] * along[i];
        }
        /* A step of 1e-5 of x's own size leaves some 1e-10 of error of either kind. */
        double step = n ? 1e-5 * (sqrt(x2 / (double)n) + 1e-12) : 0;
        for (int side = 0; side < 2; side++) {
            for (size_t i = 0; i < n; i++)
                moved[i] = x[i] + (side ? step : -step) * along[i];
            value[side] = f(moved, arg);
        }
        double difference = n ? (value[1] - value[0]) / (2 * step) : 0;
        /* What cancels in f's own sum limits the accuracy as well as the gradient's size. */
        double noise = n ? 1e-14 * (fabs(value[0]) + fabs(value[1])) / step : 0;
        if (!(fabs(difference - inner) <= 1e-5 * sqrt(g2 * u2) + noise))
            cld_check_fail(c,
                           "reference gradient of %s: %.9g along a direction, differences say %.9g",
                           what, inner, difference);
    }
done:
    free(moved);
    free(along);
    return s;
}
