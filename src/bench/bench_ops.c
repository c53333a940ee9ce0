/* bench_ops.c - matrix products, attention and loss by themselves. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "bench/bench_case.h"
#include "ops/op_gemm.h"
#include "ops/op_head.h"

static void set_texts(struct cld_bench_result *r, const char *name, const char *storage,
                      const char *variant)
{
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->storage, sizeof r->storage, "%s", storage);
    snprintf(r->variant, sizeof r->variant, "%s", variant);
}

/* Of n tensors, each once. */
static double sum_bytes(const struct cld_tensor *const *t, size_t n)
{
    double bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += (double)cld_tensor_bytes(t[i]);
    return bytes;
}

/* --- matrix products -------------------------------------------------------------------------- */

struct gemm {
    struct cld_gemm g;
    struct cld_buf **scratch;
};

static enum cld_status run_gemm(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct gemm *p = arg;
    return cld_gemm(q, &p->g, *p->scratch, err);
}

/* Operands are stored as a training step stores them: weights, activations and their gradients in
 * `storage`, gradients of weights in float. */
static void declare_gemm(struct cld_bench_case *c, enum cld_gemm_kind kind,
                         const struct cld_shape *z, enum cld_dtype storage, struct gemm *p)
{
    const struct cld_gemm_use gemm = {
        kind, z->m, z->n, z->k, storage, storage, kind == CLD_GEMM_TN ? CLD_F32 : storage, 1};
    p->g.round_to_bf16 = storage == CLD_BF16;
    cld_bench_gemm_case(c, &gemm, &p->g, &p->scratch);
}

static enum cld_status measure_gemm(const struct cld_bench *b, struct cld_queue *q,
                                    enum cld_gemm_kind kind, const struct cld_shape *z,
                                    enum cld_dtype storage, enum cld_gemm_backend backend,
                                    struct cld_error *err)
{
    static const char *const names[] = {
        [CLD_GEMM_NT] = "NT", [CLD_GEMM_NN] = "NN", [CLD_GEMM_TN] = "TN"};
    struct cld_bench_case c = {0};
    struct gemm p = {.g = {.backend = backend}};
    struct cld_bench_result r = {.what = "gemm",
                                 .flop = 2.0 * (double)z->m * (double)z->n * (double)z->k};
    enum cld_status s = cld_bench_case_open(&c, q, err);
    if (s)
        goto done;
    declare_gemm(&c, kind, z, storage, &p);
    r.bytes = sum_bytes((const struct cld_tensor *const[]){p.g.a, p.g.b, p.g.c}, 3);
    cld_bench_dim(&r, "m", z->m);
    cld_bench_dim(&r, "n", z->n);
    cld_bench_dim(&r, "k", z->k);
    set_texts(&r, names[kind], "", cld_gemm_backend_name(q, backend));
    snprintf(r.storage, sizeof r.storage, "%s x %s -> %s", cld_bench_storage_name(p.g.a->type),
             cld_bench_storage_name(p.g.b->type), cld_bench_storage_name(p.g.c->type));
    if (!(s = cld_bench_case_create(&c, b, err)))
        s = cld_bench_measure(b, q, run_gemm, &p, &r, err);
done:
    cld_bench_case_close(&c);
    return s;
}

enum cld_status cld_bench_gemm(const struct cld_bench *b, struct cld_queue *q,
                               struct cld_error *err)
{
    const struct cld_shape_list *shapes = &b->cfg->bench.shapes;
    const struct cld_enum_list *backends = &b->cfg->bench.gemm;
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < shapes->n; i++)
        for (size_t k = 0; k < cld_bench_n_storages(b); k++)
            for (size_t j = 0; j < backends->n; j++) {
                enum cld_dtype storage = cld_bench_storage(b, k);
                enum cld_gemm_backend backend = (enum cld_gemm_backend)backends->v[j];
                if (backend == CLD_GEMM_CLBLAST && storage != CLD_F32) {
                    cld_info("gemm: clblast is left out in %s, it needs fp32",
                             cld_bench_storage_name(storage));
                    continue;
                }
                if ((backend == CLD_GEMM_SM80 || backend == CLD_GEMM_SM90A) &&
                    (storage != CLD_BF16 || !strcmp(cld_gemm_backend_name(q, backend), "none"))) {
                    cld_info("gemm: %s is left out in %s, it needs bf16 and NVIDIA tensor cores",
                             backend == CLD_GEMM_SM80 ? "sm80" : "sm90a",
                             cld_bench_storage_name(storage));
                    continue;
                }
                for (int kind = CLD_GEMM_NT; kind <= CLD_GEMM_TN; kind++)
                    if ((shapes->v[i].kind < 0 || shapes->v[i].kind == kind) &&
                        (s = measure_gemm(b, q, (enum cld_gemm_kind)kind, &shapes->v[i], storage,
                                          backend, err)))
                        return s;
            }
    return s;
}

