/* check_elementwise.c - checks of SwiGLU, sums, gathers and fills. */
#include "check/check_ops.h"

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "ops/ops.h"

/* --- SwiGLU ------------------------------------------------------------------------------------
 */

struct swiglu_case {
    size_t n, c, pad, skew;
    double scale;
    bool in_place, small_gradients;
};

struct swiglu {
    const struct swiglu_case *k;
    struct cld_check_tensor *gate, *up, *y, *dy, *d_gate, *d_up;
};

static double sigmoid(double g)
{
    return 1 / (1 + exp(-g));
}

static double swiglu_loss(const struct swiglu *o, const double *gate, const double *up)
{
    double loss = 0;
    for (size_t i = 0; i < o->k->n * o->k->c; i++)
        loss += o->dy->value[i] * gate[i] * sigmoid(gate[i]) * up[i];
    return loss;
}

static double swiglu_loss_of_gate(const double *gate, const void *arg)
{
    const struct swiglu *o = arg;
    return swiglu_loss(o, gate, o->up->value);
}

static double swiglu_loss_of_up(const double *up, const void *arg)
{
    const struct swiglu *o = arg;
    return swiglu_loss(o, o->gate->value, up);
}

static enum cld_status run_swiglu_forward(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct swiglu *o = arg;
    return cld_swiglu_forward(c->q, &o->gate->t, &o->up->t, &o->y->t, err);
}

static enum cld_status run_swiglu_backward(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct swiglu *o = arg;
    return cld_swiglu_backward(c->q, &o->gate->t, &o->up->t, &o->dy->t, &o->d_gate->t, &o->d_up->t,
                               err);
}

static enum cld_status swiglu_begin(struct cld_check *c, const char *what,
                                    const struct swiglu_case *k, struct swiglu *o,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    *o = (struct swiglu){.k = k};
    cld_check_begin(c, "swiglu %s n=%zu c=%zu ld=+%zu skew=%zu scale=%g%s%s", what, k->n, k->c,
                    k->pad, k->skew, k->scale, k->in_place ? " in-place" : "",
                    k->small_gradients ? " small-gradients" : "");
    c->pad = k->pad;
    c->skew = k->skew;
    if (c->skip ||
        (s = cld_check_input(c, "gate", c->storage, k->n, k->c, k->scale, &o->gate, err)))
        return s;
    return cld_check_input(c, "up", c->storage, k->n, k->c, 1, &o->up, err);
}

