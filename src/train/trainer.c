#include "train/trainer_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ckptdir.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "formats/tensorboard.h"
#include "model/drafter_layout.h"
#include "model/identify_features.h"
#include "model/special_tokens.h"
#include "train/data_checks.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/run_decoder.h"
#include "train/run_dir.h"
#include "workers/batch_schedule.h"
#include "workers/checkpoint.h"
#include "workers/evaluate.h"
#include "workers/feature_source.h"
#include "workers/pipeline.h"
#include "workers/schedule.h"
#include "workers/status_file.h"

/* So many steps in a row without a finite gradient end the run: skipping for ever hides a fault. */
static const int64_t max_skips_in_a_row = 10;

/* Weights of the target and of drafter.init are finite: they were looked at as they were loaded. */
static const char never_learned[] =
    "the first step failed already: features or initial weights overflow; look at drafter.init_std "
    "and the target, and try runtime.precision = fp32";

/* --- beginning -------------------------------------------------------------------------------- */

/* Who works where, and that it fits: nothing is allocated yet. */
static enum cld_status plan(struct cld_trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if ((s = cld_devices_open(&t->devices, err)) ||
        (s = cld_worker_set_make(&t->set, t->cfg, t->devices, err)) ||
        (s = cld_machines_join(&t->machines, t->link, t->set.n_drafters, t->cfg, err)))
        return s;
    t->set.decodes &= cld_trainer_writes(t); /* one machine's result is enough */
    cld_worker_set_assign_shards(&t->set, t->machines.first, t->machines.n_drafters,
                                 cld_machines_n_remote(&t->machines));
    if ((s = cld_worker_set_probe(&t->set, t->cfg, err)) ||
        (s = cld_worker_set_plan(&t->set, t->cfg, &t->setup, NULL, err)))
        return s;
    if (t->link)
        cld_info("%zu drafters on %zu machines", t->machines.n_drafters, cld_link_n(t->link));
    for (size_t i = 0; i < cld_trainer_n_workers(t); i++) {
        const struct cld_planned_worker *m = &t->set.workers[i];
        char part[48] = "";
        if (m->device.n_parts > 1)
            snprintf(part, sizeof part, ", part %zu of %zu", m->device.part, m->device.n_parts);
        cld_info("%s: device %zu: %s%s (%s, driver %s); %.3f GiB planned", m->name, m->device.index,
                 m->device.name, part, m->device.platform, m->device.driver,
                 cld_gib((double)m->planned_bytes));
    }
    return CLD_OK;
}

/* Before the directory of a run that is still going is set aside. */
static enum cld_status refuse_living(const struct cld_trainer *t, struct cld_error *err)
{
    if (!cld_status_file_alive(t->dir))
        return CLD_OK;
    return cld_fail(err, CLD_E_USAGE, "wait for it, or choose another run.dir",
                    "%s: another run is alive in this directory", t->dir);
}

/* What this run reads must not be renamed with the run that is set aside for it. */
static enum cld_status refuse_moving(const struct cld_trainer *t, struct cld_error *err)
{
    const char *const needed[] = {t->resumed, t->init, t->cfg->target.dir,
                                  t->store ? t->cfg->features.dir : NULL};
    if (t->goes_on || !cld_run_dir_in_use(t->dir))
        return CLD_OK;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (needed[i] && cld_run_dir_has(t->dir, needed[i]))
            return cld_fail(err, CLD_E_USAGE, "choose another run.dir",
                            "%s lies in %s, which holds a run that would be set aside", needed[i],
                            t->dir);
    return CLD_OK;
}

/* Stored features, if the run has them; rows that an offline run will miss are listed before it
 * begins. */
