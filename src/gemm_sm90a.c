/* gemm_sm90a.c - matrix products by wgmma: cl/gemm_sm90a.cl. */
#include <stdio.h>

#include "gemm_tensor.h"
#include "probe.h"
#include "ptx.h"
#include "size.h"

enum {
    tile_rows = 64,
    slice_steps = 16,
    group = 160,
    groups_a_unit = 3, /* work-groups of five warps that share a multiprocessor's registers */
    local_bytes = 48 * 1024,
    maps_bytes = 2 * 128 /* of a work-group */
};

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
 * tiles are full rounds of the work-groups. Rows of C depend on their own of A alone. */
static size_t rows_at_once(const struct cld_queue *q, const struct cld_gemm *g)
{
    struct cld_gemm_size size = cld_gemm_size(g);
    size_t most_bytes = g->most_copied_bytes ? g->most_copied_bytes : (size_t)256 << 20;
    size_t row_bytes = cld_mul(2, cld_max(size.k, 1)), most = most_bytes / row_bytes;
    if (g->kind == CLD_GEMM_TN || size.m <= most)
        return size.m;
    size_t across = cld_div_up(size.n, choose_columns(size.n));
    size_t round = tile_rows * (n_resident(q) / common_divisor(n_resident(q), across));
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
static enum cld_status launch(struct cld_queue *q, struct cld_kernel *product,
                              const struct cld_gemm *g, const struct cld_gemm_operands *o,
                              struct cld_buf *scratch, struct cld_error *err)
{
    struct cld_gemm_size size = cld_gemm_size(g);
    size_t columns = choose_columns(size.n);
    size_t n_tiles = cld_mul(cld_div_up(size.m, tile_rows), cld_div_up(size.n, columns));
    return CLD_LAUNCH(q, product, cld_min(n_tiles, n_resident(q)), err, CLD_U64(size.m),
                      CLD_U64(size.n), CLD_U64(size.k), CLD_BUF(scratch),
                      CLD_GEMM_OPERAND_ARGS(&o->a), CLD_GEMM_OPERAND_ARGS(&o->b),
                      CLD_GEMM_OUT_ARGS(g));
}

static enum cld_status run(struct cld_queue *q, const struct cld_gemm *g, struct cld_buf *scratch,
                           struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_gemm_size size = cld_gemm_size(g);
    struct cld_gemm_operands o = plan(q, g);
    struct cld_kernel *product = NULL;
    char out[96], options[160];
    if (!size.k)
        return cld_gemm_sum(q, g, 0, NULL, err);
    /* A slice less in the ring than would fit: barriers and the driver's own part need room. */
    size_t columns = choose_columns(size.n), at_once = rows_at_once(q, g);
    size_t n_stages = local_bytes / ((tile_rows + columns) * slice_steps * 2) - 1;
    cld_gemm_tensor_out_options(g, out, sizeof out);
    snprintf(options, sizeof options, "-DBN=%zu -DSTAGES=%zu %s%s", columns, n_stages, out,
             g->swiglu ? " -DSWIGLU=1" : "");
    struct cld_kernel_spec spec = {"gemm_sm90a.cl", "gemm_sm90a", options, group};
    if ((s = cld_kernel_get_ptx(q, &spec, &hopper, &product, err)))
        return s;
    for (size_t first = 0; first < size.m && !s; first += at_once) {
        struct rows r;
        take_rows(g, first, cld_min(at_once, size.m - first), &r);
        r.g.same_a = g->same_a && at_once >= size.m;
        r.g.same_b = first > 0;
        o.a.t = r.g.a;
        if (!(s = cld_gemm_copy_operands(q, &r.g, &o, scratch, err)))
            s = launch(q, product, &r.g, &o, scratch, err);
    }
    return s;
}

const struct cld_gemm_ops cld_gemm_sm90a = {
    CLD_GEMM_SM90A, "NVIDIA tensor cores with wgmma, and bf16 operands or leave to round them",
    name,           supports,
    scratch_bytes,  true, true,
    run};
