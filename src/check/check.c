#include "check/check.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/size.h"

enum { guard_elems = 128, max_tensors = 64 };

/* What guards and unwritten outputs hold. As a float it is NaN, so that a stray read shows too. */
static const uint32_t poison_f32 = 0x7fc0dead, poison_i32 = 0x5a5a5a5a;
static const uint16_t poison_bf16 = 0x7fc5;

static void put_poison(enum cld_dtype type, unsigned char *bytes, size_t i)
{
    if (type == CLD_BF16)
        memcpy(bytes + i * 2, &poison_bf16, 2);
    else
        memcpy(bytes + i * 4, type == CLD_I32 ? &poison_i32 : &poison_f32, 4);
}

/* Stores v rounded to the type and returns what is stored. */
static double put_value(enum cld_dtype type, unsigned char *bytes, size_t i, double v)
{
    if (type == CLD_I32) {
        int32_t n = (int32_t)v;
        memcpy(bytes + i * 4, &n, 4);
        return n;
    }
    float f = (float)v;
    if (type == CLD_BF16) {
        uint16_t h = cld_f32_to_bf16(f);
        memcpy(bytes + i * 2, &h, 2);
        return cld_bf16_to_f32(h);
    }
    memcpy(bytes + i * 4, &f, 4);
    return f;
}

static double get_value(enum cld_dtype type, const unsigned char *bytes, size_t i)
{
    if (type == CLD_BF16) {
        uint16_t h;
        memcpy(&h, bytes + i * 2, 2);
        return cld_bf16_to_f32(h);
    }
    if (type == CLD_I32) {
        int32_t n;
        memcpy(&n, bytes + i * 4, 4);
        return n;
    }
    float f;
    memcpy(&f, bytes + i * 4, 4);
    return f;
}

void cld_check_close(struct cld_check *c)
{
    for (size_t i = 0; i < c->n_tensors; i++) {
        struct cld_check_tensor *t = &c->tensors[i];
        cld_buf_free(t->t.buf);
        free(t->value);
        free(t->before);
        free(t->after);
    }
    for (size_t i = 0; i < c->n_owned; i++)
        free(c->owned[i]);
    cld_buf_free(c->scratch);
    free(c->tensors);
    c->scratch = NULL;
    c->n_owned = 0;
    c->tensors = NULL;
    c->n_tensors = c->cap_tensors = 0;
}

void cld_check_begin(struct cld_check *c, const char *fmt, ...)
{
    va_list ap;
    cld_check_close(c);
    va_start(ap, fmt);
    vsnprintf(c->name, sizeof c->name, fmt, ap);
    va_end(ap);
    c->n_random = 0;
    for (const char *at = c->name; *at; at++)
        c->n_random = cld_mix64(c->n_random ^ (unsigned char)*at);
    c->pad = c->skew = 0;
    c->failed = false;
    c->now = (struct cld_check_result){.op = c->op ? c->op->name : ""};
    c->n_gradients = 0;
    c->skip = (c->only && strcmp(c->only, c->name)) || (c->mode == CLD_CHECK_SUPPORT && c->worked);
}

bool cld_check_takes(const struct cld_check *c, bool timed)
{
    return cld_queue_lists(c->q) || timed == (c->mode == CLD_CHECK_PERF);
}

void cld_check_fail(struct cld_check *c, const char *fmt, ...)
{
    va_list ap;
    if (c->failed) /* the first reason explains the most */
        return;
    c->failed = true;
    va_start(ap, fmt);
    vsnprintf(c->now.why, sizeof c->now.why, fmt, ap);
    va_end(ap);
}

static void add_result(struct cld_check *c, enum cld_check_verdict verdict)
{
    struct cld_error ignored = CLD_ERROR_INIT; /* the list of results counts them */
    struct cld_check_result *r = &c->now;
    r->verdict = verdict;
    r->storage = c->storage;
    r->family =
        cld_queue_class(c->q) == CLD_CLASS_CPU ? CLD_KERNEL_FAMILY_CPU : CLD_KERNEL_FAMILY_GPU;
    snprintf(r->name, sizeof r->name, "%s", verdict == CLD_CHECK_UNSUPPORTED ? "" : c->name);
    if (c->results)
        cld_check_results_add(c->results, r, &ignored);
}

