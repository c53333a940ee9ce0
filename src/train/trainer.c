#include "train/trainer.h"

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

struct trainer {
    const struct cld_config *cfg;
    struct cld_setup setup;
    struct cld_feed *feed;
    struct cld_feature_store *store; /* NULL: features online */
    char features[300];              /* where they come from, for people */
    struct cld_devices *devices;
    struct cld_link *link; /* NULL: no other machine takes part */
    struct cld_machines machines;
    struct cld_worker_set set;
    struct cld_pipeline *pipeline;
    struct cld_run_decoder decoder; /* where crew.decodes */
    struct cld_status_file *status;
    struct cld_worker_facts *ends; /* [n_workers], after the pipeline was closed */
    struct cld_drafter_file file;  /* config.json of checkpoints */
    struct cld_train_state state;
    struct cld_metrics *metrics;
    struct cld_tensorboard *events; /* NULL: not asked for */
    struct cld_progress progress;
    char *dir, *checkpoints, *resumed, *init; /* directories; `dir` is run.dir, resolved */
    bool goes_on; /* the resumed checkpoint is one of this directory's run */
    int64_t skips_in_a_row, saved_step;
};

/* What one step gave. */
struct step_result {
    struct cld_step_result got;
    struct cld_pipeline_waits waits;
    double learning_rate, step_ms;
};

/* --- beginning -------------------------------------------------------------------------------- */

static size_t n_workers(const struct trainer *t)
{
    return t->set.n_targets + t->set.n_drafters;
}

/* One of several machines keeps the run's directory. */
static bool writes(const struct trainer *t)
{
    return !cld_link_rank(t->link);
}

/* Facts of the first drafter, which stand for the run in metrics. */
static const struct cld_worker_facts *first_drafter(const struct trainer *t)
{
    return cld_pipeline_facts(t->pipeline, t->set.n_targets);
}

static enum cld_status note_worker(struct trainer *t, const struct cld_worker_facts *f,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct {
        const char *key, *value;
    } facts[] = {{"device", f->device.name},
                 {"platform", f->device.platform},
                 {"driver", f->device.driver},
                 {"attention", f->attention},
                 {"gemm", f->gemm},
                 {"program", f->program},
                 {"tuning", f->tuning}};
    for (size_t i = 0; i < sizeof facts / sizeof *facts && !s; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s%s%s", n_workers(t) > 1 ? f->name : "",
                 n_workers(t) > 1 ? " " : "", facts[i].key);
        s = cld_train_state_fact(&t->state, key, facts[i].value, err);
    }
    return s;
}

/* What the target's chats look like, so that a program that serves the drafter can compare. */
static enum cld_status note_template(struct trainer *t, struct cld_error *err)
{
    char hash[65];
    bool is_known = false;
    enum cld_chat_template declared;
    enum cld_status s = cld_chat_declared(t->cfg->target.dir, hash, &is_known, &declared, err);
    return s ? s : cld_train_state_fact(&t->state, "target's chat template sha256", hash, err);
}

/* Other parameters of kernels are other orders of sums: the run may go on, with other bits. */
static void compare_tuning(const struct trainer *t)
{
    for (size_t i = 0; i < n_workers(t) && t->resumed; i++) {
        const struct cld_worker_facts *f = cld_pipeline_facts(t->pipeline, i);
        char key[64];
        snprintf(key, sizeof key, "%s%stuning", n_workers(t) > 1 ? f->name : "",
                 n_workers(t) > 1 ? " " : "");
        for (size_t j = 0; j < t->state.n_facts; j++)
            if (!strcmp(t->state.facts[j].key, key) && strcmp(t->state.facts[j].value, f->tuning))
                cld_warn("%s: tuned parameters were '%s' and are '%s' now: results may differ in "
                         "their last bits",
                         f->name, t->state.facts[j].value, f->tuning);
    }
}

static enum cld_status note_facts(struct trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    compare_tuning(t);
    cld_train_state_drop_facts(&t->state); /* a resumed run may have other workers */
    for (size_t i = 0; i < n_workers(t) && !s; i++)
        s = note_worker(t, cld_pipeline_facts(t->pipeline, i), err);
    return s ? s : note_template(t, err);
}

static enum cld_status copy_text(char **to, const char *text, struct cld_error *err)
{
    free(*to);
    *to = cld_format("%s", text);
    return *to ? CLD_OK : cld_fail_memory(err, "the run's state");
}

