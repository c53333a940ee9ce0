/* eval_report.h - what `cldraft eval` found, as text with the definitions of its figures, or as
 * JSON. Main thread. */
#ifndef CLD_CLI_EVAL_REPORT_H
#define CLD_CLI_EVAL_REPORT_H

#include <stdio.h>

#include "train/decode_eval.h"

/* One held-out set. */
struct cld_eval_bucket {
    const char *name;                 /* borrowed */
    struct cld_score forced;          /* teacher-forced */
    struct cld_decode_report decoded; /* no texts where none was asked for */
};

struct cld_eval_report {
    const char *drafter; /* its directory; borrowed, like the next two */
    const struct cld_config *cfg;
    const struct cld_worker *worker;
    size_t n_verified; /* tokens that a pass of verification has: the known one and the drafted */
    size_t n_buckets;
    struct cld_eval_bucket
        *buckets; /* [n_buckets]; and all together where there are several: one more */
};

void cld_eval_print(const struct cld_eval_report *r, FILE *to);
/* One object. CLD_E_MEMORY; CLD_E_IO where it cannot be written. */
enum cld_status cld_eval_print_json(const struct cld_eval_report *r, FILE *to,
                                    struct cld_error *err);

#endif
