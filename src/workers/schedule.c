#include "workers/schedule.h"

#include <math.h>

double cld_learning_rate(const struct cld_config *c, size_t step)
{
    double steps = (double)c->train.steps, s = (double)step, low = c->train.min_lr_ratio;
    double warm_steps = fmax(1, floor(c->train.warmup * steps));
    double after = c->train.warmup * steps;
    double t = steps > after ? fmin(1, fmax(0, s - after) / (steps - after)) : 0;
    double share = 1; /* of the way from min_lr_ratio to 1 */
    switch (c->train.schedule) {
    case CLD_SCHEDULE_COSINE:
        share = 0.5 + 0.5 * cos(M_PI * t);
        break;
    case CLD_SCHEDULE_LINEAR:
        share = 1 - t;
        break;
    case CLD_SCHEDULE_WSD: {
        double fall = fmax(1, c->train.wsd_decay * steps);
        share = fmin(1, (steps - s) / fall);
        break;
    }
    case CLD_SCHEDULE_CONSTANT:
        break;
    }
    return c->train.learning_rate * fmin((s + 1) / warm_steps, low + (1 - low) * share);
}
