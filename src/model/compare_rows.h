/* compare_rows.h - whether two matrices in files are the same one. Any thread. */
#ifndef CLD_MODEL_COMPARE_ROWS_H
#define CLD_MODEL_COMPARE_ROWS_H

#include "formats/safetensors.h"

/* Compares all rows of two matrices of one shape, as they are or, if their types differ, rounded to
 * bf16. *row: the first that differs, SIZE_MAX: none. CLD_E_INPUT where they cannot be read,
 * CLD_E_MEMORY. */
enum cld_status cld_compare_rows(const struct cld_safetensors *a, const struct cld_safetensor *x,
                                 const struct cld_safetensors *b, const struct cld_safetensor *y,
                                 size_t *row, struct cld_error *err);

#endif
