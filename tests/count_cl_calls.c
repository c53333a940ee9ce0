/* count_cl_calls.c - a library for LD_PRELOAD that counts the calls of OpenCL that create memory or
 * programs or run something on a device, and appends them to the file CL_CALLS, one name a line, as
 * they happen. With CL_PRETEND_NVIDIA every device answers as a GPU under NVIDIA's driver. */
#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void note(const char *name)
{
    const char *path = getenv("CL_CALLS");
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (fd < 0)
        return;
    char line[64];
    size_t n = strlen(name);
    memcpy(line, name, n);
    line[n] = '\n';
    if (write(fd, line, n + 1) < 0)
        abort();
    close(fd);
}

/* Notes the call, then makes it. */
#define COUNTED(type, name, parameters, arguments)                                                 \
    type name parameters;                                                                          \
    type name parameters                                                                           \
    {                                                                                              \
        type(*next) parameters;                                                                    \
        void *at = dlsym(RTLD_NEXT, #name);                                                        \
        memcpy(&next, &at, sizeof next);                                                           \
        note(#name);                                                                               \
        return next arguments;                                                                     \
    }

COUNTED(cl_mem, clCreateBuffer,
        (cl_context c, cl_mem_flags flags, size_t n, void *host, cl_int *code),
        (c, flags, n, host, code))
COUNTED(cl_mem, clCreateSubBuffer,
        (cl_mem b, cl_mem_flags flags, cl_buffer_create_type type, const void *region,
         cl_int *code),
        (b, flags, type, region, code))
COUNTED(cl_program, clCreateProgramWithSource,
        (cl_context c, cl_uint n, const char **texts, const size_t *lengths, cl_int *code),
        (c, n, texts, lengths, code))
COUNTED(cl_program, clCreateProgramWithBinary,
        (cl_context c, cl_uint n, const cl_device_id *devices, const size_t *lengths,
         const unsigned char **binaries, cl_int *status, cl_int *code),
        (c, n, devices, lengths, binaries, status, code))
COUNTED(cl_program, clCreateProgramWithIL, (cl_context c, const void *il, size_t n, cl_int *code),
        (c, il, n, code))
COUNTED(cl_int, clBuildProgram,
        (cl_program p, cl_uint n, const cl_device_id *devices, const char *options,
         void(CL_CALLBACK *done)(cl_program, void *), void *data),
        (p, n, devices, options, done, data))
COUNTED(cl_kernel, clCreateKernel, (cl_program p, const char *name, cl_int *code), (p, name, code))
COUNTED(cl_int, clEnqueueNDRangeKernel,
        (cl_command_queue q, cl_kernel k, cl_uint n, const size_t *offset, const size_t *global,
         const size_t *local, cl_uint n_events, const cl_event *events, cl_event *out),
        (q, k, n, offset, global, local, n_events, events, out))

cl_int clGetPlatformInfo(cl_platform_id p, cl_platform_info what, size_t n, void *to, size_t *size)
{
    static const char name[] = "NVIDIA CUDA";
    cl_int (*next)(cl_platform_id, cl_platform_info, size_t, void *, size_t *);
    void *at = dlsym(RTLD_NEXT, "clGetPlatformInfo");
    memcpy(&next, &at, sizeof next);
    if (!getenv("CL_PRETEND_NVIDIA") || what != CL_PLATFORM_NAME || !to || n < sizeof name)
        return next(p, what, n, to, size);
    memcpy(to, name, sizeof name);
    return CL_SUCCESS;
}

cl_int clGetDeviceInfo(cl_device_id d, cl_device_info what, size_t n, void *to, size_t *size)
{
    cl_int (*next)(cl_device_id, cl_device_info, size_t, void *, size_t *);
    void *at = dlsym(RTLD_NEXT, "clGetDeviceInfo");
    memcpy(&next, &at, sizeof next);
    const cl_device_type gpu = CL_DEVICE_TYPE_GPU;
    if (!getenv("CL_PRETEND_NVIDIA") || what != CL_DEVICE_TYPE || !to || n < sizeof gpu)
        return next(d, what, n, to, size);
    memcpy(to, &gpu, sizeof gpu);
    return CL_SUCCESS;
}