static enum cld_status open_store(struct cld_trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_config *cfg = t->cfg;
    struct cld_feature_identity id;
    struct cld_missing_rows missing;
    cld_features_describe(cfg, t->features, sizeof t->features);
    if (cfg->features.mode == CLD_FEATURES_ONLINE)
        return CLD_OK;
    if (t->link && cfg->features.mode == CLD_FEATURES_HYBRID)
        return cld_fail(err, CLD_E_USAGE,
                        "fill the store by a run of one process, then use offline",
                        "features.mode = hybrid is for one process, not for several machines");
    if ((s = cld_feature_identity_make(cfg, &t->setup, cld_feed_tokenizer_hash(t->feed), &id,
                                       err)) ||
        (s = cld_feature_store_open(cfg, &id, &t->store, err)) ||
        (s = cld_feed_missing(t->feed, t->store, (size_t)t->state.step, cfg->train.steps, &missing,
                              err)))
        return s;
    cld_info("features %s: %zu of %zu rows that the run needs are there%s", t->features,
             missing.n_needed - missing.n, missing.n_needed,
             t->set.reads && cfg->devices.targets.n ? "; devices.targets are not used" : "");
    if (!t->set.reads || !missing.n)
        return CLD_OK;
    return cld_fail(err, CLD_E_INPUT, "compute what is missing with features.mode = hybrid",
                    "%s lacks %zu of %zu rows that this run needs, the first is row %llu of the %s "
                    "set",
                    cfg->features.dir, missing.n, missing.n_needed,
                    (unsigned long long)missing.first.id,
                    missing.heldout ? "held-out" : "training");
}

static enum cld_status open_status_file(struct cld_trainer *t, struct cld_error *err)
{
    size_t n = cld_trainer_n_workers(t);
    const char **names = calloc(n, sizeof *names), **devices = calloc(n, sizeof *devices);
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < n && names && devices; i++) {
        names[i] = t->set.workers[i].name;
        devices[i] = t->set.workers[i].device.name;
    }
    s = names && devices
            ? cld_status_file_open(t->dir, t->cfg->train.steps, n, names, devices, &t->status, err)
            : cld_fail_memory(err, "the status");
    free(names);
    free(devices);
    if (!s)
        cld_status_file_features(t->status, t->features);
    return s;
}

static enum cld_status start_decoder(struct cld_trainer *t, struct cld_error *err)
{
    return t->set.decodes ? cld_run_decoder_open(&t->decoder, t->cfg, &t->setup,
                                                 &t->set.workers[cld_trainer_n_workers(t)], err)
                          : CLD_OK;
}

static enum cld_status start_workers(struct cld_trainer *t, struct cld_error *err)
{
    enum cld_status s =
        cld_pipeline_open(t->cfg, &t->setup, &t->set, &t->machines, t->feed, t->store, t->status,
                          (size_t)t->state.step, &t->pipeline, err);
    for (size_t i = 0; i < cld_trainer_n_workers(t) && !s; i++) {
        const struct cld_worker_facts *f = cld_pipeline_facts(t->pipeline, i);
        cld_info("%s: %.3f GiB held of a budget of %.3f GiB; attention: %s; gemm: %s; programs: "
                 "%s",
                 f->name, cld_gib((double)f->held_bytes), cld_gib((double)f->budget_bytes),
                 f->attention, f->gemm, f->program);
    }
    return s;
}

/* What this run reads, and that it fits; nothing is written yet. */
static enum cld_status prepare(struct cld_trainer *t, const char *resume, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int64_t mask_token = -1;
    if ((s = cld_feed_open(t->cfg, &t->feed, err)) ||
        (s = cld_feed_mask_token(t->feed, &mask_token, err)) ||
        (s = cld_setup_read(t->cfg, mask_token, &t->setup, err)) ||
        (s = cld_tensor_sums_new(&t->setup.sums, err)) ||
        (s = cld_end_tokens_find(t->cfg, cld_feed_tokenizer(t->feed), &t->setup.target, err)) ||
        (s = cld_trainer_begin_state(t, resume, err)) || (s = cld_trainer_find_init(t, err)) ||
        (s = plan(t, err)) || (s = cld_feed_load(t->feed, t->setup.target.vocab, true, err)) ||
        (s = cld_data_checks_run(t->cfg, &t->setup, t->feed, err)) || (s = open_store(t, err)) ||
        (s = cld_run_identity_rows(&t->identity, t->cfg, t->feed, t->store,
                                   t->resumed ? &t->state : NULL, t->resumed, err)))
        return s;
    cld_drafter_file_make(&t->file, &t->setup.drafter, t->setup.taps, &t->setup.target,
                          t->cfg->drafter.init_std);
    return t->link ? cld_machines_agree(&t->machines, t->cfg, t->setup.target_hash,
                                        cld_feed_tokenizer_hash(t->feed), cld_feed_n_train(t->feed),
                                        (size_t)t->state.step, err)
                   : CLD_OK;
}

