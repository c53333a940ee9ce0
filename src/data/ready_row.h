/* ready_row.h - a row of ready token ids: its tokens, which of them are learned, and the documents
 * that it holds.
 *
 *   input_ids                       the tokens
 *   loss_mask, completion_mask,     1 at each learned token; labels: the token's id there, -100
 *   assistant_mask(s), labels       elsewhere. One is needed; several must say the same
 *   attention_mask                  0 at padding, at both ends alone, which is taken off; numbers
 *                                   from 1 up are those of documents
 *   position_ids                    start at 0 and go up by one; a document begins at each 0
 *   seq_lens, cu_seqlens,           lengths, borders, beginnings, or each token's number of
 *   seq_start_id, seq_idx, ...      document; several must say the same
 *
 * A row of several documents is several rows. One thread at a time. */
#ifndef CLD_DATA_READY_ROW_H
#define CLD_DATA_READY_ROW_H

#include <stdint.h>

#include "text/row_keys.h"

/* Zero-initialise; reused from row to row. */
struct cld_ready_row {
    int32_t *ids;    /* [n], without padding */
    uint8_t *mask;   /* [n] 1: learned */
    uint8_t *starts; /* [n] 1: a document begins, the first always */
    size_t n, n_documents;
    size_t cap_ids, cap_mask, cap_starts;
};
void cld_ready_row_release(struct cld_ready_row *row);

/* Does a row say with ready ids what is learned? */
bool cld_is_ready_row(const json_t *row);

/* CLD_E_INPUT: the reading says why. */
enum cld_status cld_ready_row_read(const json_t *row, struct cld_ready_row *out,
                                   struct cld_row_reading *r, struct cld_error *err);

#endif
