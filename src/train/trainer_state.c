/* The state of a training run: new, or from a checkpoint, and the facts that checkpoints store. */
#include "train/trainer_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "model/drafter_layout.h"
#include "train/run_dir.h"
#include "workers/checkpoint.h"

size_t cld_trainer_n_workers(const struct cld_trainer *t)
{
    return t->set.n_targets + t->set.n_drafters;
}

/* One of several machines keeps the run's directory. */
bool cld_trainer_writes(const struct cld_trainer *t)
{
    return !cld_link_rank(t->link);
}

/* Facts of the first drafter, which stand for the run in metrics. */
const struct cld_worker_facts *cld_trainer_first_drafter(const struct cld_trainer *t)
{
    return cld_pipeline_facts(t->pipeline, t->set.n_targets);
}

static enum cld_status note_worker(struct cld_trainer *t, const struct cld_worker_facts *f,
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
        snprintf(key, sizeof key, "%s%s%s", cld_trainer_n_workers(t) > 1 ? f->name : "",
                 cld_trainer_n_workers(t) > 1 ? " " : "", facts[i].key);
        s = cld_train_state_fact(&t->state, key, facts[i].value, err);
    }
    return s;
}

/* What the target's chats look like, so that a program that serves the drafter can compare. */
static enum cld_status note_template(struct cld_trainer *t, struct cld_error *err)
{
    char hash[65];
    bool is_known = false;
    enum cld_chat_template declared;
    enum cld_status s = cld_chat_declared(t->cfg->target.dir, hash, &is_known, &declared, err);
    return s ? s : cld_train_state_fact(&t->state, "target's chat template sha256", hash, err);
}

/* Other parameters of kernels are other orders of sums: the run may go on, with other bits. */
static void compare_tuning(const struct cld_trainer *t)
{
    for (size_t i = 0; i < cld_trainer_n_workers(t) && t->resumed; i++) {
        const struct cld_worker_facts *f = cld_pipeline_facts(t->pipeline, i);
        char key[64];
        snprintf(key, sizeof key, "%s%stuning", cld_trainer_n_workers(t) > 1 ? f->name : "",
                 cld_trainer_n_workers(t) > 1 ? " " : "");
        for (size_t j = 0; j < t->state.n_facts; j++)
            if (!strcmp(t->state.facts[j].key, key) && strcmp(t->state.facts[j].value, f->tuning))
                cld_warn("%s: tuned parameters were '%s' and are '%s' now: results may differ in "
                         "their last bits",
                         f->name, t->state.facts[j].value, f->tuning);
    }
}

enum cld_status cld_trainer_note_facts(struct cld_trainer *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    compare_tuning(t);
    cld_train_state_drop_facts(&t->state); /* a resumed run may have other workers */
    for (size_t i = 0; i < cld_trainer_n_workers(t) && !s; i++)
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
static enum cld_status check_resumed(struct cld_trainer *t, struct cld_error *err)
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
static enum cld_status place_resumed(struct cld_trainer *t, struct cld_error *err)
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

enum cld_status cld_trainer_begin_state(struct cld_trainer *t, const char *resume,
                                        struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *text = NULL;
    t->state.best_step = -1;
    t->saved_step = -1;
    t->state.seed = t->cfg->run.seed;
    if (resume && ((s = cld_checkpoint_find(resume, cld_trainer_writes(t), &t->resumed, err)) ||
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
enum cld_status cld_trainer_find_init(struct cld_trainer *t, struct cld_error *err)
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
enum cld_status cld_trainer_begin_weights(struct cld_trainer *t, struct cld_error *err)
{
    if (t->resumed)
        cld_info("resuming from %s at step %lld", t->resumed, (long long)t->state.step);
    if (t->init)
        cld_info("starting from the drafter %s", t->init);
    return cld_pipeline_begin(t->pipeline, t->resumed, t->init, err);
}
