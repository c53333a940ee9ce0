#include "opencl/command_queue.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "opencl/cl_error.h"

#ifdef CLD_DEBUG
void cld_command_queue_check_owner(const struct cld_command_queue *c, const char *call)
{
    if (pthread_equal(c->owner, pthread_self()))
        return;
    fprintf(stderr, "cldraft: %s: queue '%s' belongs to thread '%s' but thread '%s' touches it\n",
            call, c->name, c->owner_name, cld_log_current_thread());
    abort(); /* a broken law of the design: only debug builds look */
}
#endif

static enum cld_status make_part(struct cld_command_queue *c, struct cld_error *err)
{
    size_t units = c->device.n_compute_units / c->device.n_parts;
    cl_device_partition_property how[] = {CL_DEVICE_PARTITION_EQUALLY,
                                          (cl_device_partition_property)units, 0};
    cl_uint n = 0;
    cl_device_id parts[256];
    if (c->device.quirks & CLD_QUIRK_NO_PARTS)
        return cld_fail(err, CLD_E_DEVICE, "take the whole device",
                        "%s (%s) cannot be divided (see the quirk no-parts)", c->device.name,
                        c->device.platform);
    int code = clCreateSubDevices(c->device.cl_device, how, 256, parts, &n);
    if (code == CL_SUCCESS && n <= c->device.part)
        code = CL_DEVICE_PARTITION_FAILED;
    if (code != CL_SUCCESS)
        return cld_cl_fail(err, code, "cannot take part %zu of %zu of %s (%zu compute units)",
                           c->device.part, c->device.n_parts, c->device.name,
                           c->device.n_compute_units);
    for (cl_uint i = 0; i < n; i++)
        if (i != c->device.part)
            clReleaseDevice(parts[i]);
    c->id = parts[c->device.part];
    c->is_part = true;
    c->device.n_compute_units = units;
    return CLD_OK;
}

static enum cld_status make_queue(struct cld_command_queue *c,
                                  cl_command_queue_properties properties, cl_command_queue *out,
                                  struct cld_error *err)
{
    int code = CL_SUCCESS;
    /* The 1.2 entry point: every implementation has it. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    *out = clCreateCommandQueue(c->context, c->id, properties, &code);
#pragma GCC diagnostic pop
    return code == CL_SUCCESS
               ? CLD_OK
               : cld_cl_fail(err, code, "cannot make a command queue on %s", c->device.name);
}

/* Waits for all that was enqueued on any of them. */
static int finish_all(struct cld_command_queue *c)
{
    const cl_command_queue all[] = {c->queue, c->to_host, c->to_device};
    int code = CL_SUCCESS;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) {
            int this_one = clFinish(all[i]);
            code = code == CL_SUCCESS ? this_one : code;
        }
    return code;
}

enum cld_status cld_command_queue_open(struct cld_command_queue *c,
                                       const struct cld_device_info *device,
                                       const struct cld_queue_options *options,
                                       struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int code = CL_SUCCESS;
    c->device = *device;
    if (options->family) /* the queue's own copy of the device: launches and builds follow it */
        c->device.class = options->family == CLD_KERNEL_FAMILY_CPU ? CLD_CLASS_CPU : CLD_CLASS_GPU;
    c->id = device->cl_device;
    snprintf(c->name, sizeof c->name, "%s", options->name ? options->name : "main");
    c->profile = options->profile;
    c->owner = pthread_self();
    c->owner_name = cld_log_current_thread();
    if (device->n_parts > 1 && (s = make_part(c, err)))
        return s;
    cl_context_properties props[] = {CL_CONTEXT_PLATFORM,
                                     (cl_context_properties)device->cl_platform, 0};
    c->context = clCreateContext(props, 1, &c->id, NULL, NULL, &code);
    if (code != CL_SUCCESS)
        return cld_cl_fail(err, code, "cannot make a context on %s", device->name);
    const cl_command_queue_properties timed = c->profile ? CL_QUEUE_PROFILING_ENABLE : 0;
    if ((s = make_queue(c, timed, &c->queue, err)) || (s = make_queue(c, 0, &c->to_host, err)))
        return s;
    return make_queue(c, 0, &c->to_device, err);
}

void cld_command_queue_close(struct cld_command_queue *c)
{
    const cl_command_queue all[] = {c->queue, c->to_host, c->to_device};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            clReleaseCommandQueue(all[i]);
    if (c->context)
        clReleaseContext(c->context);
    if (c->is_part)
        clReleaseDevice(c->id);
}

enum cld_status cld_command_queue_finish(struct cld_command_queue *c, struct cld_error *err)
{
    int code = finish_all(c);
    return code == CL_SUCCESS ? CLD_OK : cld_cl_fail(err, code, "%s: the device failed", c->name);
}
