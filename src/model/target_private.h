/* target_private.h - what the files of a target share: target.c, target_memory.c, target_ops.c,
 * target_weights.c, target_run.c. */
#ifndef CLD_MODEL_TARGET_PRIVATE_H
#define CLD_MODEL_TARGET_PRIVATE_H

#include <string.h>

#include "model/target.h"

/* If a GEMM applies SwiGLU, groups of this many rows of gate's weight and of up's alternate. */
static const size_t cld_target_group_rows = 8;

static inline bool cld_target_alternates(const struct cld_target *t, const char *name)
{
    return t->fused && (strstr(name, "mlp.gate_proj") || strstr(name, "mlp.up_proj"));
}

/* Texts that are decoded at once. */
static inline size_t cld_target_n_texts(const struct cld_target *t)
{
    return cld_max(1, t->options.n_texts);
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
