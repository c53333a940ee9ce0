/* bench_elementwise.c - operations that are bound by memory: norms, rotary embedding, SwiGLU, rows
 * taken by index, the loss, transposed copies and the optimizer on the tensors of the drafter, and
 * a plain copy to compare with. Gradients are in the storage of what they are gradients of. */
#include <stdlib.h>
#include <string.h>

#include "bench/bench_case.h"
#include "ops/op_gemm.h"
#include "ops/ops.h"

static const size_t most_copied_bytes = (size_t)256 << 20; /* past any cache */

/* Declares the operands, the shape and the bytes that must move; runs. */
struct cld_bench_operation {
    const char *name;
    void (*declare)(struct cld_bench_work *w, struct cld_bench_result *r);
    cld_bench_fn *run;
    cld_bench_fn *prepare; /* values other than those of cld_bench_case_create; NULL: none */
    size_t (*scratch_bytes)(const struct cld_bench_work *w); /* with the queue's rows; NULL: none */
    bool gpu_alone;                                          /* nothing that a CPU does */
};

static const struct cld_tensor *matrix(struct cld_bench_work *w, enum cld_dtype type, size_t n_rows,
                                       size_t n_cols, struct cld_bench_result *r)
{
    r->bytes += (double)n_rows * (double)n_cols * (double)cld_dtype_bytes(type);
    return cld_bench_operand(&w->c, type, n_rows, n_cols, "operand");
}

/* What stays in a cache: weights of norms, rotary tables. Its bytes do not count. */
static const struct cld_tensor *small(struct cld_bench_work *w, enum cld_dtype type, size_t n_rows,
                                      size_t n_cols)
{
    return cld_bench_operand(&w->c, type, n_rows, n_cols, "small operand");
}

static void shape(struct cld_bench_result *r, size_t n_rows, size_t n_cols)
{
    cld_bench_dim(r, "rows", n_rows);
    cld_bench_dim(r, "columns", n_cols);
}

/* --- copy ------------------------------------------------------------------------------------- */

static void declare_copy(struct cld_bench_work *w, struct cld_bench_result *r)
{
    size_t n_bytes = cld_min(most_copied_bytes, cld_queue_budget_bytes(w->c.q) / 8);
    size_t n = n_bytes / sizeof(float);
    shape(r, 1, n);
    w->t[0] = matrix(w, CLD_F32, 1, n, r);
    w->t[1] = matrix(w, CLD_F32, 1, n, r);
}

static enum cld_status run_copy(struct cld_queue *q, void *arg, struct cld_error *err)
{
    const struct cld_tensor *const *t = ((struct cld_bench_work *)arg)->t;
    (void)q;
    return cld_buf_copy(t[0]->buf, 0, t[1]->buf, 0, cld_tensor_bytes(t[0]), err);
}

/* --- rmsnorm ---------------------------------------------------------------------------------- */

static void declare_rmsnorm(struct cld_bench_work *w, struct cld_bench_result *r)
{
    size_t n = w->batch->n_draft, c = w->b->setup->drafter.hidden;
    shape(r, n, c);
    w->t[0] = matrix(w, w->storage, n, c, r); /* x */
    w->t[1] = small(w, w->storage, 1, c);     /* w */
    w->t[2] = matrix(w, w->storage, n, c, r); /* y */
    w->t[3] = matrix(w, CLD_F32, 1, n, r);    /* rstd */
}

static enum cld_status run_rmsnorm(struct cld_queue *q, void *arg, struct cld_error *err)
{
    const struct cld_bench_work *w = arg;
    return cld_rmsnorm_forward(q, w->t[0], w->t[1], (float)w->b->setup->drafter.rms_norm_eps,
                               w->t[2], w->t[3], err);
}

