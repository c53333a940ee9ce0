#include "bench/bench_plot.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/size.h"
#include "bench/bench_result.h"
#include "config/config.h"
#include "formats/svg.h"

enum { max_series = 24, max_charts = 2 * CLD_N_BENCH_WHAT, max_dims = 24 };

/* --- the x axis ------------------------------------------------------------------------------- */

/* Where a record lies along x: in its swept values, or, without a swept key, in its shape. */
struct along {
    const char *group; /* "swept" or "shape" */
    const char *key;
    bool names; /* values are texts: places 0, 1, ... in the order in which they come */
    const char **texts;
    double *places; /* [n_texts] */
    size_t n_texts;
};

static const json_t *value_at(const json_t *record, const char *group, const char *key)
{
    return json_object_get(json_object_get(record, group), key);
}

/* Different numbers that the records have there; 0 if one is no number. */
static size_t count_numbers(const json_t *records, const char *group, const char *key)
{
    size_t n = 0, n_all = json_array_size(records);
    for (size_t i = 0; i < n_all; i++) {
        const json_t *v = value_at(json_array_get(records, i), group, key);
        bool seen = !v;
        if (v && !json_is_number(v))
            return 0;
        for (size_t k = 0; k < i && !seen; k++)
            seen = json_equal(v, value_at(json_array_get(records, k), group, key));
        n += !seen;
    }
    return n;
}

/* The key of the group with the most different numbers, of those that are equal the first; NULL
 * if none has two. */
static const char *most_numbers(const json_t *records, const char *group)
{
    const char *best = NULL;
    size_t n_best = 1;
    for (size_t i = 0; i < json_array_size(records); i++) {
        json_t *pairs = json_object_get(json_array_get(records, i), group);
        for (void *at = json_object_iter(pairs); at; at = json_object_iter_next(pairs, at)) {
            const char *key = json_object_iter_key(at);
            size_t n = best && !strcmp(best, key) ? 0 : count_numbers(records, group, key);
            if (n > n_best) {
                best = key;
                n_best = n;
            }
        }
    }
    return best;
}

/* The first swept key, whose values are then names. */
static const char *first_swept(const json_t *records)
{
    json_t *swept = json_object_get(json_array_get(records, 0), "swept");
    void *at = json_object_iter(swept);
    return at ? json_object_iter_key(at) : NULL;
}

static void add_text(struct along *x, const char *text)
{
    for (size_t i = 0; i < x->n_texts; i++)
        if (!strcmp(x->texts[i], text))
            return;
    x->places[x->n_texts] = (double)x->n_texts;
    x->texts[x->n_texts++] = text;
}

static enum cld_status choose_x(const json_t *records, const char *wanted, struct along *x,
                                struct cld_error *err)
{
    size_t n = json_array_size(records);
    x->group = "swept";
    x->key = wanted ? wanted : most_numbers(records, "swept");
    if (!x->key && (x->key = most_numbers(records, "shape")))
        x->group = "shape";
    if (!x->key)
        x->key = first_swept(records);
    if (!x->key)
        return cld_fail(err, CLD_E_USAGE, "give a key several values in [sweep]",
                        "--plot: nothing varies among %zu records", n);
    if (strcmp(x->group, "swept") || count_numbers(records, x->group, x->key))
        return CLD_OK;
    x->names = true;
    x->texts = calloc(n, sizeof *x->texts);
    x->places = calloc(n, sizeof *x->places);
    if (!x->texts || !x->places)
        return cld_fail_memory(err, "drawing %zu records", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = value_at(json_array_get(records, i), x->group, x->key);
        add_text(x, json_is_string(v) ? json_string_value(v) : "");
    }
    return CLD_OK;
}

