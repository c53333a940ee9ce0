/* The charts of a report. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "formats/svg.h"
#include "report/report_private.h"

/* Pixels of a chart where it is as wide as a phone; on a wide page three stand beside each other.
 */
enum { chart_width = 420, chart_height = 280 };
/* Points of a curve. A longer one is cut into so many parts, each drawn as its mean, least and
 * most. */
enum { most_points = 100 };
/* A curve of more points shows a point only under the pointer. */
enum { most_marks = 24 };
enum { most_curves = CLD_REPORT_MOST_RUNS, most_positions = 8 };

struct curve {
    char name[80];
    double *x, *y, *low, *high; /* [n]; the last two NULL: nothing was put together */
    size_t n;
    bool plain, no_line;
};

struct chart {
    const struct cld_report *r;
    const char *title, *note;
    struct cld_svg_axis x, y;
    struct curve curves[most_curves];
    size_t n;
    double least, most; /* of all y */
    bool has_no_memory;
};

static void chart_begin(struct chart *c, const struct cld_report *r, const char *title,
                        const char *note)
{
    *c = (struct chart){.r = r, .title = title, .note = note, .least = INFINITY, .most = -INFINITY};
    c->x.label = "step";
}

/* --- curves ----------------------------------------------------------------------------------- */

static void free_curve(struct curve *v)
{
    free(v->x);
    free(v->y);
    free(v->low);
    free(v->high);
}

/* A new curve of n points, with a band if it is to have one; NULL: too many curves, or no memory.
 */
static struct curve *new_curve(struct chart *c, const char *name, size_t n, bool band)
{
    struct curve *v = c->n < most_curves ? &c->curves[c->n] : NULL;
    if (!v || !n)
        return NULL;
    *v = (struct curve){.n = n};
    snprintf(v->name, sizeof v->name, "%s", name);
    v->x = calloc(n, sizeof *v->x);
    v->y = calloc(n, sizeof *v->y);
    if (band) {
        v->low = calloc(n, sizeof *v->low);
        v->high = calloc(n, sizeof *v->high);
    }
    if (!v->x || !v->y || (band && (!v->low || !v->high))) {
        free_curve(v);
        c->has_no_memory = true;
        return NULL;
    }
    c->n++;
    return v;
}

/* A run without this series must not give its colour to the next one. */
static void keep_colours(struct chart *c, size_t n)
{
    while (c->n < n && c->n < most_curves)
        c->curves[c->n++] = (struct curve){.n = 0};
}

static void note_range(struct chart *c, double y)
{
    if (isfinite(y)) {
        c->least = fmin(c->least, y);
        c->most = fmax(c->most, y);
    }
}

/* Mean, least and most of the finite values of points [from, to); NaN where there are none. */
static void gather(const struct cld_series *s, size_t from, size_t to, struct curve *v, size_t at)
{
    double sum = 0, steps = 0;
    size_t n = 0;
    v->low[at] = INFINITY;
    v->high[at] = -INFINITY;
    for (size_t i = from; i < to; i++) {
        steps += s->step[i];
        if (!isfinite(s->value[i]))
            continue;
        sum += s->value[i];
        n++;
        v->low[at] = fmin(v->low[at], s->value[i]);
        v->high[at] = fmax(v->high[at], s->value[i]);
    }
    v->x[at] = round(steps / (double)(to - from));
    v->y[at] = n ? sum / (double)n : NAN;
}

/* y = value * scale + offset over steps. */
static void add_curve(struct chart *c, const char *name, const struct cld_series *s, double scale,
                      double offset)
{
    bool is_long = s && s->n > most_points;
    struct curve *v = s ? new_curve(c, name, is_long ? most_points : s->n, is_long) : NULL;
    for (size_t i = 0; v && i < v->n; i++) {
        if (is_long) {
            gather(s, i * s->n / v->n, (i + 1) * s->n / v->n, v, i);
            v->low[i] = v->low[i] * scale + offset;
            v->high[i] = v->high[i] * scale + offset;
            note_range(c, v->low[i]);
            note_range(c, v->high[i]);
        } else {
            v->x[i] = s->step[i];
            v->y[i] = s->value[i];
        }
        v->y[i] = v->y[i] * scale + offset;
        note_range(c, v->y[i]);
    }
}

