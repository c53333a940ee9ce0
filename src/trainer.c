#include "trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "clock.h"
#include "evaluate.h"
#include "file.h"
#include "log.h"
#include "metrics.h"
#include "progress.h"
#include "run_dir.h"
#include "schedule.h"
#include "signals.h"
#include "step.h"

/* So many steps in a row without a finite gradient end the run: skipping for ever hides a fault. */
static const int64_t max_skips_in_a_row = 10;

struct trainer {
    const struct cld_config *cfg;
    struct cld_setup setup;
    struct cld_feed *feed;
    struct cld_devices *devices;
    struct cld_worker w;
    struct cld_drafter_file file; /* config.json of checkpoints */
    struct cld_train_state state;
    struct cld_metrics *metrics;
    struct cld_progress progress;
    char *checkpoints, *resumed; /* directories */
    struct cld_step step;
    int64_t skips_in_a_row, saved_step;
};

/* What one step gave. */
struct step_result {
    struct cld_step_result got;
    double learning_rate, step_ms, feed_ms;
};

/* --- beginning -------------------------------------------------------------------------------- */

static enum cld_status note_facts(struct trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_device_info *d = &t->w.device;
    const struct {
        const char *key, *value;
    } facts[] = {{"device", d->name},
                 {"platform", d->platform},
                 {"driver", d->driver},
                 {"attention", t->w.drafter.attention.variant},
                 {"gemm", cld_gemm_backend_name(t->w.q, t->w.drafter.gemm)},
                 {"program", "source"}};
    for (size_t i = 0; i < sizeof facts / sizeof *facts && !s; i++)
        s = cld_train_state_fact(&t->state, facts[i].key, facts[i].value, err);
    return s;
}

static enum cld_status copy_text(char **to, const char *text, struct cld_error *err)
{
    free(*to);
    *to = cld_format("%s", text);
    return *to ? CLD_OK : cld_fail(err, CLD_E_MEMORY, "", "no host memory for the run's state");
}

/* A resumed run must continue the same mathematics on the same target and tokens. */
static enum cld_status check_resumed(struct trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_config old;
    if ((s = cld_config_parse(t->state.config, "the checkpoint's configuration", &old, err)) ||
        (s = cld_config_resume_diff(&old, t->cfg, err)))
        goto done;
    if (strcmp(t->state.target_sha256, t->setup.target_hash))
        s = cld_fail(err, CLD_E_USAGE, "resume with the target that the run began with",
                     "%s was trained on another target: config.json of %s differs", t->resumed,
                     t->cfg->target.dir);
    else if (strcmp(t->state.tokenizer_sha256, cld_feed_tokenizer_hash(t->feed)))
        s = cld_fail(err, CLD_E_USAGE, "resume with the tokenizer that the run began with",
                     "%s was trained with another tokenizer.json than that of %s", t->resumed,
                     t->cfg->target.dir);
done:
    cld_config_free(&old);
    return s;
}

static enum cld_status begin_state(struct trainer *t, const char *resume, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *text = NULL;
    t->state.best_step = -1;
    t->state.seed = t->cfg->run.seed;
    if (resume && ((s = cld_checkpoint_find(resume, true, &t->resumed, err)) ||
                   (s = cld_checkpoint_state(t->resumed, &t->state, err)) ||
                   (s = check_resumed(t, err))))
        return s;
    if (!(s = cld_config_text(t->cfg, &text, err)) &&
        !(s = copy_text(&t->state.config, text, err)) &&
        !(s = copy_text(&t->state.version, CLD_VERSION, err)) &&
        !(s = copy_text(&t->state.target_sha256, t->setup.target_hash, err)))
        s = copy_text(&t->state.tokenizer_sha256, cld_feed_tokenizer_hash(t->feed), err);
    free(text);
    t->saved_step = resume ? t->state.step : -1;
    return s;
}

