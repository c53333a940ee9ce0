/* The page of a report around its charts. */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/svg.h"
#include "report/report_private.h"
#include "workers/status_file.h"

/* --- figures of a run --------------------------------------------------------------------------
 */

static const char *state_of(const struct cld_run_data *run)
{
    const char *state = cld_run_data_status_text(run, "state");
    bool has_ended = cld_run_has_ended(state);
    return !*state ? "unknown" : run->alive || has_ended ? state : "died";
}

/* Steps done and wanted: of the status, else of the metrics and the configuration. */
static double steps_done(const struct cld_run_data *run)
{
    double status = cld_run_data_status_number(run, "step");
    const struct cld_series *loss = cld_run_data_series(run, "loss");
    double last = loss ? loss->step[loss->n - 1] : NAN;
    return isfinite(last) ? fmax(last, isfinite(status) ? status : 0) : status;
}

static double steps_wanted(const struct cld_run_data *run)
{
    double status = cld_run_data_status_number(run, "steps");
    return isfinite(status) ? status : strtod(cld_run_data_value(run, "train", "steps"), NULL);
}

static double sum(const struct cld_series *s)
{
    double v = 0;
    for (size_t i = 0; s && i < s->n; i++)
        v += isfinite(s->value[i]) ? s->value[i] : 0;
    return s ? v : NAN;
}

/* The largest value and its step. */
static double largest(const struct cld_series *s, double *step)
{
    double most = NAN;
    *step = NAN;
    for (size_t i = 0; s && i < s->n; i++)
        if (isfinite(s->value[i]) && !(s->value[i] <= most)) {
            most = s->value[i];
            *step = s->step[i];
        }
    return most;
}

/* "0:42", "3:04:05". */
static const char *duration(double ms, char to[32])
{
    unsigned long s = isfinite(ms) && ms >= 0 && ms < 1e15 ? (unsigned long)(ms / 1000 + 0.5) : 0;
    if (!isfinite(ms))
        strcpy(to, "\xe2\x80\x93");
    else if (s >= 3600)
        snprintf(to, 32, "%lu:%02lu:%02lu", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(to, 32, "%lu:%02lu", s / 60, s % 60);
    return to;
}

/* Tokens of all steps over their time. */
static double mean_rate(const struct cld_run_data *run)
{
    double tokens = sum(cld_run_data_series(run, "context_tokens")),
           ms = sum(cld_run_data_series(run, "step_ms"));
    return ms > 0 ? tokens / ms * 1000 : NAN;
}

/* --- head ------------------------------------------------------------------------------------- */

static void write_head(const struct cld_report *r)
{
    FILE *to = r->to;
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<link rel=\"icon\" href=\"data:,\">\n<title>",
          to);
    for (size_t i = 0; i < r->n && i < 4; i++) {
        fputs(i ? ", " : "", to);
        cld_report_write_name(r, i);
    }
    fputs(" \xc2\xb7 cldraft report</title>\n<style>\n", to);
    cld_svg_write_style(to);
    cld_svg_write_theme(":root:has(#light:checked) ", false, to);
    cld_svg_write_theme(":root:has(#dark:checked) ", true, to);
    fputs(cld_report_style, to);
    fputs("</style>\n</head>\n<body>\n", to);
}

static void write_title(const struct cld_report *r)
{
    FILE *to = r->to;
    time_t now = time(NULL);
    struct tm tm;
    char when[40] = "";
    if (gmtime_r(&now, &tm))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", &tm);
    fputs("<header>\n<fieldset class=\"theme\"><legend>Colours</legend>"
          "<label><input type=\"radio\" name=\"theme\" id=\"auto\" checked>Auto</label>"
          "<label><input type=\"radio\" name=\"theme\" id=\"light\">Light</label>"
          "<label><input type=\"radio\" name=\"theme\" id=\"dark\">Dark</label></fieldset>\n"
          "<p class=\"kind\">cldraft report</p>\n<h1>",
          to);
    for (size_t i = 0; i < r->n; i++) {
        fputs(i ? " <small>and</small> " : "", to);
        cld_report_write_name(r, i);
    }
    fprintf(to, "</h1>\n<p class=\"dim\">Written %s by cldraft " CLD_VERSION ".</p>\n</header>\n",
            when);
}

/* --- summary ---------------------------------------------------------------------------------- */

static void tile(const struct cld_report *r, const char *name, const char *value, const char *more)
{
    fprintf(r->to, "<div class=\"tile\"><dt>%s</dt><dd>%s<span>", name, value);
    cld_report_write_text(r, more);
    fputs("</span></dd></div>\n", r->to);
}

/* What a series came to, and where it was largest. */
static void score_tile(const struct cld_report *r, const char *name, const char *key,
                       const char *otherwise)
{
    char value[32], most[32], at[32], more[96];
    double step;
    const struct cld_series *s = cld_run_data_series(r->runs, key);
    double best = largest(s, &step);
    snprintf(more, sizeof more, "best %s at step %s", cld_report_number(best, most),
             cld_report_number(step, at));
    tile(r, name, cld_report_number(cld_series_last(s), value), isfinite(best) ? more : otherwise);
}

