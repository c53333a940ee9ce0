/* check_training.c - checks of cross-entropy, the first maximum, the sum of squares, AdamW and
 * the mean of weights. */
#include "check/check_ops.h"

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "ops/ops.h"

/* --- cross-entropy -----------------------------------------------------------------------------
 */

/* Where the gradient goes: nowhere, in the place of the logits, or to a tensor of its own in the
 * storage of the run. */
enum ce_gradient { NO_GRADIENT, IN_PLACE, APART };

struct ce_case {
    size_t n, v, pad, skew;
    double scale;
    enum ce_gradient gradient;
    bool f32;        /* logits in F32, whatever the storage of the run */
    bool weightless; /* all weights 0: the gradient must be exactly 0 */
};

struct ce {
    const struct ce_case *k;
    struct cld_check_tensor *logits, *labels, *weights, *loss, *hit;
    struct cld_check_tensor *gradient; /* logits, or one of its own, or NULL */
};

/* Results of all rows unless NULL; returns sum(weight * loss). */
static double ce_reference(const struct ce *o, const double *logits, double *loss, double *hit,
                           double *gradient)
{
    double total = 0;
    size_t v = o->k->v;
    for (size_t i = 0; i < o->k->n; i++) {
        const double *z = logits + i * v;
        size_t label = (size_t)o->labels->value[i], first = 0;
        double sum = 0;
        for (size_t j = 1; j < v; j++)
            if (z[j] > z[first])
                first = j;
        for (size_t j = 0; j < v; j++)
            sum += exp(z[j] - z[first]);
        double ce = log(sum) - (z[label] - z[first]);
        total += ce * o->weights->value[i];
        if (loss)
            loss[i] = ce;
        if (hit)
            hit[i] = first == label;
        for (size_t j = 0; gradient && j < v; j++)
            gradient[i * v + j] =
                (exp(z[j] - z[first]) / sum - (j == label)) * o->weights->value[i];
    }
    return total;
}

static double ce_loss_of_logits(const double *logits, const void *arg)
{
    return ce_reference(arg, logits, NULL, NULL, NULL);
}

static enum cld_status run_ce(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct ce *o = arg;
    return cld_cross_entropy(c->q, &o->logits->t, &o->labels->t, &o->weights->t, &o->loss->t,
                             &o->hit->t, o->gradient ? &o->gradient->t : NULL, err);
}

/* Labels and weights of the rows: every seventh row has weight 0; a third of the rows have their
 * largest logit at the label, and some of those once more further on or before (a tie). */
static void ce_rows(const struct cld_check *c, const struct ce_case *k, double *logits,
                    double *labels, double *weights)
{
    for (size_t i = 0; i < k->n; i++) {
        uint64_t bits = cld_random_u64(c->seed, CLD_RANDOM_TEST, 13, i, 0);
        size_t label = (size_t)cld_random_below(bits, k->v);
        size_t other = (size_t)cld_random_below(cld_mix64(bits), k->v);
        double *z = logits + i * k->v;
        for (size_t j = 0; j < k->v; j++)
            z[j] = k->scale * cld_random_normal(cld_random_u64(c->seed, CLD_RANDOM_TEST, 14, i, j));
        if (i % 3 == 0)
            z[label] = 8 * k->scale;
        if (i % 9 == 0)
            z[other] = 8 * k->scale;
        labels[i] = (double)label;
        weights[i] = i % 7 == 5 || k->weightless ? 0 : 0.01 + cld_random_unit(cld_mix64(bits + 1));
    }
}

