/* run_reader_parts.h - the files of a run that have readers of their own, for run_reader.c alone.
 */
#ifndef CLD_REPORT_RUN_READER_PARTS_H
#define CLD_REPORT_RUN_READER_PARTS_H

#include "report/run_data.h"

/* Each reads one file; missing is not an error. */
enum cld_status cld_run_reader_read_metrics(struct cld_run_data *r, const char *path,
                                            struct cld_error *err);
enum cld_status cld_run_reader_read_log(struct cld_run_data *r, const char *path,
                                        struct cld_error *err);

#endif
