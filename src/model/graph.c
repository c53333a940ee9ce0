#include "model/graph.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "ops/ops.h"

void cld_graph_free(struct cld_graph *g)
{
    if (!g)
        return;
    free(g->ops);
    memset(g, 0, sizeof *g);
}

/* Two GEMMs in a row with the same A. */
static bool shares_a(const struct cld_op *a, const struct cld_op *b)
{
    return a->kind == CLD_OP_GEMM && b->kind == CLD_OP_GEMM && a->gemm != CLD_GEMM_TN &&
           b->gemm != CLD_GEMM_TN && a->in[0].t == b->in[0].t && a->in[0].rows == b->in[0].rows &&
           a->in[0].after_cache == b->in[0].after_cache && a->in[1].t->type == b->in[1].t->type;
}

static void append(struct cld_graph *g, struct cld_op op)
{
    struct cld_error ignored = CLD_ERROR_INIT;
    if (cld_grow(&g->ops, &g->cap, g->n + 1, sizeof *g->ops, &ignored)) {
        g->no_memory = true; /* reported by cld_graph_run */
        return;
    }
    op.name = op.out[0].t->name;
    op.same_a = g->n && shares_a(&g->ops[g->n - 1], &op);
    g->ops[g->n++] = op;
}

void cld_add_gather(struct cld_graph *g, struct cld_ref x, struct cld_ref index, struct cld_ref y)
{
    append(g, (struct cld_op){.kind = CLD_OP_GATHER, .in = {x, index}, .out = {y}});
}

void cld_add_scatter(struct cld_graph *g, struct cld_ref x, struct cld_ref index, struct cld_ref y)
{
    append(g, (struct cld_op){.kind = CLD_OP_SCATTER, .in = {x, index}, .out = {y}});
}

void cld_add_copy(struct cld_graph *g, struct cld_ref x, struct cld_ref y)
{
    append(g, (struct cld_op){.kind = CLD_OP_COPY, .in = {x}, .out = {y}});
}

void cld_add_rmsnorm(struct cld_graph *g, struct cld_ref x, struct cld_ref w, float eps,
                     struct cld_ref y, struct cld_ref rstd)
{
    append(g, (struct cld_op){.kind = CLD_OP_RMSNORM, .in = {x, w}, .out = {y, rstd}, .eps = eps});
}

void cld_add_rmsnorm_back(struct cld_graph *g, struct cld_ref x, struct cld_ref w,
                          struct cld_ref rstd, struct cld_ref dy, struct cld_ref residual,
                          struct cld_ref dx, struct cld_ref dw)
{
    append(g, (struct cld_op){
                  .kind = CLD_OP_RMSNORM_BACK, .in = {x, w, rstd, dy, residual}, .out = {dx, dw}});
}

void cld_add_qknorm_rope(struct cld_graph *g, struct cld_ref x, struct cld_ref w, float eps,
                         size_t head_dim, struct cld_ref positions, struct cld_ref table,
                         struct cld_ref y, struct cld_ref rstd)
{
    append(g, (struct cld_op){.kind = CLD_OP_QKNORM_ROPE,
                              .in = {x, w, positions, table},
                              .out = {y, rstd},
                              .eps = eps,
                              .head_dim = head_dim});
}

void cld_add_qknorm_rope_back(struct cld_graph *g, struct cld_ref x, struct cld_ref w,
                              size_t head_dim, struct cld_ref positions, struct cld_ref table,
                              struct cld_ref rstd, struct cld_ref dy, struct cld_ref dx,
                              struct cld_ref dw)
{
    append(g, (struct cld_op){.kind = CLD_OP_QKNORM_ROPE_BACK,
                              .in = {x, w, positions, table, rstd, dy},
                              .out = {dx, dw},
                              .head_dim = head_dim});
}

void cld_add_gemm(struct cld_graph *g, enum cld_gemm_kind kind, struct cld_ref a, struct cld_ref b,
                  struct cld_ref bias, struct cld_ref residual, struct cld_ref c)
{
    append(g, (struct cld_op){
                  .kind = CLD_OP_GEMM, .in = {a, b, bias, residual}, .out = {c}, .gemm = kind});
}

void cld_add_gemm_swiglu(struct cld_graph *g, struct cld_ref a, struct cld_ref b, struct cld_ref y)
{
    append(g, (struct cld_op){.kind = CLD_OP_GEMM,
                              .in = {a, b, CLD_NONE, CLD_NONE},
                              .out = {y},
                              .gemm = CLD_GEMM_NT,
                              .swiglu = true});
}

