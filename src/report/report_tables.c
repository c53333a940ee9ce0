/* Workers, events and configurations of a report. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json_read.h"
#include "formats/svg.h"
#include "report/report_private.h"

enum { most_events = 200 }; /* of a run; then the first and the last of them */

/* "Workers", with the name of the run if there are several. */
static void heading(const struct cld_report *r, size_t i)
{
    if (r->n < 2)
        return;
    fputs("<h3>", r->to);
    cld_report_swatch(r, i);
    cld_report_write_name(r, i);
    fputs("</h3>\n", r->to);
}

/* --- workers ---------------------------------------------------------------------------------- */

static void row(const struct cld_report *r, const char *name, const char *value)
{
    if (!*value)
        return;
    fprintf(r->to, "<dt>%s</dt><dd>", name);
    cld_report_write_text(r, value);
    fputs("</dd>\n", r->to);
}

/* Bytes as GiB; "" where they are not known. */
static const char *gib(double bytes, char to[32])
{
    snprintf(to, 32, isfinite(bytes) ? "%.3f GiB" : "", bytes / 0x1p30);
    return to;
}

/* What a worker holds, of its budget: planned before the run, and as it is. */
static void write_memory(const struct cld_report *r, double planned, double held, double budget)
{
    double used = isfinite(held) ? held : planned, share = 100 * used / budget;
    char a[32], b[32], more[96];
    if (!isfinite(share) || budget <= 0)
        return;
    fprintf(r->to,
            "<div class=\"track\" title=\"%.1f %% of the budget\"><i style=\"width:%.2f%%\"></i>"
            "</div>\n%s of %s, %.1f %%",
            share, fmax(0, fmin(100, share)), gib(used, a), gib(budget, b), share);
    if (isfinite(held) && isfinite(planned) && planned > 0) {
        snprintf(more, sizeof more, "; planned %s (%+.2f %%)", gib(planned, a),
                 100 * (held / planned - 1));
        cld_report_write_text(r, more);
    }
}

/* `device`: of devices.json, `status`: of status.json; either may be NULL. */
static void write_worker(const struct cld_report *r, const json_t *device, const json_t *status)
{
    char value[160];
    double held = cld_json_number(status, "held_bytes"),
           budget = cld_json_number(status, "budget_bytes"), busy = cld_json_number(status, "busy"),
           build_ms = cld_json_number(device, "build_ms");
    fputs("<div class=\"worker\"><b>", r->to);
    cld_report_write_text(r, device ? cld_json_text_or(device, "worker", "")
                                    : cld_json_text_or(status, "name", ""));
    fputs("</b> ", r->to);
    cld_report_write_text(r, cld_json_text_or(status, "state", ""));
    if (isfinite(busy))
        fprintf(r->to, " \xc2\xb7 busy %.0f %% of its last seconds", 100 * busy);
    write_memory(r, cld_json_number(device, "planned_bytes"),
                 held > 0 ? held : cld_json_number(device, "held_bytes"),
                 budget > 0 ? budget : cld_json_number(device, "budget_bytes"));
    fputs("<dl>\n", r->to);
    row(r, "device",
        device ? cld_json_text_or(device, "name", "") : cld_json_text_or(status, "device", ""));
    if (cld_json_number(device, "parts") > 1) {
        snprintf(value, sizeof value, "%.0f of %.0f", cld_json_number(device, "part"),
                 cld_json_number(device, "parts"));
        row(r, "part", value);
    }
    row(r, "platform", cld_json_text_or(device, "platform", ""));
    row(r, "driver", cld_json_text_or(device, "driver", ""));
    row(r, "storage", cld_json_text_or(device, "storage", ""));
    row(r, "attention", cld_json_text_or(device, "attention", ""));
    row(r, "GEMM", cld_json_text_or(device, "gemm", ""));
    row(r, "tuned parameters", cld_json_text_or(device, "tuning", ""));
    if (isfinite(build_ms)) {
        snprintf(value, sizeof value,
                 "%s: %.0f built, %.0f from the cache, %.0f of modules, %.1f s",
                 cld_json_text_or(device, "program", ""), cld_json_number(device, "programs_built"),
                 cld_json_number(device, "programs_cached"),
                 cld_json_number(device, "programs_from_modules"), build_ms * 1e-3);
        row(r, "programs", value);
    }
    if (cld_json_number(device, "pinned_bytes") > 0)
        row(r, "pinned host memory", gib(cld_json_number(device, "pinned_bytes"), value));
    fputs("</dl></div>\n", r->to);
}

