#include "ops/op_objective.h"

#include "ops/op_rows.h"
#include "ops/ops.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

enum cld_status cld_dpace_weights(struct cld_queue *q, const struct cld_tensor *place,
                                  const struct cld_tensor *loss, size_t block_size, float alpha,
                                  float scale, const struct cld_tensor *weights,
                                  struct cld_error *err)
{
    char options[cld_options_bytes];
    const struct cld_operand o[] = {{place, CLD_BY_ELEMENT, NULL, CLD_I32},
                                    {loss, CLD_BY_ELEMENT, NULL, CLD_F32},
                                    {weights, CLD_BY_ELEMENT, NULL, CLD_F32}};
    bool fit = block_size > 0 && place->n_cols % cld_max(1, block_size) == 0 &&
               cld_is_vector(place, place->n_cols) && cld_is_vector(loss, loss->n_cols) &&
               cld_is_vector(weights, loss->n_cols);
    enum cld_status s = cld_operands_check("weights of D-PACE", o, COUNT(o), fit, err);
    if (s)
        return s;
    size_t local = cld_min(cld_row_local(q, 512, 64), 64), n = place->n_cols / block_size;
    cld_row_options(q, o, COUNT(o), local, "", options);
    return CLD_RUN(q, (&(struct cld_kernel_spec){"dpace.cl", "dpace_weights", options, local}),
                   cld_div_up(n, local), err, CLD_VECTOR(place), CLD_VECTOR(loss),
                   CLD_VECTOR(weights), CLD_U64(n), CLD_U64(block_size), CLD_FLOAT(alpha),
                   CLD_FLOAT(scale));
}

static enum cld_status sum_rows(struct cld_queue *q, const struct cld_tensor *x,
                                const struct cld_tensor *sums, float temperature,
                                struct cld_error *err)
{
    char options[cld_options_bytes];
    const struct cld_operand o[] = {{x, CLD_BY_ROWS, "Z", 0},
                                    {sums, CLD_BY_ELEMENT, NULL, CLD_F32}};
    size_t local = cld_row_local(q, x->n_cols, 512);
    cld_row_options(q, o, COUNT(o), local, "", options);
    return CLD_RUN(q, (&(struct cld_kernel_spec){"soft_targets.cl", "soft_sums", options, local}),
                   x->n_rows, err, CLD_MATRIX(x), CLD_VECTOR(sums), CLD_U64(x->n_rows),
                   CLD_U64(x->n_cols), CLD_FLOAT(1 / temperature));
}

enum cld_status cld_soft_targets(struct cld_queue *q, const struct cld_soft_targets *c,
                                 struct cld_error *err)
{
    char options[cld_options_bytes];
    const struct cld_tensor *z = c->logits, *g = c->gradient;
    const struct cld_operand o[] = {{z, CLD_BY_ROWS, "Z", 0},
                                    {g ? g : z, CLD_BY_ROWS, "DZ", 0},
                                    {c->targets, CLD_BY_ROWS, NULL, z->type},
                                    {c->labels, CLD_BY_ELEMENT, NULL, CLD_I32},
                                    {c->weights, CLD_BY_ELEMENT, NULL, CLD_F32},
                                    {c->loss, CLD_BY_ELEMENT, NULL, CLD_F32},
                                    {c->hit, CLD_BY_ELEMENT, NULL, CLD_I32},
                                    {c->sums, CLD_BY_ELEMENT, NULL, CLD_F32}};
    size_t n = z->n_rows;
    bool fit = z->n_cols > 0 && z->n_cols < (size_t)1 << 24 && cld_same_shape(c->targets, z) &&
               (!g || cld_same_shape(g, z)) && cld_is_vector(c->labels, n) &&
               cld_is_vector(c->weights, n) && cld_is_vector(c->loss, n) &&
               cld_is_vector(c->hit, n) && c->sums->n_rows == 2 * n &&
               c->sums->n_cols == CLD_SOFT_SUMS && c->sums->ld == CLD_SOFT_SUMS &&
               c->temperature > 0;
    enum cld_status s = cld_operands_check("soft targets", o, COUNT(o), fit, err);
    if (s)
        return s;
    const struct cld_tensor sums[2] = {cld_tensor_rows(c->sums, 0, n),
                                       cld_tensor_rows(c->sums, n, n)};
    const struct cld_tensor *of_z = sums, *of_t = sums + 1;
    size_t local = cld_row_local(q, z->n_cols, 512);
    cld_row_options(q, o, COUNT(o), local, "", options);
    if ((s = sum_rows(q, z, of_z, c->temperature, err)) ||
        (s = sum_rows(q, c->targets, of_t, c->temperature, err)))
        return s;
    return CLD_RUN(q,
                   (&(struct cld_kernel_spec){"soft_targets.cl", "soft_targets", options, local}),
                   n, err, CLD_MATRIX(z), CLD_MATRIX(c->targets), CLD_MATRIX(g), CLD_VECTOR(of_z),
                   CLD_VECTOR(of_t), CLD_VECTOR(c->labels), CLD_VECTOR(c->weights),
                   CLD_VECTOR(c->loss), CLD_VECTOR(c->hit), CLD_U64(n), CLD_U64(z->n_cols),
                   CLD_FLOAT(c->share), CLD_FLOAT(c->temperature), CLD_FLOAT(1 / c->temperature));
}

