/* module_build.h - SPIR-V modules made by the compilers of LLVM 15, and the forms of them for
 * devices that take no SPIR-V. All tools are programs found by PATH; their versions must match, so
 * the names carry it. Main thread only. */
#ifndef CLD_OPENCL_MODULE_BUILD_H
#define CLD_OPENCL_MODULE_BUILD_H

#include <stdbool.h>

#include "opencl/modules.h"
#include "opencl/variants.h"

/* Compiles every variant into `dir` (made if missing), which then holds these modules alone, with
 * their manifest. With `ptx` also the form for NVIDIA's driver. A variant whose module is there
 * already, by its key and hash, is not compiled again. CLD_E_INPUT: a tool is missing or fails
 * (with its messages), or a module does not validate. */
enum cld_status cld_modules_build(const struct cld_variants *list, const char *dir, bool ptx,
                                  struct cld_error *err);

/* A form of a module in `spv_path`, into the file `to`. */
enum cld_status cld_module_translate(const char *spv_path, enum cld_module_form form,
                                     const char *to, struct cld_error *err);

#endif
