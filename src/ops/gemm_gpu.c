/* gemm_gpu.c - GEMM on GPU devices with plain OpenCL C: cl/gemm_gpu.cl. */
#include <stdio.h>

#include "base/size.h"
#include "ops/gemm_backend.h"
#include "ops/tunable_kernel.h"

enum { group = 256, depth_unit = 16, small_tile = 64, local_bytes = 17 * 1024 };

/* Parameters in the order of the table below. Of the defaults none depends on the device, so that
 * results do not. */
enum { p_tile, p_groups, p_splits, p_depth };

static struct cld_tuned_row defaults(const struct cld_device_info *d)
{
    (void)d;
    return (struct cld_tuned_row){
        {[p_tile] = 128, [p_groups] = 256, [p_splits] = 16, [p_depth] = 128}};
}

/* Large tiles where there are enough of them; else small ones, and k in parts. */
struct plan {
    struct cld_gemm_size size;
    size_t tile, n_tiles, n_splits, depth;
};

static struct plan make_plan(struct cld_gemm_size size, const struct cld_tuned_row *row)
{
    struct plan p = {.size = size, .n_splits = 1};
    for (p.tile = row->v[p_tile];; p.tile = small_tile) {
        p.n_tiles = cld_mul(cld_div_up(p.size.m, p.tile), cld_div_up(p.size.n, p.tile));
        if (p.tile == small_tile || p.n_tiles >= row->v[p_groups])
            break;
    }
    size_t wanted = cld_min(row->v[p_groups] / cld_max(p.n_tiles, 1), row->v[p_splits]);
    wanted = cld_max(1, cld_min(wanted, p.size.k / row->v[p_depth]));
    p.depth = cld_round_up(cld_div_up(p.size.k, wanted), depth_unit);
    if (p.depth)
        p.n_splits = cld_div_up(p.size.k, p.depth);
    return p;
}

static const struct cld_tuned_row *row_of(const struct cld_queue *q, enum cld_gemm_class class)
{
    return cld_queue_row(q, &cld_tuned_gemm_gpu, class);
}

/* A GEMM of fewer rows may be cut into more parts. So this is the largest scratch of any smaller
 * GEMM of any class: with n_tiles small tiles there are at most p_groups / n_tiles parts. */
static size_t scratch_bytes(const struct cld_queue *q, const struct cld_gemm *g)
{
    size_t most = 0;
    for (int c = 0; c < CLD_N_GEMM_CLASSES; c++) {
        const struct cld_tuned_row *row = row_of(q, (enum cld_gemm_class)c);
        if (row->v[p_splits] > 1 && cld_gemm_size(g).k / row->v[p_depth] >= 2)
            most = cld_max(
                most, cld_mul(cld_mul3(row->v[p_groups], small_tile, small_tile), sizeof(float)));
    }
    return most;
}

static bool supports(const struct cld_queue *q, const struct cld_gemm *g)
{
    const struct cld_device_info *d = cld_queue_device(q);
    (void)g;
    return cld_queue_class(q) == CLD_CLASS_GPU && d->max_group >= group &&
           d->local_bytes >= local_bytes;
}

static const char *name(const struct cld_queue *q)
{
    (void)q;
    return "portable (gpu, tiles of 128 or 64)";
}

static bool is_aligned(const struct cld_tensor *t)
{
    return t->ld % 4 == 0 && t->offset % 4 == 0;
}

#define OPERAND_ARGS(t)                                                                            \
    CLD_BUF((t)->buf), CLD_U64((t)->offset), CLD_U64((t)->ld), CLD_I32(is_aligned(t))

/* The kernel that computes tiles of this size. */
static enum cld_status get_kernel(struct cld_queue *q, const struct cld_gemm *g, size_t tile,
                                  struct cld_kernel **out, struct cld_error *err)
{
    char options[192], epilogue[64];
    cld_gemm_out_options(g, epilogue, sizeof epilogue);
    snprintf(options, sizeof options,
             "-DBM=%zu -DBN=%zu -DA_ROWS=%d -DB_ROWS=%d -DTA=%s -DTB=%s %s", tile, tile,
             g->kind != CLD_GEMM_TN, g->kind == CLD_GEMM_NT, cld_tensor_elem(g->a),
             cld_tensor_elem(g->b), epilogue);
    struct cld_kernel_spec spec = {"gemm_gpu.cl", "gemm_gpu", options, group};
    return cld_kernel_get(q, &spec, out, err);
}

static enum cld_status build(struct cld_queue *q, const struct cld_gemm *g,
                             enum cld_gemm_class class, struct cld_kernel **out,
                             struct cld_error *err)
{
    return get_kernel(q, g, make_plan(cld_gemm_size(g), row_of(q, class)).tile, out, err);
}

static enum cld_status run(struct cld_queue *q, const struct cld_gemm *g, struct cld_buf *scratch,
                           struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_gemm_size size = cld_gemm_size(g);
    struct plan p = make_plan(size, row_of(q, cld_gemm_class(size)));
    struct cld_kernel *k = NULL;
    if (!p.size.k)
        return cld_gemm_sum(q, g, 0, NULL, err);
    struct cld_buf *parts = p.n_splits > 1 ? scratch : NULL;
    if ((s = get_kernel(q, g, p.tile, &k, err)) ||
        (s = CLD_LAUNCH(q, k, cld_mul(p.n_tiles, p.n_splits), err, CLD_U64(p.size.m),
                        CLD_U64(p.size.n), CLD_U64(p.size.k), CLD_U64(p.n_splits), CLD_U64(p.depth),
                        OPERAND_ARGS(g->a), OPERAND_ARGS(g->b), CLD_GEMM_OUT_ARGS(g),
                        CLD_BUF(parts))))
        return s;
    return parts ? cld_gemm_sum(q, g, p.n_splits, parts, err) : CLD_OK;
}

const struct cld_gemm_ops cld_gemm_gpu = {.tuned = CLD_TUNED_GEMM_GPU,
                                          .backend = CLD_GEMM_PORTABLE,
                                          .needs = "work-groups of 256 and 17 KiB of local memory",
                                          .name = name,
                                          .supports = supports,
                                          .scratch_bytes = scratch_bytes,
                                          .build = build,
                                          .run = run};

static bool works(const struct cld_queue *q)
{
    return supports(q, NULL);
}

const struct cld_tunable_kernel cld_tuned_gemm_gpu = {
    .id = CLD_TUNED_GEMM_GPU,
    .name = "gemm_gpu",
    .what = "GEMM of the portable kernels for GPUs",
    .files = {"gemm_gpu.cl", "gemm_sum.cl"},
    .classes = CLD_GEMM_CLASSES,
    .params = {[p_tile] = {"tile",
                           "rows and columns",
                           {64, 128},
                           2,
                           "of C per work-group, if there are enough of them; else 64"},
               [p_groups] = {"groups",
                             "work-groups",
                             {64, 128, 256, 512, 1024},
                             5,
                             "that fill the device; with fewer, k is cut into parts"},
               [p_splits] = {"splits", "parts", {1, 2, 4, 8, 16, 32}, 6, "of k, at most"},
               [p_depth] = {"depth", "steps of k", {64, 128, 256, 512}, 4, "of a part, at least"}},
    .n_params = 4,
    .defaults = defaults,
    .works = works};
