/* report_private.h - the parts of a report's page, for the files report*.c alone. */
#ifndef CLD_REPORT_REPORT_PRIVATE_H
#define CLD_REPORT_REPORT_PRIVATE_H

#include <stdio.h>

#include "report/report.h"

struct cld_report {
    const struct cld_run_reader *runs;
    size_t n;
    FILE *to; /* a growing text; its errors are looked at once, at the end */
};

/* Sections with charts; without the series that a run lacks, and nothing where all lack them. */
enum cld_status cld_report_learning(const struct cld_report *r, struct cld_error *err);
enum cld_status cld_report_speed(const struct cld_report *r, struct cld_error *err);

/* Sections of tables. */
void cld_report_summary(const struct cld_report *r);
void cld_report_workers(const struct cld_report *r);
void cld_report_events(const struct cld_report *r);
void cld_report_differences(const struct cld_report *r);
void cld_report_configuration(const struct cld_report *r);

/* What goes into the page's head. */
extern const char cld_report_style[];

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
