#include "ops/tuning.h"
#include "ops/verdicts.h"
#include "workers/worker_set.h"

#include <stdlib.h>
#include <string.h>

static const double gib = 1024.0 * 1024.0 * 1024.0;

static bool is_fused(const struct cld_config *cfg)
{
    const struct cld_text_list *t = &cfg->devices.targets, *d = &cfg->devices.drafters;
    if (cfg->features.mode != CLD_FEATURES_ONLINE)
        return false;
    return !t->n || (t->n == 1 && (!d->n || (d->n == 1 && !strcmp(t->v[0], d->v[0]))));
}

static size_t n_members(const struct cld_worker_set *c)
{
    return c->n_targets + c->n_drafters + c->decodes;
}

/* Decodes on main what the drafters have learnt: on the device of the first of them. */
static void add_decoder(struct cld_worker_set *c)
{
    struct cld_worker_set_member *m = &c->at[n_members(c) - 1];
    m->device = c->at[c->n_targets].device;
    snprintf(m->name, sizeof m->name, "decoder");
    m->options = (struct cld_worker_options){.name = m->name, .decode = true};
}

enum cld_status cld_worker_set_devices(const struct cld_devices *devices,
                                       const struct cld_config *cfg, const char *spec,
                                       struct cld_device_info *out, struct cld_error *err)
{
    const struct cld_text_list *t = &cfg->devices.targets, *d = &cfg->devices.drafters;
    if (!spec)
        spec = d->n ? d->v[0] : t->n ? t->v[0] : NULL;
    enum cld_status s = cld_devices_find(devices, spec, out, err);
    if (!s && cfg->runtime.kernels)
        out->class = cfg->runtime.kernels == CLD_KERNEL_FAMILY_CPU ? CLD_CLASS_CPU : CLD_CLASS_GPU;
    return s;
}

static enum cld_status add(struct cld_worker_set *c, size_t i, const char *role, const char *spec,
                           const struct cld_config *cfg, const struct cld_devices *devices,
                           struct cld_error *err)
{
    struct cld_worker_set_member *m = &c->at[i];
    bool is_target = i < c->n_targets;
    size_t index = is_target ? i : i - c->n_targets;
    if (c->n_targets + c->n_drafters == 1)
        snprintf(m->name, sizeof m->name, "trainer");
    else
        snprintf(m->name, sizeof m->name, "%s %zu", role, index);
    m->options = (struct cld_worker_options){.name = m->name, .train = !is_target};
    m->options.no_drafter = is_target;
    m->options.reads = is_target && c->reads;
    m->options.given_features = !is_target && c->n_targets;
    m->options.double_buffered = c->n_targets > 0;
    return cld_worker_set_devices(devices, cfg, spec, &m->device, err);
}

/* A list of limits follows the configuration's targets, then its drafters; readers have none of
 * their own (0). */
static size_t budget_of(const struct cld_worker_set *c, size_t i, const struct cld_config *cfg)
{
    const struct cld_real_list *limits = &cfg->memory.limit_gib;
    if (!c->own_budgets)
        return cld_config_gib(limits->v[0]);
    if (i >= c->n_targets)
        i += cfg->devices.targets.n - c->n_targets;
    else if (c->reads)
        return 0;
    return cld_config_gib(limits->v[i]);
}

enum cld_status cld_worker_set_make(struct cld_worker_set *c, const struct cld_config *cfg,
                                    const struct cld_devices *devices, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_text_list *t = &cfg->devices.targets, *d = &cfg->devices.drafters;
    const struct cld_real_list *limits = &cfg->memory.limit_gib;
    bool fused = is_fused(cfg);
    memset(c, 0, sizeof *c);
    if (t->n && !d->n && !fused)
        return cld_fail(err, CLD_E_USAGE, "name devices.drafters",
                        "devices.targets names %zu devices, and nobody trains the drafter", t->n);
    c->n_drafters = cld_max(1, d->n);
    c->reads = cfg->features.mode == CLD_FEATURES_OFFLINE;
    /* A reader for each drafter; to fill a store, a target for each where none are named. */
    c->n_targets = fused ? 0 : c->reads || !t->n ? c->n_drafters : t->n;
    c->decodes = cfg->eval.decode_every && cfg->eval.decode_rows && cfg->data.heldout;
    c->at = calloc(n_members(c), sizeof *c->at);
    if (!c->at)
        return cld_fail_memory(err, "a list of workers");
    for (size_t i = 0; i < c->n_targets && !s; i++) {
        const char *beside = d->n ? d->v[i % d->n] : t->n ? t->v[0] : NULL;
        s = c->reads ? add(c, i, "reader", beside, cfg, devices, err)
                     : add(c, i, "target", t->n ? t->v[i] : beside, cfg, devices, err);
        c->at[i].options.n_slots = cfg->devices.ring_slots;
    }
    for (size_t i = 0; i < c->n_drafters && !s; i++)
        s = add(c, c->n_targets + i, "drafter", d->n ? d->v[i] : NULL, cfg, devices, err);
    if (c->decodes && !s)
        add_decoder(c);
    for (size_t i = 0; i < n_members(c) && !s; i++)
        if (n_members(c) > 1 && c->at[i].device.quirks & CLD_QUIRK_SINGLE_THREAD)
            s = cld_fail(err, CLD_E_DEVICE, "use one worker, or another platform",
                         "device %zu (%s) cannot be used by several threads", c->at[i].device.index,
                         c->at[i].device.platform);
    if (!s)
        cld_worker_set_share(c, 0, c->n_drafters, 0);
    c->own_budgets = limits->n > 1;
    for (size_t i = 0; i < c->n_targets + c->n_drafters && limits->n; i++)
        c->at[i].options.budget_bytes = budget_of(c, i, cfg);
    return s;
}

