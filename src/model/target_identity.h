/* target_identity.h - which weights a target has, by checksums of its tensors in a few parts: what
 * a run, a drafter or generated answers were made with, to be compared with what is there now.
 *
 * A part has a name ("the target's head", "the target's layers 0 to 4") and a value. Parts that
 * only one side knows are not compared: a run from stored features loads no layers. Host data; any
 * thread. */
#ifndef CLD_MODEL_TARGET_IDENTITY_H
#define CLD_MODEL_TARGET_IDENTITY_H

#include "formats/tensor_sums.h"
#include "model/setup.h"

enum { CLD_MAX_IDENTITY = 4 };

struct cld_target_identity {
    struct {
        char name[64], value[32];
    } at[CLD_MAX_IDENTITY];
    size_t n;
};

/* Of the tensors that were loaded: embedding, head (if it is not the embedding) and the layers up
 * to the last tap (`n_layers` of them; those that were not all loaded are left out), and
 * the final norm where it was wanted. With target.random_weights = SEED: that. */
void cld_target_identity_make(const struct cld_config *cfg, const struct cld_model_config *target,
                              size_t n_layers, struct cld_tensor_sums *sums,
                              struct cld_target_identity *out);

/* Layers that the setup's features pass through. */
size_t cld_setup_n_layers(const struct cld_setup *s);

/* Is this the name of a part? Files keep parts among other things. */
bool cld_target_identity_is_part(const char *name);
/* Adds a part as a file has it; more than CLD_MAX_IDENTITY are left out. */
void cld_target_identity_add(struct cld_target_identity *id, const char *name, const char *value);

/* The same of embedding and head alone, read from a directory. CLD_E_INPUT. */
enum cld_status cld_target_identity_read(const char *dir, const struct cld_model_config *target,
                                         struct cld_target_identity *out, struct cld_error *err);

/* The key of the metadata of an exported drafter. */
#define CLD_ORIGIN_KEY "cldraft_target"

/* As one line, for metadata of files, and back. What cannot be understood is left out. */
enum { CLD_IDENTITY_TEXT_BYTES = 400 };
void cld_target_identity_text(const struct cld_target_identity *id, char *to, size_t n);
void cld_target_identity_parse(const char *text, struct cld_target_identity *out);

/* The first part that differs: its index in `now`, and the other's value; SIZE_MAX: none. *n_same:
 * parts that both have. */
size_t cld_target_identity_differs(const struct cld_target_identity *now,
                                   const struct cld_target_identity *then, const char **value,
                                   size_t *n_same);

/* Compares them. A difference is CLD_E_USAGE with both values, or a warning if `accepted`; without
 * a common part, `then` being of `what` ("run/checkpoints/step-4"), a warning. */
enum cld_status cld_target_identity_check(const struct cld_target_identity *now,
                                          const struct cld_target_identity *then, const char *what,
                                          bool accepted, struct cld_error *err);

#endif
