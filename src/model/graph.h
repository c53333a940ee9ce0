/* graph.h - a model as a list of operations over named tensors.
 *
 * Forward and backward passes are written once as lists (drafter.c, target.c); what a list needs
 * (scratch, kernel variants) follows from it, and running it is one loop. Tensors are planned for
 * the largest micro-batch; how many of their rows count in this one is named by an extent and
 * resolved when the list runs.
 *
 * Thread: building needs no device; running belongs to the queue's owner. */
#ifndef CLD_MODEL_GRAPH_H
#define CLD_MODEL_GRAPH_H

#include "opencl/queue.h"
#include "opencl/tensor.h"
#include "ops/op_attention.h"
#include "ops/op_gemm.h"

/* Rows of activations are planned in multiples of this: a matrix never has one row, since tensors
 * of one row are vectors. */
enum { CLD_ROW_GRAIN = 16 };

/* Rows of a tensor that take part. */
enum cld_rows {
    CLD_ROWS_ALL,           /* as declared: weights, vectors */
    CLD_ROWS_CTX,           /* context tokens: rows [0, n_ctx) */
    CLD_ROWS_DRAFT,         /* draft rows: rows [0, n_draft) */
    CLD_ROWS_KEYS,          /* context, then draft rows: [0, n_ctx + n_draft) */
    CLD_ROWS_AFTER_CONTEXT, /* the draft rows after the context: [n_ctx, n_ctx + n_draft) */
    CLD_ROWS_SEEN           /* keys of earlier passes too: [0, n_cached + n_ctx + n_draft) */
};
/* n_cached: tokens in the KV cache from earlier passes (incremental decoding); keys and values of
 * this pass follow them. */
struct cld_extents {
    size_t n_ctx, n_draft, n_cached;
};

/* A tensor with its extent. `t` is not owned. */
struct cld_ref {
    const struct cld_tensor *t;
    enum cld_rows rows;
    bool after_cache; /* rows count from n_cached: those before are of earlier passes */
};
#define CLD_ALL(t)           ((struct cld_ref){(t), CLD_ROWS_ALL, false})
#define CLD_CTX(t)           ((struct cld_ref){(t), CLD_ROWS_CTX, false})
#define CLD_DRAFT(t)         ((struct cld_ref){(t), CLD_ROWS_DRAFT, false})
#define CLD_KEYS(t)          ((struct cld_ref){(t), CLD_ROWS_KEYS, false})
#define CLD_AFTER_CONTEXT(t) ((struct cld_ref){(t), CLD_ROWS_AFTER_CONTEXT, false})
#define CLD_SEEN(t)          ((struct cld_ref){(t), CLD_ROWS_SEEN, false})
#define CLD_NONE             ((struct cld_ref){NULL, CLD_ROWS_ALL, false})
/* The same rows of a KV cache, which holds those of earlier passes first. */
static inline struct cld_ref cld_after_cache(struct cld_ref ref)
{
    ref.after_cache = true;
    return ref;
}

enum cld_op_kind {
    CLD_OP_GATHER,           /* in: x, index; out: y */
    CLD_OP_SCATTER,          /* in: x, index; out: y */
    CLD_OP_COPY,             /* in: x; out: y (storage may differ) */
    CLD_OP_RMSNORM,          /* in: x, w; out: y, rstd */
    CLD_OP_RMSNORM_BACK,     /* in: x, w, rstd, dy, residual; out: dx, dw */
    CLD_OP_QKNORM_ROPE,      /* in: x, w, positions, table; out: y, rstd */
    CLD_OP_QKNORM_ROPE_BACK, /* in: x, w, positions, table, rstd, dy; out: dx, dw */
    CLD_OP_GEMM,             /* in: a, b, bias, residual; out: c */
    CLD_OP_SWIGLU,           /* in: gate, up; out: y */
    CLD_OP_SWIGLU_BACK,      /* in: gate, up, dy; out: d_gate, d_up */
    CLD_OP_ATTENTION,        /* in: q, k, v; out: o, lse */
    CLD_OP_ATTENTION_BACK    /* in: q, k, v, o, lse, d_o; out: d_q, d_k, d_v */
};

struct cld_op {
    enum cld_op_kind kind;
    const char *name; /* what it computes: the output tensor's name, mostly */
    struct cld_ref in[6], out[3];
    enum cld_gemm_kind gemm;
    float eps;
    size_t head_dim;
    bool same_a;       /* of a GEMM: its A is that of the GEMM before it in the list */
    bool first_writes; /* see cld_add_gemm_gradient */
    bool swiglu;       /* a GEMM applies SwiGLU to its results */
    const struct cld_attention_plan *attention;
    const struct cld_attention_mask *mask;
};

