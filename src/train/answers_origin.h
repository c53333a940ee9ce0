/* answers_origin.h - what the answers in a file were made with: OUT.origin.json beside it has the
 * checksums of the target's weights, the hash of its config.json, and the tokens that end an
 * answer. A run that goes on with the file must have the same. Main thread. */
#ifndef CLD_TRAIN_ANSWERS_ORIGIN_H
#define CLD_TRAIN_ANSWERS_ORIGIN_H

#include <stdbool.h>

#include "model/target_identity.h"

/* Compares with what stands beside OUT and writes it. CLD_E_USAGE with both values where it
 * differs, or, where train.accept_changed names the target, a warning. Answers without a note of
 * their origin
 * (`has_answers`) are warned about. */
enum cld_status cld_answers_origin_check(const char *out, bool has_answers,
                                         const struct cld_config *cfg,
                                         const struct cld_model_config *model,
                                         const struct cld_target_identity *now,
                                         struct cld_error *err);

#endif
