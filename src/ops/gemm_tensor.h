/* gemm_tensor.h - how the tensor-core back-ends see a product; for them and their tests only. */
#ifndef CLD_OPS_GEMM_TENSOR_H
#define CLD_OPS_GEMM_TENSOR_H

#include "ops/gemm_backend.h"

/* An operand as tensor cores take it: bf16 with rows that begin at multiples of 16 bytes. It lies
 * in its tensor or, if that has another form, as a copy in the scratch. */
struct cld_gemm_operand {
    const struct cld_tensor *t;
    bool in_place;
    size_t at, ld; /* elements */
};

struct cld_gemm_operands {
    struct cld_gemm_operand a, b;
    size_t n_scratch_bytes;
};

/* Copies follow the first `reserved_bytes` of the scratch, at multiples of 128 bytes, A's first:
 * its place does not depend on B. */
struct cld_gemm_operands cld_gemm_plan_operands(const struct cld_gemm *g, size_t reserved_bytes);

/* Whether tensor cores may do this product (g == NULL: any): storage, sizes, and leave to round. */
bool cld_gemm_fits_tensor_cores(const struct cld_gemm *g);

/* Enqueues the copies (not those that are there, as g says). Right on every device. */
enum cld_status cld_gemm_copy_operands(struct cld_queue *q, const struct cld_gemm *g,
                                       const struct cld_gemm_operands *o, struct cld_buf *scratch,
                                       struct cld_error *err);

/* Whether n, and offset and ld of C, bias and R, are multiples of 4 elements. */
bool cld_gemm_out_is_aligned(const struct cld_gemm *g);

/* "-DC_ALIGNED=1 -DTC=...": what cl/gemm_tensor.clh wants to know. */
void cld_gemm_tensor_out_options(const struct cld_gemm *g, char *to, size_t n_bytes);

/* Buffer, offset and ld of a planned operand, as kernel arguments. */
#define CLD_GEMM_OPERAND_ARGS(o)                                                                   \
    CLD_BUF((o)->in_place ? (o)->t->buf : scratch), CLD_U64((o)->at), CLD_U64((o)->ld)

#endif
