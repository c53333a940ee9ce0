#include "check/case_file.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

static enum cld_status get_size(const json_t *root, const char *path, const char *key, size_t *out,
                                struct cld_error *err)
{
    const json_t *v = json_object_get(root, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return cld_fail(err, CLD_E_INPUT,
                        "the case is damaged or of another format; docs/checks.md describes it",
                        "%s: the case's config misses the number '%s'", path, key);
    *out = (size_t)json_integer_value(v);
    return CLD_OK;
}

static enum cld_status read_layer_types(const json_t *root, const char *path,
                                        struct cld_drafter_config *c, struct cld_error *err)
{
    const json_t *types = json_object_get(root, "layer_types");
    size_t n = json_array_size(types);
    if (types && !json_is_array(types))
        return cld_fail(err, CLD_E_INPUT,
                        "the case is damaged or of another format; docs/checks.md describes it",
                        "%s: layer_types is not a list", path);
    if (n && n != c->n_layers)
        return cld_fail(err, CLD_E_INPUT,
                        "the case is damaged or of another format; docs/checks.md describes it",
                        "%s: %zu layer_types for %zu layers", path, n, c->n_layers);
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(types, i));
        c->sliding[i] = name && !strcmp(name, "sliding_attention");
        if (!name || (!c->sliding[i] && strcmp(name, "full_attention")))
            return cld_fail(err, CLD_E_INPUT,
                            "the case is damaged or of another format; docs/checks.md describes it",
                            "%s: unknown layer type %zu", path, i);
    }
    return CLD_OK;
}

