#include "train/run_identity.h"

#include <stdio.h>
#include <string.h>

#include "base/checksum.h"
#include "base/log.h"

static const char rows_key[] = "training rows", heldout_key[] = "held-out rows",
                  features_key[] = "stored features", accepted_key[] = "accepted at step";

void cld_run_identity_free(struct cld_run_identity *id)
{
    if (id)
        cld_train_state_free(&id->kept);
}

/* --- sums ------------------------------------------------------------------------------------- */

/* Its place in the file is what a row's anchors are drawn with. */
static void add_row(struct cld_checksum *c, const struct cld_row *row)
{
    const uint64_t head[2] = {row->id, row->n};
    cld_checksum_add(c, head, sizeof head);
    cld_checksum_add(c, row->ids, row->n * sizeof *row->ids);
    cld_checksum_add(c, row->loss_mask, row->n * sizeof *row->loss_mask);
}

static void write_sum(size_t n, struct cld_checksum *c, char *to, size_t n_to)
{
    char text[CLD_CHECKSUM_TEXT_BYTES];
    cld_checksum_text(cld_checksum_end(c), text);
    snprintf(to, n_to, "%zu rows, checksum %s", n, text);
}

static void sum_rows(struct cld_run_identity *id, const struct cld_feed *feed)
{
    struct cld_checksum c;
    size_t n = cld_feed_n_train(feed);
    cld_checksum_begin(&c);
    for (size_t i = 0; i < n; i++) {
        struct cld_row row = cld_dataset_row(cld_feed_train(feed), i);
        add_row(&c, &row);
    }
    write_sum(n, &c, id->rows, sizeof id->rows);
    if (!(n = cld_feed_n_heldout(feed)))
        return;
    cld_checksum_begin(&c);
    for (size_t i = 0; i < n; i++) {
        struct cld_row row = cld_feed_heldout_row(feed, i);
        add_row(&c, &row);
    }
    write_sum(n, &c, id->heldout, sizeof id->heldout);
}

/* Of the records of training rows that are there: their own sums, so nothing is read. */
static void sum_features(struct cld_run_identity *id, const struct cld_feed *feed,
                         struct cld_feature_store *store)
{
    struct cld_checksum c;
    size_t n = 0;
    cld_checksum_begin(&c);
    for (size_t i = 0; i < cld_feed_n_train(feed); i++) {
        struct cld_row row = cld_dataset_row(cld_feed_train(feed), i);
        const struct cld_document d = {.n = row.n, .row = row.id};
        uint64_t sum;
        if (!cld_feature_store_sum(store, &d, &sum))
            continue;
        cld_checksum_add(&c, &sum, sizeof sum);
        n++;
    }
    write_sum(n, &c, id->features, sizeof id->features);
}

/* --- comparing -------------------------------------------------------------------------------- */

/* An accepted change is a fact of the run from then on. */
static enum cld_status accept(struct cld_run_identity *id, const struct cld_train_state *then,
                              const char *what, const char *was, const char *now,
                              struct cld_error *err)
{
    char key[128], value[256];
    snprintf(key, sizeof key, "%s %lld: %s", accepted_key, (long long)then->step, what);
    snprintf(value, sizeof value, "%s, before: %s", now, was);
    cld_warn("%s: %s, the run began with %s; train.accept_changed accepts that", what, now, was);
    return cld_train_state_fact(&id->kept, key, value, err);
}

/* `now` "": not known. */
static enum cld_status compare(struct cld_run_identity *id, const struct cld_config *cfg,
                               const char *key, const char *now, const char *what,
                               const struct cld_train_state *then, const char *where,
                               struct cld_error *err)
{
    const char *was = cld_train_state_find(then, key);
    if (!now[0] || (was && !strcmp(was, now)))
        return CLD_OK;
    if (!was) {
        cld_warn(
            "%s has no checksum of its %s: whether they are the same is not known; checkpoints "
            "from now on have one",
            where, key);
        return CLD_OK;
    }
    if (cld_config_accepts(cfg, CLD_CHANGED_DATA))
        return accept(id, then, key, was, now, err);
    return cld_fail(
        err, CLD_E_USAGE,
        "resume with the rows that the run began with, in their order; if the change is "
        "meant, set train.accept_changed = data",
        "%s: the %s are not those of %s: %s, there it was %s", what, key, where, now, was);
}

