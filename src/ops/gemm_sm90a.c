/* gemm_sm90a.c - matrix products by wgmma: cl/gemm_sm90a.cl. */
#include <stdint.h>
#include <stdio.h>

#include "base/size.h"
#include "opencl/ptx.h"
#include "ops/gemm_tensor.h"
#include "ops/probe.h"
#include "ops/tunable_kernel.h"

enum {
    tile_rows = 128,
    most_columns = 256,
    n_stages = 4,
    stage_bytes = (tile_rows + most_columns) * 64 * 2, /* a slice of 64 steps */
    group = 384,
    buffer_bytes = 8 * 4096, /* for results, of all warps */
    maps_bytes = 3 * 128     /* of a work-group */
};

/* Parameters in the order of the table below. */
enum { p_columns, p_band };

static struct cld_tuned_row defaults(const struct cld_device_info *d)
{
    (void)d;
    return (struct cld_tuned_row){{[p_columns] = 0, [p_band] = 16}};
}

static bool supports(const struct cld_queue *q, const struct cld_gemm *g)
{
    return cld_gemm_fits_tensor_cores(g) && cld_probe_usable(q, CLD_PROBE_SM90A);
}

static const char *name(const struct cld_queue *q)
{
    (void)q;
    return "sm90a (tensor cores by wgmma, bf16, tiles of 128x256, 128x192 or 128x128)";
}

/* A work-group has a multiprocessor's local memory. */
static size_t n_resident(const struct cld_queue *q)
{
    return cld_queue_device(q)->n_compute_units;
}

/* The columns with which the rounds of work-groups cost least. What a tile costs besides its
 * columns: the narrower it is, the more it loads for an operation. */
static size_t choose_columns(const struct cld_queue *q, const struct cld_gemm *g)
{
    static const struct {
        size_t columns, cost;
    } tiles[] = {{256, 256}, {192, 204}, {128, 148}};
    struct cld_gemm_size size = cld_gemm_size(g);
    size_t down = cld_div_up(size.m, tile_rows), best = 0, least = SIZE_MAX;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        size_t n_tiles = cld_mul(down, cld_div_up(size.n, tiles[i].columns));
        size_t cost = cld_mul(cld_div_up(n_tiles, n_resident(q)), tiles[i].cost);
        if (cost < least && !(g->swiglu && tiles[i].columns == 192)) {
            least = cost;
            best = tiles[i].columns;
        }
    }
    return best;
}

static size_t columns_of(const struct cld_queue *q, const struct cld_tuned_row *row,
                         const struct cld_gemm *g)
{
    size_t tuned = row->v[p_columns];
    return tuned && !(g->swiglu && tuned == 192) ? tuned : choose_columns(q, g);
}

static struct cld_gemm_operands plan(const struct cld_queue *q, const struct cld_gemm *g)
{
    return cld_gemm_plan_operands(g, cld_mul(maps_bytes, n_resident(q)));
}

static size_t scratch_bytes(const struct cld_queue *q, const struct cld_gemm *g)
{
    return plan(q, g).n_scratch_bytes;
}

static bool maps_c(const struct cld_gemm *g)
{
    return cld_gemm_out_is_aligned(g) && g->c->ld % 8 == 0 && g->c->offset % 8 == 0;
}

static enum cld_status build(struct cld_queue *q, const struct cld_gemm *g,
                             enum cld_gemm_class class, struct cld_kernel **out,
                             struct cld_error *err)
{
    char epilogue[96], options[224];
    const struct cld_tuned_row *row = cld_queue_row(q, &cld_tuned_gemm_sm90a, class);
    const struct cld_ptx_change hopper = {.target = "sm_90a",
                                          .max_registers = 168,
                                          .local_bytes = n_stages * stage_bytes + buffer_bytes};
    cld_gemm_tensor_out_options(g, epilogue, sizeof epilogue);
    snprintf(options, sizeof options,
             "-DA_ROWS=%d -DB_ROWS=%d -DSTAGES=%d -DBAND=%zu -DC_MAPPED=%d %s%s",
             g->kind != CLD_GEMM_TN, g->kind == CLD_GEMM_NT, n_stages, row->v[p_band], maps_c(g),
             epilogue, g->swiglu ? " -DSWIGLU=1" : "");
    struct cld_kernel_spec spec = {"gemm_sm90a.cl", "gemm_sm90a", options, group};
    return cld_kernel_get_ptx(q, &spec, &hopper, out, err);
}

static enum cld_status run(struct cld_queue *q, const struct cld_gemm *g, struct cld_buf *scratch,
                           struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_gemm_size size = cld_gemm_size(g);
    struct cld_gemm_operands o = plan(q, g);
    struct cld_kernel *gemm = NULL;
    enum cld_gemm_class class = cld_gemm_class(size);
    if (!size.k)
        return cld_gemm_sum(q, g, 0, NULL, err);
    size_t columns = columns_of(q, cld_queue_row(q, &cld_tuned_gemm_sm90a, class), g);
    size_t n_tiles = cld_mul(cld_div_up(size.m, tile_rows), cld_div_up(size.n, columns));
    if ((s = build(q, g, class, &gemm, err)) ||
        (s = cld_gemm_copy_operands(q, g, &o, scratch, err)))
        return s;
    return CLD_LAUNCH(q, gemm, cld_min(n_tiles, n_resident(q)), err, CLD_U64(size.m),
                      CLD_U64(size.n), CLD_U64(size.k), CLD_U64(columns), CLD_BUF(scratch),
                      CLD_GEMM_OPERAND_ARGS(&o.a), CLD_GEMM_OPERAND_ARGS(&o.b),
                      CLD_GEMM_OUT_ARGS(g));
}

const struct cld_gemm_ops cld_gemm_sm90a = {
    CLD_TUNED_GEMM_SM90A,
    CLD_GEMM_SM90A,
    "NVIDIA tensor cores with wgmma, and bf16 operands or leave to round them",
    name,
    supports,
    scratch_bytes,
    true,
    build,
    run};

static bool works(const struct cld_queue *q)
{
    return supports(q, NULL);
}

const struct cld_tunable_kernel cld_tuned_gemm_sm90a = {
    .id = CLD_TUNED_GEMM_SM90A,
    .name = "gemm_sm90a",
    .what = "matrix products on NVIDIA's tensor cores by wgmma",
    .files = {"gemm_sm90a.cl"},
    .classes = CLD_GEMM_CLASSES,
    .params = {[p_columns] = {"columns",
                              "columns",
                              {0, 128, 192, 256},
                              4,
                              "of a tile; 0: those that cost least"},
               [p_band] = {"band",
                           "tiles",
                           {4, 8, 16, 32, 64},
                           5,
                           "rows of tiles that are walked together"}},
    .n_params = 2,
    .defaults = defaults,
    .works = works};