/* A resumed run must continue the same mathematics on the same target and tokens. Made-up rows need
 * no tokenizer: its hash is empty, and held-out texts may come and go. */
static enum cld_status check_resumed(struct trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const char *began_with = t->state.tokenizer_sha256, *now = cld_feed_tokenizer_hash(t->feed);
    struct cld_config old;
    if ((s = cld_config_parse(t->state.config, "the checkpoint's configuration", &old, err)) ||
        (s = cld_config_resume_diff(&old, t->cfg, err)))
        goto done;
    if (strcmp(t->state.target_sha256, t->setup.target_hash))
        s = cld_fail(err, CLD_E_USAGE, "resume with the target that the run began with",
                     "%s was trained on another target: config.json of %s differs", t->resumed,
                     t->cfg->target.dir);
    else if (began_with[0] && now[0] && strcmp(began_with, now))
        s = cld_fail(err, CLD_E_USAGE, "resume with the tokenizer that the run began with",
                     "%s was trained with another tokenizer.json than that of %s", t->resumed,
                     t->cfg->target.dir);
done:
    cld_config_free(&old);
    return s;
}

/* Is the resumed checkpoint of the run in t->dir, and is it the one that this step has there? */
static enum cld_status place_resumed(struct trainer *t, struct cld_error *err)
{
    char *saved = cld_format("%s/step-%lld", t->checkpoints, (long long)t->state.step);
    if (!saved)
        return cld_fail_memory(err, "the run's state");
    t->goes_on = cld_run_dir_has(t->checkpoints, t->resumed);
    if (cld_run_dir_has(saved, t->resumed))
        t->saved_step = t->state.step;
    free(saved);
    return CLD_OK;
}

static enum cld_status begin_state(struct trainer *t, const char *resume, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *text = NULL;
    t->state.best_step = -1;
    t->saved_step = -1;
    t->state.seed = t->cfg->run.seed;
    if (resume && ((s = cld_checkpoint_find(resume, writes(t), &t->resumed, err)) ||
                   (s = cld_checkpoint_state(t->resumed, &t->state, err)) ||
                   (s = check_resumed(t, err)) || (s = place_resumed(t, err))))
        return s;
    if (!(s = cld_config_text(t->cfg, &text, err)) &&
        !(s = copy_text(&t->state.config, text, err)) &&
        !(s = copy_text(&t->state.version, CLD_VERSION, err)) &&
        !(s = copy_text(&t->state.target_sha256, t->setup.target_hash, err)) &&
        (!t->state.tokenizer_sha256 || cld_feed_tokenizer_hash(t->feed)[0]))
        s = copy_text(&t->state.tokenizer_sha256, cld_feed_tokenizer_hash(t->feed), err);
    free(text);
    return s;
}

/* drafter.init, of this geometry. A resumed run began with it and needs it no more. */
static enum cld_status find_init(struct trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_drafter_file there;
    if (t->resumed || !t->cfg->drafter.init)
        return CLD_OK;
    if ((s = cld_drafter_find(t->cfg->drafter.init, &t->init, err)) ||
        (s = cld_drafter_config_read(t->init, &there, err)) ||
        (s = cld_drafter_config_same(&t->setup.drafter, &there.config, t->init, err)) ||
        (s = cld_setup_same_taps(&t->setup, there.taps, t->init, err)) ||
        t->cfg->target.random_weights >= 0)
        return s;
    return cld_drafter_check_borrowed(t->init, t->cfg->target.dir, &t->setup.target, err);
}

/* Weights: of the checkpoint, of drafter.init, or fresh. */
static enum cld_status begin_weights(struct trainer *t, struct cld_error *err)
{
    if (t->resumed)
        cld_info("resuming from %s at step %lld", t->resumed, (long long)t->state.step);
    if (t->init)
        cld_info("starting from the drafter %s", t->init);
    return cld_pipeline_begin(t->pipeline, t->resumed, t->init, err);
}