static void declare_rmsnorm_back(struct cld_bench_work *w, struct cld_bench_result *r)
{
    size_t n = w->batch->n_draft, c = w->b->setup->drafter.hidden;
    shape(r, n, c);
    w->t[0] = matrix(w, w->storage, n, c, r); /* x */
    w->t[1] = small(w, w->storage, 1, c);     /* w */
    w->t[2] = matrix(w, CLD_F32, 1, n, r);    /* rstd */
    w->t[3] = matrix(w, w->storage, n, c, r); /* dy */
    w->t[4] = matrix(w, w->storage, n, c, r); /* residual */
    w->t[5] = matrix(w, w->storage, n, c, r); /* dx */
    w->t[6] = small(w, CLD_F32, 1, c);        /* dw */
}

static size_t rmsnorm_scratch(const struct cld_bench_work *w)
{
    return cld_norm_scratch_bytes(w->c.q, w->t[0]->n_cols);
}

static enum cld_status run_rmsnorm_back(struct cld_queue *q, void *arg, struct cld_error *err)
{
    const struct cld_bench_work *w = arg;
    return cld_rmsnorm_backward(q, w->t[0], w->t[1], w->t[2], w->t[3], w->t[4], w->t[5], w->t[6],
                                *w->scratch, err);
}

/* --- head norms and rotary embedding ---------------------------------------------------------- */

/* Positions are zeros: every row takes the same row of the table. */
static void declare_rope(struct cld_bench_work *w, struct cld_bench_result *r)
{
    const struct cld_drafter_config *d = &w->b->setup->drafter;
    size_t n = w->batch->n_draft, c = cld_mul(d->n_heads, d->head_dim);
    shape(r, n, c);
    w->t[0] = matrix(w, w->storage, n, c, r);       /* x */
    w->t[1] = small(w, w->storage, 1, d->head_dim); /* w */
    w->t[2] = matrix(w, CLD_I32, 1, n, r);          /* positions */
    w->t[3] = small(w, CLD_F32, 16, d->head_dim);   /* table */
    w->t[4] = matrix(w, w->storage, n, c, r);       /* y */
    w->t[5] = matrix(w, CLD_F32, n, d->n_heads, r); /* rstd */
}

static enum cld_status run_rope(struct cld_queue *q, void *arg, struct cld_error *err)
{
    const struct cld_bench_work *w = arg;
    const struct cld_drafter_config *d = &w->b->setup->drafter;
    return cld_qknorm_rope_forward(q, w->t[0], w->t[1], (float)d->rms_norm_eps, d->head_dim,
                                   w->t[2], w->t[3], w->t[4], w->t[5], err);
}

static void declare_rope_back(struct cld_bench_work *w, struct cld_bench_result *r)
{
    const struct cld_drafter_config *d = &w->b->setup->drafter;
    size_t n = w->batch->n_draft, c = cld_mul(d->n_heads, d->head_dim);
    shape(r, n, c);
    w->t[0] = matrix(w, w->storage, n, c, r);       /* x */
    w->t[1] = small(w, w->storage, 1, d->head_dim); /* w */
    w->t[2] = matrix(w, CLD_I32, 1, n, r);          /* positions */
    w->t[3] = small(w, CLD_F32, 16, d->head_dim);   /* table */
    w->t[4] = matrix(w, CLD_F32, n, d->n_heads, r); /* rstd */
    w->t[5] = matrix(w, w->storage, n, c, r);       /* dy */
    /* In place it would shrink or grow from run to run until denormals make it slow. */
    w->t[6] = matrix(w, w->storage, n, c, r);    /* dx */
    w->t[7] = small(w, CLD_F32, 1, d->head_dim); /* dw */
}

static size_t rope_scratch(const struct cld_bench_work *w)
{
    return cld_norm_scratch_bytes(w->c.q, w->b->setup->drafter.head_dim);
}

static enum cld_status run_rope_back(struct cld_queue *q, void *arg, struct cld_error *err)
{
    const struct cld_bench_work *w = arg;
    return cld_qknorm_rope_backward(q, w->t[0], w->t[1], w->b->setup->drafter.head_dim, w->t[2],
                                    w->t[3], w->t[4], w->t[5], w->t[6], w->t[7], *w->scratch, err);
}

