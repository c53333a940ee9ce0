/* identify_features.h - what the features of a target depend on, read from its directory.
 *
 * Any thread. */
#ifndef CLD_MODEL_IDENTIFY_FEATURES_H
#define CLD_MODEL_IDENTIFY_FEATURES_H

#include "data/feature_identity.h"
#include "model/setup.h"

/* Reads the target's weights once. CLD_E_INPUT. */
enum cld_status cld_feature_identity_make(const struct cld_config *cfg,
                                          const struct cld_setup *setup, const char *tokenizer_hash,
                                          struct cld_feature_identity *out, struct cld_error *err);

#endif
