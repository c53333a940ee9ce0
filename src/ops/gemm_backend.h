/* gemm_backend.h - what a back-end of cld_gemm is; for op_gemm.c and the back-ends only.
 *
 * op_gemm.c has checked shapes, storage and bounds, and that m and n are not 0, before it calls
 * `run` with scratch that is large enough. Thread: the queue's owner. */
#ifndef CLD_OPS_GEMM_BACKEND_H
#define CLD_OPS_GEMM_BACKEND_H

#include "ops/op_gemm.h"
#include "ops/tunable_kernel.h"

struct cld_gemm_size {
    size_t m, n, k;
};
struct cld_gemm_size cld_gemm_size(const struct cld_gemm *g);

/* Classes of shapes that have tuned rows of their own (tuning.h). */
enum cld_gemm_class {
    CLD_GEMM_FEW_ROWS, /* m below 128: decoding, and documents with few anchors */
    CLD_GEMM_LONG_SUM, /* k at least 4 times the larger of m and n */
    CLD_GEMM_OTHER,
    CLD_N_GEMM_CLASSES
};
#define CLD_GEMM_CLASSES                                                                           \
    {                                                                                              \
        "few_rows", "long_sum", "other"                                                            \
    }
enum cld_gemm_class cld_gemm_class(struct cld_gemm_size size);

struct cld_gemm_ops {
    enum cld_tuned tuned;          /* the family of its kernels' parameters; CLD_N_TUNED: none */
    enum cld_gemm_backend backend; /* AUTO is the first of the table that supports a GEMM */
    const char *needs;             /* what supports() requires, in words */
    /* "portable (gpu, 128x64 tiles)", for logs */
    const char *(*name)(const struct cld_queue *q);
    /* g == NULL: whether any GEMM can run on this queue. */
    bool (*supports)(const struct cld_queue *q, const struct cld_gemm *g);
    size_t (*scratch_bytes)(const struct cld_queue *q, const struct cld_gemm *g);
    bool swiglu; /* see cld_gemm_makes_swiglu */
    /* Builds what `run` launches where g's shape is of this class; NULL: that is one for all. */
    enum cld_status (*build)(struct cld_queue *q, const struct cld_gemm *g,
                             enum cld_gemm_class class, struct cld_kernel **out,
                             struct cld_error *err);
    enum cld_status (*run)(struct cld_queue *q, const struct cld_gemm *g, struct cld_buf *scratch,
                           struct cld_error *err);
};

extern const struct cld_gemm_ops cld_gemm_cpu, cld_gemm_gpu, cld_gemm_clblast, cld_gemm_sm80,
    cld_gemm_sm90a;

extern const struct cld_tunable_kernel cld_tuned_gemm_cpu, cld_tuned_gemm_gpu, cld_tuned_gemm_sm90a;

/* C = sum of n_parts matrices [n_parts, m, n] f32 at the begin of `parts` (+ bias) (+ R). */
enum cld_status cld_gemm_sum(struct cld_queue *q, const struct cld_gemm *g, size_t n_parts,
                             const struct cld_buf *parts, struct cld_error *err);

/* "-DTC=f32 -DTR=bf16 -DTBIAS=f32": the storage of what an epilogue touches. What is not there
 * takes the storage of another, so that there are few variants. */
void cld_gemm_out_options(const struct cld_gemm *g, char *to, size_t n_bytes);

/* The arguments of an epilogue that every kernel takes in this order: c, c_at, c_ld, bias, bias_at,
 * r, r_at, r_ld. */
#define CLD_GEMM_OUT_ARGS(g)                                                                       \
    CLD_BUF((g)->c->buf), CLD_U64((g)->c->offset), CLD_U64((g)->c->ld),                            \
        CLD_BUF((g)->bias ? (g)->bias->buf : NULL), CLD_U64((g)->bias ? (g)->bias->offset : 0),    \
        CLD_BUF((g)->residual ? (g)->residual->buf : NULL),                                        \
        CLD_U64((g)->residual ? (g)->residual->offset : 0),                                        \
        CLD_U64((g)->residual ? (g)->residual->ld : 0)

#endif
