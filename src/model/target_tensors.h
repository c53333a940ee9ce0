/* target_tensors.h - which tensors of a target's files are used, which are harmless, and that there
 * are no others: a tensor that is passed over is a model that is not the user's.
 *
 * Harmless are tables that are computed here (rotary_emb.inv_freq) and parts that text does not
 * pass through (vision and audio towers, mtp). Everything else is refused by name. Any thread. */
#ifndef CLD_MODEL_TARGET_TENSORS_H
#define CLD_MODEL_TARGET_TENSORS_H

#include "formats/safetensors.h"
#include "model/model_config.h"

/* By names alone: the embedding is there, and the head where it is untied; of the layers all that
 * config.json announces or none (stored features need none), each with all of its tensors; and
 * nothing else that could alter what the model computes. CLD_E_INPUT names the tensor, and the key
 * of config.json that it contradicts. */
enum cld_status cld_target_tensors_check(const struct cld_safetensors *st,
                                         const struct cld_model_config *c, const char *dir,
                                         struct cld_error *err);

/* The same of a target's directory, and what lies beside the weights: an adapter is refused; an
 * index or weights that are not read are warned about. A directory without weights passes, for
 * commands that need none. */
enum cld_status cld_target_files_check(const char *dir, const struct cld_model_config *c,
                                       struct cld_error *err);

/* Embedding and head have the rows that config.json says, and a tied head that is in the file is
 * the embedding: all of its rows are compared. CLD_E_INPUT with both numbers, or the row. */
enum cld_status cld_target_vocabulary_check(const char *dir, const struct cld_model_config *c,
                                            struct cld_error *err);

#endif