static enum cld_status open_events(struct cld_trainer *t, struct cld_error *err)
{
    enum cld_status s =
        t->cfg->log.tensorboard
            ? cld_tensorboard_open(t->dir, t->goes_on ? t->state.step : 0, &t->events, err)
            : CLD_OK;
    if (!s)
        cld_metrics_mirror(t->metrics, t->events);
    return s;
}

static enum cld_status begin_directory(struct cld_trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *path = NULL;
    if (!cld_trainer_writes(t))
        return CLD_OK;
    if ((s = refuse_living(t, err)) || (s = refuse_moving(t, err)) ||
        (s = cld_run_dir_begin(t->dir, t->cfg, t->goes_on, err)) ||
        (s = cld_ckptdir_rewind(t->checkpoints, t->goes_on ? t->state.step : -1, t->state.best_step,
                                err)))
        return s;
    if (!(path = cld_format("%s/metrics.jsonl", t->dir)))
        s = cld_fail_memory(err, "a run");
    else if (!(s = cld_metrics_open(path, t->goes_on ? t->state.step : -1, &t->metrics, err)) &&
             !(s = open_events(t, err)))
        s = open_status_file(t, err);
    free(path);
    return s;
}

static enum cld_status begin(struct cld_trainer *t, const char *resume, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if ((s = cld_run_dir_resolve(t->cfg->run.dir, &t->dir, err)))
        return s;
    if (!(t->checkpoints = cld_format("%s/checkpoints", t->dir)))
        return cld_fail_memory(err, "a run");
    if ((s = prepare(t, resume, err)) || (s = begin_directory(t, err)) ||
        (s = cld_data_checks_log(t->cfg, &t->setup, t->feed, err)) || (s = start_decoder(t, err)) ||
        (s = start_workers(t, err)) || (s = cld_trainer_check_target(t, err)) ||
        (s = cld_trainer_begin_weights(t, err)) || (s = cld_trainer_note_facts(t, err)))
        return s;
    return cld_trainer_writes(t)
               ? cld_run_dir_write_devices(t->dir, t->pipeline, cld_trainer_n_workers(t), err)
               : CLD_OK;
}

/* --- a step ----------------------------------------------------------------------------------- */

static enum cld_status run_step(struct cld_trainer *t, struct cld_trainer_step *r,
                                struct cld_error *err)
{
    double begun = cld_clock_ms();
    r->learning_rate = cld_learning_rate(t->cfg, (size_t)t->state.step);
    /* Adam's count of updates leaves out the skipped ones. */
    size_t update = (size_t)(t->state.step - t->state.n_skipped_steps) + 1;
    enum cld_status s =
        cld_pipeline_step(t->pipeline, r->learning_rate, update, &r->got, &r->waits, err);
    if (s)
        return s;
    r->step_ms = cld_clock_ms() - begun;
    t->state.step++;
    t->state.n_rows += (int64_t)t->cfg->train.batch_rows;
    t->state.n_context_tokens += (int64_t)r->got.n_tokens;
    t->state.n_supervised_tokens += (int64_t)r->got.score.n_supervised;
    return CLD_OK;
}

static enum cld_status count_skips(struct cld_trainer *t, const struct cld_trainer_step *r,
                                   struct cld_error *err)
{
    if (!r->got.skipped) {
        t->skips_in_a_row = 0;
        return CLD_OK;
    }
    t->state.n_skipped_steps++;
    cld_warn("step %lld was skipped: its loss is %g and its gradient norm %g",
             (long long)t->state.step, cld_score_loss(&r->got.score), r->got.grad_norm);
    if (++t->skips_in_a_row < max_skips_in_a_row)
        return CLD_OK;
    return cld_fail(err, CLD_E_NUMERIC,
                    t->state.n_skipped_steps == t->state.step
                        ? never_learned
                        : "lower train.learning_rate, or resume from an earlier checkpoint",
                    "%lld steps in a row without a finite gradient, up to step %lld",
                    (long long)max_skips_in_a_row, (long long)t->state.step);
}

