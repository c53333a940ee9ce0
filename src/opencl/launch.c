/* launch.c - arguments, grids and launches of kernels, and their times. */
#include "opencl/queue_private.h"

#include <stdlib.h>

#include "base/grow.h"
#include "base/size.h"
#include "opencl/cl_error.h"

static enum cld_status set_arg(struct cld_kernel *k, size_t i, const struct cld_arg *a,
                               struct cld_error *err)
{
    static const cl_mem none = NULL;
    size_t n = 0;
    const void *at = NULL;
    switch (a->kind) {
    case CLD_ARG_BUF:
        n = sizeof(cl_mem);
        at = a->buf ? &a->buf->mem : &none;
        break;
    case CLD_ARG_I32:
        n = sizeof a->i;
        at = &a->i;
        break;
    case CLD_ARG_U64:
        n = sizeof a->u;
        at = &a->u;
        break;
    case CLD_ARG_F32:
        n = sizeof a->f;
        at = &a->f;
        break;
    case CLD_ARG_LOCAL:
        n = (size_t)a->u;
        break;
    }
    int code = clSetKernelArg(k->kernel, (cl_uint)i, n, at);
    return code == CL_SUCCESS ? CLD_OK : cld_cl_fail(err, code, "argument %zu of %s", i, k->key);
}

/* Groups that run. Kernels loop over their work, so this is a choice of ours: on a CPU a fixed
 * number that fills the cores evenly, on a GPU one group a piece up to a cap. Where a driver minds
 * growing grids the number is a constant. */
static size_t grid_groups(const struct cld_queue *q, size_t n_groups)
{
    if (q->handle.device.class == CLD_CLASS_CPU || q->handle.device.quirks & CLD_QUIRK_FIXED_GRID)
        return 16 * q->handle.device.n_compute_units;
    return cld_min(n_groups, (size_t)1 << 20);
}

static enum cld_status keep_event(struct cld_queue *q, struct cld_kernel *k, cl_event e,
                                  struct cld_error *err)
{
    enum cld_status s =
        cld_grow(&q->events, &q->cap_events, q->n_events + 1, sizeof *q->events, err);
    if (s) {
        clReleaseEvent(e);
        return s;
    }
    q->events[q->n_events++] = (struct timed_event){e, k};
    return CLD_OK;
}

enum cld_status cld_launch(struct cld_queue *q, struct cld_kernel *k, size_t n_groups,
                           const struct cld_arg *args, size_t n_args, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    cl_event event = NULL;
    cld_queue_check_owner(q, "cld_launch");
    if (!n_groups || q->list)
        return CLD_OK;
    for (size_t i = 0; i < n_args; i++)
        if ((s = set_arg(k, i, &args[i], err)))
            return s;
    size_t global = cld_mul(grid_groups(q, n_groups), k->local);
    int code = clEnqueueNDRangeKernel(q->handle.queue, k->kernel, 1, NULL, &global, &k->local, 0,
                                      NULL, q->handle.profile ? &event : NULL);
    if (code != CL_SUCCESS)
        return cld_cl_fail(err, code, "%s: launch of %s (%zu items, groups of %zu)", q->handle.name,
                           k->key, global, k->local);
    q->handle.counts.n_launches++;
    return q->handle.profile ? keep_event(q, k, event, err) : CLD_OK;
}

enum cld_status cld_run(struct cld_queue *q, const struct cld_kernel_spec *spec, size_t n_groups,
                        const struct cld_arg *args, size_t n_args, struct cld_error *err)
{
    struct cld_kernel *k = NULL;
    enum cld_status s = cld_kernel_get(q, spec, &k, err);
    return s ? s : cld_launch(q, k, n_groups, args, n_args, err);
}

static void collect_events(struct cld_queue *q)
{
    for (size_t i = 0; i < q->n_events; i++) {
        cl_ulong from = 0, to = 0;
        clGetEventProfilingInfo(q->events[i].event, CL_PROFILING_COMMAND_START, sizeof from, &from,
                                NULL);
        clGetEventProfilingInfo(q->events[i].event, CL_PROFILING_COMMAND_END, sizeof to, &to, NULL);
        q->events[i].kernel->n_timed++;
        q->events[i].kernel->ms += (double)(to - from) * 1e-6;
        clReleaseEvent(q->events[i].event);
    }
    q->n_events = 0;
}

enum cld_status cld_queue_times(struct cld_queue *q, struct cld_kernel_time **out, size_t *n,
                                struct cld_error *err)
{
    enum cld_status s = cld_command_queue_finish(&q->handle, err);
    *out = NULL;
    *n = 0;
    if (s)
        return s;
    collect_events(q);
    struct cld_kernel_time *t = calloc(q->handle.counts.n_kernels + 1, sizeof *t);
    if (!t)
        return cld_fail_memory(err, "kernel times");
    for (struct cld_kernel *k = q->kernels; k; k = k->next)
        if (k->n_timed)
            t[(*n)++] = (struct cld_kernel_time){k->key, k->n_timed, k->ms};
    *out = t;
    return CLD_OK;
}

void cld_queue_times_reset(struct cld_queue *q)
{
    collect_events(q);
    for (struct cld_kernel *k = q->kernels; k; k = k->next) {
        k->n_timed = 0;
        k->ms = 0;
    }
}