/* --- attention -------------------------------------------------------------------------------- */

enum cld_status cld_bench_attention_forward(struct cld_queue *q, void *attention,
                                            struct cld_error *err)
{
    struct cld_bench_attention *t = attention;
    return cld_attention_forward(q, &t->a, err);
}

enum cld_status cld_bench_attention_backward(struct cld_queue *q, void *attention,
                                             struct cld_error *err)
{
    struct cld_bench_attention *t = attention;
    return cld_attention_backward(q, &t->a, t->d_o, t->d_q, t->d_k, t->d_v, err);
}

size_t cld_bench_windows(const struct cld_drafter_config *d, size_t windows[2])
{
    size_t n = 0;
    bool full = false;
    for (size_t i = 0; i < d->n_layers; i++)
        full |= !d->sliding[i];
    if (full)
        windows[n++] = 0;
    if (d->sliding_window)
        windows[n++] = d->sliding_window;
    return n;
}

enum cld_status cld_bench_attention_make(const struct cld_bench *b, struct cld_bench_case *c,
                                         const struct cld_batch *batch, size_t window,
                                         enum cld_dtype storage, struct cld_bench_attention *t,
                                         struct cld_error *err)
{
    const struct cld_drafter_config *d = &b->setup->drafter;
    size_t n_q = batch->n_draft, n_keys = batch->n_ctx + batch->n_draft;
    size_t q_cols = d->n_heads * d->head_dim, k_cols = d->n_kv_heads * d->head_dim;
    const enum cld_dtype grad = storage; /* as in the drafter */
    enum cld_status s =
        cld_attention_plan(c->q, b->cfg->attention.backend, n_q, n_keys, d->n_heads, d->n_kv_heads,
                           d->head_dim, storage, grad, true, &t->plan, err);
    if (s)
        return s;
    if (!(t->spans = calloc(n_q + 1, sizeof *t->spans)))
        return cld_fail_memory(err, "%zu spans", n_q);
    cld_mask_draft(batch->blocks, batch->n_blocks, batch->block_size, batch->n_ctx, window,
                   d->sliding_causal, t->spans);
    t->a.plan = &t->plan;
    t->a.mask = &t->mask;
    t->a.q = cld_bench_operand(c, storage, n_q, q_cols, "q");
    t->a.k = cld_bench_operand(c, storage, n_keys, k_cols, "k");
    t->a.v = cld_bench_operand(c, storage, n_keys, k_cols, "v");
    t->a.o = cld_bench_operand(c, storage, n_q, q_cols, "o");
    t->a.lse = cld_bench_operand(c, CLD_F32, d->n_heads, n_q, "lse");
    t->d_o = cld_bench_operand(c, grad, n_q, q_cols, "d o");
    t->d_q = cld_bench_operand(c, grad, n_q, q_cols, "d q");
    t->d_k = cld_bench_operand(c, grad, n_keys, k_cols, "d k");
    t->d_v = cld_bench_operand(c, grad, n_keys, k_cols, "d v");
    t->mask_buf = cld_bench_buffer(c, t->plan.mask_bytes, "mask");
    t->scratch = cld_bench_buffer(c, t->plan.scratch_bytes, "scratch");
    if ((s = cld_bench_case_create(c, b, err)))
        return s;
    t->mask.buf = *t->mask_buf;
    t->a.scratch = *t->scratch;
    return cld_attention_mask_set(c->q, &t->plan, t->spans, n_q, n_keys, &t->mask, err);
}

void cld_bench_attention_free(struct cld_bench_attention *t)
{
    cld_attention_mask_free(&t->mask);
    free(t->spans);
}

static double count_pairs(const struct cld_span *spans, size_t n)
{
    double pairs = 0;
    for (size_t i = 0; i < n; i++)
        pairs += (double)(spans[i].hi - spans[i].lo) + (double)(spans[i].own_hi - spans[i].own_lo);
    return pairs;
}

static enum cld_status measure_attention(const struct cld_bench *b, struct cld_queue *q,
                                         const struct cld_batch *batch, size_t window,
                                         enum cld_dtype storage, struct cld_error *err)
{
    const struct cld_drafter_config *d = &b->setup->drafter;
    struct cld_bench_case c = {0};
    struct cld_bench_attention t = {0};
    enum cld_status s = cld_bench_case_open(&c, q, err);
    if (s || (s = cld_bench_attention_make(b, &c, batch, window, storage, &t, err)))
        goto done;
    /* A product of a visible pair takes 2 operations a column: 2 products forward (scores, output),
     * 5 backward (scores again, dV, dP, dQ, dK). Masked pairs do not count. */
    double gemm = 2.0 * (double)(d->n_heads * d->head_dim) * count_pairs(t.spans, batch->n_draft);
    for (int back = 0; back < 2 && !s; back++) {
        const struct cld_tensor *const all[] = {t.a.q, t.a.k, t.a.v, t.a.o,
                                                t.d_o, t.d_q, t.d_k, t.d_v};
        struct cld_bench_result r = {.what = "attention",
                                     .flop = (back ? 5 : 2) * gemm,
                                     .bytes = sum_bytes(all, back ? 8 : 4)};
        set_texts(&r, back ? "backward" : "forward", cld_bench_storage_name(storage),
                  t.plan.variant);
        cld_bench_dim(&r, "context", batch->n_ctx);
        cld_bench_dim(&r, "blocks", batch->n_blocks);
        cld_bench_dim(&r, "block", batch->block_size);
        cld_bench_dim(&r, "heads", d->n_heads);
        cld_bench_dim(&r, "kv_heads", d->n_kv_heads);
        cld_bench_dim(&r, "head_dim", d->head_dim);
        cld_bench_dim(&r, "window", window);
        s = cld_bench_measure(
            b, q, back ? cld_bench_attention_backward : cld_bench_attention_forward, &t, &r, err);
    }
done:
    cld_bench_attention_free(&t);
    cld_bench_case_close(&c);
    return s;
}

