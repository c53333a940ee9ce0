/* cmd_devices.c - what is there: platforms, devices, limits, known faults, kernels chosen, and
 * whether a kernel was built and computed right. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/log.h"
#include "base/size.h"
#include "cli/cmd.h"
#include "opencl/cache.h"
#include "opencl/device.h"
#include "ops/op_attention.h"
#include "ops/op_gemm.h"
#include "ops/ops.h"
#include "ops/tensor_io.h"
#include "ops/tuning.h"
#include "ops/verdicts.h"

enum { N_PROBE = 1000 };

/* Extensions that tell which kernels may come to be used; -v and JSON have all of them. */
static const char *const telling[] = {"cl_khr_fp16",
                                      "cl_khr_fp64",
                                      "cl_khr_il_program",
                                      "cl_khr_spirv_queries",
                                      "cl_khr_subgroups",
                                      "cl_intel_subgroups",
                                      "cl_intel_subgroup_matrix_multiply_accumulate",
                                      "cl_khr_integer_dot_product",
                                      "cl_nv_device_attribute_query"};

/* What was found by using a device. */
struct findings {
    bool probed; /* false: only looked up, with --no-probe */
    bool passed;
    char why[sizeof((struct cld_error *)0)->what]; /* not passed: because ... */
    /* "" where the device could not be used */
    char gemm[128], attention[128], tuning[cld_tuning_text_bytes];
    char ptx[CLD_N_PROBES][320]; /* "works", "refused: ..."; "" off NVIDIA */
};

/* --- probe ------------------------------------------------------------------------------------ */

/* Fills one vector on the device, writes another, adds them there: exact in float. */
static enum cld_status compute(struct cld_queue *q, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    float values[N_PROBE];
    struct cld_tensor t[3];
    const char *const names[] = {"probe a", "probe b", "probe sum"};
    for (int i = 0; i < 3; i++) {
        struct cld_buf *b = NULL;
        if ((s = cld_buf_create(q, names[i], sizeof values, &b, err)))
            return s;
        t[i] = (struct cld_tensor){names[i], CLD_F32, 1, N_PROBE, N_PROBE, b, 0};
    }
    for (int i = 0; i < N_PROBE; i++)
        values[i] = (float)(i - N_PROBE / 2) * 0.25f;
    if ((s = cld_tensor_write(&t[0], 0, 1, values, err)) || (s = cld_fill(q, &t[1], 1.5f, err)) ||
        (s = cld_add_tensors(q, &t[0], &t[1], &t[2], err)) ||
        (s = cld_tensor_read(&t[2], 0, 1, values, err)))
        return s;
    for (int i = 0; i < N_PROBE; i++)
        if (values[i] != (float)(i - N_PROBE / 2) * 0.25f + 1.5f)
            return cld_fail(err, CLD_E_CHECK,
                            "the driver computes wrongly; update it or use another device",
                            "element %d of a sum is %g, not %g", i, (double)values[i],
                            (i - N_PROBE / 2) * 0.25 + 1.5);
    return CLD_OK;
}

static void note_verdicts(const struct cld_verdicts *v, struct findings *f)
{
    for (int i = 0; i < CLD_N_PROBES; i++)
        snprintf(f->ptx[i], sizeof f->ptx[i], "%s%s%s", cld_probe_verdict_name(v->is[i]),
                 v->why[i][0] ? ": " : "", v->why[i]);
}

/* Probes of NVIDIA's instruction sets, run now or looked up; their bits. */
static unsigned find_sets(const struct cld_device_info *d, const char *dir, struct findings *f)
{
    struct cld_verdicts v;
    if (!cld_device_is_nvidia(d))
        return 0;
    if (f->probed) {
        cld_verdicts_renew(d, dir, &v);
    } else if (!cld_verdicts_read(d, dir, &v)) {
        for (int i = 0; i < CLD_N_PROBES; i++)
            snprintf(f->ptx[i], sizeof f->ptx[i], "no verdict stored");
        return 0;
    }
    note_verdicts(&v, f);
    return cld_verdicts_bits(&v);
}

/* Opens the device, asks what a training run would use on it, and, with f->probed, computes
 * something. Never ends the command: failures are findings. */
