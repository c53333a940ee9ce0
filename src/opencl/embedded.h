/* embedded.h - the kernel sources and tuning tables (.json) that the build put into the
 * binary. Read-only, any thread. */
#ifndef CLD_OPENCL_EMBEDDED_H
#define CLD_OPENCL_EMBEDDED_H

#include <stddef.h>

struct cld_embedded {
    const char *name; /* "gemm.cl" */
    const char *text; /* ends with a NUL */
    size_t n_bytes;
};

extern const struct cld_embedded cld_embedded_files[]; /* ends with a NULL name */

#endif
