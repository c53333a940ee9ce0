#include "check/overrides.h"

#include <stdio.h>

#include "check/self_test.h"

void cld_overrides_of(const struct cld_config *cfg, struct cld_overrides *out)
{
#define ROW(op)                                                                                    \
    {                                                                                              \
#op, #op ".cl", cfg->runtime.override.op                                                   \
    }
    const struct {
        const char *operation, *file, *path;
    } rows[CLD_MAX_OVERRIDES] = {ROW(rmsnorm), ROW(qknorm_rope),   ROW(swiglu),
                                 ROW(add),     ROW(gather),        ROW(fill),
                                 ROW(adamw),   ROW(cross_entropy), ROW(sum_squares)};
#undef ROW
    out->n = 0;
    for (size_t i = 0; i < CLD_MAX_OVERRIDES; i++)
        if (rows[i].path) {
            out->operation[out->n] = rows[i].operation;
            out->at[out->n++] = (struct cld_override){rows[i].file, rows[i].path};
        }
}

struct cld_program_options cld_overrides_programs(const struct cld_config *cfg,
                                                  const struct cld_overrides *o)
{
    return (struct cld_program_options){.source = cfg->runtime.program,
                                        .modules = cfg->runtime.modules,
                                        .overrides = o->at,
                                        .n_overrides = o->n};
}

enum cld_status cld_overrides_check(const struct cld_overrides *o, const struct cld_config *cfg,
                                    const struct cld_device_info *device, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < o->n && !s; i++) {
        struct cld_check_options options = {.op = o->operation[i],
                                            .programs = cld_overrides_programs(cfg, o)};
        char what[256];
        snprintf(what, sizeof what, "runtime.override.%s: %s", o->operation[i], o->at[i].path);
        s = cld_self_test(what, cfg, device, &options, "the failed cases are above", err);
    }
    return s;
}
