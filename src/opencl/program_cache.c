/* program_cache.c - binaries of built programs, stored on disk and loaded from there.
 *
 * Implementations differ in what they call a binary: PTX text, IR, machine code. Each is stored as
 * it is. An entry that does not load, build or hold its kernels is deleted, and the caller builds
 * from source.
 *
 * A payload of the cache is the number of kernels that the source gave (uint64_t), and the binary.
 */
#include "opencl/queue_private.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/size.h"
#include "opencl/cl_error.h"

void cld_program_key(const struct cld_queue *q, const char *source, const char *variant,
                     char key[CLD_SHA256_HEX_BYTES])
{
    const struct cld_device_info *d = &q->handle.device;
    const char *texts[] = {source,    variant,    d->name,     d->vendor,
                           d->driver, d->version, d->platform, d->platform_version};
    cld_cache_key(texts, sizeof texts / sizeof *texts, key);
}

/* Whether the program holds what its source does: loading and building may succeed with less. */
static int find_kernels(cl_program p, const char *name, uint64_t n_expected)
{
    int code = CL_SUCCESS;
    size_t n = 0;
    cl_kernel k = clCreateKernel(p, name, &code);
    if (code != CL_SUCCESS)
        return code;
    clReleaseKernel(k);
    code = clGetProgramInfo(p, CL_PROGRAM_NUM_KERNELS, sizeof n, &n, NULL);
    return code == CL_SUCCESS && n != n_expected ? CL_INVALID_PROGRAM_EXECUTABLE : code;
}

/* A built program from a payload, or NULL, the step that failed and its code. */
static cl_program load(const struct cld_queue *q, const unsigned char *payload, size_t n_bytes,
                       const char *options, const char *kernel, const char **step, int *code)
{
    cl_int status = CL_SUCCESS;
    uint64_t n_kernels = 0;
    *step = "load";
    *code = CL_INVALID_BINARY;
    if (n_bytes <= sizeof n_kernels)
        return NULL;
    memcpy(&n_kernels, payload, sizeof n_kernels);
    payload += sizeof n_kernels;
    n_bytes -= sizeof n_kernels;
    cl_program p = clCreateProgramWithBinary(q->handle.context, 1, &q->handle.id, &n_bytes,
                                             &payload, &status, code);
    if (*code != CL_SUCCESS)
        return NULL;
    if (status != CL_SUCCESS) {
        *code = status;
    } else {
        *step = "build";
        *code = clBuildProgram(p, 1, &q->handle.id, options, NULL, NULL);
    }
    if (*code == CL_SUCCESS) {
        *step = "give its kernels";
        *code = find_kernels(p, kernel, n_kernels);
    }
    if (*code == CL_SUCCESS)
        return p;
    clReleaseProgram(p);
    return NULL;
}

/* At the first program, so that a queue which only plans makes no directory and no warning. */
static void open_cache(struct cld_queue *q)
{
    if (!q->cache_dir || q->cache || (q->cache = cld_cache_open(q->cache_dir, CLD_CACHE_CAP_BYTES)))
        return;
    free(q->cache_dir);
    q->cache_dir = NULL;
}

cl_program cld_program_load(struct cld_queue *q, const char *key, const char *options,
                            const char *kernel, const char *variant)
{
    unsigned char *payload = NULL;
    size_t n_bytes = 0;
    const char *step = NULL;
    int code = CL_SUCCESS;
    open_cache(q);
    if (!q->cache || !cld_cache_get(q->cache, key, &payload, &n_bytes))
        return NULL;
    cl_program p = load(q, payload, n_bytes, options, kernel, &step, &code);
    free(payload);
    if (!p) {
        cld_warn("%s: the cached binary of %s does not %s (%s); it is built from source",
                 q->handle.name, variant, step, cld_cl_error_name(code));
        cld_cache_drop(q->cache, key);
    }
    return p;
}

/* The payload of a program, or NULL with *code: the driver has no binary, or memory is short. */
static unsigned char *payload_of(cl_program p, size_t *n_bytes, int *code)
{
    size_t n_binary = 0, n = 0;
    uint64_t n_kernels = 0;
    *code = clGetProgramInfo(p, CL_PROGRAM_NUM_KERNELS, sizeof n, &n, NULL);
    if (*code == CL_SUCCESS)
        *code = clGetProgramInfo(p, CL_PROGRAM_BINARY_SIZES, sizeof n_binary, &n_binary, NULL);
    if (*code != CL_SUCCESS || !n_binary)
        return NULL;
    n_kernels = n;
    *n_bytes = cld_add(n_binary, sizeof n_kernels);
    unsigned char *payload = malloc(*n_bytes), *binary = payload + sizeof n_kernels;
    if (!payload)
        return NULL;
    memcpy(payload, &n_kernels, sizeof n_kernels);
    *code = clGetProgramInfo(p, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL);
    if (*code == CL_SUCCESS)
        return payload;
    free(payload);
    return NULL;
}

void cld_program_keep(struct cld_queue *q, const char *key, cl_program p, const char *variant)
{
    size_t n_bytes = 0;
    int code = CL_SUCCESS;
    if (!q->cache)
        return;
    unsigned char *payload = payload_of(p, &n_bytes, &code);
    if (payload)
        cld_cache_put(q->cache, key, payload, n_bytes);
    else
        cld_debug("%s: no binary of %s to keep (%s)", q->handle.name, variant,
                  cld_cl_error_name(code));
    free(payload);
}