static void write_tiles(const struct cld_report *r)
{
    const struct cld_run_data *run = r->runs;
    const struct cld_series *heldout = cld_run_data_series(run, "heldout_loss");
    char value[32], other[32], more[128];
    fputs("<dl class=\"tiles\">\n", r->to);
    snprintf(more, sizeof more, "of %s", cld_report_number(steps_wanted(run), other));
    tile(r, "Step", cld_report_number(steps_done(run), value), more);
    score_tile(r, "Accepted length, held-out", "heldout_accepted_length",
               *cld_run_data_value(run, "data", "heldout") &&
                       strcmp(cld_run_data_value(run, "data", "heldout"), "none")
                   ? "not evaluated yet"
                   : "data.heldout is not set");
    if (cld_run_data_series(run, "decoded_tokens_per_cycle"))
        score_tile(r, "Tokens per cycle, decoding", "decoded_tokens_per_cycle",
                   "no text was decoded");
    snprintf(more, sizeof more, "held-out %s", cld_report_number(cld_series_last(heldout), other));
    tile(r, "Loss", cld_report_number(cld_series_last(cld_run_data_series(run, "loss")), value),
         heldout ? more : "training");
    snprintf(more, sizeof more, "%s in all",
             cld_report_number(sum(cld_run_data_series(run, "context_tokens")), other));
    tile(r, "Context tokens/s", cld_report_number(mean_rate(run), value), more);
    tile(r, "Time in steps", duration(sum(cld_run_data_series(run, "step_ms")), value),
         cld_run_data_status_text(run, "features"));
    fputs("</dl>\n", r->to);
}

static void write_state(const struct cld_report *r, const struct cld_run_data *run)
{
    const char *state = state_of(run);
    fprintf(r->to, "<span class=\"state %s\">",
            strcmp(state, "failed") && strcmp(state, "died")
                ? strcmp(state, "finished") ? "" : "good"
                : "bad");
    cld_report_write_text(r, state);
    fputs("</span>", r->to);
}

static void write_comparison(const struct cld_report *r)
{
    static const struct {
        const char *name, *key;
        bool best;
    } columns[] = {{"loss", "loss", false},
                   {"held-out loss", "heldout_loss", false},
                   {"accepted length, held-out", "heldout_accepted_length", false},
                   {"best", "heldout_accepted_length", true},
                   {"tokens per cycle", "decoded_tokens_per_cycle", false}};
    char v[32], w[32];
    FILE *to = r->to;
    fputs("<div class=\"wide\"><table class=\"numbers\">\n<tr><th>run<th>state<th>step", to);
    for (size_t k = 0; k < sizeof columns / sizeof *columns; k++)
        fprintf(to, "<th>%s", columns[k].name);
    fputs("<th>tokens/s<th>time in steps\n", to);
    for (size_t i = 0; i < r->n; i++) {
        const struct cld_run_data *run = &r->runs[i];
        fputs("<tr><td class=\"name\">", to);
        cld_report_swatch(r, i);
        cld_report_write_text(r, run->dir);
        fputs("<td>", to);
        write_state(r, run);
        fprintf(to, "<td>%s of %s", cld_report_number(steps_done(run), v),
                cld_report_number(steps_wanted(run), w));
        for (size_t k = 0; k < sizeof columns / sizeof *columns; k++) {
            double step;
            const struct cld_series *s = cld_run_data_series(run, columns[k].key);
            fprintf(to, "<td>%s",
                    cld_report_number(columns[k].best ? largest(s, &step) : cld_series_last(s), v));
        }
        fprintf(to, "<td>%s<td>%s\n", cld_report_number(mean_rate(run), v),
                duration(sum(cld_run_data_series(run, "step_ms")), w));
    }
    fputs("</table></div>\n", to);
}

static void write_notes(const struct cld_report *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++)
        n += r->runs[i].n_notes;
    if (!n)
        return;
    fputs("<ul class=\"notes\">\n", r->to);
    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0; k < r->runs[i].n_notes; k++) {
            fputs("<li>", r->to);
            if (r->n > 1) {
                cld_report_write_name(r, i);
                fputs(": ", r->to);
            }
            cld_report_write_text(r, r->runs[i].notes[k]);
            fputs("\n", r->to);
        }
    fputs("</ul>\n", r->to);
}

void cld_report_summary(const struct cld_report *r)
{
    fputs("<section>\n", r->to);
    if (r->n > 1) {
        write_comparison(r);
    } else {
        fputs("<p class=\"run\">", r->to);
        write_state(r, r->runs);
        fputs(" <code>", r->to);
        cld_report_write_text(r, r->runs->dir);
        fputs("</code></p>\n", r->to);
        write_tiles(r);
    }
    write_notes(r);
    fputs("</section>\n", r->to);
}

/* --- the page --------------------------------------------------------------------------------- */

static enum cld_status write_page(const struct cld_report *r, struct cld_error *err)
{
    enum cld_status s;
    write_head(r);
    write_title(r);
    fputs(r->n > 1 ? "<main class=\"several\">\n" : "<main>\n", r->to);
    cld_report_summary(r);
    if ((s = cld_report_learning(r, err)) || (s = cld_report_speed(r, err)))
        return s;
    cld_report_workers(r);
    cld_report_events(r);
    cld_report_differences(r);
    cld_report_configuration(r);
    fputs("</main>\n</body>\n</html>\n", r->to);
    return CLD_OK;
}

enum cld_status cld_report_text(const struct cld_run_data *runs, size_t n, char **out,
                                size_t *n_bytes, struct cld_error *err)
{
    struct cld_report r = {runs, n, NULL};
    *out = NULL;
    *n_bytes = 0;
    r.to = open_memstream(out, n_bytes);
    enum cld_status s = r.to ? write_page(&r, err) : cld_fail_memory(err, "a report");
    bool failed = r.to && ferror(r.to);
    failed |= r.to && fclose(r.to);
    if (!s && failed)
        s = cld_fail_memory(err, "a report");
    if (s) {
        free(*out);
        *out = NULL;
    }
    return s;
}
