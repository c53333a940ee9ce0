#include "bench/bench_run.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "bench/bench_case.h"
#include "bench/bench_compare.h"
#include "bench/bench_journal.h"
#include "bench/bench_out.h"
#include "bench/bench_plot.h"
#include "bench/bench_result.h"
#include "bench/bench_roof.h"
#include "bench/sweep.h"
#include "workers/worker_set.h"

/* The roof of one device: each part is measured once, when a record first wants it. */
struct roof {
    struct cld_device_info device;
    bool copied, multiplied[2]; /* known, or cannot be */
    struct cld_bench_roof of[2];
};

/* All that a call carries along. */
struct session {
    const struct cld_bench_options *o;
    struct cld_devices *devices;
    struct cld_sweep sweep;
    bool sweeping;
    struct cld_bench_out out;
    struct cld_bench_journal *journal;
    struct cld_bench_baseline *baseline;
    json_t *records; /* all of them, for the drawings */
    struct roof roof;
    double begun_ms;
    size_t n_measured, n_cached, n_failed, n_left; /* units; n_cached: from the journal */
    struct cld_error first_failure;
};

/* One point: what its configuration means, made when first needed. */
struct site {
    struct session *session;
    struct cld_config cfg;
    const char **values; /* [n_keys] */
    struct cld_device_info device;
    char *options;
    struct cld_bench_context context;
    struct cld_error invalid; /* status CLD_OK: it can be measured */
    struct cld_feed *feed;
    struct cld_setup setup;
    bool has_setup, has_rows;
    json_t *unit;   /* records of the kind that is being measured */
    char text[512]; /* of the point, for messages */
};

/* --- records go out --------------------------------------------------------------------------- */

/* Takes over `record`. */
static enum cld_status give_out(struct session *t, json_t *record, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (t->baseline)
        s = cld_bench_baseline_judge(t->baseline, record, err);
    if (!s)
        s = cld_bench_out_put(&t->out, record, err);
    if (!s && json_array_append(t->records, record))
        s = cld_fail_memory(err, "a record");
    json_decref(record);
    return s;
}

/* A new record: one copy for the journal, without verdicts, and out. Takes over `record`. */
static enum cld_status put_record(struct site *p, json_t *record, struct cld_error *err)
{
    json_t *copy = json_copy(record);
    if (!copy || json_array_append_new(p->unit, copy)) {
        json_decref(record);
        return cld_fail_memory(err, "a record");
    }
    return give_out(p->session, record, err);
}

static enum cld_status put_measured(void *arg, const struct cld_bench_result *r,
                                    struct cld_error *err)
{
    struct site *p = arg;
    json_t *record = NULL;
    enum cld_status s = cld_bench_json(&p->context, r, &record, err);
    return s ? s : put_record(p, record, err);
}

static enum cld_status put_failed(struct site *p, const char *what, const struct cld_error *why,
                                  struct cld_error *err)
{
    json_t *record = NULL;
    enum cld_status s = cld_bench_json_failed(&p->context, what, why, &record, err);
    return s ? s : put_record(p, record, err);
}

/* --- the roof --------------------------------------------------------------------------------- */

static bool same_device(const struct cld_device_info *a, const struct cld_device_info *b)
{
    return a->index == b->index && a->part == b->part && a->n_parts == b->n_parts &&
           a->class == b->class;
}

/* A roof that cannot be measured is none; only a signal ends the run. */
static enum cld_status without(enum cld_status s, const char *what, struct cld_error *err)
{
    if (s == CLD_OK || s == CLD_E_INTERRUPTED)
        return s;
    cld_warn("no share of the roof, %s: %s", what, err->what);
    err->status = CLD_OK;
    return CLD_OK;
}

static enum cld_status measure_copies(const struct cld_bench *b, struct roof *roof,
                                      struct cld_error *err)
{
    if (roof->copied)
        return CLD_OK;
    enum cld_status s = without(cld_bench_roof_copy(b, &roof->of[0].gb_per_s, err), "copies", err);
    roof->of[1].gb_per_s = roof->of[0].gb_per_s;
    roof->copied = !s;
    return s;
}

static enum cld_status measure_gemms(const struct cld_bench *b, struct roof *roof,
                                     enum cld_dtype storage, struct cld_error *err)
{
    int i = storage == CLD_BF16;
    if (roof->multiplied[i])
        return CLD_OK;
    enum cld_status s =
        without(cld_bench_roof_gemm(b, storage, &roof->of[i].gflops, err), "products", err);
    roof->multiplied[i] = !s;
    return s;
}