/* --- swiglu ----------------------------------------------------------------------------------- */

static void declare_swiglu(struct cld_bench_work *w, struct cld_bench_result *r)
{
    size_t n = w->batch->n_draft, c = w->b->setup->drafter.intermediate;
    shape(r, n, c);
    for (int i = 0; i < 3; i++) /* gate, up, y */
        w->t[i] = matrix(w, w->storage, n, c, r);
}

static enum cld_status run_swiglu(struct cld_queue *q, void *arg, struct cld_error *err)
{
    const struct cld_tensor *const *t = ((struct cld_bench_work *)arg)->t;
    return cld_swiglu_forward(q, t[0], t[1], t[2], err);
}

static void declare_swiglu_back(struct cld_bench_work *w, struct cld_bench_result *r)
{
    size_t n = w->batch->n_draft, c = w->b->setup->drafter.intermediate;
    shape(r, n, c);
    for (int i = 0; i < 5; i++) /* gate, up; dy, d_gate, d_up */
        w->t[i] = matrix(w, w->storage, n, c, r);
}

static enum cld_status run_swiglu_back(struct cld_queue *q, void *arg, struct cld_error *err)
{
    const struct cld_tensor *const *t = ((struct cld_bench_work *)arg)->t;
    return cld_swiglu_backward(q, t[0], t[1], t[2], t[3], t[4], err);
}

/* --- rows by index, transposed copies
 * ------------------------------------------------------------- */

static void declare_gather(struct cld_bench_work *w, struct cld_bench_result *r)
{
    size_t n = w->batch->n_draft, c = w->b->setup->drafter.hidden;
    shape(r, n, c);
    w->t[0] = matrix(w, w->storage, n, c, r); /* x */
    w->t[1] = matrix(w, CLD_I32, 1, n, r);    /* index */
    w->t[2] = matrix(w, w->storage, n, c, r); /* y */
}

/* Every row once, none beside its neighbour. */
static enum cld_status prepare_gather(struct cld_queue *q, void *arg, struct cld_error *err)
{
    const struct cld_bench_work *w = arg;
    size_t n = w->t[1]->n_cols;
    (void)q;
    int32_t *index = malloc(cld_mul(n, sizeof *index));
    if (!index)
        return cld_fail_memory(err, "%zu indices", n);
    for (size_t i = 0; i < n; i++)
        index[i] = (int32_t)(i / 2 + (i % 2 ? (n + 1) / 2 : 0));
    enum cld_status s = cld_buf_write(w->t[1]->buf, 0, index, n * sizeof *index, err);
    free(index);
    return s;
}

static enum cld_status run_gather(struct cld_queue *q, void *arg, struct cld_error *err)
{
    const struct cld_tensor *const *t = ((struct cld_bench_work *)arg)->t;
    return cld_gather_rows(q, t[0], t[1], t[2], err);
}

/* --- loss ------------------------------------------------------------------------------------- */

/* One chunk of the rows that have a loss. Labels are zeros. */
static void declare_loss_alone(struct cld_bench_work *w, struct cld_bench_result *r)
{
    size_t chunk = cld_mul(w->b->cfg->train.loss_chunk, w->b->setup->drafter.block_size);
    size_t n = cld_min(w->batch->n_draft, chunk), v = w->b->setup->drafter.vocab;
    shape(r, n, v);
    w->t[0] = matrix(w, CLD_F32, n, v, r); /* logits */
    w->t[1] = matrix(w, CLD_I32, 1, n, r); /* labels */
    w->t[2] = matrix(w, CLD_F32, 1, n, r); /* weights */
    w->t[3] = matrix(w, CLD_F32, 1, n, r); /* loss */
    w->t[4] = matrix(w, CLD_I32, 1, n, r); /* hit */
}

