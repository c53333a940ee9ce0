/* report_text.h - what the sections of a report's page share: the page at work, names of runs,
 * numbers. For the files report*.c alone. */
#ifndef CLD_REPORT_REPORT_TEXT_H
#define CLD_REPORT_REPORT_TEXT_H

#include <stdio.h>

#include "report/run_data.h"

struct cld_report {
    const struct cld_run_data *runs;
    size_t n;
    FILE *to; /* a growing text; its errors are looked at once, at the end */
};

/* Text with the characters of HTML escaped. */
void cld_report_write_text(const struct cld_report *r, const char *text);
/* A short square in the colour that run i has in charts; nothing where there is one run. */
void cld_report_swatch(const struct cld_report *r, size_t i);
/* What run i is called: its directory's last component, or all of it where another run has that,
 * too; of a long one the end. Returns `to`. */
enum { CLD_REPORT_NAME_BYTES = 48 };
const char *cld_report_name(const struct cld_report *r, size_t i, char to[CLD_REPORT_NAME_BYTES]);
void cld_report_write_name(const struct cld_report *r, size_t i);
/* The figures of a number for people: 22,505, 0.8311, 1.2e-07; "-" where there is none. */
const char *cld_report_number(double v, char to[32]);

#endif
