/* gemm_gpu.c - matrix products on GPU devices with plain OpenCL C: cl/gemm_gpu.cl. */
#include <stdio.h>

#include "gemm_backend.h"
#include "size.h"

/* Work-groups that fill a large device. A constant, so that results do not depend on the device. */
static const size_t n_groups_wanted = 256;

enum { group = 256, depth_unit = 16, depth_least = 128, splits_most = 16, local_bytes = 17 * 1024 };

/* Large tiles where there are enough of them; else small ones, and k in parts. */
struct plan {
    struct cld_gemm_size size;
    size_t tile, n_tiles, n_splits, depth;
};

static struct plan make_plan(const struct cld_gemm *g)
{
    struct plan p = {.size = cld_gemm_size(g), .n_splits = 1};
    for (p.tile = 128;; p.tile = 64) {
        p.n_tiles = cld_mul(cld_div_up(p.size.m, p.tile), cld_div_up(p.size.n, p.tile));
        if (p.tile == 64 || p.n_tiles >= n_groups_wanted)
            break;
    }
    size_t wanted = cld_min(n_groups_wanted / cld_max(p.n_tiles, 1), splits_most);
    wanted = cld_max(1, cld_min(wanted, p.size.k / depth_least));
    p.depth = cld_round_up(cld_div_up(p.size.k, wanted), depth_unit);
    if (p.depth)
        p.n_splits = cld_div_up(p.size.k, p.depth);
    return p;
}

/* Fewer rows may be cut in more parts, so the plan of a largest product is told what any smaller
 * one may need: with n_tiles small tiles there are at most n_groups_wanted / n_tiles parts of as
 * many. */
static size_t scratch_bytes(const struct cld_queue *q, const struct cld_gemm *g)
{
    (void)q;
    const size_t tile = 64;
    return cld_gemm_size(g).k / depth_least < 2
               ? 0
               : cld_mul(cld_mul3(n_groups_wanted, tile, tile), sizeof(float));
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

#define OPERAND_ARGS(t)                                                                           \
    CLD_BUF((t)->buf), CLD_U64((t)->offset), CLD_U64((t)->ld), CLD_I32(is_aligned(t))

static enum cld_status run(struct cld_queue *q, const struct cld_gemm *g, struct cld_buf *scratch,
                           struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char options[192], out[64];
    struct plan p = make_plan(g);
    if (!p.size.k)
        return cld_gemm_sum(q, g, 0, NULL, err);
    struct cld_buf *parts = p.n_splits > 1 ? scratch : NULL;
    cld_gemm_out_options(g, out, sizeof out);
    snprintf(options, sizeof options,
             "-DBM=%zu -DBN=%zu -DA_ROWS=%d -DB_ROWS=%d -DTA=%s -DTB=%s %s", p.tile, p.tile,
             g->kind != CLD_GEMM_TN, g->kind == CLD_GEMM_NT, cld_tensor_elem(g->a),
             cld_tensor_elem(g->b), out);
    struct cld_kernel_spec spec = {"gemm_gpu.cl", "gemm_gpu", options, group};
    s = CLD_RUN(q, &spec, cld_mul(p.n_tiles, p.n_splits), err, CLD_U64(p.size.m),
                CLD_U64(p.size.n), CLD_U64(p.size.k), CLD_U64(p.n_splits), CLD_U64(p.depth),
                OPERAND_ARGS(g->a), OPERAND_ARGS(g->b), CLD_GEMM_OUT_ARGS(g), CLD_BUF(parts));
    return s || !parts ? s : cld_gemm_sum(q, g, p.n_splits, parts, err);
}

const struct cld_gemm_ops cld_gemm_gpu = {CLD_GEMM_PORTABLE,
                                          "work-groups of 256 and 17 KiB of local memory", name,
                                          supports, scratch_bytes, NULL, false, false, run};
