/* cmd_eval.c - teacher-forced evaluation of a drafter on held-out rows. */
#include <stdio.h>
#include <stdlib.h>

#include "checkpoint.h"
#include "cmd.h"
#include "config.h"
#include "drafter_file.h"
#include "evaluate.h"
#include "feature_store.h"
#include "log.h"

static void print_score(const char *drafter, const struct cld_score *s, size_t block_size)
{
    printf("drafter          %s\n", drafter);
    printf("blocks           %zu (an anchor at every position p where p and p + 1 are supervised)\n",
           s->n_blocks);
    printf("loss             %.6f\n", cld_score_loss(s));
    printf("accuracy         %.6f of %zu supervised rows\n", cld_score_accuracy(s),
           s->n_supervised);
    printf("accepted length  %.6f drafted tokens, the bonus token not counted\n",
           cld_score_accepted(s));
    for (size_t o = 1; o < block_size; o++)
        printf("accuracy at %-2zu   %.6f of %zu\n", o,
               s->position_n[o] ? (double)s->position_hits[o] / (double)s->position_n[o] : 0,
               s->position_n[o]);
}

static enum cld_status evaluate(const struct cld_config *cfg, const char *drafter,
                                struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_feed *feed = NULL;
    struct cld_setup setup;
    struct cld_devices *devices = NULL;
    struct cld_device_info device;
    struct cld_worker w = {0};
    struct cld_drafter_file file;
    struct cld_score score;
    struct cld_feature_identity id;
    struct cld_feature_store *store = NULL;
    bool offline = cfg->features.mode == CLD_FEATURES_OFFLINE;
    int64_t mask_token = -1;
    if ((s = cld_feed_open(cfg, &feed, err)) || (s = cld_feed_mask_token(feed, &mask_token, err)) ||
        (s = cld_setup_read(cfg, mask_token, &setup, err)) ||
        (s = cld_drafter_config_read(drafter, &file, err)) ||
        (s = cld_drafter_config_same(&setup.drafter, &file.config, drafter, err)) ||
        (s = cld_setup_same_taps(&setup, file.taps, drafter, err)) ||
        (s = cld_feed_load(feed, setup.target.vocab, false, err)) ||
        (offline &&
         ((s = cld_feature_identity_make(cfg, &setup, cld_feed_tokenizer_hash(feed), &id, err)) ||
          (s = cld_feature_store_open(cfg, &id, &store, err)))) ||
        (s = cld_devices_open(&devices, err)) ||
        (s = cld_devices_pick(devices, cld_setup_device(cfg), &device, err)))
        goto done;
    struct cld_worker_options options = {
        .name = "evaluator", .given_features = offline, .n_rows = cfg->train.micro_rows};
    cld_info("device %zu: %s", device.index, device.name);
    if ((s = cld_worker_plan(&w, cfg, &setup, &device, &options, err)) ||
        (s = cld_worker_check(&w, err)) || (s = cld_worker_create(&w, err)) ||
        (s = cld_drafter_load(&w.drafter, drafter, err)) ||
        (s = cld_evaluate(&w, feed, store, &score, err)))
        goto done;
    print_score(drafter, &score, setup.drafter.block_size);
    s = cld_evaluate_finite(&score, err);
done:
    cld_worker_close(&w);
    cld_devices_close(devices);
    cld_feed_close(feed);
    cld_feature_store_close(store);
    return s;
}

enum cld_status cld_cmd_eval(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_sets = 0;
    const char *const *sets = cld_args_all(a, "set", &n_sets);
    struct cld_config cfg;
    char *drafter = NULL;
    if ((s = cld_config_load(cld_args_at(a, 0), sets, n_sets, &cfg, err)))
        goto done;
    cld_log_set_level(cld_args_log_level(a, cfg.log.level));
    if (!(s = cld_config_check(&cfg, CLD_CONFIG_EVAL, err)) &&
        !(s = cld_drafter_find(cld_args_value(a, "drafter"), &drafter, err)))
        s = evaluate(&cfg, drafter, err);
done:
    free(drafter);
    cld_config_free(&cfg);
    return s;
}
