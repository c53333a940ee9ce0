#include "opencl/device.h"

#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <CL/cl.h>

#include "base/size.h"
#include "opencl/cl_error.h"

static void platform_text(cl_platform_id p, cl_platform_info what, char *to, size_t n_bytes)
{
    if (clGetPlatformInfo(p, what, n_bytes, to, NULL) != CL_SUCCESS)
        to[0] = 0;
    to[n_bytes - 1] = 0;
}

static void device_text(cl_device_id d, cl_device_info what, char *to, size_t n_bytes)
{
    if (clGetDeviceInfo(d, what, n_bytes, to, NULL) != CL_SUCCESS)
        to[0] = 0;
    to[n_bytes - 1] = 0;
    size_t n = strlen(to); /* some drivers pad names with blanks */
    while (n && to[n - 1] == ' ')
        to[--n] = 0;
}

static size_t device_size(cl_device_id d, cl_device_info what)
{
    cl_ulong v = 0; /* zeroed: some of these are 4 bytes wide */
    return clGetDeviceInfo(d, what, sizeof v, &v, NULL) == CL_SUCCESS ? (size_t)v : 0;
}

static char *device_extensions(cl_device_id d)
{
    size_t n = 0;
    clGetDeviceInfo(d, CL_DEVICE_EXTENSIONS, 0, NULL, &n);
    char *s = calloc(1, n + 1);
    if (s && n)
        clGetDeviceInfo(d, CL_DEVICE_EXTENSIONS, n, s, NULL);
    return s;
}

static enum cld_status describe(cl_platform_id p, cl_device_id id, struct cld_device_info *d,
                                struct cld_error *err)
{
    d->cl_platform = p;
    d->cl_device = id;
    d->n_parts = 1;
    platform_text(p, CL_PLATFORM_NAME, d->platform, sizeof d->platform);
    platform_text(p, CL_PLATFORM_VERSION, d->platform_version, sizeof d->platform_version);
    device_text(id, CL_DEVICE_NAME, d->name, sizeof d->name);
    device_text(id, CL_DEVICE_VENDOR, d->vendor, sizeof d->vendor);
    device_text(id, CL_DRIVER_VERSION, d->driver, sizeof d->driver);
    device_text(id, CL_DEVICE_VERSION, d->version, sizeof d->version);
    device_text(id, CL_DEVICE_OPENCL_C_VERSION, d->c_version, sizeof d->c_version);
    device_text(id, CL_DEVICE_IL_VERSION, d->il_version, sizeof d->il_version);
    if (!(d->extensions = device_extensions(id)))
        return cld_fail_memory(err, "the device list");
    d->class = device_size(id, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_CPU ? CLD_CLASS_CPU : CLD_CLASS_GPU;
    d->host_memory = d->class == CLD_CLASS_CPU;
    d->available =
        device_size(id, CL_DEVICE_AVAILABLE) && device_size(id, CL_DEVICE_COMPILER_AVAILABLE);
    d->global_bytes = device_size(id, CL_DEVICE_GLOBAL_MEM_SIZE);
    d->reported_max_alloc_bytes = device_size(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    d->local_bytes = device_size(id, CL_DEVICE_LOCAL_MEM_SIZE);
    d->max_group = device_size(id, CL_DEVICE_MAX_WORK_GROUP_SIZE);
    d->n_compute_units = cld_max(1, device_size(id, CL_DEVICE_MAX_COMPUTE_UNITS));
    d->float_width = cld_max(1, device_size(id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT));
    d->base_align_bytes = cld_max(256, device_size(id, CL_DEVICE_MEM_BASE_ADDR_ALIGN) / 8);
    d->quirks = cld_quirks_of(d->platform, d->platform_version, d->driver);
    if (d->quirks & CLD_QUIRK_GPU_KERNELS)
        d->class = CLD_CLASS_GPU;
    d->max_alloc_bytes =
        d->quirks & CLD_QUIRK_MAX_ALLOC_LOW ? d->global_bytes : d->reported_max_alloc_bytes;
    return CLD_OK;
}

/* Lists the ICD files that the loader can see: the usual reason for an empty list in a container.
 */
static void explain_absence(char *note, size_t n_bytes)
{
    const char *dir = getenv("OCL_ICD_VENDORS");
    if (!dir || !*dir)
        dir = "/etc/OpenCL/vendors";
    DIR *d = opendir(dir);
    char files[256] = "";
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.')
            snprintf(files + strlen(files), sizeof files - strlen(files), " %s", e->d_name);
    if (d)
        closedir(d);
    snprintf(
        note, n_bytes,
        "no OpenCL device: %s %s%s. Install a driver, for example `apt-get install "
        "pocl-opencl-icd` for the CPU; in a container the driver's .icd file must be there too "
        "(for NVIDIA: echo libnvidia-opencl.so.1 > %s/nvidia.icd)",
        dir,
        !d       ? "does not exist"
        : *files ? "holds"
                 : "is empty",
        files, dir);
}

static enum cld_status list_platform(struct cld_devices *list, cl_platform_id p,
                                     struct cld_error *err)
{
    cl_uint n = 0;
    enum cld_status s = CLD_OK;
    /* A platform without devices answers CL_DEVICE_NOT_FOUND (rusticl without its variable). */
    if (clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 0, NULL, &n) != CL_SUCCESS || !n) {
        char name[96];
        platform_text(p, CL_PLATFORM_NAME, name, sizeof name);
        size_t at = strlen(list->note);
        snprintf(list->note + at, sizeof list->note - at, "%splatform %s has no device",
                 at ? "; " : "", name);
        return CLD_OK;
    }
    cl_device_id *ids = calloc(n, sizeof *ids);
    struct cld_device_info *grown = realloc(list->at, cld_mul(list->n + n, sizeof *grown));
    if (grown)
        list->at = grown;
    if (!ids || !grown) {
        s = cld_fail_memory(err, "the device list");
        goto done;
    }
    if (clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, n, ids, NULL) != CL_SUCCESS)
        goto done;
    for (cl_uint i = 0; i < n && !s; i++) {
        struct cld_device_info *d = &list->at[list->n];
        memset(d, 0, sizeof *d);
        d->index = list->n++;
        s = describe(p, ids[i], d, err);
    }
done:
    free(ids);
    return s;
}

