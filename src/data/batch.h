/* batch.h - one micro-batch of the drafter on the host: documents and their anchors laid out as
 * context tokens, blocks, draft rows, labels and loss weights.
 *
 * Documents stand one after the other without padding, whatever rows they came from; positions
 * restart in each, and no span crosses a border. Blocks are sorted by (document, anchor). Row o of
 * a block holds the anchor's token (o = 0) or the mask token, and predicts the token at anchor + o;
 * row 0 carries no loss. Anchor-first, it predicts the token at anchor + o + 1, and row 0 has a
 * loss like the others. (DFlash, arXiv 2602.06036; rules in docs/algorithm.md.)
 *
 * Host memory, owned by the batch; one thread at a time. */
#ifndef CLD_DATA_BATCH_H
#define CLD_DATA_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "ops/mask.h"

/* One document and its anchors, borrowed. Anchors ascend, each in [0, n). */
struct cld_document {
    const int32_t *ids;  /* [n] */
    const uint8_t *mask; /* [n], 1: supervised */
    size_t n;
    const int32_t *anchors; /* [n_anchors] */
    size_t n_anchors;
    /* [n_anchors] or NULL: rows [0, prefix) of that block hold the text and have no loss, as if so
     * much of a block had been accepted (variable-prefix). Each at least 1; NULL: 1 in all. */
    const int32_t *prefixes;
    size_t tag;   /* the caller's: which row it came from */
    uint64_t row; /* its id in the training or held-out set; for those who keep features */
    bool heldout;
};

struct cld_batch_rules {
    size_t block_size;
    int32_t mask_token;
    double gamma;      /* weight of the k-th row with a loss, from 0: exp(-k / gamma); 0: 1 */
    bool stop_at_gap;  /* a block's weights end at its first unsupervised row */
    bool anchor_first; /* labels are shifted by one; documents have no prefixes then */
};

/* Rows of a block that predict, and the first of them. */
static inline size_t cld_rules_first(const struct cld_batch_rules *r)
{
    return r->anchor_first ? 0 : 1;
}
static inline size_t cld_rules_drafted(const struct cld_batch_rules *r)
{
    return r->block_size - cld_rules_first(r);
}

struct cld_batch {
    size_t n_ctx, n_blocks, block_size, n_draft, n_supervised;
    bool anchor_first;
    int32_t *ctx_ids;         /* [n_ctx] */
    int32_t *ctx_doc;         /* [n_ctx] index of the first token of the document */
    int32_t *positions;       /* [n_ctx + n_draft] of context tokens, then of draft rows */
    struct cld_block *blocks; /* [n_blocks] */
    size_t *block_tag;        /* [n_blocks] the document's tag */
    int32_t *draft_ids;       /* [n_draft] */
    int32_t *labels;          /* [n_supervised] of the supervised rows, in order */
    float *weights;           /* [n_supervised] mask * decay, not normalised */
    int32_t *rows;            /* [n_supervised] their draft rows */
    int32_t *before;          /* [n_supervised] the context token before each label */
    int32_t *place;           /* [n_draft] index into the supervised rows, or -1 */
    double sum_weight;        /* sum of weights */
    size_t cap_ctx, cap_blocks, cap_draft;
};

void cld_batch_free(struct cld_batch *b); /* frees what it holds and zeroes it; NULL-safe */

/* Lays out the documents [0, n_docs); memory is reused from call to call. Documents without anchors
 * are left out unless `keep_context`. CLD_E_MEMORY only. */
enum cld_status cld_batch_build(struct cld_batch *b, const struct cld_document *docs, size_t n_docs,
                                const struct cld_batch_rules *rules, bool keep_context,
                                struct cld_error *err);

/* The next block of a text that is decoded: ids [n + 1]; the first n_cached were context before.
 * Context are tokens [n_cached, n), the block's anchor is token n; no labels. CLD_E_MEMORY only. */
enum cld_status cld_batch_continue(struct cld_batch *b, const int32_t *ids, size_t n_cached,
                                   size_t n, const struct cld_batch_rules *rules,
                                   struct cld_error *err);

/* A made-up batch for warm-ups and benchmarks: n_docs documents of `length` tokens, all supervised,
 * each with n_anchors anchors (at most `length`) evenly apart. CLD_E_MEMORY only. */
enum cld_status cld_batch_make_up(struct cld_batch *b, size_t n_docs, size_t length,
                                  size_t n_anchors, const struct cld_batch_rules *rules,
                                  struct cld_error *err);

/* Number of supervised rows and the sum of weights that these documents will have, without laying
 * them out: the global batch is normalised before its first micro-batch runs. */
void cld_batch_count(const struct cld_document *docs, size_t n_docs,
                     const struct cld_batch_rules *rules, size_t *n_supervised, double *sum_weight);

/* Cuts documents into passes that fit a plan: as many documents as `n_ctx` tokens, `n_blocks`
 * blocks and `n_tags` different tags allow, in order; a document with more anchors than fit
 * appears in several passes. Zero-initialise at[], then call until it gives 0
 * documents. */
struct cld_cutter {
    const struct cld_document *docs;
    size_t n_docs, n_ctx, n_blocks, n_tags;
    size_t at, anchor; /* next document, and its next anchor */
};
/* Writes the next pass to out, which holds n_docs, and returns how many documents it has. A
 * document longer than n_ctx ends the passes early; the caller's plan rules it out. */
size_t cld_cut(struct cld_cutter *c, struct cld_document *out);

/* Loss, accuracy and accepted length, added up over micro-batches in a fixed order. */
struct cld_score {
    double loss; /* sum of weight * CE */
    double sum_weight;
    size_t n_supervised, n_hits;
    size_t n_blocks; /* with at least one supervised row */
    double accepted; /* sum over blocks of supervised rows before the first supervised miss */
    size_t position_hits[64], position_n[64]; /* by the label's distance from the anchor */
};
/* From the cross-entropy [n_supervised] and hits [n_supervised] of a batch. */
void cld_score_add(struct cld_score *s, const struct cld_batch *b, const float *ce,
                   const int32_t *hit);
void cld_score_merge(struct cld_score *into, const struct cld_score *from);
double cld_score_loss(const struct cld_score *s); /* 0 where nothing is supervised */
double cld_score_accuracy(const struct cld_score *s);
double cld_score_accepted(const struct cld_score *s); /* drafted tokens, no bonus */

#endif
