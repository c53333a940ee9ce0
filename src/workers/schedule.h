/* schedule.h - the learning rate of a step. Pure, any thread. */
#ifndef CLD_WORKERS_SCHEDULE_H
#define CLD_WORKERS_SCHEDULE_H

#include "config/config.h"

/* Learning rate of step s (from 0) of a run:
 *     peak * min((s + 1) / max(1, floor(warmup * steps)), decay(t))
 * where t = (s - warmup * steps) / (steps - warmup * steps), at least 0, and decay goes from 1 to
 * min_lr_ratio: half a cosine, a line, a line over the last wsd_decay of the steps, or not at
 * all. */
double cld_learning_rate(const struct cld_config *c, size_t step);

#endif
