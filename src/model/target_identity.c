#include "model/target_identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/log.h"
#include "base/size.h"
#include "formats/safetensors.h"

static const char prefix[] = "the target's ";

bool cld_target_identity_is_part(const char *name)
{
    return !strncmp(name, prefix, sizeof prefix - 1);
}

void cld_target_identity_add(struct cld_target_identity *id, const char *name, const char *value)
{
    if (id->n == CLD_MAX_IDENTITY)
        return;
    snprintf(id->at[id->n].name, sizeof id->at[id->n].name, "%s", name);
    snprintf(id->at[id->n].value, sizeof id->at[id->n].value, "%s", value);
    id->n++;
}

static void add_sum(struct cld_target_identity *id, const char *what, uint64_t sum)
{
    char text[CLD_CHECKSUM_TEXT_BYTES], name[64];
    cld_checksum_text(sum, text);
    snprintf(name, sizeof name, "%s%s", prefix, what);
    cld_target_identity_add(id, name, text);
}

/* False: some layers were not loaded. */
static bool sum_layers(struct cld_tensor_sums *sums, size_t n_layers, uint64_t *sum)
{
    struct cld_checksum c;
    cld_checksum_begin(&c);
    for (size_t i = 0; i < n_layers; i++) {
        char prefix_of_layer[48];
        uint64_t one;
        snprintf(prefix_of_layer, sizeof prefix_of_layer, "model.layers.%zu.", i);
        if (!cld_tensor_sums_of(sums, prefix_of_layer, &one))
            return false;
        cld_checksum_add(&c, &one, sizeof one);
    }
    *sum = cld_checksum_end(&c);
    return n_layers > 0;
}

void cld_target_identity_make(const struct cld_config *cfg, const struct cld_model_config *target,
                              size_t n_layers, struct cld_tensor_sums *sums,
                              struct cld_target_identity *out)
{
    uint64_t sum;
    char text[48];
    memset(out, 0, sizeof *out);
    if (cfg->target.random_weights >= 0) {
        char name[64];
        snprintf(text, sizeof text, "random %lld", (long long)cfg->target.random_weights);
        snprintf(name, sizeof name, "%sembedding", prefix);
        cld_target_identity_add(out, name, text);
        return;
    }
    if (cld_tensor_sums_get(sums, "model.embed_tokens.weight", &sum))
        add_sum(out, "embedding", sum);
    if (!target->tied && cld_tensor_sums_get(sums, "lm_head.weight", &sum))
        add_sum(out, "head", sum);
    if (cld_tensor_sums_get(sums, "model.norm.weight", &sum))
        add_sum(out, "final norm", sum);
    if (sum_layers(sums, n_layers, &sum)) {
        snprintf(text, sizeof text, "layers 0 to %zu", n_layers - 1);
        add_sum(out, text, sum);
    }
}

/* For its sum. */
static enum cld_status read_all(const struct cld_safetensors *st, const char *name,
                                struct cld_error *err)
{
    const size_t piece_bytes = (size_t)16 << 20;
    enum cld_status s = CLD_OK;
    const struct cld_safetensor *t = cld_safetensors_find(st, name);
    size_t n_rows = t && t->n_dims ? t->shape[0] : 0;
    if (!n_rows)
        return CLD_OK;
    size_t n = cld_max(1, piece_bytes / cld_max(1, t->n_bytes / n_rows));
    char *piece = malloc(cld_max(1, cld_mul(n, t->n_bytes / n_rows)));
    if (!piece)
        return cld_fail_memory(err, "%s", name);
    for (size_t at = 0; at < n_rows && !s; at += n)
        s = cld_safetensors_read_rows(st, t, at, cld_min(n, n_rows - at), t->dtype, piece, err);
    free(piece);
    return s;
}

enum cld_status cld_target_identity_read(const char *dir, const struct cld_model_config *target,
                                         struct cld_target_identity *out, struct cld_error *err)
{
    const struct cld_config none = {.target.random_weights = -1};
    struct cld_safetensors *st = NULL;
    struct cld_tensor_sums *sums = NULL;
    enum cld_status s = CLD_OK;
    memset(out, 0, sizeof *out);
    if ((s = cld_safetensors_open(dir, &st, err)) || (s = cld_tensor_sums_new(&sums, err)))
        goto done;
    cld_safetensors_watch(st, sums);
    if (!(s = read_all(st, "model.embed_tokens.weight", err)) &&
        !(s = read_all(st, "lm_head.weight", err)))
        cld_target_identity_make(&none, target, 0, sums, out);
done:
    cld_safetensors_close(st);
    cld_tensor_sums_free(sums);
    return s;
}

void cld_target_identity_text(const struct cld_target_identity *id, char *to, size_t n)
{
    size_t at = 0;
    to[0] = 0;
    for (size_t i = 0; i < id->n && at < n; i++)
        at += (size_t)snprintf(to + at, n - at, "%s%s=%s", i ? ";" : "", id->at[i].name,
                               id->at[i].value);
}

void cld_target_identity_parse(const char *text, struct cld_target_identity *out)
{
    memset(out, 0, sizeof *out);
    while (text && *text) {
        char name[64], value[32];
        int n = 0;
        if (sscanf(text, "%63[^=;]=%31[^;]%n", name, value, &n) != 2)
            return;
        if (cld_target_identity_is_part(name))
            cld_target_identity_add(out, name, value);
        text += n;
        text += *text == ';';
    }
}

size_t cld_setup_n_layers(const struct cld_setup *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_features; i++)
        if (s->taps[i] >= 0)
            n = cld_max(n, (size_t)s->taps[i] + 1);
    return n;
}

size_t cld_target_identity_differs(const struct cld_target_identity *now,
                                   const struct cld_target_identity *then, const char **value,
                                   size_t *n_same)
{
    size_t differs = SIZE_MAX;
    *n_same = 0;
    for (size_t i = 0; i < now->n; i++)
        for (size_t k = 0; k < then->n; k++) {
            if (strcmp(now->at[i].name, then->at[k].name))
                continue;
            ++*n_same;
            if (strcmp(now->at[i].value, then->at[k].value) && differs == SIZE_MAX) {
                differs = i;
                *value = then->at[k].value;
            }
        }
    return differs;
}

enum cld_status cld_target_identity_check(const struct cld_target_identity *now,
                                          const struct cld_target_identity *then, const char *what,
                                          bool accepted, struct cld_error *err)
{
    size_t n_same;
    const char *value = "";
    size_t i = cld_target_identity_differs(now, then, &value, &n_same);
    if (!n_same)
        cld_warn("%s has no checksums of the target's weights: whether they are the same is not "
                 "known",
                 what);
    if (i == SIZE_MAX)
        return CLD_OK;
    if (accepted) {
        cld_warn(
            "the weights of %s differ: checksum %s in %s, %s now; train.accept_changed = target "
            "accepts that",
            now->at[i].name, value, what, now->at[i].value);
        return CLD_OK;
    }
    return cld_fail(err, CLD_E_USAGE,
                    "name the target that it was made with; if the change is meant, set "
                    "train.accept_changed = target",
                    "the weights of %s differ: their checksum is %s in %s, %s now", now->at[i].name,
                    value, what, now->at[i].value);
}
