/* row_paths.h - the files that data.train, data.heldout and eval.buckets name: one, several with
 * commas between, patterns such as rows-*.jsonl. Any thread. */
#ifndef CLD_DATA_ROW_PATHS_H
#define CLD_DATA_ROW_PATHS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* Zero-initialise. */
struct cld_row_paths {
    char **v; /* [n], in the order of the list; those of a pattern in bytewise order */
    size_t n, capacity;
};
void cld_row_paths_free(struct cld_row_paths *p); /* NULL-safe */

/* Adds the files of a list. `key` is for messages. CLD_E_INPUT: a pattern that no file matches, or
 * a file that is named twice. */
enum cld_status cld_row_paths_add(struct cld_row_paths *p, const char *key, const char *list,
                                  struct cld_error *err);

/* A file that both name, under whatever name; NULL: none. */
const char *cld_row_paths_shared(const struct cld_row_paths *a, const struct cld_row_paths *b);

#endif
