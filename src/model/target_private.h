/* target_private.h - what the files of a target share: target.c, target_memory.c, target_ops.c,
 * target_weights.c, target_run.c. */
#ifndef CLD_MODEL_TARGET_PRIVATE_H
#define CLD_MODEL_TARGET_PRIVATE_H

#include "model/target.h"

/* Rows of a turned matrix are read in units of so many elements. */
static const size_t cld_target_row_unit = 8;

/* Columns of the MLP's gate or up. */
static inline size_t cld_target_mlp_columns(const struct cld_target *t)
{
    return t->transposed ? cld_round_up(t->config.intermediate, cld_target_row_unit)
                         : t->config.intermediate;
}

/* Texts that are decoded at once. */
static inline size_t cld_target_n_texts(const struct cld_target *t)
{
    return cld_max(1, t->options.n_texts);
}

/* Whether SwiGLU's kernel may turn its result for the product that wants it so. n_tokens are a
 * multiple of 8. */
static inline bool cld_target_transposes_mlp(const struct cld_target *t)
{
    return t->transposed && t->options.storage == CLD_BF16 && t->config.intermediate % 8 == 0;
}

/* The same of norms. */
static inline bool cld_target_transposes_norms(const struct cld_target *t)
{
    return t->transposed && t->options.storage == CLD_BF16 && t->config.hidden % 8 == 0;
}

/* And of attention. */
static inline bool cld_target_transposes_attention(const struct cld_target *t)
{
    return t->transposed && cld_attention_transposes(&t->attention);
}

/* target_memory.c */
void cld_target_plan_weights(struct cld_target *t, struct cld_plan *plan);
void cld_target_plan_taps(struct cld_target *t, struct cld_plan *plan);
void cld_target_plan_activations(struct cld_target *t, struct cld_plan *plan);
void cld_target_plan_keys(struct cld_target *t, struct cld_plan *plan);

/* target_ops.c: writes t->forward, once tensors are declared. */
void cld_target_write_forward(struct cld_target *t);
double cld_target_score_scale(const struct cld_target *t);

/* target_run.c: logits = y head^T. */
struct cld_gemm cld_target_logits_gemm(const struct cld_target *t, const struct cld_tensor *y,
                                       const struct cld_tensor *logits);
/* Once weights are there: host memory of a pass, the rotary table. */
enum cld_status cld_target_prepare(struct cld_target *t, struct cld_error *err);

#endif
