/* overrides.h - SPIR-V modules of the user's in place of an operation's kernels
 * (runtime.override.*). None is used before it has passed the checks of its operation. */
#ifndef CLD_CHECK_OVERRIDES_H
#define CLD_CHECK_OVERRIDES_H

#include "config/config.h"
#include "opencl/queue.h"

enum { CLD_MAX_OVERRIDES = 9 };

struct cld_overrides {
    struct cld_override at[CLD_MAX_OVERRIDES]; /* paths are the configuration's */
    const char *operation[CLD_MAX_OVERRIDES];  /* "rmsnorm" */
    size_t n;
};

/* Those that the configuration names, and what a queue is to build from. Any thread. */
void cld_overrides_of(const struct cld_config *cfg, struct cld_overrides *out);
struct cld_program_options cld_overrides_programs(const struct cld_config *cfg,
                                                  const struct cld_overrides *o);

/* Runs the checks of every overridden operation with its module (check.h), on a queue of its own,
 * in the storage of the run and with the kernel family of `device`. CLD_E_CHECK: a case failed.
 * Thread: a worker's, or the main thread. */
enum cld_status cld_overrides_check(const struct cld_overrides *o, const struct cld_config *cfg,
                                    const struct cld_device_info *device, struct cld_error *err);

#endif
