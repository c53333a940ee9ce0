/* setup.h - what a configuration means for a given target: geometry of the drafter, taps, mask
 * token, rules of the loss. No device is needed. Read-only once made; any thread may read it. */
#ifndef CLD_MODEL_SETUP_H
#define CLD_MODEL_SETUP_H

#include "config/config.h"
#include "data/batch.h"
#include "model/drafter.h"
#include "model/model_config.h"

struct cld_setup {
    struct cld_model_config target;
    struct cld_drafter_config drafter;
    struct cld_batch_rules rules;
    /* The drafter's, and, where soft targets need it and it is none of them, the target's last
     * layer after them: n_features in all. */
    int taps[CLD_MAX_TAPS + 1];
    size_t n_taps, n_features;
    size_t state_tap;             /* which of them is the last layer, with soft targets */
    struct cld_tensor_sums *sums; /* the target's tensors as workers load them; NULL: not wanted */
    char target_hash[65];         /* SHA-256 of the target's config.json, hexadecimal */
};

/* Layers tapped where the configuration says auto: evenly from layer 1 to layer L - 3, rounded half
 * to even (the rule of the published trainers). CLD_E_USAGE if a shallow target repeats a layer. */
enum cld_status cld_auto_taps(size_t n_target_layers, size_t n_taps, int *taps,
                              struct cld_error *err);

/* Reads the target's config.json and resolves everything. `mask_token` is the id, found by the
 * caller where the configuration names a token by its text. CLD_E_USAGE, CLD_E_INPUT. */
enum cld_status cld_setup_read(const struct cld_config *cfg, int64_t mask_token,
                               struct cld_setup *out, struct cld_error *err);

/* CLD_E_INPUT with both layers if a drafter read from `path` taps others than this run. */
enum cld_status cld_setup_same_taps(const struct cld_setup *s, const int *taps, const char *path,
                                    struct cld_error *err);

#endif