/* NAN where the record has no such value. */
static double x_of(const struct along *x, const json_t *record)
{
    const json_t *v = value_at(record, x->group, x->key);
    if (!x->names)
        return json_is_number(v) ? json_number_value(v) : NAN;
    const char *text = json_is_string(v) ? json_string_value(v) : "";
    for (size_t i = 0; i < x->n_texts; i++)
        if (!strcmp(x->texts[i], text))
            return x->places[i];
    return NAN;
}

/* --- series ----------------------------------------------------------------------------------- */

/* What distinguishes lines of one kind, besides the name: only what differs. */
struct apart {
    bool storage, variant;
    const char *dims[max_dims]; /* of shapes */
    size_t n_dims;
    const char *swept[max_dims]; /* keys that vary, without those that come with one x alone */
    size_t n_swept;
};

static bool differ(const json_t *a, const json_t *b, const char *key)
{
    return strcmp(cld_bench_string(a, key), cld_bench_string(b, key)) != 0;
}

static bool same_swept(const json_t *a, const json_t *b)
{
    return json_equal(json_object_get(a, "swept"), json_object_get(b, "swept"));
}

static void add_dim(struct apart *a, const char *key)
{
    for (size_t i = 0; i < a->n_dims; i++)
        if (!strcmp(a->dims[i], key))
            return;
    if (a->n_dims < max_dims)
        a->dims[a->n_dims++] = key;
}

/* Whether each value of a swept key comes with one x alone, as of a key that is zipped with x: then
 * a line of its own for each value would be a point. */
static bool settles_x(const json_t *records, const struct along *x, const char *key)
{
    size_t n = json_array_size(records);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++) {
            const json_t *p = json_array_get(records, i), *q = json_array_get(records, k);
            if (x_of(x, p) != x_of(x, q) &&
                json_equal(value_at(p, "swept", key), value_at(q, "swept", key)))
                return false;
        }
    return true;
}

static bool varies(const json_t *records, const char *key)
{
    const json_t *first = value_at(json_array_get(records, 0), "swept", key);
    for (size_t i = 1; i < json_array_size(records); i++)
        if (!json_equal(first, value_at(json_array_get(records, i), "swept", key)))
            return true;
    return false;
}

/* Records of the same name and swept values, so of the same x, are different lines: by storage, by
 * a dimension of their shapes, or by their kernels where nothing else differs. */
static void find_apart(const json_t *records, const struct along *x, struct apart *a)
{
    size_t n = json_array_size(records);
    json_t *swept = json_object_get(json_array_get(records, 0), "swept");
    *a = (struct apart){0};
    for (void *at = json_object_iter(swept); at; at = json_object_iter_next(swept, at)) {
        const char *key = json_object_iter_key(at);
        if (a->n_swept < max_dims && varies(records, key) && !settles_x(records, x, key))
            a->swept[a->n_swept++] = key;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++) {
            const json_t *p = json_array_get(records, i), *q = json_array_get(records, k);
            if (differ(p, q, "name") || !same_swept(p, q) || x_of(x, p) != x_of(x, q))
                continue;
            json_t *shape = json_object_get(p, "shape");
            bool any = differ(p, q, "storage");
            a->storage |= any;
            for (void *at = json_object_iter(shape); at; at = json_object_iter_next(shape, at)) {
                const char *key = json_object_iter_key(at);
                if (!json_equal(json_object_iter_value(at), value_at(q, "shape", key))) {
                    add_dim(a, key);
                    any = true;
                }
            }
            a->variant |= !any;
        }
}

