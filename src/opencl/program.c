/* program.c - kernel variants: embedded source with build options, from the queue's program source.
 */
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
        s = cld_cl_fail(err, code, "%s: cannot read the text of %s", q->handle.name, key);
        goto done;
    }
    if ((s = cld_ptx_change(text, n_text, change, &changed, &n_changed, &report, err))) {
        cld_fail_prefix(err, "%s: %s", q->handle.name, key);
        goto done;
    }
    assembled = clCreateProgramWithBinary(q->handle.context, 1, &q->handle.id, &n_changed,
                                          (const unsigned char **)(uintptr_t)&changed, NULL, &code);
    if (code != CL_SUCCESS) {
        assembled = NULL;
        s = cld_cl_fail(err, code, "%s: the changed text of %s was refused", q->handle.name, key);
        goto done;
    }
    q->handle.counts.n_builds++;
    if ((s = cld_program_compile(q, assembled, "", key, err)))
        goto done;
    cld_debug(
        "%s: %s: PTX %s, %s to %s, %zu instructions uncommented, %zu of %zu kernels capped at "
        "%u registers, local memory of %zu bytes to %zu",
        q->handle.name, key, report.version, report.from, report.to, report.n_uncommented,
        report.n_capped, report.n_kernels, change->max_registers, report.local_from,
        change->local_bytes);
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
        q->handle.counts.n_cached++;
        cld_debug("%s: loaded from the cache: %s", q->handle.name, key);
        return CLD_OK;
    }
    if (!(s = cld_program_build(q, source, n_bytes, key, options, out, err)) &&
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
    cld_warn("%s: %s does not build from source; its SPIR-V module is used", q->handle.name, key);
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
    q->handle.counts.build_ms += ended - begun;
    q->handle.counts.build_wait_ms += begun - asked;
    if (!s)
        cld_debug("%s: made %s in %.0f ms (waited %.0f ms for the lock)", q->handle.name, key,
                  ended - begun, begun - asked);
    free(source);
    return s;
}

/* " ptx=sm_90a,128,0" at the end of the key of a program, or "". */
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
    char *options =
        cld_format("-cl-std=CL1.2 -w -DCLD_CPU=%d %s", q->handle.device.class == CLD_CLASS_CPU,
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
                        q->handle.name, key);
    if (q->sealed)
        return cld_fail(err, CLD_E_DEVICE, "the warm-up of this worker missed it; report it",
                        "%s: kernel variant %s was not built before the run began (thread %s)",
                        q->handle.name, key, cld_log_current_thread());
    if (change && !q->has_ptx)
        return cld_fail(err, CLD_E_DEVICE, "choose another back-end",
                        "%s: %s needs inline PTX, which %s", q->handle.name, key,
                        cld_device_is_nvidia(&q->handle.device) ? "exists as source alone"
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
        s = cld_cl_fail(err, code, "%s: no kernel %s in %s", q->handle.name, spec->name,
                        spec->file);
        goto done;
    }
    k->local = spec->local ? spec->local : 1;
    k->next = q->kernels;
    q->kernels = k;
    q->handle.counts.n_kernels++;
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

bool cld_kernels_fit(struct cld_queue *q, size_t n_before, size_t max_private_bytes,
                     size_t *private_bytes, char *why, size_t n_bytes)
{
    size_t n_new = q->handle.counts.n_kernels - n_before;
    *private_bytes = 0;
    for (struct cld_kernel *k = q->kernels; k && n_new; k = k->next, n_new--) {
        size_t max_group = k->local;
        cl_ulong own = 0, local = 0;
        clGetKernelWorkGroupInfo(k->kernel, q->handle.id, CL_KERNEL_WORK_GROUP_SIZE,
                                 sizeof max_group, &max_group, NULL);
        clGetKernelWorkGroupInfo(k->kernel, q->handle.id, CL_KERNEL_PRIVATE_MEM_SIZE, sizeof own,
                                 &own, NULL);
        clGetKernelWorkGroupInfo(k->kernel, q->handle.id, CL_KERNEL_LOCAL_MEM_SIZE, sizeof local,
                                 &local, NULL);
        if (max_group < k->local)
            snprintf(why, n_bytes, "registers: groups of %zu at most, it wants %zu", max_group,
                     k->local);
        else if (local > q->handle.device.local_bytes)
            snprintf(why, n_bytes, "local memory: %zu bytes of %zu", (size_t)local,
                     q->handle.device.local_bytes);
        else if (own > max_private_bytes)
            snprintf(why, n_bytes, "registers: a work-item has %zu bytes in memory", (size_t)own);
        if (max_group < k->local || local > q->handle.device.local_bytes || own > max_private_bytes)
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
