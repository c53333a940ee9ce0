/* gemm_tensor.h - how the tensor-core back-ends see a product; for them and probe.c only. */
#ifndef CLD_GEMM_TENSOR_H
#define CLD_GEMM_TENSOR_H

#include "gemm_backend.h"

/* An operand as tensor cores take it: bf16, rows at multiples of 8 elements. It lies in its tensor
 * or, where that has another form, as a copy in the scratch. */
struct cld_gemm_operand {
    const struct cld_tensor *t;
    bool copied;
    size_t at, ld; /* elements */
};

struct cld_gemm_operands {
    struct cld_gemm_operand a, b;
    size_t n_scratch_bytes; /* with `reserved_bytes` at the begin */
};

struct cld_gemm_operands cld_gemm_plan_operands(const struct cld_gemm *g, size_t reserved_bytes);

/* Whether tensor cores may do this product (g == NULL: any): storage, sizes, and leave to round. */
bool cld_gemm_fits_tensor_cores(const struct cld_gemm *g);

/* Enqueues the copies. */
enum cld_status cld_gemm_copy_operands(struct cld_queue *q, const struct cld_gemm_operands *o,
                                       struct cld_buf *scratch, struct cld_error *err);

/* "-DA_ROWS=1 -DB_ROWS=0 -DC_ALIGNED=1 -DTC=..." */
void cld_gemm_tensor_options(const struct cld_gemm *g, char *to, size_t n_bytes);

/* Buffer, offset and ld of a planned operand, as kernel arguments. */
#define CLD_GEMM_OPERAND_ARGS(o)                                                                  \
    CLD_BUF((o)->copied ? scratch : (o)->t->buf), CLD_U64((o)->at), CLD_U64((o)->ld)

#endif
