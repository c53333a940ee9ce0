#include "formats/svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/size.h"
#include "base/utf8.h"

enum {
    n_colours = 8, /* series after the eighth take them again, dashed */
    max_ticks = 64,
    default_width = 720,
    default_height = 400,
    line_height = 18,
    title_height = 26,
    margin = 12
};

/* An average letter of the 12-pixel font. Fonts differ, so widths are estimates. */
static const double letter_width = 7.0;

/* --- text ------------------------------------------------------------------------------------- */

/* What XML cannot have is left out or becomes U+FFFD. */
static void put_text(const char *text, FILE *to)
{
    size_t n = strlen(text);
    while (n) {
        uint32_t cp;
        size_t len = cld_utf8_get(text, n, &cp);
        if (!len)
            fputs("\xef\xbf\xbd", to);
        else if (cp == '<')
            fputs("&lt;", to);
        else if (cp == '>')
            fputs("&gt;", to);
        else if (cp == '&')
            fputs("&amp;", to);
        else if (cp == '"')
            fputs("&quot;", to);
        else if (cp >= 0x20 && cp != 0xfffe && cp != 0xffff)
            fwrite(text, 1, len, to);
        else
            fputc(' ', to);
        len = cld_max(1, len);
        text += len;
        n -= len;
    }
}

static double text_width(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return (double)n * letter_width;
}

static const char *number(double v, char to[32])
{
    static const struct {
        double unit;
        const char *name;
    } large[] = {{1e12, " T"}, {1e9, " G"}, {1e6, " M"}};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        if (fabs(v) >= large[i].unit && fabs(v) < 1e15) {
            snprintf(to, 32, "%.4g%s", v / large[i].unit, large[i].name);
            return to;
        }
    snprintf(to, 32, fabs(v) >= 1e5 ? "%.0f" : "%.6g", fabs(v) < 1e-300 ? 0 : v);
    return to;
}

/* --- axes ------------------------------------------------------------------------------------- */

/* An axis that knows its range and where it is on the page. */
struct axis {
    const struct cld_svg_axis *a;
    double lo, hi;      /* of values */
    double first, last; /* pixels of lo and hi */
    double ticks[max_ticks];
    size_t n_ticks;
};

static double along(enum cld_svg_scale scale, double v)
{
    return scale == CLD_SVG_LINEAR ? v : scale == CLD_SVG_LOG2 ? log2(v) : log10(v);
}

static bool drawable(const struct cld_svg_axis *a, double v)
{
    return isfinite(v) && (a->scale == CLD_SVG_LINEAR || v > 0);
}

static double place(const struct axis *x, double v)
{
    double lo = along(x->a->scale, x->lo), hi = along(x->a->scale, x->hi);
    return x->first + (along(x->a->scale, v) - lo) / (hi - lo) * (x->last - x->first);
}

static void widen(struct axis *x, const double *v, size_t n)
{
    for (size_t i = 0; v && i < n; i++)
        if (drawable(x->a, v[i])) {
            x->lo = fmin(x->lo, v[i]);
            x->hi = fmax(x->hi, v[i]);
        }
}

static void add_tick(struct axis *x, double v)
{
    double slack = 1e-9 * (fabs(x->lo) + fabs(x->hi));
    if (x->n_ticks < max_ticks && v >= x->lo - slack && v <= x->hi + slack)
        x->ticks[x->n_ticks++] = v;
}

/* 1, 2 or 5 times a power of ten, so that about `n` steps cover the range. */
static double linear_step(double range, double n)
{
    double raw = range / n, power = pow(10, floor(log10(raw))), f = raw / power;
    return power * (f < 1.5 ? 1 : f < 3.5 ? 2 : f < 7.5 ? 5 : 10);
}

