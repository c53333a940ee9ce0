/* op_norm.c - RMSNorm over rows; per-head RMSNorm with rotary embedding. */
#include "ops/ops.h"

#include <stdio.h>

#include "ops/op_rows.h"
#include "ops/tunable_kernel.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* Runs of rows whose weight gradients are summed one by one: a constant of family and width, so
 * that the sum does not depend on how many groups the device runs. A GPU needs hundreds of groups
 * to be busy, but what they leave to add up is written and read again: fewer do where rows are
 * wide, because a group then has more loads under way. */
static size_t max_parts(const struct cld_queue *q, size_t n_cols)
{
    if (cld_queue_class(q) == CLD_CLASS_CPU)
        return 64;
    return cld_min(1024, cld_max(256, ((size_t)1 << 19) / cld_max(n_cols, 1)));
}

/* Tuned parameters of RMSNorm, in the order of the table below; the first three are the GPU
 * family's. A group has two rows forward: the second loads during the first. */
enum { p_forward, p_rows, p_backward, p_parts };

/* The same of head norms. A group has two pieces forward, for the same reason. */
enum { h_forward = p_forward, h_pieces, h_backward = p_backward, h_parts };

static struct cld_tuned_row defaults(const struct cld_device_info *d)
{
    (void)d;
    return (struct cld_tuned_row){
        {[p_forward] = 128, [p_rows] = 2, [p_backward] = 256, [p_parts] = 0}};
}

static struct cld_tuned_row head_defaults(const struct cld_device_info *d)
{
    (void)d;
    return (struct cld_tuned_row){
        {[h_forward] = 64, [h_pieces] = 2, [h_backward] = 256, [h_parts] = 0}};
}

/* Of both families, whose parameters stand in the same order. */
static const char *judge(const struct cld_device_info *d, const struct cld_tuned_row *row,
                         struct cld_tuned_row standard, const char *on_cpu, char *to,
                         size_t n_bytes)
{
    for (size_t i = p_forward; i <= p_backward && d->class == CLD_CLASS_CPU; i++)
        if (row->v[i] != standard.v[i])
            return on_cpu;
    return cld_group_objection(d, cld_max(row->v[p_forward], row->v[p_backward]), to, n_bytes);
}

static const char *objection(const struct cld_device_info *d, const struct cld_tuned_row *row,
                             char *to, size_t n_bytes)
{
    return judge(d, row, defaults(d), "groups of the CPU family have one work-item, and a row each",
                 to, n_bytes);
}

static const char *head_objection(const struct cld_device_info *d, const struct cld_tuned_row *row,
                                  char *to, size_t n_bytes)
{
    return judge(d, row, head_defaults(d),
                 "groups of the CPU family have one work-item, and a head each", to, n_bytes);
}

static bool works(const struct cld_queue *q)
{
    (void)q;
    return true;
}

const struct cld_tunable_kernel cld_tuned_rmsnorm =
    {.id = CLD_TUNED_RMSNORM,
     .name = "rmsnorm",
     .what = "RMSNorm, forward and backward",
     .files = {"rmsnorm.cl", "column_sum.cl"},
     .classes = {"fp32", "bf16"}, /* of what is normed */
     .params =
         {[p_forward] = {"forward", "work-items", {32, 64, 128, 256}, 4, "of a group, at most"},
          [p_rows] = {"rows", "rows", {1, 2, 4, 8}, 4, "of a group, forward"},
          [p_backward] = {"backward", "work-items", {64, 128, 256, 512}, 4, "of a group, at most"},
          [p_parts] = {"parts",
                       "runs of rows",
                       {0, 32, 64, 128, 256, 512, 1024},
                       7,
                       "whose gradients of weights are added up; 0: by width and family"}},
     .n_params = 4,
     .defaults = defaults,
     .objection = objection,
     .works = works};

const struct cld_tunable_kernel cld_tuned_qknorm_rope =
    {.id = CLD_TUNED_QKNORM_ROPE,
     .name = "qknorm_rope",
     .what = "norms of heads with rotary embedding, forward and backward",
     .files = {"qknorm_rope.cl", "column_sum.cl"},
     .classes = {"fp32", "bf16"}, /* of what is rotated */
     .params =
         {[h_forward] = {"forward", "work-items", {32, 64, 128, 256}, 4, "of a group, at most"},
          [h_pieces] = {"pieces", "blocks of heads", {1, 2, 3, 4, 8}, 5, "of a group, forward"},
          [h_backward] = {"backward", "work-items", {64, 128, 256, 512}, 4, "of a group, at most"},
          [h_parts] = {"parts",
                       "runs of pieces",
                       {0, 32, 64, 128, 256, 512, 1024},
                       7,
                       "whose gradients of weights are added up; 0: by groups and family"}},
     .n_params = 4,
     .defaults = head_defaults,
     .objection = head_objection,
     .works = works};