/* Weights: of the checkpoint, of drafter.init, or fresh. */
static enum cld_status begin_weights(struct trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_drafter_file there;
    const char *init = t->cfg->drafter.init;
    if (t->resumed) {
        cld_info("resuming from %s at step %lld", t->resumed, (long long)t->state.step);
        return cld_checkpoint_load(t->resumed, &t->w.drafter, err);
    }
    if ((s = cld_drafter_init(&t->w.drafter, (uint64_t)t->cfg->run.seed, t->cfg->drafter.init_std,
                              err)) ||
        !init)
        return s;
    if ((s = cld_drafter_config_read(init, &there, err)) ||
        (s = cld_drafter_config_same(&t->setup.drafter, &there.config, init, err)) ||
        (s = cld_setup_same_taps(&t->setup, there.taps, init, err)))
        return s;
    cld_info("starting from the drafter %s", init);
    return cld_drafter_load(&t->w.drafter, init, err);
}

static enum cld_status open_worker(struct trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const char *spec = NULL;
    struct cld_device_info device;
    struct cld_worker_options options = {
        .name = "trainer", .train = true, .n_rows = t->cfg->train.micro_rows};
    if ((s = cld_setup_device(t->cfg, &spec, err)) || (s = cld_devices_open(&t->devices, err)) ||
        (s = cld_devices_pick(t->devices, spec, &device, err)))
        return s;
    cld_info("device %zu: %s (%s, driver %s)", device.index, device.name, device.platform,
             device.driver);
    if ((s = cld_worker_plan(&t->w, t->cfg, &t->setup, &device, &options, err)) ||
        (s = cld_worker_check(&t->w, err)))
        return s;
    cld_info("memory: %.3f GiB planned of %.3f GiB; attention: %s; products: %s; programs: source",
             (double)cld_plan_bytes(t->w.plan) / 0x1p30, (double)t->w.budget_bytes / 0x1p30,
             t->w.drafter.attention.variant, cld_gemm_backend_name(t->w.q, t->w.drafter.gemm));
    return CLD_OK;
}

static enum cld_status warm_up(struct trainer *t, struct cld_error *err)
{
    double begun = cld_clock_ms();
    enum cld_status s = cld_worker_warm_up(&t->w, err);
    struct cld_queue_counts n = cld_queue_counts(t->w.q);
    if (!s)
        cld_info("warmed up in %.1f s: %zu programs built in %.1f s, %zu kernels",
                 (cld_clock_ms() - begun) * 1e-3, n.n_builds, n.build_ms * 1e-3, n.n_kernels);
    return s;
}

static enum cld_status begin(struct trainer *t, const char *resume, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int64_t mask_token = -1;
    char *path = cld_format("%s/metrics.jsonl", t->cfg->run.dir);
    t->checkpoints = cld_format("%s/checkpoints", t->cfg->run.dir);
    if (!path || !t->checkpoints)
        s = cld_fail(err, CLD_E_MEMORY, "", "no host memory for a run");
    else if (!(s = cld_feed_open(t->cfg, &t->feed, err)) &&
             !(s = cld_feed_mask_token(t->feed, &mask_token, err)) &&
             !(s = cld_setup_read(t->cfg, mask_token, &t->setup, err)) &&
             !(s = begin_state(t, resume, err)) && !(s = open_worker(t, err)) &&
             !(s = cld_feed_load(t->feed, t->setup.target.vocab, true, err)) &&
             !(s = cld_run_dir_begin(t->cfg, resume != NULL, err)) &&
             !(s = cld_metrics_open(path, resume ? t->state.step : -1, &t->metrics, err)) &&
             !(s = cld_worker_create(&t->w, err)) && !(s = warm_up(t, err)) &&
             !(s = begin_weights(t, err)) && !(s = note_facts(t, err)))
        s = cld_run_dir_write_devices(t->cfg->run.dir, &t->w, err);
    cld_drafter_file_make(&t->file, &t->setup.drafter, t->setup.taps, &t->setup.target,
                          t->cfg->drafter.init_std);
    free(path);
    return s;
}

/* --- a step ----------------------------------------------------------------------------------- */

