/* gemm_sm90a.c - matrix products by wgmma: cl/gemm_sm90a.cl. */
#include <stdio.h>

#include "gemm_tensor.h"
#include "probe.h"
#include "ptx.h"
#include "size.h"

enum { tile_rows = 64, group = 160, n_resident = 3, maps_bytes = 256, local_bytes = 48 * 1024 };

/* Three work-groups of five warps share the registers of a multiprocessor. */
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

/* The wide tile moves an eighth less per operation; the narrow one wastes less where n is small. */
static size_t tile_columns(size_t n)
{
    size_t wide = cld_mul(cld_div_up(n, 192), 192 * 8), narrow = cld_mul(cld_div_up(n, 128), 128 * 9);
    return narrow < wide ? 128 : 192;
}

static struct cld_gemm_operands plan(const struct cld_gemm *g)
{
    return cld_gemm_plan_operands(g, maps_bytes, tile_rows, tile_columns(g->c->n_cols));
}

static size_t scratch_bytes(const struct cld_queue *q, const struct cld_gemm *g)
{
    (void)q;
    return plan(g).n_scratch_bytes;
}

/* Descriptors of the operands that are not in panels, at the begin of the scratch. */
static enum cld_status make_maps(struct cld_queue *q, const struct cld_gemm *g, const char *options,
                                 const struct cld_gemm_operands *o, struct cld_buf *scratch,
                                 struct cld_error *err)
{
    struct cld_kernel_spec spec = {"gemm_sm90a.cl", "gemm_sm90a_maps", options, 32};
    struct cld_gemm_size size = cld_gemm_size(g);
    struct cld_kernel *k = NULL;
    if (g->kind == CLD_GEMM_NT)
        return CLD_OK;
    enum cld_status s = cld_kernel_get_ptx(q, &spec, &hopper, &k, err);
    return s ? s : CLD_LAUNCH(q, k, 1, err, CLD_U64(size.m), CLD_U64(size.n), CLD_U64(size.k),
                              CLD_BUF(scratch), CLD_GEMM_OPERAND_ARGS(&o->a),
                              CLD_GEMM_OPERAND_ARGS(&o->b));
}

static enum cld_status run(struct cld_queue *q, const struct cld_gemm *g, struct cld_buf *scratch,
                           struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_gemm_size size = cld_gemm_size(g);
    struct cld_gemm_operands o = plan(g);
    struct cld_kernel *k = NULL;
    size_t columns = tile_columns(size.n), stage_bytes = (tile_rows + columns) * 32;
    char common[160], options[224];
    if (!size.k)
        return cld_gemm_sum(q, g, 0, NULL, err);
    cld_gemm_tensor_options(g, common, sizeof common);
    /* A stage less than fit: the barriers and the driver's own part need room. */
    snprintf(options, sizeof options, "-DBN=%zu -DSTAGES=%zu %s", columns,
             local_bytes / stage_bytes - 1, common);
    struct cld_kernel_spec spec = {"gemm_sm90a.cl", "gemm_sm90a", options, group};
    if ((s = cld_kernel_get_ptx(q, &spec, &hopper, &k, err)) ||
        (s = cld_gemm_copy_operands(q, &o, scratch, err)) ||
        (s = make_maps(q, g, options, &o, scratch, err)))
        return s;
    size_t n_tiles = cld_mul(cld_div_up(size.m, tile_rows), cld_div_up(size.n, columns));
    return CLD_LAUNCH(q, k, cld_min(n_tiles, n_resident * cld_queue_device(q)->n_compute_units), err,
                      CLD_U64(size.m), CLD_U64(size.n), CLD_U64(size.k), CLD_BUF(scratch),
                      CLD_GEMM_OPERAND_ARGS(&o.a), CLD_GEMM_OPERAND_ARGS(&o.b),
                      CLD_GEMM_OUT_ARGS(g));
}

const struct cld_gemm_ops cld_gemm_sm90a = {
    CLD_GEMM_SM90A, "NVIDIA tensor cores with wgmma, and bf16 operands or leave to round them", name,
    supports, scratch_bytes, run};
