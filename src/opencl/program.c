/* program.c - kernel variants: embedded source, build options, build or cache, launch. */
#include "opencl/queue_private.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/size.h"
#include "opencl/cl_error.h"
#include "opencl/kernel_source.h"
#include "opencl/ptx.h"

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
    clGetProgramBuildInfo(p, q->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &n);
    char *log = calloc(1, n + 1);
    if (log && n)
        clGetProgramBuildInfo(p, q->id, CL_PROGRAM_BUILD_LOG, n, log, NULL);
    if (log && *log)
        cld_warn("build log of %s:\n%.1500s", key, log);
    cld_cl_fail(err, code, "%s: build of %s failed: %.300s", q->name, key, log ? log : "");
    free(log);
    return err->status;
}

enum cld_status cld_program_compile(struct cld_queue *q, cl_program p, const char *options,
                                    const char *key, struct cld_error *err)
{
    int code = clBuildProgram(p, 1, &q->id, options, NULL, NULL);
    return code == CL_SUCCESS ? CLD_OK : fail_build(q, p, code, key, err);
}

static enum cld_status build_source(struct cld_queue *q, const char *source, size_t n_bytes,
                                    const char *key, const char *options, cl_program *out,
                                    struct cld_error *err)
{
    int code = CL_SUCCESS;
    cl_program p = clCreateProgramWithSource(q->context, 1, (const char **)(uintptr_t)&source,
                                             &n_bytes, &code);
    if (code != CL_SUCCESS)
        return cld_cl_fail(err, code, "%s: cannot make a program of %s", q->name, key);
    q->counts.n_builds++;
    enum cld_status s = cld_program_compile(q, p, options, key, err);
    if (s)
        clReleaseProgram(p);
    else
        *out = p;
    return s;
}

/* Replaces a built program by one made of its changed text (ptx.h). */
static enum cld_status change_text(struct cld_queue *q, const struct cld_ptx_change *change,
                                   const char *key, cl_program *p, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *text = NULL, *changed = NULL;
    size_t n_text = 0, n_changed = 0;
    cl_program assembled = NULL;
    struct cld_ptx_report report;
    int code = clGetProgramInfo(*p, CL_PROGRAM_BINARY_SIZES, sizeof n_text, &n_text, NULL);
    if (code == CL_SUCCESS && !(text = malloc(n_text + 1)))
        return cld_fail_memory(err, "the text of %s", key);
    if (code == CL_SUCCESS)
        code = clGetProgramInfo(*p, CL_PROGRAM_BINARIES, sizeof text, &text, NULL);
    if (code != CL_SUCCESS) {
        s = cld_cl_fail(err, code, "%s: cannot read the text of %s", q->name, key);
        goto done;
    }
    if ((s = cld_ptx_change(text, n_text, change, &changed, &n_changed, &report, err))) {
        cld_fail_prefix(err, "%s: %s", q->name, key);
        goto done;
    }
    assembled = clCreateProgramWithBinary(q->context, 1, &q->id, &n_changed,
                                          (const unsigned char **)(uintptr_t)&changed, NULL, &code);
    if (code != CL_SUCCESS) {
        assembled = NULL;
        s = cld_cl_fail(err, code, "%s: the changed text of %s was refused", q->name, key);
        goto done;
    }
    q->counts.n_builds++;
    if ((s = cld_program_compile(q, assembled, "", key, err)))
        goto done;
    cld_debug(
        "%s: %s: PTX %s, %s to %s, %zu instructions uncommented, %zu of %zu kernels capped at "
        "%u registers, local memory of %zu bytes to %zu",
        q->name, key, report.version, report.from, report.to, report.n_uncommented, report.n_capped,
        report.n_kernels, change->max_registers, report.local_from, change->local_bytes);
    clReleaseProgram(*p);
    *p = assembled;
    assembled = NULL;
done:
    if (assembled)
        clReleaseProgram(assembled);
    free(text);
    free(changed);
    return s;
}

static const char *override_of(const struct cld_queue *q, const char *file)
{
    const struct cld_program_options *o = &q->program_options;
    for (size_t i = 0; i < o->n_overrides; i++)
        if (!strcmp(o->overrides[i].file, file))
            return o->overrides[i].path;
    return NULL;
}

/* By way of the cache, which gets what is built here. */
static enum cld_status build_or_load(struct cld_queue *q, const struct cld_kernel_spec *spec,
                                     const char *source, size_t n_bytes, const char *key,
                                     const char *options, const struct cld_ptx_change *change,
                                     cl_program *out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char cached[CLD_SHA256_HEX_BYTES];
    cld_program_key(q, source, key, cached);
    if ((*out = cld_program_load(q, cached, options, spec->name, key))) {
        q->counts.n_cached++;
        cld_debug("%s: took from the cache %s", q->name, key);
        return CLD_OK;
    }
    if (!(s = build_source(q, source, n_bytes, key, options, out, err)) &&
        !(change && (s = change_text(q, change, key, out, err))))
        cld_program_keep(q, cached, *out, key); /* before another thread wants the same */
    if (s && *out) {
        clReleaseProgram(*out);
        *out = NULL;
    }
    return s;
}

