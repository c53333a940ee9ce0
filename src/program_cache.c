/* program_cache.c - what a driver gives for a built program, kept on disk and loaded from there.
 *
 * What implementations call a binary differs: PTX text, IR, machine code. All are taken as they are;
 * whatever does not load, build and hold its kernel is dropped, and the caller builds from source. */
#include "queue_private.h"

#include <stdlib.h>

#include "cl_error.h"
#include "log.h"

void cld_program_key(const struct cld_queue *q, const char *source, const char *variant,
                     char key[CLD_SHA256_HEX_BYTES])
{
    const struct cld_device_info *d = &q->device;
    const char *texts[] = {source,     variant,    d->name,     d->vendor,
                           d->driver,  d->version, d->platform, d->platform_version};
    cld_cache_key(texts, sizeof texts / sizeof *texts, key);
}

/* Whether the program really has the kernel: loading and building may succeed with less in it. */
static int find_kernel(cl_program p, const char *name)
{
    int code = CL_SUCCESS;
    cl_kernel k = clCreateKernel(p, name, &code);
    if (code == CL_SUCCESS)
        clReleaseKernel(k);
    return code;
}

static cl_program load(const struct cld_queue *q, const unsigned char *binary, size_t n_bytes,
                       const char *options, const char *kernel, const char **step, int *code)
{
    cl_int status = CL_SUCCESS;
    *step = "load";
    cl_program p = clCreateProgramWithBinary(q->context, 1, &q->id, &n_bytes, &binary, &status,
                                             code);
    if (*code != CL_SUCCESS)
        return NULL;
    if (status != CL_SUCCESS) {
        *code = status;
    } else {
        *step = "build";
        *code = clBuildProgram(p, 1, &q->id, options, NULL, NULL);
    }
    if (*code == CL_SUCCESS) {
        *step = "give its kernel";
        *code = find_kernel(p, kernel);
    }
    if (*code == CL_SUCCESS)
        return p;
    clReleaseProgram(p);
    return NULL;
}

cl_program cld_program_load(const struct cld_queue *q, const char *key, const char *options,
                            const char *kernel, const char *variant)
{
    unsigned char *binary = NULL;
    size_t n_bytes = 0;
    const char *step = NULL;
    int code = CL_SUCCESS;
    if (!q->cache || !cld_cache_get(q->cache, key, &binary, &n_bytes))
        return NULL;
    cl_program p = load(q, binary, n_bytes, options, kernel, &step, &code);
    free(binary);
    if (!p) {
        cld_warn("%s: the cached binary of %s does not %s (%s); it is built from source", q->name,
                 variant, step, cld_cl_error_name(code));
        cld_cache_drop(q->cache, key);
    }
    return p;
}

void cld_program_keep(const struct cld_queue *q, const char *key, cl_program p,
                      const char *variant)
{
    size_t n_bytes = 0;
    if (!q->cache)
        return;
    int code = clGetProgramInfo(p, CL_PROGRAM_BINARY_SIZES, sizeof n_bytes, &n_bytes, NULL);
    unsigned char *binary = code == CL_SUCCESS && n_bytes ? malloc(n_bytes) : NULL;
    if (binary)
        code = clGetProgramInfo(p, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL);
    if (binary && code == CL_SUCCESS)
        cld_cache_put(q->cache, key, binary, n_bytes);
    else
        cld_debug("%s: no binary of %s to keep: %zu bytes, %s", q->name, variant, n_bytes,
                  cld_cl_error_name(code));
    free(binary);
}
