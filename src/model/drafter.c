/* drafter.c - describes a drafter: checks its geometry, plans its memory, writes its operations. */
#include "model/drafter.h"

#include <stdlib.h>
#include <string.h>

#include "model/drafter_memory.h"
#include "model/drafter_private.h"
#include "ops/op_objective.h"
#include "ops/ops.h"

enum cld_status cld_drafter_config_check(const struct cld_drafter_config *c, struct cld_error *err)
{
    if (!c->n_layers || c->n_layers > CLD_MAX_DRAFT_LAYERS)
        return cld_fail(err, CLD_E_USAGE, "set drafter.layers to a number in this range",
                        "a drafter has 1 to %d layers, not %zu", CLD_MAX_DRAFT_LAYERS, c->n_layers);
    if (!c->n_heads || !c->n_kv_heads || c->n_heads % c->n_kv_heads)
        return cld_fail(err, CLD_E_USAGE, "query heads must be a multiple of KV heads",
                        "drafter with %zu query heads and %zu KV heads", c->n_heads, c->n_kv_heads);
    if (!c->head_dim || c->head_dim % 8 || c->head_dim > 256)
        return cld_fail(err, CLD_E_USAGE, "head_dim must be a multiple of 8 up to 256",
                        "drafter with head_dim %zu", c->head_dim);
    if (c->block_size < 2 || c->block_size > 64)
        return cld_fail(err, CLD_E_USAGE, "block sizes from 2 to 64 are supported",
                        "drafter with block_size %zu", c->block_size);
    if (!c->n_taps)
        return cld_fail(err, CLD_E_USAGE, "name target.taps", "a drafter needs at least one tap");
    if (c->mask_token < 0 || (size_t)c->mask_token >= c->vocab)
        return cld_fail(err, CLD_E_USAGE,
                        "choose a reserved token inside the target's embedding, not pad or eos",
                        "mask token %d is outside the embedding of %zu rows", (int)c->mask_token,
                        c->vocab);
    if (c->anchor_first && c->block_size > 63)
        return cld_fail(err, CLD_E_USAGE, "63 tokens and the known one are the most",
                        "an anchor-first drafter with block_size %zu", c->block_size);
    if (cld_drafter_slides(c) && c->sliding_window < c->block_size)
        return cld_fail(err, CLD_E_USAGE, "set drafter.sliding_window to block_size or more",
                        "a sliding layer with window %zu and block size %zu", c->sliding_window,
                        c->block_size);
    return CLD_OK;
}

enum cld_status cld_drafter_describe(struct cld_drafter *d, const struct cld_drafter_config *config,
                                     const struct cld_drafter_limits *limits,
                                     const struct cld_drafter_options *options, struct cld_queue *q,
                                     const struct cld_tensor *embed, const struct cld_tensor *head,
                                     struct cld_plan *plan, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    memset(d, 0, sizeof *d);
    if ((s = cld_drafter_config_check(config, err)))
        return s;
    d->config = *config;
    d->limits = *limits;
    d->options = *options;
    d->limits.n_ctx = cld_round_up(cld_max(limits->n_ctx, CLD_ROW_GRAIN), CLD_ROW_GRAIN);
    d->limits.n_blocks = cld_max(
        1, cld_div_up(cld_round_up(cld_mul(limits->n_blocks, config->block_size), CLD_ROW_GRAIN),
                      config->block_size));
    d->limits.loss_chunk = cld_max(1, limits->loss_chunk);
    d->q = q;
    d->embed = embed;
    d->head = head;
    size_t n_draft = cld_mul(d->limits.n_blocks, config->block_size);
    size_t n_seen = cld_add(cld_max(d->limits.n_ctx, d->limits.n_cached), n_draft);
    if (!(d->layers = calloc(config->n_layers, sizeof *d->layers)))
        return cld_fail_memory(err, "a drafter of %zu layers", config->n_layers);
    if ((s = cld_attention_plan(q, options->attention, n_draft, n_seen, config->n_heads,
                                config->n_kv_heads, config->head_dim, options->storage,
                                options->storage, options->train, &d->attention, err)) ||
        (s = cld_drafter_list_params(d, err)))
        return s;
    cld_drafter_plan_params(d, plan);
    if ((s = cld_drafter_plan_memory(d, plan, err)))
        return s;
    cld_drafter_write_forward(d);
    if (options->train)
        cld_drafter_write_backward(d);
    d->scratch_bytes =
        cld_max(cld_graph_scratch_bytes(q, &d->forward), cld_graph_scratch_bytes(q, &d->backward));
    struct cld_head_loss loss = {.gemm = d->gemm,
                                 .z = &d->zs,
                                 .head = d->head,
                                 .logits = &d->logits,
                                 .d_logits = options->train ? &d->d_logits : NULL,
                                 .dz = options->train ? &d->dzs : NULL};
    d->scratch_bytes = cld_max(d->scratch_bytes, cld_head_loss_scratch_bytes(q, &loss));
    d->scratch_bytes = cld_max(d->scratch_bytes, cld_sum_scratch_bytes(q));
    cld_plan_buffer(plan, &d->scratch, cld_max(d->scratch_bytes, 4), CLD_FOR_TEMPORARY, "scratch");
    return CLD_OK;
}

void cld_drafter_free(struct cld_drafter *d)
{
    if (!d)
        return;
    free(d->layers);
    free(d->params);
    free(d->memory.rows);
    free(d->spans);
    free(d->host_ce);
    free(d->host_hit);
    cld_graph_free(&d->forward);
    cld_graph_free(&d->backward);
    cld_attention_mask_free(&d->mask_full);
    cld_attention_mask_free(&d->mask_sliding);
    memset(d, 0, sizeof *d);
}

struct cld_param *cld_drafter_param(struct cld_drafter *d, const char *name)
{
    for (size_t i = 0; i < d->n_params; i++)
        if (!strcmp(d->params[i].name, name))
            return &d->params[i];
    return NULL;
}
