/* feature_store.h - the target's features on disk, a record a row, in shards that are written aside
 * and renamed (docs/features.md; the format is in docs/formats.md).
 *
 * A row is known by its set (training or held-out) and its id there. Its record holds its tokens,
 * its features and a checksum of both; its shard says what they were made with. Opening a store
 * reads the headers of all shards; a shard that is cut, malformed or of another target is refused
 * then, a record with damaged bytes or another row's tokens when it is read. Nothing doubtful is
 * ever used.
 *
 * A store that grows (hybrid) must not depend on which thread is faster: rows are claimed in the
 * order of the run's micro-batches (batch_schedule.h), each by the first that has it, as long as
 * they fit below the limit. The others find it coming, and wait, or find it here. So which bits a
 * row has, and which rows are kept, follow from the configuration alone.
 *
 * What was put is in memory until its shard is full or _flush is called; a trainer flushes before
 * it writes a checkpoint, so that a resumed run finds what the one that was killed had.
 *
 * Thread: open and close on one; all else any. */
#ifndef CLD_DATA_FEATURE_STORE_H
#define CLD_DATA_FEATURE_STORE_H

#include "config/config.h"
#include "data/batch.h"
#include "data/feature_identity.h"

struct cld_feature_store;

enum cld_feature_place {
    CLD_FEATURES_ABSENT, /* this row is not stored: compute it */
    CLD_FEATURES_MINE,   /* claimed by this micro-batch: compute it and put it */
    CLD_FEATURES_COMING, /* claimed by an earlier one */
    CLD_FEATURES_HERE
};

struct cld_feature_counts {
    size_t n_rows;        /* in the store: here */
    size_t n_bytes;       /* of the store, what is claimed included */
    size_t n_read, n_put; /* by this process */
};

/* Opens cfg's features.dir, in mode hybrid also for writing: makes it, locks it against other
 * writers (CLD_E_USAGE) and removes what dead ones left half written. CLD_E_INPUT: a shard is
 * damaged or of another origin. `id` is copied. */
enum cld_status cld_feature_store_open(const struct cld_config *cfg,
                                       const struct cld_feature_identity *id,
                                       struct cld_feature_store **out, struct cld_error *err);
void cld_feature_store_close(
    struct cld_feature_store *f); /* NULL-safe; drops what is not flushed */

struct cld_feature_counts cld_feature_store_counts(struct cld_feature_store *f);

/* Hybrid, in the order of micro-batches: micro-batch `number` will put the row if it is not stored
 * yet and it fits. Otherwise nothing happens. CLD_E_MEMORY only. */
enum cld_status cld_feature_store_claim(struct cld_feature_store *f, const struct cld_document *d,
                                        size_t number, struct cld_error *err);

/* Where the row is for micro-batch `number`. */
enum cld_feature_place cld_feature_store_find(struct cld_feature_store *f,
                                              const struct cld_document *d, size_t number);

/* A row that is here: features [d->n, n_cols] to `to`. CLD_E_INPUT: damaged, or of other tokens
 * than d's; or not there at all. */
enum cld_status cld_feature_store_read(struct cld_feature_store *f, const struct cld_document *d,
                                       void *to, struct cld_error *err);

/* The rows that micro-batch `number` claimed among its documents, all at once: `features` are those
 * of the documents with anchors, one after the other. May write a shard: CLD_E_IO. */
enum cld_status cld_feature_store_put(struct cld_feature_store *f, const struct cld_document *docs,
                                      size_t n_docs, size_t number, const void *features,
                                      struct cld_error *err);

/* What was put is on the disk. */
enum cld_status cld_feature_store_flush(struct cld_feature_store *f, struct cld_error *err);

#endif