/* Vertical lines over the height of what is drawn, at steps[0..n). */
static void add_verticals(struct chart *c, const char *name, const double *steps, size_t n)
{
    struct curve *v = c->least < c->most ? new_curve(c, name, 3 * n, false) : NULL;
    for (size_t i = 0; v && i < n; i++) {
        v->x[3 * i] = v->x[3 * i + 1] = steps[i];
        v->x[3 * i + 2] = NAN; /* ends the line */
        v->y[3 * i] = c->least;
        v->y[3 * i + 1] = c->most;
        v->y[3 * i + 2] = NAN;
    }
    if (v)
        v->plain = true;
}

/* Where the run went on after a stop, and which steps had no finite gradient. */
static void add_events(struct chart *c, const struct cld_run_data *run)
{
    double steps[64];
    size_t n = 0;
    for (size_t i = 0; i < run->n_events && n < 64; i++)
        if (run->events[i].kind == CLD_EVENT_RESUMED && isfinite(run->events[i].first))
            steps[n++] = run->events[i].first;
    add_verticals(c, "resumed", steps, n);
    const struct cld_series *skipped = cld_run_data_series(run, "skipped");
    n = 0;
    for (size_t i = 0; skipped && i < skipped->n && n < 64; i++)
        if (skipped->value[i] > 0)
            steps[n++] = skipped->step[i];
    struct curve *v = isfinite(c->least) ? new_curve(c, "skipped step", n, false) : NULL;
    for (size_t i = 0; v && i < n; i++) {
        v->x[i] = steps[i];
        v->y[i] = c->least;
    }
    if (v)
        v->plain = v->no_line = true;
}

/* --- a chart ---------------------------------------------------------------------------------- */

static bool is_quiet(const struct curve *v)
{
    return v->n > most_marks && !v->plain;
}

static void fill_series(const struct chart *c, struct cld_svg_series *to, char *class, size_t n)
{
    size_t used = 0, colour = 0;
    class[0] = 0;
    for (size_t i = 0; i < c->n; i++) {
        const struct curve *v = &c->curves[i];
        to[i] = (struct cld_svg_series){.name = v->n ? v->name : NULL,
                                        .x = v->x,
                                        .y = v->y,
                                        .low = v->low,
                                        .high = v->high,
                                        .n = v->n,
                                        .plain = v->plain,
                                        .no_marks = v->plain && !v->no_line,
                                        .no_line = v->no_line};
        if (is_quiet(v) && used < n)
            used += (size_t)snprintf(class + used, n - used, "%squiet%zu", used ? " " : "",
                                     colour % most_positions);
        colour += !v->plain;
    }
}

/* Writes it, unless there is nothing in it, and frees it. */
static enum cld_status chart_end(struct chart *c, struct cld_error *err)
{
    FILE *to = c->r->to;
    struct cld_svg_series series[most_curves];
    char class[256];
    fill_series(c, series, class, sizeof class);
    struct cld_svg_chart chart = {.x = c->x,
                                  .y = c->y,
                                  .series = series,
                                  .n_series = c->n,
                                  .width = chart_width,
                                  .height = chart_height};
    if (isfinite(c->least)) {
        fprintf(to, "<figure>\n<figcaption><b>%s</b> %s</figcaption>\n", c->title, c->note);
        cld_svg_write_chart(&chart, class, to);
        fputs("</figure>\n", to);
    }
    for (size_t i = 0; i < c->n; i++)
        free_curve(&c->curves[i]);
    return c->has_no_memory ? cld_fail_memory(err, "a chart") : CLD_OK;
}

/* One curve of a chart of one run; with several, it makes a chart of its own, with a curve a run.
 */
struct part {
    const char *key, *name;
    double scale, offset;
    const char *title, *note; /* with several runs; NULL: not compared */
};

/* A chart of one run's keys, or a chart of each key with all runs. `fit`: a log axis where values
 * span much. `from_zero`: the axis begins at 0. */
struct kind {
    const char *title, *note, *unit;
    bool fit, from_zero, events;
    struct part parts[6]; /* ends with a NULL key */
};