static void declare_loss(struct cld_bench_work *w, struct cld_bench_result *r)
{
    declare_loss_alone(w, r);
    w->t[5] = matrix(w, w->storage, w->t[0]->n_rows, w->t[0]->n_cols, r); /* gradient */
}

static enum cld_status run_loss(struct cld_queue *q, void *arg, struct cld_error *err)
{
    const struct cld_tensor *const *t = ((struct cld_bench_work *)arg)->t;
    return cld_cross_entropy(q, t[0], t[1], t[2], t[3], t[4], t[5], err);
}

/* --- optimizer -------------------------------------------------------------------------------- */

static void declare_norm(struct cld_bench_work *w, struct cld_bench_result *r)
{
    shape(r, 1, w->n_params);
    w->t[0] = matrix(w, CLD_F32, 1, w->n_params, r);
}

static size_t norm_scratch(const struct cld_bench_work *w)
{
    return cld_sum_scratch_bytes(w->c.q);
}

static enum cld_status run_norm(struct cld_queue *q, void *arg, struct cld_error *err)
{
    const struct cld_bench_work *w = arg;
    double sum;
    return cld_sum_squares(q, w->t[0], *w->scratch, &sum, err);
}

static void declare_adamw(struct cld_bench_work *w, struct cld_bench_result *r)
{
    size_t n = w->n_params;
    shape(r, 1, n);
    for (int i = 0; i < 4; i++) /* grad, m, v, master */
        w->t[i] = matrix(w, CLD_F32, 1, n, r);
    /* moments and master are read and written */
    r->bytes += 3.0 * (double)n * sizeof(float);
    w->t[4] = w->storage == CLD_F32 ? w->t[3] : matrix(w, w->storage, 1, n, r); /* weight */
}

/* The second moment is a mean of squares. */
static enum cld_status prepare_adamw(struct cld_queue *q, void *arg, struct cld_error *err)
{
    return cld_fill(q, ((struct cld_bench_work *)arg)->t[2], 1.0f, err);
}

static enum cld_status run_adamw(struct cld_queue *q, void *arg, struct cld_error *err)
{
    const struct cld_tensor *const *t = ((struct cld_bench_work *)arg)->t;
    struct cld_adamw a = {.grad = t[0],
                          .m = t[1],
                          .v = t[2],
                          .master = t[3],
                          .weight = t[4],
                          .learning_rate = 1e-3f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .epsilon = 1e-8f,
                          .grad_scale = 1,
                          .step = 1};
    return cld_adamw_step(q, &a, err);
}

/* --- all of them ------------------------------------------------------------------------------ */

static const struct cld_bench_operation operations[] = {
    {"copy", declare_copy, run_copy, NULL, NULL, false},
    {"rmsnorm forward", declare_rmsnorm, run_rmsnorm, NULL, NULL, false},
    {"rmsnorm backward", declare_rmsnorm_back, run_rmsnorm_back, NULL, rmsnorm_scratch, false},
    {"qknorm_rope forward", declare_rope, run_rope, NULL, NULL, false},
    {"qknorm_rope backward", declare_rope_back, run_rope_back, NULL, rope_scratch, false},
    {"swiglu forward", declare_swiglu, run_swiglu, NULL, NULL, false},
    {"swiglu backward", declare_swiglu_back, run_swiglu_back, NULL, NULL, false},
    {"gather", declare_gather, run_gather, prepare_gather, NULL, false},
    {"cross-entropy alone", declare_loss_alone, run_loss, NULL, NULL, false},
    {"cross-entropy", declare_loss, run_loss, NULL, NULL, false},
    {"gradient norm", declare_norm, run_norm, NULL, norm_scratch, false},
    {"adamw", declare_adamw, run_adamw, prepare_adamw, NULL, false},
};
enum { n_operations = sizeof operations / sizeof *operations };