static void find(const struct cld_device_info *d, struct findings *f)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_queue *q = NULL;
    struct cld_tuning tuning;
    struct cld_queue_options options = {
        .name = "probe", .tuning = &tuning, .plans_only = !f->probed};
    char *dir = NULL;
    /* Of a drafter for a target of 8B parameters: 512 anchors of 16 rows, 3072 tokens. */
    const size_t n_q = 512 * 16, n_keys = 3072 + n_q;
    struct cld_attention_plan plan;
    if (!d->available) {
        snprintf(f->why, sizeof f->why, "it is not available or has no compiler");
        return;
    }
    if (cld_cache_dir(NULL, &dir, &err) || cld_tuning_load(NULL, dir, d, &tuning, &err))
        goto done;
    options.instruction_sets = find_sets(d, dir, f);
    if (cld_queue_open(d, &options, &q, &err))
        goto done;
    snprintf(f->gemm, sizeof f->gemm, "%s", cld_gemm_backend_name(q, CLD_GEMM_AUTO));
    cld_tuning_text(q, f->tuning, sizeof f->tuning);
    if (tuning.note[0])
        cld_warn("%s: %s", d->name, tuning.note);
    if (cld_attention_plan(q, CLD_ATTENTION_SPARSE, n_q, n_keys, 32, 8, 128, CLD_BF16, CLD_F32,
                           true, &plan, &err))
        goto done;
    snprintf(f->attention, sizeof f->attention, "%s", plan.variant);
    f->passed = f->probed && !compute(q, &err);
done:
    if (!f->passed)
        snprintf(f->why, sizeof f->why, "%s", err.what);
    free(dir);
    cld_queue_close(q);
}

/* --- text ------------------------------------------------------------------------------------- */

static void print_extensions(const struct cld_device_info *d, bool all)
{
    size_t n = 0;
    for (const char *at = d->extensions + strspn(d->extensions, " "); *at; n++) {
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    if (all) {
        printf("    extensions  %s\n", d->extensions);
        return;
    }
    printf("    extensions ");
    for (size_t i = 0; i < sizeof telling / sizeof *telling; i++)
        if (cld_device_has_extension(d, telling[i]))
            printf(" %s", telling[i]);
    printf(" (of %zu; -v shows all)\n", n);
}

static void print_memory(const struct cld_device_info *d)
{
    printf("    memory      %.2f GiB, largest buffer %.2f GiB", cld_gib((double)d->global_bytes),
           cld_gib((double)d->max_alloc_bytes));
    if (d->max_alloc_bytes != d->reported_max_alloc_bytes)
        printf(" (reported: %.2f GiB)", cld_gib((double)d->reported_max_alloc_bytes));
    printf(", local %zu KiB\n", d->local_bytes / 1024);
}

static void print_quirks(const struct cld_device_info *d)
{
    const struct cld_quirk_info *q;
    for (size_t i = 0; (q = cld_quirk_at(i)); i++)
        if (cld_quirk_fits(q, d->platform, d->platform_version, d->driver))
            printf("    quirk       %s: %s\n", q->name, q->what);
}

static void print_device(const struct cld_device_info *d, const struct findings *f, bool all)
{
    printf("  device %zu: %s (%s)\n", d->index, d->name, d->vendor);
    printf("    driver      %s\n", d->driver);
    printf("    version     %s, %s\n", d->version, d->c_version);
    print_memory(d);
    printf("    limits      %zu compute units, work-groups of up to %zu\n", d->n_compute_units,
           d->max_group);
    printf("    IL          %s; SPIR-V modules %s%s\n", d->il_version[0] ? d->il_version : "none",
           cld_module_route(d) ? "as " : "not at all",
           cld_module_route(d) ? cld_module_route(d) : "");
    print_extensions(d, all);
    print_quirks(d);
    printf("    kernels     %s family\n", d->class == CLD_CLASS_CPU ? "CPU" : "GPU");
    for (int i = 0; i < CLD_N_PROBES; i++)
        if (f->ptx[i][0])
            printf("    ptx         %s: %s\n",
                   cld_instruction_set_name((enum cld_instruction_set)i), f->ptx[i]);
    if (f->gemm[0])
        printf("    gemm        %s\n", f->gemm);
    if (f->tuning[0])
        printf("    tuned       %s\n", f->tuning);
    if (f->attention[0])
        printf("    attention   %s\n", f->attention);
    if (f->passed)
        printf("    probe       passed\n");
    else if (!f->probed && !f->why[0])
        printf("    probe       not run (--no-probe)\n");
    else
        printf("    probe       failed, because %s\n", f->why);
}

static void print_tree(const struct cld_devices *list, bool all, bool probe)
{
    size_t n_platforms = 0;
    for (size_t i = 0; i < list->n; i++) {
        const struct cld_device_info *d = &list->at[i];
        struct findings f = {.probed = probe};
        if (!i || d->cl_platform != list->at[i - 1].cl_platform)
            printf("platform %zu: %s (%s)\n", n_platforms++, d->platform, d->platform_version);
        find(d, &f);
        print_device(d, &f, all);
        fflush(stdout); /* a driver that dies in its probe leaves the others' lines */
    }
    if (list->note[0])
        printf("note: %s\n", list->note);
}

/* --- JSON ------------------------------------------------------------------------------------- */

/* Drivers may say anything; what is not UTF-8 is left out. */
static json_t *text(const char *s)
{
    json_t *v = json_string(s);
    return v ? v : json_string("");
}

static json_t *quirks_of(const struct cld_device_info *d)
{
    const struct cld_quirk_info *q;
    json_t *list = json_array();
    for (size_t i = 0; (q = cld_quirk_at(i)); i++)
        if (cld_quirk_fits(q, d->platform, d->platform_version, d->driver))
            json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s}", "name", q->name, "what",
                                                  q->what, "action", q->action, "link", q->link));
    return list;
}

