/* cmd_plan.c - every buffer of a run, the sums and budgets, before anything is allocated. */
#include <stdio.h>

#include "cmd_common.h"
#include "config.h"
#include "feed.h"
#include "ways_out.h"

enum cld_status cld_cmd_plan(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_sets = 0;
    const char *const *sets = cld_args_all(a, "set", &n_sets);
    struct cld_config cfg;
    struct cld_setup setup;
    struct cld_feed *feed = NULL;
    struct cld_devices *devices = NULL;
    struct cld_crew crew = {0};
    int64_t mask_token = -1;
    if ((s = cld_config_load(cld_args_at(a, 0), sets, n_sets, &cfg, err)) ||
        (s = cld_config_check(&cfg, CLD_CONFIG_PLAN, err)) ||
        (s = cld_feed_open(&cfg, &feed, err)) ||
        (s = cld_feed_mask_token(feed, &mask_token, err)) ||
        (s = cld_setup_read(&cfg, mask_token, &setup, err)) ||
        (s = cld_devices_open(&devices, err)) || (s = cld_crew_make(&crew, &cfg, devices, err)))
        goto done;
    if ((s = cld_crew_plan(&crew, &cfg, &setup, stdout, err)) == CLD_E_MEMORY) {
        struct cld_error ignored = CLD_ERROR_INIT;
        printf("does not fit: %s\n", err->what);
        cld_ways_out(&cfg, &setup, &crew, stdout, &ignored);
    } else if (!s) {
        printf("fits\n");
    }
done:
    cld_crew_free(&crew);
    cld_devices_close(devices);
    cld_feed_close(feed);
    cld_config_free(&cfg);
    return s;
}
