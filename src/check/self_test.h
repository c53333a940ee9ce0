/* self_test.h - kernels that a run brings along are checked before it uses them: modules of the
 * user's (overrides.h) and kernels with tuned parameters.
 * Thread: a worker's, or the main thread. */
#ifndef CLD_CHECK_SELF_TEST_H
#define CLD_CHECK_SELF_TEST_H

#include "check/check.h"
#include "config/config.h"

/* Runs checks (check.h) on queues of their own, in the storage of the run and with the kernel
 * family of `device`; `options` says which and with what. `what` names what is tested in messages.
 * CLD_E_CHECK with `hint`: a case failed. */
enum cld_status cld_self_test(const char *what, const struct cld_config *cfg,
                              const struct cld_device_info *device,
                              const struct cld_check_options *options, const char *hint,
                              struct cld_error *err);

/* The rows that runtime.tuning and runtime.cache_dir give this device. CLD_E_INPUT. */
enum cld_status cld_tuning_of(const struct cld_config *cfg, const struct cld_device_info *device,
                              struct cld_tuning *out, struct cld_error *err);

/* Says in the log which rows the queue's kernels have, and tests each family that has one which is
 * not the default. `device` is what the queue was opened with: of a part, the whole. CLD_E_CHECK.
 * With `list` nothing is said or tested, and what the tests need is noted there. */
enum cld_status cld_tuning_check(const struct cld_queue *q, const struct cld_config *cfg,
                                 const struct cld_device_info *device, struct cld_variants *list,
                                 struct cld_error *err);

/* The check of a family: quick, on a few awkward shapes; or whole, all that check-kernels has for
 * its operation. A table of one row, as cld_check_options takes it. */
void cld_tuned_check(enum cld_tuned family, bool whole, struct cld_check_op out[2]);

#endif
