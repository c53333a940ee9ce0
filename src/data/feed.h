/* feed.h - from a configuration to the documents of each training step and of the held-out set.
 *
 * Which rows a step has, and their anchors, are pure functions of (seed, step): nothing depends on
 * what ran before, so a run resumes at any step. Thread: one thread at a time. */
#ifndef CLD_DATA_FEED_H
#define CLD_DATA_FEED_H

#include "config/config.h"
#include "data/batch.h"
#include "data/dataset.h"
#include "data/feature_store.h"

struct cld_feed;

/* Opens the target's tokenizer: if the mask token is text it must be there; rows of ready ids do
 * without, and a chat row that needs it is refused when it is read. CLD_E_INPUT, also for a
 * data.template that contradicts the target's; CLD_E_USAGE. */
enum cld_status cld_feed_open(const struct cld_config *cfg, struct cld_feed **out,
                              struct cld_error *err);
void cld_feed_close(struct cld_feed *f); /* NULL-safe */

/* drafter.mask_token as an id; CLD_E_USAGE if the tokenizer does not know its text. */
enum cld_status cld_feed_mask_token(const struct cld_feed *f, int64_t *id, struct cld_error *err);

/* data.template, or the one that the target's directory declares. CLD_E_USAGE if neither is known.
 */
enum cld_status cld_feed_chosen_template(const struct cld_config *cfg, enum cld_chat_template *out,
                                         struct cld_error *err);
/* The same, compared with the target's own. CLD_E_INPUT (a warning, with checks.template = no) if
 * the target declares another one: every command that reads or writes chats asks here. */
enum cld_status cld_feed_template(const struct cld_config *cfg, enum cld_chat_template *out,
                                  struct cld_error *err);

/* SHA-256 of tokenizer.json, "" where none was read. */
const char *cld_feed_tokenizer_hash(const struct cld_feed *f);

/* Reads the rows of the training set and of data.heldout (if there is one), or, without `train`, of
 * all buckets; the dataset says on stderr how many were taken and why others were not. Ids must be
 * below `vocab`. CLD_E_INPUT if a set that is asked for has no usable row, or if training and
 * held-out rows are of one file; CLD_E_USAGE if a bucket has no name or file, or the name of
 * another. */
enum cld_status cld_feed_load(struct cld_feed *f, size_t vocab, bool train, struct cld_error *err);

/* Borrowed; NULL where no text is read, and before _load with `train`. */
const struct cld_tokenizer *cld_feed_tokenizer(const struct cld_feed *f);
const struct cld_dataset *cld_feed_train(const struct cld_feed *f);
/* After _load: the template of rows of text, if there are any. */
enum cld_chat_template cld_feed_used_template(const struct cld_feed *f);

size_t cld_feed_n_train(const struct cld_feed *f);

/* Warns of rows, training and held-out, that are longer than the target's max_position_embeddings:
 * its features there are of little worth. After _load. */
void cld_feed_check_positions(const struct cld_feed *f, size_t max_positions);

/* Held-out sets by name: eval.buckets, or else data.heldout alone. The first is the one in use. */
size_t cld_feed_n_buckets(const struct cld_feed *f);
const char *cld_feed_bucket_name(const struct cld_feed *f, size_t i);
void cld_feed_use_bucket(struct cld_feed *f, size_t i);

/* Of the held-out set in use, like the functions below. These two read only: any thread may call
 * them while no bucket is chosen. */
size_t cld_feed_n_heldout(const struct cld_feed *f);
struct cld_row cld_feed_heldout_row(const struct cld_feed *f, size_t i);

/* The documents of optimizer step `step` (from 0), with anchors; `tag` counts rows of the step. The
 * array is the feed's and holds until the next call. */
enum cld_status cld_feed_step(struct cld_feed *f, size_t step, const struct cld_document **docs,
                              size_t *n_docs, struct cld_error *err);

/* Rows that the optimizer steps [first, end) and the evaluations of the run need and `store` has
 * not: how many of how many, and the first of them. After _load with `train`. */
struct cld_missing_rows {
    size_t n, n_needed;
    struct cld_row first;
    bool heldout; /* is `first` one of the held-out set? */
};
enum cld_status cld_feed_missing(struct cld_feed *f, struct cld_feature_store *store, size_t first,
                                 size_t end, struct cld_missing_rows *out, struct cld_error *err);

/* The held-out rows [first, first + n) with an anchor at every position p where p and p + 1 are
 * supervised. As above. */
enum cld_status cld_feed_heldout(struct cld_feed *f, size_t first, size_t n,
                                 const struct cld_document **docs, size_t *n_docs,
                                 struct cld_error *err);

#endif
