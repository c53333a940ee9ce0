#include "opencl/queue_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/size.h"
#include "opencl/cl_error.h"

#ifdef CLD_DEBUG
void cld_queue_check_owner(const struct cld_queue *q, const char *call)
{
    if (pthread_equal(q->owner, pthread_self()))
        return;
    fprintf(stderr, "cldraft: %s: queue '%s' belongs to thread '%s' but thread '%s' touches it\n",
            call, q->name, q->owner_name, cld_log_current_thread());
    abort(); /* a broken law of the design: only debug builds look */
}
#endif

static enum cld_status make_part(struct cld_queue *q, struct cld_error *err)
{
    size_t units = q->device.n_compute_units / q->device.n_parts;
    cl_device_partition_property how[] = {CL_DEVICE_PARTITION_EQUALLY,
                                          (cl_device_partition_property)units, 0};
    cl_uint n = 0;
    cl_device_id parts[256];
    if (q->device.quirks & CLD_QUIRK_NO_PARTS)
        return cld_fail(err, CLD_E_DEVICE, "take the whole device",
                        "%s (%s) cannot be divided (see the quirk no-parts)", q->device.name,
                        q->device.platform);
    int code = clCreateSubDevices(q->device.cl_device, how, 256, parts, &n);
    if (code == CL_SUCCESS && n <= q->device.part)
        code = CL_DEVICE_PARTITION_FAILED;
    if (code != CL_SUCCESS)
        return cld_cl_fail(err, code, "cannot take part %zu of %zu of %s (%zu compute units)",
                           q->device.part, q->device.n_parts, q->device.name,
                           q->device.n_compute_units);
    for (cl_uint i = 0; i < n; i++)
        if (i != q->device.part)
            clReleaseDevice(parts[i]);
    q->id = parts[q->device.part];
    q->is_part = true;
    q->device.n_compute_units = units;
    return CLD_OK;
}

static enum cld_status make_queue(struct cld_queue *q, cl_command_queue_properties properties,
                                  cl_command_queue *out, struct cld_error *err)
{
    int code = CL_SUCCESS;
    /* The 1.2 entry point: every implementation has it. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    *out = clCreateCommandQueue(q->context, q->id, properties, &code);
#pragma GCC diagnostic pop
    return code == CL_SUCCESS
               ? CLD_OK
               : cld_cl_fail(err, code, "cannot make a command queue on %s", q->device.name);
}

/* Waits for all that was enqueued on any of them. */
static int finish_all(struct cld_queue *q)
{
    const cl_command_queue all[] = {q->queue, q->to_host, q->to_device};
    int code = CL_SUCCESS;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) {
            int this_one = clFinish(all[i]);
            code = code == CL_SUCCESS ? this_one : code;
        }
    return code;
}

enum cld_status cld_queue_open(const struct cld_device_info *device,
                               const struct cld_queue_options *options, struct cld_queue **out,
                               struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int code = CL_SUCCESS;
    struct cld_queue *q = calloc(1, sizeof *q);
    *out = NULL;
    if (!q)
        return cld_fail_memory(err, "a queue");
    q->device = *device;
    if (options->family) /* the queue's own record of the device: launches and builds follow it */
        q->device.class = options->family == CLD_KERNEL_FAMILY_CPU ? CLD_CLASS_CPU : CLD_CLASS_GPU;
    q->id = device->cl_device;
    snprintf(q->name, sizeof q->name, "%s", options->name ? options->name : "main");
    q->budget_bytes = options->budget_bytes ? options->budget_bytes : device->global_bytes;
    q->profile = options->profile;
    q->program_options = options->programs;
    q->list = options->list;
    q->gemm_uses = options->gemm_uses;
    q->has_ptx = cld_queue_would_use_ptx(device, options);
    q->instruction_sets = q->has_ptx ? options->instruction_sets : 0;
    q->plans_only = options->plans_only;
    q->owner = pthread_self();
    q->owner_name = cld_log_current_thread();
    if (!(q->tuning = calloc(1, sizeof *q->tuning))) {
        s = cld_fail_memory(err, "a queue");
        goto done;
    }
    if (options->tuning)
        *q->tuning = *options->tuning;
    if (device->n_parts > 1 && (s = make_part(q, err)))
        goto done;
    cl_context_properties props[] = {CL_CONTEXT_PLATFORM,
                                     (cl_context_properties)device->cl_platform, 0};
    q->context = clCreateContext(props, 1, &q->id, NULL, NULL, &code);
    if (code != CL_SUCCESS) {
        s = cld_cl_fail(err, code, "cannot make a context on %s", device->name);
        goto done;
    }
    const cl_command_queue_properties timed = q->profile ? CL_QUEUE_PROFILING_ENABLE : 0;
    if ((s = make_queue(q, timed, &q->queue, err)) || (s = make_queue(q, 0, &q->to_host, err)) ||
        (s = make_queue(q, 0, &q->to_device, err)))
        goto done;
    if (options->cache_dir && !(q->cache_dir = cld_format("%s", options->cache_dir))) {
        s = cld_fail_memory(err, "a queue");
        goto done;
    }
    *out = q;
    q = NULL;
done:
    cld_queue_close(q);
    return s;
}

void cld_queue_close(struct cld_queue *q)
{
    if (!q)
        return;
    cld_queue_check_owner(q, "cld_queue_close");
    finish_all(q);
    cld_queue_times_reset(q);
    free(q->events);
    while (q->buffers)
        cld_buf_free(q->buffers);
    cld_programs_free(q);
    cld_cache_close(q->cache);
    cld_modules_close(q->modules);
    free(q->cache_dir);
    free(q->tuning);
    const cl_command_queue all[] = {q->queue, q->to_host, q->to_device};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            clReleaseCommandQueue(all[i]);
    if (q->context)
        clReleaseContext(q->context);
    if (q->is_part)
        clReleaseDevice(q->id);
    free(q);
}

const struct cld_device_info *cld_queue_device(const struct cld_queue *q)
{
    return &q->device;
}

const char *cld_queue_name(const struct cld_queue *q)
{
    return q->name;
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
    int code = finish_all(q);
    return code == CL_SUCCESS ? CLD_OK : cld_cl_fail(err, code, "%s: the device failed", q->name);
}

enum cld_status cld_queue_flush(struct cld_queue *q, struct cld_error *err)
{
    cld_queue_check_owner(q, "cld_queue_flush");
    int code = clFlush(q->queue);
    return code == CL_SUCCESS ? CLD_OK : cld_cl_fail(err, code, "%s: flush failed", q->name);
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
    return q->counts;
}

const char *cld_queue_program_origin(struct cld_queue *q)
{
    const char *parts[3];
    char modules[40];
    size_t n = 0;
    snprintf(modules, sizeof modules, "SPIR-V modules (%s)", cld_module_route(&q->device));
    if (q->counts.n_builds || !(q->counts.n_cached + q->counts.n_modules))
        parts[n++] = "source";
    if (q->counts.n_cached)
        parts[n++] = "cached binary";
    if (q->counts.n_modules)
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
