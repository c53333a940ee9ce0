/* program_module.c - SPIR-V modules on their way to a device.
 *
 * A device accepts a module as it is (IL), or its LLVM bitcode (cl_khr_spir), or, NVIDIA's driver,
 * PTX that was made of it. Whatever the route, the module itself is validated first and must hold
 * the kernel, with the arguments that the manifest has; the translated forms belong to it by the
 * hashes of the manifest. */
#include "opencl/queue_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "opencl/cl_error.h"
#include "opencl/module_build.h"
#include "opencl/spirv.h"

static const struct route {
    const char *name, *options; /* of clBuildProgram */
} routes[] = {
    [CLD_MODULE_SPIRV] = {"IL", ""},
    [CLD_MODULE_BITCODE] = {"bitcode", "-x spir -spir-std=1.2"},
    [CLD_MODULE_PTX] = {"PTX", ""},
};

/* A device with the quirk bad-il accepts IL and computes wrong results.
 * Oclgrind hangs in clCreateProgramWithIL, others give a pointer to a function that refuses: only
 * the list of versions shows that a device accepts IL. */
static bool find_route(const struct cld_device_info *d, enum cld_module_form *form)
{
    bool accepts_il = strstr(d->il_version, "SPIR-V"), nvidia = cld_device_is_nvidia(d);
    *form = accepts_il ? CLD_MODULE_SPIRV : nvidia ? CLD_MODULE_PTX : CLD_MODULE_BITCODE;
    return !(d->quirks & CLD_QUIRK_BAD_IL) &&
           (accepts_il || nvidia || cld_device_has_extension(d, "cl_khr_spir"));
}

const char *cld_module_route(const struct cld_device_info *d)
{
    enum cld_module_form form;
    return find_route(d, &form) ? routes[form].name : NULL;
}

const char *cld_module_lacks(const struct cld_device_info *d)
{
    return d->quirks & CLD_QUIRK_BAD_IL
               ? "the quirk bad-il: it computes wrongly what comes from IL"
               : "it accepts no IL, has no cl_khr_spir and is not NVIDIA's";
}

static enum cld_status need_route(const struct cld_queue *q, enum cld_module_form *form,
                                  struct cld_error *err)
{
    if (find_route(&q->handle.device, form))
        return CLD_OK;
    return cld_fail(err, CLD_E_DEVICE, "set runtime.program = source",
                    "%s: %s accepts no SPIR-V module: %s", q->handle.name, q->handle.device.name,
                    cld_module_lacks(&q->handle.device));
}

/* What of a valid module the device lacks. */
static enum cld_status check_needs(const struct cld_queue *q, const struct cld_spirv *m,
                                   const char *what, struct cld_error *err)
{
    cl_uint bits = 0;
    int code = clGetDeviceInfo(q->handle.id, CL_DEVICE_ADDRESS_BITS, sizeof bits, &bits, NULL);
    if (code != CL_SUCCESS)
        return cld_cl_fail(err, code, "%s: cannot ask for the width of addresses", q->handle.name);
    if (bits != m->address_bits)
        return cld_fail(err, CLD_E_INPUT, "compile it for the target spir64",
                        "%s has addresses of %u bits, %s of %u", what, m->address_bits,
                        q->handle.device.name, bits);
    if (m->float64 && !cld_device_has_extension(&q->handle.device, "cl_khr_fp64"))
        return cld_fail(err, CLD_E_INPUT, "compile it without double",
                        "%s needs cl_khr_fp64, which %s lacks", what, q->handle.device.name);
    return CLD_OK;
}

/* Validates a module for this device and this kernel; `arguments` are those to expect, or NULL. */
static enum cld_status check_module(const struct cld_queue *q, const char *bytes, size_t n_bytes,
                                    const char *what, const char *kernel, const char *arguments,
                                    struct cld_error *err)
{
    struct cld_spirv m = {0};
    enum cld_status s = cld_spirv_read(bytes, n_bytes, what, &m, err);
    if (s || (s = check_needs(q, &m, what, err)))
        goto done;
    const struct cld_spirv_kernel *k = cld_spirv_find(&m, kernel);
    if (!k)
        s = cld_fail(err, CLD_E_INPUT,
                     "name its kernels like those of cl/; spirv/example shows how",
                     "%s has no kernel %s among its %zu (first: %s)", what, kernel, m.n_kernels,
                     m.kernels[0].name);
    else if (arguments && strcmp(k->arguments, arguments))
        s = cld_fail(err, CLD_E_INPUT, "compile the modules again: cldraft spirv CONFIG --out DIR",
                     "%s: kernel %s has the arguments (%.160s), not (%.160s)", what, kernel,
                     k->arguments, arguments);
done:
    cld_spirv_free(&m);
    return s;
}

