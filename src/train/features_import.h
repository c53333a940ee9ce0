/* features_import.h - hidden states that another program wrote, as stored features.
 *
 * A directory has a file hs_I.safetensors for line I of the rows (from 0), as the data generation
 * of speculators and vLLM's connector write them: token_ids [S] and hidden_states [S, K + 1, H]. Of
 * the K + 1 states the first K are what enters decoder layers --layers (what leaves layer v - 1:
 * their numbers are one more than target.taps), the last is the residual stream after the last
 * layer, before the final norm. The file itself does not say which layers: nothing but a comparison
 * with the target shows that they are the right ones. Main thread. */
#ifndef CLD_TRAIN_FEATURES_IMPORT_H
#define CLD_TRAIN_FEATURES_IMPORT_H

#include "config/config.h"
#include "opencl/device.h"

struct cld_features_import {
    const char *dir;
    const size_t *layers; /* [n_layers], as the files' writer counts them */
    size_t n_layers;
    bool heldout;   /* the rows are data.heldout, not data.train */
    bool unchecked; /* the target is not run to see that the states are those of the layers */
    const struct cld_device_info *device; /* to run it */
};

struct cld_features_imported {
    size_t n_rows, n_imported, n_missing; /* rows of the data; files read, files not there */
    size_t n_there;                       /* rows that the store had before */
};

/* Into cfg's features.dir. CLD_E_USAGE, CLD_E_INPUT: with what is there and what the configuration
 * wants; rows before it are stored. */
enum cld_status cld_features_import(const struct cld_config *cfg,
                                    const struct cld_features_import *x,
                                    struct cld_features_imported *out, struct cld_error *err);

#endif
