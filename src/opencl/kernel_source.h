/* kernel_source.h - the text of an embedded kernel file as compilers get it. Any thread. */
#ifndef CLD_OPENCL_KERNEL_SOURCE_H
#define CLD_OPENCL_KERNEL_SOURCE_H

#include <stddef.h>

#include "base/error.h"

/* The text of cl/FILE with its includes put in, *n_bytes and a NUL after it; freed with free().
 * CLD_E_INTERNAL if the binary has no such file. */
enum cld_status cld_kernel_source(const char *file, char **out, size_t *n_bytes,
                                  struct cld_error *err);

#endif
