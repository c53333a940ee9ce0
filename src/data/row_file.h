/* row_file.h - JSON Lines, line by line: the one reader of rows and prompts.
 *
 * A byte order mark is passed over. A file that is no JSON Lines (a JSON array, gzip, UTF-16,
 * Parquet, a Git LFS pointer, ...) is refused for what it is. One thread at a time. */
#ifndef CLD_DATA_ROW_FILE_H
#define CLD_DATA_ROW_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct cld_row_file;

/* CLD_E_INPUT: it cannot be opened, or is a directory. */
enum cld_status cld_row_file_open(const char *path, struct cld_row_file **out,
                                  struct cld_error *err);
void cld_row_file_close(struct cld_row_file *f); /* NULL-safe */

/* The next line without its end, NUL-terminated and borrowed until the next call; *text NULL at the
 * end of the file. *number counts lines from 1. CLD_E_INPUT: the file is of another kind, or
 * reading failed. */
enum cld_status cld_row_file_next(struct cld_row_file *f, char **text, size_t *n, size_t *number,
                                  struct cld_error *err);

#endif