static enum cld_status run_step(struct trainer *t, struct step_result *r, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_document *docs = NULL;
    size_t n_docs = 0;
    double begun = cld_clock_ms();
    if ((s = cld_feed_step(t->feed, (size_t)t->state.step, &docs, &n_docs, err)))
        return s;
    r->feed_ms = cld_clock_ms() - begun;
    r->learning_rate = cld_learning_rate(t->cfg, (size_t)t->state.step);
    /* Adam's count of updates leaves out the skipped ones. */
    size_t update = (size_t)(t->state.step - t->state.n_skipped_steps) + 1;
    if ((s = cld_step_run(&t->step, docs, n_docs, r->learning_rate, update, &r->got, err)))
        return s;
    r->feed_ms += r->got.part_ms[CLD_STEP_BATCH];
    r->step_ms = cld_clock_ms() - begun;
    t->state.step++;
    t->state.n_rows += (int64_t)t->cfg->train.batch_rows;
    t->state.n_context_tokens += (int64_t)r->got.n_tokens;
    t->state.n_supervised_tokens += (int64_t)r->got.score.n_supervised;
    return CLD_OK;
}

static enum cld_status count_skips(struct trainer *t, const struct step_result *r,
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
                    "lower train.learning_rate, or resume from an earlier checkpoint",
                    "%lld steps in a row without a finite gradient, up to step %lld",
                    (long long)max_skips_in_a_row, (long long)t->state.step);
}

/* --- what a step leaves ----------------------------------------------------------------------- */

static void write_positions(struct cld_metrics *m, const char *prefix, const struct cld_score *s,
                            size_t block_size)
{
    for (size_t o = 1; o < block_size; o++) {
        char key[48];
        snprintf(key, sizeof key, "%saccuracy_%zu", prefix, o);
        cld_metrics_number(m, key,
                           s->position_n[o]
                               ? (double)s->position_hits[o] / (double)s->position_n[o]
                               : NAN);
    }
}

static enum cld_status write_step(struct trainer *t, const struct step_result *r,
                                  struct cld_error *err)
{
    struct cld_progress_line line = {(size_t)t->state.step,
                                     cld_score_loss(&r->got.score),
                                     cld_score_accuracy(&r->got.score),
                                     cld_score_accepted(&r->got.score),
                                     r->got.grad_norm,
                                     r->learning_rate,
                                     (double)r->got.n_tokens / (r->step_ms * 1e-3)};
    struct cld_metrics *m = t->metrics;
    cld_metrics_begin(m, t->state.step);
    cld_metrics_number(m, "loss", line.loss);
    cld_metrics_number(m, "accuracy", line.accuracy);
    cld_metrics_number(m, "accepted_length", line.accepted);
    cld_metrics_number(m, "grad_norm", line.grad_norm);
    cld_metrics_number(m, "learning_rate", line.learning_rate);
    cld_metrics_whole(m, "context_tokens", (int64_t)r->got.n_tokens);
    cld_metrics_whole(m, "supervised_tokens", (int64_t)r->got.score.n_supervised);
    cld_metrics_whole(m, "skipped", r->got.skipped);
    write_positions(m, "", &r->got.score, t->setup.drafter.block_size);
    cld_metrics_text(m, "attention", t->w.drafter.attention.variant);
    cld_metrics_number(m, "context_tokens_per_s", line.tokens_per_s);
    cld_metrics_number(m, "step_ms", r->step_ms);
    cld_metrics_number(m, "data_wait_ms", r->feed_ms);
    cld_progress_step(&t->progress, &line);
    return cld_metrics_end(m, err);
}

static enum cld_status evaluate(struct trainer *t, struct cld_error *err)
{
    struct cld_score score;
    double begun = cld_clock_ms();
    if (!cld_feed_n_heldout(t->feed))
        return CLD_OK;
    enum cld_status s = cld_evaluate(&t->w, t->feed, &score, err);
    if (s)
        return s;
    double accepted = cld_score_accepted(&score);
    if (t->state.best_step < 0 || accepted > t->state.best_accepted) {
        t->state.best_accepted = accepted;
        t->state.best_step = t->state.step;
    }
    cld_metrics_begin(t->metrics, t->state.step);
    cld_metrics_number(t->metrics, "heldout_loss", cld_score_loss(&score));
    cld_metrics_number(t->metrics, "heldout_accuracy", cld_score_accuracy(&score));
    cld_metrics_number(t->metrics, "heldout_accepted_length", accepted);
    write_positions(t->metrics, "heldout_", &score, t->setup.drafter.block_size);
    cld_metrics_number(t->metrics, "evaluation_ms", cld_clock_ms() - begun);
    cld_info("step %lld: held-out loss %.4f, accuracy %.4f, accepted length %.4f drafted tokens "
             "(%zu blocks, %.1f s)",
             (long long)t->state.step, cld_score_loss(&score), cld_score_accuracy(&score), accepted,
             score.n_blocks, (cld_clock_ms() - begun) * 1e-3);
    return cld_metrics_end(t->metrics, err);
}