void cld_add_gemm_gradient(struct cld_graph *g, struct cld_ref dy, struct cld_ref x,
                           struct cld_ref dw, bool first)
{
    append(g, (struct cld_op){.kind = CLD_OP_GEMM,
                              .in = {dy, x, CLD_NONE, dw},
                              .out = {dw},
                              .gemm = CLD_GEMM_TN,
                              .first_writes = first});
}

void cld_add_swiglu(struct cld_graph *g, struct cld_ref gate, struct cld_ref up, struct cld_ref y)
{
    append(g, (struct cld_op){.kind = CLD_OP_SWIGLU, .in = {gate, up}, .out = {y}});
}

void cld_add_swiglu_back(struct cld_graph *g, struct cld_ref gate, struct cld_ref up,
                         struct cld_ref dy, struct cld_ref d_gate, struct cld_ref d_up)
{
    append(g, (struct cld_op){
                  .kind = CLD_OP_SWIGLU_BACK, .in = {gate, up, dy}, .out = {d_gate, d_up}});
}

void cld_add_attention(struct cld_graph *g, const struct cld_attention_plan *plan,
                       const struct cld_attention_mask *mask, struct cld_ref q, struct cld_ref k,
                       struct cld_ref v, struct cld_ref o, struct cld_ref lse)
{
    append(g, (struct cld_op){.kind = CLD_OP_ATTENTION,
                              .in = {q, k, v},
                              .out = {o, lse},
                              .attention = plan,
                              .mask = mask});
}

void cld_add_attention_back(struct cld_graph *g, const struct cld_attention_plan *plan,
                            const struct cld_attention_mask *mask, struct cld_ref q,
                            struct cld_ref k, struct cld_ref v, struct cld_ref o,
                            struct cld_ref lse, struct cld_ref d_o, struct cld_ref d_q,
                            struct cld_ref d_k, struct cld_ref d_v)
{
    append(g, (struct cld_op){.kind = CLD_OP_ATTENTION_BACK,
                              .in = {q, k, v, o, lse, d_o},
                              .out = {d_q, d_k, d_v},
                              .attention = plan,
                              .mask = mask});
}

/* The rows of `ref` that count now. Row vectors ([1, n] per-row statistics and indices) and
 * transposed tensors shrink in their columns instead. */
static struct cld_tensor resolve(struct cld_ref ref, const struct cld_extents *x)
{
    struct cld_tensor t = *ref.t;
    size_t first = 0, n = 0;
    switch (ref.rows) {
    case CLD_ROWS_ALL:
        return t;
    case CLD_ROWS_CTX:
        n = x->n_ctx;
        break;
    case CLD_ROWS_DRAFT:
        n = x->n_draft;
        break;
    case CLD_ROWS_KEYS:
        n = x->n_ctx + x->n_draft;
        break;
    case CLD_ROWS_AFTER_CONTEXT:
        first = x->n_ctx;
        n = x->n_draft;
        break;
    case CLD_ROWS_SEEN:
        n = x->n_cached + x->n_ctx + x->n_draft;
        break;
    }
    if (ref.after_cache)
        first += x->n_cached;
    return t.n_rows == 1 ? cld_tensor_cols(&t, first, n) : cld_tensor_rows(&t, first, n);
}

size_t cld_graph_scratch_bytes(const struct cld_queue *q, const struct cld_graph *g)
{
    size_t most = 0;
    for (size_t i = 0; i < g->n; i++) {
        const struct cld_op *op = &g->ops[i];
        size_t n = 0;
        struct cld_tensor in[6], out[3];
        switch (op->kind) {
        case CLD_OP_RMSNORM_BACK:
            n = cld_norm_scratch_bytes(q, op->in[0].t->n_cols);
            break;
        case CLD_OP_QKNORM_ROPE_BACK:
            n = cld_norm_scratch_bytes(q, op->head_dim);
            break;
        case CLD_OP_ATTENTION:
        case CLD_OP_ATTENTION_BACK:
            n = op->attention->scratch_bytes;
            break;
        case CLD_OP_GEMM: {
            /* At full extents: keys tensors hold context and draft rows, so the rows of a part are
             * bounded by the other operand's or the result's. */
            in[0] = *op->in[0].t;
            in[1] = *op->in[1].t;
            out[0] = *op->out[0].t;
            if (op->gemm == CLD_GEMM_TN)
                in[0].n_rows = in[1].n_rows = cld_min(in[0].n_rows, in[1].n_rows);
            else
                in[0].n_rows = out[0].n_rows = cld_min(in[0].n_rows, out[0].n_rows);
            struct cld_gemm gemm = {
                .kind = op->gemm, .a = &in[0], .b = &in[1], .c = &out[0], .swiglu = op->swiglu};
            n = cld_gemm_scratch_bytes(q, &gemm);
            break;
        }
        default:
            break;
        }
        most = cld_max(most, n);
    }
    return most;
}

