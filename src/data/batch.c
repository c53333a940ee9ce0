#include "data/batch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

void cld_batch_free(struct cld_batch *b)
{
    if (!b)
        return;
    free(b->ctx_ids);
    free(b->ctx_doc);
    free(b->positions);
    free(b->blocks);
    free(b->block_tag);
    free(b->draft_ids);
    free(b->labels);
    free(b->weights);
    free(b->rows);
    free(b->before);
    free(b->place);
    memset(b, 0, sizeof *b);
}

static bool grow(void *slot, size_t n, size_t elem_bytes)
{
    void *old, *now;
    memcpy(&old, slot, sizeof old);
    now = realloc(old, cld_max(1, cld_mul(n, elem_bytes)));
    if (now)
        memcpy(slot, &now, sizeof now);
    return now != NULL;
}

static bool reserve(struct cld_batch *b, size_t n_ctx, size_t n_blocks, size_t n_draft)
{
    if (n_ctx > b->cap_ctx || n_draft > b->cap_draft) {
        n_ctx = cld_max(n_ctx, b->cap_ctx);
        n_draft = cld_max(n_draft, b->cap_draft);
        if (!grow(&b->positions, cld_add(n_ctx, n_draft), sizeof *b->positions))
            return false;
    }
    if (n_ctx > b->cap_ctx || !b->ctx_ids) {
        if (!grow(&b->ctx_ids, n_ctx, sizeof *b->ctx_ids) ||
            !grow(&b->ctx_doc, n_ctx, sizeof *b->ctx_doc))
            return false;
        b->cap_ctx = n_ctx;
    }
    if (n_blocks > b->cap_blocks || !b->blocks) {
        if (!grow(&b->blocks, n_blocks, sizeof *b->blocks) ||
            !grow(&b->block_tag, n_blocks, sizeof *b->block_tag))
            return false;
        b->cap_blocks = n_blocks;
    }
    if (n_draft > b->cap_draft || !b->draft_ids) {
        if (!grow(&b->draft_ids, n_draft, sizeof *b->draft_ids) ||
            !grow(&b->labels, n_draft, sizeof *b->labels) ||
            !grow(&b->weights, n_draft, sizeof *b->weights) ||
            !grow(&b->rows, n_draft, sizeof *b->rows) ||
            !grow(&b->before, n_draft, sizeof *b->before) ||
            !grow(&b->place, n_draft, sizeof *b->place))
            return false;
        b->cap_draft = n_draft;
    }
    return true;
}

/* The first row of a document's j-th block that has a loss. */
static size_t first_row(const struct cld_document *d, size_t j, const struct cld_batch_rules *rules)
{
    return d->prefixes ? (size_t)d->prefixes[j] : cld_rules_first(rules);
}

/* Weight of the row at this offset of a block whose losses begin at `first`, were it supervised. */
static double decay(const struct cld_batch_rules *rules, size_t first, size_t offset)
{
    return rules->gamma > 0 ? exp(-(double)(offset - first) / rules->gamma) : 1.0;
}

/* Where in the document the label of a row stands. */
static size_t label_at(const struct cld_batch_rules *rules, size_t anchor, size_t offset)
{
    return anchor + offset + rules->anchor_first;
}

/* Is the row at `offset` of the block at `anchor` supervised? `*open` carries stop_at_gap. */
static bool supervised(const struct cld_document *d, size_t anchor, size_t first, size_t offset,
                       const struct cld_batch_rules *rules, bool *open)
{
    size_t at = label_at(rules, anchor, offset);
    bool yes = offset >= first && at < d->n && d->mask[at] && *open;
    if (offset >= first && !yes && rules->stop_at_gap)
        *open = false;
    return yes;
}

