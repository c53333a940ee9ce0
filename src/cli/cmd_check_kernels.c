/* cmd_check_kernels.c - `cldraft check-kernels`: every kernel of both families against references
 * in double, on one device or on all of them by every program path. */
#include "cli/cmd_common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "check/check_matrix.h"
#include "opencl/cache.h"
#include "ops/tuning.h"

static enum cld_check_path path_of(const struct cld_args *a)
{
    const char *from = cld_args_value(a, "program");
    return !from || !strcmp(from, "source") ? CLD_CHECK_SOURCE
           : !strcmp(from, "cached")        ? CLD_CHECK_CACHED
           : !strcmp(from, "spirv")         ? CLD_CHECK_MODULES
                                            : CLD_CHECK_AUTO;
}

static enum cld_check_mode check_mode(const struct cld_args *a)
{
    const char *mode = cld_args_value(a, "mode");
    return !mode || !strcmp(mode, "check") ? CLD_CHECK_ALL
           : !strcmp(mode, "grad")         ? CLD_CHECK_GRAD
           : !strcmp(mode, "perf")         ? CLD_CHECK_PERF
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

/* Kernels for CPUs have no work-groups: on a GPU they take minutes. Times are only of use for the
 * kernels that runs take on the device. */
static enum cld_kernel_family families(const struct cld_args *a,
                                       const struct cld_device_info *device)
{
    if (cld_args_value(a, "kernels"))
        return cld_cmd_kernel_family(a);
    if (device->class == CLD_CLASS_GPU)
        return CLD_KERNEL_FAMILY_GPU;
    return check_mode(a) == CLD_CHECK_PERF ? CLD_KERNEL_FAMILY_CPU : CLD_KERNEL_FAMILY_AUTO;
}

/* The rows of --tuning for this device, which outlive the checks. */
static enum cld_status tune(struct cld_check_options *o, const struct cld_device_info *device,
                            struct cld_tuning *tuning, struct cld_error *err)
{
    char *dir = NULL;
    enum cld_status s = o->tuned ? cld_cache_dir(NULL, &dir, err) : CLD_OK;
    if (o->tuned && !s && !(s = cld_tuning_load(o->tuned, dir, device, tuning, err))) {
        o->tuning = tuning;
        if (tuning->note[0])
            cld_warn("%s: %s", device->name, tuning->note);
    }
    free(dir);
    return s;
}

/* Every device of every platform, or the one that is named, and all paths; or one device and one
 * path. */
static enum cld_status run(const struct cld_args *a, const struct cld_check_options *options,
                           struct cld_check_matrix *m, struct cld_error *err)
{
    struct cld_check_options now = *options;
    struct cld_tuning tuning;
    struct cld_devices *devices = NULL;
    struct cld_device_info device = {.cl_device = NULL};
    char number[24];
    enum cld_status s = cld_devices_open(&devices, err);
    if (s)
        return s;
    bool all = cld_args_flag(a, "all");
    if ((!all || now.device) && (s = cld_devices_find(devices, now.device, &device, err)))
        goto done;
    if (!all) {
        now.family = families(a, &device);
        if ((s = tune(&now, &device, &tuning, err)))
            goto done;
        s = path_of(a) == CLD_CHECK_CACHED
                ? cld_check_matrix_add_paths(m, &device, CLD_CHECK_CACHED, &now, err)
                : cld_check_matrix_add(m, &device, path_of(a), &now, err);
        goto done;
    }
    for (size_t i = 0; i < devices->n && !s; i++) {
        if (device.cl_device && device.index != devices->at[i].index)
            continue;
        now.family = families(a, &devices->at[i]);
        snprintf(number, sizeof number, "%zu", devices->at[i].index);
        now.device = number;
        if (!(s = tune(&now, &devices->at[i], &tuning, err)))
            s = cld_check_matrix_add_paths(m, &devices->at[i], CLD_CHECK_MODULES, &now, err);
    }
    if (!s && !devices->n)
        s = cld_fail(err, CLD_E_DEVICE, "see 'cldraft devices'", "there is no device: %s",
                     devices->note);
done:
    cld_devices_close(devices);
    return s;
}

static enum cld_status print(const struct cld_check_matrix *m, const char *format, bool all,
                             struct cld_error *err)
{
    if (!strcmp(format, "json"))
        return cld_check_write_json(m, stdout, err);
    if (!strcmp(format, "junit"))
        return cld_check_write_junit(m, stdout, err);
    if (all)
        cld_check_write_table(m, stdout);
    printf("%zu passed, %zu failed", m->n_passed, m->n_failed);
    if (m->n_unsupported)
        printf(", %zu unsupported", m->n_unsupported);
    putchar('\n');
    return CLD_OK;
}

/* With a golden file the failures that it has are no news. */
static enum cld_status judge(const struct cld_args *a, const struct cld_check_matrix *m,
                             struct cld_error *err)
{
    const char *path = cld_args_value(a, "golden"), *only = cld_args_value(a, "case");
    bool part = only || cld_args_value(a, "mode");
    struct cld_check_golden g;
    if (!m->n_passed && !m->n_failed)
        return only ? cld_fail(err, CLD_E_USAGE,
                               "case names are those that are printed; --op, --kernels, "
                               "--precision, --limit and --mode leave cases out, too",
                               "no case has the name '%s'", only)
               : m->n_unsupported
                   ? cld_fail(err, CLD_E_CHECK, "choose another device, precision or --program",
                              "nothing was checked: all is unsupported")
                   : cld_fail(err, CLD_E_CHECK, "see --limit, --op, --kernels, --precision, --mode",
                              "nothing was checked: no case is left");
    if (path && cld_args_flag(a, "update-golden"))
        return cld_check_golden_update(m, path, part, err);
    if (path) {
        enum cld_status s =
            cld_check_golden_compare(m, path, part || cld_args_value(a, "limit"), stderr, &g, err);
        if (s)
            return s;
        cld_info("%s: %zu fixes, %zu regressions, %zu differences", path, g.n_fixes,
                 g.n_regressions, g.n_differences);
        return g.n_regressions
                   ? cld_fail(err, CLD_E_CHECK, "the lines REGRESSION name them",
                              "%zu kernel checks fail that passed before", g.n_regressions)
                   : CLD_OK;
    }
    if (m->n_failed)
        return cld_fail(err, CLD_E_CHECK, "the line below each failure repeats it",
                        "%zu of %zu kernel checks failed", m->n_failed, m->n_passed + m->n_failed);
    return CLD_OK;
}

static enum cld_status summarize(const struct cld_args *a, struct cld_error *err)
{
    size_t n = cld_args_n(a);
    const char **paths = calloc(n + 1, sizeof *paths);
    if (!paths)
        return cld_fail_memory(err, "the names of %zu files", n);
    for (size_t i = 0; i < n; i++)
        paths[i] = cld_args_at(a, i);
    enum cld_status s = cld_check_vendors_write(paths, n, stdout, err);
    free(paths);
    return s;
}

enum cld_status cld_cmd_check_kernels(const struct cld_args *a, struct cld_error *err)
{
    const char *precision = cld_args_value(a, "precision"), *seed = cld_args_value(a, "seed");
    const char *format = cld_args_value(a, "format");
    bool all = cld_args_flag(a, "all");
    struct cld_check_matrix m = {0};
    struct cld_check_options options = {
        .op = cld_args_value(a, "op"),
        .only = cld_args_value(a, "case"),
        .max_elems = cld_args_number(a, "limit", 0),
        .mode = check_mode(a),
        .device = cld_args_value(a, "device"),
        .tuned = cld_args_value(a, "tuning"),
        .seed = seed ? strtoull(seed, NULL, 10) : 1,
        .keep_going = true,
        .programs = {.modules = cld_args_value(a, "modules")},
    };
    if (cld_args_flag(a, "list")) {
        list_operations();
        return CLD_OK;
    }
    if (cld_args_flag(a, "summary"))
        return summarize(a, err);
    if (cld_args_n(a))
        return cld_fail(err, CLD_E_USAGE, "use --golden FILE to compare with a golden file",
                        "FILE arguments need --summary");
    if (all && cld_args_value(a, "program"))
        return cld_fail(err, CLD_E_USAGE, "leave one of them out",
                        "--all takes every program path: it does not go with --program");
    if (cld_args_flag(a, "update-golden") && !cld_args_value(a, "golden"))
        return cld_fail(err, CLD_E_USAGE, "add --golden FILE", "--update-golden needs a file");
    format = format ? format : "table";
    options.out = !all && !strcmp(format, "table") ? stdout : NULL;
    options.progress = !options.out;
    options.skip[CLD_F32] = precision && !strcmp(precision, "bf16");
    options.skip[CLD_BF16] = precision && !strcmp(precision, "fp32");
    enum cld_status s = run(a, &options, &m, err);
    if (!s && !(s = print(&m, format, all, err)))
        s = judge(a, &m, err);
    cld_check_matrix_free(&m);
    return s;
}
