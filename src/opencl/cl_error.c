#include "opencl/cl_error.h"

#include <stdarg.h>
#include <stdio.h>

#include <CL/cl.h>

static const struct {
    int code;
    const char *name, *hint;
} codes[] = {
    {CL_DEVICE_NOT_FOUND, "CL_DEVICE_NOT_FOUND", "the platform has no usable device"},
    {CL_DEVICE_NOT_AVAILABLE, "CL_DEVICE_NOT_AVAILABLE", "another program may hold the device"},
    {CL_COMPILER_NOT_AVAILABLE, "CL_COMPILER_NOT_AVAILABLE",
     "this implementation has no compiler for kernels"},
    {CL_MEM_OBJECT_ALLOCATION_FAILURE, "CL_MEM_OBJECT_ALLOCATION_FAILURE",
     "device memory is exhausted: other programs may use it; see `cldraft plan`"},
    {CL_OUT_OF_RESOURCES, "CL_OUT_OF_RESOURCES",
     "too large a work-group or too little memory, or an earlier kernel wrote out of bounds"},
    {CL_OUT_OF_HOST_MEMORY, "CL_OUT_OF_HOST_MEMORY", "host memory is exhausted"},
    {CL_PROFILING_INFO_NOT_AVAILABLE, "CL_PROFILING_INFO_NOT_AVAILABLE", ""},
    {CL_BUILD_PROGRAM_FAILURE, "CL_BUILD_PROGRAM_FAILURE", "the build log is in the message"},
    {CL_MISALIGNED_SUB_BUFFER_OFFSET, "CL_MISALIGNED_SUB_BUFFER_OFFSET", ""},
    {CL_DEVICE_PARTITION_FAILED, "CL_DEVICE_PARTITION_FAILED", "use fewer parts"},
    {CL_INVALID_VALUE, "CL_INVALID_VALUE", ""},
    {CL_INVALID_DEVICE, "CL_INVALID_DEVICE", ""},
    {CL_INVALID_CONTEXT, "CL_INVALID_CONTEXT", ""},
    {CL_INVALID_COMMAND_QUEUE, "CL_INVALID_COMMAND_QUEUE", "an earlier kernel may have faulted"},
    {CL_INVALID_MEM_OBJECT, "CL_INVALID_MEM_OBJECT", ""},
    {CL_INVALID_BINARY, "CL_INVALID_BINARY", "the binary was made for another device or driver"},
    {CL_INVALID_BUILD_OPTIONS, "CL_INVALID_BUILD_OPTIONS", ""},
    {CL_INVALID_PROGRAM, "CL_INVALID_PROGRAM", ""},
    {CL_INVALID_PROGRAM_EXECUTABLE, "CL_INVALID_PROGRAM_EXECUTABLE", ""},
    {CL_INVALID_KERNEL_NAME, "CL_INVALID_KERNEL_NAME", "the program does not hold this kernel"},
    {CL_INVALID_KERNEL, "CL_INVALID_KERNEL", ""},
    {CL_INVALID_ARG_INDEX, "CL_INVALID_ARG_INDEX", ""},
    {CL_INVALID_ARG_VALUE, "CL_INVALID_ARG_VALUE", ""},
    {CL_INVALID_ARG_SIZE, "CL_INVALID_ARG_SIZE", ""},
    {CL_INVALID_KERNEL_ARGS, "CL_INVALID_KERNEL_ARGS", "an argument was not set"},
    {CL_INVALID_WORK_GROUP_SIZE, "CL_INVALID_WORK_GROUP_SIZE",
     "the device allows smaller work-groups for this kernel"},
    {CL_INVALID_WORK_ITEM_SIZE, "CL_INVALID_WORK_ITEM_SIZE", ""},
    {CL_INVALID_EVENT, "CL_INVALID_EVENT", ""},
    {CL_INVALID_BUFFER_SIZE, "CL_INVALID_BUFFER_SIZE",
     "the buffer passes the device's limit for one allocation"},
    {CL_INVALID_GLOBAL_WORK_SIZE, "CL_INVALID_GLOBAL_WORK_SIZE", ""},
    {CL_INVALID_PROPERTY, "CL_INVALID_PROPERTY", ""},
    {-1001, "CL_PLATFORM_NOT_FOUND_KHR", "no OpenCL platform is registered"},
};

static const char *hint_of(int code)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].code == code)
            return codes[i].hint;
    return "";
}

const char *cld_cl_error_name(int code)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].code == code)
            return codes[i].name;
    return "unknown OpenCL error";
}

enum cld_status cld_cl_fail(struct cld_error *err, int code, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    enum cld_status s = code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_HOST_MEMORY ||
                                code == CL_INVALID_BUFFER_SIZE
                            ? CLD_E_MEMORY
                            : CLD_E_DEVICE;
    return cld_fail(err, s, hint_of(code), "%s: %s (%d)", text, cld_cl_error_name(code), code);
}
