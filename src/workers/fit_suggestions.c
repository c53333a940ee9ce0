#include "workers/fit_suggestions.h"

/* More drafters than this are not suggested. */
static const size_t most_drafters = 64;

/* What a trial needs besides the configuration, and where its result goes. */
struct trials {
    const struct cld_setup *setup;
    struct cld_worker_set *set;
    FILE *to;
    size_t n_found;
};

/* Does the run fit with this configuration? */
static enum cld_status fits(struct trials *t, const struct cld_config *cfg, bool *yes,
                            struct cld_error *err)
{
    enum cld_status s = cld_worker_set_plan(t->set, cfg, t->setup, NULL, err);
    *yes = !s;
    return s == CLD_E_MEMORY ? CLD_OK : s;
}

static void report(struct trials *t, const char *setting)
{
    fprintf(t->to, "  fits with --set %s: %.3f GiB\n", setting,
            cld_gib(cld_worker_set_device_bytes(t->set)));
    t->n_found++;
}

/* Halves *value (a field of `trial`) until the run fits or it is 1. */
static enum cld_status halve(struct trials *t, const struct cld_config *trial, size_t *value,
                             const char *name, struct cld_error *err)
{
    size_t before = *value;
    enum cld_status s = CLD_OK;
    bool yes = false;
    while (*value > 1 && !yes && !s) {
        *value /= 2;
        s = fits(t, trial, &yes, err);
    }
    if (!s && yes) {
        char setting[64];
        snprintf(setting, sizeof setting, "%s=%zu", name, *value);
        report(t, setting);
    }
    *value = before;
    return s;
}

/* Drafters share gradients' sums and the optimizer's state: how many would each fit? */
static enum cld_status more_drafters(struct trials *t, const struct cld_config *cfg,
                                     struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_now = t->set->n_drafters;
    bool yes = false;
    for (size_t n = n_now + 1; n <= most_drafters && !yes && !s; n++) {
        cld_worker_set_assign_shards(t->set, 0, n, 0);
        if (!(s = fits(t, cfg, &yes, err)) && yes) {
            fprintf(t->to,
                    "  fits with %zu drafters in all, the new ones on devices of their own "
                    "(train.batch_rows a multiple of %zu): %.3f GiB\n",
                    n, n * cfg->train.micro_rows, cld_gib(cld_worker_set_device_bytes(t->set)));
            t->n_found++;
        }
    }
    cld_worker_set_assign_shards(t->set, 0, n_now, 0);
    /* A number for which there are too few parameters is not suggested, and no error. */
    return s == CLD_E_USAGE ? CLD_OK : s;
}

enum cld_status cld_fit_suggestions(const struct cld_config *cfg, const struct cld_setup *setup,
                                    struct cld_worker_set *set, FILE *to, struct cld_error *err)
{
    struct cld_config trial = *cfg; /* shares the lists; only numbers are changed */
    struct trials t = {setup, set, to, 0};
    enum cld_status s = CLD_OK;
    bool yes = false;
    if (cfg->attention.backend == CLD_ATTENTION_DENSE) {
        trial.attention.backend = CLD_ATTENTION_SPARSE;
        if ((s = fits(&t, &trial, &yes, err)))
            return s;
        if (yes)
            report(&t, "attention.backend=sparse");
        trial.attention.backend = CLD_ATTENTION_DENSE;
    }
    if (!cfg->train.recompute) {
        trial.train.recompute = true;
        if ((s = fits(&t, &trial, &yes, err)))
            return s;
        if (yes)
            report(&t, "train.recompute=yes");
        trial.train.recompute = false;
    }
    if ((s = halve(&t, &trial, &trial.train.loss_chunk, "train.loss_chunk", err)) ||
        (s = halve(&t, &trial, &trial.train.micro_rows, "train.micro_rows", err)) ||
        (s = halve(&t, &trial, &trial.train.anchors, "train.anchors", err)) ||
        (s = more_drafters(&t, cfg, err)))
        return s;
    if (!t.n_found)
        fprintf(to,
                "  no single change of recompute, loss_chunk, micro_rows, anchors or the number "
                "of drafters fits: combine them, shorten data.max_length, or use a larger "
                "device\n");
    return CLD_OK;
}