/* From what the queue's options say. */
static enum cld_status make_program(struct cld_queue *q, const struct cld_kernel_spec *spec,
                                    const char *source, size_t n_bytes, const char *key,
                                    const char *options, const struct cld_ptx_change *change,
                                    cl_program *out, struct cld_error *err)
{
    enum cld_program_source from = q->program_options.source;
    const char *override = override_of(q, spec->file);
    struct cld_error other = CLD_ERROR_INIT;
    if (override)
        return cld_program_of_override(q, override, spec->name, out, err);
    if (from == CLD_PROGRAM_SPIRV)
        return cld_program_of_module(q, source, spec->file, options, spec->name, out, err);
    enum cld_status s = build_or_load(q, spec, source, n_bytes, key, options, change, out, err);
    if (s != CLD_E_DEVICE || from != CLD_PROGRAM_AUTO || change ||
        cld_program_of_module(q, source, spec->file, options, spec->name, out, &other))
        return s;
    cld_warn("%s: %s does not build from source; its SPIR-V module is used", q->name, key);
    return CLD_OK;
}

static enum cld_status build(struct cld_queue *q, const struct cld_kernel_spec *spec,
                             const char *key, const char *options,
                             const struct cld_ptx_change *change, cl_program *out,
                             struct cld_error *err)
{
    char *source = NULL;
    size_t n_bytes = 0;
    enum cld_status s = cld_kernel_source(spec->file, &source, &n_bytes, err);
    if (s)
        return s;
    double asked = cld_clock_ms();
    cld_build_lock();
    double begun = cld_clock_ms();
    s = make_program(q, spec, source, n_bytes, key, options, change, out, err);
    double ended = cld_clock_ms();
    cld_build_unlock();
    q->counts.build_ms += ended - begun;
    q->counts.build_wait_ms += begun - asked;
    if (!s)
        cld_debug("%s: made %s in %.0f ms (waited %.0f ms for the lock)", q->name, key,
                  ended - begun, begun - asked);
    free(source);
    return s;
}

/* " ptx=sm_90a,128,0" behind the key of a program, or "". */
static void describe_change(const struct cld_ptx_change *change, char *to, size_t n_bytes)
{
    if (change)
        snprintf(to, n_bytes, " ptx=%s,%u,%zu", change->target ? change->target : "",
                 change->max_registers, change->local_bytes);
    else
        *to = '\0';
}

static enum cld_status get_program(struct cld_queue *q, const struct cld_kernel_spec *spec,
                                   const struct cld_ptx_change *change, struct cld_program **out,
                                   struct cld_error *err)
{
    char ptx[64];
    enum cld_status s = CLD_OK;
    struct cld_program *p = NULL;
    char *options = cld_format("-cl-std=CL1.2 -w -DCLD_CPU=%d %s", q->device.class == CLD_CLASS_CPU,
                               spec->options ? spec->options : "");
    describe_change(change, ptx, sizeof ptx);
    char *key = cld_format("%s %s%s", spec->file, options, ptx);
    if (!options || !key) {
        s = cld_fail_memory(err, "building %s", spec->file);
        goto done;
    }
    for (p = q->programs; p && strcmp(p->key, key); p = p->next)
        ;
    if (p) {
        *out = p;
        goto done;
    }
    if (!(p = calloc(1, sizeof *p))) {
        s = cld_fail_memory(err, "building %s", spec->file);
        goto done;
    }
    s = q->list ? cld_variants_add(q->list, spec->file, options, err) : cld_signals_check(err);
    if (s || (!q->list && (s = build(q, spec, key, options, change, &p->program, err)))) {
        free(p);
        goto done;
    }
    p->key = key;
    key = NULL;
    p->next = q->programs;
    q->programs = p;
    *out = p;
done:
    free(options);
    free(key);
    return s;
}

