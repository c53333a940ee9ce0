/* cmd_plan.c - every buffer of a run, the sums and budgets, before anything is allocated. */
#include <stdio.h>

#include "cli/cmd_common.h"
#include "config/config.h"
#include "data/feed.h"
#include "workers/fit_suggestions.h"

enum cld_status cld_cmd_plan(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_sets = 0;
    const char *const *sets = cld_args_all(a, "set", &n_sets);
    struct cld_config cfg;
    struct cld_setup setup;
    struct cld_feed *feed = NULL;
    struct cld_devices *devices = NULL;
    struct cld_worker_set set = {0};
    int64_t mask_token = -1;
    if ((s = cld_config_load(cld_args_at(a, 0), sets, n_sets, &cfg, err)) ||
        (s = cld_config_check(&cfg, CLD_CONFIG_PLAN, err)) ||
        (s = cld_feed_open(&cfg, &feed, err)) ||
        (s = cld_feed_mask_token(feed, &mask_token, err)) ||
        (s = cld_setup_read(&cfg, mask_token, &setup, err)) ||
        (s = cld_devices_open(&devices, err)) ||
        (s = cld_worker_set_make(&set, &cfg, devices, err)))
        goto done;
    if ((s = cld_worker_set_plan(&set, &cfg, &setup, stdout, err)) == CLD_E_MEMORY) {
        struct cld_error ignored = CLD_ERROR_INIT;
        printf("does not fit: %s\n", err->what);
        cld_fit_suggestions(&cfg, &setup, &set, stdout, &ignored);
    } else if (!s) {
        printf("fits\n");
    }
done:
    cld_worker_set_free(&set);
    cld_devices_close(devices);
    cld_feed_close(feed);
    cld_config_free(&cfg);
    return s;
}
