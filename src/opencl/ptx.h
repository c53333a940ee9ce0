/* ptx.h - changes to the program text (PTX) that NVIDIA's driver gives for a built OpenCL program.
 *
 * The driver assembles OpenCL C for the plain architecture of the device ("sm_90"), where
 * instructions of its architecture-specific variant ("sm_90a": wgmma, tensormap.replace) are
 * refused. A kernel writes those as comments of their own line in inline assembly, asm
 * volatile("//WG wgmma.fence.sync.aligned;" ::: "memory"); so that the first build passes; then the
 * text is given another target, the marks are taken away and the driver assembles it again. Pure
 * functions on text, any thread. */
#ifndef CLD_OPENCL_PTX_H
#define CLD_OPENCL_PTX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct cld_ptx_change {
    const char
        *target; /* "sm_90a": replaces its base "sm_90" and uncomments; NULL: keeps the target */
    unsigned max_registers; /* of a work-item, as `.maxnreg` of every kernel; 0: the assembler's
                               choice */
    size_t local_bytes; /* the largest array in local memory gets this size; 0: leave it as it is.
                           OpenCL C allows 48 KiB, the assembler what the device has */
};

/* What was found and done, for the log. */
struct cld_ptx_report {
    char version[16], from[16], to[16]; /* "9.0", "sm_90", "sm_90a" */
    size_t n_kernels, n_uncommented, n_capped;
    size_t local_from; /* bytes that the largest array in local memory had; 0: not looked for */
};

/* The changed text (*n_out bytes and a NUL after them), to be freed with free(). `text` need not
 * end in a NUL; NULs at its end are dropped. CLD_E_DEVICE with the reason if it is not recognised:
 * no text, no `.version`, a version too old for the target, another target, a mark that does not
 * begin its line, no kernel, marks without a target that wants them or the other way round, not one
 * array in local memory that is the largest. */
enum cld_status cld_ptx_change(const char *text, size_t n_bytes,
                               const struct cld_ptx_change *change, char **out, size_t *n_out,
                               struct cld_ptx_report *report, struct cld_error *err);

#endif