static enum cld_status read_config(const char *path, const json_t *root, struct cld_case *k,
                                   struct cld_error *err)
{
    struct cld_drafter_config *c = &k->config;
    enum cld_status s = CLD_OK;
    size_t mask_token = 0;
    const struct {
        const char *key;
        size_t *to;
    } sizes[] = {{"vocab_size", &c->vocab},
                 {"hidden_size", &c->hidden},
                 {"num_hidden_layers", &c->n_layers},
                 {"num_attention_heads", &c->n_heads},
                 {"num_key_value_heads", &c->n_kv_heads},
                 {"head_dim", &c->head_dim},
                 {"intermediate_size", &c->intermediate},
                 {"num_taps", &c->n_taps},
                 {"block_size", &c->block_size},
                 {"sliding_window", &c->sliding_window},
                 {"mask_token_id", &mask_token}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if ((s = get_size(root, path, sizes[i].key, sizes[i].to, err)))
            return s;
    if (c->n_layers > CLD_MAX_DRAFT_LAYERS || mask_token > INT32_MAX)
        return cld_fail(err, CLD_E_INPUT,
                        "the case is damaged or of another format; docs/checks.md describes it",
                        "%s: %zu layers or mask token %zu out of range", path, c->n_layers,
                        mask_token);
    if ((s = read_layer_types(root, path, c, err)))
        return s;
    bool slides = false;
    for (size_t i = 0; i < c->n_layers; i++)
        slides |= c->sliding[i];
    if (!slides)
        c->sliding_window = 0;
    c->mask_token = (int32_t)mask_token;
    c->rope_theta = json_number_value(json_object_get(root, "rope_theta"));
    c->rms_norm_eps = json_number_value(json_object_get(root, "rms_norm_eps"));
    c->sliding_causal = !json_is_false(json_object_get(root, "sliding_causal"));
    if (!(c->rope_theta > 0) || !(c->rms_norm_eps > 0))
        return cld_fail(err, CLD_E_INPUT,
                        "the case is damaged or of another format; docs/checks.md describes it",
                        "%s: rope_theta or rms_norm_eps is missing", path);
    k->rules = (struct cld_batch_rules){
        .block_size = c->block_size,
        .mask_token = c->mask_token,
        .gamma = json_number_value(json_object_get(root, "loss_decay_gamma"))};
    if ((s = cld_drafter_config_check(c, err))) {
        cld_fail_prefix(err, "%s", path);
        return err->status = CLD_E_INPUT;
    }
    return CLD_OK;
}

static enum cld_status read_metadata(const char *path, struct cld_case *k, struct cld_error *err)
{
    const char *format = cld_safetensors_metadata(k->st, "format");
    const char *config = cld_safetensors_metadata(k->st, "config");
    const char *tolerance = cld_safetensors_metadata(k->st, "tolerance");
    if (!format || strcmp(format, "dflash-case-1") || !config)
        return cld_fail(err, CLD_E_INPUT, "check-case reads files of format dflash-case-1",
                        "%s: format is '%s'", path, format ? format : "(none)");
    char *end = NULL;
    k->tolerance = tolerance ? strtod(tolerance, &end) : 0;
    /* A tolerance that is no number, or endless, would pass anything. */
    if (tolerance && (*tolerance == '\0' || *end || !(k->tolerance > 0 && k->tolerance <= 1)))
        return cld_fail(err, CLD_E_INPUT,
                        "the case is damaged or of another format; docs/checks.md describes it",
                        "%s: tolerance '%s' is not a number above 0, up to 1", path, tolerance);
    json_error_t je;
    json_t *root = json_loads(config, JSON_REJECT_DUPLICATES, &je);
    if (!root)
        return cld_fail(err, CLD_E_INPUT,
                        "the case is damaged or of another format; docs/checks.md describes it",
                        "%s: config in metadata: %s", path, je.text);
    enum cld_status s = read_config(path, root, k, err);
    json_decref(root);
    return s;
}

/* A whole tensor of this type and shape into fresh memory. */
static enum cld_status read_new(const struct cld_case *k, const char *name, enum cld_dtype type,
                                size_t n_dims, const size_t *shape, void *slot,
                                struct cld_error *err)
{
    const struct cld_safetensor *t = NULL;
    enum cld_status s =
        cld_safetensors_expect(k->st, name, CLD_DTYPE_BIT(type), n_dims, shape, &t, err);
    if (s)
        return s;
    void *p = malloc(cld_max(1, t->n_bytes));
    if (!p)
        return cld_fail_memory(err, "the data of %s", name);
    memcpy(slot, &p, sizeof p);
    return cld_safetensors_read(k->st, t, type, p, err);
}

static enum cld_status read_tensors(const char *path, struct cld_case *k, struct cld_error *err)
{
    const struct cld_safetensor *ids = cld_safetensors_find(k->st, "input_ids");
    const struct cld_safetensor *anchors = cld_safetensors_find(k->st, "anchors");
    enum cld_status s = CLD_OK;
    if (!ids || ids->n_dims != 2 || !anchors || anchors->n_dims != 2)
        return cld_fail(err, CLD_E_INPUT,
                        "the case is damaged or of another format; docs/checks.md describes it",
                        "%s: input_ids [B, S] or anchors [B, N] is missing", path);
    k->n_rows = ids->shape[0];
    k->n_tokens = ids->shape[1];
    k->n_slots = anchors->shape[1];
    size_t bs[2] = {k->n_rows, k->n_tokens}, bn[2] = {k->n_rows, k->n_slots};
    size_t hidden[3] = {k->n_rows, k->n_tokens, k->config.n_taps * k->config.hidden};
    if ((s = read_new(k, "input_ids", CLD_I32, 2, bs, &k->ids, err)) ||
        (s = read_new(k, "loss_mask", CLD_U8, 2, bs, &k->mask, err)) ||
        (s = read_new(k, "anchors", CLD_I32, 2, bn, &k->anchors, err)) ||
        (s = read_new(k, "hidden", CLD_F32, 3, hidden, &k->hidden, err)))
        return s;
    if (cld_safetensors_find(k->st, "segment_ids"))
        s = read_new(k, "segment_ids", CLD_I32, 2, bs, &k->segments, err);
    for (size_t i = 0; i < k->n_rows * k->n_tokens && !s; i++)
        if (k->ids[i] < 0 || (size_t)k->ids[i] >= k->config.vocab)
            s = cld_fail(err, CLD_E_INPUT,
                         "the case is damaged or of another format; docs/checks.md describes it",
                         "%s: token id %d at %zu is outside %zu", path, (int)k->ids[i], i,
                         k->config.vocab);
    for (size_t i = 0; i < k->n_rows * k->n_slots && !s; i++)
        if (k->anchors[i] >= 0 && (size_t)k->anchors[i] >= k->n_tokens)
            s = cld_fail(err, CLD_E_INPUT,
                         "the case is damaged or of another format; docs/checks.md describes it",
                         "%s: anchor %d is outside %zu tokens", path, (int)k->anchors[i],
                         k->n_tokens);
    return s;
}

/* Sorts the anchors of one document (few: insertion), slots along with them. */
static void sort_anchors(int32_t *a, size_t *slot, size_t n)
{
    for (size_t i = 1; i < n; i++)
        for (size_t j = i; j > 0 && a[j] < a[j - 1]; j--) {
            int32_t t = a[j];
            size_t u = slot[j];
            a[j] = a[j - 1];
            slot[j] = slot[j - 1];
            a[j - 1] = t;
            slot[j - 1] = u;
        }
}

/* Documents are runs of one segment id; a row without segments is one. */
static enum cld_status find_documents(struct cld_case *k, struct cld_error *err)
{
    size_t n_anchors = 0, most = k->n_rows * k->n_tokens, slots = k->n_rows * k->n_slots;
    k->docs = calloc(cld_max(1, most), sizeof *k->docs);
    k->doc_at = calloc(cld_max(1, most), sizeof *k->doc_at);
    k->doc_anchors = calloc(cld_max(1, slots), sizeof *k->doc_anchors);
    k->slots = calloc(cld_max(1, slots), sizeof *k->slots);
    if (!k->docs || !k->doc_at || !k->doc_anchors || !k->slots)
        return cld_fail_memory(err, "a case");
    for (size_t row = 0; row < k->n_rows; row++)
        for (size_t from = 0, to; from < k->n_tokens; from = to) {
            const int32_t *seg = k->segments ? k->segments + row * k->n_tokens : NULL;
            for (to = from + 1; to < k->n_tokens && (!seg || seg[to] == seg[from]); to++)
                ;
            struct cld_document *d = &k->docs[k->n_docs];
            k->doc_at[k->n_docs++] = row * k->n_tokens + from;
            *d = (struct cld_document){.ids = k->ids + row * k->n_tokens + from,
                                       .mask = k->mask + row * k->n_tokens + from,
                                       .n = to - from,
                                       .anchors = k->doc_anchors + n_anchors,
                                       .tag = row,
                                       .row = row};
            for (size_t j = 0; j < k->n_slots; j++) {
                int32_t a = k->anchors[row * k->n_slots + j];
                if (a < (int32_t)from || a >= (int32_t)to)
                    continue;
                k->doc_anchors[n_anchors] = a - (int32_t)from;
                k->slots[n_anchors++] = row * k->n_slots + j;
                d->n_anchors++;
            }
            sort_anchors(k->doc_anchors + n_anchors - d->n_anchors,
                         k->slots + n_anchors - d->n_anchors, d->n_anchors);
        }
    return CLD_OK;
}

enum cld_status cld_case_open(const char *path, struct cld_case *k, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    memset(k, 0, sizeof *k);
    if ((s = cld_safetensors_open(path, &k->st, err)) || (s = read_metadata(path, k, err)) ||
        (s = read_tensors(path, k, err)))
        return s;
    return find_documents(k, err);
}

void cld_case_close(struct cld_case *k)
{
    if (!k)
        return;
    cld_safetensors_close(k->st);
    free(k->ids);
    free(k->segments);
    free(k->anchors);
    free(k->mask);
    free(k->hidden);
    free(k->docs);
    free(k->doc_at);
    free(k->doc_anchors);
    free(k->slots);
    memset(k, 0, sizeof *k);
}

enum cld_status cld_case_expected(const struct cld_case *k, const char *name, float *out,
                                  struct cld_error *err)
{
    const struct cld_safetensor *t = NULL;
    size_t one = 1;
    enum cld_status s =
        cld_safetensors_expect(k->st, name, CLD_DTYPE_BIT(CLD_F32), 1, &one, &t, err);
    return s ? s : cld_safetensors_read(k->st, t, CLD_F32, out, err);
}