/* Operands resolved; a missing one is a NULL pointer. */
struct operands {
    struct cld_tensor in_t[6], out_t[3];
    const struct cld_tensor *in[6], *out[3];
};

static void resolve_all(const struct cld_op *op, const struct cld_extents *x, struct operands *o)
{
    for (int i = 0; i < 6; i++)
        if ((o->in[i] = op->in[i].t ? &o->in_t[i] : NULL))
            o->in_t[i] = resolve(op->in[i], x);
    for (int i = 0; i < 3; i++)
        if ((o->out[i] = op->out[i].t ? &o->out_t[i] : NULL))
            o->out_t[i] = resolve(op->out[i], x);
}

static enum cld_status run_gemm(const struct cld_op *op, const struct operands *o, bool same_a,
                                const struct cld_graph_run *run, struct cld_error *err)
{
    bool writes = op->first_writes && run->first_pass;
    struct cld_gemm gemm = {.kind = op->gemm,
                            .backend = run->gemm_backend,
                            .a = o->in[0],
                            .b = o->in[1],
                            .c = o->out[0],
                            .bias = o->in[2],
                            .residual = writes ? NULL : o->in[3],
                            .swiglu = op->swiglu,
                            .same_a = same_a};
    return cld_gemm(run->q, &gemm, run->scratch, err);
}

/* `same_a`: the operation before this one ran just now, and op->same_a holds. */
static enum cld_status run_op(const struct cld_op *op, bool same_a, const struct cld_graph_run *run,
                              struct cld_error *err)
{
    struct cld_queue *q = run->q;
    struct operands o;
    resolve_all(op, &run->extents, &o);
    struct cld_attention attention = {op->attention, op->mask, o.in[0],      o.in[1],     o.in[2],
                                      o.out[0],      o.out[1], run->visited, run->scratch};
    switch (op->kind) {
    case CLD_OP_GATHER:
        return cld_gather_rows(q, o.in[0], o.in[1], o.out[0], err);
    case CLD_OP_SCATTER:
        return cld_scatter_rows(q, o.in[0], o.in[1], o.out[0], err);
    case CLD_OP_COPY:
        return cld_add_tensors(q, o.in[0], NULL, o.out[0], err);
    case CLD_OP_RMSNORM:
        return cld_rmsnorm_forward(q, o.in[0], o.in[1], op->eps, o.out[0], o.out[1], err);
    case CLD_OP_RMSNORM_BACK:
        return cld_rmsnorm_backward(q, o.in[0], o.in[1], o.in[2], o.in[3], o.in[4], o.out[0],
                                    o.out[1], run->scratch, err);
    case CLD_OP_QKNORM_ROPE:
        return cld_qknorm_rope_forward(q, o.in[0], o.in[1], op->eps, op->head_dim, o.in[2], o.in[3],
                                       o.out[0], o.out[1], err);
    case CLD_OP_QKNORM_ROPE_BACK:
        return cld_qknorm_rope_backward(q, o.in[0], o.in[1], op->head_dim, o.in[2], o.in[3],
                                        o.in[4], o.in[5], o.out[0], o.out[1], run->scratch, err);
    case CLD_OP_GEMM:
        return run_gemm(op, &o, same_a, run, err);
    case CLD_OP_SWIGLU:
        return cld_swiglu_forward(q, o.in[0], o.in[1], o.out[0], err);
    case CLD_OP_SWIGLU_BACK:
        return cld_swiglu_backward(q, o.in[0], o.in[1], o.in[2], o.out[0], o.out[1], err);
    case CLD_OP_ATTENTION:
        return cld_attention_forward(q, &attention, err);
    case CLD_OP_ATTENTION_BACK:
        attention.o = o.in[3];
        attention.lse = o.in[4];
        return cld_attention_backward(q, &attention, o.in[5], o.out[0], o.out[1], o.out[2], err);
    }
    return cld_fail(err, CLD_E_INTERNAL, "", "unknown operation %d", (int)op->kind);
}

enum cld_status cld_graph_run(const struct cld_graph *g, size_t first, size_t n,
                              const struct cld_graph_run *run, struct cld_error *err)
{
    if (g->no_memory)
        return cld_fail_memory(err, "the list of operations");
    for (size_t i = first; i < first + n; i++) {
        enum cld_status s = run_op(&g->ops[i], i > first && g->ops[i].same_a, run, err);
        if (s) {
            cld_fail_prefix(err, "operation %zu, %s", i, g->ops[i].name);
            return s;
        }
    }
    return CLD_OK;
}