static void finish_axis(struct chart *c, const struct kind *k)
{
    c->y.label = k->unit;
    if (k->from_zero && c->least >= 0) {
        c->y.min = 0;
        c->y.max = c->most > 0 ? c->most : 1;
    }
    const double ends[] = {c->least, c->most};
    if (k->fit && c->least > 0)
        c->y.scale = cld_svg_fit(ends, 2) == CLD_SVG_LOG10 ? CLD_SVG_LOG10 : CLD_SVG_LINEAR;
}

static enum cld_status draw_one(const struct cld_report *r, const struct kind *k,
                                struct cld_error *err)
{
    struct chart c;
    chart_begin(&c, r, k->title, k->note);
    for (const struct part *p = k->parts; p->key; p++)
        add_curve(&c, p->name, cld_run_data_series(r->runs, p->key), p->scale, p->offset);
    if (k->events)
        add_events(&c, r->runs);
    finish_axis(&c, k);
    return chart_end(&c, err);
}

static enum cld_status draw_compared(const struct cld_report *r, const struct kind *k,
                                     struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char name[CLD_REPORT_NAME_BYTES];
    for (const struct part *p = k->parts; p->key && !s; p++) {
        struct chart c;
        if (!p->title)
            continue;
        chart_begin(&c, r, p->title, p->note);
        for (size_t i = 0; i < r->n; i++) {
            add_curve(&c, cld_report_name(r, i, name), cld_run_data_series(&r->runs[i], p->key),
                      p->scale, p->offset);
            keep_colours(&c, i + 1);
        }
        finish_axis(&c, k);
        s = chart_end(&c, err);
    }
    return s;
}

static enum cld_status draw(const struct cld_report *r, const struct kind *k, struct cld_error *err)
{
    return r->n > 1 ? draw_compared(r, k, err) : draw_one(r, k, err);
}

/* --- positions -------------------------------------------------------------------------------- */

/* How many keys PREFIX1, PREFIX2, ... the run has. */
static size_t n_positions(const struct cld_run_data *run, const char *prefix)
{
    char key[64];
    size_t n = 0;
    do
        snprintf(key, sizeof key, "%s%zu", prefix, n + 1);
    while (cld_run_data_series(run, key) && ++n < 64);
    return n;
}

/* All where they are few; else the first, some of the middle and the last. The number of them. */
static size_t choose_positions(size_t n, size_t chosen[most_positions])
{
    static const size_t some[most_positions - 1] = {1, 2, 3, 4, 6, 8, 12};
    size_t m = 0;
    if (n <= most_positions) {
        for (; m < n; m++)
            chosen[m] = m + 1;
        return m;
    }
    while (m < most_positions - 1 && some[m] < n) {
        chosen[m] = some[m];
        m++;
    }
    chosen[m++] = n;
    return m;
}

static enum cld_status draw_positions_by_step(const struct cld_report *r, struct cld_error *err)
{
    bool heldout = n_positions(r->runs, "heldout_accuracy_") > 0;
    const char *prefix = heldout ? "heldout_accuracy_" : "accuracy_";
    struct chart c;
    char key[64], name[32];
    size_t chosen[most_positions], n = choose_positions(n_positions(r->runs, prefix), chosen);
    chart_begin(&c, r, "Acceptance by position",
                heldout ? "share of drafted tokens that are the target's, by their place in the "
                          "block; held-out rows"
                        : "share of drafted tokens that are the target's, by their place in the "
                          "block; training rows, for lack of an evaluation");
    for (size_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "%s%zu", prefix, chosen[i]);
        snprintf(name, sizeof name, "%zu", chosen[i]);
        add_curve(&c, name, cld_run_data_series(r->runs, key), 1, 0);
    }
    c.y.min = 0;
    c.y.max = c.most > 0 ? c.most : 1;
    return chart_end(&c, err);
}

/* Mean of the last values, at most 50; NaN where none is finite. */
static double recent(const struct cld_series *s, bool last_alone)
{
    double sum = 0;
    size_t n = 0, most = last_alone ? 1 : 50;
    for (size_t i = s ? s->n : 0, seen = 0; i-- > 0 && seen < most; seen++)
        if (isfinite(s->value[i])) {
            sum += s->value[i];
            n++;
        }
    return n ? sum / (double)n : NAN;
}

