#include "data/feature_identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cld_feature_identity_pairs(const struct cld_feature_identity *id,
                                struct cld_safetensors_pair pairs[CLD_FEATURE_N_PAIRS])
{
    const struct cld_safetensors_pair all[CLD_FEATURE_N_PAIRS] = {
        /* What a person chose comes first: other taps also mean other layers. */
        {"format", CLD_FEATURE_FORMAT},
        {"target_config", id->target_config},
        {"taps", id->taps},
        {"storage", id->storage},
        {"tokenizer", id->tokenizer},
        {"target_embedding", id->embedding},
        {"target_layers", id->layers},
    };
    memcpy(pairs, all, sizeof all);
}

/* Where one side does not know: no tokenizer is read for ready token ids, and a target of embedding
 * and head has no layers. */
static bool may_be_open(const char *key)
{
    return !strcmp(key, "tokenizer") || !strcmp(key, "target_layers");
}

enum cld_status cld_feature_identity_check(const struct cld_feature_identity *id,
                                           const struct cld_safetensors *shard, const char *path,
                                           struct cld_error *err)
{
    struct cld_safetensors_pair pairs[CLD_FEATURE_N_PAIRS];
    cld_feature_identity_pairs(id, pairs);
    for (size_t i = 0; i < CLD_FEATURE_N_PAIRS; i++) {
        const char *there = cld_safetensors_metadata(shard, pairs[i].key);
        const char *here = pairs[i].value;
        if (!there)
            return cld_fail(err, CLD_E_INPUT, "name another directory in features.dir",
                            "%s is no shard of features: it has no '%s'", path, pairs[i].key);
        if ((may_be_open(pairs[i].key) && (!there[0] || !here[0])) || !strcmp(there, here))
            continue;
        bool no_state = !strcmp(pairs[i].key, "taps") && !strncmp(here, there, strlen(there)) &&
                        here[strlen(there)] == ',';
        return cld_fail(err, CLD_E_INPUT,
                        no_state
                            ? "soft targets need the state after the target's last layer: make "
                              "the features with train.objective = soft"
                            : "use what the features were made with, or another features.dir",
                        "%s was made for another run: its %s is %s, this run's is %s", path,
                        pairs[i].key, there[0] ? there : "none", here[0] ? here : "none");
    }
    return CLD_OK;
}
