/* cmd_spirv.c - `cldraft spirv`: which kernel variants runs and checks need, and SPIR-V modules of
 * them. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "check/check.h"
#include "check/self_test.h"
#include "cli/cmd_common.h"
#include "config/config.h"
#include "data/feed.h"
#include "opencl/module_build.h"
#include "workers/worker_set.h"

/* The variants of every worker of a training run, each with the kernels of one family. A worker is
 * planned, created and warmed up as in a run, but computes nothing. */
static enum cld_status list_run(const struct cld_config *cfg, const struct cld_setup *setup,
                                const struct cld_worker_set *set, enum cld_device_class class,
                                struct cld_variants *list, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < set->n_targets + set->n_drafters && !s; i++) {
        struct cld_worker w;
        struct cld_device_info device = set->workers[i].device;
        struct cld_worker_options options = set->workers[i].options;
        device.class = class;
        options.list = list;
        if (!(s = cld_worker_plan(&w, cfg, setup, &device, &options, err)) &&
            !(s = cld_worker_check(&w, err)) && !(s = cld_worker_create(&w, err)) &&
            !(s = cld_tuning_check(w.q, cfg, &device, list, err)))
            s = cld_worker_warm_up(&w, err);
        cld_worker_close(&w);
    }
    return s;
}

static enum cld_status list_config(const struct cld_args *a, const char *path,
                                   const struct cld_devices *devices, struct cld_variants *list,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_sets = 0;
    const char *const *sets = cld_args_all(a, "set", &n_sets);
    struct cld_config cfg;
    struct cld_setup setup;
    struct cld_feed *feed = NULL;
    struct cld_worker_set set = {0};
    int64_t mask_token = -1;
    if ((s = cld_config_load(path, sets, n_sets, &cfg, err)) ||
        (s = cld_config_check(&cfg, CLD_CONFIG_TRAIN, err)) ||
        (s = cld_feed_open(&cfg, &feed, err)) ||
        (s = cld_feed_mask_token(feed, &mask_token, err)) ||
        (s = cld_setup_read(&cfg, mask_token, &setup, err)) ||
        (s = cld_worker_set_make(&set, &cfg, devices, err)) ||
        (s = cld_worker_set_plan(&set, &cfg, &setup, NULL, err)))
        goto done;
    for (enum cld_device_class c = CLD_CLASS_CPU; c <= CLD_CLASS_GPU && !s; c++)
        if (cld_cmd_kernel_family(a) !=
            (c == CLD_CLASS_CPU ? CLD_KERNEL_FAMILY_GPU : CLD_KERNEL_FAMILY_CPU))
            s = list_run(&cfg, &setup, &set, c, list, err);
done:
    cld_worker_set_free(&set);
    cld_feed_close(feed);
    cld_config_free(&cfg);
    return s;
}

/* What check-kernels asks for on the default device. */
static enum cld_status list_checks(const struct cld_args *a, const struct cld_devices *devices,
                                   struct cld_variants *list, struct cld_error *err)
{
    struct cld_device_info device;
    size_t n_passed = 0, n_failed = 0;
    enum cld_status s = cld_devices_find(devices, NULL, &device, err);
    return s ? s
             : cld_check_device(&device,
                                &(struct cld_check_options){.op = cld_args_value(a, "op"),
                                                            .seed = 1,
                                                            .family = cld_cmd_kernel_family(a),
                                                            .list = list},
                                &n_passed, &n_failed, err);
}

static enum cld_status collect(const struct cld_args *a, struct cld_variants *list,
                               struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_devices *devices = NULL;
    const char *variants = cld_args_value(a, "variants");
    if (variants && (s = cld_variants_read(list, variants, err)))
        return s;
    if (!cld_args_n(a) && !cld_args_flag(a, "checks"))
        return CLD_OK;
    if ((s = cld_devices_open(&devices, err)))
        return s;
    for (size_t i = 0; i < cld_args_n(a) && !s; i++)
        s = list_config(a, cld_args_at(a, i), devices, list, err);
    if (!s && cld_args_flag(a, "checks"))
        s = list_checks(a, devices, list, err);
    cld_devices_close(devices);
    return s;
}

enum cld_status cld_cmd_spirv(const struct cld_args *a, struct cld_error *err)
{
    struct cld_variants list = {0};
    const char *out = cld_args_value(a, "out");
    enum cld_status s = collect(a, &list, err);
    if (!s && !list.n)
        s = cld_fail(err, CLD_E_USAGE, "name a CONFIG, --checks or --variants FILE",
                     "there is no kernel variant to work on");
    else if (!s && out)
        s = cld_modules_build(&list, out, cld_args_flag(a, "ptx"), err);
    else if (!s)
        cld_variants_write(&list, stdout);
    cld_variants_free(&list);
    return s;
}
