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

static enum cld_check_mode check_mode(const struct cld_args *a)
{
    const char *mode = cld_args_value(a, "mode");
    return !mode || !strcmp(mode, "check")  ? CLD_CHECK_ALL
           : !strcmp(mode, "grad") ? CLD_CHECK_GRAD
                                   : CLD_CHECK_SUPPORT;
}

/* Each operation with the bounds that its cases may use. */
static void list_operations(void)
{
    for (const struct cld_check_op *o = cld_check_ops; o->name; o++) {
        printf("%s%s\n", o->name, o->gradients ? " (mode grad)" : "");
        for (int b = 0; b < CLD_N_BOUNDS; b++) {
            const struct cld_check_bound_info *info = &cld_check_bounds[b];
            if (o->bounds >> b & 1)
                printf("    %-26s  nmse <= %-7.2g  max <= %-7.2g  %s\n", info->name,
                       info->rel * info->rel, 8 * info->rel, info->why);
        }
    }
}

/* Work-items of the CPU family stand alone: on a GPU they take minutes. */
static enum cld_family families(const struct cld_args *a, const struct cld_device_info *device)
{
    if (!cld_args_value(a, "family") && device->class == CLD_CLASS_GPU)
        return CLD_FAMILY_GPU;
    return cld_cmd_family(a);
}

enum cld_status cld_cmd_check_kernels(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_devices *devices = NULL;
    struct cld_device_info device;
    const char *precision = cld_args_value(a, "precision"), *seed = cld_args_value(a, "seed");
    struct cld_check_options options = {
        .op = cld_args_value(a, "op"),
        .only = cld_args_value(a, "case"),
        .mode = check_mode(a),
        .device = cld_args_value(a, "device"),
        .seed = seed ? strtoull(seed, NULL, 10) : 1,
        .out = stdout,
        .keep_going = true,
        .programs = {.source = program_source(a), .modules = cld_args_value(a, "modules")},
    };
    size_t n_passed = 0, n_failed = 0;
    if (cld_args_flag(a, "list")) {
        list_operations();
        return CLD_OK;
    }
    options.skip[CLD_F32] = precision && !strcmp(precision, "bf16");
    options.skip[CLD_BF16] = precision && !strcmp(precision, "fp32");
    if ((s = cld_devices_open(&devices, err)) ||
        (s = cld_devices_pick(devices, options.device, &device, err)))
        goto done;
    options.family = families(a, &device);
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
    else if (!n_passed && options.only)
        s = cld_fail(err, CLD_E_USAGE, "case names are those that are printed",
                     "no case has the name '%s'", options.only);
done:
    cld_devices_close(devices);
    return s;
}
