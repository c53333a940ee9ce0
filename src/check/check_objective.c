/* check_objective.c - checks of the weights of D-PACE and of soft targets. */
#include "check/check_ops.h"

#include <math.h>

#include "base/random.h"
#include "ops/op_objective.h"

/* --- D-PACE ----------------------------------------------------------------------------------- */

struct dpace {
    struct cld_check_tensor *place, *loss, *weights;
    size_t block_size;
    double alpha, scale;
};

static enum cld_status run_dpace(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct dpace *o = arg;
    return cld_dpace_weights(c->q, &o->place->t, &o->loss->t, o->block_size, (float)o->alpha,
                             (float)o->scale, &o->weights->t, err);
}

/* By the definition: a product and a sum of its own for each row. */
static void dpace_reference(const struct dpace *o, size_t n_blocks, double *want)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const double *place = o->place->value + b * o->block_size;
        for (size_t k = 0; k < o->block_size; k++) {
            double sum = 0;
            for (size_t m = k; m < o->block_size && place[k] >= 0; m++) {
                double p = 1;
                for (size_t i = 0; i <= m; i++)
                    if (place[i] >= 0)
                        p *= (1 - o->alpha) * exp(-o->loss->value[(size_t)place[i]]) + o->alpha;
                sum += place[m] >= 0 ? p : 0;
            }
            if (place[k] >= 0)
                want[(size_t)place[k]] = o->scale * sum;
        }
    }
}

/* Every fifth row, the first of each block and the whole third block have no loss. */
static enum cld_status dpace_case(struct cld_check *c, size_t n_blocks, size_t block_size,
                                  double alpha, struct cld_error *err)
{
    struct dpace o = {.block_size = block_size, .alpha = (float)alpha, .scale = (float)0.01};
    size_t n_rows = n_blocks * block_size, n = 0;
    double *place, *loss, *want;
    enum cld_status s = CLD_OK;
    cld_check_begin(c, "dpace blocks=%zu of %zu alpha=%g", n_blocks, block_size, alpha);
    if (c->skip || (s = cld_check_doubles(c, n_rows, &place, err)) ||
        (s = cld_check_doubles(c, n_rows, &loss, err)) ||
        (s = cld_check_doubles(c, n_rows, &want, err)))
        return s;
    for (size_t r = 0; r < n_rows; r++) {
        uint64_t bits = cld_random_u64(c->seed, CLD_RANDOM_TEST, 21, r, block_size);
        bool none = r % block_size == 0 || bits % 5 == 0 || r / block_size == 2;
        place[r] = none ? -1 : (double)n;
        if (!none)
            loss[n++] = 8 * pow(cld_random_unit(cld_mix64(bits)), 3);
    }
    if ((s = cld_check_values(c, "place", CLD_I32, 1, n_rows, place, &o.place, err)) ||
        (s = cld_check_values(c, "loss", CLD_F32, 1, n, loss, &o.loss, err)) ||
        (s = cld_check_output(c, "weights", CLD_F32, 1, n, &o.weights, err)))
        return s;
    dpace_reference(&o, n_blocks, want);
    if ((s = cld_check_twice(c, run_dpace, &o, err)) ||
        (s = cld_check_compare(c, o.weights, want, CLD_BOUND_F32, err)))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

enum cld_status cld_check_dpace(struct cld_check *c, struct cld_error *err)
{
    static const struct {
        size_t n_blocks, block_size;
        double alpha;
    } cases[] = {{0, 16, 0.5}, {1, 2, 0.5}, {3, 16, 0}, {65, 16, 0.5}, {257, 7, 0.3}, {9, 64, 1}};
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < sizeof cases / sizeof *cases && !s; i++)
        s = dpace_case(c, cases[i].n_blocks, cases[i].block_size, cases[i].alpha, err);
    return s;
}

/* --- soft targets ----------------------------------------------------------------------------- */

struct soft_case {
    size_t n, v, pad, skew;
    double scale, share, temperature;
    bool in_place,
        f32; /* the gradient replaces the logits; these are F32 whatever the run stores */
};