/* Names the line that a record belongs to: "forward, bf16, window=0, train.anchors=64". */
static const char *line_name(const json_t *record, const struct apart *a, char *to, size_t n_bytes)
{
    char text[512];
    size_t at = (size_t)snprintf(to, n_bytes, "%s", cld_bench_string(record, "name"));
    if (a->storage && at < n_bytes)
        at += (size_t)snprintf(to + at, n_bytes - at, ", %s", cld_bench_string(record, "storage"));
    for (size_t i = 0; i < a->n_dims && at < n_bytes; i++) {
        const json_t *v = value_at(record, "shape", a->dims[i]);
        if (v)
            at += (size_t)snprintf(to + at, n_bytes - at, ", %s=%.0f", a->dims[i],
                                   json_number_value(v));
    }
    for (size_t i = 0; i < a->n_swept && at < n_bytes; i++) {
        const char *dot = strchr(a->swept[i], '.');
        json_t *one = json_object(), *v = json_deep_copy(value_at(record, "swept", a->swept[i]));
        json_object_set_new(one, dot ? dot + 1 : a->swept[i], v);
        at += (size_t)snprintf(to + at, n_bytes - at, ", %s",
                               cld_bench_pairs_text(one, text, sizeof text));
        json_decref(one);
    }
    if (a->variant && at < n_bytes)
        snprintf(to + at, n_bytes - at, ", %s", cld_bench_string(record, "variant"));
    return to;
}

/* --- charts ----------------------------------------------------------------------------------- */

/* A chart and the memory of its series. */
struct panel {
    struct cld_svg_chart chart;
    struct cld_svg_series series[max_series];
    char names[max_series][160];
    double *numbers; /* [4, n records]: x, y, low, high */
    double *all_y;   /* [n_all_y] of all series */
    size_t n_all_y, n_left_out;
    char title[320], x_label[160];
};

/* What is drawn of a record, its spread, and whether a time t is a rate of 1/t. */
struct figure {
    const char *key, *label;
    double unit;
    bool rate;
};

/* The ends of the error bar: of the least and the most time. */
static void put_point(const struct figure *f, const json_t *r, double *y, double *low, double *high)
{
    double median = cld_bench_number(r, "median_ms"), least = cld_bench_number(r, "min_ms"),
           most = cld_bench_number(r, "max_ms");
    *y = cld_bench_number(r, f->key) * f->unit;
    *low = *y * (f->rate ? (most > 0 ? median / most : 1) : (median > 0 ? least / median : 1));
    *high = *y * (f->rate ? (least > 0 ? median / least : 1) : (median > 0 ? most / median : 1));
}

static size_t series_named(struct panel *p, const char *name)
{
    size_t i = 0;
    while (i < p->chart.n_series && strcmp(p->names[i], name))
        i++;
    if (i == p->chart.n_series && i < max_series) {
        snprintf(p->names[i], sizeof p->names[i], "%s", name);
        p->series[i].name = p->names[i];
        p->chart.n_series++;
    }
    return i;
}

/* A stable sort by x: zipped or given in any order, a line goes from left to right. */
static void sort_points(double *x, double *y, double *low, double *high, size_t n)
{
    double *const all[] = {x, y, low, high};
    for (size_t i = 1; i < n; i++)
        for (size_t k = i; k && x[k - 1] > x[k]; k--)
            for (size_t j = 0; j < 4; j++) {
                double t = all[j][k];
                all[j][k] = all[j][k - 1];
                all[j][k - 1] = t;
            }
}

/* Fills the series of one kind's records, one after the other, each with its part of p->numbers. */
static enum cld_status fill(struct panel *p, const json_t *records, const struct figure *f,
                            const struct along *x, const struct apart *a, struct cld_error *err)
{
    size_t n = json_array_size(records), at = 0;
    char name[160];
    p->numbers = calloc(n, 4 * sizeof *p->numbers);
    p->all_y = calloc(n, sizeof *p->all_y);
    if (!p->numbers || !p->all_y)
        return cld_fail_memory(err, "drawing %zu records", n);
    for (size_t i = 0; i < n; i++)
        if (cld_bench_number(json_array_get(records, i), f->key) > 0)
            p->n_left_out += series_named(p, line_name(json_array_get(records, i), a, name,
                                                       sizeof name)) == max_series;
    for (size_t k = 0; k < p->chart.n_series; k++) {
        double *xs = p->numbers + at, *ys = xs + n, *low = ys + n, *high = low + n;
        size_t m = 0;
        for (size_t i = 0; i < n; i++) {
            const json_t *r = json_array_get(records, i);
            if (cld_bench_number(r, f->key) <= 0 ||
                strcmp(line_name(r, a, name, sizeof name), p->names[k]))
                continue;
            xs[m] = x_of(x, r);
            put_point(f, r, &ys[m], &low[m], &high[m]);
            p->all_y[p->n_all_y++] = ys[m++];
        }
        sort_points(xs, ys, low, high, m);
        p->series[k].x = xs;
        p->series[k].y = ys;
        p->series[k].low = low;
        p->series[k].high = high;
        p->series[k].n = m;
        at += m;
    }
    return CLD_OK;
}