enum cld_status cld_bench_count_params(const struct cld_bench *b, struct cld_queue *q, size_t *n,
                                       struct cld_error *err)
{
    struct cld_drafter d = {0};
    struct cld_drafter_limits limits = {
        .n_ctx = 1, .n_blocks = 1, .loss_chunk = 1, .n_positions = 1};
    struct cld_drafter_options options = {.storage = CLD_F32,
                                          .attention = b->cfg->attention.backend};
    struct cld_tensor embed;
    struct cld_plan *plan = cld_plan_new();
    enum cld_status s = CLD_OK;
    if (!plan)
        return cld_fail_memory(err, "a plan");
    cld_plan_tensor(plan, &embed, CLD_F32, b->setup->drafter.vocab, b->setup->drafter.hidden,
                    CLD_FOR_FROZEN, "embedding");
    s = cld_drafter_describe(&d, &b->setup->drafter, &limits, &options, q, &embed, &embed, plan,
                             err);
    *n = d.n_elems;
    cld_drafter_free(&d);
    cld_plan_free(plan);
    return s;
}

enum cld_status cld_bench_work_make(struct cld_bench_work *w, const char *name, struct cld_queue *q,
                                    struct cld_bench_result *r, struct cld_error *err)
{
    size_t i = 0;
    while (strcmp(operations[i].name, name))
        i++;
    w->op = &operations[i];
    memset(w->t, 0, sizeof w->t);
    w->scratch = NULL;
    enum cld_status s = cld_bench_case_open(&w->c, q, err);
    if (s)
        return s;
    w->op->declare(w, r);
    if (w->op->scratch_bytes)
        w->scratch = cld_bench_buffer(&w->c, w->op->scratch_bytes(w), "scratch");
    if ((s = cld_bench_case_create(&w->c, w->b, err)))
        return s;
    return w->op->prepare ? w->op->prepare(q, w, err) : CLD_OK;
}

enum cld_status cld_bench_work_run(struct cld_queue *q, void *work, struct cld_error *err)
{
    struct cld_bench_work *w = work;
    enum cld_status s =
        w->scratch ? cld_bench_scratch(q, w->scratch, w->op->scratch_bytes(w), err) : CLD_OK;
    return s ? s : w->op->run(q, w, err);
}

void cld_bench_work_free(struct cld_bench_work *w)
{
    cld_bench_case_close(&w->c);
}

static enum cld_status measure(struct cld_bench_work *w, const char *name, struct cld_queue *q,
                               struct cld_error *err)
{
    struct cld_bench_result r = {.what = "elementwise"};
    snprintf(r.name, sizeof r.name, "%s", name);
    snprintf(r.storage, sizeof r.storage, "%s", cld_bench_storage_name(w->storage));
    snprintf(r.variant, sizeof r.variant, "%s",
             cld_queue_class(q) == CLD_CLASS_CPU ? "cpu" : "gpu");
    enum cld_status s = cld_bench_work_make(w, name, q, &r, err);
    if (!s)
        s = cld_bench_measure(w->b, q, cld_bench_work_run, w, &r, err);
    cld_bench_work_free(w);
    return s;
}

enum cld_status cld_bench_elementwise(const struct cld_bench *b, struct cld_queue *q,
                                      struct cld_error *err)
{
    struct cld_batch batch = {0};
    struct cld_bench_work w = {.b = b, .batch = &batch};
    enum cld_status s = cld_bench_batch(b, &batch, err);
    if (!s)
        s = cld_bench_count_params(b, q, &w.n_params, err);
    for (size_t i = 0; i < cld_bench_n_storages(b) && !s; i++) {
        w.storage = cld_bench_storage(b, i);
        for (size_t k = 0; k < n_operations && !s; k++)
            if (!operations[k].gpu_alone || cld_queue_class(q) == CLD_CLASS_GPU)
                s = measure(&w, operations[k].name, q, err);
    }
    cld_batch_free(&batch);
    return s;
}
