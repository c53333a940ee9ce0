#include "queue_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cl_error.h"
#include "file.h"
#include "log.h"
#include "size.h"

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

enum cld_status cld_queue_open(const struct cld_device_info *device,
                               const struct cld_queue_options *options, struct cld_queue **out,
                               struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int code = CL_SUCCESS;
    struct cld_queue *q = calloc(1, sizeof *q);
    *out = NULL;
    if (!q)
        return cld_fail(err, CLD_E_MEMORY, "", "no memory for a queue");
    q->device = *device;
    if (options->family) /* the queue's own record of the device: launches and builds follow it */
        q->device.class = options->family == CLD_FAMILY_CPU ? CLD_CLASS_CPU : CLD_CLASS_GPU;
    q->id = device->cl_device;
    snprintf(q->name, sizeof q->name, "%s", options->name ? options->name : "main");
    q->budget_bytes = options->budget_bytes ? options->budget_bytes : device->global_bytes;
    q->profile = options->profile;
    q->has_ptx = cld_device_is_nvidia(device) && !options->no_ptx;
    q->owner = pthread_self();
    q->owner_name = cld_log_current_thread();
    if (device->n_parts > 1 && (s = make_part(q, err)))
        goto done;
    cl_context_properties props[] = {CL_CONTEXT_PLATFORM,
                                     (cl_context_properties)device->cl_platform, 0};
    q->context = clCreateContext(props, 1, &q->id, NULL, NULL, &code);
    if (code != CL_SUCCESS) {
        s = cld_cl_fail(err, code, "cannot make a context on %s", device->name);
        goto done;
    }
    /* The 1.2 entry point: every implementation has it. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    q->queue = clCreateCommandQueue(q->context, q->id,
                                    q->profile ? CL_QUEUE_PROFILING_ENABLE : 0, &code);
#pragma GCC diagnostic pop
    if (code != CL_SUCCESS) {
        s = cld_cl_fail(err, code, "cannot make a command queue on %s", device->name);
        goto done;
    }
    if (options->cache_dir && !(q->cache_dir = cld_format("%s", options->cache_dir))) {
        s = cld_fail(err, CLD_E_MEMORY, "", "no memory for a queue");
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
    if (q->queue)
        clFinish(q->queue);
    cld_queue_times_reset(q);
    free(q->events);
    while (q->buffers)
        cld_buf_free(q->buffers);
    cld_programs_free(q);
    cld_cache_close(q->cache);
    free(q->cache_dir);
    if (q->queue)
        clReleaseCommandQueue(q->queue);
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

enum cld_status cld_queue_finish(struct cld_queue *q, struct cld_error *err)
{
    cld_queue_check_owner(q, "cld_queue_finish");
    int code = clFinish(q->queue);
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

struct cld_queue_counts cld_queue_counts(const struct cld_queue *q)
{
    return q->counts;
}

const char *cld_queue_program_origin(const struct cld_queue *q)
{
    if (!q->counts.n_cached)
        return "source";
    return q->counts.n_builds ? "source and cached binary" : "cached binary";
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