/* All that the records of a kind are compared with. */
static enum cld_status know_roof(const struct cld_bench *b, enum cld_bench_what what,
                                 struct site *p, struct cld_error *err)
{
    struct roof *roof = &p->session->roof;
    enum cld_bench_bound bound = cld_bench_bound(what);
    enum cld_status s = CLD_OK;
    memset(p->context.roofs, 0, sizeof p->context.roofs);
    if (!b->cfg->bench.roofline || bound == CLD_BENCH_UNBOUND)
        return CLD_OK;
    if (!same_device(&roof->device, b->device)) {
        memset(roof, 0, sizeof *roof);
        roof->device = *b->device;
    }
    s = measure_copies(b, roof, err);
    /* The target's passes have the storage of the run. */
    if (what == CLD_BENCH_TARGET && !s)
        s = measure_gemms(b, roof, b->cfg->runtime.precision, err);
    else if (bound == CLD_BENCH_BY_BOTH)
        for (size_t i = 0; i < cld_bench_n_storages(b) && !s; i++)
            s = measure_gemms(b, roof, cld_bench_storage(b, i), err);
    memcpy(p->context.roofs, roof->of, sizeof p->context.roofs);
    return s;
}

/* --- a point ---------------------------------------------------------------------------------- */

/* Whether a failure is of the point, so that the sweep goes on. */
static bool is_of_point(enum cld_status s)
{
    return s == CLD_E_USAGE || s == CLD_E_INPUT || s == CLD_E_DEVICE || s == CLD_E_MEMORY ||
           s == CLD_E_NUMERIC || s == CLD_E_CHECK;
}

static enum cld_status open_site(struct site *p, struct session *t, const struct cld_config *base,
                                 size_t at, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    memset(p, 0, sizeof *p);
    p->session = t;
    cld_sweep_text(&t->sweep, at, p->text, sizeof p->text);
    if (!(p->values = calloc(cld_max(1, t->sweep.n_keys), sizeof *p->values)))
        return cld_fail_memory(err, "a point");
    cld_sweep_point(&t->sweep, at, p->values);
    if ((s = cld_config_with(base, t->sweep.names, p->values, t->sweep.n_keys, &p->cfg, err)) ||
        (s = cld_config_given_text(&p->cfg, &p->options, err)))
        return s;
    if (!(s = cld_config_check(&p->cfg, CLD_CONFIG_BENCH, err)))
        s = cld_worker_find_device(t->devices, &p->cfg, t->o->device, &p->device, err);
    if (s && !is_of_point(s))
        return s;
    if (s) {
        p->invalid = *err;
        p->device = t->roof.device; /* the one that the run began with: a record names one */
    }
    p->context = (struct cld_bench_context){.device = &p->device,
                                            .options = p->options,
                                            .names = t->sweep.names,
                                            .values = p->values,
                                            .n_swept = t->sweep.n_keys};
    return CLD_OK;
}

static void close_site(struct site *p)
{
    cld_feed_close(p->feed);
    cld_config_free(&p->cfg);
    json_decref(p->unit);
    free(p->values);
    free(p->options);
}

/* Reads what the kind needs of the target and of the data. */
static enum cld_status get_ready(struct site *p, enum cld_bench_what what, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int64_t mask_token = -1;
    if (cld_bench_needs_setup(what) && !p->has_setup) {
        if ((s = cld_feed_open(&p->cfg, &p->feed, err)) ||
            (s = cld_feed_mask_token(p->feed, &mask_token, err)) ||
            (s = cld_setup_read(&p->cfg, mask_token, &p->setup, err))) {
            cld_feed_close(p->feed);
            p->feed = NULL;
            return s;
        }
        p->has_setup = true;
    }
    if (cld_bench_needs_rows(what) && !p->has_rows) {
        s = cld_feed_load(p->feed, p->setup.target.vocab, true, err);
        p->has_rows = !s;
    }
    return s;
}

static enum cld_status measure(struct site *p, enum cld_bench_what what, struct cld_error *err)
{
    struct session *t = p->session;
    struct cld_bench_sink sink = {.put = put_measured, .arg = p};
    struct cld_bench b = {.cfg = &p->cfg,
                          .device = &p->device,
                          .devices = t->devices,
                          .sink = &sink,
                          .kernel_times = t->o->kernel_times};
    enum cld_status s = CLD_OK;
    if (p->invalid.status) {
        *err = p->invalid;
        return p->invalid.status;
    }
    if ((s = get_ready(p, what, err)) || (s = know_roof(&b, what, p, err)))
        return s;
    b.setup = p->has_setup ? &p->setup : NULL;
    b.feed = p->has_rows ? p->feed : NULL;
    return cld_bench_kind(&b, what, err);
}

/* Records of this kind at this point, from the journal if they are there. */
static enum cld_status run_unit(struct site *p, enum cld_bench_what what, struct cld_error *err)
{
    struct session *t = p->session;
    const struct cld_error none = CLD_ERROR_INIT;
    const char *name = cld_bench_what_name(what);
    json_t *like = NULL, *known = NULL, *record;
    size_t i;
    enum cld_status s = CLD_OK;
    if (t->journal) {
        if ((s = cld_bench_json_failed(&p->context, name, &none, &like, err)))
            return s;
        known = cld_bench_journal_find(t->journal, like);
        json_decref(like);
    }
    if (known) {
        t->n_cached++;
        json_array_foreach (known, i, record)
            if (!s)
                s = give_out(t, json_incref(record), err);
        json_decref(known);
        return s;
    }
    double limit_s = p->session->sweep.cfg->sweep.limit_s;
    if (limit_s > 0 && cld_clock_ms() - t->begun_ms > limit_s * 1e3) {
        t->n_left++;
        return CLD_OK;
    }
    if ((s = cld_bench_go_on(err)))
        return s;
    json_decref(p->unit);
    if (!(p->unit = json_array()))
        return cld_fail_memory(err, "records");
    if ((s = measure(p, what, err)) && t->sweeping && is_of_point(s)) {
        struct cld_error why = *err;
        cld_warn("%s at %s: %s", name, p->text, why.what);
        if (!t->n_failed++)
            t->first_failure = why;
        *err = none;
        s = put_failed(p, name, &why, err);
    } else if (!s) {
        t->n_measured++;
    }
    return s || !t->journal ? s : cld_bench_journal_append(t->journal, p->unit, err);
}

