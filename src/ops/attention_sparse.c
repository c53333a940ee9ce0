/* attention_sparse.c - block-sparse attention: tile shapes and launches of both kernel families,
 * whose kernels have the same names (but for the family) and arguments. */
#include "ops/attention_private.h"

#include <stdio.h>

#include "base/size.h"
#include "ops/tuning.h"

size_t cld_attention_mask_bytes(const struct cld_attention_plan *p)
{
    size_t n_q_tiles = cld_div_up(p->n_q_max, p->q_tile);
    size_t n_k_tiles = cld_div_up(p->n_keys_max, p->k_tile);
    size_t n_ints = cld_mul(2, cld_tiles_max(p->n_q_max, p->n_keys_max, p->q_tile, p->k_tile));
    n_ints = cld_add(n_ints, cld_add(cld_mul(4, p->n_q_max), n_q_tiles + n_k_tiles + 2));
    return cld_mul(n_ints, sizeof(int32_t));
}

/* Everything of a plan that follows from its tile shapes. */
static void finish_plan(struct cld_attention_plan *p)
{
    p->mask_bytes = cld_attention_mask_bytes(p);
    /* delta, a row sum of d_o * o */
    p->scratch_bytes = p->backward ? cld_mul3(p->n_heads, p->n_q_max, sizeof(float)) : 0;
    snprintf(p->options, sizeof p->options, "-DD=%zu -DHG=%zu -DQT=%zu -DKT=%zu -DX=%s -DY=%s",
             p->head_dim, p->heads_together, p->q_tile, p->k_tile,
             p->type == CLD_BF16 ? "bf16" : "f32", p->grad_type == CLD_BF16 ? "bf16" : "f32");
    snprintf(p->variant, sizeof p->variant, "%s, tiles of %zu rows x %zu heads and %zu keys",
             p->impl->name, p->q_tile, p->heads_together, p->k_tile);
}

/* Tuned parameters of the CPU family, in the order of the table below. */
enum { p_heads, p_rows, p_keys };

/* Query rows lie in the lanes of vectors: 16 rows, times up to four heads of a group, make one to
 * four vectors of 16; where a KV head has one query head, 32 rows make two. Tiles of 32 keys are
 * small enough for contexts of a hundred tokens and still spread the cost of a tile (measured; 48
 * is no faster). */
static struct cld_tuned_row defaults(const struct cld_device_info *d)
{
    (void)d;
    return (struct cld_tuned_row){{[p_heads] = 4, [p_rows] = 0, [p_keys] = 32}};
}

/* Rows that a head has in a tile. */
static size_t rows_of_head(const struct cld_tuned_row *row, size_t n_heads)
{
    return row->v[p_rows] ? row->v[p_rows] : n_heads == 1 ? 32 : 16;
}

/* Where vectors of 16 are registers, a block is all vectors of a tile by 4 visited rows: beside its
 * sums there are those vectors and a broadcast (attention_cpu.clh). Others take one at a time. */
static const char *objection(const struct cld_device_info *d, const struct cld_tuned_row *row,
                             char *to, size_t n_bytes)
{
    size_t heads = row->v[p_heads], n_vectors = rows_of_head(row, heads) / 16 * heads;
    size_t n_registers = 32, wanted = (4 + 1) * n_vectors + 1;
    if (d->float_width < 16 || wanted <= n_registers)
        return NULL;
    snprintf(to, n_bytes, "registers: %zu of %zu", wanted, n_registers);
    return to;
}

static bool works(const struct cld_queue *q)
{
    return cld_queue_class(q) == CLD_CLASS_CPU;
}

const struct cld_tunable_kernel cld_tuned_attention_cpu = {
    .name = "attention_cpu",
    .what = "block-sparse attention of the kernels for CPUs, forward and backward",
    .files = {"attention_fwd_cpu.cl", "attention_dq_cpu.cl", "attention_dkv_cpu.cl"},
    .classes = {"fp32", "bf16"}, /* of q, k, v */
    .params = {[p_heads] = {"heads", "heads", {1, 2, 4}, 3, "of a group in a tile, at most"},
               [p_rows] = {"rows", "rows", {0, 16, 32}, 3, "of a head in a tile; 0: by heads"},
               [p_keys] = {"keys", "keys", {16, 32, 48, 64}, 4, "of a tile"}},
    .n_params = 3,
    .defaults = defaults,
    .objection = objection,
    .works = works};

/* Heads are split evenly among the fewest parts of a group. */
static enum cld_status shape_cpu(const struct cld_queue *q, struct cld_attention_plan *p,
                                 struct cld_error *err)
{
    const struct cld_tuned_row *row =
        cld_queue_row(q, CLD_TUNED_ATTENTION_CPU, p->type == CLD_BF16);
    (void)err;
    size_t n_parts = cld_div_up(cld_attention_group(p), row->v[p_heads]);
    p->heads_together = cld_div_up(cld_attention_group(p), n_parts);
    p->q_tile = rows_of_head(row, p->heads_together);
    p->k_tile = row->v[p_keys];
    p->local = 1;
    finish_plan(p);
    return CLD_OK;
}

