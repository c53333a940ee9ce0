/* bench_roof.h - what a device reaches at best, measured with the program's own copies and
 * products: the bounds that results are compared with. Thread: main. */
#ifndef CLD_BENCH_BENCH_ROOF_H
#define CLD_BENCH_BENCH_ROOF_H

#include "bench/bench_result.h"

/* The rate of a copy that no cache holds. */
enum cld_status cld_bench_roof_copy(const struct cld_bench *b, double *gb_per_s,
                                    struct cld_error *err);
/* The best rate of square products in `storage`, of sizes that double until one takes long. */
enum cld_status cld_bench_roof_gemm(const struct cld_bench *b, enum cld_dtype storage,
                                    double *gflops, struct cld_error *err);

#endif
