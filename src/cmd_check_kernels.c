/* cmd_check_kernels.c - `cldraft check-kernels`: every kernel of both families against references
 * in double, on one device. */
#include "cmd_common.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "log.h"

static enum cld_program_source program_source(const struct cld_args *a)
{
    const char *from = cld_args_value(a, "program");
    if (!from || !strcmp(from, "source"))
        return CLD_PROGRAM_SOURCE;
    return strcmp(from, "spirv") ? CLD_PROGRAM_AUTO : CLD_PROGRAM_SPIRV;
}

enum cld_status cld_cmd_check_kernels(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_devices *devices = NULL;
    struct cld_device_info device;
    const char *precision = cld_args_value(a, "precision"), *seed = cld_args_value(a, "seed");
    struct cld_check_options options = {
        .op = cld_args_value(a, "op"),
        .device = cld_args_value(a, "device"),
        .seed = seed ? strtoull(seed, NULL, 10) : 1,
        .out = stdout,
        .family = cld_cmd_family(a),
        .programs = {.source = program_source(a), .modules = cld_args_value(a, "modules")},
    };
    size_t n_passed = 0, n_failed = 0;
    if (cld_args_flag(a, "list")) {
        for (const struct cld_check_op *o = cld_check_ops; o->name; o++)
            printf("%s\n", o->name);
        return CLD_OK;
    }
    options.skip[CLD_F32] = precision && !strcmp(precision, "bf16");
    options.skip[CLD_BF16] = precision && !strcmp(precision, "fp32");
    if ((s = cld_devices_open(&devices, err)) ||
        (s = cld_devices_pick(devices, options.device, &device, err)))
        goto done;
    bool modules = options.programs.source == CLD_PROGRAM_SPIRV && cld_module_route(&device);
    cld_info("checking kernels on device %zu, %s (%s), seed %" PRIu64 ", from %s%s", device.index,
             device.name, device.platform, options.seed, modules ? "SPIR-V modules as " : "source",
             modules ? cld_module_route(&device) : "");
    if ((s = cld_check_device(&device, &options, &n_passed, &n_failed, err)))
        goto done;
    printf("%zu passed, %zu failed\n", n_passed, n_failed);
    if (n_failed)
        s = cld_fail(err, CLD_E_CHECK, "the line below each failure repeats it",
                     "%zu of %zu kernel checks failed on %s", n_failed, n_passed + n_failed,
                     device.name);
done:
    cld_devices_close(devices);
    return s;
}
