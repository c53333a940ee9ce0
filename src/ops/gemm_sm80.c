/* gemm_sm80.c - matrix products by mma.sync: cl/gemm_sm80.cl. */
#include <stdio.h>

#include "base/size.h"
#include "opencl/ptx.h"
#include "ops/gemm_tensor.h"
#include "ops/probe.h"

enum { tile = 128, group = 256 };

/* Two work-groups a multiprocessor. */
static const struct cld_ptx_change capped = {.max_registers = 128};

static bool supports(const struct cld_queue *q, const struct cld_gemm *g)
{
    return cld_gemm_fits_tensor_cores(g) && cld_probe_usable(q, CLD_PROBE_SM80);
}

static const char *name(const struct cld_queue *q)
{
    (void)q;
    return "sm80 (tensor cores by mma.sync, bf16, tiles of 128x128)";
}

static size_t scratch_bytes(const struct cld_queue *q, const struct cld_gemm *g)
{
    (void)q;
    return cld_gemm_plan_operands(g, 0).n_scratch_bytes;
}

static enum cld_status run(struct cld_queue *q, const struct cld_gemm *g, struct cld_buf *scratch,
                           struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_gemm_size size = cld_gemm_size(g);
    struct cld_gemm_operands o = cld_gemm_plan_operands(g, 0);
    struct cld_kernel *k = NULL;
    char out[96], options[160];
    if (!size.k)
        return cld_gemm_sum(q, g, 0, NULL, err);
    cld_gemm_tensor_out_options(g, out, sizeof out);
    snprintf(options, sizeof options, "-DA_ROWS=%d -DB_ROWS=%d %s", g->kind != CLD_GEMM_TN,
             g->kind == CLD_GEMM_NT, out);
    struct cld_kernel_spec spec = {"gemm_sm80.cl", "gemm_sm80", options, group};
    if ((s = cld_kernel_get_ptx(q, &spec, &capped, &k, err)) ||
        (s = cld_gemm_copy_operands(q, g, &o, scratch, err)))
        return s;
    return CLD_LAUNCH(q, k, cld_mul(cld_div_up(size.m, tile), cld_div_up(size.n, tile)), err,
                      CLD_U64(size.m), CLD_U64(size.n), CLD_U64(size.k),
                      CLD_GEMM_OPERAND_ARGS(&o.a), CLD_GEMM_OPERAND_ARGS(&o.b),
                      CLD_GEMM_OUT_ARGS(g));
}

const struct cld_gemm_ops cld_gemm_sm80 = {
    CLD_N_TUNED,
    CLD_GEMM_SM80,
    "NVIDIA tensor cores with mma.sync, and bf16 operands or leave to round them",
    name,
    supports,
    scratch_bytes,
    false,
    NULL,
    run};
