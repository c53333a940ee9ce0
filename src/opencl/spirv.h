/* spirv.h - SPIR-V modules for OpenCL: validated, and what is in them. Pure functions on bytes that
 * others read; any thread. */
#ifndef CLD_OPENCL_SPIRV_H
#define CLD_OPENCL_SPIRV_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct cld_spirv_kernel {
    char *name;
    char *arguments; /* "global f32*, i64, f32": SPIR-V's integers have no sign */
    size_t n_arguments;
};

struct cld_spirv {
    unsigned major, minor; /* version of SPIR-V */
    unsigned address_bits; /* 32 or 64 */
    bool float64;          /* needs cl_khr_fp64; OpenCL 1.2 allows nothing else that is optional */
    size_t n_kernels;
    struct cld_spirv_kernel *kernels;
};

/* Validates a module against what OpenCL 1.2 devices take (SPIR-V 1.0, kernels, no shaders) with
 * SPIRV-Tools, and reads its kernels. `what` names it in messages. CLD_E_INPUT with the validator's
 * reason, or if it has no kernel. Free with cld_spirv_free whatever the result was. */
enum cld_status cld_spirv_read(const void *bytes, size_t n_bytes, const char *what,
                               struct cld_spirv *out, struct cld_error *err);
void cld_spirv_free(struct cld_spirv *m); /* NULL-safe; leaves an empty module */

/* NULL if the module has no such kernel. */
const struct cld_spirv_kernel *cld_spirv_find(const struct cld_spirv *m, const char *name);

#endif
