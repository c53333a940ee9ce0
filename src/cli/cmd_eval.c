/* cmd_eval.c - evaluation of a drafter on held-out rows: teacher-forced, and by decoding. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "cli/cmd.h"
#include "cli/eval_report.h"
#include "config/config.h"
#include "data/feature_store.h"
#include "model/drafter_layout.h"
#include "model/identify_features.h"
#include "model/special_tokens.h"
#include "train/data_checks.h"
#include "workers/checkpoint.h"
#include "workers/evaluate.h"
#include "workers/worker_set.h"

/* Every bucket in turn; what is the same in all of them is built and launched before a clock runs.
 */
static enum cld_status measure(struct cld_worker *w, struct cld_feed *feed,
                               struct cld_feature_store *store, struct cld_eval_report *r,
                               struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_eval_bucket *all = &r->buckets[r->n_buckets];
    bool decodes = w->decoder.target;
    all->name = "all";
    if (decodes && (s = cld_decoder_warm_up(&w->decoder, w->setup->drafter.block_size, err)))
        return s;
    for (size_t i = 0; i < r->n_buckets && !s; i++) {
        struct cld_eval_bucket *b = &r->buckets[i];
        b->name = cld_feed_bucket_name(feed, i);
        cld_feed_use_bucket(feed, i);
        cld_info("evaluating %s", b->name);
        if ((s = cld_evaluate(w, feed, store, &b->forced, err)))
            return s;
        /* A broken drafter has nothing to decode with; its loss is reported, and refused then. */
        if (decodes && isfinite(cld_score_loss(&b->forced)) &&
            (s = cld_decode_eval(w, feed, true, &b->decoded, err)))
            return s;
        cld_score_merge(&all->forced, &b->forced);
        cld_decode_report_add(&all->decoded, &b->decoded);
    }
    return s;
}

static enum cld_status report(struct cld_worker *w, struct cld_feed *feed,
                              struct cld_feature_store *store, const char *drafter, bool json,
                              struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_eval_report r = {.drafter = drafter,
                                .cfg = w->cfg,
                                .worker = w,
                                .n_verified = cld_rules_drafted(&w->setup->rules) + 1,
                                .n_buckets = cld_feed_n_buckets(feed)};
    if (!(r.buckets = calloc(r.n_buckets + 1, sizeof *r.buckets)))
        return cld_fail_memory(err, "a report");
    if ((s = measure(w, feed, store, &r, err)))
        goto done;
    if (!json)
        cld_eval_print(&r, stdout);
    else if ((s = cld_eval_print_json(&r, stdout, err)))
        goto done;
    for (size_t i = 0; i < r.n_buckets && !s; i++)
        s = cld_evaluate_finite(&r.buckets[i].forced, err);
done:
    free(r.buckets);
    return s;
}

static enum cld_status evaluate(const struct cld_config *cfg, const char *drafter, bool json,
                                struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_feed *feed = NULL;
    struct cld_setup setup;
    struct cld_devices *devices = NULL;
    struct cld_device_info device;
    struct cld_worker w = {0};
    struct cld_drafter_file file;
    struct cld_feature_identity id;
    struct cld_feature_store *store = NULL;
    bool offline = cfg->features.mode == CLD_FEATURES_OFFLINE;
    int64_t mask_token = -1;
    char *mean = NULL;
    if ((s = cld_feed_open(cfg, &feed, err)) || (s = cld_feed_mask_token(feed, &mask_token, err)) ||
        (s = cld_setup_read(cfg, mask_token, &setup, err)) ||
        (s = cld_data_checks_target(cfg, &setup.target, cld_feed_tokenizer(feed), err)) ||
        (s = cld_end_tokens_find(cfg, cld_feed_tokenizer(feed), &setup.target, err)) ||
        (s = cld_drafter_config_read(drafter, &file, err)) ||
        (cfg->eval.ema && (s = cld_checkpoint_ema(drafter, &mean, err))) ||
        (s = cld_drafter_config_same(&setup.drafter, &file.config, drafter, err)) ||
        (s = cld_setup_same_taps(&setup, file.taps, drafter, err)) ||
        (cfg->target.random_weights < 0 &&
         (s = cld_drafter_check_borrowed(drafter, cfg->target.dir, &setup.target, err))) ||
        (s = cld_feed_load(feed, setup.target.vocab, false, err)) ||
        (offline &&
         ((s = cld_feature_identity_make(cfg, &setup, cld_feed_tokenizer_hash(feed), &id, err)) ||
          (s = cld_feature_store_open(cfg, &id, &store, err)))) ||
        (s = cld_devices_open(&devices, err)) ||
        (s = cld_worker_find_device(devices, cfg, NULL, &device, err)))
        goto done;
    struct cld_worker_options options = {.name = "evaluator",
                                         .role = offline ? CLD_ROLE_DRAFTER_WITHOUT_RING
                                                 : cfg->eval.decode_rows ? CLD_ROLE_DECODER
                                                                         : CLD_ROLE_BOTH,
                                         .n_rows = cfg->train.micro_rows};
    if (offline && cfg->eval.decode_rows)
        cld_info("features are read (features.mode = offline): no target runs, nothing is decoded");
    cld_feed_check_positions(feed, setup.target.max_positions);
    cld_info("device %zu: %s", device.index, device.name);
    if ((s = cld_worker_plan(&w, cfg, &setup, &device, &options, err)) ||
        (s = cld_worker_check(&w, err)) || (s = cld_worker_create(&w, err)) ||
        (s = cld_drafter_load(&w.drafter, mean ? mean : drafter, err)))
        goto done;
    s = report(&w, feed, store, drafter, json, err);
done:
    free(mean);
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
        s = evaluate(&cfg, drafter, cld_args_flag(a, "json"), err);
done:
    free(drafter);
    cld_config_free(&cfg);
    return s;
}
