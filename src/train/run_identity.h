/* run_identity.h - what a run learns from, by content: its rows as they are used, stored features,
 * the target's weights. Checkpoints keep the sums as facts of state.json; a run that goes on with
 * something else is refused with both values, unless train.accept_changed names it. Main thread. */
#ifndef CLD_TRAIN_RUN_IDENTITY_H
#define CLD_TRAIN_RUN_IDENTITY_H

#include "data/feed.h"
#include "model/target_identity.h"
#include "workers/drafter_origin.h"

struct cld_run_identity {
    struct cld_target_identity target;
    char rows[80], heldout[80], features[80]; /* "20 rows, checksum 0123456789abcdef"; "": none */
    struct cld_train_state kept;              /* facts alone: of changes that were accepted */
};
void cld_run_identity_free(struct cld_run_identity *id); /* NULL-safe */

/* Rows of the loaded feed, and those of `store` (NULL: none), into *id; with `then`, the state of a
 * checkpoint `where`, compared with its: CLD_E_USAGE. Held-out rows that differ are a warning: they
 * only choose the best checkpoint. */
enum cld_status cld_run_identity_rows(struct cld_run_identity *id, const struct cld_config *cfg,
                                      const struct cld_feed *feed, struct cld_feature_store *store,
                                      const struct cld_train_state *then, const char *where,
                                      struct cld_error *err);

/* The target's config.json, before its weights are there; and these, once workers have loaded them
 * into setup->sums. CLD_E_USAGE. */
enum cld_status cld_run_identity_config(struct cld_run_identity *id, const struct cld_config *cfg,
                                        const char *hash, const struct cld_train_state *then,
                                        const char *where, struct cld_error *err);
enum cld_status cld_run_identity_target(struct cld_run_identity *id, const struct cld_config *cfg,
                                        const struct cld_setup *setup,
                                        const struct cld_train_state *then, const char *where,
                                        struct cld_error *err);

/* Adds it to the facts of a checkpoint; `then`, or NULL, also has parts that are not known now. */
enum cld_status cld_run_identity_note(const struct cld_run_identity *id,
                                      struct cld_train_state *state, struct cld_error *err);

#endif
