/* op_gemm.h - GEMM on a device: one call for all back-ends.
 *
 * C = op(A) op(B) (+ bias) (+ R), accumulated in float, rounded once to C's storage:
 *   NT: C[m,n] = A[m,k] B[n,k]^T      y = x W^T (W as in model files: [out, in])
 *   NN: C[m,n] = A[m,k] B[k,n]        dx = dy W
 *   TN: C[m,n] = A[k,m]^T B[k,n]      dW = dy^T x
 * Sizes come from the tensors; any m, n, k (also 0: k = 0 gives bias + R). Operands are F32 or BF16
 * in any mix; `ld` of each tensor is respected. The result is the same bits from run to run.
 *
 * Thread: the queue's owner. */
#ifndef CLD_OPS_OP_GEMM_H
#define CLD_OPS_OP_GEMM_H

#include "opencl/queue.h"
#include "opencl/tensor.h"

enum cld_gemm_kind { CLD_GEMM_NT, CLD_GEMM_NN, CLD_GEMM_TN };

/* AUTO is the fastest that supports the GEMM: tensor cores if their probe works (verdicts.h) and
 * the operands are bf16 or may be rounded to it; else PORTABLE, the plain OpenCL C kernels of the
 * queue's family. CLBLAST needs F32 everywhere (CLD_E_DEVICE); it is slow on CPUs and compiles for
 * seconds at the first GEMM of a queue. */
enum cld_gemm_backend {
    CLD_GEMM_AUTO,
    CLD_GEMM_PORTABLE,
    CLD_GEMM_CLBLAST,
    CLD_GEMM_SM80, /* mma.sync */
    CLD_GEMM_SM90A /* wgmma */
};

struct cld_gemm {
    enum cld_gemm_kind kind;
    enum cld_gemm_backend backend;
    const struct cld_tensor *a, *b, *c;
    const struct cld_tensor *bias;     /* [1, n] or NULL */
    const struct cld_tensor *residual; /* R [m, n], may be C itself (accumulate); NULL: none */
    /* Columns of the GEMM are gate's and up's, interleaved by 8, and C is silu(gate) * up,
     * [m, n / 2] BF16, its begin and ld multiples of 8. Only where cld_gemm_makes_swiglu; no bias,
     * no R. */
    bool swiglu;
    bool round_to_bf16; /* F32 operands may be rounded to bf16 (sums stay float) */
    /* The last GEMM with this scratch had the same A, kind (NT and NN count as one) and
     * back-end, and nothing changed either since: what was made of A there is used again. */
    bool same_a;
};

/* Bytes of scratch that this GEMM needs on this queue (0 is possible). Only shapes, types,
 * kind and ld are looked at; buffers may be missing; offsets of bf16 operands count only where they
 * are not multiples of 8 elements (tensor cores then work on a copy). The plan needs the maximum
 * over all GEMMs. */
size_t cld_gemm_scratch_bytes(const struct cld_queue *q, const struct cld_gemm *g);

/* Enqueues the GEMM. `scratch` holds at least cld_gemm_scratch_bytes and is free again for the
 * next operation of the same queue. CLD_E_INTERNAL with all shapes if they do not fit together. */
enum cld_status cld_gemm(struct cld_queue *q, const struct cld_gemm *g, struct cld_buf *scratch,
                         struct cld_error *err);

/* GEMMs for which a plan asked for scratch, each shape once: on a queue that notes them. */
struct cld_gemm_use {
    enum cld_gemm_kind kind;
    size_t m, n, k;
    enum cld_dtype a, b, c;
    size_t n_asked;
};
struct cld_gemm_uses {
    size_t n, cap;
    struct cld_gemm_use *at; /* freed by its owner with free() */
    bool lost;               /* there was no memory for one */
};

/* Builds what cld_gemm launches for this GEMM, also for shapes of other classes (tuning.h).
 * cld_gemm does so itself until the queue is sealed. Nothing but build options depends on g's
 * buffers. */
enum cld_status cld_gemm_build(struct cld_queue *q, const struct cld_gemm *g,
                               struct cld_error *err);

/* The family of tuned kernels that this GEMM runs (CLD_N_TUNED: none), and its class there. */
enum cld_tuned cld_gemm_tuned(const struct cld_queue *q, const struct cld_gemm *g, size_t *class);

/* Whether this GEMM, of plain C, could apply SwiGLU to its results (see struct cld_gemm). */
bool cld_gemm_makes_swiglu(const struct cld_queue *q, const struct cld_gemm *g);

/* "portable (cpu, 12x32 register blocks)": what AUTO means on this queue, for logs. */
const char *cld_gemm_backend_name(const struct cld_queue *q, enum cld_gemm_backend b);

#endif
