/* attention_tensor.c - block-sparse attention on NVIDIA's tensor cores: cl/attention_*_tensor.cl
 * for both instruction sets, which differ in their GEMMs alone, and cl/attention_*_sm90a.cl. */
#include "ops/attention_private.h"

#include <stdio.h>

#include "base/size.h"
#include "opencl/ptx.h"
#include "ops/probe.h"

enum { rows = 64, keys = 64, group = 128, n_resident = 2 /* dK/dV work-groups at once */ };

/* Widths that the kernels compute with: a head is padded with zeros to the next one, in the kernel.
 * Those above `narrow` need more local memory than OpenCL C has. */
static const size_t widths[] = {64, 80, 96, 112, 128, 192, 256};
enum { narrow = 128 };

static size_t width_of(const struct cld_attention_plan *p)
{
    size_t i = 0;
    while (widths[i] < p->head_dim)
        i++;
    return widths[i];
}

/* A pass: forward, dQ, dK/dV, or dK and dV by themselves. */
struct pass {
    const char *kernel, *options;
    size_t n_items;         /* of a work-group */
    unsigned max_registers; /* of a work-item; 0: as many as it wants */
    size_t n_halves;        /* local memory, in halves of a tile of 64 rows; 0: as declared */
    size_t n_tiles;         /* of 64 rows that a work-group owns at a time */
};

/* The passes of a width; dv is empty if dkv makes both. */
struct passes {
    struct pass fwd, dq, dkv, dv;
};

/* Three work-groups of the forward pass share a multiprocessor's registers, two of the others. */
static const struct passes plain = {.fwd = {"attention_fwd_tensor", "", group, 168, 0, 1},
                                    .dq = {"attention_dq_tensor", "", group, 0, 0, 1},
                                    .dkv = {"attention_dkv_tensor", "", group, 0, 0, 1}};

/* Two work-groups share registers and local memory. A tile of 256 columns has 32 KiB. */
static const struct passes wide = {.fwd = {"attention_fwd_tensor", "", group, 0, 6, 1},
                                   .dq = {"attention_dq_tensor", "", group, 0, 7, 1},
                                   .dkv = {"attention_dkv_tensor", " -DMAKES=1", group, 0, 7, 1},
                                   .dv = {"attention_dkv_tensor", " -DMAKES=2", group, 0, 6, 1}};

/* Forward and dQ: one work-group has a multiprocessor for itself, for all of its pieces
 * (cl/attention_ring.clh), and its kernel shares out the registers among the warpgroups that
 * compute and one that copies. Local memory is a ring of tiles, and for dQ a tile of each
 * consumer's own. */
static const struct passes ring = {.fwd = {"attention_fwd_sm90a", "", 4 * group, 128, 24, 3},
                                   .dq = {"attention_dq_sm90a", "", 3 * group, 168, 28, 2},
                                   .dkv = {"attention_dkv_tensor", "", group, 0, 0, 1}};

static const struct passes *passes_of(const struct cld_attention_plan *p)
{
    return width_of(p) > narrow ? &wide : p->impl == &cld_attention_sparse_sm90a ? &ring : &plain;
}

static bool has_storage(const struct cld_attention_plan *p)
{
    return p->type == CLD_BF16 && (!p->backward || p->grad_type == CLD_BF16);
}

static bool fits_sm80(const struct cld_queue *q, const struct cld_attention_plan *p)
{
    return has_storage(p) && p->head_dim <= narrow && cld_probe_usable(q, CLD_PROBE_SM80);
}

static bool fits_sm90a(const struct cld_queue *q, const struct cld_attention_plan *p)
{
    return has_storage(p) && cld_probe_usable(q, CLD_PROBE_SM90A);
}

static size_t n_parts(const struct cld_attention_plan *p)
{
    return cld_div_up(cld_attention_group(p), p->heads_together);
}

/* Pieces of work that own query rows, of n_tiles query tiles each. */
static size_t n_q_pieces(const struct cld_attention_plan *p, size_t n_q, size_t n_tiles)
{
    size_t n_sets = cld_div_up(cld_div_up(n_q, p->q_tile), n_tiles);
    return cld_mul3(n_sets, p->n_kv_heads, n_parts(p));
}

/* The scratch of the backward pass: stats, a pair of floats for every row of every query piece
 * (log-sum-exp, rowsum(d_o * o)); counters and partial sums of every key tile and KV head. */
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
    s.counters_at_bytes = cld_mul3(n_q_pieces(p, p->n_q_max, 1), rows, 2 * sizeof(float));
    s.n_counters = s.n_splits > 1 ? cld_mul(2, n_tiles) : 0; /* dK and dV may have their own */
    s.partial_at_bytes =
        cld_round_up(cld_add(s.counters_at_bytes, cld_mul(s.n_counters, sizeof(uint32_t))), 256);
    s.n_bytes = cld_add(s.partial_at_bytes,
                        cld_mul3(s.n_counters, s.n_splits, keys * width_of(p) * sizeof(float)));
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
    size_t width = width_of(p);
    snprintf(p->options, sizeof p->options, "-DD=%zu -DW=%zu -DUNITS=%zu -DHG=%zu -DWGMMA=%d",
             p->head_dim, width, width / 16, p->heads_together,
             p->impl == &cld_attention_sparse_sm90a);
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
                                const struct pass *pass, bool aligned, size_t n_pieces,
                                const struct cld_arg *args, size_t n_args, struct cld_error *err)
{
    size_t n_groups = n_pieces;
    if (pass->n_tiles > 1)
        n_groups = cld_min(n_pieces, cld_queue_device(q)->n_compute_units);
    char file[56], options[160];
    size_t half = 32 * cld_round_up(width_of(p), 64) * sizeof(uint16_t);
    const struct cld_ptx_change change = {
        .target = p->impl == &cld_attention_sparse_sm90a ? "sm_90a" : NULL,
        .max_registers = pass->max_registers,
        .local_bytes = pass->n_halves * half};
    struct cld_kernel *k = NULL;
    snprintf(file, sizeof file, "%s.cl", pass->kernel);
    snprintf(options, sizeof options, "%s -DALIGNED=%d%s", p->options, aligned, pass->options);
    const struct cld_kernel_spec spec = {file, pass->kernel, options, pass->n_items};
    enum cld_status s = cld_kernel_get_ptx(
        q, &spec, change.target || change.max_registers || change.local_bytes ? &change : NULL, &k,
        err);
    return s ? s : cld_launch(q, k, n_groups, args, n_args, err);
}
#define RUN_PASS(q, p, pass, aligned, n_pieces, err, ...)                                          \
    run_pass((q), (p), (pass), (aligned), (n_pieces), (const struct cld_arg[]){__VA_ARGS__},       \
             sizeof((const struct cld_arg[]){__VA_ARGS__}) / sizeof(struct cld_arg), (err))