static void linear_ticks(struct axis *x, double n)
{
    double step = linear_step(x->hi - x->lo, n);
    if (!x->a->exact) {
        x->lo = floor(x->lo / step + 1e-9) * step;
        x->hi = ceil(x->hi / step - 1e-9) * step;
    }
    for (double at = ceil(x->lo / step - 1e-9); at * step <= x->hi + 1e-9 * step; at++)
        add_tick(x, at * step);
}

static void log2_ticks(struct axis *x, double n)
{
    double lo = floor(log2(x->lo) + 1e-9), hi = ceil(log2(x->hi) - 1e-9);
    double step = fmax(1, ceil((hi - lo) / n));
    if (!x->a->exact) {
        x->lo = exp2(lo);
        x->hi = exp2(hi);
    }
    for (double at = lo; at <= hi; at += step)
        add_tick(x, exp2(at));
}

/* Whole decades where there are many, else 1, 2 and 5 of each. The range ends at the next of 1, 2,
 * 5: a whole decade more could be mostly empty. */
static void log10_ticks(struct axis *x, double n)
{
    static const double parts[] = {1, 2, 5};
    double lo = floor(log10(x->lo) + 1e-9), hi = ceil(log10(x->hi) - 1e-9);
    double step = fmax(1, ceil((hi - lo) / n));
    bool fine = 3 * (hi - lo) <= 1.5 * n;
    if (!x->a->exact) {
        double grown_lo = pow(10, lo), grown_hi = pow(10, hi);
        for (int i = 0; i < 3; i++) {
            if (parts[i] * pow(10, lo) <= x->lo * (1 + 1e-9))
                grown_lo = parts[i] * pow(10, lo);
            if (parts[2 - i] * pow(10, hi - 1) >= x->hi * (1 - 1e-9))
                grown_hi = parts[2 - i] * pow(10, hi - 1);
        }
        x->lo = grown_lo;
        x->hi = grown_hi;
    }
    for (double at = lo; at <= hi; at += step)
        for (int i = 0; i < (fine ? 3 : 1); i++)
            add_tick(x, parts[i] * pow(10, at));
}

/* Range and ticks, about n of them, from all values that were shown to widen(). */
static void finish_axis(struct axis *x, double n)
{
    const struct cld_svg_axis *a = x->a;
    bool given = a->min < a->max;
    if (given && (a->exact || x->lo > x->hi)) {
        x->lo = a->min;
        x->hi = a->max;
    } else if (given) {
        x->lo = drawable(a, a->min) ? fmin(x->lo, a->min) : x->lo;
        x->hi = fmax(x->hi, a->max);
    }
    if (x->lo > x->hi) /* nothing to draw */
        x->lo = x->hi = 1;
    if (x->hi - x->lo <= 1e-12 * fabs(x->hi)) { /* one value: in the middle */
        double v = x->lo;
        x->lo = a->scale == CLD_SVG_LINEAR ? v - (v ? fabs(v) / 2 : 1) : v / 2;
        x->hi = a->scale == CLD_SVG_LINEAR ? v + (v ? fabs(v) / 2 : 1) : v * 2;
    }
    if (a->ticks)
        for (size_t i = 0; i < a->n_ticks; i++)
            add_tick(x, a->ticks[i]);
    else if (a->scale == CLD_SVG_LINEAR)
        linear_ticks(x, n);
    else if (a->scale == CLD_SVG_LOG2)
        log2_ticks(x, n);
    else
        log10_ticks(x, n);
}

static const char *tick_name(const struct axis *x, size_t i, char to[32])
{
    const struct cld_svg_axis *a = x->a;
    for (size_t k = 0; a->tick_names && k < a->n_ticks; k++)
        if (a->ticks[k] == x->ticks[i])
            return a->tick_names[k];
    return number(x->ticks[i], to);
}

