/* op_loss.c - what is read from logits: cross-entropy and its gradient, the first maximum. */
#include "ops/ops.h"

#include "ops/op_rows.h"
#include "ops/tunable_kernel.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* The tuned parameter of cross-entropy. */
enum { p_items };

static struct cld_tuned_row defaults(const struct cld_device_info *d)
{
    (void)d;
    return (struct cld_tuned_row){{[p_items] = 256}};
}

static const char *objection(const struct cld_device_info *d, const struct cld_tuned_row *row,
                             char *to, size_t n_bytes)
{
    return cld_group_objection(d, row->v[p_items], to, n_bytes);
}

/* A gradient reads the logits once more and writes as many. */
enum { class_alone, class_gradient };

const struct cld_tunable_kernel cld_tuned_cross_entropy = {
    .id = CLD_TUNED_CROSS_ENTROPY,
    .name = "cross_entropy",
    .what = "cross-entropy of rows of logits",
    .files = {"cross_entropy.cl"},
    .classes = {[class_alone] = "alone", [class_gradient] = "gradient"},
    .params =
        {[p_items] = {"items", "work-items", {64, 128, 256, 512, 1024}, 5, "of a group, at most"}},
    .n_params = 1,
    .defaults = defaults,
    .objection = objection,
    .works = cld_has_groups};

enum cld_status cld_cross_entropy(struct cld_queue *q, const struct cld_tensor *logits,
                                  const struct cld_tensor *labels, const struct cld_tensor *weights,
                                  const struct cld_tensor *loss, const struct cld_tensor *hit,
                                  const struct cld_tensor *gradient, struct cld_error *err)
{
    char options[cld_options_bytes];
    const struct cld_operand o[] = {{logits, CLD_BY_ROWS, "Z", 0},
                                    {gradient ? gradient : logits, CLD_BY_ROWS, "DZ", 0},
                                    {labels, CLD_BY_ELEMENT, NULL, CLD_I32},
                                    {weights, CLD_BY_ELEMENT, NULL, CLD_F32},
                                    {loss, CLD_BY_ELEMENT, NULL, CLD_F32},
                                    {hit, CLD_BY_ELEMENT, NULL, CLD_I32}};
    size_t n = logits->n_rows;
    bool fit = logits->n_cols > 0 && logits->n_cols < INT32_MAX && cld_is_vector(labels, n) &&
               (!gradient || cld_same_shape(gradient, logits)) && cld_is_vector(weights, n) &&
               cld_is_vector(loss, n) && cld_is_vector(hit, n);
    enum cld_status s = cld_operands_check("cross-entropy", o, COUNT(o), fit, err);
    if (s)
        return s;
    const struct cld_tuned_row *row =
        cld_queue_row(q, &cld_tuned_cross_entropy, gradient ? class_gradient : class_alone);
    size_t local = cld_row_local(q, logits->n_cols, row->v[p_items]);
    cld_row_options(q, o, COUNT(o), local, "", options);
    return CLD_RUN(
        q, (&(struct cld_kernel_spec){"cross_entropy.cl", "cross_entropy", options, local}), n, err,
        CLD_MATRIX(logits), CLD_MATRIX(gradient), CLD_VECTOR(labels), CLD_VECTOR(weights),
        CLD_VECTOR(loss), CLD_VECTOR(hit), CLD_U64(n), CLD_U64(logits->n_cols));
}

enum cld_status cld_first_max(struct cld_queue *q, const struct cld_tensor *x,
                              const struct cld_tensor *index, struct cld_error *err)
{
    char options[cld_options_bytes];
    const struct cld_operand o[] = {{x, CLD_BY_ROWS, "X", 0},
                                    {index, CLD_BY_ELEMENT, NULL, CLD_I32}};
    bool fit = x->n_cols > 0 && x->n_cols < INT32_MAX && cld_is_vector(index, x->n_rows);
    enum cld_status s = cld_operands_check("first maximum", o, COUNT(o), fit, err);
    if (s)
        return s;
    size_t local = cld_row_local(q, x->n_cols, 512);
    cld_row_options(q, o, COUNT(o), local, "", options);
    return CLD_RUN(q, (&(struct cld_kernel_spec){"first_max.cl", "first_max", options, local}),
                   x->n_rows, err, CLD_MATRIX(x), CLD_VECTOR(index), CLD_U64(x->n_rows),
                   CLD_U64(x->n_cols));
}
