#include "check/self_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "check/check_attention.h"
#include "check/check_gemm.h"
#include "check/check_ops.h"
#include "check/overrides.h"
#include "opencl/cache.h"
#include "ops/tuning.h"

enum cld_status cld_self_test(const char *what, const struct cld_config *cfg,
                              const struct cld_device_info *device,
                              const struct cld_check_options *options, const char *hint,
                              struct cld_error *err)
{
    struct cld_check_options o = *options;
    size_t n_passed = 0, n_failed = 0;
    o.seed = 1;
    o.family = device->class == CLD_CLASS_CPU ? CLD_KERNEL_FAMILY_CPU : CLD_KERNEL_FAMILY_GPU;
    o.skip[cfg->runtime.precision == CLD_F32 ? CLD_BF16 : CLD_F32] = true;
    enum cld_status s = cld_check_device(device, &o, &n_passed, &n_failed, err);
    if (s)
        return cld_fail_prefix(err, "%s", what);
    if (o.list)
        return CLD_OK;
    if (n_failed)
        return cld_fail(err, CLD_E_CHECK, hint, "%s fails %zu of %zu checks of the operation", what,
                        n_failed, n_passed + n_failed);
    cld_info("%s passed the %zu checks of the operation", what, n_passed);
    return CLD_OK;
}

void cld_tuned_check(enum cld_tuned family, bool whole, struct cld_check_op out[2])
{
    /* The operation of the table of all checks, and what is run in place of its own. */
    static const struct {
        const char *op;
        enum cld_status (*quick)(struct cld_check *c, struct cld_error *err);
        enum cld_status (*whole)(struct cld_check *c, struct cld_error *err);
    } checks[CLD_N_TUNED] = {
        [CLD_TUNED_GEMM_CPU] = {"gemm", cld_check_gemm_quick, NULL},
        [CLD_TUNED_GEMM_GPU] = {"gemm", cld_check_gemm_quick, NULL},
        [CLD_TUNED_GEMM_SM90A] = {"gemm_tensor", cld_check_gemm_sm90a_quick, cld_check_gemm_sm90a},
        [CLD_TUNED_RMSNORM] = {"rmsnorm", NULL, NULL},
        [CLD_TUNED_QKNORM_ROPE] = {"qknorm_rope", cld_check_qknorm_rope_quick, NULL},
        [CLD_TUNED_SWIGLU] = {"swiglu", NULL, NULL},
        [CLD_TUNED_CROSS_ENTROPY] = {"cross_entropy", NULL, NULL},
        [CLD_TUNED_ATTENTION_CPU] = {"attention", cld_check_attention_quick, NULL},
        [CLD_TUNED_ATTENTION_GPU] = {"attention", cld_check_attention_quick, NULL}};
    const struct cld_check_op *op = cld_check_ops;
    while (strcmp(op->name, checks[family].op))
        op++;
    out[0] = *op;
    out[1] = (struct cld_check_op){.name = NULL};
    if (whole && checks[family].whole)
        out[0].run = checks[family].whole;
    if (!whole && checks[family].quick)
        out[0].run = checks[family].quick;
}

enum cld_status cld_tuning_of(const struct cld_config *cfg, const struct cld_device_info *device,
                              struct cld_tuning *out, struct cld_error *err)
{
    char *dir = NULL;
    enum cld_status s = cld_cache_dir(cfg->runtime.cache_dir, &dir, err);
    if (!s)
        s = cld_tuning_load(cfg->runtime.tuning, dir, device, out, err);
    free(dir);
    return s;
}

enum cld_status cld_tuning_check(const struct cld_queue *q, const struct cld_config *cfg,
                                 const struct cld_device_info *device, struct cld_variants *list,
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_tuning *t = cld_queue_tuning(q);
    struct cld_overrides overrides;
    char text[cld_tuning_text_bytes];
    cld_overrides_of(cfg, &overrides);
    cld_tuning_text(q, text, sizeof text);
    if (!list)
        cld_info("%s: tuned parameters: %s", cld_queue_name(q), text);
    if (!list && t->note[0])
        cld_warn("%s: %s", cld_queue_name(q), t->note);
    for (int f = 0; f < CLD_N_TUNED && !s; f++) {
        const struct cld_tunable_kernel *family = cld_tunable_kernel((enum cld_tuned)f);
        struct cld_check_op ops[2];
        const struct cld_check_options options = {.ops = ops,
                                                  .programs =
                                                      cld_overrides_programs(cfg, &overrides),
                                                  .tuning = t,
                                                  .list = list};
        char what[96];
        if (!family->works(q) || !cld_tuning_changes(t, (enum cld_tuned)f, device))
            continue;
        cld_tuned_check((enum cld_tuned)f, false, ops);
        snprintf(what, sizeof what, "%s with tuned parameters", family->name);
        s = cld_self_test(what, cfg, device, &options,
                          "runtime.tuning = off; then 'cldraft bench --tune' once more", err);
    }
    return s;
}