static enum cld_status save(struct cld_trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    double begun = cld_clock_ms();
    if (t->saved_step == t->state.step)
        return CLD_OK;
    cld_status_file_run(t->status, CLD_RUN_SAVING);
    /* Lines up to this step are on the disk before the checkpoint that promises them, and so are
     * the features that its steps used. */
    if ((cld_trainer_writes(t) && (s = cld_metrics_sync(t->metrics, err))) ||
        (t->store && (s = cld_feature_store_flush(t->store, err))) ||
        (s = cld_pipeline_save(t->pipeline, t->checkpoints, &t->file, &t->state, t->cfg->train.keep,
                               err)))
        return s;
    t->saved_step = t->state.step;
    cld_status_file_run(t->status, CLD_RUN_TRAINING);
    cld_info("step %lld: training paused for %.3f s to copy a checkpoint to host memory",
             (long long)t->state.step, (cld_clock_ms() - begun) * 1e-3);
    return CLD_OK;
}

/* A checkpoint that the run ends with: it is written when this returns. */
static enum cld_status save_last(struct cld_trainer *t, struct cld_error *err)
{
    enum cld_status s = save(t, err);
    cld_status_file_run(t->status, CLD_RUN_SAVING);
    return s ? s : cld_pipeline_wait_saved(t->pipeline, err);
}

static bool due(const struct cld_trainer *t, size_t every)
{
    return every && t->state.step % (int64_t)every == 0;
}

static enum cld_status train(struct cld_trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int64_t n_steps = (int64_t)t->cfg->train.steps;
    cld_status_file_run(t->status, CLD_RUN_TRAINING);
    cld_status_file_step(t->status, t->state.step, NAN, NAN, NAN); /* where a resumed run begins */
    cld_progress_begin(&t->progress, (size_t)t->state.step, t->cfg->train.steps, t->cfg->log.every);
    while (t->state.step < n_steps) {
        struct cld_trainer_step r;
        if ((s = run_step(t, &r, err)) || (s = cld_trainer_write_step(t, &r, err)) ||
            (s = count_skips(t, &r, err)))
            return s;
        if (cld_batch_schedule_evaluates(t->cfg, t->feed, (size_t)t->state.step) &&
            (s = cld_trainer_evaluate(t, err)))
            return s;
        if (t->set.decodes && (due(t, t->cfg->eval.decode_every) || t->state.step == n_steps) &&
            (s = cld_trainer_decode(t, err)))
            return s;
        /* After the evaluation, if one was due: a resumed run goes on with the next step. */
        bool stop = false;
        if ((s = cld_link_any(t->link, cld_signals_stop_asked(), &stop, err)))
            return s;
        stop = stop && t->state.step < n_steps;
        if ((s = cld_pipeline_check_saved(t->pipeline, err)))
            return s;
        if (due(t, t->cfg->train.checkpoint_every) && (s = save(t, err)))
            return s;
        if (stop && (s = save_last(t, err)))
            return s;
        if (stop)
            return cld_fail(err, CLD_E_INTERRUPTED, "continue with --resume",
                            "stopped by a signal after step %lld; checkpoint %s/step-%lld written",
                            (long long)t->state.step, t->checkpoints, (long long)t->state.step);
    }
    /* Also what was resumed at its last step from another directory. */
    if ((s = save_last(t, err)) || !t->state.step || t->state.n_skipped_steps < t->state.step)
        return s;
    return cld_fail(err, CLD_E_NUMERIC, never_learned,
                    "every step was skipped: none of %lld had a finite gradient",
                    (long long)t->state.step);
}

