/* drafter_origin.h - the target that a drafter was trained for, as its directory has it: a
 * checkpoint in state.json, an export in the metadata of its weights. Drafters of other programs
 * have none. Any thread. */
#ifndef CLD_WORKERS_DRAFTER_ORIGIN_H
#define CLD_WORKERS_DRAFTER_ORIGIN_H

#include "model/target_identity.h"
#include "workers/train_state.h"

struct cld_drafter_origin {
    struct cld_target_identity target; /* n == 0: not known */
    char config_hash[65];              /* of the target's config.json; "": not known */
};

/* The parts that the facts of a state have. */
void cld_drafter_origin_of(const struct cld_train_state *state, struct cld_target_identity *out);

/* Of a directory that cld_drafter_find gave. CLD_E_INPUT for files that cannot be read. */
enum cld_status cld_drafter_origin_read(const char *dir, struct cld_drafter_origin *out,
                                        struct cld_error *err);

/* Refuses a drafter of another config.json than the target's, with both hashes: CLD_E_USAGE; a
 * warning where train.accept_changed names the target. Weights: cld_target_identity_check. */
enum cld_status cld_drafter_origin_config(const struct cld_drafter_origin *origin, const char *dir,
                                          const struct cld_config *cfg, const char *hash,
                                          struct cld_error *err);

#endif
