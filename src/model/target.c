/* target.c - describes a target: which layers run, how matrices are stored, what it needs. */
#include "model/target.h"

#include <stdlib.h>
#include <string.h>

#include "model/target_private.h"
#include "ops/ops.h"

/* Kernels accept heads of a multiple of 8. If the model's have another (even) width, each half of
 * a head, as the rotation pairs them, is followed by zeros up to half of padded_head_dim: in the
 * weights and biases that make q, k and v, in the columns of o_proj, and hence in all that lies
 * between. What depends on the width itself is corrected: the mean of squares of q's and k's norm
 * (by its epsilon and the scale of scores, see score_scale) and the rotary table. */
static const size_t head_unit = 8;

static size_t scratch_bytes(const struct cld_target *t)
{
    size_t n = cld_max(cld_graph_scratch_bytes(t->q, &t->forward), 4);
    if (t->options.n_logits) {
        struct cld_tensor y = cld_tensor_rows(&t->y, 0, t->options.n_logits);
        struct cld_gemm g = cld_target_logits_gemm(t, &y, &t->logits);
        n = cld_max(n, cld_gemm_scratch_bytes(t->q, &g));
    }
    return n;
}

static enum cld_status check_taps(struct cld_target *t, struct cld_error *err)
{
    t->n_layers = t->options.n_logits ? t->config.n_layers : 0;
    for (size_t k = 0; k < t->options.n_taps; k++) {
        int v = t->options.taps[k];
        if (v < -1 || (v >= 0 && (size_t)v >= t->config.n_layers))
            return cld_fail(err, CLD_E_USAGE, "taps count decoder layers from 0",
                            "tap %d is outside the target's %zu layers", v, t->config.n_layers);
        if (v >= 0 && !t->options.given_taps)
            t->n_layers = cld_max(t->n_layers, (size_t)v + 1);
    }
    return CLD_OK;
}

/* Whether the GEMM of gate and up applies SwiGLU to its results. */
static bool gemms_fuse_swiglu(const struct cld_target *t)
{
    const struct cld_model_config *c = &t->config;
    const size_t n = t->options.n_tokens, wide = cld_mul(2, c->intermediate);
    struct cld_tensor y = {"y", CLD_BF16, n, c->hidden, c->hidden, NULL, 0};
    struct cld_tensor w = {"w", CLD_BF16, wide, c->hidden, c->hidden, NULL, 0};
    struct cld_tensor gate_up = {"gate and up", CLD_BF16, n, wide, wide, NULL, 0};
    struct cld_gemm g = {.kind = CLD_GEMM_NT, .backend = t->gemm, .a = &y, .b = &w, .c = &gate_up};
    return t->options.storage == CLD_BF16 && !c->mlp_bias && cld_gemm_makes_swiglu(t->q, &g);
}

static size_t gate_bytes(const struct cld_target *t)
{
    return cld_mul3(t->config.intermediate, t->config.hidden, cld_dtype_bytes(t->options.storage));
}

enum cld_status cld_target_describe(struct cld_target *t, const struct cld_model_config *config,
                                    const struct cld_target_options *options, struct cld_queue *q,
                                    struct cld_plan *plan, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    memset(t, 0, sizeof *t);
    t->config = *config;
    t->options = *options;
    t->options.n_tokens = cld_round_up(cld_max(options->n_tokens, CLD_ROW_GRAIN), CLD_ROW_GRAIN);
    t->options.n_logits =
        cld_min(cld_round_up(options->n_logits, CLD_ROW_GRAIN), t->options.n_tokens);
    t->q = q;
    t->padded_head_dim = cld_round_up(config->head_dim, head_unit);
    if ((s = check_taps(t, err)))
        return s;
    t->keys = calloc(cld_max(1, t->n_layers), sizeof *t->keys);
    t->layers = calloc(cld_max(1, t->n_layers), sizeof *t->layers);
    t->packed = calloc(cld_max(1, t->n_layers), sizeof *t->packed);
    t->tap_parts = calloc(cld_max(1, options->n_taps), sizeof *t->tap_parts);
    t->n_cached = calloc(cld_target_n_texts(t), sizeof *t->n_cached);
    if (!t->keys || !t->n_cached || !t->layers || !t->packed || !t->tap_parts)
        return cld_fail_memory(err, "a target of %zu layers", t->n_layers);
    t->fused = gemms_fuse_swiglu(t);
    cld_target_plan_weights(t, plan);
    cld_target_plan_taps(t, plan);
    if (options->given_taps)
        return CLD_OK;
    if ((s = cld_attention_plan(
             q, options->attention, t->options.n_tokens,
             cld_max(t->options.n_tokens, cld_mul(cld_target_n_texts(t), options->n_cached)),
             config->n_heads, config->n_kv_heads, t->padded_head_dim, options->storage, CLD_F32,
             false, &t->attention, err)))
        return s;
    t->attention.scale = (float)cld_target_score_scale(t);
    cld_target_plan_activations(t, plan);
    cld_target_plan_keys(t, plan);
    cld_target_write_forward(t);
    t->options.taps = NULL;
    size_t n_scratch_bytes = scratch_bytes(t);
    if (t->fused) /* weights of gate and up pass through it while they are loaded */
        n_scratch_bytes = cld_max(n_scratch_bytes, gate_bytes(t));
    cld_plan_buffer(plan, &t->scratch, n_scratch_bytes, CLD_FOR_TEMPORARY, "target scratch");
    return CLD_OK;
}

void cld_target_free(struct cld_target *t)
{
    if (!t)
        return;
    free(t->layers);
    free(t->packed);
    free(t->tap_parts);
    free(t->keys);
    free(t->n_cached);
    free(t->spans);
    free(t->host_positions);
    free(t->host_places);
    cld_graph_free(&t->forward);
    cld_attention_mask_free(&t->mask);
    memset(t, 0, sizeof *t);
}