enum cld_status cld_kernel_get_ptx(struct cld_queue *q, const struct cld_kernel_spec *spec,
                                   const struct cld_ptx_change *change, struct cld_kernel **out,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int code = CL_SUCCESS;
    struct cld_kernel *k = NULL;
    struct cld_program *p = NULL;
    char key[384], ptx[64];
    *out = NULL;
    cld_queue_check_owner(q, "cld_kernel_get");
    describe_change(change, ptx, sizeof ptx);
    snprintf(key, sizeof key, "%s:%s %s local=%zu%s", spec->file, spec->name,
             spec->options ? spec->options : "", spec->local, ptx);
    for (k = q->kernels; k; k = k->next)
        if (!strcmp(k->key, key)) {
            *out = k;
            return CLD_OK;
        }
    if (q->plans_only)
        return cld_fail(err, CLD_E_INTERNAL, "report it", "%s: kernel %s asked for by a plan",
                        q->name, key);
    if (q->sealed)
        return cld_fail(err, CLD_E_DEVICE, "the warm-up of this worker missed it; report it",
                        "%s: kernel variant %s was not built before the run began (thread %s)",
                        q->name, key, cld_log_current_thread());
    if (change && !q->has_ptx)
        return cld_fail(err, CLD_E_DEVICE, "choose another back-end",
                        "%s: %s needs inline PTX, which %s", q->name, key,
                        cld_device_is_nvidia(&q->device) ? "exists as source alone"
                                                         : "only NVIDIA's driver has");
    if ((s = get_program(q, spec, change, &p, err)))
        return s;
    k = calloc(1, sizeof *k);
    if (!k || !(k->key = cld_format("%s", key))) {
        s = cld_fail_memory(err, "kernel %s", key);
        goto done;
    }
    if (!q->list)
        k->kernel = clCreateKernel(p->program, spec->name, &code);
    if (code != CL_SUCCESS) {
        k->kernel = NULL;
        s = cld_cl_fail(err, code, "%s: no kernel %s in %s", q->name, spec->name, spec->file);
        goto done;
    }
    k->local = spec->local ? spec->local : 1;
    k->next = q->kernels;
    q->kernels = k;
    q->counts.n_kernels++;
    *out = k;
    k = NULL;
done:
    if (k)
        free(k->key);
    free(k);
    return s;
}

enum cld_status cld_kernel_get(struct cld_queue *q, const struct cld_kernel_spec *spec,
                               struct cld_kernel **out, struct cld_error *err)
{
    return cld_kernel_get_ptx(q, spec, NULL, out, err);
}

bool cld_kernels_fit(struct cld_queue *q, size_t n_before, size_t most_private_bytes,
                     size_t *private_bytes, char *why, size_t n_bytes)
{
    size_t n_new = q->counts.n_kernels - n_before;
    *private_bytes = 0;
    for (struct cld_kernel *k = q->kernels; k && n_new; k = k->next, n_new--) {
        size_t most_group = k->local;
        cl_ulong own = 0, local = 0;
        clGetKernelWorkGroupInfo(k->kernel, q->id, CL_KERNEL_WORK_GROUP_SIZE, sizeof most_group,
                                 &most_group, NULL);
        clGetKernelWorkGroupInfo(k->kernel, q->id, CL_KERNEL_PRIVATE_MEM_SIZE, sizeof own, &own,
                                 NULL);
        clGetKernelWorkGroupInfo(k->kernel, q->id, CL_KERNEL_LOCAL_MEM_SIZE, sizeof local, &local,
                                 NULL);
        if (most_group < k->local)
            snprintf(why, n_bytes, "registers: groups of %zu at most, it wants %zu", most_group,
                     k->local);
        else if (local > q->device.local_bytes)
            snprintf(why, n_bytes, "local memory: %zu bytes of %zu", (size_t)local,
                     q->device.local_bytes);
        else if (own > most_private_bytes)
            snprintf(why, n_bytes, "registers: a work-item has %zu bytes in memory", (size_t)own);
        if (most_group < k->local || local > q->device.local_bytes || own > most_private_bytes)
            return false;
        *private_bytes = cld_max(*private_bytes, (size_t)own);
    }
    return true;
}

void cld_programs_free(struct cld_queue *q)
{
    for (struct cld_kernel *k; (k = q->kernels);) {
        q->kernels = k->next;
        if (k->kernel)
            clReleaseKernel(k->kernel);
        free(k->key);
        free(k);
    }
    for (struct cld_program *p; (p = q->programs);) {
        q->programs = p->next;
        if (p->program)
            clReleaseProgram(p->program);
        free(p->key);
        free(p);
    }
}

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
    if (q->device.class == CLD_CLASS_CPU || q->device.quirks & CLD_QUIRK_FIXED_GRID)
        return 16 * q->device.n_compute_units;
    return cld_min(n_groups, (size_t)1 << 20);
}

static enum cld_status keep_event(struct cld_queue *q, struct cld_kernel *k, cl_event e,
                                  struct cld_error *err)
{
    if (q->n_events == q->cap_events) {
        size_t cap = cld_max(256, cld_mul(2, q->cap_events));
        struct timed_event *grown = realloc(q->events, cld_mul(cap, sizeof *grown));
        if (!grown) {
            clReleaseEvent(e);
            return cld_fail_memory(err, "%zu timing events", cap);
        }
        q->events = grown;
        q->cap_events = cap;
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
    int code = clEnqueueNDRangeKernel(q->queue, k->kernel, 1, NULL, &global, &k->local, 0, NULL,
                                      q->profile ? &event : NULL);
    if (code != CL_SUCCESS)
        return cld_cl_fail(err, code, "%s: launch of %s (%zu items, groups of %zu)", q->name,
                           k->key, global, k->local);
    q->counts.n_launches++;
    return q->profile ? keep_event(q, k, event, err) : CLD_OK;
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
    enum cld_status s = cld_queue_finish(q, err);
    *out = NULL;
    *n = 0;
    if (s)
        return s;
    collect_events(q);
    struct cld_kernel_time *t = calloc(q->counts.n_kernels + 1, sizeof *t);
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