struct soft {
    const struct soft_case *k;
    struct cld_check_tensor *logits, *targets, *labels, *weights, *loss, *hit, *gradient, *sums;
};

static double log_sum(const double *x, size_t n, double temperature)
{
    double top = x[0], sum = 0;
    for (size_t j = 1; j < n; j++)
        top = fmax(top, x[j]);
    for (size_t j = 0; j < n; j++)
        sum += exp((x[j] - top) / temperature);
    return top / temperature + log(sum);
}

/* Results of all rows unless NULL; returns sum(weight * loss). */
static double soft_reference(const struct soft *o, const double *logits, double *loss, double *hit,
                             double *gradient)
{
    double total = 0, share = (float)o->k->share, heat = (float)o->k->temperature;
    size_t v = o->k->v;
    for (size_t i = 0; i < o->k->n; i++) {
        const double *z = logits + i * v, *t = o->targets->value + i * v;
        size_t label = (size_t)o->labels->value[i], first = 0;
        double z1 = log_sum(z, v, 1), zt = log_sum(z, v, heat), tt = log_sum(t, v, heat);
        double divergence = 0, weight = o->weights->value[i];
        for (size_t j = 0; j < v; j++) {
            double log_p = t[j] / heat - tt, log_q = z[j] / heat - zt;
            divergence += exp(log_p) * (log_p - log_q);
            if (z[j] > z[first])
                first = j;
            if (gradient)
                gradient[i * v + j] = weight * ((1 - share) * (exp(z[j] - z1) - (j == label)) +
                                                share * heat * (exp(log_q) - exp(log_p)));
        }
        double row = (1 - share) * (z1 - z[label]) + share * heat * heat * divergence;
        total += weight * row;
        if (loss)
            loss[i] = row;
        if (hit)
            hit[i] = first == label;
    }
    return total;
}

static double soft_of_logits(const double *logits, const void *arg)
{
    return soft_reference(arg, logits, NULL, NULL, NULL);
}

static enum cld_status run_soft(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct soft *o = arg;
    const struct cld_soft_targets soft = {.logits = &o->logits->t,
                                          .targets = &o->targets->t,
                                          .labels = &o->labels->t,
                                          .weights = &o->weights->t,
                                          .loss = &o->loss->t,
                                          .hit = &o->hit->t,
                                          .gradient = &o->gradient->t,
                                          .sums = &o->sums->t,
                                          .share = (float)o->k->share,
                                          .temperature = (float)o->k->temperature};
    return cld_soft_targets(c->q, &soft, err);
}

/* Targets are the logits, moved; every seventh row has weight 0, every third its label on top. */
static void soft_inputs(const struct cld_check *c, const struct soft_case *k, double *logits,
                        double *targets, double *labels, double *weights)
{
    for (size_t i = 0; i < k->n; i++) {
        uint64_t bits = cld_random_u64(c->seed, CLD_RANDOM_TEST, 22, i, k->v);
        size_t label = (size_t)cld_random_below(bits, k->v);
        for (size_t j = 0; j < k->v; j++) {
            uint64_t u = cld_random_u64(c->seed, CLD_RANDOM_TEST, 23, i, j);
            logits[i * k->v + j] = k->scale * cld_random_normal(u);
            targets[i * k->v + j] =
                logits[i * k->v + j] + k->scale * cld_random_normal(cld_mix64(u));
        }
        if (i % 3 == 0)
            logits[i * k->v + label] = 8 * k->scale;
        labels[i] = (double)label;
        weights[i] = i % 7 == 5 ? 0 : 0.01 + cld_random_unit(cld_mix64(bits));
    }
}

