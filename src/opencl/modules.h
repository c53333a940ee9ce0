/* modules.h - the kernel variants that exist as SPIR-V modules: a directory with a manifest.
 *
 * `cldraft spirv` makes it (module_build.h). One module is one variant: a kernel file with
 * includes, compiled with one set of options; its key is the hash of both. Besides the module there
 * may be the forms of it that devices without SPIR-V take. A file counts only with the hash that
 * the manifest has of it.
 *
 * Files of DIR: manifest.json, KEY.spv, KEY.bc, KEY.ptx. A handle is read-only; any thread. */
#ifndef CLD_OPENCL_MODULES_H
#define CLD_OPENCL_MODULES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/sha256.h"

#define CLD_MANIFEST_NAME   "manifest.json"
#define CLD_MANIFEST_FORMAT 1 /* raised with every change of the manifest */

enum cld_module_form {
    CLD_MODULE_SPIRV,   /* the module itself */
    CLD_MODULE_BITCODE, /* translated back into LLVM bitcode for cl_khr_spir */
    CLD_MODULE_PTX,     /* compiled for NVIDIA's driver */
    CLD_N_MODULE_FORMS
};

/* "spirv", "bitcode", "ptx": the form's name in the manifest. */
const char *cld_module_form_name(enum cld_module_form form);
/* ".spv", ".bc", ".ptx". */
const char *cld_module_suffix(enum cld_module_form form);

/* The key of a variant: its file's text with includes, and its options. */
void cld_module_key(const char *source, const char *options, char key[CLD_SHA256_HEX_BYTES]);

struct cld_modules;

/* NULL or "": the directory "spirv" beside the running program, which the build makes. CLD_E_INPUT
 * if there is no manifest or it is damaged. */
enum cld_status cld_modules_open(const char *dir, struct cld_modules **out, struct cld_error *err);
void cld_modules_close(struct cld_modules *m); /* NULL is fine */
const char *cld_modules_dir(const struct cld_modules *m);

/* Whether the manifest has the variant. */
bool cld_modules_has(const struct cld_modules *m, const char *key);

/* One form of the variant's module, *n_bytes of it and a NUL after them, freed with free().
 * CLD_E_INPUT: no such module or form, or a file that is missing or not the one that was made. */
enum cld_status cld_modules_read(const struct cld_modules *m, const char *key,
                                 enum cld_module_form form, char **out, size_t *n_bytes,
                                 struct cld_error *err);

/* The arguments of a kernel as the manifest has them (cld_spirv_kernel); NULL: it has no such
 * kernel. Borrowed. */
const char *cld_modules_arguments(const struct cld_modules *m, const char *key, const char *kernel);

#endif