static void add_profile(struct chart *c, const struct cld_run_data *run, const char *prefix,
                        bool last_alone, const char *name)
{
    size_t n = n_positions(run, prefix);
    struct curve *v = new_curve(c, name, n, false);
    for (size_t i = 0; v && i < n; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s%zu", prefix, i + 1);
        v->x[i] = (double)(i + 1);
        v->y[i] = recent(cld_run_data_series(run, key), last_alone);
        note_range(c, v->y[i]);
    }
}

static enum cld_status draw_profile(const struct cld_report *r, struct cld_error *err)
{
    struct chart c;
    char name[CLD_REPORT_NAME_BYTES];
    chart_begin(&c, r, "Acceptance along the block",
                r->n > 1
                    ? "share of drafted tokens that are the target's: the last held-out "
                      "evaluation, or the last 50 training steps where there is none"
                    : "share of drafted tokens that are the target's: the last evaluation, the "
                      "last 50 steps; decoding: share of the offered tokens that is accepted, "
                      "if all before them were accepted");
    c.x.label = "position in the block";
    for (size_t i = 0; i < r->n; i++) {
        const struct cld_run_data *run = &r->runs[i];
        bool heldout = n_positions(run, "heldout_accuracy_") > 0;
        if (r->n > 1) {
            add_profile(&c, run, heldout ? "heldout_accuracy_" : "accuracy_", heldout,
                        cld_report_name(r, i, name));
            keep_colours(&c, i + 1);
        } else {
            add_profile(&c, run, "accuracy_", false, "training");
            add_profile(&c, run, "heldout_accuracy_", true, "held-out");
            add_profile(&c, run, "decoded_accepted_", true, "decoding");
        }
    }
    c.y.min = 0;
    c.y.max = c.most > 0 ? c.most : 1;
    return chart_end(&c, err);
}

/* --- shares of time --------------------------------------------------------------------------- */

/* 1 - sum of waits / step_ms, of the steps that have all of them; empty where a run has none. */
static enum cld_status busy_share(const struct cld_run_data *run, const char *const *waits,
                                  struct cld_series *out, struct cld_error *err)
{
    const struct cld_series *step = cld_run_data_series(run, "step_ms");
    bool any = false;
    *out = (struct cld_series){.n = step ? step->n : 0};
    if (!step)
        return CLD_OK;
    out->step = calloc(step->n, sizeof *out->step);
    out->value = calloc(step->n, sizeof *out->value);
    if (!out->step || !out->value)
        return cld_fail_memory(err, "a chart");
    for (size_t i = 0; i < step->n; i++) {
        out->step[i] = step->step[i];
        out->value[i] = 1;
    }
    for (size_t w = 0; waits[w]; w++) {
        const struct cld_series *s = cld_run_data_series(run, waits[w]);
        for (size_t i = 0, k = 0; s && i < step->n; i++) {
            while (k < s->n && s->step[k] < step->step[i])
                k++;
            if (k < s->n && s->step[k] <= step->step[i])
                out->value[i] -= s->value[k] / step->value[i];
        }
        any |= s != NULL;
    }
    for (size_t i = 0; i < step->n; i++)
        out->value[i] = isfinite(out->value[i]) ? fmax(0, fmin(1, out->value[i])) : NAN;
    if (!any)
        out->n = 0;
    return CLD_OK;
}

static const char *const target_waits[] = {"wait_slot_ms", NULL};
static const char *const drafter_waits[] = {"wait_features_ms", "wait_exchange_ms", "data_wait_ms",
                                            NULL};

static enum cld_status add_busy(struct chart *c, const struct cld_run_data *run,
                                const char *const *waits, const char *name, struct cld_error *err)
{
    struct cld_series share;
    enum cld_status s = busy_share(run, waits, &share, err);
    if (!s && share.n)
        add_curve(c, name, &share, 100, 0);
    free(share.step);
    free(share.value);
    return s;
}