/* Who works where, and that it fits: nothing is allocated yet. */
static enum cld_status plan(struct trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if ((s = cld_devices_open(&t->devices, err)) ||
        (s = cld_worker_set_make(&t->set, t->cfg, t->devices, err)) ||
        (s = cld_machines_join(&t->machines, t->link, t->set.n_drafters, t->cfg, err)))
        return s;
    t->set.decodes &= writes(t); /* one machine's result is enough */
    cld_worker_set_assign_shards(&t->set, t->machines.first, t->machines.n_drafters,
                                 cld_machines_n_remote(&t->machines));
    if ((s = cld_worker_set_probe(&t->set, t->cfg, err)) ||
        (s = cld_worker_set_plan(&t->set, t->cfg, &t->setup, NULL, err)))
        return s;
    if (t->link)
        cld_info("%zu drafters on %zu machines", t->machines.n_drafters, cld_link_n(t->link));
    for (size_t i = 0; i < n_workers(t); i++) {
        const struct cld_planned_worker *m = &t->set.workers[i];
        char part[48] = "";
        if (m->device.n_parts > 1)
            snprintf(part, sizeof part, ", part %zu of %zu", m->device.part, m->device.n_parts);
        cld_info("%s: device %zu: %s%s (%s, driver %s); %.3f GiB planned", m->name, m->device.index,
                 m->device.name, part, m->device.platform, m->device.driver,
                 (double)m->planned_bytes / 0x1p30);
    }
    return CLD_OK;
}

/* Before the directory of a run that is still going is set aside. */
static enum cld_status refuse_living(const struct trainer *t, struct cld_error *err)
{
    if (!cld_status_file_alive(t->dir))
        return CLD_OK;
    return cld_fail(err, CLD_E_USAGE, "wait for it, or choose another run.dir",
                    "%s: another run is alive in this directory", t->dir);
}

/* What this run reads must not be renamed with the run that is set aside for it. */
static enum cld_status refuse_moving(const struct trainer *t, struct cld_error *err)
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
static enum cld_status open_store(struct trainer *t, struct cld_error *err)
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

