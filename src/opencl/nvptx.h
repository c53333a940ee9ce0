/* nvptx.h - LLVM's text of a SPIR module made into one for NVIDIA's devices. Pure, any thread. */
#ifndef CLD_OPENCL_NVPTX_H
#define CLD_OPENCL_NVPTX_H

#include <stddef.h>

#include "base/error.h"

/* The text with NVIDIA's data layout, triple, calling conventions and numbers of address spaces.
 * *out is freed with free(). `kernels` gets the names of its kernels, separated by commas, also to
 * be freed. CLD_E_INPUT if the text has no kernel. */
enum cld_status cld_nvptx_from_spir(const char *text, char **out, char **kernels,
                                    struct cld_error *err);

/* Text of a module with built-in functions that libclc has in a form llc cannot compile:
 * native_exp. To be linked before libclc. NULL: no memory; freed with free(). */
char *cld_nvptx_builtins(void);

#endif
