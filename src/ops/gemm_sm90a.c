/* gemm_sm90a.c - matrix products by wgmma: cl/gemm_sm90a.cl. */
#include <stdio.h>

#include "base/size.h"
#include "opencl/ptx.h"
#include "ops/gemm_tensor.h"
#include "ops/probe.h"
#include "ops/tunable_kernel.h"

enum {
    tile_rows = 64,
    slice_steps = 16,
    group = 160,
    groups_a_unit = 3, /* work-groups of five warps that share a multiprocessor's registers */
    local_bytes = 48 * 1024,
    maps_bytes = 2 * 128 /* of a work-group */
};

/* Parameters in the order of the table below. */
enum { p_columns, p_spare, p_band };

/* A slice less in the ring than would fit: barriers and the driver's own part need room. */
static struct cld_tuned_row defaults(const struct cld_device_info *d)
{
    (void)d;
    return (struct cld_tuned_row){{[p_columns] = 0, [p_spare] = 1, [p_band] = 16}};
}

static const struct cld_ptx_change hopper = {"sm_90a", 128};

static bool supports(const struct cld_queue *q, const struct cld_gemm *g)
{
    return cld_gemm_fits_tensor_cores(g) && cld_probe_usable(q, CLD_PROBE_SM90A);
}

static const char *name(const struct cld_queue *q)
{
    (void)q;
    return "sm90a (tensor cores by wgmma, bf16, tiles of 64x192 or 64x128)";
}

static size_t n_resident(const struct cld_queue *q)
{
    return groups_a_unit * cld_queue_device(q)->n_compute_units;
}

/* The wide tile moves an eighth less per operation; the narrow one wastes less where n is small. */
static size_t choose_columns(size_t n)
{
    size_t wide = cld_div_up(n, 192) * 192 * 8, narrow = cld_div_up(n, 128) * 128 * 9;
    return narrow < wide ? 128 : 192;
}

