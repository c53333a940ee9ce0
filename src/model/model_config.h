/* model_config.h - a Hugging Face config.json of a dense decoder: Qwen3, Qwen2, Llama 3.
 *
 * The rotary embedding is read in every spelling (rope_config.h). What is not computed here -
 * sliding windows, other rotary scalings, other activations, experts - is refused by name, and so
 * are unknown keys that speak of a mechanism (config_keys.h). Pure data after loading: any thread.
 */
#ifndef CLD_MODEL_MODEL_CONFIG_H
#define CLD_MODEL_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "model/rope_config.h"

enum { CLD_MAX_EOS_TOKENS = 32 };

struct cld_model_config {
    char model_type[32]; /* "qwen3", "qwen2", "llama" */
    size_t n_layers, hidden, n_heads, n_kv_heads, head_dim, intermediate, vocab, max_positions;
    double rms_norm_eps;
    struct cld_rope rope;
    bool tied;    /* the head is the embedding */
    bool qk_norm; /* RMSNorm on each head of q and k */
    bool qkv_bias, o_bias, mlp_bias;
    int64_t bos, pad;                /* -1: absent */
    int64_t eos[CLD_MAX_EOS_TOKENS]; /* any of them ends a text */
    size_t n_eos;                    /* 0: absent */
};

/* Reads DIR/config.json. CLD_E_INPUT says which key is missing, out of range or not supported. */
enum cld_status cld_model_config_read(const char *dir, struct cld_model_config *out,
                                      struct cld_error *err);

/* Rotary table F32 [n_positions, head_dim]: head_dim/2 cosines, then head_dim/2 sines of each
 * position, computed in double. Scaling as in the config. */
void cld_rope_table(const struct cld_rope *rope, size_t head_dim, size_t n_positions, float *table);

#endif