enum cld_status cld_bench_attention(const struct cld_bench *b, struct cld_queue *q,
                                    struct cld_error *err)
{
    struct cld_batch batch = {0};
    size_t windows[2], n_windows = cld_bench_windows(&b->setup->drafter, windows);
    enum cld_status s = cld_bench_batch(b, &batch, err);
    for (size_t i = 0; i < cld_bench_n_storages(b) && !s; i++)
        for (size_t j = 0; j < n_windows && !s; j++)
            s = measure_attention(b, q, &batch, windows[j], cld_bench_storage(b, i), err);
    cld_batch_free(&batch);
    return s;
}

/* --- loss ------------------------------------------------------------------------------------- */

struct loss {
    struct cld_head_loss l;
    struct cld_buf **scratch;
};

static enum cld_status run_loss(struct cld_queue *q, void *arg, struct cld_error *err)
{
    struct loss *t = arg;
    return cld_head_loss(q, &t->l, *t->scratch, err);
}

static enum cld_status measure_loss(const struct cld_bench *b, struct cld_queue *q,
                                    const struct cld_batch *batch, enum cld_dtype storage,
                                    struct cld_error *err)
{
    size_t n = batch->n_supervised, h = b->setup->drafter.hidden, v = b->setup->drafter.vocab;
    size_t chunk = cld_max(1, cld_min(n, b->cfg->train.loss_chunk * batch->block_size));
    struct cld_bench_case c = {0};
    struct loss t = {0};
    /* Two products: logits, and the gradient of the rows. */
    struct cld_bench_result r = {.what = "loss", .flop = 4.0 * (double)n * (double)h * (double)v};
    enum cld_status s = cld_bench_case_open(&c, q, err);
    if (s)
        goto done;
    t.l.z = cld_bench_operand(&c, storage, n, h, "z");
    t.l.head = cld_bench_operand(&c, storage, v, h, "head");
    t.l.logits = cld_bench_operand(&c, CLD_F32, chunk, v, "logits");
    t.l.labels = cld_bench_operand(&c, CLD_I32, 1, n, "labels");
    t.l.weights = cld_bench_operand(&c, CLD_F32, 1, n, "weights");
    t.l.loss = cld_bench_operand(&c, CLD_F32, 1, n, "cross-entropy");
    t.l.hit = cld_bench_operand(&c, CLD_I32, 1, n, "hits");
    t.l.d_logits =
        storage == CLD_F32 ? t.l.logits : cld_bench_operand(&c, storage, chunk, v, "d logits");
    t.l.dz = cld_bench_operand(&c, storage, n, h, "dz");
    t.scratch = cld_bench_buffer(&c, cld_head_loss_scratch_bytes(q, &t.l), "scratch");
    /* Logits need not be in memory at all; here a chunk of them is. */
    r.bytes = sum_bytes((const struct cld_tensor *const[]){t.l.z, t.l.head, t.l.dz}, 3);
    set_texts(&r, "with gradient", cld_bench_storage_name(storage),
              cld_gemm_backend_name(q, t.l.gemm));
    cld_bench_dim(&r, "rows", n);
    cld_bench_dim(&r, "hidden", h);
    cld_bench_dim(&r, "vocab", v);
    cld_bench_dim(&r, "chunk", chunk);
    if (!(s = cld_bench_case_create(&c, b, err)))
        s = cld_bench_measure(b, q, run_loss, &t, &r, err);
done:
    cld_bench_case_close(&c);
    return s;
}

enum cld_status cld_bench_loss(const struct cld_bench *b, struct cld_queue *q,
                               struct cld_error *err)
{
    struct cld_batch batch = {0};
    enum cld_status s = cld_bench_batch(b, &batch, err);
    for (size_t i = 0; i < cld_bench_n_storages(b) && !s; i++)
        s = measure_loss(b, q, &batch, cld_bench_storage(b, i), err);
    cld_batch_free(&batch);
    return s;
}