/* After the workers are gone. */
static void summarise(const struct cld_trainer *t, const char *balance, double begun_ms)
{
    size_t n_programs = 0;
    for (size_t i = 0; i < cld_trainer_n_workers(t); i++)
        n_programs +=
            t->ends[i].counts.n_builds + t->ends[i].counts.n_cached + t->ends[i].counts.n_modules;
    cld_info("%lld steps, %lld context tokens, %lld supervised; %.1f s; all %zu programs built and "
             "all buffers created before the first step; checkpoint %s/step-%lld",
             (long long)t->state.step, (long long)t->state.n_context_tokens,
             (long long)t->state.n_supervised_tokens, (cld_clock_ms() - begun_ms) * 1e-3,
             n_programs, t->checkpoints, (long long)t->state.step);
    for (size_t i = 0; i < cld_trainer_n_workers(t); i++) {
        if (!t->ends[i].planned_bytes)
            continue; /* a reader of stored features needs none */
        cld_info("%s: peak device memory %.3f GiB, planned %.3f GiB (%+.2f%%)", t->ends[i].name,
                 cld_gib((double)t->ends[i].peak_bytes), cld_gib((double)t->ends[i].planned_bytes),
                 100 * ((double)t->ends[i].peak_bytes / (double)t->ends[i].planned_bytes - 1));
    }
    if (balance[0])
        cld_info("%s", balance);
    if (t->store) {
        struct cld_feature_counts n = cld_feature_store_counts(t->store);
        cld_info(
            "features %s: rows were read %zu times, %zu rows were computed and stored; %zu rows, "
            "%.3f GiB",
            t->features, n.n_read, n.n_put, n.n_rows, cld_gib((double)n.n_bytes));
    } else {
        cld_info("features %s", t->features);
    }
    if (t->state.best_step >= 0)
        cld_info("best held-out accepted length%s%s %.4f at step %lld",
                 t->set.decodes ? " by decoding" : "",
                 t->cfg->eval.ema ? ", of the averaged weights," : "", t->state.best_accepted,
                 (long long)t->state.best_step);
}

/* Ends the workers; their failure counts if nothing failed before. */
static enum cld_status stop_workers(struct cld_trainer *t, struct cld_error *err)
{
    t->ends = calloc(cld_trainer_n_workers(t) + 1, sizeof *t->ends);
    enum cld_status s = cld_pipeline_close(t->pipeline, t->ends, err);
    t->pipeline = NULL;
    if (!s && !t->ends)
        s = cld_fail_memory(err, "a summary");
    return s;
}

/* The others say what goes wrong; what goes well is said once. */
static enum cld_status join_machines(struct cld_trainer *t, struct cld_error *err)
{
    enum cld_status s = cld_link_open(&t->link, err);
    if (!s && !cld_trainer_writes(t) && t->cfg->log.level == CLD_LOG_INFO)
        cld_log_set_level(CLD_LOG_WARN);
    return s;
}

enum cld_status cld_train(const struct cld_config *cfg, const char *resume, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    double begun = cld_clock_ms();
    struct cld_trainer *t = calloc(1, sizeof *t);
    if (!t)
        return cld_fail_memory(err, "a run");
    t->cfg = cfg;
    char balance[160] = "";
    struct cld_error closing = CLD_ERROR_INIT;
    bool done = !(s = cld_signals_install(err)) && !(s = join_machines(t, err)) &&
                !(s = begin(t, resume, err)) && !(s = cld_signals_check(err)) &&
                !(s = train(t, err));
    if (done)
        cld_pipeline_balance(t->pipeline, balance, sizeof balance);
    if (s)
        cld_link_blame(t->link, err);
    if (stop_workers(t, &closing) && !s) {
        *err = closing;
        s = closing.status;
    }
    if (cld_link_close(t->link, &closing) && !s) {
        *err = closing;
        s = closing.status;
    }
    if (done && !s)
        summarise(t, balance, begun);
    if (t->metrics && cld_metrics_close(t->metrics, &closing) && !s) {
        *err = closing;
        s = closing.status;
    }
    cld_tensorboard_close(t->events);
    cld_status_file_close(t->status, s ? err : NULL);
    free(t->ends);
    cld_run_decoder_close(&t->decoder);
    cld_worker_set_free(&t->set);
    cld_machines_free(&t->machines);
    cld_devices_close(t->devices);
    cld_feed_close(t->feed);
    cld_feature_store_close(t->store);
    cld_train_state_free(&t->state);
    cld_run_identity_free(&t->identity);
    cld_tensor_sums_free(t->setup.sums);
    free(t->dir);
    free(t->checkpoints);
    free(t->resumed);
    free(t->init);
    free(t);
    cld_log_close();
    return s;
}
