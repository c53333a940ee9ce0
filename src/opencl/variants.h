/* variants.h - a set of kernel variants: file and compiler options, as programs are built from
 * them. In text a variant is a line "FILE OPTIONS". A set belongs to one thread. */
#ifndef CLD_OPENCL_VARIANTS_H
#define CLD_OPENCL_VARIANTS_H

#include <stddef.h>
#include <stdio.h>

#include "base/error.h"

struct cld_variant {
    char *file, *options;
};

struct cld_variants {
    size_t n, cap;
    struct cld_variant *at; /* in bytewise order of file, then of options */
};

/* Copies both; one that is there already is not added again. CLD_E_MEMORY. */
enum cld_status cld_variants_add(struct cld_variants *v, const char *file, const char *options,
                                 struct cld_error *err);
/* Adds those of a text file; blank lines and lines that begin with # are skipped. CLD_E_INPUT. */
enum cld_status cld_variants_read(struct cld_variants *v, const char *path, struct cld_error *err);
void cld_variants_write(const struct cld_variants *v, FILE *to);
void cld_variants_free(struct cld_variants *v);

#endif
