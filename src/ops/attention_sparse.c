/* attention_sparse.c - block-sparse attention: tile shapes and launches of both kernel families,
 * whose kernels have the same names (but for the family) and arguments. */
#include "ops/attention_private.h"

#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "ops/op_rows.h"
#include "ops/tunable_kernel.h"

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
    .id = CLD_TUNED_ATTENTION_CPU,
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
        cld_queue_row(q, &cld_tuned_attention_cpu, p->type == CLD_BF16);
    (void)err;
    size_t n_parts = cld_div_up(cld_attention_group(p), row->v[p_heads]);
    p->heads_together = cld_div_up(cld_attention_group(p), n_parts);
    p->q_tile = rows_of_head(row, p->heads_together);
    p->k_tile = row->v[p_keys];
    p->local = 1;
    p->tuned = CLD_TUNED_ATTENTION_CPU;
    finish_plan(p);
    return CLD_OK;
}

/* --- GPU family ------------------------------------------------------------------------------ */

/* Tuned parameters of the GPU family, in the order of the table below. */
enum { g_tile, g_step, g_heads };

/* A work-group is a square of tile / 4 by tile / 4 work-items with 4 x 4 sums each. */
static size_t gpu_items(size_t tile)
{
    return tile / 4 * (tile / 4);
}

/* Local memory of a group (attention_gpu.clh): two slices of `step` columns (one is used for
 * reductions too), the weights of a pair of tiles, and the rows of two tiles. */
static size_t gpu_local_bytes(size_t tile, size_t step)
{
    size_t ld = tile + 4, slice = step * ld, reduced = tile * (tile / 4 + 1);
    return 4 * (slice + cld_max(slice, reduced) + tile * ld + 4 * tile);
}

static struct cld_tuned_row gpu_defaults(const struct cld_device_info *d)
{
    bool large = d->max_group >= gpu_items(64) && d->local_bytes >= gpu_local_bytes(64, 16);
    return (struct cld_tuned_row){{[g_tile] = large ? 64 : 32, [g_step] = 16, [g_heads] = 8}};
}

static const char *gpu_objection(const struct cld_device_info *d, const struct cld_tuned_row *row,
                                 char *to, size_t n_bytes)
{
    size_t tile = row->v[g_tile], step = row->v[g_step], wanted = gpu_local_bytes(tile, step);
    if (tile % step) {
        snprintf(to, n_bytes, "tiles of %zu rows are not whole slices of %zu", tile, step);
        return to;
    }
    if (gpu_items(tile) > d->max_group) {
        snprintf(to, n_bytes, "work-groups: of %zu at most", d->max_group);
        return to;
    }
    if (wanted > d->local_bytes) {
        snprintf(to, n_bytes, "local memory: %zu bytes of %zu", wanted, d->local_bytes);
        return to;
    }
    return NULL;
}

const struct cld_tunable_kernel cld_tuned_attention_gpu = {
    .id = CLD_TUNED_ATTENTION_GPU,
    .name = "attention_gpu",
    .what = "block-sparse attention of the portable kernels for GPUs, forward and backward",
    .files = {"attention_fwd_gpu.cl", "attention_dq_gpu.cl", "attention_dkv_gpu.cl"},
    .classes = {"fp32", "bf16"}, /* of q, k, v */
    .params = {[g_tile] = {"tile", "rows", {32, 48, 64}, 3, "of queries and of keys in a tile"},
               [g_step] = {"step", "columns", {8, 16, 32}, 3, "of a slice in local memory"},
               [g_heads] = {"heads", "heads", {1, 2, 4, 8}, 4, "of a group in a tile, at most"}},
    .n_params = 3,
    .defaults = gpu_defaults,
    .objection = gpu_objection,
    .works = cld_has_groups};

/* Heads of a group and rows share a tile: the split that leaves the fewest idle rows, and of equals
 * the one with more heads, since a tile of few query rows masks less. */
static void split_tile(struct cld_attention_plan *p, size_t tile, size_t max_heads)
{
    size_t best = 0, n = cld_attention_group(p);
    for (size_t heads = 1; heads <= cld_min(cld_min(n, max_heads), tile / 8); heads++) {
        size_t rows = tile / heads / 8 * 8;
        size_t busy = n * 1000 / cld_div_up(n, heads) * rows / tile;
        if (busy >= best) {
            best = busy;
            p->heads_together = heads;
            p->q_tile = rows;
        }
    }
}

static enum cld_status shape_gpu(const struct cld_queue *q, struct cld_attention_plan *p,
                                 struct cld_error *err)
{
    const struct cld_device_info *d = cld_queue_device(q);
    const struct cld_tuned_row *row =
        cld_queue_row(q, &cld_tuned_attention_gpu, p->type == CLD_BF16);
    if (d->max_group < 64 || d->local_bytes < (size_t)16 << 10)
        return cld_fail(err, CLD_E_DEVICE, "use another device",
                        "%s: attention needs groups of 64 and 16 KiB of local memory, the device "
                        "has %zu and %zu bytes",
                        cld_queue_name(q), d->max_group, d->local_bytes);
    split_tile(p, row->v[g_tile], row->v[g_heads]);
    p->k_tile = row->v[g_tile];
    p->local = gpu_items(p->k_tile);
    p->tuned = CLD_TUNED_ATTENTION_GPU;
    finish_plan(p);
    size_t at = strlen(p->options);
    snprintf(p->options + at, sizeof p->options - at, " -DSTEP=%zu", row->v[g_step]);
    return CLD_OK;
}

/* --- launches ----------------------------------------------------------------------------------
 */

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

const struct cld_attention_impl cld_attention_sparse_cpu = {.name = "sparse cpu",
                                                            .backend = CLD_ATTENTION_SPARSE,
                                                            .on = {[CLD_CLASS_CPU] = true},
                                                            .shape = shape_cpu,
                                                            .forward = forward,
                                                            .backward = backward};
const struct cld_attention_impl cld_attention_sparse_gpu = {.name = "sparse gpu",
                                                            .backend = CLD_ATTENTION_SPARSE,
                                                            .on = {[CLD_CLASS_GPU] = true},
                                                            .shape = shape_gpu,
                                                            .forward = forward,
                                                            .backward = backward};