void cld_check_unsupported(struct cld_check *c, const char *fmt, ...)
{
    va_list ap;
    c->now = (struct cld_check_result){.op = c->op ? c->op->name : ""};
    va_start(ap, fmt);
    vsnprintf(c->now.why, sizeof c->now.why, fmt, ap);
    va_end(ap);
    add_result(c, CLD_CHECK_UNSUPPORTED);
}

/* Whether the case has any work: a kernel may not even be built for tensors without elements. */
static bool has_work(const struct cld_check *c)
{
    for (size_t i = 0; i < c->n_tensors; i++)
        if (!cld_tensor_elems(&c->tensors[i].t))
            return false;
    return c->n_tensors > 0;
}

void cld_check_end(struct cld_check *c)
{
    bool worked = has_work(c);
    if (cld_queue_lists(c->q) || c->skip) /* nothing was computed */
        return;
    if (!c->failed && ((c->mode == CLD_CHECK_GRAD && !c->n_gradients) ||
                       (c->mode == CLD_CHECK_SUPPORT && !worked)))
        return;
    c->worked = c->worked || worked;
    c->n_passed += !c->failed;
    c->n_failed += c->failed;
    add_result(c, c->failed ? CLD_CHECK_FAILED : CLD_CHECK_PASSED);
}

/* A tensor whose image is poison everywhere; the caller fills in values and uploads. */
static enum cld_status add_tensor(struct cld_check *c, const char *name, enum cld_dtype type,
                                  size_t n_rows, size_t n_cols, struct cld_check_tensor **out,
                                  struct cld_error *err)
{
    *out = NULL;
    if (!c->tensors) {
        if (!(c->tensors = calloc(max_tensors, sizeof *c->tensors)))
            return cld_fail_memory(err, "the tensors of a check");
        c->cap_tensors = max_tensors;
    }
    if (c->n_tensors == c->cap_tensors)
        return cld_fail(err, CLD_E_INTERNAL, "", "%s: more than %d tensors in a case", c->name,
                        max_tensors);
    if (type != CLD_F32 && type != CLD_BF16 && type != CLD_I32)
        return cld_fail(err, CLD_E_INTERNAL, "", "%s: no checks of %s tensors", c->name,
                        cld_dtype_name(type));
    struct cld_check_tensor *t = &c->tensors[c->n_tensors++];
    size_t guard = cld_queue_device(c->q)->quirks & CLD_QUIRK_SEES_MEMORY ? 0 : guard_elems;
    t->t = (struct cld_tensor){name, type, n_rows, n_cols, n_cols + c->pad, NULL, guard + c->skew};
    size_t span = n_rows ? (n_rows - 1) * t->t.ld + n_cols : 0;
    size_t n = t->t.offset + span + guard;
    t->n_bytes = n * cld_dtype_bytes(type);
    if (!(t->before = malloc(t->n_bytes)) || !(t->after = malloc(t->n_bytes)))
        return cld_fail_memory(err, "%zu bytes of '%s'", t->n_bytes, name);
    for (size_t i = 0; i < n; i++)
        put_poison(type, t->before, i);
    *out = t;
    return cld_buf_create(c->q, name, t->n_bytes, &t->t.buf, err);
}

static enum cld_status upload(const struct cld_check_tensor *t, struct cld_error *err)
{
    return cld_buf_write(t->t.buf, 0, t->before, t->n_bytes, err);
}

enum cld_status cld_check_values(struct cld_check *c, const char *name, enum cld_dtype type,
                                 size_t n_rows, size_t n_cols, const double *values,
                                 struct cld_check_tensor **out, struct cld_error *err)
{
    struct cld_check_tensor *t;
    size_t n = n_rows * n_cols;
    enum cld_status s = add_tensor(c, name, type, n_rows, n_cols, &t, err);
    *out = t;
    if (s)
        return s;
    if (!(t->value = malloc((n + 1) * sizeof *t->value)))
        return cld_fail_memory(err, "the values of '%s'", name);
    for (size_t r = 0, i = 0; r < n_rows; r++)
        for (size_t at = t->t.offset + r * t->t.ld, end = at + n_cols; at < end; at++, i++)
            t->value[i] = put_value(type, t->before, at, values[i]);
    return upload(t, err);
}

/* The sum of four uniform numbers of 16 bits, with deviation 1: millions are made, and a logarithm
 * and a cosine for each take longer than the operation under test. */