void cld_worker_set_share(struct cld_worker_set *c, size_t first, size_t n_drafters,
                          size_t n_remote)
{
    for (size_t d = 0; d < c->n_drafters; d++) {
        struct cld_worker_options *o = &c->at[c->n_targets + d].options;
        o->shard = first + d;
        o->n_shards = n_drafters;
        o->n_remote = n_remote;
        o->snapshot = !o->shard; /* the first drafter of all machines writes checkpoints */
    }
}

void cld_worker_set_free(struct cld_worker_set *c)
{
    free(c->at);
    memset(c, 0, sizeof *c);
}

static void print_worker(const struct cld_worker *w, FILE *to)
{
    char who[256];
    size_t n_draft = w->limits.n_blocks * w->setup->drafter.block_size;
    snprintf(who, sizeof who, "worker '%s' on device %zu: %s", cld_queue_name(w->q),
             w->device.index, w->device.name);
    cld_plan_print(w->plan, who, w->budget_bytes, to);
    if (w->reads)
        return;
    const struct cld_attention_plan *a =
        w->no_drafter ? &w->target.attention : &w->drafter.attention;
    fprintf(to, "  attention: %s takes %.3f GiB of workspace", a->variant,
            (double)(a->scratch_bytes + a->mask_bytes) / gib);
    if (!w->no_drafter)
        fprintf(to, "; dense scores would take %.3f GiB a layer",
                (double)cld_attention_dense_bytes(n_draft, w->limits.n_ctx + n_draft,
                                                  w->drafter.config.n_heads) /
                    gib);
    char tuned[cld_tuning_text_bytes];
    cld_tuning_text(w->q, tuned, sizeof tuned);
    fprintf(to, "\n  products: %s\n  tuned parameters: %s\n",
            cld_gemm_backend_name(w->q, w->no_drafter ? w->target.gemm : w->drafter.gemm), tuned);
    if (cld_queue_tuning(w->q)->note[0])
        cld_warn("%s: %s", cld_queue_name(w->q), cld_queue_tuning(w->q)->note);
}

/* What a dense attention asks for, said in front of a refusal: it is seldom what was meant. */
static enum cld_status blame_dense(const struct cld_worker *w, struct cld_error *err)
{
    size_t n_draft = w->limits.n_blocks * w->setup->drafter.block_size;
    size_t n_keys = w->limits.n_ctx + n_draft, n_heads = w->setup->drafter.n_heads;
    if (w->no_drafter || w->cfg->attention.backend != CLD_ATTENTION_DENSE)
        return err->status;
    return cld_fail_prefix(err,
                           "attention.backend = dense stores %.1f GB of scores (%zu heads x %zu "
                           "draft rows x %zu keys)",
                           (double)cld_attention_dense_bytes(n_draft, n_keys, n_heads) * 1e-9,
                           n_heads, n_draft, n_keys);
}

/* The verdicts of a member's device that are stored; *known: there are any. */
static enum cld_status read_verdicts(const struct cld_worker_set_member *m,
                                     const struct cld_config *cfg, unsigned *bits, bool *known,
                                     struct cld_error *err)
{
    struct cld_verdicts v;
    char *dir = NULL;
    const char *why;
    enum cld_status s = cld_worker_cache_dir(cfg, &m->device, &dir, &why, err);
    *known = !s && cld_verdicts_read(&m->device, dir, &v);
    *bits = *known ? cld_verdicts_bits(&v) : 0;
    free(dir);
    return s;
}

enum cld_status cld_worker_set_probe(const struct cld_worker_set *c, const struct cld_config *cfg,
                                     struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < n_members(c) && !s; i++) {
        char *dir = NULL;
        const char *why;
        if (!(s = cld_worker_cache_dir(cfg, &c->at[i].device, &dir, &why, err)))
            cld_verdicts_resolve(&c->at[i].device, dir);
        free(dir);
    }
    return s;
}

