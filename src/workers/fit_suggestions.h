/* fit_suggestions.h - what to change so that a run fits: each setting tried alone, by planning
 * again. */
#ifndef CLD_WORKERS_FIT_SUGGESTIONS_H
#define CLD_WORKERS_FIT_SUGGESTIONS_H

#include <stdio.h>

#include "workers/worker_set.h"

/* Writes one line for each single change of the configuration with which every worker fits (sparse
 * attention, recompute, a smaller loss chunk, micro-batch or number of anchors, more drafters that
 * share the optimizer's state), or a line that none does. Nothing is allocated on a device. */
enum cld_status cld_fit_suggestions(const struct cld_config *cfg, const struct cld_setup *setup,
                                    struct cld_worker_set *set, FILE *to, struct cld_error *err);

#endif