static enum cld_status draw_busy(const struct cld_report *r, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct chart c;
    char name[CLD_REPORT_NAME_BYTES];
    chart_begin(&c, r, r->n > 1 ? "Drafters busy" : "Busy share",
                r->n > 1 ? "part of a step in which drafters had not to wait, %"
                         : "part of a step in which workers had not to wait, mean over a side's; "
                           "ring: share of full slots; %");
    for (size_t i = 0; i < r->n && !s; i++) {
        const struct cld_run_data *run = &r->runs[i];
        bool ring = cld_run_data_series(run, "wait_slot_ms") != NULL;
        if (r->n > 1) {
            s = add_busy(&c, run, drafter_waits, cld_report_name(r, i, name), err);
            keep_colours(&c, i + 1);
            continue;
        }
        if (ring)
            s = add_busy(&c, run, target_waits, "targets", err);
        if (!s)
            s = add_busy(&c, run, drafter_waits, ring ? "drafters" : "trainer", err);
        add_curve(&c, "ring", cld_run_data_series(run, "ring_fill"), 100, 0);
    }
    c.y.min = 0;
    c.y.max = 100;
    enum cld_status ended = chart_end(&c, err);
    return s ? s : ended;
}

/* --- sections --------------------------------------------------------------------------------- */

static const struct kind loss = {
    "Loss", "weighted cross-entropy", NULL, .events = true,
    .parts = {{"loss", "training", 1, 0, "Training loss", "weighted cross-entropy"},
              {"heldout_loss", "held-out", 1, 0, "Held-out loss", "weighted cross-entropy"}}};
static const struct kind accepted = {
    "Accepted length",
    "drafted tokens in a row that are the target's, on average, without its own next one; "
    "decoding: "
    "tokens per cycle less one",
    NULL, .from_zero = true,
    .parts = {{"accepted_length", "training", 1, 0, "Accepted length, training",
               "drafted tokens in a row that are the target's, without its own next one"},
              {"heldout_accepted_length", "held-out", 1, 0, "Accepted length, held-out",
               "drafted tokens in a row that are the target's, without its own next one"},
              {"decoded_tokens_per_cycle", "decoding", 1, -1, "Accepted length, decoding",
               "tokens per cycle of drafting and verifying, less the target's own one"}}};
static const struct kind rate = {
    "Learning rate", "of the step", NULL, .from_zero = true,
    .parts = {{"learning_rate", "learning rate", 1, 0, "Learning rate", "of the step"}}};
static const struct kind norm = {
    "Gradient norm", "before clipping", NULL, .fit = true,
    .parts = {{"grad_norm", "norm", 1, 0, "Gradient norm", "before clipping"}}};
static const struct kind tokens = {
    "Throughput", "context tokens a second", NULL, .from_zero = true,
    .parts = {{"context_tokens_per_s", "tokens/s", 1, 0, "Throughput", "context tokens a second"}}};
static const struct kind times = {
    "Time of a step", "and what workers waited in it, on average; ms", NULL, .from_zero = true,
    .parts = {{"step_ms", "step", 1, 0, "Time of a step", "ms"},
              {"data_wait_ms", "for rows", 1, 0, NULL, NULL},
              {"wait_slot_ms", "targets for slots", 1, 0, "Targets waited for slots", "ms a step"},
              {"wait_features_ms", "drafters for features", 1, 0, "Drafters waited for features",
               "ms a step"},
              {"wait_exchange_ms", "drafters for drafters", 1, 0, "Drafters waited for drafters",
               "ms a step"}}};

enum cld_status cld_report_learning(const struct cld_report *r, struct cld_error *err)
{
    enum cld_status s;
    fputs("<section>\n<h2>Learning</h2>\n<div class=\"charts\">\n", r->to);
    if ((s = draw(r, &loss, err)) || (s = draw(r, &accepted, err)) ||
        (r->n == 1 && (s = draw_positions_by_step(r, err))) || (s = draw_profile(r, err)) ||
        (s = draw(r, &rate, err)) || (s = draw(r, &norm, err)))
        return s;
    fputs("</div>\n</section>\n", r->to);
    return CLD_OK;
}

enum cld_status cld_report_speed(const struct cld_report *r, struct cld_error *err)
{
    enum cld_status s;
    fputs("<section>\n<h2>Speed</h2>\n<div class=\"charts\">\n", r->to);
    if ((s = draw(r, &tokens, err)) || (s = draw(r, &times, err)) || (s = draw_busy(r, err)))
        return s;
    fputs("</div>\n</section>\n", r->to);
    return CLD_OK;
}
