/* report_private.h - the parts of a report's page, for the files report*.c alone. */
#ifndef CLD_REPORT_REPORT_PRIVATE_H
#define CLD_REPORT_REPORT_PRIVATE_H

#include "report/report.h"
#include "report/report_text.h"

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

#endif