/* Begins a case with its logits, labels and weights. */
static enum cld_status ce_begin(struct cld_check *c, const struct ce_case *k, struct ce *o,
                                struct cld_error *err)
{
    static const char *const names[] = {
        [NO_GRADIENT] = " forward", [IN_PLACE] = "", [APART] = " apart"};
    enum cld_dtype type = k->f32 ? CLD_F32 : c->storage;
    double *logits, *labels, *weights;
    enum cld_status s = CLD_OK;
    *o = (struct ce){.k = k};
    cld_check_begin(c, "cross_entropy%s n=%zu v=%zu ld=+%zu skew=%zu scale=%g %s%s",
                    names[k->gradient], k->n, k->v, k->pad, k->skew, k->scale, cld_dtype_name(type),
                    k->weightless ? " weightless" : "");
    c->pad = k->pad;
    c->skew = k->skew;
    if (c->skip || (s = cld_check_doubles(c, k->n * k->v, &logits, err)) ||
        (s = cld_check_doubles(c, k->n, &labels, err)) ||
        (s = cld_check_doubles(c, k->n, &weights, err)))
        return s;
    ce_rows(c, k, logits, labels, weights);
    if ((s = cld_check_values(c, "logits", type, k->n, k->v, logits, &o->logits, err)) ||
        (s = cld_check_values(c, "labels", CLD_I32, 1, k->n, labels, &o->labels, err)))
        return s;
    return cld_check_values(c, "weights", CLD_F32, 1, k->n, weights, &o->weights, err);
}

static enum cld_status ce_case(struct cld_check *c, const struct ce_case *k, struct cld_error *err)
{
    struct ce o;
    size_t size = k->n * k->v;
    double *loss, *hit, *gradient;
    enum cld_status s = ce_begin(c, k, &o, err);
    if (s || c->skip || (s = cld_check_doubles(c, k->n, &loss, err)) ||
        (s = cld_check_doubles(c, k->n, &hit, err)) ||
        (s = cld_check_doubles(c, size, &gradient, err)) ||
        (s = cld_check_output(c, "loss", CLD_F32, 1, k->n, &o.loss, err)) ||
        (s = cld_check_output(c, "hit", CLD_I32, 1, k->n, &o.hit, err)) ||
        (k->gradient == APART &&
         (s = cld_check_output(c, "gradient", c->storage, k->n, k->v, &o.gradient, err))))
        return s;
    ce_reference(&o, o.logits->value, loss, hit, gradient);
    if (k->scale < 10 && /* differences of a smooth function only */
        (s = cld_check_gradient(c, "logits", ce_loss_of_logits, &o, o.logits->value, size, gradient,
                                err)))
        return s;
    if (k->gradient == IN_PLACE)
        o.gradient = o.logits;
    /* Where it goes elsewhere the harness sees that they stay as they are. */
    o.logits->output = k->gradient == IN_PLACE;
    if ((s = cld_check_twice(c, run_ce, &o, err)) ||
        (s = cld_check_compare(c, o.loss, loss, CLD_BOUND_F32_ONE, err)) ||
        (s = cld_check_compare(c, o.hit, hit, CLD_BOUND_EXACT, err)) ||
        (o.gradient && (s = cld_check_compare(c, o.gradient, gradient,
                                              cld_check_bound_of(o.gradient->t.type), err))))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

enum cld_status cld_check_cross_entropy(struct cld_check *c, struct cld_error *err)
{
    static const struct ce_case cases[] = {
        {0, 11, 5, 0, 1, IN_PLACE, false, false},
        {1, 1, 7, 0, 1, IN_PLACE, false, false},
        {15, 7, 3, 1, 1, IN_PLACE, false, false},
        {40, 17, 7, 0, 1, IN_PLACE, false, false},
        {3, 31, 1, 0, 1, IN_PLACE, false, true},
        {23, 233, 7, 0, 3, IN_PLACE, true, false},
        {23, 233, 7, 0, 3, NO_GRADIENT, false, false},
        {23, 233, 7, 1, 3, APART, true, false},
        {5, 30011, 0, 0, 2, APART, true, false},
        {5, 4096, 0, 0, 2, APART, false, true},
        {5, 30011, 5, 0, 2, NO_GRADIENT, true, false},
        {31, 256, 8, 0, 1000, IN_PLACE, false, false}, /* huge logits */
        {9, 30011, 5, 0, 1, IN_PLACE, false, false},
        {9, 32768, 0, 0, 0.01, IN_PLACE, false, false}, /* flat distribution */
        {64, 32768, 0, 0, 1, APART, true, false},       /* timed */
    };
    enum { n = sizeof cases / sizeof *cases };
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < n && !s; i++)
        if (cld_check_takes(c, i + 1 == n))
            s = ce_case(c, &cases[i], err);
    return s;
}

/* --- first maximum -----------------------------------------------------------------------------
 */