static double about_normal(uint64_t bits)
{
    uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    return ((double)sum * 0x1p-16 - 2) * 1.7320508075688772;
}

enum cld_status cld_check_input(struct cld_check *c, const char *name, enum cld_dtype type,
                                size_t n_rows, size_t n_cols, double scale,
                                struct cld_check_tensor **out, struct cld_error *err)
{
    size_t n = n_rows * n_cols;
    uint64_t key = c->n_random++;
    double *values = malloc((n + 1) * sizeof *values);
    *out = NULL;
    if (!values)
        return cld_fail_memory(err, "the values of '%s'", name);
    for (size_t i = 0; i < n; i++)
        values[i] = scale * about_normal(cld_random_u64(c->seed, CLD_RANDOM_TEST, key, i, 0));
    enum cld_status s = cld_check_values(c, name, type, n_rows, n_cols, values, out, err);
    free(values);
    return s;
}

enum cld_status cld_check_output(struct cld_check *c, const char *name, enum cld_dtype type,
                                 size_t n_rows, size_t n_cols, struct cld_check_tensor **out,
                                 struct cld_error *err)
{
    enum cld_status s = add_tensor(c, name, type, n_rows, n_cols, out, err);
    if (s)
        return s;
    (*out)->output = true;
    return upload(*out, err);
}

enum cld_status cld_check_doubles(struct cld_check *c, size_t n, double **out,
                                  struct cld_error *err)
{
    *out = NULL;
    if (c->n_owned == sizeof c->owned / sizeof *c->owned)
        return cld_fail(err, CLD_E_INTERNAL, "", "%s: too many host arrays in a case", c->name);
    if (!(*out = calloc(n + 1, sizeof **out)))
        return cld_fail_memory(err, "%zu reference values", n);
    c->owned[c->n_owned++] = *out;
    return CLD_OK;
}

enum cld_status cld_check_scratch(struct cld_check *c, size_t n_bytes, struct cld_buf **out,
                                  struct cld_error *err)
{
    cld_buf_free(c->scratch);
    c->scratch = NULL;
    enum cld_status s = cld_buf_create(c->q, "scratch of a check", n_bytes, &c->scratch, err);
    *out = c->scratch;
    return s ? s : cld_buf_fill(c->scratch, 0, cld_buf_bytes(c->scratch), poison_f32, err);
}

/* Everything outside the rows must hold what it held before. */
static void check_guards(struct cld_check *c, const struct cld_check_tensor *t,
                         const unsigned char *now)
{
    size_t size = cld_dtype_bytes(t->t.type), n = t->n_bytes / size, from = 0;
    for (size_t r = 0; r <= t->t.n_rows; r++) {
        size_t to = r < t->t.n_rows ? t->t.offset + r * t->t.ld : n;
        for (size_t i = from; i < to; i++)
            if (memcmp(now + i * size, t->before + i * size, size)) {
                cld_check_fail(c,
                               "'%s' [%zu, %zu] ld %zu: wrote outside, element %+lld from its "
                               "begin",
                               t->t.name, t->t.n_rows, t->t.n_cols, t->t.ld,
                               (long long)i - (long long)t->t.offset);
                return;
            }
        from = to + t->t.n_cols;
    }
}

bool cld_check_within(struct cld_check *c, enum cld_check_bound bound, double nmse, double max)
{
    double rel = cld_check_bounds[bound].rel;
    bool within = nmse <= rel * rel && max <= 8 * rel;
    double part = nmse > 0 || max > 0 ? fmax(sqrt(nmse) / rel, max / (8 * rel)) : 0;
    if (c->op && !(c->op->bounds >> bound & 1))
        cld_check_fail(c, "the bound '%s' is not among those of %s", cld_check_bounds[bound].name,
                       c->op->name);
    if (part >= c->now.worst) {
        c->now.worst = part;
        c->now.nmse = nmse;
        c->now.max = max;
        c->now.bound = bound;
    }
    return within;
}

