#include "ops/probe.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/size.h"
#include "ops/gemm_backend.h"

static const char *const set_names[] = {"sm80 (mma.sync)", "sm90a (wgmma)"};
static const char *const verdict_names[] = {"works", "refused", "wrong"};
static const struct cld_gemm_ops *const gemm_of[] = {&cld_gemm_sm80, &cld_gemm_sm90a};

const char *cld_instruction_set_name(enum cld_instruction_set set)
{
    return set_names[set];
}

const char *cld_probe_verdict_name(enum cld_probe_verdict verdict)
{
    return verdict_names[verdict];
}

/* A GEMM with edges on all sides and several tiles. Its operands are small whole numbers, so
 * that bf16 holds them and every order of summation gives the same. */
enum { m = 136, n = 200, k = 88, elems_most = n * m };

static int value(size_t i, unsigned salt)
{
    return (int)((i * 2654435761u + salt * 40503u) >> 7 & 7) - 4;
}

static enum cld_status make_operand(struct cld_queue *q, struct cld_tensor *t, unsigned salt,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    uint16_t x[elems_most];
    size_t n_elems = cld_tensor_elems(t);
    for (size_t i = 0; i < n_elems; i++)
        x[i] = cld_f32_to_bf16((float)value(i, salt));
    if ((s = cld_buf_create(q, t->name, 2 * n_elems, &t->buf, err)))
        return s;
    return cld_buf_write(t->buf, 0, x, 2 * n_elems, err);
}

/* The first element that differs, into `why`. */
static bool is_right(enum cld_gemm_kind kind, const float *got, char *why, size_t n_bytes)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            int want = 0;
            for (size_t l = 0; l < k; l++)
                want += value(kind == CLD_GEMM_TN ? l * m + i : i * k + l, 1) *
                        value(kind == CLD_GEMM_NT ? j * k + l : l * n + j, 2);
            if (got[i * n + j] != (float)want) { /* NaN differs too */
                snprintf(why, n_bytes, "element [%zu, %zu] of a test GEMM is %g, not %d", i, j,
                         (double)got[i * n + j], want);
                return false;
            }
        }
    return true;
}

/* One GEMM; CLD_E_CHECK if the answer is wrong. */
static enum cld_status try_gemm(struct cld_queue *q, const struct cld_gemm_ops *ops,
                                enum cld_gemm_kind kind, char *why, size_t n_bytes,
                                struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    bool tn = kind == CLD_GEMM_TN, nt = kind == CLD_GEMM_NT;
    struct cld_tensor a = {"probe a", CLD_BF16, tn ? k : m, tn ? m : k, tn ? m : k, NULL, 0};
    struct cld_tensor b = {"probe b", CLD_BF16, nt ? n : k, nt ? k : n, nt ? k : n, NULL, 0};
    struct cld_tensor c = {"probe c", CLD_F32, m, n, n, NULL, 0};
    struct cld_gemm g = {.kind = kind, .backend = ops->backend, .a = &a, .b = &b, .c = &c};
    struct cld_buf *scratch = NULL;
    float *got = calloc(m * n, sizeof *got);
    if (!got)
        return cld_fail_memory(err, "a probe");
    if ((s = make_operand(q, &a, 1, err)) || (s = make_operand(q, &b, 2, err)) ||
        (s = cld_buf_create(q, "probe c", m * n * sizeof *got, &c.buf, err)) ||
        (s = cld_buf_create(q, "probe scratch", ops->scratch_bytes(q, &g), &scratch, err)) ||
        (s = ops->run(q, &g, scratch, err)) || (s = cld_queue_finish(q, err)) ||
        (s = cld_buf_read(c.buf, 0, got, m * n * sizeof *got, err)))
        goto done;
    if (!is_right(kind, got, why, n_bytes))
        s = CLD_E_CHECK;
done:
    free(got);
    cld_buf_free(scratch);
    cld_buf_free(c.buf);
    cld_buf_free(b.buf);
    cld_buf_free(a.buf);
    return s;
}

enum cld_probe_verdict cld_probe_run(struct cld_queue *q, enum cld_instruction_set set, char *why,
                                     size_t n_bytes, bool *transient)
{
    /* Both ways round for both operands. */
    static const enum cld_gemm_kind kinds[] = {CLD_GEMM_NT, CLD_GEMM_TN};
    struct cld_error err = CLD_ERROR_INIT;
    snprintf(why, n_bytes, "%s", "");
    *transient = false;
    if (!cld_queue_has_ptx(q)) {
        snprintf(why, n_bytes, "no inline PTX on this queue");
        return CLD_PROBE_REFUSED;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        enum cld_status s = try_gemm(q, gemm_of[set], kinds[i], why, n_bytes, &err);
        if (s == CLD_E_CHECK)
            return CLD_PROBE_WRONG;
        if (s) {
            snprintf(why, n_bytes, "%s", err.what);
            *transient = s == CLD_E_MEMORY;
            return CLD_PROBE_REFUSED;
        }
    }
    return CLD_PROBE_WORKS;
}
