/* bench_case.h - the operands of a measured operation: declared, judged against the budget,
 * created, filled and freed together. For bench_*.c alone. Thread: the queue's owner. */
#ifndef CLD_BENCH_BENCH_CASE_H
#define CLD_BENCH_BENCH_CASE_H

#include "bench/bench.h"
#include "model/plan.h"
#include "ops/op_attention.h"
#include "ops/op_gemm.h"

enum { cld_bench_max_operands = 20, cld_bench_max_buffers = 2 };

/* Zero-initialise; freed by cld_bench_case_close whatever happened. */
struct cld_bench_case {
    struct cld_queue *q; /* borrowed */
    struct cld_plan *plan;
    struct cld_tensor operands[cld_bench_max_operands];
    struct cld_buf *buffers[cld_bench_max_buffers];
    size_t n_operands, n_buffers;
};

enum cld_status cld_bench_case_open(struct cld_bench_case *c, struct cld_queue *q,
                                    struct cld_error *err);

/* Declares a tensor, or bytes (0: none are made and the buffer stays NULL). What is returned stays
 * where it is until the case is closed. */
struct cld_tensor *cld_bench_operand(struct cld_bench_case *c, enum cld_dtype type, size_t n_rows,
                                     size_t n_cols, const char *name);
struct cld_buf **cld_bench_buffer(struct cld_bench_case *c, size_t n_bytes, const char *name);

/* Replaces a buffer of a created case by one of n_bytes if it is smaller. */
enum cld_status cld_bench_scratch(struct cld_queue *q, struct cld_buf **scratch, size_t n_bytes,
                                  struct cld_error *err);

/* Declares the operands of a product and its scratch. */
void cld_bench_gemm_case(struct cld_bench_case *c, const struct cld_gemm_use *p, struct cld_gemm *g,
                         struct cld_buf ***scratch);

/* Checks the sum, creates everything, fills tensors of floats with normal values (a pure function
 * of the configuration's seed and the order of declarations), others with zeros. */
enum cld_status cld_bench_case_create(struct cld_bench_case *c, const struct cld_bench *b,
                                      struct cld_error *err);
void cld_bench_case_close(struct cld_bench_case *c);

/* Storages that operations are measured in: how many, and the i-th. */
size_t cld_bench_n_storages(const struct cld_bench *b);
enum cld_dtype cld_bench_storage(const struct cld_bench *b, size_t i);
/* "fp32", "bf16": as in configurations. */
const char *cld_bench_storage_name(enum cld_dtype type);

/* The micro-batch of the configuration at its largest, on the host; freed by the caller. */
enum cld_status cld_bench_batch(const struct cld_bench *b, struct cld_batch *out,
                                struct cld_error *err);

/* --- the drafter's attention (bench_ops.c) ---------------------------------------------------- */

/* Zero-initialise; freed by cld_bench_attention_free. Stays where it is meanwhile. */
struct cld_bench_attention {
    struct cld_attention_plan plan;
    struct cld_attention_mask mask;
    struct cld_attention a;
    const struct cld_tensor *d_o, *d_q, *d_k, *d_v;
    struct cld_buf **mask_buf, **scratch; /* the case's */
    struct cld_span *spans;               /* of the batch's rows */
};

/* The windows that layers of the drafter have, 0 for all keys; returns how many there are. */
size_t cld_bench_windows(const struct cld_drafter_config *d, size_t windows[2]);

/* Plans attention of the batch with this window, declares its operands in an open case, creates
 * them and uploads the mask. */
enum cld_status cld_bench_attention_make(const struct cld_bench *b, struct cld_bench_case *c,
                                         const struct cld_batch *batch, size_t window,
                                         enum cld_dtype storage, struct cld_bench_attention *t,
                                         struct cld_error *err);
void cld_bench_attention_free(struct cld_bench_attention *t);
enum cld_status cld_bench_attention_forward(struct cld_queue *q, void *attention,
                                            struct cld_error *err);
enum cld_status cld_bench_attention_backward(struct cld_queue *q, void *attention,
                                             struct cld_error *err);

/* --- operations on the drafter's tensors (bench_elementwise.c) -------------------------------- */

/* One operation at work; `t` are its operands in an order that is its own. */
struct cld_bench_work {
    const struct cld_bench *b;
    const struct cld_batch *batch;
    enum cld_dtype storage;
    size_t n_params; /* cld_bench_count_params */
    /* what cld_bench_work_make sets */
    const struct cld_bench_operation *op;
    struct cld_bench_case c;
    const struct cld_tensor *t[8];
    struct cld_buf **scratch; /* the case's; NULL: none */
};

/* Elements of the arenas of the drafter, from its description; nothing is created. */
enum cld_status cld_bench_count_params(const struct cld_bench *b, struct cld_queue *q, size_t *n,
                                       struct cld_error *err);

/* Creates and fills the operands of the operation with this name in the table ("swiglu forward");
 * its shape and the bytes that must move go to *r. Freed by cld_bench_work_free whatever
 * happened. */
enum cld_status cld_bench_work_make(struct cld_bench_work *w, const char *name, struct cld_queue *q,
                                    struct cld_bench_result *r, struct cld_error *err);
/* Enqueues it once; `work` is a struct cld_bench_work. Scratch grows with the queue's rows. */
enum cld_status cld_bench_work_run(struct cld_queue *q, void *work, struct cld_error *err);
void cld_bench_work_free(struct cld_bench_work *w);

#endif