/* A work-group is a square of tile / 4 by tile / 4 work-items with 4 x 4 sums each. */
static enum cld_status shape_gpu(const struct cld_queue *q, struct cld_attention_plan *p,
                                 struct cld_error *err)
{
    const struct cld_device_info *d = cld_queue_device(q);
    size_t tile = 64, best = 0;
    if (d->max_group < 256 || d->local_bytes < (size_t)32 << 10)
        tile = 32;
    if (d->max_group < 64 || d->local_bytes < (size_t)16 << 10)
        return cld_fail(err, CLD_E_DEVICE, "use another device",
                        "%s: attention needs groups of 64 and 16 KiB of local memory, the device "
                        "has %zu and %zu bytes",
                        cld_queue_name(q), d->max_group, d->local_bytes);
    /* Heads of a group and rows share a tile: the split that leaves the fewest idle rows, and of
     * equals the one with more heads, since a tile of few query rows masks less. */
    for (size_t heads = 1; heads <= cld_min(cld_attention_group(p), tile / 8); heads++) {
        size_t rows = tile / heads / 8 * 8;
        size_t n = cld_attention_group(p), busy = n * 1000 / cld_div_up(n, heads) * rows / tile;
        if (busy >= best) {
            best = busy;
            p->heads_together = heads;
            p->q_tile = rows;
        }
    }
    p->k_tile = tile;
    p->local = tile / 4 * (tile / 4);
    finish_plan(p);
    return CLD_OK;
}

static enum cld_status run_pass(struct cld_queue *q, const struct cld_attention_plan *p,
                                const char *pass, size_t n_pieces, const struct cld_arg *args,
                                size_t n_args, struct cld_error *err)
{
    char name[48], file[56];
    snprintf(name, sizeof name, "attention_%s_%s", pass,
             p->impl == &cld_attention_sparse_cpu ? "cpu" : "gpu");
    snprintf(file, sizeof file, "%s.cl", name);
    const struct cld_kernel_spec spec = {file, name, p->options, p->local};
    return cld_run(q, &spec, n_pieces, args, n_args, err);
}
#define RUN_PASS(q, p, pass, n_pieces, err, ...)                                                   \
    run_pass((q), (p), (pass), (n_pieces), (const struct cld_arg[]){__VA_ARGS__},                  \
             sizeof((const struct cld_arg[]){__VA_ARGS__}) / sizeof(struct cld_arg), (err))

/* Pieces of the passes that own query rows: query tiles x KV heads x parts of a group. */
static size_t n_q_pieces(const struct cld_attention *a)
{
    const struct cld_attention_plan *p = a->plan;
    return cld_mul3(a->mask->tiles.n_q_tiles, p->n_kv_heads,
                    cld_div_up(cld_attention_group(p), p->heads_together));
}

static enum cld_status forward(struct cld_queue *q, const struct cld_attention *a,
                               struct cld_error *err)
{
    const struct cld_attention_mask *m = a->mask;
    size_t n = n_q_pieces(a);
    return RUN_PASS(q, a->plan, "fwd", n, err, CLD_TENSOR_ARGS(a->q), CLD_TENSOR_ARGS(a->k),
                    CLD_TENSOR_ARGS(a->v), CLD_TENSOR_ARGS(a->o), CLD_TENSOR_ARGS(a->lse),
                    CLD_MASK_ARGS(a, m->fwd_ptr_at, m->fwd_at, 0, n));
}

static enum cld_status backward(struct cld_queue *q, const struct cld_attention *a,
                                const struct cld_attention_grads *g, struct cld_error *err)
{
    const struct cld_attention_mask *m = a->mask;
    size_t n = n_q_pieces(a);
    enum cld_status s =
        RUN_PASS(q, a->plan, "dq", n, err, CLD_TENSOR_ARGS(a->q), CLD_TENSOR_ARGS(a->k),
                 CLD_TENSOR_ARGS(a->v), CLD_TENSOR_ARGS(a->o), CLD_TENSOR_ARGS(a->lse),
                 CLD_MASK_ARGS(a, m->fwd_ptr_at, m->fwd_at, 1, n), CLD_TENSOR_ARGS(g->d_o),
                 CLD_TENSOR_ARGS(g->d_q), CLD_BUF(a->scratch));
    if (s)
        return s;
    n = cld_mul(m->tiles.n_k_tiles, a->plan->n_kv_heads);
    return RUN_PASS(q, a->plan, "dkv", n, err, CLD_TENSOR_ARGS(a->q), CLD_TENSOR_ARGS(a->k),
                    CLD_TENSOR_ARGS(a->v), CLD_TENSOR_ARGS(a->lse),
                    CLD_MASK_ARGS(a, m->bwd_ptr_at, m->bwd_at, 2, n), CLD_TENSOR_ARGS(g->d_o),
                    CLD_TENSOR_ARGS(g->d_k), CLD_TENSOR_ARGS(g->d_v), CLD_BUF(a->scratch));
}

const struct cld_attention_impl cld_attention_sparse_cpu = {
    "sparse cpu", CLD_ATTENTION_SPARSE, {[CLD_CLASS_CPU] = true}, NULL, shape_cpu, forward,
    backward};
const struct cld_attention_impl cld_attention_sparse_gpu = {
    "sparse gpu", CLD_ATTENTION_SPARSE, {[CLD_CLASS_GPU] = true}, NULL, shape_gpu, forward,
    backward};