enum cld_status cld_devices_open(struct cld_devices **out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    cl_platform_id *platforms = NULL;
    cl_uint n = 0;
    struct cld_devices *list = calloc(1, sizeof *list);
    *out = NULL;
    if (!list)
        return cld_fail_memory(err, "the device list");
    if (clGetPlatformIDs(0, NULL, &n) != CL_SUCCESS)
        n = 0;
    platforms = calloc(cld_max(n, 1), sizeof *platforms);
    if (!platforms) {
        s = cld_fail_memory(err, "the platform list");
        goto done;
    }
    if (n)
        clGetPlatformIDs(n, platforms, NULL);
    list->n_platforms = n;
    for (cl_uint i = 0; i < n; i++)
        if ((s = list_platform(list, platforms[i], err)))
            goto done;
    if (!list->n)
        explain_absence(list->note, sizeof list->note);
    *out = list;
    list = NULL;
done:
    cld_devices_close(list);
    free(platforms);
    return s;
}

void cld_devices_close(struct cld_devices *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->n; i++)
        free(d->at[i].extensions);
    free(d->at);
    free(d);
}

static bool contains_nocase(const char *text, const char *part)
{
    size_t n = strlen(part);
    for (; *text; text++)
        if (!strncasecmp(text, part, n))
            return true;
    return false;
}

/* "cpu:0/2" -> part 0 of 2. */
static bool parse_part(const char *spec, size_t *part, size_t *n_parts)
{
    int end = 0;
    return sscanf(spec, "cpu:%zu/%zu%n", part, n_parts, &end) == 2 && !spec[end] && *n_parts > 0 &&
           *part < *n_parts;
}

static enum cld_status fail_choice(const struct cld_devices *d, const char *spec,
                                   struct cld_error *err)
{
    char names[480] = "";
    for (size_t i = 0; i < d->n; i++) {
        size_t at = strlen(names);
        snprintf(names + at, sizeof names - at, "\n  device %zu: %.80s (%.40s)", i, d->at[i].name,
                 d->at[i].platform);
    }
    if (!d->n)
        return cld_fail(err, CLD_E_DEVICE, "see `cldraft devices`", "%s", d->note);
    return cld_fail(err, CLD_E_DEVICE,
                    "give a number, a part of a device's or platform's name, or cpu:I/N",
                    "there is no device '%s'. %s%s", spec,
                    d->n == 1 ? "The only device is" : "The devices are", names);
}

enum cld_status cld_devices_find(const struct cld_devices *d, const char *spec,
                                 struct cld_device_info *out, struct cld_error *err)
{
    const struct cld_device_info *found = NULL;
    size_t part = 0, n_parts = 1;
    char *end = NULL;
    if (!spec || !*spec) {
        for (size_t i = 0; i < d->n && !found; i++)
            if (!d->at[i].host_memory && d->at[i].available)
                found = &d->at[i];
        for (size_t i = 0; i < d->n && !found; i++)
            if (d->at[i].available)
                found = &d->at[i];
        if (!found)
            return fail_choice(d, "any", err);
    } else if (isdigit((unsigned char)*spec)) {
        unsigned long long i = strtoull(spec, &end, 10);
        if (*end || i >= d->n)
            return fail_choice(d, spec, err);
        found = &d->at[i];
    } else if (!strncmp(spec, "cpu:", 4)) {
        if (!parse_part(spec, &part, &n_parts))
            return cld_fail(err, CLD_E_DEVICE, "write cpu:I/N with I from 0 to N-1, as in cpu:0/2",
                            "'%s' is no part of a CPU device", spec);
        for (size_t i = 0; i < d->n && !found; i++)
            if (d->at[i].host_memory && d->at[i].available)
                found = &d->at[i];
        if (found && n_parts > found->n_compute_units)
            return cld_fail(err, CLD_E_DEVICE, "use fewer parts",
                            "'%s' names one of %zu parts of a device with %zu compute units", spec,
                            n_parts, found->n_compute_units);
    } else {
        for (size_t i = 0; i < d->n && !found; i++)
            if (contains_nocase(d->at[i].name, spec))
                found = &d->at[i];
        for (size_t i = 0; i < d->n && !found; i++)
            if (contains_nocase(d->at[i].platform, spec))
                found = &d->at[i];
    }
    if (!found)
        return fail_choice(d, spec, err);
    if (!found->available)
        return cld_fail(err, CLD_E_DEVICE, "see `cldraft devices`",
                        "device %zu (%s) is not available or has no compiler", found->index,
                        found->name);
    *out = *found;
    out->part = part;
    out->n_parts = n_parts;
    return CLD_OK;
}

bool cld_device_has_extension(const struct cld_device_info *d, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = d->extensions; (at = strstr(at, name)); at += n)
        if ((at == d->extensions || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
            return true;
    return false;
}

bool cld_device_is_nvidia(const struct cld_device_info *d)
{
    return d->class == CLD_CLASS_GPU && !strncmp(d->platform, "NVIDIA CUDA", 11);
}
