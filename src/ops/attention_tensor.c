/* attention_tensor.c - block-sparse attention on NVIDIA's tensor cores: cl/attention_*_tensor.cl.
 * Both families of instructions have the same kernels but for their products. */
#include "ops/attention_private.h"

#include <stdio.h>

#include "base/size.h"
#include "opencl/ptx.h"
#include "ops/probe.h"

enum { rows = 64, keys = 64, group = 128, n_resident = 2 /* dK/dV work-groups at once */ };

/* A pass: forward, dQ or dK/dV. */
struct pass {
    const char *name;
    unsigned max_registers; /* of a work-item; 0: as many as it wants */
};
/* Three work-groups of the forward pass share a multiprocessor's registers, two of the others. */
static const struct pass fwd = {"fwd", 168}, dq = {"dq", 0}, dkv = {"dkv", 0};

static bool has_storage(const struct cld_attention_plan *p)
{
    return p->type == CLD_BF16 && (!p->backward || p->grad_type == CLD_BF16) &&
           (p->head_dim == 64 || p->head_dim == 128);
}

static bool fits_sm80(const struct cld_queue *q, const struct cld_attention_plan *p)
{
    return has_storage(p) && cld_probe_usable(q, CLD_PROBE_SM80);
}

static bool fits_sm90a(const struct cld_queue *q, const struct cld_attention_plan *p)
{
    return has_storage(p) && cld_probe_usable(q, CLD_PROBE_SM90A);
}

static size_t n_parts(const struct cld_attention_plan *p)
{
    return cld_div_up(cld_attention_group(p), p->heads_together);
}

/* Pieces of work that own query rows. */
static size_t n_q_pieces(const struct cld_attention_plan *p, size_t n_q)
{
    return cld_mul3(cld_div_up(n_q, p->q_tile), p->n_kv_heads, n_parts(p));
}

/* The scratch of the backward pass: stats, a pair of floats for every row of every query piece
 * (log-sum-exp, rowsum(d_o * o)); a counter and partial sums of every key tile and KV head. */
struct scratch {
    size_t n_splits; /* work-groups of a key tile with a long list */
    size_t n_counters;
    size_t counters_at_bytes, partial_at_bytes, n_bytes;
};

/* Early key tiles of a document have long lists. Where tiles are so few that a multiprocessor gets
 * a handful, the longest list would be most of its work, so lists are cut in two. */
static struct scratch plan_scratch(const struct cld_queue *q, const struct cld_attention_plan *p)
{
    size_t n_tiles = cld_mul(cld_div_up(p->n_keys_max, keys), p->n_kv_heads);
    size_t few = 6 * n_resident * cld_queue_device(q)->n_compute_units;
    struct scratch s = {.n_splits = n_tiles <= few ? 2 : 1};
    s.counters_at_bytes = cld_mul3(n_q_pieces(p, p->n_q_max), rows, 2 * sizeof(float));
    s.n_counters = s.n_splits > 1 ? n_tiles : 0;
    s.partial_at_bytes =
        cld_round_up(cld_add(s.counters_at_bytes, cld_mul(s.n_counters, sizeof(uint32_t))), 256);
    s.n_bytes = cld_add(s.partial_at_bytes,
                        cld_mul3(s.n_counters, s.n_splits, 2 * keys * p->head_dim * sizeof(float)));
    return s;
}

/* A work-group's 64 rows are one, two or four heads of a group: the split that leaves the fewest
 * idle rows, and of equals the one with more heads, as a tile of few query rows masks less. */
static enum cld_status shape(const struct cld_queue *q, struct cld_attention_plan *p,
                             struct cld_error *err)
{
    size_t best = 0;
    (void)err;
    for (size_t heads = 1; heads <= 4; heads *= 2) {
        size_t n = cld_attention_group(p), busy = n * 1000 / (cld_div_up(n, heads) * heads);
        if (busy >= best) {
            best = busy;
            p->heads_together = heads;
        }
    }
    p->q_tile = rows / p->heads_together;
    p->k_tile = keys;
    p->local = group;
    p->mask_bytes = cld_attention_mask_bytes(p);
    p->scratch_bytes = p->backward ? plan_scratch(q, p).n_bytes : 0;
    snprintf(p->options, sizeof p->options, "-DD=%zu -DHG=%zu -DWGMMA=%d", p->head_dim,
             p->heads_together, p->impl == &cld_attention_sparse_sm90a);
    snprintf(p->variant, sizeof p->variant, "%s, tiles of %zu rows x %zu heads and %zu keys",
             p->impl->name, p->q_tile, p->heads_together, p->k_tile);
    return CLD_OK;
}

static bool is_aligned(const struct cld_tensor *const *t, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (t[i]->ld % 8 || t[i]->offset % 8)
            return false;
    return true;
}

