/* gemm_sm90a.c - matrix products by wgmma: cl/gemm_sm90a.cl. */
#include <stdio.h>

#include "gemm_tensor.h"
#include "probe.h"
#include "ptx.h"
#include "size.h"

enum { tile_rows = 128, group = 256, maps_bytes = 256 };

/* Two work-groups a multiprocessor share its 64 K registers. */
static const struct cld_ptx_change hopper = {"sm_90a", 128};

static bool supports(const struct cld_queue *q, const struct cld_gemm *g)
{
    return cld_gemm_fits_tensor_cores(g) && cld_probe_usable(q, CLD_PROBE_SM90A);
}

static const char *name(const struct cld_queue *q)
{
    (void)q;
    return "sm90a (tensor cores by wgmma, bf16, tiles of 128x192)";
}

static size_t scratch_bytes(const struct cld_queue *q, const struct cld_gemm *g)
{
    (void)q;
    return cld_gemm_plan_operands(g, maps_bytes).n_scratch_bytes;
}

static enum cld_status run(struct cld_queue *q, const struct cld_gemm *g, struct cld_buf *scratch,
                           struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_gemm_size size = cld_gemm_size(g);
    struct cld_gemm_operands o = cld_gemm_plan_operands(g, maps_bytes);
    struct cld_kernel *maps = NULL, *product = NULL;
    size_t tile_columns = 192;
    char common[160], options[224];
    if (!size.k)
        return cld_gemm_sum(q, g, 0, NULL, err);
    cld_gemm_tensor_options(g, common, sizeof common);
    snprintf(options, sizeof options, "-DBN=%zu -DSTAGES=%d %s", tile_columns, 4, common);
    struct cld_kernel_spec spec = {"gemm_sm90a.cl", "gemm_sm90a_maps", options, 32};
    if ((s = cld_kernel_get_ptx(q, &spec, &hopper, &maps, err)))
        return s;
    spec = (struct cld_kernel_spec){"gemm_sm90a.cl", "gemm_sm90a", options, group};
    if ((s = cld_kernel_get_ptx(q, &spec, &hopper, &product, err)) ||
        (s = cld_gemm_copy_operands(q, &o, scratch, err)) ||
        (s = CLD_LAUNCH(q, maps, 1, err, CLD_U64(size.m), CLD_U64(size.n), CLD_U64(size.k),
                        CLD_BUF(scratch), CLD_GEMM_OPERAND_ARGS(&o.a), CLD_GEMM_OPERAND_ARGS(&o.b))))
        return s;
    size_t n_tiles = cld_mul(cld_div_up(size.m, tile_rows), cld_div_up(size.n, tile_columns));
    size_t n_resident = 2 * cld_queue_device(q)->n_compute_units;
    return CLD_LAUNCH(q, product, cld_min(n_tiles, n_resident), err, CLD_U64(size.m),
                      CLD_U64(size.n), CLD_U64(size.k), CLD_BUF(scratch), CLD_GEMM_OUT_ARGS(g));
}

const struct cld_gemm_ops cld_gemm_sm90a = {
    CLD_GEMM_SM90A, "NVIDIA tensor cores with wgmma, and bf16 operands or leave to round them", name,
    supports, scratch_bytes, run};