static enum cld_status forward(struct cld_queue *q, const struct cld_attention *a,
                               struct cld_error *err)
{
    const struct cld_attention_mask *m = a->mask;
    const struct cld_tensor *const all[] = {a->q, a->k, a->v, a->o};
    const struct cld_attention_plan *p = a->plan;
    const struct pass *pass = &passes_of(p)->fwd;
    size_t n = n_q_pieces(p, m->n_q, pass->n_tiles);
    return RUN_PASS(q, p, pass, is_aligned(all, 4), n, err, CLD_TENSOR_ARGS(a->q),
                    CLD_TENSOR_ARGS(a->k), CLD_TENSOR_ARGS(a->v), CLD_TENSOR_ARGS(a->o),
                    CLD_TENSOR_ARGS(a->lse), CLD_MASK_ARGS(a, m->fwd_ptr_at, m->fwd_at, 0, n));
}

/* dK and dV, or what one of them needs: `run` 1 counts and adds up apart from run 0. */
static enum cld_status run_dkv(struct cld_queue *q, const struct cld_attention *a,
                               const struct cld_attention_grads *g, const struct scratch *z,
                               const struct pass *pass, size_t run, bool aligned,
                               struct cld_error *err)
{
    const struct cld_attention_mask *m = a->mask;
    size_t n_sets = cld_div_up(m->tiles.n_k_tiles, pass->n_tiles);
    size_t n = cld_mul3(n_sets, a->plan->n_kv_heads, z->n_splits);
    size_t counters_at = z->counters_at_bytes / sizeof(uint32_t) + run * z->n_counters / 2;
    return RUN_PASS(q, a->plan, pass, aligned, n, err, CLD_TENSOR_ARGS(a->q), CLD_TENSOR_ARGS(a->k),
                    CLD_TENSOR_ARGS(a->v), CLD_MASK_ARGS(a, m->bwd_ptr_at, m->bwd_at, 2, n),
                    CLD_TENSOR_ARGS(g->d_o), CLD_TENSOR_ARGS(g->d_k), CLD_TENSOR_ARGS(g->d_v),
                    CLD_BUF(a->scratch), CLD_BUF(a->scratch), CLD_U64(counters_at),
                    CLD_BUF(a->scratch), CLD_U64(z->partial_at_bytes / (4 * sizeof(float))),
                    CLD_U64(z->n_splits));
}

static enum cld_status backward(struct cld_queue *q, const struct cld_attention *a,
                                const struct cld_attention_grads *g, struct cld_error *err)
{
    const struct cld_attention_mask *m = a->mask;
    const struct cld_attention_plan *p = a->plan;
    const struct cld_tensor *const all[] = {a->q, a->k, a->v, a->o, g->d_o, g->d_q, g->d_k, g->d_v};
    const struct scratch z = plan_scratch(q, p);
    const struct passes *passes = passes_of(p);
    bool aligned = is_aligned(all, 8);
    size_t n = n_q_pieces(p, m->n_q, passes->dq.n_tiles);
    enum cld_status s =
        RUN_PASS(q, p, &passes->dq, aligned, n, err, CLD_TENSOR_ARGS(a->q), CLD_TENSOR_ARGS(a->k),
                 CLD_TENSOR_ARGS(a->v), CLD_TENSOR_ARGS(a->o), CLD_TENSOR_ARGS(a->lse),
                 CLD_MASK_ARGS(a, m->fwd_ptr_at, m->fwd_at, 1, n), CLD_TENSOR_ARGS(g->d_o),
                 CLD_TENSOR_ARGS(g->d_q), CLD_BUF(a->scratch), CLD_BUF(a->scratch),
                 CLD_U64(z.counters_at_bytes / sizeof(uint32_t)), CLD_U64(z.n_counters));
    if (s)
        return s;
    s = run_dkv(q, a, g, &z, &passes->dkv, 0, aligned, err);
    return s || !passes->dv.kernel ? s : run_dkv(q, a, g, &z, &passes->dv, 1, aligned, err);
}

const struct cld_attention_impl cld_attention_sparse_sm80 = {
    "sparse sm80", CLD_ATTENTION_SPARSE, {[CLD_CLASS_GPU] = true}, fits_sm80, shape, forward,
    backward};
const struct cld_attention_impl cld_attention_sparse_sm90a = {
    "sparse sm90a", CLD_ATTENTION_SPARSE, {[CLD_CLASS_GPU] = true}, fits_sm90a, shape, forward,
    backward};