static json_t *extensions_of(const struct cld_device_info *d)
{
    json_t *list = json_array();
    for (const char *at = d->extensions + strspn(d->extensions, " "); *at;) {
        size_t n = strcspn(at, " ");
        json_array_append_new(list, json_stringn(at, n));
        at += n;
        at += strspn(at, " ");
    }
    return list;
}

static json_t *device_object(const struct cld_device_info *d, bool probe)
{
    struct findings f = {.probed = probe};
    find(d, &f);
    json_t *what = json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "index",
                             (json_int_t)d->index, "name", text(d->name), "vendor", text(d->vendor),
                             "platform", text(d->platform), "platform_version",
                             text(d->platform_version), "driver", text(d->driver), "version",
                             text(d->version), "c_version", text(d->c_version), "il_version",
                             text(d->il_version), "available", (int)d->available);
    json_t *limits = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "global_bytes",
        (json_int_t)d->global_bytes, "max_buffer_bytes", (json_int_t)d->max_alloc_bytes,
        "reported_max_buffer_bytes", (json_int_t)d->reported_max_alloc_bytes, "local_bytes",
        (json_int_t)d->local_bytes, "base_align_bytes", (json_int_t)d->base_align_bytes,
        "max_group", (json_int_t)d->max_group, "compute_units", (json_int_t)d->n_compute_units,
        "extensions", extensions_of(d), "quirks", quirks_of(d));
    json_t *found =
        json_pack("{s:s, s:s?, s:o, s:o, s:o, s:{s:b, s:b, s:o}}", "kernels",
                  d->class == CLD_CLASS_CPU ? "cpu" : "gpu", "modules", cld_module_route(d), "gemm",
                  text(f.gemm), "tuned", text(f.tuning), "attention", text(f.attention), "probe",
                  "run", (int)f.probed, "passed", (int)f.passed, "why", text(f.why));
    if (what && (json_object_update(what, limits) || json_object_update(what, found))) {
        json_decref(what);
        what = NULL;
    }
    for (int i = 0; what && i < CLD_N_PROBES; i++)
        if (f.ptx[i][0])
            json_object_set_new(what, cld_instruction_set_name((enum cld_instruction_set)i),
                                text(f.ptx[i]));
    json_decref(limits);
    json_decref(found);
    return what;
}

static enum cld_status print_json(const struct cld_devices *list, bool probe, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    json_t *devices = json_array(), *root = NULL;
    for (size_t i = 0; i < list->n && !s; i++)
        if (json_array_append_new(devices, device_object(&list->at[i], probe)))
            s = cld_fail_memory(err, "describing device %zu", i);
    root = json_pack("{s:I, s:O, s:o}", "platforms", (json_int_t)list->n_platforms, "devices",
                     devices, "note", text(list->note));
    if (!s && (!root || json_dumpf(root, stdout, JSON_INDENT(2))))
        s = cld_fail(err, CLD_E_IO, cld_io_hint(errno), "cannot write JSON to stdout");
    else if (!s)
        printf("\n");
    json_decref(devices);
    json_decref(root);
    return s;
}

enum cld_status cld_cmd_devices(const struct cld_args *a, struct cld_error *err)
{
    struct cld_devices *list = NULL;
    enum cld_status s = cld_devices_open(&list, err);
    if (s)
        return s;
    bool probe = !cld_args_flag(a, "no-probe");
    if (cld_args_flag(a, "json"))
        s = print_json(list, probe, err);
    else if (list->n)
        print_tree(list, cld_args_flag(a, "verbose"), probe);
    if (!s && !list->n)
        s = cld_fail(err, CLD_E_DEVICE,
                     "install an OpenCL driver (ICD), for example PoCL, and check OCL_ICD_VENDORS",
                     "%s", list->note);
    cld_devices_close(list);
    return s;
}