void cld_report_workers(const struct cld_report *r)
{
    fputs("<section>\n<h2>Workers and memory</h2>\n", r->to);
    for (size_t i = 0; i < r->n; i++) {
        const json_t *list = json_object_get(r->runs[i].status, "workers");
        size_t n_devices = json_array_size(r->runs[i].devices), n = json_array_size(list);
        heading(r, i);
        if (!n && !n_devices)
            fputs("<p class=\"dim\">Not known.</p>\n", r->to);
        fputs("<div class=\"workers\">\n", r->to);
        for (size_t k = 0; k < n || k < n_devices; k++)
            write_worker(r, json_array_get(r->runs[i].devices, k), json_array_get(list, k));
        fputs("</div>\n", r->to);
    }
    fputs("</section>\n", r->to);
}

/* --- events ----------------------------------------------------------------------------------- */

static const char *kind_name(enum cld_event_kind k)
{
    static const char *const names[] = {"checkpoint", "skipped", "warning",
                                        "error",      "resumed", "end"};
    return names[k];
}

static void write_event(const struct cld_report *r, const struct cld_event *e)
{
    char first[32], last[32];
    fprintf(r->to, "<tr class=\"%s\"><td class=\"when\">", kind_name(e->kind));
    cld_report_write_text(r, e->time);
    fprintf(r->to, "<td class=\"at\">%s",
            isfinite(e->first) ? cld_report_number(e->first, first) : "");
    if (e->last > e->first)
        fprintf(r->to, " to %s", cld_report_number(e->last, last));
    fprintf(r->to, "<td class=\"kind\">%s", kind_name(e->kind));
    if (e->n > 1)
        fprintf(r->to, " \xc3\x97 %zu", e->n);
    fputs("<td class=\"what\">", r->to);
    cld_report_write_text(r, e->text);
    if (e->n > 1)
        fputs(" \xe2\x80\xa6 and so on", r->to);
    fputs("\n", r->to);
}

static void write_checkpoints(const struct cld_report *r, const struct cld_run_data *run)
{
    char step[32];
    if (!run->n_checkpoints)
        return;
    fputs("<p>Checkpoints that are there: steps ", r->to);
    size_t n = run->n_checkpoints, skipped = n > 24 ? n - 24 : 0;
    for (size_t i = 0; i < n; i++) {
        if (skipped && i == 12) {
            fprintf(r->to, ", \xe2\x80\xa6 %zu others", skipped);
            i += skipped;
        }
        fprintf(r->to, "%s%s", i ? ", " : "", cld_report_number(run->checkpoints[i], step));
    }
    if (isfinite(run->best_step))
        fprintf(r->to, "; the best is step %s", cld_report_number(run->best_step, step));
    fputs(".</p>\n", r->to);
}

static void write_events(const struct cld_report *r, const struct cld_run_data *run)
{
    size_t n = run->n_events;
    fputs("<div class=\"wide\"><table class=\"events\">\n<tr><th>time<th>step<th>what<th>\n",
          r->to);
    for (size_t i = 0; i < n; i++) {
        if (n > most_events && i == most_events / 2) {
            fprintf(r->to,
                    "<tr><td><td><td><td class=\"what\">\xe2\x80\xa6 %zu others, see log.txt\n",
                    n - most_events);
            i += n - most_events;
        }
        write_event(r, &run->events[i]);
    }
    fputs("</table></div>\n", r->to);
}

void cld_report_events(const struct cld_report *r)
{
    fputs("<section>\n<h2>Events</h2>\n", r->to);
    for (size_t i = 0; i < r->n; i++) {
        const struct cld_run_data *run = &r->runs[i];
        heading(r, i);
        write_checkpoints(r, run);
        if (run->n_events)
            write_events(r, run);
        else
            fputs(
                "<p class=\"dim\">None: no checkpoint, skipped step, warning, resume or end.</p>\n",
                r->to);
    }
    fputs("</section>\n", r->to);
}