struct first_max {
    struct cld_check_tensor *x, *index;
};

static enum cld_status run_first_max(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct first_max *o = arg;
    return cld_first_max(c->q, &o->x->t, &o->index->t, err);
}

/* Every third row has its maximum twice, every fifth a NaN, every seventh is one value throughout.
 */
static enum cld_status first_max_case(struct cld_check *c, size_t n, size_t v, size_t pad,
                                      size_t skew, struct cld_error *err)
{
    struct first_max o = {0};
    double *x, *want;
    enum cld_status s;
    cld_check_begin(c, "first_max n=%zu v=%zu ld=+%zu skew=%zu", n, v, pad, skew);
    c->pad = pad;
    c->skew = skew;
    if ((s = cld_check_doubles(c, n * v, &x, err)) || (s = cld_check_doubles(c, n, &want, err)))
        return s;
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = cld_random_u64(c->seed, CLD_RANDOM_TEST, 17, i, 0);
        size_t at = (size_t)cld_random_below(bits, v), again = at + (v - at) / 2;
        double *row = x + i * v;
        for (size_t j = 0; j < v; j++)
            row[j] =
                i % 7 == 6 ? -3 : -cld_random_unit(cld_random_u64(bits, CLD_RANDOM_TEST, i, j, 0));
        want[i] = i % 7 == 6 ? 0 : (double)at;
        if (i % 7 != 6)
            row[at] = 2;
        if (i % 7 != 6 && i % 3 == 0 && again < v)
            row[again] = 2;
        if (i % 5 == 4) {
            row[(at + v / 3) % v] = NAN;
            want[i] = -1;
        }
    }
    if ((s = cld_check_values(c, "x", c->storage, n, v, x, &o.x, err)) ||
        (s = cld_check_output(c, "index", CLD_I32, 1, n, &o.index, err)) ||
        (s = cld_check_twice(c, run_first_max, &o, err)) ||
        (s = cld_check_compare(c, o.index, want, CLD_BOUND_EXACT, err)))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

enum cld_status cld_check_first_max(struct cld_check *c, struct cld_error *err)
{
    static const size_t cases[][4] = {
        {0, 5, 0, 0},    {1, 1, 0, 0},     {15, 7, 3, 1},     {16, 945, 0, 0},
        {36, 233, 7, 0}, {8, 30011, 5, 1}, {64, 32768, 0, 0}, /* timed */
    };
    enum { n = sizeof cases / sizeof *cases };
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < n && !s; i++)
        if (cld_check_takes(c, i + 1 == n))
            s = first_max_case(c, cases[i][0], cases[i][1], cases[i][2], cases[i][3], err);
    return s;
}

/* --- sum of squares ----------------------------------------------------------------------------
 */

struct sum {
    struct cld_check_tensor *x;
    struct cld_buf *scratch;
    double got[2];
    size_t n_runs;
};

static enum cld_status run_sum(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct sum *o = arg;
    return cld_sum_squares(c->q, &o->x->t, o->scratch, &o->got[o->n_runs++ % 2], err);
}

static enum cld_status sum_case(struct cld_check *c, size_t n, size_t cols, size_t skew,
                                double scale, bool constant, struct cld_error *err)
{
    struct sum o = {0};
    double *values, want = 0;
    enum cld_status s = CLD_OK;
    cld_check_begin(c, "sum_squares n=%zu c=%zu skew=%zu scale=%g%s", n, cols, skew, scale,
                    constant ? " constant" : "");
    c->skew = skew;
    if (c->skip || (s = cld_check_doubles(c, n * cols, &values, err)))
        return s;
    for (size_t i = 0; i < n * cols; i++)
        values[i] =
            scale *
            (constant ? 1 : cld_random_normal(cld_random_u64(c->seed, CLD_RANDOM_TEST, 15, i, 0)));
    if ((s = cld_check_values(c, "x", c->storage, n, cols, values, &o.x, err)) ||
        (s = cld_check_scratch(c, cld_sum_scratch_bytes(c->q), &o.scratch, err)) ||
        (s = cld_check_twice(c, run_sum, &o, err)))
        return s;
    for (size_t i = 0; i < n * cols; i++)
        want += o.x->value[i] * o.x->value[i];
    double rel = want > 0 ? fabs(o.got[0] - want) / want : o.got[0];
    if (memcmp(&o.got[0], &o.got[1], sizeof o.got[0]))
        cld_check_fail(c, "two runs differ: %.17g, %.17g", o.got[0], o.got[1]);
    if (!cld_check_within(c, CLD_BOUND_F32_ONE, rel * rel, rel))
        cld_check_fail(c, "%.9g, want %.9g", o.got[0], want);
    cld_check_end(c);
    return CLD_OK;
}

