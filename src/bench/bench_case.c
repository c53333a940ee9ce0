#include "bench/bench_case.h"

#include <string.h>

#include "ops/ops.h"
#include "workers/worker.h"

enum cld_status cld_bench_case_open(struct cld_bench_case *c, struct cld_queue *q,
                                    struct cld_error *err)
{
    memset(c, 0, sizeof *c);
    c->q = q;
    c->plan = cld_plan_new();
    return c->plan ? CLD_OK : cld_fail_memory(err, "a benchmark");
}

struct cld_tensor *cld_bench_operand(struct cld_bench_case *c, enum cld_dtype type, size_t n_rows,
                                     size_t n_cols, const char *name)
{
    struct cld_tensor *t = &c->operands[c->n_operands++];
    cld_plan_tensor(c->plan, t, type, n_rows, n_cols, CLD_FOR_TEMPORARY, "%s", name);
    return t;
}

struct cld_buf **cld_bench_buffer(struct cld_bench_case *c, size_t n_bytes, const char *name)
{
    struct cld_buf **slot = &c->buffers[c->n_buffers++];
    cld_plan_buffer(c->plan, slot, n_bytes, CLD_FOR_TEMPORARY, "%s", name);
    return slot;
}

enum cld_status cld_bench_scratch(struct cld_queue *q, struct cld_buf **scratch, size_t n_bytes,
                                  struct cld_error *err)
{
    if (!n_bytes || (*scratch && cld_buf_bytes(*scratch) >= n_bytes))
        return CLD_OK;
    cld_buf_free(*scratch);
    *scratch = NULL;
    return cld_buf_create(q, "scratch", n_bytes, scratch, err);
}

void cld_bench_gemm_case(struct cld_bench_case *c, const struct cld_gemm_use *p, struct cld_gemm *g,
                         struct cld_buf ***scratch)
{
    bool tn = p->kind == CLD_GEMM_TN, nt = p->kind == CLD_GEMM_NT;
    g->kind = p->kind;
    g->a = cld_bench_operand(c, p->a, tn ? p->k : p->m, tn ? p->m : p->k, "a");
    g->b = cld_bench_operand(c, p->b, nt ? p->n : p->k, nt ? p->k : p->n, "b");
    g->c = cld_bench_operand(c, p->c, p->m, p->n, "c");
    *scratch = cld_bench_buffer(c, cld_gemm_scratch_bytes(c->q, g), "scratch");
}

enum cld_status cld_bench_case_create(struct cld_bench_case *c, const struct cld_bench *b,
                                      struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if ((s = cld_plan_check(c->plan, cld_queue_name(c->q), cld_queue_budget_bytes(c->q),
                            cld_plan_max_buffer_bytes(b->cfg, b->device), err)) ||
        (s = cld_plan_create(c->plan, c->q, err)))
        return s;
    for (size_t i = 0; i < c->n_operands && !s; i++)
        if (c->operands[i].type != CLD_I32)
            s = cld_fill_normal(c->q, &c->operands[i], (uint64_t)b->cfg->run.seed, i, 1.0f, err);
    return s;
}

void cld_bench_case_close(struct cld_bench_case *c)
{
    for (size_t i = 0; i < c->n_operands; i++)
        cld_buf_free(c->operands[i].buf);
    for (size_t i = 0; i < c->n_buffers; i++)
        cld_buf_free(c->buffers[i]);
    cld_plan_free(c->plan);
    memset(c, 0, sizeof *c);
}

size_t cld_bench_n_storages(const struct cld_bench *b)
{
    return cld_max(1, b->cfg->bench.storage.n);
}

enum cld_dtype cld_bench_storage(const struct cld_bench *b, size_t i)
{
    return b->cfg->bench.storage.n ? (enum cld_dtype)b->cfg->bench.storage.v[i]
                                   : b->cfg->runtime.precision;
}

const char *cld_bench_storage_name(enum cld_dtype type)
{
    return type == CLD_BF16 ? "bf16" : "fp32";
}

enum cld_status cld_bench_batch(const struct cld_bench *b, struct cld_batch *out,
                                struct cld_error *err)
{
    size_t length = cld_max(b->cfg->data.max_length, b->setup->drafter.block_size);
    return cld_batch_make_up(out, b->cfg->train.micro_rows, length,
                             cld_min(b->cfg->train.anchors, length), &b->setup->rules, err);
}
