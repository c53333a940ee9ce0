#include "self_test.h"

#include <stdio.h>
#include <stdlib.h>

#include "cache.h"
#include "check_attention.h"
#include "check_gemm.h"
#include "check_ops.h"
#include "log.h"
#include "overrides.h"

enum cld_status cld_self_test(const char *what, const struct cld_config *cfg,
                              const struct cld_device_info *device,
                              const struct cld_check_options *options, const char *hint,
                              struct cld_error *err)
{
    struct cld_check_options o = *options;
    size_t n_passed = 0, n_failed = 0;
    o.seed = 1;
    o.family = device->class == CLD_CLASS_CPU ? CLD_FAMILY_CPU : CLD_FAMILY_GPU;
    o.skip[cfg->runtime.precision == CLD_F32 ? CLD_BF16 : CLD_F32] = true;
    enum cld_status s = cld_check_device(device, &o, &n_passed, &n_failed, err);
    if (s)
        return cld_fail_prefix(err, "%s", what);
    if (n_failed)
        return cld_fail(err, CLD_E_CHECK, hint, "%s fails %zu of %zu checks of the operation", what,
                        n_failed, n_passed + n_failed);
    cld_info("%s passed the %zu checks of the operation", what, n_passed);
    return CLD_OK;
}

const struct cld_check_op *cld_tuned_check(enum cld_tuned family, bool whole)
{
    static const unsigned product = 1u << CLD_BOUND_F32_LONG | 1u << CLD_BOUND_BF16;
    static const unsigned rounded = 1u << CLD_BOUND_F32_TENSOR | 1u << CLD_BOUND_BF16;
    static const unsigned norm = 1u << CLD_BOUND_F32 | 1u << CLD_BOUND_BF16 |
                                 1u << CLD_BOUND_F32_GRAD | 1u << CLD_BOUND_BF16_GRAD;
    static const unsigned softmax = 1u << CLD_BOUND_EXACT | 1u << CLD_BOUND_F32 |
                                    1u << CLD_BOUND_F32_SOFTMAX | 1u << CLD_BOUND_F32_LONG |
                                    1u << CLD_BOUND_BF16 | 1u << CLD_BOUND_BF16_SOFTMAX_GRAD;
    static const unsigned steep = softmax | 1u << CLD_BOUND_F32_STEEP |
                                  1u << CLD_BOUND_F32_STEEP_GRAD | 1u << CLD_BOUND_BF16_STEEP_GRAD;
    static const struct cld_check_op checks[CLD_N_TUNED][2][2] = {
        [CLD_TUNED_GEMM_CPU] = {{{"gemm", cld_check_gemm_quick, product, false, 0}, {0}},
                                {{"gemm", cld_check_gemm, product, false, 0}, {0}}},
        [CLD_TUNED_GEMM_GPU] = {{{"gemm", cld_check_gemm_quick, product, false, 0}, {0}},
                                {{"gemm", cld_check_gemm, product, false, 0}, {0}}},
        [CLD_TUNED_GEMM_SM90A] = {{{"gemm_tensor", cld_check_gemm_sm90a_quick, rounded, false, 0},
                                   {0}},
                                  {{"gemm_tensor", cld_check_gemm_sm90a, rounded, false, 0}, {0}}},
        [CLD_TUNED_RMSNORM] = {{{"rmsnorm", cld_check_rmsnorm, norm, true, 0}, {0}},
                               {{"rmsnorm", cld_check_rmsnorm, norm, true, 0}, {0}}},
        [CLD_TUNED_ATTENTION_CPU] = {
            {{"attention", cld_check_attention_quick, softmax, false, 0}, {0}},
            {{"attention", cld_check_attention, steep, false, 0}, {0}}}};
    return checks[family][whole];
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
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_tuning *t = cld_queue_tuning(q);
    const struct cld_device_info *device = cld_queue_device(q);
    struct cld_overrides overrides;
    char text[cld_tuning_text_bytes];
    cld_overrides_of(cfg, &overrides);
    cld_tuning_text(q, text, sizeof text);
    cld_info("%s: tuned parameters: %s", cld_queue_name(q), text);
    if (t->note[0])
        cld_warn("%s: %s", cld_queue_name(q), t->note);
    for (int f = 0; f < CLD_N_TUNED && !s; f++) {
        const struct cld_tuned_family *family = cld_tuned_family((enum cld_tuned)f);
        const struct cld_check_options options = {.ops = cld_tuned_check((enum cld_tuned)f, false),
                                                  .programs =
                                                      cld_overrides_programs(cfg, &overrides),
                                                  .tuning = t};
        char what[96];
        if (!family->works(q) || !cld_tuning_changes(t, (enum cld_tuned)f, device))
            continue;
        snprintf(what, sizeof what, "%s with tuned parameters", family->name);
        s = cld_self_test(what, cfg, device, &options,
                          "runtime.tuning = off; then 'cldraft bench --tune' once more", err);
    }
    return s;
}
