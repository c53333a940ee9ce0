#include "ops/tuning.h"
#include "ops/verdicts.h"
#include "workers/worker_set.h"

#include <stdlib.h>
#include <string.h>

static bool is_fused(const struct cld_config *cfg)
{
    const struct cld_text_list *t = &cfg->devices.targets, *d = &cfg->devices.drafters;
    if (cfg->features.mode != CLD_FEATURES_ONLINE)
        return false;
    return !t->n || (t->n == 1 && (!d->n || (d->n == 1 && !strcmp(t->v[0], d->v[0]))));
}

static size_t n_workers(const struct cld_worker_set *set)
{
    return set->n_targets + set->n_drafters + set->decodes;
}

/* The decoder runs on the main thread, on the device of the first drafter. */
static void add_decoder(struct cld_worker_set *set)
{
    struct cld_planned_worker *m = &set->workers[n_workers(set) - 1];
    m->device = set->workers[set->n_targets].device;
    snprintf(m->name, sizeof m->name, "decoder");
    m->options = (struct cld_worker_options){.name = m->name, .role = CLD_ROLE_DECODER};
}

enum cld_status cld_worker_find_device(const struct cld_devices *devices,
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

static const char *role_name(enum cld_worker_role role)
{
    return role == CLD_ROLE_READER ? "reader" : role == CLD_ROLE_TARGET ? "target" : "drafter";
}

static enum cld_status add(struct cld_worker_set *set, size_t i, enum cld_worker_role role,
                           const char *spec, const struct cld_config *cfg,
                           const struct cld_devices *devices, struct cld_error *err)
{
    struct cld_planned_worker *m = &set->workers[i];
    bool is_target = i < set->n_targets;
    size_t index = is_target ? i : i - set->n_targets;
    if (set->n_targets + set->n_drafters == 1)
        snprintf(m->name, sizeof m->name, "trainer");
    else
        snprintf(m->name, sizeof m->name, "%s %zu", role_name(role), index);
    m->options = (struct cld_worker_options){.name = m->name, .role = role, .train = !is_target};
    return cld_worker_find_device(devices, cfg, spec, &m->device, err);
}

/* memory.limit_gib as a list: one limit for each of devices.targets, then for each of
 * devices.drafters. Readers have none (0). */
static size_t budget_of(const struct cld_worker_set *set, size_t i, const struct cld_config *cfg)
{
    const struct cld_real_list *limits = &cfg->memory.limit_gib;
    if (!set->own_budgets)
        return cld_config_gib(limits->v[0]);
    if (i >= set->n_targets)
        i += cfg->devices.targets.n - set->n_targets;
    else if (set->reads)
        return 0;
    return cld_config_gib(limits->v[i]);
}

enum cld_status cld_worker_set_make(struct cld_worker_set *set, const struct cld_config *cfg,
                                    const struct cld_devices *devices, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_text_list *t = &cfg->devices.targets, *d = &cfg->devices.drafters;
    const struct cld_real_list *limits = &cfg->memory.limit_gib;
    bool fused = is_fused(cfg);
    memset(set, 0, sizeof *set);
    if (t->n && !d->n && !fused)
        return cld_fail(err, CLD_E_USAGE, "name devices.drafters",
                        "devices.targets names %zu devices, and no device trains the drafter",
                        t->n);
    set->n_drafters = cld_max(1, d->n);
    set->reads = cfg->features.mode == CLD_FEATURES_OFFLINE;
    /* A reader for each drafter; to fill a store, a target for each if none are named. */
    set->n_targets = fused ? 0 : set->reads || !t->n ? set->n_drafters : t->n;
    set->decodes = cfg->eval.decode_every && cfg->eval.decode_rows && cfg->data.heldout;
    set->workers = calloc(n_workers(set), sizeof *set->workers);
    if (!set->workers)
        return cld_fail_memory(err, "a list of workers");
    for (size_t i = 0; i < set->n_targets && !s; i++) {
        const char *beside = d->n ? d->v[i % d->n] : t->n ? t->v[0] : NULL;
        s = set->reads ? add(set, i, CLD_ROLE_READER, beside, cfg, devices, err)
                       : add(set, i, CLD_ROLE_TARGET, t->n ? t->v[i] : beside, cfg, devices, err);
        set->workers[i].options.n_slots = cfg->devices.ring_slots;
    }
    for (size_t i = 0; i < set->n_drafters && !s; i++)
        s = add(set, set->n_targets + i, set->n_targets ? CLD_ROLE_DRAFTER : CLD_ROLE_BOTH,
                d->n ? d->v[i] : NULL, cfg, devices, err);
    if (set->decodes && !s)
        add_decoder(set);
    for (size_t i = 0; i < n_workers(set) && !s; i++)
        if (n_workers(set) > 1 && set->workers[i].device.quirks & CLD_QUIRK_SINGLE_THREAD)
            s = cld_fail(err, CLD_E_DEVICE, "use one worker, or another platform",
                         "device %zu (%s) cannot be used by several threads",
                         set->workers[i].device.index, set->workers[i].device.platform);
    if (!s)
        cld_worker_set_assign_shards(set, 0, set->n_drafters, 0);
    set->own_budgets = limits->n > 1;
    for (size_t i = 0; i < set->n_targets + set->n_drafters && limits->n; i++)
        set->workers[i].options.budget_bytes = budget_of(set, i, cfg);
    return s;
}

void cld_worker_set_assign_shards(struct cld_worker_set *set, size_t first, size_t n_drafters,
                                  size_t n_remote)
{
    for (size_t d = 0; d < set->n_drafters; d++) {
        struct cld_worker_options *o = &set->workers[set->n_targets + d].options;
        o->shard = first + d;
        o->n_shards = n_drafters;
        o->n_remote = n_remote;
        o->snapshot = !o->shard; /* the first drafter of all machines writes checkpoints */
    }
}

void cld_worker_set_free(struct cld_worker_set *set)
{
    free(set->workers);
    memset(set, 0, sizeof *set);
}

static void print_worker(const struct cld_worker *w, FILE *to)
{
    char who[256];
    size_t n_draft = w->limits.n_blocks * w->setup->drafter.block_size;
    snprintf(who, sizeof who, "worker '%s' on device %zu: %s", cld_queue_name(w->q),
             w->device.index, w->device.name);
    cld_plan_print(w->plan, who, w->budget_bytes, to);
    if (w->role == CLD_ROLE_READER)
        return;
    bool drafts = cld_worker_has_drafter(w->role);
    const struct cld_attention_plan *a = drafts ? &w->drafter.attention : &w->target.attention;
    fprintf(to, "  attention: %s needs %.3f GiB of workspace", a->variant,
            cld_gib(a->scratch_bytes + a->mask_bytes));
    if (drafts)
        fprintf(to, "; dense scores would need %.3f GiB a layer",
                cld_gib(cld_attention_dense_bytes(n_draft, w->limits.n_ctx + n_draft,
                                                  w->drafter.config.n_heads)));
    char tuned[cld_tuning_text_bytes];
    cld_tuning_text(w->q, tuned, sizeof tuned);
    fprintf(to, "\n  GEMM: %s\n  tuned parameters: %s\n",
            cld_gemm_backend_name(w->q, drafts ? w->drafter.gemm : w->target.gemm), tuned);
    if (cld_queue_tuning(w->q)->note[0])
        cld_warn("%s: %s", cld_queue_name(w->q), cld_queue_tuning(w->q)->note);
}

/* Puts what dense attention needs before the message of a refusal: it is seldom meant. */
static enum cld_status blame_dense(const struct cld_worker *w, struct cld_error *err)
{
    size_t n_draft = w->limits.n_blocks * w->setup->drafter.block_size;
    size_t n_keys = w->limits.n_ctx + n_draft, n_heads = w->setup->drafter.n_heads;
    if (!cld_worker_has_drafter(w->role) || w->cfg->attention.backend != CLD_ATTENTION_DENSE)
        return err->status;
    return cld_fail_prefix(err,
                           "attention.backend = dense stores %.1f GB of scores (%zu heads x %zu "
                           "draft rows x %zu keys)",
                           (double)cld_attention_dense_bytes(n_draft, n_keys, n_heads) * 1e-9,
                           n_heads, n_draft, n_keys);
}

/* The verdicts of a member's device that are stored; *known: there are any. */
static enum cld_status read_verdicts(const struct cld_planned_worker *m,
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

enum cld_status cld_worker_set_probe(const struct cld_worker_set *set, const struct cld_config *cfg,
                                     struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < n_workers(set) && !s; i++) {
        char *dir = NULL;
        const char *why;
        if (!(s = cld_worker_cache_dir(cfg, &set->workers[i].device, &dir, &why, err)))
            cld_verdicts_resolve(&set->workers[i].device, dir);
        free(dir);
    }
    return s;
}

/* Of the instruction sets that the device may have, those whose plan is the largest. */
static enum cld_status largest_sets(const struct cld_planned_worker *m,
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

static enum cld_status plan_member(struct cld_worker_set *set, struct cld_planned_worker *m,
                                   const struct cld_config *cfg, const struct cld_setup *setup,
                                   FILE *to, struct cld_error *refused, struct cld_error *err)
{
    struct cld_worker w = {0};
    struct cld_error why = CLD_ERROR_INIT;
    bool known = false;
    m->options.n_rows = m->options.role == CLD_ROLE_DECODER ? 0 : cfg->train.micro_rows;
    struct cld_worker_options options = m->options;
    options.plans_only = true;
    enum cld_status s = read_verdicts(m, cfg, &options.instruction_sets, &known, err);
    if (s ||
        (!known && (s = largest_sets(m, &options, cfg, setup, &options.instruction_sets, err))) ||
        (s = cld_worker_plan(&w, cfg, setup, &m->device, &options, err)))
        goto done;
    m->planned_bytes = cld_plan_bytes(w.plan);
    if (cld_worker_has_drafter(m->options.role) && m->options.role != CLD_ROLE_DECODER)
        set->limits = w.limits;
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
static size_t device_sum(const struct cld_worker_set *set, size_t i, const struct cld_config *cfg,
                         size_t *n, size_t *budget_bytes)
{
    const struct cld_device_info *d = &set->workers[i].device;
    size_t sum = 0, own = 0;
    *n = 0;
    for (size_t k = 0; k < n_workers(set); k++)
        if (set->workers[k].device.index == d->index) {
            sum = cld_add(sum, set->workers[k].planned_bytes);
            own = cld_add(own, set->workers[k].options.budget_bytes);
            ++*n;
        }
    *budget_bytes = set->own_budgets ? own : cld_plan_budget_bytes(cfg, d);
    return sum;
}

static bool is_on_earlier_device(const struct cld_worker_set *set, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (set->workers[k].device.index == set->workers[i].device.index)
            return true;
    return false;
}

enum cld_status cld_worker_set_plan(struct cld_worker_set *set, const struct cld_config *cfg,
                                    const struct cld_setup *setup, FILE *to, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_error refused = CLD_ERROR_INIT;
    size_t n_all = n_workers(set), n = 0, budget_bytes = 0;
    for (size_t i = 0; i < n_all; i++)
        if ((s = plan_member(set, &set->workers[i], cfg, setup, to, &refused, err)))
            return s;
    for (size_t i = 0; i < n_all; i++) {
        size_t sum = device_sum(set, i, cfg, &n, &budget_bytes);
        if (n < 2 || is_on_earlier_device(set, i))
            continue;
        const struct cld_device_info *d = &set->workers[i].device;
        if (to)
            fprintf(to,
                    "device %zu: %s: %zu workers, %zu bytes = %.3f GiB of a budget of %.3f GiB\n",
                    d->index, d->name, n, sum, cld_gib(sum), cld_gib(budget_bytes));
        if (!refused.status)
            cld_plan_check_device(d, n, sum, budget_bytes, &refused);
    }
    if (refused.status)
        *err = refused;
    return refused.status;
}

size_t cld_worker_set_device_bytes(const struct cld_worker_set *set)
{
    size_t most = 0;
    for (size_t i = 0; i < n_workers(set); i++) {
        size_t sum = 0;
        for (size_t k = 0; k < n_workers(set); k++)
            if (set->workers[k].device.index == set->workers[i].device.index)
                sum = cld_add(sum, set->workers[k].planned_bytes);
        most = cld_max(most, sum);
    }
    return most;
}
