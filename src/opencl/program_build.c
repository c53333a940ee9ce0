/* program_build.c - the driver's compiler: one build at a time in the whole process, and its log.
 */
#include "opencl/queue_private.h"

#include <stdlib.h>

#include "base/log.h"
#include "opencl/cl_error.h"

/* Compilers of several vendors are not thread-safe, so one build at a time in the whole process. */
static pthread_mutex_t build_lock = PTHREAD_MUTEX_INITIALIZER;

void cld_build_lock(void)
{
    pthread_mutex_lock(&build_lock);
}

void cld_build_unlock(void)
{
    pthread_mutex_unlock(&build_lock);
}

static enum cld_status fail_build(struct cld_queue *q, cl_program p, int code, const char *key,
                                  struct cld_error *err)
{
    size_t n = 0;
    clGetProgramBuildInfo(p, q->handle.id, CL_PROGRAM_BUILD_LOG, 0, NULL, &n);
    char *log = calloc(1, n + 1);
    if (log && n)
        clGetProgramBuildInfo(p, q->handle.id, CL_PROGRAM_BUILD_LOG, n, log, NULL);
    if (log && *log)
        cld_warn("build log of %s:\n%.1500s", key, log);
    cld_cl_fail(err, code, "%s: build of %s failed: %.300s", q->handle.name, key, log ? log : "");
    free(log);
    return err->status;
}

enum cld_status cld_program_compile(struct cld_queue *q, cl_program p, const char *options,
                                    const char *key, struct cld_error *err)
{
    int code = clBuildProgram(p, 1, &q->handle.id, options, NULL, NULL);
    return code == CL_SUCCESS ? CLD_OK : fail_build(q, p, code, key, err);
}

enum cld_status cld_program_build(struct cld_queue *q, const char *source, size_t n_bytes,
                                  const char *key, const char *options, cl_program *out,
                                  struct cld_error *err)
{
    int code = CL_SUCCESS;
    cl_program p = clCreateProgramWithSource(q->handle.context, 1,
                                             (const char **)(uintptr_t)&source, &n_bytes, &code);
    if (code != CL_SUCCESS)
        return cld_cl_fail(err, code, "%s: cannot make a program of %s", q->handle.name, key);
    q->handle.counts.n_builds++;
    enum cld_status s = cld_program_compile(q, p, options, key, err);
    if (s)
        clReleaseProgram(p);
    else
        *out = p;
    return s;
}
