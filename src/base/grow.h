/* grow.h - arrays that double: the one place that reallocates them.
 *
 * An array is a pointer and a capacity in elements. Any thread; an array belongs to one caller. */
#ifndef CLD_BASE_GROW_H
#define CLD_BASE_GROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"

/* Room for at least `n` elements of `size_bytes`; the old contents stay. CLD_E_MEMORY leaves the
 * array as it was. `array` is the address of the typed pointer (int32_t **, char **, ...). */
static inline enum cld_status cld_grow(void *array, size_t *capacity, size_t n, size_t size_bytes,
                                       struct cld_error *err)
{
    if (n <= *capacity)
        return CLD_OK;
    void *old; /* the typed pointer is copied as bytes: void ** may not alias it */
    memcpy(&old, array, sizeof old);
    size_t want = cld_max(n, cld_max(16, cld_mul(*capacity, 2)));
    size_t bytes = cld_mul(want, size_bytes);
    void *grown = cld_size_ok(bytes) ? realloc(old, bytes) : NULL;
    if (!grown)
        return cld_fail_memory(err, "%zu elements of %zu bytes", want, size_bytes);
    memcpy(array, &grown, sizeof grown);
    *capacity = want;
    return CLD_OK;
}

#endif