static size_t common_divisor(size_t a, size_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* Rows of A that are turned at once: all, or where their copy would be large so many that their
 * tiles are full rounds of the work-groups (with the default's columns: plans do not depend on
 * tuned ones here), for which it may be twice as large unless the caller said how large. Rows of C
 * depend on their own of A alone. */
static size_t rows_at_once(const struct cld_queue *q, const struct cld_gemm *g)
{
    struct cld_gemm_size size = cld_gemm_size(g);
    size_t most_bytes = g->most_copied_bytes ? g->most_copied_bytes : (size_t)256 << 20;
    size_t row_bytes = cld_mul(2, cld_max(size.k, 1)), most = most_bytes / row_bytes;
    if (g->kind == CLD_GEMM_TN || size.m <= most)
        return size.m;
    size_t across = cld_div_up(size.n, choose_columns(size.n));
    size_t round = tile_rows * (n_resident(q) / common_divisor(n_resident(q), across));
    if (!g->most_copied_bytes && most < round && 2 * most >= round)
        return cld_min(round, size.m);
    size_t grain = most >= round ? round : tile_rows;
    return cld_max(most / grain, 1) * grain;
}

/* Rows [first, first + n) of a product. */
struct rows {
    struct cld_tensor a, c, residual;
    struct cld_gemm g;
};

static void take_rows(const struct cld_gemm *g, size_t first, size_t n, struct rows *r)
{
    r->g = *g;
    if (g->kind == CLD_GEMM_TN)
        return;
    r->a = cld_tensor_rows(g->a, first, n);
    /* SwiGLU's result is turned. */
    r->c = g->swiglu ? cld_tensor_cols(g->c, first, n) : cld_tensor_rows(g->c, first, n);
    r->g.a = &r->a;
    r->g.c = &r->c;
    if (g->residual) {
        r->residual = cld_tensor_rows(g->residual, first, n);
        r->g.residual = &r->residual;
    }
}

/* With A's first rows. */
static struct cld_gemm_operands plan(const struct cld_queue *q, const struct cld_gemm *g)
{
    struct rows r;
    take_rows(g, 0, rows_at_once(q, g), &r);
    return cld_gemm_plan_operands(&r.g, cld_mul(maps_bytes, n_resident(q)), true);
}

static size_t scratch_bytes(const struct cld_queue *q, const struct cld_gemm *g)
{
    return plan(q, g).n_scratch_bytes;
}

/* Operands are there. */
static enum cld_status launch(struct cld_queue *q, struct cld_kernel *gemm,
                              const struct cld_gemm *g, const struct cld_gemm_operands *o,
                              size_t columns, struct cld_buf *scratch, struct cld_error *err)
{
    struct cld_gemm_size size = cld_gemm_size(g);
    size_t n_tiles = cld_mul(cld_div_up(size.m, tile_rows), cld_div_up(size.n, columns));
    return CLD_LAUNCH(q, gemm, cld_min(n_tiles, n_resident(q)), err, CLD_U64(size.m),
                      CLD_U64(size.n), CLD_U64(size.k), CLD_BUF(scratch),
                      CLD_GEMM_OPERAND_ARGS(&o->a), CLD_GEMM_OPERAND_ARGS(&o->b),
                      CLD_GEMM_OUT_ARGS(g));
}

static size_t columns_of(const struct cld_tuned_row *row, size_t n)
{
    return row->v[p_columns] ? row->v[p_columns] : choose_columns(n);
}

static enum cld_status build(struct cld_queue *q, const struct cld_gemm *g,
                             enum cld_gemm_class class, struct cld_kernel **out,
                             struct cld_error *err)
{
    char epilogue[96], options[160];
    const struct cld_tuned_row *row = cld_queue_row(q, &cld_tuned_gemm_sm90a, class);
    size_t columns = columns_of(row, cld_gemm_size(g).n);
    size_t n_stages = local_bytes / ((tile_rows + columns) * slice_steps * 2) - row->v[p_spare];
    cld_gemm_tensor_out_options(g, epilogue, sizeof epilogue);
    snprintf(options, sizeof options, "-DBN=%zu -DSTAGES=%zu -DBAND=%zu %s%s", columns, n_stages,
             row->v[p_band], epilogue, g->swiglu ? " -DSWIGLU=1" : "");
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
    const struct cld_tuned_row *row = cld_queue_row(q, &cld_tuned_gemm_sm90a, class);
    size_t columns = columns_of(row, size.n), at_once = rows_at_once(q, g);
    if ((s = build(q, g, class, &gemm, err)))
        return s;
    for (size_t first = 0; first < size.m && !s; first += at_once) {
        struct rows r;
        take_rows(g, first, cld_min(at_once, size.m - first), &r);
        r.g.same_a = g->same_a && at_once >= size.m;
        r.g.same_b = first > 0;
        o.a.t = r.g.a;
        if (!(s = cld_gemm_copy_operands(q, &r.g, &o, scratch, err)))
            s = launch(q, gemm, &r.g, &o, columns, scratch, err);
    }
    return s;
}

const struct cld_gemm_ops cld_gemm_sm90a = {
    CLD_TUNED_GEMM_SM90A,
    CLD_GEMM_SM90A,
    "NVIDIA tensor cores with wgmma, and bf16 operands or leave to round them",
    name,
    supports,
    scratch_bytes,
    true,
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
                              {0, 128, 192},
                              3,
                              "of a tile; 0: those that waste less of n"},
               [p_spare] = {"spare",
                            "slices",
                            {1, 2, 3},
                            3,
                            "that would fit into local memory and are left out of the ring"},
               [p_band] = {"band",
                           "tiles",
                           {4, 8, 16, 32, 64},
                           5,
                           "rows of tiles that are walked together"}},
    .n_params = 3,
    .defaults = defaults,
    .works = works};
