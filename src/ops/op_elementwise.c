/* op_elementwise.c - SwiGLU, sums, gathers, fills. */
#include "ops/ops.h"

#include "base/random.h"
#include "ops/op_rows.h"
#include "ops/tunable_kernel.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* Tuned parameters of SwiGLU. A piece of work is a vector of each of 256 work-items. */
enum { p_forward, p_backward, p_pieces };

static struct cld_tuned_row defaults(const struct cld_device_info *d)
{
    (void)d;
    return (struct cld_tuned_row){{[p_forward] = 256, [p_backward] = 256, [p_pieces] = 1}};
}

static const char *objection(const struct cld_device_info *d, const struct cld_tuned_row *row,
                             char *to, size_t n_bytes)
{
    return cld_group_objection(d, cld_max(row->v[p_forward], row->v[p_backward]), to, n_bytes);
}

const struct cld_tunable_kernel cld_tuned_swiglu = {
    .id = CLD_TUNED_SWIGLU,
    .name = "swiglu",
    .what = "SwiGLU, forward and backward",
    .files = {"swiglu.cl"},
    .classes = {"fp32", "bf16"}, /* of gate */
    .params = {[p_forward] = {"forward", "work-items", {32, 64, 128, 256}, 4, "of a group"},
               [p_backward] = {"backward", "work-items", {32, 64, 128, 256}, 4, "of a group"},
               [p_pieces] = {"pieces", "pieces of 2048 elements", {1, 2, 4, 8}, 4, "of a group"}},
    .n_params = 3,
    .defaults = defaults,
    .objection = objection,
    .works = cld_has_groups};

/* Operands; gate is the first; `direction` is p_forward or p_backward. */
static struct cld_elements swiglu_elements(const struct cld_queue *q, const struct cld_operand *o,
                                           size_t n, size_t direction)
{
    const struct cld_tuned_row *row = cld_queue_row(q, &cld_tuned_swiglu, o[0].t->type == CLD_BF16);
    return cld_elements_of(q, o, n, row->v[direction], row->v[p_pieces]);
}

enum cld_status cld_swiglu_forward(struct cld_queue *q, const struct cld_tensor *gate,
                                   const struct cld_tensor *up, const struct cld_tensor *y,
                                   struct cld_error *err)
{
    char options[cld_options_bytes];
    const struct cld_operand o[] = {
        {gate, CLD_BY_ROWS, "G", 0}, {up, CLD_BY_ROWS, "U", 0}, {y, CLD_BY_ROWS, "Y", 0}};
    enum cld_status s = cld_operands_check(
        "swiglu", o, COUNT(o), cld_same_shape(gate, up) && cld_same_shape(gate, y), err);
    if (s)
        return s;
    struct cld_elements e = swiglu_elements(q, o, COUNT(o), p_forward);
    cld_row_options(q, o, COUNT(o), e.local, e.extra, options);
    return CLD_RUN(q, (&(struct cld_kernel_spec){"swiglu.cl", "swiglu_forward", options, e.local}),
                   e.n_groups, err, CLD_MATRIX(gate), CLD_MATRIX(up), CLD_MATRIX(y),
                   CLD_U64(e.n_rows), CLD_U64(e.n_cols));
}

enum cld_status cld_swiglu_backward(struct cld_queue *q, const struct cld_tensor *gate,
                                    const struct cld_tensor *up, const struct cld_tensor *dy,
                                    const struct cld_tensor *d_gate, const struct cld_tensor *d_up,
                                    struct cld_error *err)
{
    char options[cld_options_bytes];
    const struct cld_operand o[] = {{gate, CLD_BY_ROWS, "G", 0},
                                    {up, CLD_BY_ROWS, "U", 0},
                                    {dy, CLD_BY_ROWS, "Y", 0},
                                    {d_gate, CLD_BY_ROWS, "DG", 0},
                                    {d_up, CLD_BY_ROWS, "DU", 0}};
    bool fit = cld_same_shape(gate, up) && cld_same_shape(gate, dy) &&
               cld_same_shape(gate, d_gate) && cld_same_shape(gate, d_up);
    enum cld_status s = cld_operands_check("swiglu backward", o, COUNT(o), fit, err);
    if (s)
        return s;
    struct cld_elements e = swiglu_elements(q, o, COUNT(o), p_backward);
    cld_row_options(q, o, COUNT(o), e.local, e.extra, options);
    return CLD_RUN(q, (&(struct cld_kernel_spec){"swiglu.cl", "swiglu_backward", options, e.local}),
                   e.n_groups, err, CLD_MATRIX(gate), CLD_MATRIX(up), CLD_MATRIX(dy),
                   CLD_MATRIX(d_gate), CLD_MATRIX(d_up), CLD_U64(e.n_rows), CLD_U64(e.n_cols));
}

