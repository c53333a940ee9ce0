/* run_reader.h - reads a run directory as it is: metrics.jsonl, status.json, devices.json,
 * config.resolved.ini, log.txt, checkpoints/.
 *
 * The run may still be at work, may have ended in the middle of a line, may have been resumed, may
 * be of another version: everything readable is read, and what is missing or cannot be read becomes
 * a note. Nothing here is trusted to be what cldraft wrote. Any thread. */
#ifndef CLD_REPORT_RUN_READER_H
#define CLD_REPORT_RUN_READER_H

#include "report/run_data.h"

/* CLD_E_INPUT only where `dir` is no directory or has none of a run's files. Freed with _free
 * whatever the result was. */
enum cld_status cld_run_reader_read(const char *dir, struct cld_run_data *r, struct cld_error *err);

#endif
