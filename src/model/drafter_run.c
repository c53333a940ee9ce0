/* drafter_run.c - one micro-batch of a drafter: forward, loss, backward.
 */
#include "model/drafter.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "ops/op_objective.h"
#include "ops/ops.h"
#include "ops/tensor_io.h"

enum cld_status cld_drafter_prepare(struct cld_drafter *d, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_draft = cld_mul(d->limits.n_blocks, d->config.block_size);
    d->spans = calloc(n_draft, sizeof *d->spans);
    d->host_ce = calloc(n_draft, sizeof *d->host_ce);
    d->host_hit = calloc(n_draft, sizeof *d->host_hit);
    if (!d->spans || !d->host_ce || !d->host_hit)
        return cld_fail_memory(err, "%zu draft rows", n_draft);
    struct cld_rope rope = {.type = CLD_ROPE_DEFAULT, .theta = d->config.rope_theta};
    float *table = malloc(cld_tensor_bytes(&d->rope));
    if (!table)
        return cld_fail_memory(err, "a rotary table of %zu positions", d->rope.n_rows);
    cld_rope_table(&rope, d->config.head_dim, d->rope.n_rows, table);
    s = cld_buf_write(d->rope.buf, 0, table, cld_tensor_bytes(&d->rope), err);
    free(table);
    return s;
}

static struct cld_graph_run run_of(struct cld_drafter *d)
{
    return (struct cld_graph_run){d->q,    d->extents,  d->scratch,
                                  d->gemm, &d->visited, d->grads_are_old};
}

static enum cld_status set_mask(struct cld_drafter *d, const struct cld_batch *b, size_t window,
                                struct cld_attention_mask *mask, struct cld_error *err)
{
    size_t n_ctx = d->n_cached + b->n_ctx;
    cld_mask_draft(b->blocks, b->n_blocks, b->block_size, n_ctx, window, d->config.sliding_causal,
                   d->spans);
    return cld_attention_mask_set(d->q, &d->attention, d->spans, b->n_draft, n_ctx + b->n_draft,
                                  mask, err);
}

static enum cld_status upload_batch(struct cld_drafter *d, const struct cld_batch *b,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const size_t w = sizeof(int32_t);
    if (b->n_ctx > d->limits.n_ctx || b->n_blocks > d->limits.n_blocks)
        return cld_fail(err, CLD_E_INTERNAL, "",
                        "a micro-batch of %zu tokens and %zu blocks passes the plan's %zu and %zu",
                        b->n_ctx, b->n_blocks, d->limits.n_ctx, d->limits.n_blocks);
    if (d->n_cached && d->n_cached + b->n_ctx > d->limits.n_cached)
        return cld_fail(err, CLD_E_INTERNAL, "", "%zu tokens pass the KV cache of %zu",
                        d->n_cached + b->n_ctx, d->limits.n_cached);
    for (size_t i = 0; i < b->n_ctx + b->n_draft; i++)
        if ((size_t)b->positions[i] >= d->rope.n_rows)
            return cld_fail(err, CLD_E_INTERNAL, "", "position %d passes the rotary table of %zu",
                            (int)b->positions[i], d->rope.n_rows);
    d->extents = (struct cld_extents){b->n_ctx, b->n_draft, d->n_cached};
    if ((s = cld_buf_write(d->positions.buf, 0, b->positions, (b->n_ctx + b->n_draft) * w, err)) ||
        (s = cld_buf_write(d->draft_ids.buf, 0, b->draft_ids, b->n_draft * w, err)) ||
        (s = cld_buf_write(d->sup_rows.buf, 0, b->rows, b->n_supervised * w, err)) ||
        (s = cld_buf_write(d->place.buf, 0, b->place, b->n_draft * w, err)) ||
        (s = cld_buf_write(d->labels.buf, 0, b->labels, b->n_supervised * w, err)) ||
        (s = set_mask(d, b, 0, &d->mask_full, err)))
        return s;
    return d->config.sliding_window
               ? set_mask(d, b, d->config.sliding_window, &d->mask_sliding, err)
               : CLD_OK;
}

/* Tiles that the attention of one pass over all layers must visit; see cld_drafter_check_tiles. */
static uint64_t tiles_of_pass(const struct cld_drafter *d)
{
    uint64_t n = 0;
    for (size_t i = 0; i < d->config.n_layers; i++)
        n += (d->config.sliding[i] ? &d->mask_sliding : &d->mask_full)->tiles.n_listed;
    return n;
}

static void expect_forward_tiles(struct cld_drafter *d)
{
    d->tiles_expected[0] += tiles_of_pass(d);
}