static enum cld_status save(struct trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (t->saved_step == t->state.step)
        return CLD_OK;
    /* Lines up to this step are on the disk before the checkpoint that promises them. */
    if ((s = cld_metrics_sync(t->metrics, err)) ||
        (s = cld_checkpoint_save(t->checkpoints, &t->w.drafter, &t->file, &t->state,
                                 t->cfg->train.keep, err)))
        return s;
    t->saved_step = t->state.step;
    cld_debug("checkpoint %s/step-%lld", t->checkpoints, (long long)t->state.step);
    return CLD_OK;
}

static bool due(const struct trainer *t, size_t every)
{
    return every && t->state.step % (int64_t)every == 0;
}

static enum cld_status train(struct trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int64_t n_steps = (int64_t)t->cfg->train.steps;
    cld_progress_begin(&t->progress, (size_t)t->state.step, t->cfg->train.steps, t->cfg->log.every);
    while (t->state.step < n_steps) {
        struct step_result r;
        if ((s = run_step(t, &r, err)) || (s = write_step(t, &r, err)) ||
            (s = count_skips(t, &r, err)))
            return s;
        if (cld_signals_stop_asked()) {
            if ((s = save(t, err)))
                return s;
            return cld_fail(err, CLD_E_INTERRUPTED, "go on with --resume",
                            "stopped by a signal after step %lld; checkpoint %s/step-%lld written",
                            (long long)t->state.step, t->checkpoints, (long long)t->state.step);
        }
        bool last = t->state.step == n_steps;
        if ((s = cld_drafter_check_tiles(&t->w.drafter, err)) ||
            ((last || due(t, t->cfg->train.evaluate_every)) && (s = evaluate(t, err))) ||
            ((last || due(t, t->cfg->train.checkpoint_every)) && (s = save(t, err))))
            return s;
    }
    return CLD_OK;
}

static void summarise(const struct trainer *t, double begun_ms)
{
    struct cld_queue_counts n = cld_queue_counts(t->w.q);
    cld_info("%lld steps, %lld context tokens, %lld supervised; %.1f s; peak device memory %.3f GiB; "
             "%zu programs built, all before the first step; checkpoint %s/step-%lld",
             (long long)t->state.step, (long long)t->state.n_context_tokens,
             (long long)t->state.n_supervised_tokens, (cld_clock_ms() - begun_ms) * 1e-3,
             (double)cld_queue_peak_bytes(t->w.q) / 0x1p30, n.n_builds, t->checkpoints,
             (long long)t->state.step);
    if (t->state.best_step >= 0)
        cld_info("best held-out accepted length %.4f at step %lld", t->state.best_accepted,
                 (long long)t->state.best_step);
}

enum cld_status cld_train(const struct cld_config *cfg, const char *resume, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    double begun = cld_clock_ms();
    struct trainer *t = calloc(1, sizeof *t);
    if (!t)
        return cld_fail(err, CLD_E_MEMORY, "", "no host memory for a run");
    t->cfg = cfg;
    t->step.w = &t->w;
    cld_signals_install();
    if (!(s = begin(t, resume, err)) && !(s = train(t, err)))
        summarise(t, begun);
    struct cld_error closing = CLD_ERROR_INIT;
    if (t->metrics && cld_metrics_close(t->metrics, &closing) && !s) {
        *err = closing;
        s = closing.status;
    }
    cld_worker_close(&t->w);
    cld_devices_close(t->devices);
    cld_feed_close(t->feed);
    cld_train_state_free(&t->state);
    cld_step_free(&t->step);
    free(t->checkpoints);
    free(t->resumed);
    free(t);
    cld_log_close();
    return s;
}