static enum cld_status run_pass(struct cld_queue *q, const struct cld_attention_plan *p,
                                const struct pass *pass, bool aligned, bool transposed,
                                size_t n_pieces, const struct cld_arg *args, size_t n_args,
                                struct cld_error *err)
{
    char name[48], file[56], options[128];
    const struct cld_ptx_change change = {
        .target = p->impl == &cld_attention_sparse_sm90a ? "sm_90a" : NULL,
        .max_registers = pass->max_registers};
    struct cld_kernel *k = NULL;
    snprintf(name, sizeof name, "attention_%s_tensor", pass->name);
    snprintf(file, sizeof file, "%s.cl", name);
    snprintf(options, sizeof options, "%s -DALIGNED=%d%s", p->options, aligned,
             transposed ? " -DTRANSPOSED=1" : "");
    const struct cld_kernel_spec spec = {file, name, options, p->local};
    enum cld_status s = cld_kernel_get_ptx(
        q, &spec, change.target || change.max_registers ? &change : NULL, &k, err);
    return s ? s : cld_launch(q, k, n_pieces, args, n_args, err);
}
#define RUN_PASS(q, p, pass, aligned, transposed, n_pieces, err, ...)                              \
    run_pass((q), (p), (pass), (aligned), (transposed), (n_pieces),                                \
             (const struct cld_arg[]){__VA_ARGS__},                                                \
             sizeof((const struct cld_arg[]){__VA_ARGS__}) / sizeof(struct cld_arg), (err))

static enum cld_status forward(struct cld_queue *q, const struct cld_attention *a,
                               struct cld_error *err)
{
    const struct cld_attention_mask *m = a->mask;
    const struct cld_tensor *const all[] = {a->q, a->k, a->v, a->o};
    size_t n = n_q_pieces(a->plan, m->n_q);
    return RUN_PASS(q, a->plan, &fwd, is_aligned(all, 4), a->o_transposed, n, err,
                    CLD_TENSOR_ARGS(a->q), CLD_TENSOR_ARGS(a->k), CLD_TENSOR_ARGS(a->v),
                    CLD_TENSOR_ARGS(a->o), CLD_TENSOR_ARGS(a->lse),
                    CLD_MASK_ARGS(a, m->fwd_ptr_at, m->fwd_at, 0, n));
}

static enum cld_status backward(struct cld_queue *q, const struct cld_attention *a,
                                const struct cld_attention_grads *g, struct cld_error *err)
{
    const struct cld_attention_mask *m = a->mask;
    const struct cld_tensor *const all[] = {a->q, a->k, a->v, a->o, g->d_o, g->d_q, g->d_k, g->d_v};
    const struct scratch z = plan_scratch(q, a->plan);
    bool aligned = is_aligned(all, 8);
    size_t n = n_q_pieces(a->plan, m->n_q);
    enum cld_status s = RUN_PASS(
        q, a->plan, &dq, aligned, false, n, err, CLD_TENSOR_ARGS(a->q), CLD_TENSOR_ARGS(a->k),
        CLD_TENSOR_ARGS(a->v), CLD_TENSOR_ARGS(a->o), CLD_TENSOR_ARGS(a->lse),
        CLD_MASK_ARGS(a, m->fwd_ptr_at, m->fwd_at, 1, n), CLD_TENSOR_ARGS(g->d_o),
        CLD_TENSOR_ARGS(g->d_q), CLD_BUF(a->scratch), CLD_BUF(a->scratch),
        CLD_U64(z.counters_at_bytes / sizeof(uint32_t)), CLD_U64(z.n_counters));
    if (s)
        return s;
    n = cld_mul3(m->tiles.n_k_tiles, a->plan->n_kv_heads, z.n_splits);
    return RUN_PASS(q, a->plan, &dkv, aligned, false, n, err, CLD_TENSOR_ARGS(a->q),
                    CLD_TENSOR_ARGS(a->k), CLD_TENSOR_ARGS(a->v),
                    CLD_MASK_ARGS(a, m->bwd_ptr_at, m->bwd_at, 2, n), CLD_TENSOR_ARGS(g->d_o),
                    CLD_TENSOR_ARGS(g->d_k), CLD_TENSOR_ARGS(g->d_v), CLD_BUF(a->scratch),
                    CLD_BUF(a->scratch), CLD_U64(z.counters_at_bytes / sizeof(uint32_t)),
                    CLD_BUF(a->scratch), CLD_U64(z.partial_at_bytes / (4 * sizeof(float))),
                    CLD_U64(z.n_splits));
}

const struct cld_attention_impl cld_attention_sparse_sm80 = {"sparse sm80",
                                                             CLD_ATTENTION_SPARSE,
                                                             {[CLD_CLASS_GPU] = true},
                                                             fits_sm80,
                                                             shape,
                                                             forward,
                                                             backward,
                                                             true};
const struct cld_attention_impl cld_attention_sparse_sm90a = {"sparse sm90a",
                                                              CLD_ATTENTION_SPARSE,
                                                              {[CLD_CLASS_GPU] = true},
                                                              fits_sm90a,
                                                              shape,
                                                              forward,
                                                              backward,
                                                              true};