static bool asks_for(const struct cld_config *cfg, int what)
{
    for (size_t i = 0; i < cfg->bench.what.n; i++)
        if (cfg->bench.what.v[i] == what)
            return true;
    return false;
}

static enum cld_status run_point(struct session *t, const struct cld_config *base, size_t at,
                                 struct cld_error *err)
{
    struct site p;
    enum cld_status s = open_site(&p, t, base, at, err);
    if (!s && t->sweeping)
        cld_info("point %zu of %zu: %s", at + 1, t->sweep.n_points, p.text);
    for (int what = 0; what < CLD_N_BENCH_WHAT && !s; what++)
        if (asks_for(&p.cfg, what))
            s = run_unit(&p, (enum cld_bench_what)what, err);
    close_site(&p);
    return s;
}

/* --- all of them ------------------------------------------------------------------------------ */

static enum cld_status open_session(struct session *t, const struct cld_config *cfg,
                                    const struct cld_bench_options *o, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    memset(t, 0, sizeof *t);
    t->o = o;
    t->sweeping = cfg->swept.n > 0;
    t->begun_ms = cld_clock_ms();
    t->out =
        (struct cld_bench_out){.to = o->to, .format = o->format, .compared = o->compare != NULL};
    if (!(t->records = json_array()))
        return cld_fail_memory(err, "records");
    if ((!t->sweeping && (s = cld_config_check(cfg, CLD_CONFIG_BENCH, err))) ||
        (s = cld_sweep_open(cfg, &t->sweep, err)) || (s = cld_devices_open(&t->devices, err)) ||
        (s = cld_worker_find_device(t->devices, cfg, o->device, &t->roof.device, err)) ||
        (o->compare && (s = cld_bench_baseline_open(o->compare, &t->baseline, err))))
        return s;
    return o->out ? cld_bench_journal_open(o->out, &t->journal, err) : CLD_OK;
}

static void close_session(struct session *t)
{
    cld_bench_journal_close(t->journal);
    cld_bench_baseline_close(t->baseline);
    json_decref(t->records);
    cld_sweep_close(&t->sweep);
    cld_devices_close(t->devices);
}

static void tell_end(const struct session *t)
{
    if (t->n_cached)
        cld_info("%s had %zu results already, %zu were measured now", t->o->out, t->n_cached,
                 t->n_measured);
    if (t->n_left)
        cld_warn("sweep.limit_s has passed: %zu results were left out%s", t->n_left,
                 t->o->out ? "; the same command goes on with them" : "");
}

/* What comes after the last record, also after an error: that one counts. */
static enum cld_status finish(struct session *t, enum cld_status s, struct cld_error *err)
{
    struct cld_error ending = CLD_ERROR_INIT;
    bool going = !s || s == CLD_E_INTERRUPTED;
    enum cld_status end = cld_bench_out_end(&t->out, &ending);
    if (!end && going && t->o->plot && json_array_size(t->records))
        end = cld_bench_plot(t->records, t->sweep.x, t->o->plot, &ending);
    tell_end(t);
    size_t n_worse = t->baseline && going ? cld_bench_baseline_report(t->baseline) : 0;
    if (!end && n_worse && t->o->fail_on_regression)
        end = cld_fail(&ending, CLD_E_CHECK,
                       "look at the column verdict; leave --fail-on-regression out to exit with 0",
                       "%zu results are worse than in %s", n_worse, t->o->compare);
    if (!end && t->n_failed && !t->n_measured && !t->n_cached)
        end = (ending = t->first_failure).status;
    if (!s && end) {
        *err = ending;
        s = end;
    }
    return s;
}

enum cld_status cld_bench_run(const struct cld_config *cfg, const struct cld_bench_options *o,
                              struct cld_error *err)
{
    struct session t;
    enum cld_status s = open_session(&t, cfg, o, err);
    if (s)
        goto done;
    cld_info("device %zu: %s (%s, driver %s)", t.roof.device.index, t.roof.device.name,
             t.roof.device.platform, t.roof.device.driver);
    cld_bench_out_begin(&t.out, &t.roof.device, t.sweep.names, t.sweep.n_keys);
    for (size_t i = 0; i < t.sweep.n_points && !s; i++)
        s = run_point(&t, cfg, i, err);
    s = finish(&t, s, err);
done:
    close_session(&t);
    return s;
}
