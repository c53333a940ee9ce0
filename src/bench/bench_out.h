/* bench_out.h - records of measurements as text: a markdown table, CSV, JSON, a JSON object a line,
 * or SQL. For bench_*.c. Thread: main. */
#ifndef CLD_BENCH_BENCH_OUT_H
#define CLD_BENCH_BENCH_OUT_H

#include <jansson.h>

#include "bench/bench.h"

/* Where records go. Each is written when it is complete. */
struct cld_bench_out {
    FILE *to; /* borrowed */
    enum cld_bench_format format;
    bool compared;    /* records have a baseline (bench_compare.h) */
    size_t n_records; /* so far */
};

/* Around all records; what is begun is ended even after an error, or JSON has no end. All records
 * have the same fields and the same swept keys. `device` and the swept names are for the head. */
void cld_bench_out_begin(struct cld_bench_out *out, const struct cld_device_info *device,
                         const char *const *swept, size_t n_swept);
/* CLD_E_IO if something could not be written. */
enum cld_status cld_bench_out_put(struct cld_bench_out *out, const json_t *record,
                                  struct cld_error *err);
enum cld_status cld_bench_out_end(struct cld_bench_out *out, struct cld_error *err);

#endif