enum cld_status cld_run_identity_rows(struct cld_run_identity *id, const struct cld_config *cfg,
                                      const struct cld_feed *feed, struct cld_feature_store *store,
                                      const struct cld_train_state *then, const char *where,
                                      struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    sum_rows(id, feed);
    if (store && cfg->features.mode == CLD_FEATURES_OFFLINE)
        sum_features(id, feed, store);
    for (size_t i = 0; then && i < then->n_facts && !s; i++)
        if (!strncmp(then->facts[i].key, accepted_key, sizeof accepted_key - 1))
            s = cld_train_state_fact(&id->kept, then->facts[i].key, then->facts[i].value, err);
    if (s || !then || (s = compare(id, cfg, rows_key, id->rows, "data.train", then, where, err)))
        return s;
    /* A run may go over to stored features, which it did not have before. */
    if (cld_train_state_find(then, features_key) &&
        (s = compare(id, cfg, features_key, id->features, "features.dir", then, where, err)))
        return s;
    const char *was = cld_train_state_find(then, heldout_key);
    if (was && id->heldout[0] && strcmp(was, id->heldout))
        cld_warn("data.heldout: %s, %s had %s: results before and after are of different rows",
                 id->heldout, where, was);
    return CLD_OK;
}

enum cld_status cld_run_identity_config(struct cld_run_identity *id, const struct cld_config *cfg,
                                        const char *hash, const struct cld_train_state *then,
                                        const char *where, struct cld_error *err)
{
    if (!strcmp(then->target_sha256, hash))
        return CLD_OK;
    if (cld_config_accepts(cfg, CLD_CHANGED_TARGET))
        return accept(id, then, "the target's config.json", then->target_sha256, hash, err);
    return cld_fail(
        err, CLD_E_USAGE,
        "name the target that it was made with; if the change is meant, set "
        "train.accept_changed = target",
        "%s was trained on another target: config.json of %s differs: SHA-256 %s, there "
        "it was %s",
        where, cfg->target.dir, hash, then->target_sha256);
}

/* Parts that this run does not load stay known. */
static void keep_parts(struct cld_run_identity *id, const struct cld_target_identity *then)
{
    for (size_t i = 0; i < then->n; i++) {
        bool known = false;
        for (size_t k = 0; k < id->target.n; k++)
            known |= !strcmp(id->target.at[k].name, then->at[i].name);
        if (!known)
            cld_target_identity_add(&id->target, then->at[i].name, then->at[i].value);
    }
}

enum cld_status cld_run_identity_target(struct cld_run_identity *id, const struct cld_config *cfg,
                                        const struct cld_setup *setup,
                                        const struct cld_train_state *then, const char *where,
                                        struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_target_identity was;
    const char *value = "";
    size_t n_same, i;
    bool accepts = cld_config_accepts(cfg, CLD_CHANGED_TARGET);
    cld_target_identity_make(cfg, &setup->target, cld_setup_n_layers(setup), setup->sums,
                             &id->target);
    if (!then)
        return CLD_OK;
    cld_drafter_origin_of(then, &was);
    if ((s = cld_target_identity_check(&id->target, &was, where, accepts, err)))
        return s;
    i = cld_target_identity_differs(&id->target, &was, &value, &n_same);
    if (i == SIZE_MAX)
        keep_parts(id, &was);
    else
        s = accept(id, then, id->target.at[i].name, value, id->target.at[i].value, err);
    return s;
}

/* --- facts ------------------------------------------------------------------------------------ */

enum cld_status cld_run_identity_note(const struct cld_run_identity *id,
                                      struct cld_train_state *state, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct {
        const char *key, *value;
    } facts[] = {{rows_key, id->rows}, {heldout_key, id->heldout}, {features_key, id->features}};
    for (size_t i = 0; i < sizeof facts / sizeof *facts && !s; i++)
        if (facts[i].value[0])
            s = cld_train_state_fact(state, facts[i].key, facts[i].value, err);
    for (size_t i = 0; i < id->target.n && !s; i++)
        s = cld_train_state_fact(state, id->target.at[i].name, id->target.at[i].value, err);
    for (size_t i = 0; i < id->kept.n_facts && !s; i++)
        s = cld_train_state_fact(state, id->kept.facts[i].key, id->kept.facts[i].value, err);
    return s;
}
