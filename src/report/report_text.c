#include "report/report_text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/svg.h"

void cld_report_write_text(const struct cld_report *r, const char *text)
{
    cld_svg_write_text(text, r->to);
}

const char *cld_report_number(double v, char to[32])
{
    char digits[32];
    size_t n = 0;
    if (!isfinite(v)) {
        strcpy(to, "\xe2\x80\x93");
        return to;
    }
    if (fabs(v) < 999.5 || fabs(v) >= 1e15) {
        snprintf(to, 32, "%.4g", v);
        return to;
    }
    snprintf(digits, sizeof digits, "%.0f", v);
    for (const char *d = digits; *d; d++) { /* a comma before every third digit from the end */
        size_t left = strlen(d);
        if (d > digits && d[-1] != '-' && left % 3 == 0)
            to[n++] = ',';
        to[n++] = *d;
    }
    to[n] = 0;
    return to;
}

const char *cld_report_name(const struct cld_report *r, size_t i, char to[CLD_REPORT_NAME_BYTES])
{
    const char *name = r->runs[i].name;
    for (size_t k = 0; k < r->n; k++)
        if (k != i && !strcmp(r->runs[k].name, r->runs[i].name))
            name = r->runs[i].dir;
    size_t n = strlen(name), most = CLD_REPORT_NAME_BYTES - 4;
    if (n > most) {
        name += n - most;
        while ((*name & 0xc0) == 0x80) /* not in the middle of a character */
            name++;
        snprintf(to, CLD_REPORT_NAME_BYTES, "\xe2\x80\xa6%s", name);
    } else {
        snprintf(to, CLD_REPORT_NAME_BYTES, "%s", name);
    }
    return to;
}

void cld_report_write_name(const struct cld_report *r, size_t i)
{
    char name[CLD_REPORT_NAME_BYTES];
    cld_report_write_text(r, cld_report_name(r, i, name));
}

void cld_report_swatch(const struct cld_report *r, size_t i)
{
    if (r->n > 1)
        fprintf(r->to,
                "<svg class=\"cld-chart swatch\" viewBox=\"0 0 12 12\"><g class=\"s%zu\">"
                "<path class=\"mark\" d=\"M1 1h10v10h-10z\"/></g></svg>",
                i % 8);
}
