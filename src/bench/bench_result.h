/* bench_result.h - a measurement as JSON: what ran, where, how long it took and what that is worth.
 *
 * The object is what every format is written from; docs/benchmarks.md lists its fields. For
 * bench_*.c. Thread: main. */
#ifndef CLD_BENCH_BENCH_RESULT_H
#define CLD_BENCH_BENCH_RESULT_H

#include <jansson.h>

#include "bench/bench.h"

/* What a device reached in the same run; 0: not known. */
struct cld_bench_roof {
    double gb_per_s; /* copying within the device's memory, read and written bytes */
    double gflops;   /* the best product */
};

/* What records of one point have in common. All borrowed. */
struct cld_bench_context {
    const struct cld_device_info *device;
    const char *options; /* what the configuration gives (cld_config_given_text) */
    const char *const *names, *const *values; /* [n_swept] */
    size_t n_swept;
    struct cld_bench_roof roofs[2]; /* for storage of fp32, of bf16 */
};

/* The caller drops it with json_decref. CLD_E_INTERNAL: a text is not UTF-8, or no memory. */
enum cld_status cld_bench_json(const struct cld_bench_context *c, const struct cld_bench_result *r,
                               json_t **out, struct cld_error *err);
/* A record with the same fields for what could not be measured, and why. */
enum cld_status cld_bench_json_failed(const struct cld_bench_context *c, const char *what,
                                      const struct cld_error *why, json_t **out,
                                      struct cld_error *err);

/* "bench.what" by number. */
const char *cld_bench_what_name(enum cld_bench_what what);

/* The names of a shape or of swept keys with their values: "m=512 n=512". Cut to n_bytes; returns
 * `to`. */
const char *cld_bench_pairs_text(const json_t *object, char *to, size_t n_bytes);

/* A number of a record; 0 where it is null or missing. */
double cld_bench_number(const json_t *record, const char *key);
/* A text of a record; "" where it is null or missing. */
const char *cld_bench_string(const json_t *record, const char *key);
/* Whether it says why something was not measured. */
bool cld_bench_is_failure(const json_t *record);

/* What a record measures, whatever came out: kind, name, swept values, shape, storage. Two records
 * of a run may have it in common (two back-ends of one product). Cut to n_bytes; returns `to`. */
const char *cld_bench_identity(const json_t *record, char *to, size_t n_bytes);

#endif
