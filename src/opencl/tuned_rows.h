/* tuned_rows.h - the rows of tuned kernel parameters that a queue owns. What the parameters are,
 * and their defaults, is known to the operations (ops/tuning.h).
 *
 * Values: filled once, then read. */
#ifndef CLD_OPENCL_TUNED_ROWS_H
#define CLD_OPENCL_TUNED_ROWS_H

#include <stdbool.h>
#include <stddef.h>

/* Kernels with parameters of their own. */
enum cld_tuned {
    CLD_TUNED_GEMM_CPU,
    CLD_TUNED_GEMM_GPU,
    CLD_TUNED_GEMM_SM90A,
    CLD_TUNED_RMSNORM,
    CLD_TUNED_QKNORM_ROPE,
    CLD_TUNED_SWIGLU,
    CLD_TUNED_CROSS_ENTROPY,
    CLD_TUNED_ATTENTION_CPU,
    CLD_TUNED_ATTENTION_GPU,
    CLD_N_TUNED
};

enum { cld_tuned_params = 6, cld_tuned_classes = 3, cld_tuned_values = 8 };

struct cld_tuned_row {
    size_t v[cld_tuned_params]; /* in the order of the family's parameters; 0 after them */
};

enum cld_tuning_origin {
    CLD_TUNING_DEFAULT, /* not measured */
    CLD_TUNING_SHIPPED, /* a table of ours for this device */
    CLD_TUNING_CACHE,   /* measured on this machine: `cldraft bench --tune` */
    CLD_TUNING_FILE     /* a file that runtime.tuning names */
};

struct cld_tuning {
    bool has[CLD_N_TUNED]; /* the rows of this family are set */
    struct cld_tuned_row rows[CLD_N_TUNED][cld_tuned_classes];
    enum cld_tuning_origin origin[CLD_N_TUNED][cld_tuned_classes];
    /* What was passed over, and why; "" if nothing was. The caller logs it once. */
    char note[640];
};

#endif