static void set_axes(struct panel *p, const struct figure *f, const struct along *x,
                     const double *values, size_t n_values)
{
    const char *unit = strcmp(x->group, "swept") ? "" : cld_config_unit(x->key);
    snprintf(p->x_label, sizeof p->x_label, *unit ? "%s (%s)" : "%s", x->key, unit);
    p->chart.x.label = p->x_label;
    p->chart.y.label = f->label;
    p->chart.y.scale =
        cld_svg_fit(p->all_y, p->n_all_y) == CLD_SVG_LINEAR ? CLD_SVG_LINEAR : CLD_SVG_LOG10;
    if (p->chart.y.scale == CLD_SVG_LINEAR)
        p->chart.y.max = 1e-12; /* from zero: the lengths are what compares */
    if (x->names) {
        p->chart.x.ticks = x->places;
        p->chart.x.tick_names = x->texts;
        p->chart.x.n_ticks = x->n_texts;
        p->chart.x.min = -0.3;
        p->chart.x.max = (double)x->n_texts - 0.7;
    } else {
        p->chart.x.scale = cld_svg_fit(values, n_values);
    }
}

static const struct figure time_figure = {"median_ms", "median time (ms); bars from least to most",
                                          1, false};

/* The rate that says most about records of a kind, if they have one. */
static const struct figure *rate_of(const json_t *records)
{
    static const struct figure rates[] = {
        {"context_tokens_per_s", "tokens of context a second", 1, true},
        {"gflops", "GFLOP/s", 1, true},
        {"gb_per_s", "GB/s", 1, true}};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        for (size_t k = 0; k < json_array_size(records); k++)
            if (cld_bench_number(json_array_get(records, k), rates[i].key) > 0)
                return &rates[i];
    return NULL;
}

/* Room for the legend on top of the lines. */
static size_t height_of(const struct panel *p)
{
    size_t n_letters = 0;
    for (size_t i = 0; i < p->chart.n_series; i++)
        n_letters += strlen(p->names[i]) + 7;
    return 360 + 18 * (n_letters / 95 + 1);
}

static void set_title(struct panel *p, const json_t *records, const char *what)
{
    const json_t *r = json_array_get(records, 0);
    snprintf(p->title, sizeof p->title, "%s: %.60s, driver %.30s", what,
             cld_bench_string(r, "device"), cld_bench_string(r, "driver"));
    p->chart.title = p->title;
    p->chart.series = p->series;
}

static enum cld_status add_panel(const json_t *records, const struct figure *f,
                                 const struct along *x, const struct apart *a, struct panel *p,
                                 struct cld_error *err)
{
    const char *what = cld_bench_string(json_array_get(records, 0), "what");
    enum cld_status s = fill(p, records, f, x, a, err);
    if (s)
        return s;
    if (p->n_left_out)
        cld_warn("%s: only the first %d lines are drawn", what, max_series);
    set_title(p, records, what);
    /* Series lie one after the other. */
    set_axes(p, f, x, p->numbers, p->n_all_y);
    p->chart.height = height_of(p);
    return CLD_OK;
}

static void free_panels(struct panel *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(p[i].numbers);
        free(p[i].all_y);
    }
    free(p);
}

