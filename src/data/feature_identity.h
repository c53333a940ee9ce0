/* feature_identity.h - what stored features depend on besides the tokens: the target's
 * configuration and weights, the taps, the tokenizer, the storage type.
 *
 * Weights are identified by checksums over names, types, shapes and all bytes of the tensors that
 * features pass through: of the layers up to the last tap, and of embedding and head. A directory
 * that holds embedding and head alone is enough to train from stored features; there the layers
 * are "", and only the rest is compared. Generated weights (target.random_weights) are known by
 * their seed.
 *
 * Read-only once made; any thread. */
#ifndef CLD_DATA_FEATURE_IDENTITY_H
#define CLD_DATA_FEATURE_IDENTITY_H

#include "formats/safetensors.h"

#define CLD_FEATURE_FORMAT "cldraft-features-1"

struct cld_feature_identity {
    char target_config[65], tokenizer[65]; /* SHA-256 of the files; tokenizer "": none was read */
    char layers[32], embedding[32];
    char taps[224]; /* "1,3,4" */
    char storage[8];
    enum cld_dtype type;
    size_t n_cols; /* of a token's features: taps * hidden */
};

/* As metadata of a shard, borrowed from `id`. */
enum { CLD_FEATURE_N_PAIRS = 7 };
void cld_feature_identity_pairs(const struct cld_feature_identity *id,
                                struct cld_safetensors_pair pairs[CLD_FEATURE_N_PAIRS]);

/* CLD_E_INPUT names what differs between the shard and this run, with both values. */
enum cld_status cld_feature_identity_check(const struct cld_feature_identity *id,
                                           const struct cld_safetensors *shard, const char *path,
                                           struct cld_error *err);

#endif
