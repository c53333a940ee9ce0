/* mask.h - visibility: spans of keys a query row sees, and the tile lists made from them.
 *
 * Context tokens of a micro-batch stand one after the other, whatever row or document they come
 * from (documents never see each other), and the rows of the drafter's blocks follow them. So
 * key index k < n_ctx is context token k, and key n_ctx + r is draft row r. A query row sees two
 * ranges of keys and nothing else:
 *     [lo, hi)          context: its own document before the anchor (and inside the window)
 *     [own_lo, own_hi)  its own block (up to itself where a sliding layer is causal)
 * The target's causal attention is the same with an empty second range. Host memory, pure
 * functions: any thread. */
#ifndef CLD_OPS_MASK_H
#define CLD_OPS_MASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct cld_span {
    int32_t lo, hi, own_lo, own_hi;
};

/* A block of the drafter: key index of the first token of its document and of its anchor. A
 * negative anchor makes a padding block: its rows see nothing. */
struct cld_block {
    int32_t doc, anchor;
};

/* Spans of the rows of n_blocks blocks of block_size rows; row r = block r / block_size, offset
 * r % block_size. window 0: a full layer. `causal` concerns sliding layers only (research rule:
 * context >= anchor + offset - (window - 1); own offsets <= offset). spans holds n_blocks *
 * block_size entries. */
void cld_mask_draft(const struct cld_block *blocks, size_t n_blocks, size_t block_size,
                    size_t n_ctx, size_t window, bool causal, struct cld_span *spans);

/* Causal spans of n tokens; doc[i] is the index of the first token of token i's document. */
void cld_mask_causal(const int32_t *doc, size_t n, struct cld_span *spans);

/* Tile lists in both directions, in compressed rows: query tile t visits key tiles
 * fwd[fwd_ptr[t]] .. fwd[fwd_ptr[t + 1] - 1], ascending; key tile t is visited by query tiles
 * bwd[bwd_ptr[t]] ... A tile is listed only if some row of the one sees some key of the other. An
 * entry is tile * 2 + full, where full means that every row (of those that exist) sees every key of
 * the tile, and that the tile has k_tile keys: a short last tile of keys is never full. */
struct cld_tiles {
    size_t q_tile, k_tile; /* rows and keys of a tile */
    size_t n_q_tiles, n_k_tiles, n_listed;
    int32_t *fwd_ptr, *fwd, *bwd_ptr, *bwd;
};

/* Upper bound of n_listed for planning: every query tile with every key tile. */
size_t cld_tiles_max(size_t n_q, size_t n_keys, size_t q_tile, size_t k_tile);

/* Fills *out (zeroed before its first use, freed by cld_tiles_free; a previous content's memory is
 * reused). n_q and n_keys may be 0. CLD_E_INTERNAL where a span passes n_keys. */
enum cld_status cld_tiles_build(const struct cld_span *spans, size_t n_q, size_t n_keys,
                                size_t q_tile, size_t k_tile, struct cld_tiles *out,
                                struct cld_error *err);
void cld_tiles_free(struct cld_tiles *t);

#endif
