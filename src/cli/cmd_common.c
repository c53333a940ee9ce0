#include "cli/cmd_common.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

enum cld_status cld_cmd_find_device(const struct cld_args *a, struct cld_devices **devices,
                                    struct cld_device_info *device, struct cld_error *err)
{
    enum cld_status s = cld_devices_open(devices, err);
    if (s || (s = cld_devices_find(*devices, cld_args_value(a, "device"), device, err)))
        return s;
    cld_info("device %zu: %s (%s, driver %s)", device->index, device->name, device->platform,
             device->driver);
    return CLD_OK;
}

enum cld_dtype cld_cmd_precision(const struct cld_args *a)
{
    const char *name = cld_args_value(a, "precision");
    return name && !strcmp(name, "bf16") ? CLD_BF16 : CLD_F32;
}

enum cld_kernel_family cld_cmd_kernel_family(const struct cld_args *a)
{
    const char *family = cld_args_value(a, "kernels");
    if (!family || !strcmp(family, "both"))
        return CLD_KERNEL_FAMILY_AUTO;
    return strcmp(family, "cpu") ? CLD_KERNEL_FAMILY_GPU : CLD_KERNEL_FAMILY_CPU;
}

enum cld_attention_backend cld_cmd_attention(const struct cld_args *a)
{
    const char *name = cld_args_value(a, "attention");
    return name && !strcmp(name, "dense") ? CLD_ATTENTION_DENSE : CLD_ATTENTION_SPARSE;
}

static enum cld_status verdict(size_t n_passed, size_t n_failed, struct cld_error *err)
{
    printf("%zu passed, %zu failed\n", n_passed, n_failed);
    return n_failed
               ? cld_fail(err, CLD_E_CHECK, "the lines that begin with FAIL name the failed checks",
                          "%zu of %zu checks failed", n_failed, n_passed + n_failed)
               : CLD_OK;
}

enum cld_status cld_cmd_check_each(const struct cld_args *a, cld_cmd_check_fn *check,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_devices *devices = NULL;
    struct cld_device_info device;
    size_t n_passed = 0, n_failed = 0;
    struct cld_error first = CLD_ERROR_INIT;
    if ((s = cld_cmd_find_device(a, &devices, &device, err)))
        goto done;
    for (size_t i = 0; i < cld_args_n(a); i++) {
        struct cld_error refused = CLD_ERROR_INIT;
        bool failed = false;
        if (check(cld_args_at(a, i), &device, a, &failed, &refused)) {
            printf("FAIL  %s: %s\n", cld_args_at(a, i), refused.what);
            failed = true;
            if (!first.status)
                first = refused;
        }
        n_failed += failed;
        n_passed += !failed;
    }
    if ((s = verdict(n_passed, n_failed, err)) && first.status) {
        *err = first;
        s = first.status;
    }
done:
    cld_devices_close(devices);
    return s;
}

double cld_relative_error(const float *a, const float *b, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        diff += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    if (diff == 0)
        return 0;
    double r = sqrt(diff / norm);
    return isfinite(r) ? r : INFINITY;
}
