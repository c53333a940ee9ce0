#include "ways_out.h"

#include <string.h>

static const double gib = 1024.0 * 1024.0 * 1024.0;

/* Does the run fit with this configuration? *n_bytes is what it would take. */
static enum cld_status fits(const struct cld_config *cfg, const struct cld_setup *setup,
                            const struct cld_device_info *device,
                            const struct cld_worker_options *options, bool *yes, size_t *n_bytes,
                            struct cld_error *err)
{
    struct cld_worker w;
    struct cld_worker_options o = *options;
    o.n_rows = cfg->train.micro_rows;
    enum cld_status s = cld_worker_plan(&w, cfg, setup, device, &o, err);
    if (!s) {
        struct cld_error refused = CLD_ERROR_INIT;
        *n_bytes = cld_plan_bytes(w.plan);
        *yes = cld_worker_check(&w, &refused) == CLD_OK;
    }
    cld_worker_close(&w);
    return s;
}

/* Halves *value (a field of `trial`) until the run fits or it is 1. */
static enum cld_status halve(const struct cld_config *trial, size_t *value, const char *name,
                             const struct cld_setup *setup, const struct cld_device_info *device,
                             const struct cld_worker_options *options, FILE *to, size_t *n_found,
                             struct cld_error *err)
{
    size_t before = *value, n_bytes = 0;
    enum cld_status s = CLD_OK;
    bool yes = false;
    while (*value > 1 && !yes && !s) {
        *value /= 2;
        s = fits(trial, setup, device, options, &yes, &n_bytes, err);
    }
    if (!s && yes) {
        fprintf(to, "  fits with --set %s=%zu: %.3f GiB\n", name, *value, (double)n_bytes / gib);
        ++*n_found;
    }
    *value = before;
    return s;
}

enum cld_status cld_ways_out(const struct cld_config *cfg, const struct cld_setup *setup,
                             const struct cld_device_info *device,
                             const struct cld_worker_options *options, FILE *to,
                             struct cld_error *err)
{
    struct cld_config trial = *cfg; /* shares the lists; only numbers are changed */
    enum cld_status s = CLD_OK;
    size_t n_found = 0, n_bytes = 0;
    bool yes = false;
    if (options->train && !cfg->train.recompute) {
        trial.train.recompute = true;
        if ((s = fits(&trial, setup, device, options, &yes, &n_bytes, err)))
            return s;
        if (yes) {
            fprintf(to, "  fits with --set train.recompute=yes: %.3f GiB\n", (double)n_bytes / gib);
            n_found++;
        }
        trial.train.recompute = false;
    }
    if ((s = halve(&trial, &trial.train.loss_chunk, "train.loss_chunk", setup, device, options, to,
                   &n_found, err)) ||
        (s = halve(&trial, &trial.train.micro_rows, "train.micro_rows", setup, device, options, to,
                   &n_found, err)) ||
        (s = halve(&trial, &trial.train.anchors, "train.anchors", setup, device, options, to,
                   &n_found, err)))
        return s;
    if (!n_found)
        fprintf(to, "  no single change of recompute, loss_chunk, micro_rows or anchors fits: "
                    "combine them, shorten data.max_length, or use a larger device\n");
    return CLD_OK;
}
