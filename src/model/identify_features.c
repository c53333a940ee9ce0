#include "model/identify_features.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/size.h"

static const size_t piece_bytes = (size_t)1 << 20;

/* One tensor: what it is called and looks like, then its bytes as the file has them. */
static enum cld_status add_tensor(struct cld_checksum *c, const struct cld_safetensors *st,
                                  const struct cld_safetensor *t, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_rows = t->n_dims ? t->shape[0] : 1;
    size_t row_bytes = n_rows ? t->n_bytes / n_rows : 0;
    size_t n_at_once = row_bytes ? cld_max(1, piece_bytes / row_bytes) : 1;
    if (!t->readable)
        return cld_fail(err, CLD_E_INPUT, "convert the target's weights to BF16, F16 or F32",
                        "tensor '%s' has the type %s, which is not supported", t->name,
                        t->dtype_name);
    cld_checksum_add(c, t->name, strlen(t->name) + 1);
    cld_checksum_add(c, t->dtype_name, strlen(t->dtype_name) + 1);
    cld_checksum_add(c, t->shape, t->n_dims * sizeof *t->shape);
    char *piece = malloc(cld_max(1, cld_mul(cld_min(n_at_once, n_rows), row_bytes)));
    if (!piece)
        return cld_fail_memory(err, "reading the target's weights");
    for (size_t at = 0; at < n_rows && !s; at += n_at_once) {
        size_t n = cld_min(n_at_once, n_rows - at);
        if (!(s = cld_safetensors_read_rows(st, t, at, n, t->dtype, piece, err)))
            cld_checksum_add(c, piece, n * row_bytes);
    }
    free(piece);
    return s;
}

/* Of all tensors in the layers [0, n_layers), in order of name; "" where none is there. */
static enum cld_status sum_layers(const struct cld_safetensors *st, size_t n_layers, char *to,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_checksum c;
    bool any = false;
    cld_checksum_begin(&c);
    for (size_t i = 0; i < cld_safetensors_n(st) && !s; i++) {
        const struct cld_safetensor *t = cld_safetensors_at(st, i);
        size_t layer = 0;
        int at = 0;
        if (sscanf(t->name, "model.layers.%zu.%n", &layer, &at) != 1 || !at || layer >= n_layers)
            continue;
        any = true;
        s = add_tensor(&c, st, t, err);
    }
    to[0] = 0;
    if (any)
        cld_checksum_text(cld_checksum_end(&c), to);
    return s;
}

static enum cld_status sum_embedding(const struct cld_safetensors *st, bool tied, const char *dir,
                                     char *to, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const char *const names[] = {"model.embed_tokens.weight", "lm_head.weight"};
    struct cld_checksum c;
    cld_checksum_begin(&c);
    for (size_t i = 0; i < (tied ? 1 : 2) && !s; i++) {
        const struct cld_safetensor *t = cld_safetensors_find(st, names[i]);
        s = t ? add_tensor(&c, st, t, err)
              : cld_fail(err, CLD_E_INPUT, "the target's directory is incomplete; fetch it again",
                         "%s: tensor '%s' is missing", dir, names[i]);
    }
    cld_checksum_text(cld_checksum_end(&c), to);
    return s;
}

static void write_taps(const struct cld_setup *setup, char *to, size_t n)
{
    size_t used = 0;
    to[0] = 0;
    for (size_t i = 0; i < setup->n_features && used < n; i++)
        used += (size_t)snprintf(to + used, n - used, "%s%d", i ? "," : "", setup->taps[i]);
}

enum cld_status cld_feature_identity_make(const struct cld_config *cfg,
                                          const struct cld_setup *setup, const char *tokenizer_hash,
                                          struct cld_feature_identity *out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_safetensors *st = NULL;
    size_t n_layers = 0;
    memset(out, 0, sizeof *out);
    snprintf(out->target_config, sizeof out->target_config, "%s", setup->target_hash);
    snprintf(out->tokenizer, sizeof out->tokenizer, "%s", tokenizer_hash);
    write_taps(setup, out->taps, sizeof out->taps);
    out->type = cfg->runtime.precision;
    out->n_cols = cld_mul(setup->n_features, setup->target.hidden);
    snprintf(out->storage, sizeof out->storage, "%s", cld_dtype_name(out->type));
    if (cfg->target.random_weights >= 0) {
        snprintf(out->layers, sizeof out->layers, "random %lld",
                 (long long)cfg->target.random_weights);
        memcpy(out->embedding, out->layers, sizeof out->embedding);
        return CLD_OK;
    }
    for (size_t i = 0; i < setup->n_features; i++)
        if (setup->taps[i] >= 0)
            n_layers = cld_max(n_layers, (size_t)setup->taps[i] + 1);
    if (!(s = cld_safetensors_open(cfg->target.dir, &st, err)) &&
        !(s = sum_layers(st, n_layers, out->layers, err)))
        s = sum_embedding(st, setup->target.tied, cfg->target.dir, out->embedding, err);
    cld_safetensors_close(st);
    return s;
}