/* The panels of one kind: of its time, and of its rate where there is one. */
static enum cld_status add_kind(const json_t *records, const char *wanted, struct along *x,
                                struct panel *panels, size_t *n, struct cld_error *err)
{
    struct apart a;
    const struct figure *rate = rate_of(records);
    enum cld_status s = choose_x(records, wanted, x, err);
    if (s)
        return s;
    find_apart(records, x, &a);
    struct panel *time = &panels[(*n)++];
    if ((s = add_panel(records, &time_figure, x, &a, time, err)) || !rate)
        return s;
    s = add_panel(records, rate, x, &a, &panels[(*n)++], err);
    time[1].chart.height = time->chart.height; /* side by side */
    return s;
}

/* Records of one kind, borrowed from `records`, in a new array. */
static json_t *of_kind(const json_t *records, const char *what)
{
    json_t *some = json_array();
    for (size_t i = 0; i < json_array_size(records); i++)
        if (!strcmp(cld_bench_string(json_array_get(records, i), "what"), what))
            json_array_append(some, json_array_get(records, i));
    return some;
}

static enum cld_status draw_sweep(const json_t *records, const char *wanted, const char *path,
                                  struct cld_error *err)
{
    struct along x[CLD_N_BENCH_WHAT] = {{0}};
    struct cld_svg_chart charts[max_charts];
    struct panel *panels = calloc(max_charts, sizeof *panels);
    size_t n = 0;
    enum cld_status s = CLD_OK;
    if (!panels)
        return cld_fail_memory(err, "a drawing");
    for (int what = 0; what < CLD_N_BENCH_WHAT && !s; what++) {
        json_t *some = of_kind(records, cld_bench_what_name((enum cld_bench_what)what));
        if (json_array_size(some))
            s = add_kind(some, wanted, &x[what], panels, &n, err);
        json_decref(some); /* the records stay with the caller, and names point into them */
    }
    for (size_t i = 0; i < n; i++)
        charts[i] = panels[i].chart;
    if (!s)
        s = cld_svg_save(path, charts, n, n > 1 ? 2 : 1, err);
    for (size_t i = 0; i < CLD_N_BENCH_WHAT; i++) {
        free(x[i].texts);
        free(x[i].places);
    }
    free_panels(panels, max_charts);
    return s;
}

/* --- the roofline ----------------------------------------------------------------------------- */

static bool has_both(const json_t *record)
{
    return cld_bench_number(record, "flop_per_byte") > 0 && cld_bench_number(record, "gflops") > 0;
}

/* The bound of one storage between the intensities lo and hi: up the slope, then flat. */
static void put_roof(struct panel *p, const char *name, double gb_per_s, double gflops, double lo,
                     double hi, double *x, double *y)
{
    double ridge = gflops / gb_per_s;
    size_t at = p->chart.n_series++;
    x[0] = fmin(lo, ridge / 2);
    x[1] = ridge;
    x[2] = fmax(hi, ridge * 2);
    for (int i = 0; i < 3; i++)
        y[i] = fmin(gflops, x[i] * gb_per_s);
    snprintf(p->names[at], sizeof p->names[at], "%s: %.4g GB/s, %.5g GFLOP/s", name, gb_per_s,
             gflops);
    p->series[at] = (struct cld_svg_series){
        .name = p->names[at], .x = x, .y = y, .n = 3, .no_marks = true, .plain = true};
}

/* All records of one kind, name and storage are one colour. */
static const char *mark_name(const json_t *r, char *to, size_t n_bytes)
{
    snprintf(to, n_bytes, "%s %s, %s", cld_bench_string(r, "what"), cld_bench_string(r, "name"),
             strstr(cld_bench_string(r, "storage"), "bf16") ? "bf16" : "fp32");
    return to;
}

