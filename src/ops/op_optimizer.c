/* op_optimizer.c - sum of squares for the gradient norm; AdamW; the mean of weights. */
#include "ops/ops.h"

#include <math.h>
#include <stdlib.h>

#include "ops/op_rows.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* Partial sums at most, whatever the device: enough groups for any of them, and parts of a billion
 * elements are still short. */
enum { max_sums = 32768 };

/* Work-items of a group, and the multiple of elements in a partial sum, which keeps alignment. On
 * an H200 no other values were faster, here or for AdamW. */
enum { sum_items = 256, sum_grain = 4096 };

size_t cld_sum_scratch_bytes(const struct cld_queue *q)
{
    (void)q;
    return max_sums * sizeof(float);
}

enum cld_status cld_sum_squares(struct cld_queue *q, const struct cld_tensor *x,
                                struct cld_buf *scratch, double *out, struct cld_error *err)
{
    char options[cld_options_bytes];
    const struct cld_operand o = {x, CLD_FLAT, "X", 0};
    size_t n = cld_tensor_elems(x);
    size_t length = cld_round_up(cld_max(1, cld_div_up(n, max_sums)), sum_grain);
    size_t n_parts = cld_div_up(n, length);
    bool fit = (x->n_rows < 2 || x->ld == x->n_cols) && scratch &&
               cld_buf_bytes(scratch) >= cld_sum_scratch_bytes(q);
    float *parts = NULL;
    enum cld_status s = cld_operands_check("sum of squares", &o, 1, fit, err);
    *out = 0;
    if (s)
        return s;
    if (!(parts = malloc((n_parts + 1) * sizeof *parts)))
        return cld_fail_memory(err, "%zu partial sums", n_parts);
    size_t local = cld_row_local(q, length, sum_items);
    cld_row_options(q, &o, 1, local, "", options);
    if ((s = CLD_RUN(q,
                     (&(struct cld_kernel_spec){"sum_squares.cl", "sum_squares", options, local}),
                     n_parts, err, CLD_VECTOR(x), CLD_U64(n), CLD_U64(length), CLD_BUF(scratch),
                     CLD_U64(n_parts))) ||
        (s = cld_buf_read(scratch, 0, parts, n_parts * sizeof *parts, err)))
        goto done;
    for (size_t i = 0; i < n_parts; i++)
        *out += parts[i];
done:
    free(parts);
    return s;
}

static bool same_place(const struct cld_tensor *a, const struct cld_tensor *b)
{
    return a->buf == b->buf && a->offset == b->offset && a->type == b->type;
}

enum cld_status cld_adamw_step(struct cld_queue *q, const struct cld_adamw *a,
                               struct cld_error *err)
{
    char options[cld_options_bytes];
    const struct cld_operand o[] = {{a->grad, CLD_FLAT, "G", 0},
                                    {a->m, CLD_FLAT, NULL, CLD_F32},
                                    {a->v, CLD_FLAT, NULL, CLD_F32},
                                    {a->master, CLD_FLAT, NULL, CLD_F32},
                                    {a->weight, CLD_FLAT, "W", 0}};
    size_t n = a->grad->n_cols;
    bool fit = a->step > 0 && a->n_decay <= n;
    for (size_t i = 0; i < COUNT(o); i++)
        fit = fit && cld_is_vector(o[i].t, n);
    enum cld_status s = cld_operands_check("adamw", o, COUNT(o), fit, err);
    if (s)
        return s;
    double beta1 = a->beta1, beta2 = a->beta2, rate = a->learning_rate;
    struct cld_elements e = cld_elements(q, o, COUNT(o));
    cld_row_options(q, o, COUNT(o), e.local, same_place(a->weight, a->master) ? "-DSEPARATE=0" : "",
                    options);
    return CLD_RUN(q, (&(struct cld_kernel_spec){"adamw.cl", "adamw", options, e.local}),
                   e.n_groups, err, CLD_VECTOR(a->grad), CLD_VECTOR(a->m), CLD_VECTOR(a->v),
                   CLD_VECTOR(a->master), CLD_VECTOR(a->weight), CLD_U64(n), CLD_U64(a->n_decay),
                   CLD_FLOAT(a->grad_scale), CLD_FLOAT(1 - beta1), CLD_FLOAT(beta2),
                   CLD_FLOAT(1 - beta2), CLD_FLOAT(1 - rate * a->weight_decay),
                   CLD_FLOAT(rate / (1 - pow(beta1, (double)a->step))),
                   CLD_FLOAT(1 / sqrt(1 - pow(beta2, (double)a->step))), CLD_FLOAT(a->epsilon));
}

enum cld_status cld_ema_step(struct cld_queue *q, const struct cld_tensor *mean,
                             const struct cld_tensor *x, float share, struct cld_error *err)
{
    char options[cld_options_bytes];
    const struct cld_operand o[] = {{mean, CLD_FLAT, NULL, CLD_F32}, {x, CLD_FLAT, NULL, CLD_F32}};
    size_t n = x->n_cols;
    enum cld_status s = cld_operands_check("mean of weights", o, COUNT(o),
                                           cld_is_vector(x, n) && cld_is_vector(mean, n), err);
    if (s)
        return s;
    struct cld_elements e = cld_elements(q, o, COUNT(o));
    cld_row_options(q, o, COUNT(o), e.local, "", options);
    return CLD_RUN(q, (&(struct cld_kernel_spec){"ema.cl", "ema", options, e.local}), e.n_groups,
                   err, CLD_VECTOR(mean), CLD_VECTOR(x), CLD_U64(n), CLD_FLOAT(share));
}