enum cld_status cld_add_tensors(struct cld_queue *q, const struct cld_tensor *a,
                                const struct cld_tensor *b, const struct cld_tensor *y,
                                struct cld_error *err)
{
    char options[cld_options_bytes];
    const struct cld_operand o[] = {
        {a, CLD_BY_ROWS, "A", 0}, {b, CLD_BY_ROWS, "B", 0}, {y, CLD_BY_ROWS, "Y", 0}};
    enum cld_status s = cld_operands_check(
        "add", o, COUNT(o), cld_same_shape(a, y) && (!b || cld_same_shape(b, y)), err);
    if (s)
        return s;
    struct cld_elements e = cld_elements(q, o, COUNT(o));
    cld_row_options(q, o, COUNT(o), e.local, e.extra, options);
    return CLD_RUN(q, (&(struct cld_kernel_spec){"add.cl", "add", options, e.local}), e.n_groups,
                   err, CLD_MATRIX(a), CLD_MATRIX(b), CLD_MATRIX(y), CLD_U64(e.n_rows),
                   CLD_U64(e.n_cols));
}

enum cld_status cld_gather_rows(struct cld_queue *q, const struct cld_tensor *x,
                                const struct cld_tensor *index, const struct cld_tensor *y,
                                struct cld_error *err)
{
    char options[cld_options_bytes], extra[48];
    const struct cld_operand o[] = {
        {y, CLD_BY_ROWS, "Y", 0}, {x, CLD_BY_ROWS, "X", 0}, {index, CLD_BY_ELEMENT, NULL, CLD_I32}};
    enum cld_status s = cld_operands_check(
        "gather", o, COUNT(o), x->n_cols == y->n_cols && cld_is_vector(index, y->n_rows), err);
    if (s)
        return s;
    size_t local = cld_row_local(q, y->n_cols, 256);
    cld_held_options(q, y->n_cols, local, extra, sizeof extra);
    cld_row_options(q, o, COUNT(o), local, extra, options);
    return CLD_RUN(q, (&(struct cld_kernel_spec){"gather.cl", "gather_rows", options, local}),
                   y->n_rows, err, CLD_MATRIX(x), CLD_U64(x->n_rows), CLD_VECTOR(index),
                   CLD_MATRIX(y), CLD_U64(y->n_rows), CLD_U64(y->n_cols));
}

enum cld_status cld_scatter_rows(struct cld_queue *q, const struct cld_tensor *x,
                                 const struct cld_tensor *index, const struct cld_tensor *y,
                                 struct cld_error *err)
{
    char options[cld_options_bytes];
    const struct cld_operand o[] = {
        {y, CLD_BY_ROWS, "Y", 0}, {x, CLD_BY_ROWS, "X", 0}, {index, CLD_BY_ELEMENT, NULL, CLD_I32}};
    enum cld_status s = cld_operands_check(
        "scatter", o, COUNT(o), x->n_cols == y->n_cols && cld_is_vector(index, x->n_rows), err);
    if (s)
        return s;
    size_t local = cld_row_local(q, x->n_cols, 256);
    cld_row_options(q, o, COUNT(o), local, "", options);
    return CLD_RUN(q, (&(struct cld_kernel_spec){"scatter.cl", "scatter_rows", options, local}),
                   x->n_rows, err, CLD_MATRIX(x), CLD_VECTOR(index), CLD_MATRIX(y),
                   CLD_U64(y->n_rows), CLD_U64(x->n_rows), CLD_U64(x->n_cols));
}

enum cld_status cld_fill(struct cld_queue *q, const struct cld_tensor *t, float value,
                         struct cld_error *err)
{
    char options[cld_options_bytes];
    const struct cld_operand o = {t, CLD_BY_ROWS, "T", 0};
    const bool fit = true; /* any shape */
    enum cld_status s = cld_operands_check("fill", &o, 1, fit, err);
    if (s)
        return s;
    struct cld_elements e = cld_elements(q, &o, 1);
    cld_row_options(q, &o, 1, e.local, e.extra, options);
    return CLD_RUN(q, (&(struct cld_kernel_spec){"fill.cl", "fill", options, e.local}), e.n_groups,
                   err, CLD_MATRIX(t), CLD_U64(e.n_rows), CLD_U64(e.n_cols), CLD_FLOAT(value));
}

enum cld_status cld_fill_normal(struct cld_queue *q, const struct cld_tensor *t, uint64_t seed,
                                uint64_t stream, float std, struct cld_error *err)
{
    char options[cld_options_bytes];
    const struct cld_operand o = {t, CLD_BY_ROWS, "T", 0};
    const bool fit = true; /* any shape */
    enum cld_status s = cld_operands_check("fill normal", &o, 1, fit, err);
    if (s)
        return s;
    uint64_t key = cld_random_u64(seed, CLD_RANDOM_INIT, stream, 0, 0);
    struct cld_elements e = cld_elements(q, &o, 1);
    cld_row_options(q, &o, 1, e.local, e.extra, options);
    return CLD_RUN(q, (&(struct cld_kernel_spec){"fill.cl", "fill_normal", options, e.local}),
                   e.n_groups, err, CLD_MATRIX(t), CLD_U64(e.n_rows), CLD_U64(e.n_cols),
                   CLD_I32(key), CLD_I32(key >> 32), CLD_FLOAT(std));
}