static const struct cld_tuned_row *row_of(const struct cld_queue *q, const struct cld_tensor *x)
{
    return cld_queue_row(q, &cld_tuned_rmsnorm, x->type == CLD_BF16);
}

/* Runs of rows of RMSNorm itself. */
static size_t rmsnorm_parts(const struct cld_queue *q, const struct cld_tuned_row *row,
                            size_t n_cols)
{
    return row->v[p_parts] ? row->v[p_parts] : max_parts(q, n_cols);
}

/* Elements from one row of partial sums to the next: keeps rows at multiples of 16 bytes. */
static size_t part_stride(size_t n_cols)
{
    return cld_round_up(n_cols, 8);
}

size_t cld_norm_scratch_bytes(const struct cld_queue *q, size_t n_cols)
{
    size_t most = max_parts(q, n_cols);
    for (size_t c = 0; c < cld_tuned_n_classes(&cld_tuned_rmsnorm); c++)
        most = cld_max(most, cld_queue_row(q, &cld_tuned_rmsnorm, c)->v[p_parts]);
    for (size_t c = 0; c < cld_tuned_n_classes(&cld_tuned_qknorm_rope); c++)
        most = cld_max(most, cld_queue_row(q, &cld_tuned_qknorm_rope, c)->v[h_parts]);
    return cld_mul3(most, part_stride(n_cols), sizeof(float));
}

static bool scratch_fits(const struct cld_queue *q, const struct cld_buf *scratch, size_t n_cols)
{
    return scratch && cld_buf_bytes(scratch) >= cld_norm_scratch_bytes(q, n_cols);
}

/* dw += the sum of the n_parts rows in scratch. */
static enum cld_status add_parts(struct cld_queue *q, const struct cld_buf *scratch, size_t n_parts,
                                 const struct cld_tensor *dw, struct cld_error *err)
{
    char options[cld_options_bytes];
    bool cpu = cld_queue_class(q) == CLD_CLASS_CPU;
    size_t local = cld_row_local(q, SIZE_MAX, 256), strip = cpu ? 16 : cld_min(local, 8);
    cld_row_options(q, NULL, 0, local, "", options);
    return CLD_RUN(q, (&(struct cld_kernel_spec){"column_sum.cl", "column_sum", options, local}),
                   n_parts ? cld_div_up(dw->n_cols, strip) : 0, err, CLD_BUF(scratch),
                   CLD_U64(part_stride(dw->n_cols)), CLD_U64(n_parts), CLD_VECTOR(dw),
                   CLD_U64(dw->n_cols));
}

enum cld_status cld_rmsnorm_forward(struct cld_queue *q, const struct cld_tensor *x,
                                    const struct cld_tensor *w, float eps,
                                    const struct cld_tensor *y, const struct cld_tensor *rstd,
                                    struct cld_error *err)
{
    char options[cld_options_bytes], extra[48];
    const struct cld_operand o[] = {{x, CLD_BY_ROWS, "X", 0},
                                    {w, CLD_FLAT, "W", 0},
                                    {y, CLD_BY_ROWS, "Y", 0},
                                    {rstd, CLD_BY_ELEMENT, NULL, CLD_F32}};
    bool fit = x->n_cols > 0 && cld_same_shape(x, y) && cld_is_vector(w, x->n_cols) &&
               (!rstd || cld_is_vector(rstd, x->n_rows));
    enum cld_status s = cld_operands_check("rmsnorm", o, COUNT(o), fit, err);
    if (s)
        return s;
    size_t local = cld_row_local(q, x->n_cols, row_of(q, x)->v[p_forward]);
    cld_held_options(q, x->n_cols, local, extra, sizeof extra);
    cld_row_options(q, o, COUNT(o), local, extra, options);
    return CLD_RUN(q, (&(struct cld_kernel_spec){"rmsnorm.cl", "rmsnorm_forward", options, local}),
                   cld_div_up(x->n_rows, local > 1 ? row_of(q, x)->v[p_rows] : 1), err,
                   CLD_MATRIX(x), CLD_VECTOR(w), CLD_MATRIX(y), CLD_VECTOR(rstd),
                   CLD_U64(x->n_rows), CLD_U64(x->n_cols), CLD_FLOAT(eps));
}