struct cld_graph {
    struct cld_op *ops;
    size_t n, cap;
    bool no_memory;
};

void cld_graph_free(struct cld_graph *g); /* host memory only */

/* Each appends one operation. Out of memory is remembered and reported by cld_graph_run. */
void cld_add_gather(struct cld_graph *g, struct cld_ref x, struct cld_ref index, struct cld_ref y);
void cld_add_scatter(struct cld_graph *g, struct cld_ref x, struct cld_ref index, struct cld_ref y);
void cld_add_copy(struct cld_graph *g, struct cld_ref x, struct cld_ref y);
void cld_add_rmsnorm(struct cld_graph *g, struct cld_ref x, struct cld_ref w, float eps,
                     struct cld_ref y, struct cld_ref rstd);
void cld_add_rmsnorm_back(struct cld_graph *g, struct cld_ref x, struct cld_ref w,
                          struct cld_ref rstd, struct cld_ref dy, struct cld_ref residual,
                          struct cld_ref dx, struct cld_ref dw);
void cld_add_qknorm_rope(struct cld_graph *g, struct cld_ref x, struct cld_ref w, float eps,
                         size_t head_dim, struct cld_ref positions, struct cld_ref table,
                         struct cld_ref y, struct cld_ref rstd);
void cld_add_qknorm_rope_back(struct cld_graph *g, struct cld_ref x, struct cld_ref w,
                              size_t head_dim, struct cld_ref positions, struct cld_ref table,
                              struct cld_ref rstd, struct cld_ref dy, struct cld_ref dx,
                              struct cld_ref dw);
/* residual and bias may be CLD_NONE; residual may be c: it accumulates. */
void cld_add_gemm(struct cld_graph *g, enum cld_gemm_kind kind, struct cld_ref a, struct cld_ref b,
                  struct cld_ref bias, struct cld_ref residual, struct cld_ref c);
/* y = silu(gate) * up, columns of gate and up in a b^T interleaved by 8 (op_gemm.h). */
void cld_add_gemm_swiglu(struct cld_graph *g, struct cld_ref a, struct cld_ref b, struct cld_ref y);
/* dW [out, in] of a parameter: dy^T x is added to it. `first`: nothing before it in the list adds
 * to dW, so the first pass of a step overwrites what is there. */
void cld_add_gemm_gradient(struct cld_graph *g, struct cld_ref dy, struct cld_ref x,
                           struct cld_ref dw, bool first);
void cld_add_swiglu(struct cld_graph *g, struct cld_ref gate, struct cld_ref up, struct cld_ref y);
void cld_add_swiglu_back(struct cld_graph *g, struct cld_ref gate, struct cld_ref up,
                         struct cld_ref dy, struct cld_ref d_gate, struct cld_ref d_up);
void cld_add_attention(struct cld_graph *g, const struct cld_attention_plan *plan,
                       const struct cld_attention_mask *mask, struct cld_ref q, struct cld_ref k,
                       struct cld_ref v, struct cld_ref o, struct cld_ref lse);
void cld_add_attention_back(struct cld_graph *g, const struct cld_attention_plan *plan,
                            const struct cld_attention_mask *mask, struct cld_ref q,
                            struct cld_ref k, struct cld_ref v, struct cld_ref o,
                            struct cld_ref lse, struct cld_ref d_o, struct cld_ref d_q,
                            struct cld_ref d_k, struct cld_ref d_v);

/* Scratch that any operation of the list needs on this queue, at full extents. */
size_t cld_graph_scratch_bytes(const struct cld_queue *q, const struct cld_graph *g);

/* What operations share while a list runs. */
struct cld_graph_run {
    struct cld_queue *q;
    struct cld_extents extents;
    struct cld_buf *scratch;
    enum cld_gemm_backend gemm_backend;
    const struct cld_tensor *visited; /* attention's tile counters; NULL: not counted */
    bool first_pass; /* of a step: gradients of matrices are written, not added to */
};

/* Enqueues operations [first, first + n). An error names the operation. */
enum cld_status cld_graph_run(const struct cld_graph *g, size_t first, size_t n,
                              const struct cld_graph_run *run, struct cld_error *err);

#endif