static void expect_backward_tiles(struct cld_drafter *d)
{
    uint64_t n = tiles_of_pass(d);
    d->tiles_expected[1] += n;
    d->tiles_expected[2] += n;
    if (d->options.recompute)
        d->tiles_expected[0] += n;
}

/* Halves of layers run as their weights come. */
static enum cld_status forward_with_arrivals(struct cld_drafter *d, const struct cld_graph_run *run,
                                             struct cld_error *err)
{
    size_t n_layers = d->config.n_layers, done = d->layers[0].fwd_first;
    enum cld_status s = cld_graph_run(&d->forward, 0, done, run, err);
    for (size_t part = 2 * n_layers; part-- > 0 && !s;) {
        const struct cld_drafter_layer *l = &d->layers[n_layers - 1 - part / 2];
        size_t end = part % 2 ? l->fwd_mlp : l->fwd_first + l->fwd_n;
        if (!(s = d->on_weights(d->hook_arg, part * CLD_PART_BUCKETS, err)))
            s = cld_graph_run(&d->forward, done, end - done, run, err);
        done = end;
    }
    return s ? s : cld_graph_run(&d->forward, done, d->forward.n - done, run, err);
}

enum cld_status cld_drafter_forward(struct cld_drafter *d, const struct cld_batch *b,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    /* Before the batch is uploaded, which waits for all kernels. */
    if (d->on_weights && b->n_draft &&
        (s = d->on_weights(d->hook_arg, 2 * d->config.n_layers * CLD_PART_BUCKETS, err)))
        return s;
    s = upload_batch(d, b, err);
    if (s || !b->n_draft)
        return s;
    struct cld_graph_run run = run_of(d);
    expect_forward_tiles(d);
    return d->on_weights ? forward_with_arrivals(d, &run, err)
                         : cld_graph_run(&d->forward, 0, d->forward.n, &run, err);
}

enum cld_status cld_drafter_logits(struct cld_drafter *d, size_t first, size_t n,
                                   struct cld_error *err)
{
    struct cld_tensor z = cld_tensor_rows(&d->z, first, n);
    struct cld_tensor logits = cld_tensor_rows(&d->logits, 0, n);
    struct cld_head_loss head = {.gemm = d->gemm, .head = d->head};
    return cld_head_logits(d->q, &head, &z, &logits, d->scratch, err);
}

/* The gradient of an objective other than cross-entropy; `plain` has the remaining arguments. */
static enum cld_status other_loss(struct cld_drafter *d, const struct cld_batch *b,
                                  const struct cld_head_loss *plain, double inv_sum_weight,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_drafter_objective *o = &d->options.objective;
    size_t n = b->n_supervised;
    if (o->soft) {
        const struct cld_soft_loss soft = {.head = *plain,
                                           .state = &d->state,
                                           .norm = o->norm,
                                           .norm_eps = (float)d->config.rms_norm_eps,
                                           .before = &d->before,
                                           .rows = &d->state_rows,
                                           .normed = &d->state_normed,
                                           .targets = &d->target_logits,
                                           .sums = &d->soft_sums,
                                           .share = o->soft_share,
                                           .temperature = o->soft_temperature};
        s = cld_buf_write(d->before.buf, 0, b->before, n * sizeof *b->before, err);
        return s ? s : cld_soft_loss(d->q, &soft, d->scratch, err);
    }
    /* A row's weight depends on the losses of its whole block: all of them first. */
    struct cld_head_loss losses = *plain;
    losses.d_logits = losses.dz = NULL;
    struct cld_tensor place = cld_tensor_cols(&d->place, 0, b->n_draft);
    struct cld_tensor ce = cld_tensor_cols(&d->ce, 0, n);
    struct cld_tensor weights = cld_tensor_cols(&d->weights_row, 0, n);
    if ((s = cld_head_loss(d->q, &losses, d->scratch, err)) ||
        (s = cld_dpace_weights(d->q, &place, &ce, b->block_size, o->dpace_alpha,
                               (float)inv_sum_weight, &weights, err)))
        return s;
    return cld_head_loss(d->q, plain, d->scratch, err);
}

