/* drafter_layout.h - drafters as others lay them out: the names that trainers give to the same
 * tensors, and the configuration of speculators. For drafter_config.c, drafter_file.c, export.c and
 * who begins with a drafter of others. Pure but for files; any thread. */
#ifndef CLD_MODEL_DRAFTER_LAYOUT_H
#define CLD_MODEL_DRAFTER_LAYOUT_H

#include <jansson.h>

#include "model/drafter_file.h"

/* The published name of a tensor that some trainer calls `name`: without "model." before it, and
 * TorchSpec's context_proj, context_norm and final_norm as fc, hidden_norm and norm. The embedding
 * and the head, which some save beside the drafter's own, are "embed_tokens.weight" and
 * "lm_head.weight". Other names come back as they are. */
const char *cld_drafter_plain_name(const char *name);
/* Is the plain name one of the target's two? */
bool cld_drafter_is_borrowed(const char *plain_name);

/* A file that carries an embedding or a head must carry this target's: some of their rows are
 * compared, as bf16. CLD_E_INPUT names both files and the row. Nothing to do where it has none. */
enum cld_status cld_drafter_check_borrowed(const char *drafter_dir, const char *target_dir,
                                           const struct cld_model_config *target,
                                           struct cld_error *err);

/* drafter_config_write.c: the config.json of a drafter in the published layout; NULL: no memory. */
json_t *cld_drafter_config_json(const struct cld_drafter_file *f);

/* Is this a config.json of speculators? */
bool cld_speculators_is(const json_t *root);
/* The same in the published layout, a new object: taps counted from 0, geometry at the top level
 * with the defaults that speculators leaves out. CLD_E_INPUT: another model than dflash, a
 * vocabulary of its own, or places that contradict each other. */
enum cld_status cld_speculators_plain(const char *path, const json_t *root, json_t **out,
                                      struct cld_error *err);
/* Writes DIR/config.json; `verifier` is the target's directory or name. Geometries that the layout
 * cannot say are export_check.c's. */
enum cld_status cld_speculators_write(const char *dir, const struct cld_drafter_file *f,
                                      const char *verifier, struct cld_error *err);

#endif
