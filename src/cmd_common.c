#include "cmd_common.h"

#include <math.h>
#include <string.h>

#include "log.h"

enum cld_status cld_cmd_pick_device(const struct cld_args *a, struct cld_devices **devices,
                                    struct cld_device_info *picked, struct cld_error *err)
{
    enum cld_status s = cld_devices_open(devices, err);
    if (s || (s = cld_devices_pick(*devices, cld_args_value(a, "device"), picked, err)))
        return s;
    cld_info("device %zu: %s (%s, driver %s)", picked->index, picked->name, picked->platform,
             picked->driver);
    return CLD_OK;
}

enum cld_dtype cld_cmd_precision(const struct cld_args *a)
{
    const char *name = cld_args_value(a, "precision");
    return name && !strcmp(name, "bf16") ? CLD_BF16 : CLD_F32;
}

enum cld_attention_backend cld_cmd_attention(const struct cld_args *a)
{
    const char *name = cld_args_value(a, "attention");
    return name && !strcmp(name, "dense") ? CLD_ATTENTION_DENSE : CLD_ATTENTION_SPARSE;
}

enum cld_status cld_cmd_verdict(size_t n_passed, size_t n_failed, struct cld_error *err)
{
    printf("%zu passed, %zu failed\n", n_passed, n_failed);
    return n_failed ? cld_fail(err, CLD_E_CHECK, "", "%zu of %zu checks failed", n_failed,
                               n_passed + n_failed)
                    : CLD_OK;
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