static void lay_block(struct cld_batch *b, const struct cld_document *d, size_t doc, size_t j,
                      const struct cld_batch_rules *rules)
{
    bool open = true;
    size_t anchor = (size_t)d->anchors[j], first = first_row(d, j, rules);
    size_t row = b->n_blocks * rules->block_size;
    b->blocks[b->n_blocks] = (struct cld_block){(int32_t)doc, (int32_t)(doc + anchor)};
    b->block_tag[b->n_blocks++] = d->tag;
    for (size_t o = 0; o < rules->block_size; o++, row++) {
        bool seen = !o || (d->prefixes && o < first);
        b->draft_ids[row] = seen ? d->ids[anchor + o] : rules->mask_token;
        b->place[row] = -1;
        if (!supervised(d, anchor, first, o, rules, &open))
            continue;
        double w = decay(rules, first, o);
        size_t label = label_at(rules, anchor, o);
        b->place[row] = (int32_t)b->n_supervised;
        b->rows[b->n_supervised] = (int32_t)row;
        b->labels[b->n_supervised] = d->ids[label];
        b->before[b->n_supervised] = (int32_t)(doc + label - 1);
        b->weights[b->n_supervised++] = (float)w;
        b->sum_weight += w;
    }
}

enum cld_status cld_batch_continue(struct cld_batch *b, const int32_t *ids, size_t n_cached,
                                   size_t n, const struct cld_batch_rules *rules,
                                   struct cld_error *err)
{
    size_t n_ctx = n - n_cached, n_rows = rules->block_size;
    if (!reserve(b, n_ctx, 1, n_rows))
        return cld_fail_memory(err, "%zu tokens and a block", n_ctx);
    b->n_ctx = n_ctx;
    b->n_blocks = 1;
    b->block_size = b->n_draft = n_rows;
    b->anchor_first = rules->anchor_first;
    b->n_supervised = 0;
    b->sum_weight = 0;
    b->blocks[0] = (struct cld_block){0, (int32_t)n};
    b->block_tag[0] = 0;
    for (size_t i = 0; i < n_ctx; i++) {
        b->ctx_ids[i] = ids[n_cached + i];
        b->ctx_doc[i] = 0;
    }
    for (size_t i = 0; i < n_ctx + n_rows; i++)
        b->positions[i] = (int32_t)(n_cached + i);
    for (size_t o = 0; o < n_rows; o++) {
        b->draft_ids[o] = o ? rules->mask_token : ids[n];
        b->place[o] = -1;
    }
    return CLD_OK;
}

enum cld_status cld_batch_build(struct cld_batch *b, const struct cld_document *docs, size_t n_docs,
                                const struct cld_batch_rules *rules, bool keep_context,
                                struct cld_error *err)
{
    size_t n_ctx = 0, n_blocks = 0;
    for (size_t i = 0; i < n_docs; i++)
        if (docs[i].n_anchors || keep_context) {
            n_ctx += docs[i].n;
            n_blocks += docs[i].n_anchors;
        }
    if (!reserve(b, n_ctx, n_blocks, cld_mul(n_blocks, rules->block_size)))
        return cld_fail(err, CLD_E_MEMORY, "use smaller micro-batches",
                        "no host memory for a micro-batch of %zu tokens and %zu blocks", n_ctx,
                        n_blocks);
    b->block_size = rules->block_size;
    b->anchor_first = rules->anchor_first;
    b->n_ctx = b->n_blocks = b->n_supervised = 0;
    b->sum_weight = 0;
    for (size_t i = 0; i < n_docs; i++) {
        const struct cld_document *d = &docs[i];
        size_t doc = b->n_ctx;
        if (!d->n_anchors && !keep_context)
            continue;
        for (size_t p = 0; p < d->n; p++) {
            b->ctx_ids[b->n_ctx] = d->ids[p];
            b->ctx_doc[b->n_ctx] = (int32_t)doc;
            b->positions[b->n_ctx++] = (int32_t)p;
        }
        for (size_t j = 0; j < d->n_anchors; j++)
            lay_block(b, d, doc, j, rules);
    }
    b->n_draft = b->n_blocks * rules->block_size;
    for (size_t r = 0; r < b->n_draft; r++) {
        const struct cld_block *k = &b->blocks[r / rules->block_size];
        b->positions[b->n_ctx + r] = k->anchor - k->doc + (int32_t)(r % rules->block_size);
    }
    return CLD_OK;
}

