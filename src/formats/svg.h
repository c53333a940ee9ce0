/* svg.h - line charts as SVG: in files of their own, or inside a page of HTML.
 *
 * A chart is described, then written; nothing is kept. Colours are in classes, so that a reader who
 * prefers dark gets dark (prefers-color-scheme). A text need not be UTF-8 or free of <>&: it is
 * made so. Any thread; everything is borrowed for the length of a call. */
#ifndef CLD_FORMATS_SVG_H
#define CLD_FORMATS_SVG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/error.h"

/* LOG2 has ticks at powers of two, LOG10 at 1, 2 and 5 times powers of ten. */
enum cld_svg_scale { CLD_SVG_LINEAR, CLD_SVG_LOG2, CLD_SVG_LOG10 };

struct cld_svg_axis {
    const char *label; /* with the unit: "context (tokens)"; NULL: none */
    enum cld_svg_scale scale;
    /* The range at least; both 0: that of the data alone. */
    double min, max;
    bool exact;          /* the range as given, which is not grown to whole ticks or to the data */
    const double *ticks; /* [n_ticks] where the ticks are; NULL: chosen */
    const char *const *tick_names; /* [n_ticks] what they say; NULL: their numbers */
    size_t n_ticks;
};

/* A point whose x or y is not finite, or not positive on a log axis, is a gap in the line. */
struct cld_svg_series {
    const char *name;         /* in the legend; NULL: not there */
    const double *x, *y;      /* [n] */
    const double *low, *high; /* [n] ends of error bars; both or neither */
    const char *const *notes; /* [n] what a point says under the pointer; NULL: name, x and y */
    size_t n;
    bool no_line, no_marks; /* points alone, or a line alone */
    bool plain;             /* in the colour of text, dashed: a reference, not a series */
};

struct cld_svg_chart {
    const char *title; /* NULL: none */
    struct cld_svg_axis x, y;
    const struct cld_svg_series *series;
    size_t n_series;
    size_t width, height; /* pixels; 0: 720 x 400 */
};

/* LOG2 if all of v[n] are powers of two times the least, LOG10 if they span a factor of 20 or more,
 * else LINEAR; also LINEAR if one is not positive. */
enum cld_svg_scale cld_svg_fit(const double *v, size_t n);

/* The rules of the classes, without <style> around them: once in a page of HTML that has charts. */
void cld_svg_write_style(FILE *to);
/* The colours among them, light or dark, for charts inside of `scope`, a selector with a blank at
 * its end: for pages that let readers choose. */
void cld_svg_write_theme(const char *scope, bool dark, FILE *to);
/* A text as it may stand between tags and in attributes with double quotes. */
void cld_svg_write_text(const char *text, FILE *to);

/* One chart as an <svg> element for a page that has the style; `class` (NULL: none) is added to
 * its class "cld-chart". Who wrote `to` looks for errors of it. */
void cld_svg_write_chart(const struct cld_svg_chart *c, const char *class, FILE *to);

/* A document of n charts, `n_columns` beside each other, with the style and a background. */
void cld_svg_write_document(const struct cld_svg_chart *charts, size_t n, size_t n_columns,
                            FILE *to);
/* The same as a file, whole or not at all; CLD_E_IO. */
enum cld_status cld_svg_save(const char *path, const struct cld_svg_chart *charts, size_t n,
                             size_t n_columns, struct cld_error *err);

#endif
