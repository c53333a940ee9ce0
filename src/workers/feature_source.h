/* feature_source.h - features of a micro-batch in runs that store them: from the store on disk, the
 * target, or both.
 *
 * Thread: the owner of the worker. */
#ifndef CLD_WORKERS_FEATURE_SOURCE_H
#define CLD_WORKERS_FEATURE_SOURCE_H

#include "base/sync.h"
#include "data/feature_store.h"
#include "workers/batch_schedule.h"
#include "workers/worker.h"

/* Features [b->n_ctx, K*H] of the item's documents, laid out in `b`, to host memory `to`. With
 * a store that grows, rows that it has or that an earlier item adds are read from it; the worker's
 * target computes the others, and those that this item claimed are stored. A reader reads all from
 * the store. CLD_E_INTERRUPTED: the run stops. */
enum cld_status cld_features_fill(struct cld_feature_store *f, struct cld_sync *sync,
                                  struct cld_worker *w, const struct cld_item *it,
                                  const struct cld_batch *b, void *to, struct cld_error *err);

/* The same from the store alone, without waiting. */
enum cld_status cld_features_read(struct cld_feature_store *f, const struct cld_worker *w,
                                  const struct cld_item *it, void *to, struct cld_error *err);

/* Where the features of a configuration come from, for logs: "offline, from DIR". */
void cld_features_describe(const struct cld_config *cfg, char *to, size_t n);

#endif
