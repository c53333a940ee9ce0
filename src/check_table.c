#include "check.h"

#include <stdlib.h>
#include <string.h>

#include "check_attention.h"
#include "check_gemm.h"
#include "check_ops.h"
#include "file.h"

const struct cld_check_op cld_check_ops[] = {
    {"rmsnorm", cld_check_rmsnorm},
    {"qknorm_rope", cld_check_qknorm_rope},
    {"swiglu", cld_check_swiglu},
    {"add", cld_check_add},
    {"gather", cld_check_gather},
    {"fill", cld_check_fill},
    {"cross_entropy", cld_check_cross_entropy},
    {"first_max", cld_check_first_max},
    {"sum_squares", cld_check_sum_squares},
    {"adamw", cld_check_adamw},
    {"gemm", cld_check_gemm},
    {"attention", cld_check_attention},
    {NULL, NULL},
};

static bool wanted(const struct cld_check_options *options, const struct cld_check_op *o)
{
    return !options->op || strstr(o->name, options->op);
}

static enum cld_status check_name(const struct cld_check_options *options, struct cld_error *err)
{
    char names[320] = "there are ";
    for (const struct cld_check_op *o = cld_check_ops; o->name; o++) {
        size_t at = strlen(names);
        if (wanted(options, o))
            return CLD_OK;
        snprintf(names + at, sizeof names - at, "%s%s", o == cld_check_ops ? "" : ", ", o->name);
    }
    return cld_fail(err, CLD_E_USAGE, names, "no operation to check has '%s' in its name",
                    options->op);
}

/* The operations that were asked for, in one family and one storage. */
static enum cld_status check_queue(struct cld_check *c, const struct cld_check_options *options,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (const struct cld_check_op *o = cld_check_ops; o->name && !s; o++) {
        if (!wanted(options, o))
            continue;
        char *rerun = cld_format(
            "cldraft check-kernels%s%s --op %s --seed %llu --precision %s",
            options->device ? " --device " : "", options->device ? options->device : "", o->name,
            (unsigned long long)c->seed, c->storage == CLD_BF16 ? "bf16" : "fp32");
        c->rerun = rerun;
        if ((s = o->run(c, err)))
            cld_fail_prefix(err, "check of %s, case '%s'", o->name, c->name);
        c->rerun = NULL;
        free(rerun);
    }
    cld_check_close(c);
    return s;
}

enum cld_status cld_check_device(const struct cld_device_info *device,
                                 const struct cld_check_options *options, size_t *n_passed,
                                 size_t *n_failed, struct cld_error *err)
{
    enum cld_status s = check_name(options, err);
    *n_passed = *n_failed = 0;
    for (enum cld_family f = CLD_FAMILY_CPU; f <= CLD_FAMILY_GPU && !s; f++) {
        struct cld_check c = {.seed = options->seed, .out = options->out};
        if ((s = cld_queue_open(device, &(struct cld_queue_options){.name = "checks", .family = f},
                                &c.q, err)))
            break;
        for (c.storage = CLD_F32; c.storage <= CLD_BF16 && !s; c.storage++)
            if (!options->skip[c.storage])
                s = check_queue(&c, options, err);
        *n_passed += c.n_passed;
        *n_failed += c.n_failed;
        cld_queue_close(c.q);
    }
    return s;
}