enum cld_status cld_check_sum_squares(struct cld_check *c, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (cld_check_takes(c, true) && (s = sum_case(c, 1, 1 << 21, 0, 1, false, err)))
        return s;
    if (!cld_check_takes(c, false) || (s = sum_case(c, 1, 0, 0, 1, false, err)) ||
        (s = sum_case(c, 1, 1, 0, 3, false, err)) ||
        (s = sum_case(c, 3, 1367, 1, 1e-3, false, err)) ||
        (s = sum_case(c, 16, 4097, 0, 100, false, err)))
        return s;
    /* Equal terms round the same way each time, so this is where long float sums drift. */
    return sum_case(c, 1, 1000003, 0, 0.1, true, err);
}

/* --- AdamW -------------------------------------------------------------------------------------
 */

struct adamw_case {
    size_t n, n_decay, step, skew;
    double master_scale, weight_decay;
    bool alias, small_gradients;
};

struct adamw {
    struct cld_adamw op;
    struct cld_check_tensor *grad, *m, *v, *master, *weight;
};

static enum cld_status run_adamw(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct adamw *o = arg;
    return cld_adamw_step(c->q, &o->op, err);
}

/* One step as torch.optim.AdamW defines it, in double. */
static void adamw_reference(const struct cld_adamw *a, size_t n, const double *grad, double *m,
                            double *v, double *master)
{
    double beta1 = a->beta1, beta2 = a->beta2, t = (double)a->step;
    for (size_t i = 0; i < n; i++) {
        double g = grad[i] * a->grad_scale;
        if (i < a->n_decay)
            master[i] *= 1 - (double)a->learning_rate * a->weight_decay;
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        double m_hat = m[i] / (1 - pow(beta1, t)), v_hat = v[i] / (1 - pow(beta2, t));
        master[i] -= a->learning_rate * m_hat / (sqrt(v_hat) + a->epsilon);
    }
}

