#include "bench/tune.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/size.h"
#include "ops/tuning.h"

enum { max_samples = 64 };

/* Spill that is no reason yet: drivers count a little for themselves. */
enum { spare_private_bytes = 256 };

struct tuner {
    struct cld_queue *q;
    const struct cld_tune_subject *subject;
    const struct cld_tune_limits *limits;
    const struct cld_tunable_kernel *family;
    struct cld_tuned_row standard;
    size_t runs;          /* passes in a sample */
    size_t private_bytes; /* of a work-item of the default's kernels */
    FILE *to;
    struct cld_tune_result *out;
};

/* What is known of a candidate. Times are of one pass. */
struct measured {
    double ms, default_ms, noise; /* medians; noise as a share */
};

static double gain(const struct measured *m)
{
    return 1 - m->ms / m->default_ms;
}

static void set_row(struct tuner *t, const struct cld_tuned_row *row, bool all_classes)
{
    for (size_t c = 0; c < cld_tuned_n_classes(t->family); c++)
        if (all_classes || c == t->subject->class)
            cld_queue_set_row(t->q, t->family, c, row);
}

/* --- time ------------------------------------------------------------------------------------- */

/* By the device's events, of all kernels of a pass, on average over the runs of a sample. */
static enum cld_status take_sample(struct tuner *t, const struct cld_tuned_row *row, double *ms,
                                   struct cld_error *err)
{
    struct cld_kernel_time *times = NULL;
    size_t n = 0;
    enum cld_status s = CLD_OK;
    set_row(t, row, false);
    cld_queue_times_reset(t->q);
    for (size_t i = 0; i < t->runs && !s; i++)
        s = t->subject->pass(t->q, t->subject->arg, err);
    if (s || (s = cld_queue_times(t->q, &times, &n, err)))
        return s;
    *ms = 0;
    for (size_t i = 0; i < n; i++)
        *ms += times[i].ms / (double)t->runs;
    free(times);
    return *ms > 0 ? CLD_OK
                   : cld_fail(err, CLD_E_DEVICE, "tune another device",
                              "%s: events of the device have no times", cld_queue_name(t->q));
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts; *spread is the distance of the quartiles. */
static double median(double *ms, size_t n, double *spread)
{
    qsort(ms, n, sizeof *ms, by_value);
    *spread = ms[n - 1 - n / 4] - ms[n / 4];
    return (ms[(n - 1) / 2] + ms[n / 2]) / 2;
}

/* Samples of both, alternating, so that other work on the machine affects both equally. A candidate
 * that is much slower is given up early. */
static enum cld_status compare(struct tuner *t, const struct cld_tuned_row *row, size_t repeats,
                               struct measured *m, struct cld_error *err)
{
    double ours[max_samples], theirs[max_samples], a, b, unused;
    size_t n = 0;
    enum cld_status s = take_sample(t, row, &unused, err); /* its first run is slower */
    repeats = cld_min(repeats, max_samples);
    while (!s && n < repeats) {
        if ((s = take_sample(t, &t->standard, &theirs[n], err)) ||
            (s = take_sample(t, row, &ours[n], err)) || (s = cld_signals_check(err)))
            return s;
        n++;
        if (n == 2 && fmin(ours[0], ours[1]) > 1.3 * fmax(theirs[0], theirs[1]))
            break;
    }
    if (s)
        return s;
    m->ms = median(ours, n, &a);
    m->default_ms = median(theirs, n, &b);
    m->noise = fmax(0.005, fmax(a / m->ms, b / m->default_ms));
    return CLD_OK;
}

/* So many passes that a sample takes min_ms. */
static enum cld_status find_runs(struct tuner *t, struct cld_error *err)
{
    double ms = 0;
    t->runs = 1;
    enum cld_status s = take_sample(t, &t->standard, &ms, err);
    if (s || (s = take_sample(t, &t->standard, &ms, err)))
        return s;
    t->runs = (size_t)fmin(1000, fmax(1, ceil(t->limits->min_ms / ms)));
    return CLD_OK;
}

/* --- is it right ------------------------------------------------------------------------------ */

/* False, and why: cases that fail, or that the device does not run. */
static enum cld_status check(struct tuner *t, const struct cld_tuned_row *row,
                             const struct cld_check_op *op, bool *right, char *why, size_t n_bytes,
                             struct cld_error *err)
{
    struct cld_check_results results = {0};
    struct cld_check c = {
        .q = t->q, .seed = 1, .storage = t->subject->storage, .op = op, .results = &results};
    set_row(t, row, true);
    enum cld_status s = op->run(&c, err);
    *right = !s && !c.n_failed && c.n_passed;
    if (c.n_failed) {
        size_t i = 0;
        while (i < results.n && results.at[i].verdict != CLD_CHECK_FAILED)
            i++;
        snprintf(why, n_bytes, "wrong: %zu of %zu checks fail, first '%s': %s", c.n_failed,
                 c.n_failed + c.n_passed, i < results.n ? results.at[i].name : "?",
                 i < results.n ? results.at[i].why : "?");
    } else if (s) {
        snprintf(why, n_bytes, "refused: %s", err->what);
    } else if (!c.n_passed) {
        snprintf(why, n_bytes, "there is no check for it on this device");
    }
    cld_check_close(&c);
    cld_check_results_free(&results);
    set_row(t, &t->standard, true);
    if (s == CLD_E_DEVICE) { /* the candidate's affair */
        *err = (struct cld_error)CLD_ERROR_INIT;
        s = CLD_OK;
    }
    return s;
}

/* --- candidates ------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void
tell(const struct tuner *t, const struct cld_tuned_row *row, const char *fmt, ...)
{
    char values[160];
    va_list args;
    if (!t->to)
        return;
    cld_tuned_row_text(t->family, row, &t->standard, values, sizeof values);
    fprintf(t->to, "  %s/%s %s: ", t->family->name, t->family->classes[t->subject->class],
            *values ? values : "default");
    va_start(args, fmt);
    vfprintf(t->to, fmt, args);
    va_end(args);
    fputc('\n', t->to);
    fflush(t->to);
}

/* Builds, and asks the driver. *fits: it may run. */
static enum cld_status build(struct tuner *t, const struct cld_tuned_row *row, size_t most_private,
                             bool *fits, size_t *private_bytes, char *why, size_t n_bytes,
                             struct cld_error *err)
{
    size_t n_before = cld_queue_counts(t->q).n_kernels;
    set_row(t, row, true);
    enum cld_status s = t->subject->build(t->q, t->subject->arg, err);
    set_row(t, &t->standard, true);
    *fits = !s && cld_kernels_fit(t->q, n_before, most_private, private_bytes, why, n_bytes);
    if (s == CLD_E_DEVICE) {
        snprintf(why, n_bytes, "it does not build: %s", err->what);
        *err = (struct cld_error)CLD_ERROR_INIT;
        s = CLD_OK;
    }
    return s;
}

/* Filters, checks and times a candidate. *counts: it has times. */
static enum cld_status try(struct tuner *t, const struct cld_tuned_row *row, struct measured *m,
                           bool *counts, struct cld_error *err)
{
    char why[512];
    size_t private_bytes = 0;
    bool right = false, fits = false;
    enum cld_status s = cld_signals_check(err);
    const char *objection =
        cld_tuned_row_objection(t->family, cld_queue_device(t->q), row, why, sizeof why);
    *counts = false;
    t->out->n_candidates++;
    if (s)
        return s;
    if (!objection && (s = build(t, row, t->private_bytes + spare_private_bytes, &fits,
                                 &private_bytes, why, sizeof why, err)))
        return s;
    if (objection || !fits) {
        t->out->n_filtered++;
        tell(t, row, "filtered: %s", objection ? objection : why);
        return CLD_OK;
    }
    if ((s = check(t, row, t->subject->quick, &right, why, sizeof why, err)))
        return s;
    if (!right) {
        t->out->n_wrong++;
        tell(t, row, "%s", why);
        return CLD_OK;
    }
    if ((s = compare(t, row, t->limits->repeats, m, err)))
        return s;
    *counts = true;
    t->out->n_slower += gain(m) <= 0;
    tell(t, row, "%.4f ms, default %.4f ms: %+.1f %% (noise %.1f %%)", m->ms, m->default_ms,
         100 * gain(m), 100 * m->noise);
    return CLD_OK;
}

static bool is_over(const struct tuner *t)
{
    return t->limits->deadline_ms > 0 && cld_clock_ms() > t->limits->deadline_ms;
}

/* One parameter after the other; *best stays the default where nothing beats it. */
static enum cld_status search(struct tuner *t, struct cld_tuned_row *best, bool *complete,
                              struct cld_error *err)
{
    double best_gain = 0;
    *complete = false;
    *best = t->standard;
    for (size_t p = 0; p < t->family->n_params; p++) {
        const struct cld_tuned_param *param = &t->family->params[p];
        struct cld_tuned_row from = *best;
        for (size_t v = 0; v < param->n_values; v++) {
            struct cld_tuned_row row = from;
            struct measured m;
            bool counts = false;
            row.v[p] = param->values[v];
            if (cld_tuned_row_equal(&row, &from) || cld_tuned_row_equal(&row, &t->standard))
                continue;
            if (is_over(t))
                return CLD_OK;
            enum cld_status s = try(t, &row, &m, &counts, err);
            if (s)
                return s;
            if (counts && gain(&m) > best_gain + m.noise) {
                best_gain = gain(&m);
                *best = row;
            }
        }
    }
    *complete = true;
    return CLD_OK;
}

/* The best of many measurements is the luckiest, too: it is checked by all there is, measured
 * again for longer, and must win again. */
static enum cld_status confirm(struct tuner *t, struct cld_tuned_row *best, struct measured *m,
                               struct cld_error *err)
{
    char why[512];
    bool right = true;
    enum cld_status s = CLD_OK;
    bool same = cld_tuned_row_equal(best, &t->standard);
    if (!same && (s = check(t, best, t->subject->whole, &right, why, sizeof why, err)))
        return s;
    if (!right) {
        t->out->n_wrong++;
        tell(t, best, "it would have won, but is %s", why);
    } else if ((s = compare(t, best, 2 * t->limits->repeats, m, err))) {
        return s;
    }
    if (!same && right && gain(m) > m->noise) {
        tell(t, best, "wins: %+.1f %%", 100 * gain(m));
        return CLD_OK;
    }
    if (!same && right)
        tell(t, best, "does not win again: %+.1f %% (noise %.1f %%)", 100 * gain(m),
             100 * m->noise);
    *best = t->standard;
    if (!right)
        s = compare(t, best, 2 * t->limits->repeats, m, err);
    m->ms = m->default_ms;
    return s;
}

enum cld_status cld_tune_class(struct cld_queue *q, const struct cld_tune_subject *subject,
                               const struct cld_tune_limits *limits, FILE *to,
                               struct cld_tune_result *out, struct cld_error *err)
{
    const struct cld_tunable_kernel *family = cld_tunable_kernel(subject->family);
    struct tuner t = {.q = q,
                      .subject = subject,
                      .limits = limits,
                      .family = family,
                      .standard = family->defaults(cld_queue_device(q)),
                      .to = to,
                      .out = out};
    struct cld_tuned_row best;
    struct measured m = {0};
    char why[512];
    bool fits = false;
    memset(out, 0, sizeof *out);
    enum cld_status s =
        build(&t, &t.standard, SIZE_MAX, &fits, &t.private_bytes, why, sizeof why, err);
    if (!s && !fits)
        s = cld_fail(
            err, CLD_E_DEVICE, "leave the kernel out with --only, and run 'cldraft check-kernels'",
            "%s: the default of %s cannot be used: %s", cld_queue_name(q), family->name, why);
    if (s || (s = find_runs(&t, err)) || (s = search(&t, &best, &out->complete, err)) ||
        (s = confirm(&t, &best, &m, err)))
        goto done;
    out->record = (struct cld_tuned_result){.family = subject->family,
                                            .class = subject->class,
                                            .row = best,
                                            .ms = m.ms,
                                            .default_ms = m.default_ms,
                                            .noise = m.noise};
    snprintf(out->record.of, sizeof out->record.of, "%s", subject->of);
done:
    set_row(&t, &t.standard, true);
    return s;
}