enum cld_svg_scale cld_svg_fit(const double *v, size_t n)
{
    double lo = INFINITY, hi = 0;
    for (size_t i = 0; i < n; i++) {
        if (!(v[i] > 0))
            return CLD_SVG_LINEAR;
        lo = fmin(lo, v[i]);
        hi = fmax(hi, v[i]);
    }
    bool powers = n && hi >= 4 * lo;
    for (size_t i = 0; i < n && powers; i++) {
        double at = log2(v[i] / lo);
        powers = fabs(at - round(at)) < 1e-9;
    }
    return powers ? CLD_SVG_LOG2 : hi >= 20 * lo && n ? CLD_SVG_LOG10 : CLD_SVG_LINEAR;
}

/* --- what is drawn ---------------------------------------------------------------------------- */

struct drawing {
    const struct cld_svg_chart *c;
    FILE *to;
    double width, height;
    struct axis x, y;
};

static void series_class(const struct drawing *d, size_t i, FILE *to)
{
    bool plain = d->c->series[i].plain;
    size_t before = 0; /* of its sort */
    for (size_t k = 0; k < i; k++)
        before += d->c->series[k].plain == plain;
    if (plain)
        fprintf(to, "ref%s", before ? " again" : "");
    else
        fprintf(to, "s%zu%s", before % n_colours, before >= n_colours ? " again" : "");
}

/* A mark of series i, open: the shape differs, too, for who cannot tell the colours apart. */
static void open_mark(size_t i, double x, double y, FILE *to)
{
    static const char *const shapes[] = {"m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
                                         "m-3.2 -3.2h6.4v6.4h-6.4z", "m0 -4.4l4.2 7.2h-8.4z",
                                         "m0 -4.4l4.4 4.4l-4.4 4.4l-4.4 -4.4z"};
    fprintf(to, "<path class=\"mark\" d=\"M%.1f %.1f%s\">", x, y, shapes[i % 4]);
}

/* Entries in rows as wide as the chart. Returns the y below it; draws only if asked to, since the
 * height must be known first. */
static double legend(const struct drawing *d, double top, bool draw)
{
    double left = margin, x = left, y = top + line_height * 0.7;
    bool any = false;
    for (size_t i = 0; i < d->c->n_series; i++) {
        const struct cld_svg_series *s = &d->c->series[i];
        if (!s->name)
            continue;
        double width = 30 + text_width(s->name) + 14;
        if (any && x + width > d->width) {
            x = left;
            y += line_height;
        }
        if (draw) {
            fputs("<g class=\"", d->to);
            series_class(d, i, d->to);
            fputs("\">", d->to);
            if (!s->no_line)
                fprintf(d->to, "<path class=\"line\" d=\"M%.1f %.1fh22\"/>", x, y - 4);
            if (!s->no_marks) {
                open_mark(i, x + 11, y - 4, d->to);
                fputs("</path>", d->to);
            }
            fprintf(d->to, "<text class=\"name\" x=\"%.1f\" y=\"%.1f\">", x + 28, y);
            put_text(s->name, d->to);
            fputs("</text></g>\n", d->to);
        }
        any = true;
        x += width;
    }
    return any ? y + line_height * 0.3 : top;
}