/* The entry point of platforms of version 2.1, else that of cl_khr_il_program. */
static cl_program create_with_il(const struct cld_queue *q, const char *bytes, size_t n_bytes,
                                 int *code)
{
    int major = 0, minor = 0;
    sscanf(q->handle.device.platform_version, "OpenCL %d.%d", &major, &minor);
    if (major > 2 || (major == 2 && minor >= 1))
        return clCreateProgramWithIL(q->handle.context, bytes, n_bytes, code);
    cl_program(CL_API_CALL * create)(cl_context, const void *, size_t, cl_int *);
    void *at = clGetExtensionFunctionAddressForPlatform(q->handle.device.cl_platform,
                                                        "clCreateProgramWithILKHR");
    *code = CL_INVALID_OPERATION;
    if (!at)
        return NULL;
    memcpy(&create, &at, sizeof create);
    return create(q->handle.context, bytes, n_bytes, code);
}

static enum cld_status create(struct cld_queue *q, enum cld_module_form form, const char *bytes,
                              size_t n_bytes, const char *what, const char *kernel, cl_program *out,
                              struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int code = CL_SUCCESS;
    cl_program p =
        form == CLD_MODULE_SPIRV
            ? create_with_il(q, bytes, n_bytes, &code)
            : clCreateProgramWithBinary(q->handle.context, 1, &q->handle.id, &n_bytes,
                                        (const unsigned char **)(uintptr_t)&bytes, NULL, &code);
    if (code != CL_SUCCESS)
        return cld_cl_fail(err, code, "%s: %s was refused as %s", q->handle.name, what,
                           routes[form].name);
    if ((s = cld_program_compile(q, p, routes[form].options, what, err)))
        goto done;
    cl_kernel k = clCreateKernel(p, kernel, &code);
    if (code != CL_SUCCESS) {
        s = cld_cl_fail(err, code, "%s: built from %s as %s, it has no kernel %s", q->handle.name,
                        what, routes[form].name, kernel);
        goto done;
    }
    clReleaseKernel(k);
    q->handle.counts.n_modules++;
    *out = p;
    p = NULL;
done:
    if (p)
        clReleaseProgram(p);
    return s;
}

static enum cld_status need_modules(struct cld_queue *q, struct cld_error *err)
{
    if (q->modules)
        return CLD_OK;
    enum cld_status s = cld_modules_open(q->program_options.modules, &q->modules, err);
    if (!s)
        cld_debug("%s: kernels come from the SPIR-V modules of %s, as %s", q->handle.name,
                  cld_modules_dir(q->modules), cld_module_route(&q->handle.device));
    return s;
}

enum cld_status cld_program_of_module(struct cld_queue *q, const char *source, const char *file,
                                      const char *options, const char *kernel, cl_program *out,
                                      struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    enum cld_module_form form;
    char key[CLD_SHA256_HEX_BYTES], *module = NULL, *other = NULL;
    char *what = cld_format("the module of %s %s", file, options);
    size_t n_module = 0, n_other = 0;
    if (!what)
        return cld_fail_memory(err, "the name of a module");
    cld_module_key(source, options, key);
    if ((s = need_route(q, &form, err)) || (s = need_modules(q, err)) ||
        (s = cld_modules_read(q->modules, key, CLD_MODULE_SPIRV, &module, &n_module, err)) ||
        (s = check_module(q, module, n_module, what, kernel,
                          cld_modules_arguments(q->modules, key, kernel), err)) ||
        (form != CLD_MODULE_SPIRV &&
         (s = cld_modules_read(q->modules, key, form, &other, &n_other, err)))) {
        q->handle.counts.n_missing += q->modules && !cld_modules_has(q->modules, key);
        cld_fail_prefix(err, "%s: %s %s", q->handle.name, file, options);
        goto done;
    }
    s = create(q, form, other ? other : module, other ? n_other : n_module, what, kernel, out, err);
done:
    free(module);
    free(other);
    free(what);
    return s;
}

/* Translates the user's module into a temporary file and reads that. */
static enum cld_status translate(const char *path, enum cld_module_form form, char **out,
                                 size_t *n_bytes, struct cld_error *err)
{
    const char *dir = getenv("TMPDIR");
    char *temporary = cld_format("%s/cldraft-XXXXXX", dir && *dir ? dir : "/tmp");
    int fd = temporary ? mkstemp(temporary) : -1;
    if (fd < 0) {
        free(temporary);
        return cld_fail(err, CLD_E_IO, "set TMPDIR", "no temporary file to translate %s", path);
    }
    close(fd);
    enum cld_status s = cld_module_translate(path, form, temporary, err);
    if (!s)
        s = cld_file_read(temporary, 0, out, n_bytes, err);
    unlink(temporary);
    free(temporary);
    return s;
}

enum cld_status cld_program_of_override(struct cld_queue *q, const char *path, const char *kernel,
                                        cl_program *out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    enum cld_module_form form;
    char *module = NULL, *other = NULL;
    size_t n_module = 0, n_other = 0;
    if ((s = need_route(q, &form, err)) ||
        (s = cld_file_read(path, (size_t)64 << 20, &module, &n_module, err)) ||
        (s = check_module(q, module, n_module, path, kernel, NULL, err)) ||
        (form != CLD_MODULE_SPIRV && (s = translate(path, form, &other, &n_other, err))))
        goto done;
    s = create(q, form, other ? other : module, other ? n_other : n_module, path, kernel, out, err);
    if (!s)
        cld_info("%s: kernel %s comes from %s, as %s", q->handle.name, kernel, path,
                 routes[form].name);
done:
    free(module);
    free(other);
    return s;
}