enum cld_status cld_rmsnorm_backward(struct cld_queue *q, const struct cld_tensor *x,
                                     const struct cld_tensor *w, const struct cld_tensor *rstd,
                                     const struct cld_tensor *dy, const struct cld_tensor *residual,
                                     const struct cld_tensor *dx, const struct cld_tensor *dw,
                                     struct cld_buf *scratch, struct cld_error *err)
{
    char options[cld_options_bytes], extra[48];
    const struct cld_operand o[] = {{x, CLD_BY_ROWS, "X", 0},
                                    {w, CLD_FLAT, "W", 0},
                                    {rstd, CLD_BY_ELEMENT, NULL, CLD_F32},
                                    {dy, CLD_BY_ROWS, "DY", 0},
                                    {residual, CLD_BY_ROWS, "R", 0},
                                    {dx, CLD_BY_ROWS, "DX", 0},
                                    {dw, CLD_BY_ELEMENT, NULL, CLD_F32}};
    size_t c = x->n_cols, n_parts = cld_min(x->n_rows, rmsnorm_parts(q, row_of(q, x), c));
    bool fit = c > 0 && cld_same_shape(x, dy) && cld_same_shape(x, dx) && cld_is_vector(w, c) &&
               cld_is_vector(rstd, x->n_rows) && cld_is_vector(dw, c) &&
               (!residual || cld_same_shape(x, residual)) && scratch_fits(q, scratch, c);
    enum cld_status s = cld_operands_check("rmsnorm backward", o, COUNT(o), fit, err);
    if (s)
        return s;
    size_t local = cld_row_local(q, c, row_of(q, x)->v[p_backward]);
    cld_held_options(q, c, local, extra, sizeof extra);
    cld_row_options(q, o, COUNT(o), local, extra, options);
    if ((s = CLD_RUN(q,
                     (&(struct cld_kernel_spec){"rmsnorm.cl", "rmsnorm_backward", options, local}),
                     n_parts, err, CLD_MATRIX(x), CLD_VECTOR(w), CLD_VECTOR(rstd), CLD_MATRIX(dy),
                     CLD_MATRIX(residual), CLD_MATRIX(dx), CLD_BUF(scratch),
                     CLD_U64(part_stride(c)), CLD_U64(n_parts), CLD_U64(x->n_rows), CLD_U64(c))))
        return s;
    return add_parts(q, scratch, n_parts, dw, err);
}

static const struct cld_tuned_row *head_row_of(const struct cld_queue *q,
                                               const struct cld_tensor *transposed)
{
    return cld_queue_row(q, &cld_tuned_qknorm_rope, transposed->type == CLD_BF16);
}

/* The same of a head norm's weight; by default, for groups of `local` work-items, what two groups
 * of 256 on each multiprocessor of a large GPU are. More hide no more latency, since a group asks
 * early for what is next, and leave more to add up. */
static size_t n_head_parts(const struct cld_queue *q, const struct cld_tuned_row *row,
                           size_t head_dim, size_t local)
{
    return row->v[h_parts] ? row->v[h_parts]
                           : cld_min(cld_max(1, 264 * 256 / local), max_parts(q, head_dim));
}

/* How heads are divided among groups: cl/qknorm_rope.cl. A group of the GPU family has at
 * most max_items work-items, fewer if a row has fewer heads. */
struct rope_work {
    size_t local, n_pieces;
    char options[cld_options_bytes];
};

static struct rope_work rope_work(const struct cld_queue *q, const struct cld_operand *o, size_t n,
                                  size_t n_rows, size_t n_heads, size_t half, bool norm,
                                  size_t max_items)
{
    struct rope_work w = {cld_row_local(q, SIZE_MAX, max_items), cld_mul(n_rows, n_heads), ""};
    char extra[96];
    if (w.local == 1) {
        snprintf(extra, sizeof extra, "-DNORM=%d", norm);
    } else {
        size_t lph = cld_div_up(half, 8);
        while (w.local > 32 && w.local / 2 / lph >= n_heads)
            w.local /= 2;
        size_t block = w.local / lph;
        size_t n_blocks = cld_div_up(n_heads, block);
        bool exact = half % 8 == 0 && w.local % lph == 0 && n_heads % block == 0;
        w.n_pieces = cld_mul(n_rows, n_blocks);
        snprintf(extra, sizeof extra, "-DNORM=%d -DLPH=%zu -DN_BLOCKS=%zu -DEXACT=%d%s", norm, lph,
                 n_blocks, exact, half % 8 ? " -DODD_HALF=1" : "");
    }
    cld_row_options(q, o, n, w.local, extra, w.options);
    return w;
}

static bool heads_fit(const struct cld_tensor *x, size_t head_dim, const struct cld_tensor *w,
                      const struct cld_tensor *positions, const struct cld_tensor *table)
{
    return head_dim && head_dim % 8 == 0 && head_dim <= 256 && x->n_cols % head_dim == 0 &&
           x->n_cols > 0 && cld_mul(x->n_rows, x->n_cols / head_dim) < UINT32_MAX / 2 &&
           cld_is_vector(positions, x->n_rows) && table->n_cols == head_dim && table->n_rows > 0 &&
           (!w || cld_is_vector(w, head_dim));
}

