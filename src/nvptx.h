/* nvptx.h - LLVM's text of a SPIR module made into one for NVIDIA's devices. Pure, any thread. */
#ifndef CLD_NVPTX_H
#define CLD_NVPTX_H

#include <stddef.h>

#include "error.h"

/* The text with NVIDIA's data layout, triple, calling conventions and numbers of address spaces.
 * *out is freed with free(). `kernels` gets the names of its kernels, separated by commas, also to be
 * freed. CLD_E_INPUT if the text has no kernel. */
enum cld_status cld_nvptx_from_spir(const char *text, char **out, char **kernels,
                                    struct cld_error *err);

#endif
