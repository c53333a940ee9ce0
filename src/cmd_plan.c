/* cmd_plan.c - every buffer of a run, their sum and the budget, before anything is allocated. */
#include <stdio.h>

#include "cmd_common.h"
#include "config.h"
#include "feed.h"
#include "ways_out.h"

static void print_plan(const struct cld_worker *w, FILE *to)
{
    static const double gib = 1024.0 * 1024.0 * 1024.0;
    const struct cld_drafter *d = &w->drafter;
    char who[256];
    snprintf(who, sizeof who, "worker '%s' on device %zu: %s", cld_queue_name(w->q),
             w->device.index, w->device.name);
    cld_plan_print(w->plan, who, w->budget_bytes, to);
    size_t n_draft = d->limits.n_blocks * d->config.block_size;
    fprintf(to,
            "  attention: %s takes %.3f GiB of workspace; dense scores would take %.3f GiB a layer\n",
            d->attention.variant,
            (double)(d->attention.scratch_bytes + d->attention.mask_bytes) / gib,
            (double)cld_attention_dense_bytes(n_draft, d->limits.n_ctx + n_draft,
                                              d->config.n_heads) /
                gib);
    fprintf(to, "  products: %s\n", cld_gemm_backend_name(w->q, d->gemm));
}

enum cld_status cld_cmd_plan(const struct cld_args *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_sets = 0;
    const char *const *sets = cld_args_all(a, "set", &n_sets), *spec = NULL;
    struct cld_config cfg;
    struct cld_setup setup;
    struct cld_feed *feed = NULL;
    struct cld_devices *devices = NULL;
    struct cld_device_info device;
    struct cld_worker w = {0};
    int64_t mask_token = -1;
    if ((s = cld_config_load(cld_args_at(a, 0), sets, n_sets, &cfg, err)) ||
        (s = cld_config_check(&cfg, CLD_CONFIG_PLAN, err)) ||
        (s = cld_feed_open(&cfg, &feed, err)) ||
        (s = cld_feed_mask_token(feed, &mask_token, err)) ||
        (s = cld_setup_read(&cfg, mask_token, &setup, err)) ||
        (s = cld_setup_device(&cfg, &spec, err)) || (s = cld_devices_open(&devices, err)) ||
        (s = cld_devices_pick(devices, spec, &device, err)))
        goto done;
    struct cld_worker_options options = {
        .name = "trainer", .train = true, .n_rows = cfg.train.micro_rows};
    if ((s = cld_worker_plan(&w, &cfg, &setup, &device, &options, err)))
        goto done;
    print_plan(&w, stdout);
    if ((s = cld_worker_check(&w, err)) == CLD_E_MEMORY) {
        struct cld_error ignored = CLD_ERROR_INIT;
        printf("does not fit: %s\n", err->what);
        cld_ways_out(&cfg, &setup, &device, &options, stdout, &ignored);
    } else {
        printf("fits\n");
    }
done:
    cld_worker_close(&w);
    cld_devices_close(devices);
    cld_feed_close(feed);
    cld_config_free(&cfg);
    return s;
}