enum cld_status cld_batch_make_up(struct cld_batch *b, size_t n_docs, size_t length,
                                  size_t n_anchors, const struct cld_batch_rules *rules,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int32_t *ids = calloc(length, sizeof *ids), *anchors = calloc(n_anchors + 1, sizeof *anchors);
    uint8_t *mask = malloc(length);
    struct cld_document *docs = calloc(n_docs, sizeof *docs);
    if (!ids || !anchors || !mask || !docs) {
        s = cld_fail_memory(err, "a batch of %zu x %zu tokens", n_docs, length);
        goto done;
    }
    memset(mask, 1, length);
    for (size_t i = 0; i < n_anchors; i++)
        anchors[i] = (int32_t)(i * length / n_anchors);
    for (size_t i = 0; i < n_docs; i++)
        docs[i] = (struct cld_document){.ids = ids,
                                        .mask = mask,
                                        .n = length,
                                        .anchors = anchors,
                                        .n_anchors = n_anchors,
                                        .tag = i,
                                        .row = i};
    s = cld_batch_build(b, docs, n_docs, rules, true, err);
done:
    free(ids);
    free(anchors);
    free(mask);
    free(docs);
    return s;
}

void cld_batch_count(const struct cld_document *docs, size_t n_docs,
                     const struct cld_batch_rules *rules, size_t *n_supervised, double *sum_weight)
{
    *n_supervised = 0;
    *sum_weight = 0;
    for (size_t i = 0; i < n_docs; i++)
        for (size_t j = 0; j < docs[i].n_anchors; j++) {
            bool open = true;
            size_t first = first_row(&docs[i], j, rules);
            for (size_t o = first; o < rules->block_size; o++)
                if (supervised(&docs[i], (size_t)docs[i].anchors[j], first, o, rules, &open)) {
                    ++*n_supervised;
                    *sum_weight += decay(rules, first, o);
                }
        }
}

size_t cld_cut(struct cld_cutter *c, struct cld_document *out)
{
    size_t n = 0, tokens = 0, blocks = 0, tags = 0;
    for (; c->at < c->n_docs; c->at++, c->anchor = 0) {
        struct cld_document d = c->docs[c->at];
        bool new_tag = n == 0 || out[n - 1].tag != d.tag;
        if (tokens + d.n > c->n_ctx || tags + new_tag > c->n_tags || blocks == c->n_blocks)
            break;
        d.anchors += c->anchor;
        if (d.prefixes)
            d.prefixes += c->anchor;
        d.n_anchors = cld_min(d.n_anchors - c->anchor, c->n_blocks - blocks);
        tokens += d.n;
        blocks += d.n_anchors;
        tags += new_tag;
        out[n++] = d;
        if (c->anchor + d.n_anchors < c->docs[c->at].n_anchors) {
            c->anchor += d.n_anchors;
            break;
        }
    }
    return n;
}

void cld_score_add(struct cld_score *s, const struct cld_batch *b, const float *ce,
                   const int32_t *hit)
{
    s->sum_weight += b->sum_weight;
    s->n_supervised += b->n_supervised;
    for (size_t i = 0; i < b->n_supervised; i++) {
        size_t offset = (size_t)b->rows[i] % b->block_size + b->anchor_first;
        s->loss += (double)b->weights[i] * (double)ce[i];
        s->n_hits += hit[i] != 0;
        s->position_n[offset]++;
        s->position_hits[offset] += hit[i] != 0;
    }
    /* An unsupervised row neither counts nor stops. */
    for (size_t k = 0; k < b->n_blocks; k++) {
        bool any = false, open = true;
        for (size_t r = k * b->block_size; r < (k + 1) * b->block_size; r++) {
            if (b->place[r] < 0)
                continue;
            any = true;
            open = open && hit[b->place[r]];
            s->accepted += open;
        }
        s->n_blocks += any;
    }
}

void cld_score_merge(struct cld_score *into, const struct cld_score *from)
{
    into->loss += from->loss;
    into->sum_weight += from->sum_weight;
    into->n_supervised += from->n_supervised;
    into->n_hits += from->n_hits;
    into->n_blocks += from->n_blocks;
    into->accepted += from->accepted;
    for (int i = 0; i < 64; i++) {
        into->position_hits[i] += from->position_hits[i];
        into->position_n[i] += from->position_n[i];
    }
}

double cld_score_loss(const struct cld_score *s)
{
    return s->sum_weight > 0 ? s->loss / s->sum_weight : 0;
}

double cld_score_accuracy(const struct cld_score *s)
{
    return s->n_supervised ? (double)s->n_hits / (double)s->n_supervised : 0;
}

double cld_score_accepted(const struct cld_score *s)
{
    return s->n_blocks ? s->accepted / (double)s->n_blocks : 0;
}