enum cld_status cld_drafter_loss(struct cld_drafter *d, const struct cld_batch *b,
                                 double inv_sum_weight, enum cld_drafter_loss_kind kind,
                                 struct cld_score *score, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = b->n_supervised;
    bool gradient = kind == CLD_LOSS_GRADIENT;
    bool other = gradient && (d->options.objective.dpace || d->options.objective.soft);
    if (!b->n_draft)
        return CLD_OK;
    /* host_ce is free until the results come back. */
    for (size_t i = 0; i < n; i++)
        d->host_ce[i] = (float)((double)b->weights[i] * inv_sum_weight);
    if ((s = cld_buf_write(d->weights_row.buf, 0, d->host_ce, n * sizeof(float), err)))
        return s;
    struct cld_tensor zs = cld_tensor_rows(&d->zs, 0, n);
    struct cld_tensor rows = cld_tensor_cols(&d->sup_rows, 0, n);
    struct cld_tensor z = cld_tensor_rows(&d->z, 0, b->n_draft);
    struct cld_head_loss loss = {.gemm = d->gemm,
                                 .z = &zs,
                                 .head = d->head,
                                 .logits = &d->logits,
                                 .labels = &d->labels,
                                 .weights = &d->weights_row,
                                 .loss = &d->ce,
                                 .hit = &d->hit,
                                 .d_logits = gradient ? &d->d_logits : NULL,
                                 .dz = gradient ? &d->dzs : NULL};
    if ((s = cld_gather_rows(d->q, &z, &rows, &zs, err)) ||
        (s = other ? other_loss(d, b, &loss, inv_sum_weight, err)
                   : cld_head_loss(d->q, &loss, d->scratch, err)) ||
        (s = cld_buf_read(d->ce.buf, 0, d->host_ce, n * sizeof(float), err)) ||
        (s = cld_buf_read(d->hit.buf, 0, d->host_hit, n * sizeof(int32_t), err)))
        return s;
    cld_score_add(score, b, d->host_ce, d->host_hit);
    return CLD_OK;
}

/* --- backward ----------------------------------------------------------------------------------
 */

/* The first n_parts are final. */
static enum cld_status report_part(struct cld_drafter *d, size_t n_parts, struct cld_error *err)
{
    return d->on_gradients ? d->on_gradients(d->hook_arg, n_parts * CLD_PART_BUCKETS, err) : CLD_OK;
}

enum cld_status cld_drafter_backward(struct cld_drafter *d, const struct cld_batch *b,
                                     struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (!b->n_draft)
        return CLD_OK;
    struct cld_graph_run run = run_of(d);
    struct cld_tensor dzs = cld_tensor_rows(&d->dzs, 0, b->n_supervised);
    struct cld_tensor place = cld_tensor_cols(&d->place, 0, b->n_draft);
    struct cld_tensor dz = cld_tensor_rows(&d->dz, 0, b->n_draft);
    expect_backward_tiles(d);
    if ((s = cld_gather_rows(d->q, &dzs, &place, &dz, err)) ||
        (s = cld_graph_run(&d->backward, 0, d->tail_first, &run, err)))
        return s;
    for (size_t i = d->config.n_layers; i-- > 0;) {
        const struct cld_drafter_layer *l = &d->layers[i];
        /* The first-run layer's tensors are shared: fill them again for this one. */
        if (d->options.recompute &&
            (s = cld_graph_run(&d->forward, l->fwd_first, l->fwd_n - 1, &run, err)))
            return s;
        size_t n_parts = 2 * (d->config.n_layers - i), n_mlp = l->back_attention - l->back_first;
        if ((s = cld_graph_run(&d->backward, l->back_first, n_mlp, &run, err)) ||
            (s = report_part(d, n_parts - 1, err)) ||
            (s = cld_graph_run(&d->backward, l->back_attention, l->back_n - n_mlp, &run, err)) ||
            (s = report_part(d, n_parts, err)))
            return s;
    }
    size_t done = d->layers[0].back_first + d->layers[0].back_n;
    d->grads_are_old = false;
    s = cld_graph_run(&d->backward, done, d->backward.n - done, &run, err);
    return s ? s : report_part(d, 2 * d->config.n_layers + 2, err);
}

enum cld_status cld_drafter_check_tiles(struct cld_drafter *d, struct cld_error *err)
{
    static const char *const passes[3] = {"forward", "dQ", "dK/dV"};
    int32_t seen[4] = {0};
    enum cld_status s = cld_buf_read(d->visited.buf, 0, seen, sizeof seen, err);
    if (s)
        return s;
    for (int i = 0; i < 3; i++)
        /* The device counts in 32 bits and may wrap; so does the comparison. */
        if ((uint32_t)seen[i] != (uint32_t)d->tiles_expected[i])
            return cld_fail(err, CLD_E_NUMERIC, "the attention kernel skipped or repeated work",
                            "%s: the %s pass of attention visited %u tiles, the anchors say %u",
                            cld_queue_name(d->q), passes[i], (uint32_t)seen[i],
                            (uint32_t)d->tiles_expected[i]);
    memset(d->tiles_expected, 0, sizeof d->tiles_expected);
    return cld_buf_fill(d->visited.buf, 0, cld_buf_bytes(d->visited.buf), 0, err);
}
