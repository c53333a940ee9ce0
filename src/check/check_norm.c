/* check_norm.c - checks of RMSNorm and of per-head RMSNorm with rotary embedding. */
#include "check/check_ops.h"

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "ops/ops.h"

static const float eps = 1e-6f;

/* --- RMSNorm -----------------------------------------------------------------------------------
 */

enum residual { NO_RESIDUAL, RESIDUAL, RESIDUAL_IN_PLACE };

struct rms_case {
    size_t n, c, pad, skew;
    double scale;
    enum residual residual;
    bool small_gradients; /* gradients in the storage of the run, not in F32 */
};

struct rms {
    const struct rms_case *k;
    struct cld_check_tensor *x, *w, *y, *rstd, *dy, *residual, *dx, *dw;
    struct cld_buf *scratch;
};

/* y and rstd unless NULL; returns sum(dy * y) where dy is given. */
static double rms_reference(const struct rms *r, const double *x, const double *w, double *y,
                            double *rstd)
{
    double loss = 0;
    for (size_t i = 0; i < r->k->n; i++) {
        const double *xi = x + i * r->k->c;
        double squares = 0;
        for (size_t j = 0; j < r->k->c; j++)
            squares += xi[j] * xi[j];
        double scale = 1 / sqrt(squares / (double)r->k->c + eps);
        for (size_t j = 0; j < r->k->c; j++) {
            double v = xi[j] * scale * w[j];
            if (y)
                y[i * r->k->c + j] = v;
            if (r->dy)
                loss += v * r->dy->value[i * r->k->c + j];
        }
        if (rstd)
            rstd[i] = scale;
    }
    return loss;
}

static double rms_loss_of_x(const double *x, const void *arg)
{
    const struct rms *r = arg;
    return rms_reference(r, x, r->w->value, NULL, NULL);
}

static double rms_loss_of_w(const double *w, const void *arg)
{
    const struct rms *r = arg;
    return rms_reference(r, r->x->value, w, NULL, NULL);
}

static void rms_reference_back(const struct rms *r, const double *rstd, double *dx, double *dw)
{
    size_t c = r->k->c;
    for (size_t i = 0; i < r->k->n; i++) {
        const double *x = r->x->value + i * c, *dy = r->dy->value + i * c, *w = r->w->value;
        double mean = 0;
        for (size_t j = 0; j < c; j++) {
            mean += dy[j] * w[j] * x[j] * rstd[i] / (double)c;
            dw[j] += dy[j] * x[j] * rstd[i];
        }
        for (size_t j = 0; j < c; j++)
            dx[i * c + j] = rstd[i] * (dy[j] * w[j] - x[j] * rstd[i] * mean);
    }
}

static enum cld_status run_rms_forward(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct rms *r = arg;
    return cld_rmsnorm_forward(c->q, &r->x->t, &r->w->t, eps, &r->y->t, &r->rstd->t, err);
}

static enum cld_status run_rms_forward_only(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct rms *r = arg;
    return cld_rmsnorm_forward(c->q, &r->x->t, &r->w->t, eps, &r->y->t, NULL, err);
}

static enum cld_status run_rms_backward(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct rms *r = arg;
    return cld_rmsnorm_backward(c->q, &r->x->t, &r->w->t, &r->rstd->t, &r->dy->t,
                                r->residual ? &r->residual->t : NULL, &r->dx->t, &r->dw->t,
                                r->scratch, err);
}

/* Begins a case with its x and w. Vectors keep whole alignment or lose it with the skew. */
static enum cld_status rms_begin(struct cld_check *c, const char *what, const struct rms_case *k,
                                 struct rms *r, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    *r = (struct rms){.k = k};
    cld_check_begin(c, "rmsnorm %s n=%zu c=%zu ld=+%zu skew=%zu scale=%g%s%s", what, k->n, k->c,
                    k->pad, k->skew, k->scale,
                    k->residual == NO_RESIDUAL ? ""
                    : k->residual == RESIDUAL  ? " residual"
                                               : " in-place",
                    k->small_gradients ? " small-gradients" : "");
    c->pad = k->pad;
    c->skew = k->skew;
    if (c->skip || (s = cld_check_input(c, "x", c->storage, k->n, k->c, k->scale, &r->x, err)))
        return s;
    return cld_check_input(c, "w", c->storage, 1, k->c, 1, &r->w, err);
}