/* --- configurations --------------------------------------------------------------------------- */

/* NULL: the run has no such key. */
static const struct cld_run_data_key *find_key(const struct cld_run_data *run,
                                               const struct cld_run_data_key *like)
{
    for (size_t i = 0; i < run->n_config; i++)
        if (!strcmp(run->config[i].section, like->section) &&
            !strcmp(run->config[i].name, like->name))
            return &run->config[i];
    return NULL;
}

static bool differs(const struct cld_report *r, const struct cld_run_data_key *key)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct cld_run_data_key *k = find_key(&r->runs[i], key);
        if (r->runs[i].n_config && (!k || strcmp(k->value, key->value)))
            return true;
    }
    return false;
}

/* Keys of run i that no run before it has. */
static bool is_first(const struct cld_report *r, size_t i, const struct cld_run_data_key *key)
{
    for (size_t k = 0; k < i; k++)
        if (find_key(&r->runs[k], key))
            return false;
    return true;
}

static void write_difference(const struct cld_report *r, const struct cld_run_data_key *key)
{
    fputs("<tr><td>", r->to);
    cld_report_write_text(r, key->section);
    fputs(".", r->to);
    cld_report_write_text(r, key->name);
    for (size_t i = 0; i < r->n; i++) {
        const struct cld_run_data_key *k = find_key(&r->runs[i], key);
        fputs("<td>", r->to);
        cld_report_write_text(r, k ? k->value : "\xe2\x80\x93");
    }
    fputs("\n", r->to);
}

void cld_report_differences(const struct cld_report *r)
{
    size_t n = 0;
    if (r->n < 2)
        return;
    fputs("<section>\n<h2>What the configurations differ in</h2>\n", r->to);
    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0; k < r->runs[i].n_config; k++) {
            const struct cld_run_data_key *key = &r->runs[i].config[k];
            if (!is_first(r, i, key) || !differs(r, key))
                continue;
            if (!n++) {
                fputs("<div class=\"wide\"><table class=\"values\">\n<tr><th>key", r->to);
                for (size_t run = 0; run < r->n; run++) {
                    fputs("<th>", r->to);
                    cld_report_swatch(r, run);
                    cld_report_write_name(r, run);
                }
                fputs("\n", r->to);
            }
            write_difference(r, key);
        }
    fputs(n ? "</table></div>\n" : "<p class=\"dim\">In nothing.</p>\n", r->to);
    fputs("</section>\n", r->to);
}

static void write_configuration(const struct cld_report *r, size_t at)
{
    const struct cld_run_data *run = &r->runs[at];
    fputs("<details><summary>", r->to);
    if (r->n > 1)
        cld_report_write_name(r, at);
    else
        cld_report_write_text(r, "All values");
    fputs("</summary>\n<div class=\"wide\"><table class=\"values "
          "stacked\">\n<tr><th>key<th>value<th>from\n",
          r->to);
    for (size_t i = 0; i < run->n_config; i++) {
        const struct cld_run_data_key *k = &run->config[i];
        fprintf(r->to, "<tr%s><td>", strcmp(k->origin, "default") ? "" : " class=\"default\"");
        cld_report_write_text(r, k->section);
        fputs(".", r->to);
        cld_report_write_text(r, k->name);
        fputs("<td>", r->to);
        cld_report_write_text(r, k->value);
        fputs("<td class=\"origin\">", r->to);
        cld_report_write_text(r, k->origin);
        fputs("\n", r->to);
    }
    fputs("</table></div></details>\n", r->to);
}

void cld_report_configuration(const struct cld_report *r)
{
    fputs("<section>\n<h2>Configuration</h2>\n", r->to);
    for (size_t i = 0; i < r->n; i++)
        if (r->runs[i].n_config)
            write_configuration(r, i);
        else
            fputs("<p class=\"dim\">Not known.</p>\n", r->to);
    fputs("</section>\n", r->to);
}