/* Of the instruction sets that the device may have, those whose plan is the largest. */
static enum cld_status largest_sets(const struct cld_worker_set_member *m,
                                    const struct cld_worker_options *options,
                                    const struct cld_config *cfg, const struct cld_setup *setup,
                                    unsigned *bits, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t largest = 0;
    unsigned sets = 0;
    for (int i = -1; i < CLD_N_PROBES && !s; i++) {
        struct cld_worker w;
        struct cld_worker_options with = *options;
        if (i >= 0)
            sets |= cld_instruction_set_bit((enum cld_instruction_set)i);
        with.instruction_sets = sets;
        if (!(s = cld_worker_plan(&w, cfg, setup, &m->device, &with, err)) &&
            cld_plan_bytes(w.plan) >= largest) {
            largest = cld_plan_bytes(w.plan);
            *bits = sets;
        }
        cld_worker_close(&w);
    }
    return s;
}

static enum cld_status plan_member(struct cld_worker_set *c, struct cld_worker_set_member *m,
                                   const struct cld_config *cfg, const struct cld_setup *setup,
                                   FILE *to, struct cld_error *refused, struct cld_error *err)
{
    struct cld_worker w = {0};
    struct cld_error why = CLD_ERROR_INIT;
    bool known = false;
    m->options.n_rows = m->options.decode ? 0 : cfg->train.micro_rows;
    struct cld_worker_options options = m->options;
    options.plans_only = true;
    enum cld_status s = read_verdicts(m, cfg, &options.instruction_sets, &known, err);
    if (s ||
        (!known && (s = largest_sets(m, &options, cfg, setup, &options.instruction_sets, err))) ||
        (s = cld_worker_plan(&w, cfg, setup, &m->device, &options, err)))
        goto done;
    m->planned_bytes = cld_plan_bytes(w.plan);
    if (!m->options.no_drafter && !m->options.decode)
        c->limits = w.limits;
    if (to)
        print_worker(&w, to);
    if (to && !known)
        fprintf(to,
                "  no verdict is stored for the tensor cores of device %zu: this is the largest "
                "plan of those with and without them; run `cldraft devices` for the exact one\n",
                m->device.index);
    if (cld_worker_check(&w, &why) && !refused->status) {
        blame_dense(&w, &why);
        *refused = why;
    }
done:
    cld_worker_close(&w);
    return s;
}

/* The sum of the workers on the device of member i, in *n, and its budget. */
static size_t device_sum(const struct cld_worker_set *c, size_t i, const struct cld_config *cfg,
                         size_t *n, size_t *budget_bytes)
{
    const struct cld_device_info *d = &c->at[i].device;
    size_t sum = 0, own = 0;
    *n = 0;
    for (size_t k = 0; k < n_members(c); k++)
        if (c->at[k].device.index == d->index) {
            sum = cld_add(sum, c->at[k].planned_bytes);
            own = cld_add(own, c->at[k].options.budget_bytes);
            ++*n;
        }
    *budget_bytes = c->own_budgets ? own : cld_worker_budget_bytes(cfg, d);
    return sum;
}

static bool seen_before(const struct cld_worker_set *c, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (c->at[k].device.index == c->at[i].device.index)
            return true;
    return false;
}

enum cld_status cld_worker_set_plan(struct cld_worker_set *c, const struct cld_config *cfg,
                                    const struct cld_setup *setup, FILE *to, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_error refused = CLD_ERROR_INIT;
    size_t n_workers = n_members(c), n = 0, budget_bytes = 0;
    for (size_t i = 0; i < n_workers; i++)
        if ((s = plan_member(c, &c->at[i], cfg, setup, to, &refused, err)))
            return s;
    for (size_t i = 0; i < n_workers; i++) {
        size_t sum = device_sum(c, i, cfg, &n, &budget_bytes);
        if (n < 2 || seen_before(c, i))
            continue;
        const struct cld_device_info *d = &c->at[i].device;
        if (to)
            fprintf(to,
                    "device %zu: %s: %zu workers, %zu bytes = %.3f GiB of a budget of %.3f GiB\n",
                    d->index, d->name, n, sum, (double)sum / gib, (double)budget_bytes / gib);
        if (sum > budget_bytes && !refused.status)
            cld_fail(
                &refused, CLD_E_MEMORY, "see `cldraft plan` for each buffer and what would fit",
                "device %zu (%s): its %zu workers need %.3f GiB together of a budget of %.3f GiB",
                d->index, d->name, n, (double)sum / gib, (double)budget_bytes / gib);
    }
    if (refused.status)
        *err = refused;
    return refused.status;
}

size_t cld_worker_set_bytes(const struct cld_worker_set *c)
{
    size_t most = 0;
    for (size_t i = 0; i < n_members(c); i++) {
        size_t sum = 0;
        for (size_t k = 0; k < n_members(c); k++)
            if (c->at[k].device.index == c->at[i].device.index)
                sum = cld_add(sum, c->at[k].planned_bytes);
        most = cld_max(most, sum);
    }
    return most;
}