enum cld_status cld_check_compare(struct cld_check *c, const struct cld_check_tensor *t,
                                  const double *want, enum cld_check_bound bound,
                                  struct cld_error *err)
{
    if (c->skip)
        return CLD_OK;
    enum cld_status s = CLD_OK;
    size_t n = cld_tensor_elems(&t->t), worst_at = 0;
    double diff2 = 0, want2 = 0, diff_max = 0, want_max = 0;
    unsigned char *now = malloc(t->n_bytes);
    if (!now)
        return cld_fail_memory(err, "%zu bytes of '%s'", t->n_bytes, t->t.name);
    if ((s = cld_buf_read(t->t.buf, 0, now, t->n_bytes, err)))
        goto done;
    check_guards(c, t, now);
    for (size_t i = 0, at = t->t.offset, column = 0; i < n; i++) {
        double got = get_value(t->t.type, now, at), d = fabs(got - want[i]);
        if (++column < t->t.n_cols) {
            at++;
        } else {
            at += t->t.ld - t->t.n_cols + 1;
            column = 0;
        }
        if (!isfinite(got) || !isfinite(want[i]) || (t->t.type == CLD_I32 && d != 0)) {
            cld_check_fail(c, "'%s' [%zu, %zu]: element (%zu, %zu) is %.9g, want %.9g", t->t.name,
                           t->t.n_rows, t->t.n_cols, i / t->t.n_cols, i % t->t.n_cols, got,
                           want[i]);
            goto done;
        }
        diff2 += d * d;
        want2 += want[i] * want[i];
        want_max = fmax(want_max, fabs(want[i]));
        if (d > diff_max) {
            diff_max = d;
            worst_at = i;
        }
    }
    /* Nothing wanted and nothing there is no error; anything there is an infinite one. */
    double nmse = diff2 > 0 ? diff2 / want2 : 0, max = diff_max > 0 ? diff_max / want_max : 0;
    if (!cld_check_within(c, bound, nmse, max))
        cld_check_fail(c,
                       "'%s' [%zu, %zu]: relative error %.3g (allowed %.3g), largest %.3g at "
                       "(%zu, %zu), want %.9g",
                       t->t.name, t->t.n_rows, t->t.n_cols, sqrt(nmse), cld_check_bounds[bound].rel,
                       diff_max, worst_at / t->t.n_cols, worst_at % t->t.n_cols, want[worst_at]);
done:
    free(now);
    return s;
}

/* One run from the initial state; outputs and guards come back into `after` or are compared with
 * it. */
static enum cld_status run_once(struct cld_check *c, bool first,
                                enum cld_status (*body)(struct cld_check *c, void *arg,
                                                        struct cld_error *err),
                                void *arg, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    unsigned char *now = NULL;
    for (size_t i = 0; i < c->n_tensors; i++)
        if ((s = upload(&c->tensors[i], err)))
            return s;
    if ((s = body(c, arg, err)) || (s = cld_queue_finish(c->q, err)))
        return s;
    for (size_t i = 0; i < c->n_tensors && !s; i++) {
        struct cld_check_tensor *t = &c->tensors[i];
        free(now);
        if (!(now = malloc(t->n_bytes)))
            return cld_fail_memory(err, "%zu bytes of '%s'", t->n_bytes, t->t.name);
        if ((s = cld_buf_read(t->t.buf, 0, now, t->n_bytes, err)))
            break;
        check_guards(c, t, now);
        if (!t->output && memcmp(now, t->before, t->n_bytes))
            cld_check_fail(c, "input '%s' was changed", t->t.name);
        if (!first && memcmp(now, t->after, t->n_bytes))
            cld_check_fail(c, "'%s': two runs differ", t->t.name);
        memcpy(t->after, now, t->n_bytes);
    }
    free(now);
    return s;
}

static bool too_large(const struct cld_check *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n_tensors; i++)
        n += cld_tensor_elems(&c->tensors[i].t);
    return c->max_elems && n > c->max_elems;
}

enum cld_status cld_check_twice(struct cld_check *c,
                                enum cld_status (*body)(struct cld_check *c, void *arg,
                                                        struct cld_error *err),
                                void *arg, struct cld_error *err)
{
    c->skip = c->skip || too_large(c);
    if (c->skip)
        return CLD_OK;
    enum cld_status s = run_once(c, true, body, arg, err);
    if (s || (s = run_once(c, false, body, arg, err)) || c->mode != CLD_CHECK_PERF ||
        c->now.ms > 0 || cld_queue_lists(c->q))
        return s;
    /* Where the operation adds to what is there, it is what ran once that is compared. */
    return (s = cld_check_time(c, body, arg, err)) ? s : run_once(c, false, body, arg, err);
}
