/* state_check.h - are hidden states in files those of the target? Compared with what the target
 * computes for the same tokens, and looked at for what no model gives. Main thread. */
#ifndef CLD_TRAIN_STATE_CHECK_H
#define CLD_TRAIN_STATE_CHECK_H

#include "config/config.h"
#include "data/dataset.h"
#include "model/setup.h"
#include "opencl/device.h"

/* States of a row's tokens as a file has them: [n, n_states, hidden] of `type`. State i is the
 * output of decoder layer layers[i], -1 the embedding's. */
struct cld_states {
    const void *values;
    enum cld_dtype type;
    size_t n, n_states, hidden;
    const int *layers; /* [n_states] */
    const char *path;  /* for messages */
};

/* CLD_E_INPUT names a value that is not finite, a token whose state is zero, or two tokens with the
 * same state, which other contexts do not give. */
enum cld_status cld_states_check(const struct cld_states *s, const int32_t *ids,
                                 struct cld_error *err);

struct cld_state_check;

/* The target on a device, for rows of at most n_tokens. Free with _close whatever the result was.
 */
enum cld_status cld_state_check_open(const struct cld_config *cfg, const struct cld_setup *setup,
                                     const struct cld_device_info *device, const int *layers,
                                     size_t n_layers, size_t n_tokens, struct cld_state_check **out,
                                     struct cld_error *err);
void cld_state_check_close(struct cld_state_check *c); /* NULL-safe */

/* Runs the target over the row and compares tokens spread over it, the last ones too. CLD_E_INPUT
 * names the file, the tokens and the distance; or the layer that a state is nearest to, if that is
 * another than it is said to be. */
enum cld_status cld_state_check_row(struct cld_state_check *c, const struct cld_row *row,
                                    const struct cld_states *s, struct cld_error *err);

#endif
