/* cmd_common.h - what several subcommands do the same way. Main thread only. */
#ifndef CLD_CLI_CMD_COMMON_H
#define CLD_CLI_CMD_COMMON_H

#include "base/dtype.h"
#include "cli/cmd.h"
#include "opencl/device.h"
#include "opencl/queue.h"
#include "ops/attention_backend.h"

/* Takes the device of --device (or the default) and says on stderr which; the list is closed by the
 * caller whatever the result was. */
enum cld_status cld_cmd_find_device(const struct cld_args *a, struct cld_devices **devices,
                                    struct cld_device_info *device, struct cld_error *err);
/* --precision as storage (default F32), --attention (default sparse); the values were checked when
 * the command line was parsed. */
enum cld_dtype cld_cmd_precision(const struct cld_args *a);
enum cld_attention_backend cld_cmd_attention(const struct cld_args *a);
/* --kernels; AUTO if it was not given, or is both. */
enum cld_kernel_family cld_cmd_kernel_family(const struct cld_args *a);

/* Runs `check` on every positional argument, on the device of --device, and closes with "N passed,
 * M failed": CLD_E_CHECK if any failed. A case that cannot be run counts as failed and is printed;
 * the first such reason decides how the command ends. */
typedef enum cld_status cld_cmd_check_fn(const char *path, const struct cld_device_info *device,
                                         const struct cld_args *a, bool *failed,
                                         struct cld_error *err);
enum cld_status cld_cmd_check_each(const struct cld_args *a, cld_cmd_check_fn *check,
                                   struct cld_error *err);

/* ||a - b|| / ||b|| over n floats in double; 0/0 is 0, x/0 and anything not finite is infinity. */
double cld_relative_error(const float *a, const float *b, size_t n);

#endif