static void put_axes(const struct drawing *d)
{
    char text[32];
    FILE *to = d->to;
    double bottom = d->y.first, taken = -INFINITY;
    for (size_t i = 0; i < d->y.n_ticks; i++) {
        double y = place(&d->y, d->y.ticks[i]);
        fprintf(to, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", d->x.first, y, d->x.last);
        fprintf(to, "<text class=\"tick end\" x=\"%.1f\" y=\"%.1f\">", d->x.first - 6, y + 4);
        put_text(tick_name(&d->y, i, text), to);
        fputs("</text>\n", to);
    }
    for (size_t i = 0; i < d->x.n_ticks; i++) {
        double x = place(&d->x, d->x.ticks[i]);
        const char *name = tick_name(&d->x, i, text);
        double half = text_width(name) / 2;
        fprintf(to, "<path class=\"axis\" d=\"M%.1f %.1fv4\"/>", x, bottom);
        if (x - half < taken + letter_width)
            continue; /* does not fit next to the last one */
        taken = x + half;
        fprintf(to, "<text class=\"tick mid\" x=\"%.1f\" y=\"%.1f\">", x, bottom + 18);
        put_text(name, to);
        fputs("</text>\n", to);
    }
    fprintf(to, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/>\n", d->x.first, bottom, d->x.last);
    if (d->c->x.label) {
        fprintf(to, "<text class=\"label mid\" x=\"%.1f\" y=\"%.1f\">",
                (d->x.first + d->x.last) / 2, bottom + 38);
        put_text(d->c->x.label, to);
        fputs("</text>\n", to);
    }
}

/* Whether point i of s is to be drawn, and where. */
static bool point(const struct drawing *d, const struct cld_svg_series *s, size_t i, double *x,
                  double *y)
{
    if (!drawable(&d->c->x, s->x[i]) || !drawable(&d->c->y, s->y[i]))
        return false;
    *x = place(&d->x, s->x[i]);
    *y = place(&d->y, s->y[i]);
    return true;
}

static void put_line(const struct drawing *d, const struct cld_svg_series *s)
{
    bool open = false, any = false;
    for (size_t i = 0; i < s->n; i++) {
        double x, y;
        bool drawn = point(d, s, i, &x, &y);
        if (drawn) {
            fputs(any ? "" : "<path class=\"line\" d=\"", d->to);
            fprintf(d->to, "%c%.1f %.1f", open ? 'L' : 'M', x, y);
            any = true;
        }
        open = drawn;
    }
    fputs(any ? "\"/>\n" : "", d->to);
}

static void put_note(const struct cld_svg_series *s, size_t i, FILE *to)
{
    char x[32], y[32];
    if (s->notes) {
        put_text(s->notes[i], to);
        return;
    }
    if (s->name) {
        put_text(s->name, to);
        fputs(": ", to);
    }
    fprintf(to, "%s, %s", number(s->x[i], x), number(s->y[i], y));
}

static void put_marks(const struct drawing *d, const struct cld_svg_series *s, size_t at)
{
    for (size_t i = 0; i < s->n; i++) {
        double x, y;
        if (!point(d, s, i, &x, &y))
            continue;
        if (s->low && s->high && drawable(&d->c->y, s->low[i]) && drawable(&d->c->y, s->high[i]))
            fprintf(d->to, "<path class=\"bar\" d=\"M%.1f %.1fV%.1f\"/>", x,
                    place(&d->y, s->low[i]), place(&d->y, s->high[i]));
        if (s->no_marks)
            continue;
        open_mark(at, x, y, d->to);
        fputs("<title>", d->to);
        put_note(s, i, d->to);
        fputs("</title></path>\n", d->to);
    }
}

/* A nested <svg> in the same coordinates cuts off what lies outside of a range that is exact. */
static void put_series(const struct drawing *d)
{
    bool cut = d->c->x.exact || d->c->y.exact;
    if (cut) {
        double x = d->x.first - 5, y = d->y.last - 5;
        double w = d->x.last + 5 - x, h = d->y.first + 5 - y;
        fprintf(d->to,
                "<svg x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                "viewBox=\"%.1f %.1f %.1f %.1f\">\n",
                x, y, w, h, x, y, w, h);
    }
    for (size_t i = 0; i < d->c->n_series; i++) {
        const struct cld_svg_series *s = &d->c->series[i];
        fputs("<g class=\"", d->to);
        series_class(d, i, d->to);
        fputs("\">\n", d->to);
        if (!s->no_line)
            put_line(d, s);
        put_marks(d, s, i);
        fputs("</g>\n", d->to);
    }
    fputs(cut ? "</svg>\n" : "", d->to);
}

/* --- a chart ---------------------------------------------------------------------------------- */

static double chart_width(const struct cld_svg_chart *c)
{
    return c->width ? (double)c->width : default_width;
}

static double chart_height(const struct cld_svg_chart *c)
{
    return c->height ? (double)c->height : default_height;
}

static void find_ranges(struct drawing *d)
{
    const struct cld_svg_chart *c = d->c;
    d->x = (struct axis){.a = &c->x, .lo = INFINITY, .hi = -INFINITY};
    d->y = (struct axis){.a = &c->y, .lo = INFINITY, .hi = -INFINITY};
    for (size_t i = 0; i < c->n_series; i++) {
        const struct cld_svg_series *s = &c->series[i];
        widen(&d->x, s->x, s->n);
        widen(&d->y, s->y, s->n);
        widen(&d->y, s->low, s->n);
        widen(&d->y, s->high, s->n);
    }
    finish_axis(&d->x, d->width / 100);
    finish_axis(&d->y, d->height / 50);
}

/* Where the axes lie: below title, legend and the label of y; right of what its ticks say. */
static void lay_out(struct drawing *d, double *legend_top)
{
    char text[32];
    double widest = 0, y = margin;
    for (size_t i = 0; i < d->y.n_ticks; i++)
        widest = fmax(widest, text_width(tick_name(&d->y, i, text)));
    if (d->c->title)
        y += title_height;
    *legend_top = y;
    y = legend(d, y, false);
    d->y.last = y + (d->c->y.label ? line_height + 8 : 8);
    d->y.first = d->height - (d->c->x.label ? 48 : 28);
    d->x.first = margin + widest + 6;
    /* Half of the last tick's text stands out. */
    double out = d->x.n_ticks ? text_width(tick_name(&d->x, d->x.n_ticks - 1, text)) / 2 : 0;
    d->x.last = d->width - margin - out;
}

/* The <svg> of a chart with its upper left corner at (x, y). */
static void put_chart(const struct cld_svg_chart *c, const char *class, bool placed, double x,
                      double y, FILE *to)
{
    struct drawing d = {.c = c, .to = to, .width = chart_width(c), .height = chart_height(c)};
    double legend_top;
    find_ranges(&d);
    lay_out(&d, &legend_top);
    fputs("<svg class=\"cld-chart", to);
    if (class) {
        fputc(' ', to);
        put_text(class, to);
    }
    if (placed)
        fprintf(to, "\" x=\"%.0f\" y=\"%.0f", x, y);
    fprintf(to,
            "\" xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n",
            d.width, d.height, d.width, d.height);
    if (c->title) {
        fputs("<title>", to);
        put_text(c->title, to);
        fprintf(to, "</title>\n<text class=\"title\" x=\"%d\" y=\"%d\">", margin, margin + 14);
        put_text(c->title, to);
        fputs("</text>\n", to);
    }
    legend(&d, legend_top, true);
    if (c->y.label) {
        fprintf(to, "<text class=\"label\" x=\"%d\" y=\"%.1f\">", margin, d.y.last - 12);
        put_text(c->y.label, to);
        fputs("</text>\n", to);
    }
    put_axes(&d);
    put_series(&d);
    fputs("</svg>\n", to);
}

void cld_svg_write_chart(const struct cld_svg_chart *c, const char *class, FILE *to)
{
    put_chart(c, class, false, 0, 0, to);
}

void cld_svg_write_text(const char *text, FILE *to)
{
    put_text(text, to);
}

/* Colours are written out in each rule: not every viewer of SVG knows variables. */
void cld_svg_write_theme(const char *scope, bool dark, FILE *to)
{
    static const char *const colours[2][n_colours] = {
        {"#2a78d6", "#e07b16", "#159a70", "#b0389a", "#6a5acd", "#d43d3d", "#7a8b00", "#0e8fa8"},
        {"#5b9ff0", "#f09a45", "#34bd90", "#d873c4", "#9d90f0", "#f07171", "#a9bb35", "#3cb8d0"}};
    static const struct {
        const char *what, *property, *colour[2];
    } rules[] = {{"text", "fill", {"#3c3f44", "#c6c9ce"}},
                 {".title", "fill", {"#1b1d20", "#f0f1f3"}},
                 {".tick", "fill", {"#5d6168", "#a0a5ad"}},
                 {".grid", "stroke", {"#e4e6e9", "#33373d"}},
                 {".axis", "stroke", {"#8b9098", "#747a83"}},
                 {".ref .line", "stroke", {"#5d6168", "#a0a5ad"}},
                 {".ref .bar", "stroke", {"#5d6168", "#a0a5ad"}},
                 {".ref .mark", "fill", {"#5d6168", "#a0a5ad"}}};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        fprintf(to, "%s.cld-chart %s{%s:%s}\n", scope, rules[i].what, rules[i].property,
                rules[i].colour[dark]);
    for (int i = 0; i < n_colours; i++)
        fprintf(to,
                "%s.cld-chart .s%d .line,%s.cld-chart .s%d .bar{stroke:%s}\n"
                "%s.cld-chart .s%d .mark{fill:%s}\n",
                scope, i, scope, i, colours[dark][i], scope, i, colours[dark][i]);
}

void cld_svg_write_style(FILE *to)
{
    fputs(".cld-chart text{font:12px system-ui,sans-serif}\n"
          ".cld-chart .title{font-size:15px;font-weight:600}\n"
          ".cld-chart .tick{font-variant-numeric:tabular-nums}\n"
          ".cld-chart .mid{text-anchor:middle}\n.cld-chart .end{text-anchor:end}\n"
          ".cld-chart path{fill:none}\n"
          ".cld-chart .line{stroke-width:2;stroke-linejoin:round}\n"
          ".cld-chart .bar{stroke-width:1.5;opacity:.55}\n"
          ".cld-chart .again .line{stroke-dasharray:6 4}\n"
          ".cld-chart .ref .line{stroke-width:1.5;stroke-dasharray:3 4}\n"
          ".cld-chart .ref.again .line{stroke-dasharray:9 4}\n",
          to);
    cld_svg_write_theme("", false, to);
    fputs("@media (prefers-color-scheme:dark){\n", to);
    cld_svg_write_theme("", true, to);
    fputs("}\n", to);
}

/* --- a document ------------------------------------------------------------------------------- */

void cld_svg_write_document(const struct cld_svg_chart *charts, size_t n, size_t n_columns,
                            FILE *to)
{
    double width = 0, height = 0, row = 0, x = 0, y = 0;
    n_columns = cld_max(1, n_columns);
    for (int draw = 0; draw < 2; draw++) {
        if (draw) {
            fprintf(to,
                    "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                    "viewBox=\"0 0 %.0f %.0f\">\n<style>\n.cld-page{fill:#fff}\n",
                    width, height, width, height);
            cld_svg_write_style(to);
            fputs("@media (prefers-color-scheme:dark){.cld-page{fill:#16181b}}\n</style>\n"
                  "<rect class=\"cld-page\" width=\"100%\" height=\"100%\"/>\n",
                  to);
        }
        x = y = row = 0;
        for (size_t i = 0; i < n; i++) {
            if (i && i % n_columns == 0) {
                x = 0;
                y += row;
                row = 0;
            }
            if (draw)
                put_chart(&charts[i], NULL, true, x, y, to);
            x += chart_width(&charts[i]);
            row = fmax(row, chart_height(&charts[i]));
            width = fmax(width, x);
            height = fmax(height, y + row);
        }
    }
    fputs("</svg>\n", to);
}

enum cld_status cld_svg_save(const char *path, const struct cld_svg_chart *charts, size_t n,
                             size_t n_columns, struct cld_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *to = open_memstream(&text, &n_bytes);
    if (to)
        cld_svg_write_document(charts, n, n_columns, to);
    enum cld_status s = !to || fclose(to) ? cld_fail_memory(err, "the data of %s", path)
                                          : cld_file_write(path, text, n_bytes, err);
    free(text);
    return s;
}