static enum cld_status rms_forward_case(struct cld_check *c, const struct rms_case *k,
                                        struct cld_error *err)
{
    struct rms r;
    double *y, *rstd;
    enum cld_status s = rms_begin(c, "forward", k, &r, err);
    if (s || c->skip || (s = cld_check_output(c, "y", c->storage, k->n, k->c, &r.y, err)) ||
        (s = cld_check_output(c, "rstd", CLD_F32, 1, k->n, &r.rstd, err)) ||
        (s = cld_check_doubles(c, k->n * k->c, &y, err)) ||
        (s = cld_check_doubles(c, k->n, &rstd, err)))
        return s;
    rms_reference(&r, r.x->value, r.w->value, y, rstd);
    if ((s = cld_check_twice(c, run_rms_forward, &r, err)) ||
        (s = cld_check_compare(c, r.y, y, cld_check_bound_of(c->storage), err)) ||
        (s = cld_check_compare(c, r.rstd, rstd, CLD_BOUND_F32, err)))
        return s;
    r.rstd->output = false; /* without it: y is the same and rstd stays untouched */
    if ((s = cld_check_twice(c, run_rms_forward_only, &r, err)) ||
        (s = cld_check_compare(c, r.y, y, cld_check_bound_of(c->storage), err)))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

static enum cld_status rms_backward_case(struct cld_check *c, const struct rms_case *k,
                                         struct cld_error *err)
{
    struct rms r;
    double *rstd, *dx, *dw;
    enum cld_dtype grads = k->small_gradients ? c->storage : CLD_F32;
    enum cld_status s = rms_begin(c, "backward", k, &r, err);
    if (s || c->skip || (s = cld_check_doubles(c, k->n, &rstd, err)) ||
        (s = cld_check_doubles(c, k->n * k->c, &dx, err)) ||
        (s = cld_check_doubles(c, k->c, &dw, err)) ||
        (s = cld_check_input(c, "dy", grads, k->n, k->c, 0.1, &r.dy, err)))
        return s;
    rms_reference(&r, r.x->value, r.w->value, NULL, rstd);
    if ((s = cld_check_values(c, "rstd", CLD_F32, 1, k->n, rstd, &r.rstd, err)) ||
        (s = cld_check_input(c, "dw", CLD_F32, 1, k->c, 1, &r.dw, err)))
        return s;
    rms_reference_back(&r, rstd, dx, dw);
    if ((s = cld_check_gradient(c, "x", rms_loss_of_x, &r, r.x->value, k->n * k->c, dx, err)) ||
        (s = cld_check_gradient(c, "w", rms_loss_of_w, &r, r.w->value, k->c, dw, err)))
        return s;
    if (k->residual) {
        if ((s = cld_check_input(c, "residual", grads, k->n, k->c, 1 / k->scale, &r.residual, err)))
            return s;
        for (size_t i = 0; i < k->n * k->c; i++)
            dx[i] += r.residual->value[i];
    }
    if (k->residual == RESIDUAL_IN_PLACE)
        r.dx = r.residual;
    else if ((s = cld_check_output(c, "dx", grads, k->n, k->c, &r.dx, err)))
        return s;
    r.dx->output = r.dw->output = true;
    for (size_t j = 0; j < k->c; j++)
        dw[j] += r.dw->value[j];
    if ((s = cld_check_scratch(c, cld_norm_scratch_bytes(c->q, k->c), &r.scratch, err)) ||
        (s = cld_check_twice(c, run_rms_backward, &r, err)) ||
        (s = cld_check_compare(c, r.dx, dx, cld_check_gradient_bound(grads), err)) ||
        (s = cld_check_compare(c, r.dw, dw, CLD_BOUND_F32_GRAD, err)))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

static enum cld_status check_rms(struct cld_check *c, struct cld_error *err)
{
    static const struct rms_case cases[] = {
        {0, 24, 0, 0, 1, RESIDUAL, false},
        {1, 1, 0, 0, 1, RESIDUAL, false},
        {3, 7, 2, 1, 1, RESIDUAL, false},
        {15, 16, 0, 0, 1e-3, RESIDUAL_IN_PLACE, false}, /* epsilon weighs */
        {131, 17, 7, 0, 1e3, RESIDUAL, false},
        {600, 24, 8, 0, 1, RESIDUAL_IN_PLACE, false}, /* more rows than partial sums */
        {31, 1031, 1, 0, 1, RESIDUAL, false},
        {5, 4104, 16, 0, 1, RESIDUAL, false},
        {19, 136, 8, 0, 1, RESIDUAL, true},
        {1024, 2048, 0, 0, 1, RESIDUAL, true}, /* timed */
    };
    enum { n = sizeof cases / sizeof *cases };
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < n && !s; i++)
        if (cld_check_takes(c, i + 1 == n) && !(s = rms_forward_case(c, &cases[i], err)))
            s = rms_backward_case(c, &cases[i], err);
    return s;
}

enum cld_status cld_check_rmsnorm(struct cld_check *c, struct cld_error *err)
{
    return check_rms(c, err);
}

/* --- per-head RMSNorm and rotary embedding ------------------------------------------------------
 */

struct rope_case {
    size_t n, n_heads, head_dim, pad, skew;
    double scale;
    bool norm, in_place, small_gradients;
};

struct rope {
    const struct rope_case *k;
    struct cld_check_tensor *x, *w, *positions, *table, *y, *rstd, *dy, *dx, *dw;
    struct cld_buf *scratch;
};

enum { n_positions = 23 };

static double rope_reference(const struct rope *r, const double *x, const double *w, double *y,
                             double *rstd)
{
    size_t d = r->k->head_dim, half = d / 2;
    double loss = 0;
    for (size_t i = 0; i < r->k->n * r->k->n_heads; i++) {
        const double *xi = x + i * d;
        const double *transpose =
            r->table->value + (size_t)r->positions->value[i / r->k->n_heads] * d;
        double squares = 0, scale = 1;
        for (size_t j = 0; j < d; j++)
            squares += xi[j] * xi[j];
        if (w)
            scale = 1 / sqrt(squares / (double)d + eps);
        for (size_t j = 0; j < half; j++) {
            double a = xi[j] * scale * (w ? w[j] : 1);
            double b = xi[j + half] * scale * (w ? w[j + half] : 1);
            double v[2] = {a * transpose[j] - b * transpose[half + j],
                           b * transpose[j] + a * transpose[half + j]};
            for (size_t k = 0; k < 2; k++) {
                if (y)
                    y[i * d + k * half + j] = v[k];
                if (r->dy)
                    loss += v[k] * r->dy->value[i * d + k * half + j];
            }
        }
        if (rstd)
            rstd[i] = scale;
    }
    return loss;
}

static double rope_loss_of_x(const double *x, const void *arg)
{
    const struct rope *r = arg;
    return rope_reference(r, x, r->w ? r->w->value : NULL, NULL, NULL);
}

static double rope_loss_of_w(const double *w, const void *arg)
{
    const struct rope *r = arg;
    return rope_reference(r, r->x->value, w, NULL, NULL);
}

static void rope_reference_back(const struct rope *r, const double *rstd, double *dx, double *dw)
{
    size_t d = r->k->head_dim, half = d / 2;
    for (size_t i = 0; i < r->k->n * r->k->n_heads; i++) {
        const double *x = r->x->value + i * d, *dy = r->dy->value + i * d;
        const double *transpose =
            r->table->value + (size_t)r->positions->value[i / r->k->n_heads] * d;
        double *g = dx + i * d, mean = 0;
        for (size_t j = 0; j < half; j++) {
            g[j] = dy[j] * transpose[j] + dy[j + half] * transpose[half + j];
            g[j + half] = dy[j + half] * transpose[j] - dy[j] * transpose[half + j];
        }
        if (!r->w)
            continue;
        for (size_t j = 0; j < d; j++) {
            dw[j] += g[j] * x[j] * rstd[i];
            g[j] *= r->w->value[j];
            mean += g[j] * x[j] * rstd[i] / (double)d;
        }
        for (size_t j = 0; j < d; j++)
            g[j] = rstd[i] * (g[j] - x[j] * rstd[i] * mean);
    }
}

static enum cld_status run_rope_forward(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct rope *r = arg;
    return cld_qknorm_rope_forward(c->q, &r->x->t, r->w ? &r->w->t : NULL, eps, r->k->head_dim,
                                   &r->positions->t, &r->table->t, &r->y->t,
                                   r->rstd ? &r->rstd->t : NULL, err);
}

static enum cld_status run_rope_backward(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct rope *r = arg;
    const struct rope_case *k = r->k;
    if (!k->norm)
        return cld_qknorm_rope_backward(c->q, NULL, NULL, k->head_dim, &r->positions->t,
                                        &r->table->t, NULL, &r->dy->t, &r->dx->t, NULL, NULL, err);
    return cld_qknorm_rope_backward(c->q, &r->x->t, &r->w->t, k->head_dim, &r->positions->t,
                                    &r->table->t, &r->rstd->t, &r->dy->t, &r->dx->t, &r->dw->t,
                                    r->scratch, err);
}

/* Begins a case with x, w, positions and the table of angles. */
static enum cld_status rope_begin(struct cld_check *c, const char *what, const struct rope_case *k,
                                  struct rope *r, struct cld_error *err)
{
    double *positions, *table;
    size_t d = k->head_dim;
    enum cld_status s = CLD_OK;
    *r = (struct rope){.k = k};
    cld_check_begin(c, "qknorm_rope %s n=%zu heads=%zu d=%zu ld=+%zu skew=%zu scale=%g%s%s%s", what,
                    k->n, k->n_heads, d, k->pad, k->skew, k->scale, k->norm ? "" : " no-norm",
                    k->in_place ? " in-place" : "", k->small_gradients ? " small-gradients" : "");
    c->pad = k->pad;
    c->skew = k->skew;
    if (c->skip || (s = cld_check_doubles(c, k->n, &positions, err)) ||
        (s = cld_check_doubles(c, n_positions * d, &table, err)) ||
        (s = cld_check_input(c, "x", c->storage, k->n, k->n_heads * d, k->scale, &r->x, err)) ||
        (k->norm && (s = cld_check_input(c, "w", c->storage, 1, d, 1, &r->w, err))))
        return s;
    for (size_t i = 0; i < k->n; i++)
        positions[i] = (double)cld_random_below(cld_random_u64(c->seed, CLD_RANDOM_TEST, 7, i, 0),
                                                n_positions);
    for (size_t i = 0; i < n_positions * d / 2; i++) {
        size_t p = i / (d / 2), j = i % (d / 2);
        double angle = (double)p * pow(1e4, -2.0 * (double)j / (double)d);
        table[p * d + j] = cos(angle);
        table[p * d + d / 2 + j] = sin(angle);
    }
    if ((s = cld_check_values(c, "positions", CLD_I32, 1, k->n, positions, &r->positions, err)))
        return s;
    return cld_check_values(c, "table", CLD_F32, n_positions, d, table, &r->table, err);
}

static enum cld_status rope_forward_case(struct cld_check *c, const struct rope_case *k,
                                         struct cld_error *err)
{
    struct rope r;
    double *y, *rstd;
    enum cld_status s = rope_begin(c, "forward", k, &r, err);
    if (s || c->skip || (s = cld_check_doubles(c, k->n * k->n_heads * k->head_dim, &y, err)) ||
        (s = cld_check_doubles(c, k->n * k->n_heads, &rstd, err)))
        return s;
    rope_reference(&r, r.x->value, r.w ? r.w->value : NULL, y, rstd);
    if (k->in_place)
        r.y = r.x;
    else if ((s = cld_check_output(c, "y", c->storage, k->n, k->n_heads * k->head_dim, &r.y, err)))
        return s;
    if (k->norm && (s = cld_check_output(c, "rstd", CLD_F32, k->n, k->n_heads, &r.rstd, err)))
        return s;
    r.y->output = true;
    if ((s = cld_check_twice(c, run_rope_forward, &r, err)) ||
        (s = cld_check_compare(c, r.y, y, cld_check_bound_of(c->storage), err)) ||
        (r.rstd && (s = cld_check_compare(c, r.rstd, rstd, CLD_BOUND_F32, err))))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

static enum cld_status rope_backward_case(struct cld_check *c, const struct rope_case *k,
                                          struct cld_error *err)
{
    struct rope r;
    double *rstd, *dx, *dw;
    size_t n = k->n * k->n_heads * k->head_dim;
    enum cld_dtype grads = k->small_gradients ? c->storage : CLD_F32;
    enum cld_status s = rope_begin(c, "backward", k, &r, err);
    if (s || c->skip || (s = cld_check_doubles(c, k->n * k->n_heads, &rstd, err)) ||
        (s = cld_check_doubles(c, n, &dx, err)) ||
        (s = cld_check_doubles(c, k->head_dim, &dw, err)) ||
        (s = cld_check_input(c, "dy", grads, k->n, k->n_heads * k->head_dim, 0.1, &r.dy, err)))
        return s;
    rope_reference(&r, r.x->value, r.w ? r.w->value : NULL, NULL, rstd);
    rope_reference_back(&r, rstd, dx, dw);
    if ((s = cld_check_gradient(c, "x", rope_loss_of_x, &r, r.x->value, n, dx, err)))
        return s;
    if (k->norm) {
        if ((s = cld_check_gradient(c, "w", rope_loss_of_w, &r, r.w->value, k->head_dim, dw,
                                    err)) ||
            (s = cld_check_values(c, "rstd", CLD_F32, k->n, k->n_heads, rstd, &r.rstd, err)) ||
            (s = cld_check_input(c, "dw", CLD_F32, 1, k->head_dim, 1, &r.dw, err)) ||
            (s = cld_check_scratch(c, cld_norm_scratch_bytes(c->q, k->head_dim), &r.scratch, err)))
            return s;
        for (size_t j = 0; j < k->head_dim; j++)
            dw[j] += r.dw->value[j];
        r.dw->output = true;
    }
    if (k->in_place)
        r.dx = r.dy;
    else if ((s = cld_check_output(c, "dx", grads, k->n, k->n_heads * k->head_dim, &r.dx, err)))
        return s;
    r.dx->output = true;
    if ((s = cld_check_twice(c, run_rope_backward, &r, err)) ||
        (s = cld_check_compare(c, r.dx, dx, cld_check_gradient_bound(grads), err)) ||
        (k->norm && (s = cld_check_compare(c, r.dw, dw, CLD_BOUND_F32_GRAD, err))))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

static const struct rope_case rope_cases[] = {
    {0, 2, 8, 0, 0, 1, true, false, false},
    {1, 1, 8, 0, 0, 1, true, false, false},
    {17, 3, 16, 0, 0, 1, false, true, false},
    {15, 5, 24, 3, 1, 1e-3, true, false, false},
    {3, 1, 40, 0, 0, 1e3, true, true, false},
    {16, 7, 64, 8, 0, 1, true, false, true},
    {31, 2, 64, 16, 0, 1, true, true, false},
    {131, 5, 128, 0, 0, 1, true, false, false}, /* more heads than partial sums */
    {19, 33, 128, 0, 0, 1, true, false, true},  /* more than a group of any size takes at once */
    {2, 2, 256, 0, 0, 1, true, false, false},
    {1024, 16, 128, 0, 0, 1, true, false, true}, /* timed */
};
enum { n_rope_cases = sizeof rope_cases / sizeof *rope_cases };

static enum cld_status rope_both(struct cld_check *c, size_t i, struct cld_error *err)
{
    if (!cld_check_takes(c, i + 1 == n_rope_cases))
        return CLD_OK;
    enum cld_status s = rope_forward_case(c, &rope_cases[i], err);
    return s ? s : rope_backward_case(c, &rope_cases[i], err);
}

enum cld_status cld_check_qknorm_rope(struct cld_check *c, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < n_rope_cases && !s; i++)
        s = rope_both(c, i, err);
    return s;
}

enum cld_status cld_check_qknorm_rope_quick(struct cld_check *c, struct cld_error *err)
{
    static const size_t few[] = {3, 5, 7, 8};
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < sizeof few / sizeof *few && !s; i++)
        s = rope_both(c, few[i], err);
    return s;
}