static enum cld_status open_status_file(struct trainer *t, struct cld_error *err)
{
    size_t n = n_workers(t);
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

static enum cld_status start_decoder(struct trainer *t, struct cld_error *err)
{
    return t->set.decodes ? cld_run_decoder_open(&t->decoder, t->cfg, &t->setup,
                                                 &t->set.workers[n_workers(t)], err)
                          : CLD_OK;
}

static enum cld_status start_workers(struct trainer *t, struct cld_error *err)
{
    enum cld_status s =
        cld_pipeline_open(t->cfg, &t->setup, &t->set, &t->machines, t->feed, t->store, t->status,
                          (size_t)t->state.step, &t->pipeline, err);
    for (size_t i = 0; i < n_workers(t) && !s; i++) {
        const struct cld_worker_facts *f = cld_pipeline_facts(t->pipeline, i);
        cld_info("%s: %.3f GiB held of a budget of %.3f GiB; attention: %s; gemm: %s; programs: "
                 "%s",
                 f->name, (double)f->held_bytes / 0x1p30, (double)f->budget_bytes / 0x1p30,
                 f->attention, f->gemm, f->program);
    }
    return s;
}

/* What this run reads, and that it fits; nothing is written yet. */
static enum cld_status prepare(struct trainer *t, const char *resume, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int64_t mask_token = -1;
    if ((s = cld_feed_open(t->cfg, &t->feed, err)) ||
        (s = cld_feed_mask_token(t->feed, &mask_token, err)) ||
        (s = cld_setup_read(t->cfg, mask_token, &t->setup, err)) ||
        (s = cld_end_tokens_find(t->cfg, cld_feed_tokenizer(t->feed), &t->setup.target, err)) ||
        (s = begin_state(t, resume, err)) || (s = find_init(t, err)) || (s = plan(t, err)) ||
        (s = cld_feed_load(t->feed, t->setup.target.vocab, true, err)) ||
        (s = cld_data_checks_run(t->cfg, &t->setup, t->feed, err)) || (s = open_store(t, err)))
        return s;
    cld_drafter_file_make(&t->file, &t->setup.drafter, t->setup.taps, &t->setup.target,
                          t->cfg->drafter.init_std);
    return t->link ? cld_machines_agree(&t->machines, t->cfg, t->setup.target_hash,
                                        cld_feed_tokenizer_hash(t->feed), cld_feed_n_train(t->feed),
                                        (size_t)t->state.step, err)
                   : CLD_OK;
}

static enum cld_status open_events(struct trainer *t, struct cld_error *err)
{
    enum cld_status s =
        t->cfg->log.tensorboard
            ? cld_tensorboard_open(t->dir, t->goes_on ? t->state.step : 0, &t->events, err)
            : CLD_OK;
    if (!s)
        cld_metrics_mirror(t->metrics, t->events);
    return s;
}

static enum cld_status begin_directory(struct trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *path = NULL;
    if (!writes(t))
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

static enum cld_status begin(struct trainer *t, const char *resume, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if ((s = cld_run_dir_resolve(t->cfg->run.dir, &t->dir, err)))
        return s;
    if (!(t->checkpoints = cld_format("%s/checkpoints", t->dir)))
        return cld_fail_memory(err, "a run");
    if ((s = prepare(t, resume, err)) || (s = begin_directory(t, err)) ||
        (s = cld_data_checks_log(t->cfg, &t->setup, t->feed, err)) || (s = start_decoder(t, err)) ||
        (s = start_workers(t, err)) || (s = begin_weights(t, err)) || (s = note_facts(t, err)))
        return s;
    return writes(t) ? cld_run_dir_write_devices(t->dir, t->pipeline, n_workers(t), err) : CLD_OK;
}

/* --- a step ----------------------------------------------------------------------------------- */

static enum cld_status run_step(struct trainer *t, struct step_result *r, struct cld_error *err)
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
                            size_t n_drafted)
{
    for (size_t o = 1; o <= n_drafted; o++) {
        char key[48];
        snprintf(key, sizeof key, "%saccuracy_%zu", prefix, o);
        cld_metrics_number(m, key,
                           s->position_n[o] ? (double)s->position_hits[o] / (double)s->position_n[o]
                                            : NAN);
    }
}

/* Waits: means over each side's workers, and each one's own where there are several. */
static void write_waits(struct trainer *t, const struct cld_pipeline_waits *w)
{
    struct cld_metrics *m = t->metrics;
    cld_metrics_number(m, "data_wait_ms", w->data_ms);
    if (t->machines.n_drafters > 1) {
        cld_metrics_number(m, "wait_exchange_ms", w->exchange_ms);
        cld_metrics_number(m, "exchange_ms", w->exchange_whole_ms);
    }
    if (!w->each_ms)
        return;
    cld_metrics_number(m, "wait_slot_ms", w->slot_ms);
    cld_metrics_number(m, "wait_features_ms", w->features_ms);
    cld_metrics_number(m, "ring_fill", w->ring_fill);
    for (size_t i = 0; i < n_workers(t); i++) {
        bool is_target = i < t->set.n_targets;
        size_t n = is_target ? t->set.n_targets : t->set.n_drafters;
        char key[48];
        snprintf(key, sizeof key, "wait_%s_ms_%zu", is_target ? "slot" : "features",
                 is_target ? i : i - t->set.n_targets);
        if (n > 1)
            cld_metrics_number(m, key, w->each_ms[i]);
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
    if (!writes(t))
        return CLD_OK;
    cld_metrics_begin(m, t->state.step);
    cld_metrics_number(m, "loss", line.loss);
    cld_metrics_number(m, "accuracy", line.accuracy);
    cld_metrics_number(m, "accepted_length", line.accepted);
    cld_metrics_number(m, "grad_norm", line.grad_norm);
    cld_metrics_number(m, "learning_rate", line.learning_rate);
    cld_metrics_whole(m, "context_tokens", (int64_t)r->got.n_tokens);
    cld_metrics_whole(m, "supervised_tokens", (int64_t)r->got.score.n_supervised);
    cld_metrics_whole(m, "skipped", r->got.skipped);
    write_positions(m, "", &r->got.score, cld_rules_drafted(&t->setup.rules));
    cld_metrics_text(m, "attention", first_drafter(t)->attention);
    cld_metrics_number(m, "context_tokens_per_s", line.tokens_per_s);
    cld_metrics_number(m, "step_ms", r->step_ms);
    write_waits(t, &r->waits);
    cld_progress_step(&t->progress, &line);
    cld_status_file_step(t->status, t->state.step, line.loss, line.accepted, line.tokens_per_s);
    return cld_metrics_end(m, err);
}

/* Drafted tokens that the target takes: of teacher-forced blocks, or, where the run decodes, a
 * cycle. */
static void note_best(struct trainer *t, double accepted)
{
    if (t->state.best_step >= 0 && !(accepted > t->state.best_accepted))
        return;
    t->state.best_accepted = accepted;
    t->state.best_step = t->state.step;
}

static enum cld_status evaluate(struct trainer *t, struct cld_error *err)
{
    struct cld_score score;
    double begun = cld_clock_ms();
    cld_status_file_run(t->status, CLD_RUN_EVALUATING);
    enum cld_status s = cld_pipeline_evaluate(t->pipeline, &score, err);
    if (s)
        return s;
    double accepted = cld_score_accepted(&score);
    if (isfinite(cld_score_loss(&score)) && !t->set.decodes)
        note_best(t, accepted);
    if (!writes(t))
        return cld_evaluate_finite(&score, err);
    cld_status_file_heldout(t->status, t->state.step, cld_score_loss(&score), accepted);
    cld_status_file_run(t->status, CLD_RUN_TRAINING);
    cld_metrics_begin(t->metrics, t->state.step);
    cld_metrics_number(t->metrics, "heldout_loss", cld_score_loss(&score));
    cld_metrics_number(t->metrics, "heldout_accuracy", cld_score_accuracy(&score));
    cld_metrics_number(t->metrics, "heldout_accepted_length", accepted);
    write_positions(t->metrics, "heldout_", &score, cld_rules_drafted(&t->setup.rules));
    cld_metrics_number(t->metrics, "evaluation_ms", cld_clock_ms() - begun);
    cld_info("step %lld: held-out loss %.4f, accuracy %.4f, accepted length %.4f drafted tokens "
             "(%zu blocks, %.1f s)",
             (long long)t->state.step, cld_score_loss(&score), cld_score_accuracy(&score), accepted,
             score.n_blocks, (cld_clock_ms() - begun) * 1e-3);
    s = cld_metrics_end(t->metrics, err);
    return s ? s : cld_evaluate_finite(&score, err);
}

/* The same by real decoding; its result then says which checkpoint is the best. */
static enum cld_status decode(struct trainer *t, struct cld_error *err)
{
    struct cld_decode_report r;
    struct cld_metrics *m = t->metrics;
    double begun = cld_clock_ms();
    cld_status_file_run(t->status, CLD_RUN_EVALUATING);
    enum cld_status s = cld_run_decoder_evaluate(&t->decoder, t->pipeline, t->feed, &r, err);
    if (s)
        return s;
    double a_cycle = cld_decode_tokens_per_cycle(&r.drafted);
    if (r.drafted.n_cycles)
        note_best(t, a_cycle - 1);
    cld_status_file_run(t->status, CLD_RUN_TRAINING);
    cld_metrics_begin(m, t->state.step);
    cld_metrics_number(m, "decoded_tokens_per_cycle", r.drafted.n_cycles ? a_cycle : NAN);
    cld_metrics_whole(m, "decoded_texts", (int64_t)r.drafted.n_texts);
    for (size_t o = 1; o <= cld_rules_drafted(&t->setup.rules); o++) {
        char key[48];
        snprintf(key, sizeof key, "decoded_accepted_%zu", o);
        cld_metrics_number(m, key,
                           r.drafted.offered[o]
                               ? (double)r.drafted.accepted[o] / (double)r.drafted.offered[o]
                               : NAN);
    }
    cld_metrics_number(m, "decoding_ms", cld_clock_ms() - begun);
    cld_info("step %lld: decoding %zu texts: %.4f tokens per cycle (%zu cycles, %.1f s)",
             (long long)t->state.step, r.drafted.n_texts, a_cycle, r.drafted.n_cycles,
             (cld_clock_ms() - begun) * 1e-3);
    return cld_metrics_end(m, err);
}

static enum cld_status save(struct trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    double begun = cld_clock_ms();
    if (t->saved_step == t->state.step)
        return CLD_OK;
    cld_status_file_run(t->status, CLD_RUN_SAVING);
    /* Lines up to this step are on the disk before the checkpoint that promises them, and so are
     * the features that its steps used. */
    if ((writes(t) && (s = cld_metrics_sync(t->metrics, err))) ||
        (t->store && (s = cld_feature_store_flush(t->store, err))) ||
        (s = cld_pipeline_save(t->pipeline, t->checkpoints, &t->file, &t->state, t->cfg->train.keep,
                               err)))
        return s;
    t->saved_step = t->state.step;
    cld_status_file_run(t->status, CLD_RUN_TRAINING);
    cld_info("step %lld: checkpoint %s/step-%lld (%.1f s)", (long long)t->state.step,
             t->checkpoints, (long long)t->state.step, (cld_clock_ms() - begun) * 1e-3);
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
    cld_status_file_run(t->status, CLD_RUN_TRAINING);
    cld_status_file_step(t->status, t->state.step, NAN, NAN, NAN); /* where a resumed run begins */
    cld_progress_begin(&t->progress, (size_t)t->state.step, t->cfg->train.steps, t->cfg->log.every);
    while (t->state.step < n_steps) {
        struct step_result r;
        if ((s = run_step(t, &r, err)) || (s = write_step(t, &r, err)) ||
            (s = count_skips(t, &r, err)))
            return s;
        if (cld_batch_schedule_evaluates(t->cfg, t->feed, (size_t)t->state.step) &&
            (s = evaluate(t, err)))
            return s;
        if (t->set.decodes && (due(t, t->cfg->eval.decode_every) || t->state.step == n_steps) &&
            (s = decode(t, err)))
            return s;
        /* After the evaluation, if one was due: a resumed run goes on with the next step. */
        bool stop = false;
        if ((s = cld_link_any(t->link, cld_signals_stop_asked(), &stop, err)))
            return s;
        stop = stop && t->state.step < n_steps;
        if ((stop || due(t, t->cfg->train.checkpoint_every)) && (s = save(t, err)))
            return s;
        if (stop)
            return cld_fail(err, CLD_E_INTERRUPTED, "go on with --resume",
                            "stopped by a signal after step %lld; checkpoint %s/step-%lld written",
                            (long long)t->state.step, t->checkpoints, (long long)t->state.step);
    }
    /* Also what was resumed at its last step from another directory. */
    if ((s = save(t, err)) || !t->state.step || t->state.n_skipped_steps < t->state.step)
        return s;
    return cld_fail(err, CLD_E_NUMERIC, "lower train.learning_rate, or look at the initial weights",
                    "every step was skipped: none of %lld had a finite gradient",
                    (long long)t->state.step);
}

/* After the workers are gone. */
static void summarise(const struct trainer *t, const char *balance, double begun_ms)
{
    size_t n_programs = 0;
    for (size_t i = 0; i < n_workers(t); i++)
        n_programs +=
            t->ends[i].counts.n_builds + t->ends[i].counts.n_cached + t->ends[i].counts.n_modules;
    cld_info("%lld steps, %lld context tokens, %lld supervised; %.1f s; all %zu programs built and "
             "all buffers created before the first step; checkpoint %s/step-%lld",
             (long long)t->state.step, (long long)t->state.n_context_tokens,
             (long long)t->state.n_supervised_tokens, (cld_clock_ms() - begun_ms) * 1e-3,
             n_programs, t->checkpoints, (long long)t->state.step);
    for (size_t i = 0; i < n_workers(t); i++) {
        if (!t->ends[i].planned_bytes)
            continue; /* a reader of stored features needs none */
        cld_info("%s: peak device memory %.3f GiB, planned %.3f GiB (%+.2f%%)", t->ends[i].name,
                 (double)t->ends[i].peak_bytes / 0x1p30, (double)t->ends[i].planned_bytes / 0x1p30,
                 100 * ((double)t->ends[i].peak_bytes / (double)t->ends[i].planned_bytes - 1));
    }
    if (balance[0])
        cld_info("%s", balance);
    if (t->store) {
        struct cld_feature_counts n = cld_feature_store_counts(t->store);
        cld_info(
            "features %s: %zu times a row was read, %zu rows were computed and kept; %zu rows, "
            "%.3f GiB",
            t->features, n.n_read, n.n_put, n.n_rows, (double)n.n_bytes / 0x1p30);
    } else {
        cld_info("features %s", t->features);
    }
    if (t->state.best_step >= 0)
        cld_info("best held-out accepted length%s%s %.4f at step %lld",
                 t->set.decodes ? " by decoding" : "",
                 t->cfg->eval.ema ? ", of the mean of weights," : "", t->state.best_accepted,
                 (long long)t->state.best_step);
}

/* Ends the workers; their failure counts if nothing failed before. */
static enum cld_status stop_workers(struct trainer *t, struct cld_error *err)
{
    t->ends = calloc(n_workers(t) + 1, sizeof *t->ends);
    enum cld_status s = cld_pipeline_close(t->pipeline, t->ends, err);
    t->pipeline = NULL;
    if (!s && !t->ends)
        s = cld_fail_memory(err, "a summary");
    return s;
}

/* The others say what goes wrong; what goes well is said once. */
static enum cld_status join_machines(struct trainer *t, struct cld_error *err)
{
    enum cld_status s = cld_link_open(&t->link, err);
    if (!s && !writes(t) && t->cfg->log.level == CLD_LOG_INFO)
        cld_log_set_level(CLD_LOG_WARN);
    return s;
}

enum cld_status cld_train(const struct cld_config *cfg, const char *resume, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    double begun = cld_clock_ms();
    struct trainer *t = calloc(1, sizeof *t);
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
    free(t->dir);
    free(t->checkpoints);
    free(t->resumed);
    free(t->init);
    free(t);
    cld_log_close();
    return s;
}