/* Runs the operation and compares all of its results. */
static enum cld_status compare_soft(struct cld_check *c, struct soft *o, const double *loss,
                                    const double *hit, const double *gradient,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    bool steep = o->k->scale >= 10;
    enum cld_check_bound bound = steep ? CLD_BOUND_F32_STEEP : CLD_BOUND_F32_SOFTMAX;
    enum cld_check_bound small = steep ? CLD_BOUND_BF16_STEEP_GRAD : CLD_BOUND_BF16_GRAD;
    if (o->k->in_place)
        o->gradient = o->logits;
    o->logits->output = o->k->in_place;
    if ((s = cld_check_twice(c, run_soft, o, err)) ||
        (s = cld_check_compare(c, o->loss, loss, bound, err)) ||
        (s = cld_check_compare(c, o->hit, hit, CLD_BOUND_EXACT, err)) ||
        (s = cld_check_compare(c, o->gradient, gradient,
                               o->gradient->t.type == CLD_BF16 ? small : bound, err)))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

static enum cld_status soft_case(struct cld_check *c, const struct soft_case *k,
                                 struct cld_error *err)
{
    struct soft o = {.k = k};
    size_t size = k->n * k->v;
    enum cld_dtype type = k->f32 ? CLD_F32 : c->storage;
    double *logits, *targets, *labels, *weights, *loss, *hit, *gradient;
    enum cld_status s = CLD_OK;
    cld_check_begin(c, "soft_targets n=%zu v=%zu ld=+%zu skew=%zu scale=%g share=%g T=%g %s%s",
                    k->n, k->v, k->pad, k->skew, k->scale, k->share, k->temperature,
                    cld_dtype_name(type), k->in_place ? "" : " apart");
    c->pad = k->pad;
    c->skew = k->skew;
    if (c->skip || (s = cld_check_doubles(c, size, &logits, err)) ||
        (s = cld_check_doubles(c, size, &targets, err)) ||
        (s = cld_check_doubles(c, k->n, &labels, err)) ||
        (s = cld_check_doubles(c, k->n, &weights, err)) ||
        (s = cld_check_doubles(c, k->n, &loss, err)) ||
        (s = cld_check_doubles(c, k->n, &hit, err)) ||
        (s = cld_check_doubles(c, size, &gradient, err)))
        return s;
    soft_inputs(c, k, logits, targets, labels, weights);
    if ((s = cld_check_values(c, "logits", type, k->n, k->v, logits, &o.logits, err)) ||
        (s = cld_check_values(c, "targets", type, k->n, k->v, targets, &o.targets, err)) ||
        (!k->in_place &&
         (s = cld_check_output(c, "gradient", c->storage, k->n, k->v, &o.gradient, err))))
        return s;
    c->pad = 0;
    if ((s = cld_check_values(c, "labels", CLD_I32, 1, k->n, labels, &o.labels, err)) ||
        (s = cld_check_values(c, "weights", CLD_F32, 1, k->n, weights, &o.weights, err)) ||
        (s = cld_check_output(c, "loss", CLD_F32, 1, k->n, &o.loss, err)) ||
        (s = cld_check_output(c, "hit", CLD_I32, 1, k->n, &o.hit, err)) ||
        (s = cld_check_output(c, "sums", CLD_F32, 2 * k->n, CLD_SOFT_SUMS, &o.sums, err)))
        return s;
    soft_reference(&o, o.logits->value, loss, hit, gradient);
    if (k->scale < 10 && /* differences of a smooth function only */
        (s = cld_check_gradient(c, "logits", soft_of_logits, &o, o.logits->value, size, gradient,
                                err)))
        return s;
    return compare_soft(c, &o, loss, hit, gradient, err);
}

enum cld_status cld_check_soft_targets(struct cld_check *c, struct cld_error *err)
{
    static const struct soft_case cases[] = {
        {0, 11, 5, 0, 1, 1, 1, true, false},
        {1, 1, 7, 0, 1, 0.5, 2, true, false},
        {15, 7, 3, 1, 1, 1, 1, true, false},
        {40, 17, 7, 0, 1, 0.3, 2, true, false},
        {23, 233, 7, 0, 2, 0.9, 0.5, false, true},
        {23, 233, 7, 1, 2, 1, 1, false, true},
        {5, 30011, 0, 0, 2, 0.9, 1.5, false, true},
        {31, 256, 8, 0, 100, 1, 1, true, true}, /* huge logits */
        {9, 32768, 0, 0, 0.5, 0.5, 1, true, true},
    };
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < sizeof cases / sizeof *cases && !s; i++)
        s = soft_case(c, &cases[i], err);
    return s;
}