/* Rows [first, first + n). */
static enum cld_status run_chunk(struct cld_queue *q, const struct cld_soft_loss *l, size_t first,
                                 size_t n, struct cld_buf *scratch, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_head_loss *h = &l->head;
    struct cld_tensor z = cld_tensor_rows(h->z, first, n);
    struct cld_tensor logits = cld_tensor_rows(h->logits, 0, n);
    struct cld_tensor targets = cld_tensor_rows(l->targets, 0, n);
    struct cld_tensor rows = cld_tensor_rows(l->rows, 0, n), y = cld_tensor_rows(l->normed, 0, n);
    struct cld_tensor sums = cld_tensor_rows(l->sums, 0, 2 * n);
    struct cld_tensor before = cld_tensor_cols(l->before, first, n);
    struct cld_tensor labels = cld_tensor_cols(h->labels, first, n);
    struct cld_tensor weights = cld_tensor_cols(h->weights, first, n);
    struct cld_tensor loss = cld_tensor_cols(h->loss, first, n);
    struct cld_tensor hit = cld_tensor_cols(h->hit, first, n);
    struct cld_tensor d_logits = cld_tensor_rows(h->d_logits, 0, n);
    struct cld_tensor dz = cld_tensor_rows(h->dz, first, n);
    const struct cld_soft_targets soft = {.logits = &logits,
                                          .targets = &targets,
                                          .labels = &labels,
                                          .weights = &weights,
                                          .loss = &loss,
                                          .hit = &hit,
                                          .gradient = &d_logits,
                                          .sums = &sums,
                                          .share = l->share,
                                          .temperature = l->temperature};
    const struct cld_gemm back = {
        .kind = CLD_GEMM_NN, .backend = h->gemm, .a = &d_logits, .b = h->head, .c = &dz};
    if ((s = cld_gather_rows(q, l->state, &before, &rows, err)) ||
        (s = cld_rmsnorm_forward(q, &rows, l->norm, l->norm_eps, &y, NULL, err)) ||
        (s = cld_head_logits(q, h, &y, &targets, scratch, err)) ||
        (s = cld_head_logits(q, h, &z, &logits, scratch, err)) ||
        (s = cld_soft_targets(q, &soft, err)))
        return s;
    return cld_gemm(q, &back, scratch, err);
}

enum cld_status cld_soft_loss(struct cld_queue *q, const struct cld_soft_loss *l,
                              struct cld_buf *scratch, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = l->head.z->n_rows, chunk = l->head.logits->n_rows;
    for (size_t at = 0; at < n && !s; at += chunk)
        s = run_chunk(q, l, at, cld_min(chunk, n - at), scratch, err);
    return s;
}
