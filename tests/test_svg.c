/* test_svg.c - charts: what is drawn for given values, and that the text is XML. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "formats/svg.h"

/* Every element that begins ends, in order, and no < or & stands bare. Enough of XML for what is
 * written here: no comments, no CDATA. Returns the number of elements, or -1. */
static long well_formed(const char *text)
{
    char open[16][16];
    size_t depth = 0;
    long n = 0;
    for (const char *p = text; *p; p++) {
        if (*p == '&') {
            static const char *const known[] = {"&lt;", "&gt;", "&amp;", "&quot;"};
            bool found = false;
            for (size_t i = 0; i < 4; i++)
                found |= !strncmp(p, known[i], strlen(known[i]));
            if (!found)
                return -1;
        }
        if (*p != '<')
            continue;
        const char *end = strchr(p, '>');
        bool closes = p[1] == '/';
        size_t length = strcspn(p + 1 + closes, " >/");
        if (!end || memchr(p + 1, '<', (size_t)(end - p - 1)) || !length || length >= 16)
            return -1;
        if (closes) {
            if (!depth || strncmp(open[--depth], p + 2, length) || open[depth][length])
                return -1;
        } else {
            n++;
            if (end[-1] != '/') {
                if (depth == 16)
                    return -1;
                memcpy(open[depth], p + 1, length);
                open[depth++][length] = 0;
            }
        }
        p = end;
    }
    return depth ? -1 : n;
}

/* *text is freed by the caller. */
static void written(const struct cld_svg_chart *charts, size_t n, char **text)
{
    size_t n_bytes = 0;
    FILE *to = open_memstream(text, &n_bytes);
    assert_non_null(to);
    cld_svg_write_document(charts, n, 2, to);
    fclose(to);
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *p = strstr(text, what); p; p = strstr(p + 1, what))
        n++;
    return n;
}

static void a_document_is_xml(void **state)
{
    (void)state;
    const double x[] = {1024, 2048, 4096}, y[] = {1, 2.5, 6}, low[] = {0.5, 2, 5},
                 high[] = {2, 3, 7};
    struct cld_svg_series s[] = {
        {.name = "a < b & \"c\" \xff\x01 \xc3\xa9",
         .x = x,
         .y = y,
         .low = low,
         .high = high,
         .n = 3},
        {.name = "points", .x = x, .y = high, .n = 3, .no_line = true},
        {.name = "bound", .x = x, .y = low, .n = 3, .plain = true, .no_marks = true}};
    struct cld_svg_chart c[] = {{.title = "<One>",
                                 .x = {.label = "context (tokens)", .scale = CLD_SVG_LOG2},
                                 .y = {.label = "ms", .scale = CLD_SVG_LOG10},
                                 .series = s,
                                 .n_series = 3},
                                {.title = "nothing"}};
    char *text = NULL;
    written(c, 2, &text);
    assert_true(well_formed(text) > 20);
    assert_int_equal(well_formed("<a><b></a></b>"), -1);
    assert_int_equal(well_formed("<a>&</a>"), -1);
    assert_non_null(strstr(text, "a &lt; b &amp; &quot;c&quot; \xef\xbf\xbd"));
    assert_non_null(strstr(text, "\xc3\xa9"));
    assert_null(strchr(text, 1));
    assert_non_null(strstr(text, ">1024</text>"));
    assert_non_null(strstr(text, ">2048</text>"));
    assert_non_null(strstr(text, "prefers-color-scheme:dark"));
    assert_int_equal(count(text, "class=\"bar\""), 3);
    assert_int_equal(count(text, "<title>"), 2 + 3 + 3); /* charts, and points with marks */
    free(text);
}

static void gaps_are_not_drawn(void **state)
{
    (void)state;
    const double x[] = {1, 2, 3, 4, 5}, y[] = {1, 10, NAN, 0, 100};
    struct cld_svg_series s = {.name = "s", .x = x, .y = y, .n = 5};
    struct cld_svg_chart c = {.y = {.scale = CLD_SVG_LOG10}, .series = &s, .n_series = 1};
    char *text = NULL;
    written(&c, 1, &text);
    assert_true(well_formed(text) > 0);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    assert_int_equal(count(text, "<title>"), 3);
    /* The line begins again after the gap. */
    const char *line = strstr(strstr(text, "<g class=\"s0\">\n"), "class=\"line\" d=\"M");
    const char *end = strchr(line, '/');
    size_t n_begun = 0;
    for (const char *p = line; p < end; p++)
        n_begun += *p == 'M';
    assert_int_equal(n_begun, 2);
    free(text);
}

static void one_point_has_a_range(void **state)
{
    (void)state;
    const double x[] = {7}, y[] = {0};
    struct cld_svg_series s = {.x = x, .y = y, .n = 1};
    struct cld_svg_chart c = {.series = &s, .n_series = 1};
    char *text = NULL;
    written(&c, 1, &text);
    assert_true(well_formed(text) > 0);
    assert_null(strstr(text, "nan"));
    assert_int_equal(count(text, "class=\"mark\""), 1);
    free(text);
}

static void ticks_can_be_given(void **state)
{
    (void)state;
    const double x[] = {0, 1, 2}, y[] = {3, 4, 5};
    const char *const names[] = {"NT", "NN", "TN"};
    struct cld_svg_series s = {.x = x, .y = y, .n = 3};
    struct cld_svg_chart c = {
        .x =
            {.ticks = x, .tick_names = names, .n_ticks = 3, .min = -0.5, .max = 2.5, .exact = true},
        .y = {.min = 0, .max = 10},
        .series = &s,
        .n_series = 1};
    char *text = NULL;
    written(&c, 1, &text);
    assert_non_null(strstr(text, ">NN</text>"));
    assert_non_null(strstr(text, ">10</text>"));
    assert_non_null(strstr(text, ">0</text>"));
    free(text);
}

static void scales_fit_values(void **state)
{
    (void)state;
    const double powers[] = {3, 6, 24}, wide[] = {1, 7, 500}, narrow[] = {1, 7, 9},
                 zero[] = {0, 1e6};
    assert_int_equal(cld_svg_fit(powers, 3), CLD_SVG_LOG2);
    assert_int_equal(cld_svg_fit(wide, 3), CLD_SVG_LOG10);
    assert_int_equal(cld_svg_fit(narrow, 3), CLD_SVG_LINEAR);
    assert_int_equal(cld_svg_fit(zero, 2), CLD_SVG_LINEAR);
    assert_int_equal(cld_svg_fit(NULL, 0), CLD_SVG_LINEAR);
}

static void saving_fails_with_a_reason(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_svg_chart c = {.title = "t"};
    assert_int_equal(cld_svg_save("no/such/place.svg", &c, 1, 1, &err), CLD_E_IO);
    assert_non_null(strstr(err.what, "no/such/place.svg"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_document_is_xml),     cmocka_unit_test(gaps_are_not_drawn),
        cmocka_unit_test(one_point_has_a_range), cmocka_unit_test(ticks_can_be_given),
        cmocka_unit_test(scales_fit_values),     cmocka_unit_test(saving_fails_with_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