static enum cld_status swiglu_forward_case(struct cld_check *c, const struct swiglu_case *k,
                                           struct cld_error *err)
{
    struct swiglu o;
    double *y;
    enum cld_status s = swiglu_begin(c, "forward", k, &o, err);
    if (s || c->skip || (s = cld_check_doubles(c, k->n * k->c, &y, err)) ||
        (s = cld_check_output(c, "y", c->storage, k->n, k->c, &o.y, err)))
        return s;
    for (size_t i = 0; i < k->n * k->c; i++)
        y[i] = o.gate->value[i] * sigmoid(o.gate->value[i]) * o.up->value[i];
    if ((s = cld_check_twice(c, run_swiglu_forward, &o, err)) ||
        (s = cld_check_compare(c, o.y, y, cld_check_bound_of(c->storage), err)))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

static enum cld_status swiglu_backward_case(struct cld_check *c, const struct swiglu_case *k,
                                            struct cld_error *err)
{
    struct swiglu o;
    double *d_gate, *d_up;
    size_t n = k->n * k->c;
    enum cld_dtype grads = k->small_gradients ? c->storage : CLD_F32;
    enum cld_status s = swiglu_begin(c, "backward", k, &o, err);
    if (s || c->skip || (s = cld_check_doubles(c, n, &d_gate, err)) ||
        (s = cld_check_doubles(c, n, &d_up, err)) ||
        (s = cld_check_input(c, "dy", grads, k->n, k->c, 0.1, &o.dy, err)))
        return s;
    for (size_t i = 0; i < n; i++) {
        double g = o.gate->value[i], sig = sigmoid(g), dy = o.dy->value[i];
        d_gate[i] = dy * o.up->value[i] * sig * (1 + g * (1 - sig));
        d_up[i] = dy * g * sig;
    }
    if ((s = cld_check_gradient(c, "gate", swiglu_loss_of_gate, &o, o.gate->value, n, d_gate,
                                err)) ||
        (s = cld_check_gradient(c, "up", swiglu_loss_of_up, &o, o.up->value, n, d_up, err)))
        return s;
    if (k->in_place) {
        o.d_gate = o.gate;
        o.d_up = o.up;
    } else if ((s = cld_check_output(c, "d_gate", grads, k->n, k->c, &o.d_gate, err)) ||
               (s = cld_check_output(c, "d_up", grads, k->n, k->c, &o.d_up, err))) {
        return s;
    }
    o.d_gate->output = o.d_up->output = true;
    enum cld_dtype to = o.d_gate->t.type;
    if ((s = cld_check_twice(c, run_swiglu_backward, &o, err)) ||
        (s = cld_check_compare(c, o.d_gate, d_gate, cld_check_bound_of(to), err)) ||
        (s = cld_check_compare(c, o.d_up, d_up, cld_check_bound_of(to), err)))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

enum cld_status cld_check_swiglu(struct cld_check *c, struct cld_error *err)
{
    static const struct swiglu_case cases[] = {
        {0, 7, 1, 0, 1, false, false},
        {1, 1, 7, 0, 1, false, false},
        {3, 7, 2, 1, 1, false, false},
        {15, 16, 0, 0, 30, true, true},
        {17, 24, 8, 0, 1e4, false, false}, /* exp(-g) overflows and vanishes */
        {5, 945, 7, 0, 1, false, false},
        {2, 8200, 8, 0, 1, false, false},  /* more than one chunk of a row */
        {512, 3072, 0, 0, 1, false, true}, /* timed */
    };
    enum { n = sizeof cases / sizeof *cases };
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < n && !s; i++)
        if (cld_check_takes(c, i + 1 == n) && !(s = swiglu_forward_case(c, &cases[i], err)))
            s = swiglu_backward_case(c, &cases[i], err);
    return s;
}

/* --- sums and copies ---------------------------------------------------------------------------
 */

struct add_case {
    size_t n, c, pad, skew;
    bool sum, in_place;
    bool a_f32, b_f32, y_f32; /* else the storage of the run */
};

struct add {
    struct cld_check_tensor *a, *b, *y;
};

static enum cld_status run_add(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct add *o = arg;
    return cld_add_tensors(c->q, &o->a->t, o->b ? &o->b->t : NULL, &o->y->t, err);
}

static enum cld_status add_case(struct cld_check *c, const struct add_case *k,
                                struct cld_error *err)
{
    struct add o = {NULL, NULL, NULL};
    double *want;
    enum cld_dtype a = k->a_f32 ? CLD_F32 : c->storage, b = k->b_f32 ? CLD_F32 : c->storage,
                   y = k->y_f32 ? CLD_F32 : c->storage;
    enum cld_status s = CLD_OK;
    cld_check_begin(c, "add n=%zu c=%zu ld=+%zu skew=%zu %s%s%s%s%s%s", k->n, k->c, k->pad, k->skew,
                    cld_dtype_name(a), k->sum ? "+" : "", k->sum ? cld_dtype_name(b) : "", "=",
                    cld_dtype_name(y), k->in_place ? " in-place" : "");
    c->pad = k->pad;
    c->skew = k->skew;
    if (c->skip || (s = cld_check_doubles(c, k->n * k->c, &want, err)) ||
        (s = cld_check_input(c, "a", a, k->n, k->c, 1, &o.a, err)) ||
        (k->sum && (s = cld_check_input(c, "b", b, k->n, k->c, 100, &o.b, err))))
        return s;
    for (size_t i = 0; i < k->n * k->c; i++)
        want[i] = o.a->value[i] + (o.b ? o.b->value[i] : 0);
    if (k->in_place)
        o.y = o.a;
    else if ((s = cld_check_output(c, "y", y, k->n, k->c, &o.y, err)))
        return s;
    o.y->output = true;
    /* A copy that keeps the storage, or widens it, is exact. */
    enum cld_check_bound bound = !k->sum && (y == CLD_F32 || a == CLD_BF16)
                                     ? CLD_BOUND_EXACT
                                     : cld_check_bound_of(o.y->t.type);
    if ((s = cld_check_twice(c, run_add, &o, err)) ||
        (s = cld_check_compare(c, o.y, want, bound, err)))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

enum cld_status cld_check_add(struct cld_check *c, struct cld_error *err)
{
    static const struct add_case cases[] = {
        {0, 5, 3, 0, true, true, false, true, false},
        {1, 1, 7, 0, true, true, false, true, false},
        {15, 17, 7, 0, true, true, false, true, false},
        {3, 7, 5, 3, false, false, false, false, false},
        {7, 24, 8, 0, false, false, true, true, false},
        {3, 4104, 0, 0, true, false, true, false, true},
        {2, 8200, 8, 0, false, false, false, false, true},
        {1024, 2048, 0, 0, true, false, false, false, false}, /* timed */
    };
    enum { n = sizeof cases / sizeof *cases };
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < n && !s; i++)
        if (cld_check_takes(c, i + 1 == n))
            s = add_case(c, &cases[i], err);
    return s;
}

/* --- gathers -----------------------------------------------------------------------------------
 */

struct gather {
    struct cld_check_tensor *x, *index, *y;
};

static enum cld_status run_gather(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct gather *o = arg;
    return cld_gather_rows(c->q, &o->x->t, &o->index->t, &o->y->t, err);
}

static enum cld_status gather_case(struct cld_check *c, size_t n_from, size_t n, size_t cols,
                                   size_t pad, size_t skew, enum cld_dtype from, enum cld_dtype to,
                                   struct cld_error *err)
{
    struct gather o;
    double *index, *want;
    enum cld_status s = CLD_OK;
    cld_check_begin(c, "gather %zu of %zu rows c=%zu ld=+%zu skew=%zu %s=%s", n, n_from, cols, pad,
                    skew, cld_dtype_name(from), cld_dtype_name(to));
    c->pad = pad;
    c->skew = skew;
    if (c->skip || (s = cld_check_doubles(c, n, &index, err)) ||
        (s = cld_check_doubles(c, n * cols, &want, err)) ||
        (s = cld_check_input(c, "x", from, n_from, cols, 1, &o.x, err)))
        return s;
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = cld_random_u64(c->seed, CLD_RANDOM_TEST, 11, i, 0);
        index[i] = i % 5 == 3 ? -1 : (double)cld_random_below(bits, n_from);
        if (index[i] >= 0)
            memcpy(want + i * cols, o.x->value + (size_t)index[i] * cols, cols * sizeof *want);
    }
    if ((s = cld_check_values(c, "index", CLD_I32, 1, n, index, &o.index, err)) ||
        (s = cld_check_output(c, "y", to, n, cols, &o.y, err)) ||
        (s = cld_check_twice(c, run_gather, &o, err)) ||
        (s = cld_check_compare(
             c, o.y, want,
             to == CLD_F32 || from == CLD_BF16 ? CLD_BOUND_EXACT : cld_check_bound_of(to), err)))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

enum cld_status cld_check_gather(struct cld_check *c, struct cld_error *err)
{
    enum cld_dtype t = c->storage;
    enum cld_status s = CLD_OK;
    if (cld_check_takes(c, true) && (s = gather_case(c, 1024, 1024, 2048, 0, 0, t, t, err)))
        return s;
    if (!cld_check_takes(c, false) || (s = gather_case(c, 5, 0, 7, 1, 0, t, t, err)) ||
        (s = gather_case(c, 1, 4, 1, 7, 0, t, t, err)) ||
        (s = gather_case(c, 13, 17, 7, 2, 1, t, CLD_F32, err)) ||
        (s = gather_case(c, 97, 61, 136, 8, 0, CLD_F32, t, err)))
        return s;
    return gather_case(c, 6, 9, 4104, 0, 0, t, t, err);
}

/* --- scatters ----------------------------------------------------------------------------------
 */

static enum cld_status run_scatter(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct gather *o = arg;
    return cld_scatter_rows(c->q, &o->x->t, &o->index->t, &o->y->t, err);
}

/* Row i goes to row (7 i + 3) mod n_to, but every fourth nowhere; y begins as values of its own. */
static enum cld_status scatter_case(struct cld_check *c, size_t n, size_t n_to, size_t cols,
                                    size_t pad, size_t skew, enum cld_dtype from, enum cld_dtype to,
                                    struct cld_error *err)
{
    struct gather o;
    double *index, *want;
    enum cld_status s;
    cld_check_begin(c, "scatter %zu to %zu rows c=%zu ld=+%zu skew=%zu %s=%s", n, n_to, cols, pad,
                    skew, cld_dtype_name(to), cld_dtype_name(from));
    c->pad = pad;
    c->skew = skew;
    if ((s = cld_check_doubles(c, n, &index, err)) ||
        (s = cld_check_doubles(c, n_to * cols, &want, err)) ||
        (s = cld_check_input(c, "x", from, n, cols, 1, &o.x, err)) ||
        (s = cld_check_input(c, "y", to, n_to, cols, 1, &o.y, err)))
        return s;
    o.y->output = true;
    memcpy(want, o.y->value, n_to * cols * sizeof *want);
    for (size_t i = 0; i < n; i++) {
        size_t at = (7 * i + 3) % n_to;
        index[i] = i % 4 == 2 ? -1 : (double)at;
        if (i % 4 != 2)
            memcpy(want + at * cols, o.x->value + i * cols, cols * sizeof *want);
    }
    if ((s = cld_check_values(c, "index", CLD_I32, 1, n, index, &o.index, err)) ||
        (s = cld_check_twice(c, run_scatter, &o, err)) ||
        (s = cld_check_compare(c, o.y, want, to == from ? CLD_BOUND_EXACT : cld_check_bound_of(to),
                               err)))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

enum cld_status cld_check_scatter(struct cld_check *c, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    enum cld_dtype t = c->storage;
    if (cld_check_takes(c, true) && (s = scatter_case(c, 1024, 1024, 2048, 0, 0, t, t, err)))
        return s;
    if (!cld_check_takes(c, false) || (s = scatter_case(c, 0, 5, 8, 0, 0, t, t, err)) ||
        (s = scatter_case(c, 1, 9, 1, 7, 0, t, t, err)) ||
        (s = scatter_case(c, 17, 40, 945, 0, 0, t, t, err)))
        return s;
    return scatter_case(c, 11, 64, 100, 3, 1, CLD_F32, t, err);
}

/* --- fills -------------------------------------------------------------------------------------
 */

struct fill {
    struct cld_check_tensor *t;
    uint64_t seed, stream;
    float value;
};

static enum cld_status run_fill(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct fill *o = arg;
    return cld_fill(c->q, &o->t->t, o->value, err);
}

static enum cld_status run_fill_normal(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct fill *o = arg;
    return cld_fill_normal(c->q, &o->t->t, o->seed, o->stream, o->value, err);
}

/* Philox 2x32-10 as the paper writes it. */
static void philox(uint32_t key, uint32_t counter[2])
{
    for (int round = 0; round < 10; round++, key += 0x9e3779b9u) {
        uint64_t product = (uint64_t)counter[0] * 0xd256d193u;
        counter[0] = (uint32_t)(product >> 32) ^ key ^ counter[1];
        counter[1] = (uint32_t)product;
    }
}

/* Uniform numbers as the kernel rounds them to float, everything after them in double. */
static double normal_reference(uint64_t seed, uint64_t stream, uint64_t element)
{
    uint64_t key = cld_random_u64(seed, CLD_RANDOM_INIT, stream, 0, 0);
    uint32_t counter[2] = {(uint32_t)element, (uint32_t)(element >> 32) ^ (uint32_t)(key >> 32)};
    philox((uint32_t)key, counter);
    float u = (float)counter[0] * 0x1p-32f + 0x1p-33f;
    double transpose = (double)(counter[1] >> 8) * 0x1p-24;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * transpose);
}

/* Mean, variance and kurtosis of n values that should be standard normal, within five deviations.
 */
static void check_moments(struct cld_check *c, const double *v, size_t n)
{
    double mean = 0, var = 0, fourth = 0, count = (double)n;
    for (size_t i = 0; i < n; i++)
        mean += v[i] / count;
    for (size_t i = 0; i < n; i++) {
        double d = (v[i] - mean) * (v[i] - mean);
        var += d / count;
        fourth += d * d / count;
    }
    if (fabs(mean) > 5 / sqrt(count) || fabs(var - 1) > 5 * sqrt(2 / count) ||
        fabs(fourth / (var * var) - 3) > 5 * sqrt(24 / count))
        cld_check_fail(c, "not normal: mean %g, variance %g, kurtosis %g of %zu values", mean, var,
                       fourth / (var * var), n);
}

static enum cld_status fill_case(struct cld_check *c, bool normal, size_t n, size_t cols,
                                 size_t pad, size_t skew, struct cld_error *err)
{
    struct fill o = {NULL, c->seed, 12345678901u, normal ? 1.0f : -0.3f};
    double *want;
    enum cld_status s = CLD_OK;
    cld_check_begin(c, "fill%s n=%zu c=%zu ld=+%zu skew=%zu", normal ? " normal" : "", n, cols, pad,
                    skew);
    c->pad = pad;
    c->skew = skew;
    if (c->skip || (s = cld_check_doubles(c, n * cols, &want, err)) ||
        (s = cld_check_output(c, "t", c->storage, n, cols, &o.t, err)))
        return s;
    for (size_t i = 0; i < n * cols; i++)
        want[i] = normal ? normal_reference(o.seed, o.stream, i) : o.value;
    if (normal && n * cols > 10000)
        check_moments(c, want, n * cols);
    if ((s = cld_check_twice(c, normal ? run_fill_normal : run_fill, &o, err)) ||
        (s = cld_check_compare(c, o.t, want, cld_check_bound_of(c->storage), err)))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

enum cld_status cld_check_fill(struct cld_check *c, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (cld_check_takes(c, true) && ((s = fill_case(c, false, 1024, 2048, 0, 0, err)) ||
                                     (s = fill_case(c, true, 1024, 2048, 0, 0, err))))
        return s;
    if (!cld_check_takes(c, false))
        return CLD_OK;
    /* Known answer: key and counter zero (the authors' test vectors). */
    uint32_t counter[2] = {0, 0};
    cld_check_begin(c, "fill: generator of the reference");
    philox(0, counter);
    if (counter[0] != 0xff1dae59u || counter[1] != 0x6cd10df2u)
        cld_check_fail(c, "Philox gives %08x %08x", (unsigned)counter[0], (unsigned)counter[1]);
    cld_check_end(c);
    for (int normal = 0; normal < 2 && !s; normal++)
        if ((s = fill_case(c, normal, 0, 3, 0, 0, err)) ||
            (s = fill_case(c, normal, 1, 1, 0, 0, err)) ||
            (s = fill_case(c, normal, 5, 17, 3, 1, err)))
            return s;
        else
            s = fill_case(c, normal, 3, 24000, 8, 0, err);
    return s;
}
