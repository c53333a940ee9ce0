/* queue.c - the owner of what a thread has on a device: a handle, buffers, programs, tuned rows. */
#include "opencl/queue_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "opencl/cl_error.h"

enum cld_status cld_queue_open(const struct cld_device_info *device,
                               const struct cld_queue_options *options, struct cld_queue **out,
                               struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_queue *q = calloc(1, sizeof *q);
    *out = NULL;
    if (!q)
        return cld_fail_memory(err, "a queue");
    q->budget_bytes = options->budget_bytes ? options->budget_bytes : device->global_bytes;
    q->program_options = options->programs;
    q->list = options->list;
    q->gemm_uses = options->gemm_uses;
    q->has_ptx = cld_queue_would_use_ptx(device, options);
    q->instruction_sets = q->has_ptx ? options->instruction_sets : 0;
    q->plans_only = options->plans_only;
    if ((s = cld_command_queue_open(&q->handle, device, options, err)))
        goto done;
    if (!(q->tuning = calloc(1, sizeof *q->tuning)) ||
        (options->cache_dir && !(q->cache_dir = cld_format("%s", options->cache_dir)))) {
        s = cld_fail_memory(err, "a queue");
        goto done;
    }
    if (options->tuning)
        *q->tuning = *options->tuning;
    *out = q;
    q = NULL;
done:
    cld_queue_close(q);
    return s;
}

void cld_queue_close(struct cld_queue *q)
{
    struct cld_error ignored;
    if (!q)
        return;
    cld_queue_check_owner(q, "cld_queue_close");
    cld_command_queue_finish(&q->handle, &ignored);
    cld_queue_times_reset(q);
    free(q->events);
    while (q->buffers)
        cld_buf_free(q->buffers);
    cld_programs_free(q);
    cld_cache_close(q->cache);
    cld_modules_close(q->modules);
    free(q->cache_dir);
    free(q->tuning);
    cld_command_queue_close(&q->handle);
    free(q);
}

const struct cld_device_info *cld_queue_device(const struct cld_queue *q)
{
    return &q->handle.device;
}

const char *cld_queue_name(const struct cld_queue *q)
{
    return q->handle.name;
}

bool cld_queue_has_ptx(const struct cld_queue *q)
{
    return q->has_ptx;
}

/* Kernels with inline PTX exist as source alone. */
bool cld_queue_would_use_ptx(const struct cld_device_info *device,
                             const struct cld_queue_options *options)
{
    return cld_device_is_nvidia(device) && options->family != CLD_KERNEL_FAMILY_CPU &&
           !options->list && options->programs.source != CLD_PROGRAM_SPIRV;
}

unsigned cld_queue_instruction_sets(const struct cld_queue *q)
{
    return q->instruction_sets;
}

enum cld_status cld_queue_finish(struct cld_queue *q, struct cld_error *err)
{
    cld_queue_check_owner(q, "cld_queue_finish");
    return cld_command_queue_finish(&q->handle, err);
}

enum cld_status cld_queue_flush(struct cld_queue *q, struct cld_error *err)
{
    cld_queue_check_owner(q, "cld_queue_flush");
    int code = clFlush(q->handle.queue);
    return code == CL_SUCCESS ? CLD_OK : cld_cl_fail(err, code, "%s: flush failed", q->handle.name);
}

void cld_queue_seal(struct cld_queue *q)
{
    cld_queue_check_owner(q, "cld_queue_seal");
    q->sealed = true;
}

bool cld_queue_is_sealed(const struct cld_queue *q)
{
    return q->sealed;
}

struct cld_tuning *cld_queue_tuned_rows(const struct cld_queue *q)
{
    cld_queue_check_owner(q, "cld_queue_tuned_rows");
    return q->tuning;
}

struct cld_gemm_uses *cld_queue_gemm_uses(const struct cld_queue *q)
{
    return q->gemm_uses;
}

struct cld_queue_counts cld_queue_counts(const struct cld_queue *q)
{
    return q->handle.counts;
}

const char *cld_queue_program_origin(struct cld_queue *q)
{
    const char *parts[3];
    char modules[40];
    size_t n = 0;
    snprintf(modules, sizeof modules, "SPIR-V modules (%s)", cld_module_route(&q->handle.device));
    if (q->handle.counts.n_builds || !(q->handle.counts.n_cached + q->handle.counts.n_modules))
        parts[n++] = "source";
    if (q->handle.counts.n_cached)
        parts[n++] = "cached binary";
    if (q->handle.counts.n_modules)
        parts[n++] = modules;
    snprintf(q->origin, sizeof q->origin, "%s", parts[0]);
    for (size_t i = 1; i < n; i++)
        snprintf(q->origin + strlen(q->origin), sizeof q->origin - strlen(q->origin), " and %s",
                 parts[i]);
    return q->origin;
}

bool cld_queue_lists(const struct cld_queue *q)
{
    return q->list;
}

const char *cld_queue_cache_dir(const struct cld_queue *q)
{
    return q->cache ? cld_cache_path(q->cache) : NULL;
}

size_t cld_queue_held_bytes(const struct cld_queue *q)
{
    return q->held_bytes;
}

size_t cld_queue_peak_bytes(const struct cld_queue *q)
{
    return q->peak_bytes;
}

size_t cld_queue_budget_bytes(const struct cld_queue *q)
{
    return q->budget_bytes;
}
