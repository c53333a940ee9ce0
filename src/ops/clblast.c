/* clblast.c - CLBlast's sgemm as a back-end of cld_gemm. It computes C = beta C + op(A) op(B), so
 * bias and R go into C first. */
#include <clblast_c.h>

#include "base/clock.h"
#include "base/size.h"
#include "opencl/queue_private.h"
#include "ops/gemm_backend.h"

static bool is_f32(const struct cld_tensor *t)
{
    return !t || t->type == CLD_F32;
}

/* No bf16 there, and half only where the device has it. */
static bool supports(const struct cld_queue *q, const struct cld_gemm *g)
{
    if (q->handle.device.quirks & CLD_QUIRK_NO_CLBLAST)
        return false;
    return !g ||
           (is_f32(g->a) && is_f32(g->b) && is_f32(g->c) && is_f32(g->bias) && is_f32(g->residual));
}

static const char *name(const struct cld_queue *q)
{
    (void)q;
    return "CLBlast (f32)";
}

static CLBlastTranspose transpose_a(const struct cld_gemm *g)
{
    return g->kind == CLD_GEMM_TN ? CLBlastTransposeYes : CLBlastTransposeNo;
}

static CLBlastTranspose transpose_b(const struct cld_gemm *g)
{
    return g->kind == CLD_GEMM_NT ? CLBlastTransposeYes : CLBlastTransposeNo;
}

/* CLBlast copies operands that do not fit its tiles, and those that do not begin at 0: offsets of 1
 * give the largest scratch that a GEMM of these shapes needs. */
static size_t scratch_bytes(const struct cld_queue *q, const struct cld_gemm *g)
{
    struct cld_gemm_size size = cld_gemm_size(g);
    cl_command_queue queue = q->handle.queue;
    size_t n_bytes = 0;
    if (!size.m || !size.n || !size.k)
        return 0;
    CLBlastStatusCode code = CLBlastSGemmTempBufferSize(
        CLBlastLayoutRowMajor, transpose_a(g), transpose_b(g), size.m, size.n, size.k, 1, g->a->ld,
        1, g->b->ld, 1, g->c->ld, &queue, &n_bytes);
    return code == CLBlastSuccess ? n_bytes : SIZE_MAX;
}

static enum cld_status run(struct cld_queue *q, const struct cld_gemm *g, struct cld_buf *scratch,
                           struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_gemm_size size = cld_gemm_size(g);
    bool in_place = !g->bias && g->residual && g->residual->buf == g->c->buf &&
                    g->residual->offset == g->c->offset && g->residual->ld == g->c->ld;
    bool adds = g->bias || g->residual;
    cld_queue_check_owner(q, "cld_gemm (CLBlast)");
    if (q->sealed && !q->clblast_built)
        return cld_fail(err, CLD_E_DEVICE, "the warm-up of this worker missed it; report it",
                        "%s: CLBlast was not built before the run began", q->handle.name);
    if ((adds || !size.k) && !in_place && (s = cld_gemm_sum(q, g, 0, NULL, err)))
        return s;
    if (!size.k || q->list)
        return CLD_OK;
    size_t n_scratch_bytes = scratch_bytes(q, g);
    double begun = cld_clock_ms();
    /* The first call of a context compiles. Where a driver minds grids of several sizes in flight,
     * calls of different workers must not overlap either. */
    cld_build_lock();
    int code = (int)CLBlastSgemmWithTempBuffer(
        CLBlastLayoutRowMajor, transpose_a(g), transpose_b(g), size.m, size.n, size.k, 1.0f,
        g->a->buf->mem, g->a->offset, g->a->ld, g->b->buf->mem, g->b->offset, g->b->ld,
        adds ? 1.0f : 0.0f, g->c->buf->mem, g->c->offset, g->c->ld, &q->handle.queue, NULL,
        n_scratch_bytes ? scratch->mem : NULL);
    if (code == CLBlastSuccess && q->handle.device.quirks & CLD_QUIRK_FIXED_GRID)
        code = clFinish(q->handle.queue);
    cld_build_unlock();
    if (code != CLBlastSuccess)
        return cld_fail(err, CLD_E_DEVICE, "choose the portable back-end",
                        "%s: CLBlast sgemm of m %zu, n %zu, k %zu failed with code %d",
                        q->handle.name, size.m, size.n, size.k, code);
    if (!q->clblast_built) {
        q->clblast_built = true;
        q->handle.counts.n_builds++;
        q->handle.counts.build_ms += cld_clock_ms() - begun;
    }
    return CLD_OK;
}

const struct cld_gemm_ops cld_gemm_clblast = {.tuned = CLD_N_TUNED,
                                              .backend = CLD_GEMM_CLBLAST,
                                              .needs =
                                                  "F32 tensors, and a platform that it works on",
                                              .name = name,
                                              .supports = supports,
                                              .scratch_bytes = scratch_bytes,
                                              .run = run};
