/* sampler.h - which documents make up the row at a position of training, and where anchors lie.
 *
 * Everything is a pure function of (seed, epoch, row id): a run resumes from its position alone,
 * and nothing depends on which thread is faster. An epoch is every row of the dataset once, in
 * an order of its own.
 *
 * A cld_sampler only remembers the packing of one epoch to be quick; it belongs to one thread,
 * and the dataset must outlive it. The other functions are pure. */
#ifndef CLD_DATA_SAMPLER_H
#define CLD_DATA_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "data/dataset.h"

/* Where rows 0..n-1 go in this epoch: a permutation, i < n. */
uint64_t cld_sample_order(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i);

/* Anchors of a document: uniform without replacement over the positions p where p and p + 1 are
 * supervised, at most max_anchors, ascending, as offsets within the document. SIZE_MAX takes
 * every such position (the held-out evaluation). `out` holds min(max_anchors, n). Returns
 * how many. */
size_t cld_sample_anchors(uint64_t seed, uint64_t epoch, uint64_t row_id, const uint8_t *loss_mask,
                          size_t n, size_t max_anchors, int32_t *out);

/* The prefix of the block at an anchor of a document of n tokens (variable-prefix): of the lengths
 * from 2 to block_size - 1, length l with a probability in proportion to 0.9^l. No longer than the
 * tokens after the anchor, so that a row with a label stays; 1 where there is only one. */
int32_t cld_sample_prefix(uint64_t seed, uint64_t epoch, uint64_t row_id, size_t anchor, size_t n,
                          size_t block_size);

struct cld_sampler;

/* pack_length 0: a training row is one row of the dataset. Otherwise a training row takes several
 * rows as documents, at most pack_length tokens: greedy first-fit in the epoch's order.
 * CLD_E_USAGE if pack_length is less than the longest row. */
enum cld_status cld_sampler_new(const struct cld_dataset *data, uint64_t seed, size_t pack_length,
                                struct cld_sampler **out, struct cld_error *err);
void cld_sampler_free(struct cld_sampler *s);

/* One training row. */
struct cld_sample {
    uint64_t epoch;
    const size_t *rows; /* [n_rows] of the dataset; borrowed until the sampler's next use */
    size_t n_rows, n_tokens;
};

/* The training row at `position`, counted from the start of training over all epochs. Positions
 * may be asked for in any order; going back to an earlier epoch of packed rows starts from epoch
 * 0 again. */
enum cld_status cld_sampler_at(struct cld_sampler *s, uint64_t position, struct cld_sample *out,
                               struct cld_error *err);

#endif
