#include "check/check_matrix.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/grow.h"
#include "base/log.h"
#include "opencl/modules.h"

void cld_check_matrix_free(struct cld_check_matrix *m)
{
    for (size_t i = 0; i < m->n_columns; i++) {
        free(m->columns[i].platform);
        free(m->columns[i].platform_version);
        free(m->columns[i].device);
        free(m->columns[i].driver);
    }
    free(m->columns);
    cld_check_results_free(&m->results);
    *m = (struct cld_check_matrix){0};
}

static enum cld_status add_column(struct cld_check_matrix *m, const struct cld_device_info *device,
                                  enum cld_check_path path, struct cld_check_column **out,
                                  struct cld_error *err)
{
    static const char *const names[] = {"source", "cached binary", "SPIR-V", "auto"};
    enum cld_status s =
        cld_grow(&m->columns, &m->cap_columns, m->n_columns + 1, sizeof *m->columns, err);
    const char *route = cld_module_route(device);
    if (s)
        return s;
    struct cld_check_column *c = *out = &m->columns[m->n_columns++];
    *c = (struct cld_check_column){.platform = cld_format("%s", device->platform),
                                   .platform_version = cld_format("%s", device->platform_version),
                                   .device = cld_format("%s", device->name),
                                   .driver = cld_format("%s", device->driver),
                                   .first = m->results.n};
    if (!c->platform || !c->platform_version || !c->device || !c->driver)
        return cld_fail_memory(err, "a column of checks");
    bool routed = path == CLD_CHECK_MODULES && route;
    snprintf(c->path, sizeof c->path, "%s%s%s%s", names[path], routed ? " (" : "",
             routed ? route : "", routed ? ")" : "");
    return CLD_OK;
}

/* Whether there is any use in asking for modules; else c->why. */
static bool has_modules(struct cld_check_column *c, const struct cld_device_info *device,
                        const char *dir)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_modules *modules = NULL;
    if (!cld_module_route(device))
        snprintf(c->why, sizeof c->why, "%s", cld_module_lacks(device));
    else if (cld_modules_open(dir, &modules, &err))
        snprintf(c->why, sizeof c->why, "%.199s", err.what);
    cld_modules_close(modules);
    return !c->why[0];
}

enum cld_status cld_check_matrix_add(struct cld_check_matrix *m,
                                     const struct cld_device_info *device, enum cld_check_path path,
                                     const struct cld_check_options *options, struct cld_error *err)
{
    static const enum cld_program_source sources[] = {CLD_PROGRAM_SOURCE, CLD_PROGRAM_SOURCE,
                                                      CLD_PROGRAM_SPIRV, CLD_PROGRAM_AUTO};
    static const char *const programs[] = {"source", "cached", "spirv", "auto"};
    struct cld_queue_counts counts = {0};
    struct cld_check_options now = *options;
    struct cld_check_column *c = NULL;
    size_t n_passed = 0, n_failed = 0;
    enum cld_status s = add_column(m, device, path, &c, err);
    if (s)
        return s;
    now.programs.source = sources[path];
    now.program = path == CLD_CHECK_SOURCE ? NULL : programs[path];
    now.results = &m->results;
    now.counts = &counts;
    if (path == CLD_CHECK_MODULES && now.modules_optional &&
        !has_modules(c, device, now.programs.modules))
        return CLD_OK;
    cld_info("checking kernels on %s (%s), seed %llu, programs: %s", device->name, device->platform,
             (unsigned long long)now.seed, c->path);
    if ((s = cld_check_device(device, &now, &n_passed, &n_failed, err)))
        return s;
    c->n = m->results.n - c->first;
    c->max_elems = now.max_elems;
    if (path == CLD_CHECK_CACHED && counts.n_builds)
        snprintf(c->why, sizeof c->why,
                 "%zu of %zu programs were built again: CLBlast's, or without a usable binary",
                 counts.n_builds, counts.n_builds + counts.n_cached);
    m->n_passed += n_passed;
    m->n_failed += n_failed;
    for (size_t i = c->first; i < m->results.n; i++)
        m->n_unsupported += m->results.at[i].verdict == CLD_CHECK_UNSUPPORTED;
    return CLD_OK;
}

enum cld_status cld_check_matrix_add_paths(struct cld_check_matrix *m,
                                           const struct cld_device_info *device,
                                           enum cld_check_path last,
                                           const struct cld_check_options *options,
                                           struct cld_error *err)
{
    struct cld_check_options now = *options;
    struct cld_error ignored = CLD_ERROR_INIT;
    const char *base = getenv("TMPDIR");
    char *dir = cld_format("%s/cldraft-XXXXXX", base && *base ? base : "/tmp");
    enum cld_status s = CLD_OK;
    if (!dir || !mkdtemp(dir)) {
        free(dir);
        return cld_fail(err, CLD_E_IO, "set TMPDIR", "no temporary directory for binaries");
    }
    now.modules_optional = true;
    now.cache_dir = dir;
    for (enum cld_check_path p = CLD_CHECK_SOURCE; p <= last && !s; p++)
        s = cld_check_matrix_add(m, device, p, &now, err);
    cld_dir_remove(dir, &ignored);
    free(dir);
    return s;
}