enum cld_status cld_qknorm_rope_forward(struct cld_queue *q, const struct cld_tensor *x,
                                        const struct cld_tensor *w, float eps, size_t head_dim,
                                        const struct cld_tensor *positions,
                                        const struct cld_tensor *table, const struct cld_tensor *y,
                                        const struct cld_tensor *rstd, struct cld_error *err)
{
    const struct cld_operand o[] = {{x, CLD_BY_ROWS, "X", 0},
                                    {w, CLD_FLAT, "W", 0},
                                    {positions, CLD_BY_ELEMENT, NULL, CLD_I32},
                                    {table, CLD_BY_ROWS, NULL, CLD_F32},
                                    {y, CLD_BY_ROWS, "Y", 0},
                                    {rstd, CLD_BY_ELEMENT, NULL, CLD_F32}};
    bool fit = heads_fit(x, head_dim, w, positions, table) && cld_same_shape(x, y) &&
               (!rstd || (rstd->n_rows == x->n_rows && rstd->n_cols == x->n_cols / head_dim));
    enum cld_status s = cld_operands_check("qknorm-rope", o, COUNT(o), fit, err);
    if (s)
        return s;
    size_t n_heads = x->n_cols / head_dim;
    const struct cld_tuned_row *row = head_row_of(q, x);
    struct rope_work work =
        rope_work(q, o, COUNT(o), x->n_rows, n_heads, head_dim / 2, w, row->v[h_forward]);
    return CLD_RUN(q,
                   (&(struct cld_kernel_spec){"qknorm_rope.cl", "qknorm_rope_forward", work.options,
                                              work.local}),
                   cld_div_up(work.n_pieces, work.local > 1 ? row->v[h_pieces] : 1), err,
                   CLD_MATRIX(x), CLD_VECTOR(w), CLD_VECTOR(positions), CLD_MATRIX(table),
                   CLD_MATRIX(y), CLD_MATRIX(rstd), CLD_U64(x->n_rows), CLD_I32(n_heads),
                   CLD_I32(head_dim / 2), CLD_U64(table->n_rows), CLD_FLOAT(eps));
}

enum cld_status cld_qknorm_rope_backward(struct cld_queue *q, const struct cld_tensor *x,
                                         const struct cld_tensor *w, size_t head_dim,
                                         const struct cld_tensor *positions,
                                         const struct cld_tensor *table,
                                         const struct cld_tensor *rstd, const struct cld_tensor *dy,
                                         const struct cld_tensor *dx, const struct cld_tensor *dw,
                                         struct cld_buf *scratch, struct cld_error *err)
{
    const struct cld_operand o[] = {{x, CLD_BY_ROWS, "X", 0},
                                    {w, CLD_FLAT, "W", 0},
                                    {positions, CLD_BY_ELEMENT, NULL, CLD_I32},
                                    {table, CLD_BY_ROWS, NULL, CLD_F32},
                                    {rstd, CLD_BY_ELEMENT, NULL, CLD_F32},
                                    {dy, CLD_BY_ROWS, "DY", 0},
                                    {dx, CLD_BY_ROWS, "DX", 0},
                                    {dw, CLD_BY_ELEMENT, NULL, CLD_F32}};
    bool fit = heads_fit(dy, head_dim, w, positions, table) && cld_same_shape(dy, dx) &&
               (!w || (x && cld_same_shape(x, dy) && rstd && rstd->n_rows == x->n_rows &&
                       rstd->n_cols == x->n_cols / head_dim && dw && cld_is_vector(dw, head_dim) &&
                       scratch_fits(q, scratch, head_dim)));
    enum cld_status s = cld_operands_check("qknorm-rope backward", o, COUNT(o), fit, err);
    if (s)
        return s;
    size_t n_heads = dy->n_cols / head_dim;
    const struct cld_tuned_row *row = head_row_of(q, dy);
    struct rope_work work =
        rope_work(q, o, COUNT(o), dy->n_rows, n_heads, head_dim / 2, w, row->v[h_backward]);
    size_t n_parts = cld_min(work.n_pieces, n_head_parts(q, row, head_dim, work.local));
    if ((s = CLD_RUN(q,
                     (&(struct cld_kernel_spec){"qknorm_rope.cl", "qknorm_rope_backward",
                                                work.options, work.local}),
                     n_parts, err, CLD_MATRIX(x), CLD_VECTOR(w), CLD_VECTOR(positions),
                     CLD_MATRIX(table), CLD_MATRIX(rstd), CLD_MATRIX(dy), CLD_MATRIX(dx),
                     CLD_BUF(scratch), CLD_U64(n_parts), CLD_U64(dy->n_rows), CLD_I32(n_heads),
                     CLD_I32(head_dim / 2), CLD_U64(table->n_rows))))
        return s;
    return w ? add_parts(q, scratch, n_parts, dw, err) : CLD_OK;
}
