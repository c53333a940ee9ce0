/* Results of a training run: lines of metrics.jsonl and log lines of steps and evaluations. */
#include "train/trainer_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "workers/evaluate.h"

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
static void write_waits(struct cld_trainer *t, const struct cld_pipeline_waits *w)
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
    for (size_t i = 0; i < cld_trainer_n_workers(t); i++) {
        bool is_target = i < t->set.n_targets;
        size_t n = is_target ? t->set.n_targets : t->set.n_drafters;
        char key[48];
        snprintf(key, sizeof key, "wait_%s_ms_%zu", is_target ? "slot" : "features",
                 is_target ? i : i - t->set.n_targets);
        if (n > 1)
            cld_metrics_number(m, key, w->each_ms[i]);
    }
}

enum cld_status cld_trainer_write_step(struct cld_trainer *t, const struct cld_trainer_step *r,
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
    if (!cld_trainer_writes(t))
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
    cld_metrics_text(m, "attention", cld_trainer_first_drafter(t)->attention);
    cld_metrics_number(m, "context_tokens_per_s", line.tokens_per_s);
    cld_metrics_number(m, "step_ms", r->step_ms);
    write_waits(t, &r->waits);
    cld_progress_step(&t->progress, &line);
    cld_status_file_step(t->status, t->state.step, line.loss, line.accepted, line.tokens_per_s);
    return cld_metrics_end(m, err);
}

/* Drafted tokens that the target takes: of teacher-forced blocks, or, where the run decodes, a
 * cycle. */
static void note_best(struct cld_trainer *t, double accepted)
{
    if (t->state.best_step >= 0 && !(accepted > t->state.best_accepted))
        return;
    t->state.best_accepted = accepted;
    t->state.best_step = t->state.step;
}

enum cld_status cld_trainer_evaluate(struct cld_trainer *t, struct cld_error *err)
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
    if (!cld_trainer_writes(t))
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
enum cld_status cld_trainer_decode(struct cld_trainer *t, struct cld_error *err)
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