static enum cld_status adamw_case(struct cld_check *c, const struct adamw_case *k,
                                  struct cld_error *err)
{
    struct adamw o = {{.n_decay = k->n_decay,
                       .learning_rate = 6e-4f,
                       .beta1 = 0.9f,
                       .beta2 = 0.95f,
                       .epsilon = 1e-8f,
                       .weight_decay = (float)k->weight_decay,
                       .grad_scale = 0.37f,
                       .step = k->step},
                      NULL,
                      NULL,
                      NULL,
                      NULL,
                      NULL};
    double *v, *m, *master, *start;
    size_t n = k->n;
    enum cld_dtype g = k->small_gradients ? c->storage : CLD_F32;
    enum cld_status s = CLD_OK;
    cld_check_begin(c, "adamw n=%zu decay=%zu*%g step=%zu skew=%zu master=%g%s%s", n, k->n_decay,
                    k->weight_decay, k->step, k->skew, k->master_scale, k->alias ? " alias" : "",
                    k->small_gradients ? " small-gradients" : "");
    c->skew = k->skew;
    if (c->skip || (s = cld_check_doubles(c, n, &v, err)) ||
        (s = cld_check_doubles(c, n, &m, err)) || (s = cld_check_doubles(c, n, &master, err)) ||
        (s = cld_check_doubles(c, n, &start, err)) ||
        (s = cld_check_input(c, "grad", g, 1, n, 1, &o.grad, err)) ||
        (s = cld_check_input(c, "m", CLD_F32, 1, n, k->step > 1 ? 0.1 : 0, &o.m, err)))
        return s;
    for (size_t i = 0; i < n && k->step > 1; i++)
        start[i] = 0.1 * cld_random_unit(cld_random_u64(c->seed, CLD_RANDOM_TEST, 16, i, 0));
    if ((s = cld_check_values(c, "v", CLD_F32, 1, n, start, &o.v, err)) ||
        (s = cld_check_input(c, "master", CLD_F32, 1, n, k->master_scale, &o.master, err)))
        return s;
    if (k->alias)
        o.weight = o.master;
    else if ((s = cld_check_output(c, "weight", c->storage, 1, n, &o.weight, err)))
        return s;
    o.m->output = o.v->output = o.master->output = true;
    o.op.grad = &o.grad->t;
    o.op.m = &o.m->t;
    o.op.v = &o.v->t;
    o.op.master = &o.master->t;
    o.op.weight = &o.weight->t;
    memcpy(m, o.m->value, n * sizeof *m);
    memcpy(v, o.v->value, n * sizeof *v);
    memcpy(master, o.master->value, n * sizeof *master);
    adamw_reference(&o.op, n, o.grad->value, m, v, master);
    if ((s = cld_check_twice(c, run_adamw, &o, err)) ||
        (s = cld_check_compare(c, o.m, m, CLD_BOUND_F32_ONE, err)) ||
        (s = cld_check_compare(c, o.v, v, CLD_BOUND_F32_ONE, err)) ||
        (s = cld_check_compare(c, o.master, master, CLD_BOUND_F32_ONE, err)) ||
        (!k->alias &&
         (s = cld_check_compare(c, o.weight, master, cld_check_bound_of(c->storage), err))))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

enum cld_status cld_check_adamw(struct cld_check *c, struct cld_error *err)
{
    static const struct adamw_case cases[] = {
        {0, 0, 1, 0, 1, 0, false, false},
        {1, 1, 1, 0, 1, 0.1, false, false},
        /* master 0: nothing hides an error of the update itself */
        {17, 0, 1, 0, 0, 0, true, false},
        {945, 0, 7, 1, 0, 0, false, false},
        {945, 500, 1000, 0, 1e-3, 30, false, true},
        {4104, 4104, 2, 0, 0.02, 0.1, true, false},
        {9001, 17, 100000, 0, 0.02, 10, false, false},
        {1 << 21, 1 << 20, 100, 0, 0.02, 0.1, false, false}, /* timed */
    };
    enum { n = sizeof cases / sizeof *cases };
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < n && !s; i++)
        if (cld_check_takes(c, i + 1 == n))
            s = adamw_case(c, &cases[i], err);
    return s;
}

/* --- mean of weights -------------------------------------------------------------------------- */

struct ema {
    struct cld_check_tensor *mean, *x;
    float share;
};

static enum cld_status run_ema(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct ema *o = arg;
    return cld_ema_step(c->q, &o->mean->t, &o->x->t, o->share, err);
}

enum cld_status cld_check_ema(struct cld_check *c, struct cld_error *err)
{
    static const struct {
        size_t n, skew;
        float share;
    } cases[] = {{0, 0, 0.1f}, {1, 0, 0.1f}, {945, 1, 1e-4f}, {4104, 0, 0.5f}, {9001, 0, 1}};
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < sizeof cases / sizeof *cases && !s; i++) {
        struct ema o = {.share = cases[i].share};
        double *want, share = (double)cases[i].share;
        cld_check_begin(c, "ema n=%zu skew=%zu share=%g", cases[i].n, cases[i].skew, share);
        c->skew = cases[i].skew;
        if (c->skip)
            continue;
        if ((s = cld_check_doubles(c, cases[i].n, &want, err)) ||
            (s = cld_check_input(c, "mean", CLD_F32, 1, cases[i].n, 1, &o.mean, err)) ||
            (s = cld_check_input(c, "x", CLD_F32, 1, cases[i].n, 1, &o.x, err)))
            return s;
        for (size_t k = 0; k < cases[i].n; k++)
            want[k] = (1 - share) * o.mean->value[k] + share * o.x->value[k];
        o.mean->output = true;
        if ((s = cld_check_twice(c, run_ema, &o, err)) ||
            (s = cld_check_compare(c, o.mean, want, CLD_BOUND_F32_ONE, err)))
            return s;
        cld_check_end(c);
    }
    return s;
}