static void fill_marks(struct panel *p, const json_t *records, double *lo, double *hi)
{
    size_t n = json_array_size(records), at = 0, first = p->chart.n_series;
    char name[160];
    for (size_t i = 0; i < n; i++)
        if (has_both(json_array_get(records, i)))
            series_named(p, mark_name(json_array_get(records, i), name, sizeof name));
    for (size_t k = first; k < p->chart.n_series; k++) {
        double *xs = p->numbers + at, *ys = xs + n;
        size_t m = 0;
        for (size_t i = 0; i < n; i++) {
            const json_t *r = json_array_get(records, i);
            if (!has_both(r) || strcmp(mark_name(r, name, sizeof name), p->names[k]))
                continue;
            xs[m] = cld_bench_number(r, "flop_per_byte");
            ys[m++] = cld_bench_number(r, "gflops");
            *lo = fmin(*lo, xs[m - 1]);
            *hi = fmax(*hi, xs[m - 1]);
        }
        p->series[k].x = xs;
        p->series[k].y = ys;
        p->series[k].n = m;
        p->series[k].no_line = true;
        at += m;
    }
}

static enum cld_status draw_roofline(const json_t *records, const char *path, struct cld_error *err)
{
    struct panel *p = calloc(1, sizeof *p);
    size_t n = json_array_size(records);
    double roof[2][2][3], lo = INFINITY, hi = 0;
    enum cld_status s = CLD_OK;
    if (!p || !(p->numbers = calloc(cld_max(1, n), 2 * sizeof *p->numbers))) {
        s = cld_fail_memory(err, "a drawing");
        goto done;
    }
    fill_marks(p, records, &lo, &hi);
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (size_t i = 0; i < n; i++) {
            const json_t *r = json_array_get(records, i);
            double gflops = cld_bench_number(r, "roof_gflops");
            double gb_per_s = cld_bench_number(r, "roof_gb_per_s");
            if (!has_both(r) || !(gflops > 0) || !(gb_per_s > 0) ||
                (strstr(cld_bench_string(r, "storage"), "bf16") != NULL) != bf16 ||
                p->chart.n_series == max_series)
                continue;
            put_roof(p, bf16 ? "measured roof, bf16" : "measured roof, fp32", gb_per_s, gflops, lo,
                     hi, roof[bf16][0], roof[bf16][1]);
            break;
        }
    set_title(p, records, "Roofline");
    p->chart.x.label = "operations a byte that must move (FLOP/byte)";
    p->chart.y.label = "GFLOP/s";
    p->chart.x.scale = p->chart.y.scale = CLD_SVG_LOG10;
    p->chart.height = 100 + height_of(p);
    s = cld_svg_save(path, &p->chart, 1, 1, err);
done:
    if (p)
        free_panels(p, 1);
    return s;
}

/* --- both ------------------------------------------------------------------------------------- */

/* "DIR/NAME-roofline.svg" for "DIR/NAME.svg"; NULL without memory. */
static char *roofline_path(const char *path)
{
    size_t n = strlen(path);
    if (n > 4 && !strcmp(path + n - 4, ".svg"))
        n -= 4;
    return cld_format("%.*s-roofline.svg", (int)n, path);
}

enum cld_status cld_bench_plot(const json_t *records, const char *x, const char *path,
                               struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *beside = roofline_path(path);
    json_t *measured = json_array();
    bool any = false;
    for (size_t i = 0; i < json_array_size(records) && measured; i++) {
        json_t *r = json_array_get(records, i);
        if (!cld_bench_is_failure(r) && json_array_append(measured, r))
            s = cld_fail_memory(err, "a drawing");
        any |= has_both(r);
    }
    if (!measured || !beside)
        s = cld_fail_memory(err, "a drawing");
    if (!s && !json_array_size(measured))
        s = cld_fail(err, CLD_E_USAGE, "see the errors above", "--plot: nothing was measured");
    if (!s && any)
        s = draw_roofline(measured, beside, err);
    if (!s)
        s = draw_sweep(measured, x, path, err);
    json_decref(measured);
    free(beside);
    return s;
}
