/* report.h - pictures of runs: one HTML page that needs nothing else, neither files nor a network
 * nor scripts. Main thread. */
#ifndef CLD_REPORT_REPORT_H
#define CLD_REPORT_REPORT_H

#include "report/run_data.h"

enum { CLD_REPORT_MOST_RUNS = 32 };

/* The page of n runs, at most so many: one by itself, or several drawn over each other with what
 * their configurations differ in. *out is freed with free(); it ends with a NUL that n_bytes does
 * not count. CLD_E_MEMORY. */
enum cld_status cld_report_text(const struct cld_run_data *runs, size_t n, char **out,
                                size_t *n_bytes, struct cld_error *err);

#endif
