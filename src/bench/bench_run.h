/* bench_run.h - measures what a configuration asks for, at each point of its sweep, and gives the
 * records out: as text, to a journal, beside a baseline, as drawings. Thread: main. */
#ifndef CLD_BENCH_BENCH_RUN_H
#define CLD_BENCH_BENCH_RUN_H

#include "bench/bench.h"

struct cld_bench_options {
    const char *device; /* as --device; NULL: the configuration's, at each point */
    enum cld_bench_format format;
    FILE *to;            /* records in that format */
    bool kernel_times;   /* as in struct cld_bench */
    const char *out;     /* journal (bench_journal.h): what is there is not measured; NULL: none */
    const char *compare; /* baseline (bench_compare.h); NULL: none */
    bool fail_on_regression; /* CLD_E_CHECK if a record is slower or fails */
    const char *plot;        /* drawing (bench_plot.h); NULL: none */
};

/* With [sweep], a point that is not valid or does not fit is a record that says why; an error is
 * returned only if nothing could be measured. Without, its error is returned. CLD_E_INTERRUPTED
 * after a signal, when records so far are written. */
enum cld_status cld_bench_run(const struct cld_config *cfg, const struct cld_bench_options *o,
                              struct cld_error *err);

#endif
