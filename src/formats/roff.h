/* roff.h - text in manual pages. Nothing in it is taken for a request or an escape. Any thread. */
#ifndef CLD_FORMATS_ROFF_H
#define CLD_FORMATS_ROFF_H

#include <stdio.h>

/* A piece of a line, wherever it stands in it. */
void cld_roff_text(const char *text, FILE *to);
/* A paragraph, broken into lines of the file, with `end` after it; ends the line. */
void cld_roff_lines(const char *text, const char *end, FILE *to);

#endif
