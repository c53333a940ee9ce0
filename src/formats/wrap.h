/* wrap.h - text for a terminal, broken into lines of at most 100 columns. Any thread. */
#ifndef CLD_FORMATS_WRAP_H
#define CLD_FORMATS_WRAP_H

#include <stddef.h>
#include <stdio.h>

/* Writes `text` and ends the last line. Lines after the first are indented by `indent` blanks; the
 * first one goes on at `column`, where the caller has put something, or is indented as well if
 * `column` is 0. */
void cld_write_wrapped(const char *text, size_t column, size_t indent, FILE *to);

#endif
