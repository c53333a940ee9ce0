#include "model/golden.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/size.h"
#include "ops/op_gemm.h"
#include "ops/tensor_io.h"
#include "ops/verdicts.h"

/* Enough context for every head to choose from; with a small window, some that it leaves out. */
static size_t context_of(const struct cld_drafter_config *c)
{
    enum { PLAIN = 24, SMALL_WINDOW = 64 };
    return c->sliding_window && c->sliding_window <= SMALL_WINDOW ? c->sliding_window + 8 : PLAIN;
}

void cld_golden_free(struct cld_golden *g)
{
    if (!g)
        return;
    free(g->draft_ids);
    free(g->positions);
    free(g->features);
    free(g->output);
    free(g->logits);
    memset(g, 0, sizeof *g);
}

static enum cld_status make_space(const struct cld_drafter_config *c, struct cld_golden *g,
                                  struct cld_error *err)
{
    memset(g, 0, sizeof *g);
    g->n_ctx = context_of(c);
    g->n_draft = c->block_size;
    g->width = c->n_taps * c->hidden;
    g->hidden = c->hidden;
    g->vocab = c->vocab;
    g->draft_ids = calloc(g->n_draft, sizeof *g->draft_ids);
    g->positions = calloc(g->n_ctx + g->n_draft, sizeof *g->positions);
    g->features = malloc(cld_mul(cld_mul(g->n_ctx, g->width), sizeof *g->features));
    g->output = malloc(cld_mul(cld_mul(g->n_draft, g->hidden), sizeof *g->output));
    g->logits = malloc(cld_mul(cld_mul(g->n_draft, g->vocab), sizeof *g->logits));
    if (!g->draft_ids || !g->positions || !g->features || !g->output || !g->logits)
        return cld_fail_memory(err, "the logits of %zu tokens", g->n_draft);
    for (size_t i = 0; i < g->n_ctx * g->width; i++) {
        float v = (float)cld_random_normal(cld_random_u64(0, CLD_RANDOM_TEST, 1, i, 0));
        g->features[i] = cld_bf16_to_f32(cld_f32_to_bf16(v));
    }
    return CLD_OK;
}

struct runner {
    struct cld_queue *q;
    struct cld_plan *plan;
    struct cld_drafter d;
    struct cld_tensor embed, head, logits;
    struct cld_buf *scratch;
    struct cld_batch batch;
};

static struct cld_gemm head_gemm(const struct runner *r, const struct cld_tensor *z)
{
    return (struct cld_gemm){
        .kind = CLD_GEMM_NT, .backend = r->d.gemm, .a = z, .b = &r->head, .c = &r->logits};
}

static enum cld_status create(struct runner *r, const struct cld_drafter_config *c, size_t n_ctx,
                              const struct cld_device_info *device, enum cld_dtype storage,
                              struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_queue_options queue = {.name = "golden"};
    /* The block's own tokens follow the context in the document, not visible to the block. */
    const struct cld_drafter_limits limits = {.n_ctx = n_ctx + c->block_size,
                                              .n_blocks = 1,
                                              .loss_chunk = 1,
                                              .n_positions = n_ctx + c->block_size};
    const struct cld_drafter_options how = {.storage = storage};
    if ((s = cld_queue_open_probed(device, &queue, &r->q, err)))
        return s;
    if (!(r->plan = cld_plan_new()))
        return cld_fail_memory(err, "a plan");
    cld_plan_tensor(r->plan, &r->embed, storage, c->vocab, c->hidden, CLD_FOR_FROZEN, "embedding");
    cld_plan_tensor(r->plan, &r->head, storage, c->vocab, c->hidden, CLD_FOR_FROZEN, "head");
    if ((s = cld_drafter_describe(&r->d, c, &limits, &how, r->q, &r->embed, &r->head, r->plan,
                                  err)))
        return s;
    cld_plan_tensor(r->plan, &r->logits, CLD_F32, c->block_size, c->vocab, CLD_FOR_LOSS, "logits");
    struct cld_tensor z = cld_tensor_rows(&r->d.z, 0, c->block_size);
    struct cld_gemm gemm = head_gemm(r, &z);
    cld_plan_buffer(r->plan, &r->scratch, cld_gemm_scratch_bytes(r->q, &gemm), CLD_FOR_TEMPORARY,
                    "scratch of the head");
    if ((s = cld_plan_check(r->plan, "golden", device->global_bytes, device->max_alloc_bytes,
                            err)) ||
        (s = cld_plan_create(r->plan, r->q, err)))
        return s;
    return cld_drafter_prepare(&r->d, err);
}

static enum cld_status load(struct runner *r, const char *drafter_dir, const char *target_dir,
                            bool tied, struct cld_error *err)
{
    const char *const embed = "model.embed_tokens.weight";
    struct cld_safetensors *st = NULL;
    enum cld_status s = cld_safetensors_open(target_dir, &st, err);
    if (!s && !(s = cld_tensor_load(st, embed, &r->embed, err)) &&
        !(s = cld_tensor_load(st, tied ? embed : "lm_head.weight", &r->head, err)))
        s = cld_drafter_load(&r->d, drafter_dir, err);
    cld_safetensors_close(st);
    return s;
}

static enum cld_status lay_out(struct runner *r, struct cld_golden *g, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_drafter_config *c = &r->d.config;
    const struct cld_batch_rules rules = {
        .block_size = c->block_size, .mask_token = c->mask_token, .anchor_first = c->anchor_first};
    size_t n = g->n_ctx + g->n_draft;
    int32_t anchor = (int32_t)g->n_ctx, *ids = calloc(n, sizeof *ids);
    uint8_t *mask = malloc(n);
    struct cld_document doc = {
        .ids = ids, .mask = mask, .n = n, .anchors = &anchor, .n_anchors = 1};
    if (!ids || !mask) {
        s = cld_fail_memory(err, "a document");
        goto done;
    }
    memset(mask, 1, n);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)cld_random_below(cld_random_u64(0, CLD_RANDOM_TEST, 2, i, 0), c->vocab);
    if ((s = cld_batch_build(&r->batch, &doc, 1, &rules, true, err)))
        goto done;
    memcpy(g->draft_ids, r->batch.draft_ids, g->n_draft * sizeof *g->draft_ids);
    memcpy(g->positions, r->batch.positions, g->n_ctx * sizeof *g->positions);
    memcpy(g->positions + g->n_ctx, r->batch.positions + r->batch.n_ctx,
           g->n_draft * sizeof *g->positions);
done:
    free(ids);
    free(mask);
    return s;
}

enum cld_status cld_golden_run(const char *drafter_dir, const struct cld_drafter_file *f,
                               const char *target_dir, bool tied,
                               const struct cld_device_info *device, enum cld_dtype storage,
                               struct cld_golden *g, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct runner r = {0};
    if ((s = make_space(&f->config, g, err)) ||
        (s = create(&r, &f->config, g->n_ctx, device, storage, err)) ||
        (s = load(&r, drafter_dir, target_dir, tied, err)) || (s = lay_out(&r, g, err)) ||
        (s = cld_buf_fill(r.d.features.buf, 0, cld_buf_bytes(r.d.features.buf), 0, err)) ||
        (s = cld_tensor_write(&r.d.features, 0, g->n_ctx, g->features, err)) ||
        (s = cld_drafter_forward(&r.d, &r.batch, err)))
        goto done;
    struct cld_tensor z = cld_tensor_rows(&r.d.z, 0, g->n_draft);
    struct cld_gemm gemm = head_gemm(&r, &z);
    if ((s = cld_gemm(r.q, &gemm, r.scratch, err)) ||
        (s = cld_tensor_read(&z, 0, g->n_draft, g->output, err)) ||
        (s = cld_tensor_read(&r.logits, 0, g->n_draft, g->logits, err)))
        goto done;
    s = cld_drafter_check_tiles(&r.d, err);
done:
    cld_plan_free(r.plan);
    cld_queue_close(r.q);
    cld_drafter_free(&r.d);
    cld_batch_free(&r.batch);
    return s;
}

enum cld_status cld_golden_write(const struct cld_golden *g, const char *path,
                                 struct cld_error *err)
{
    enum { N = 5 };
    const void *const data[N] = {g->features, g->draft_ids, g->positions, g->output, g->logits};
    struct cld_safetensors_spec specs[N] = {
        {"context_features", CLD_F32, 2, {g->n_ctx, g->width}, 0},
        {"draft_ids", CLD_I32, 1, {g->n_draft}, 1},
        {"positions", CLD_I32, 1, {g->n_ctx + g->n_draft}, 2},
        {"output", CLD_F32, 2, {g->n_draft, g->hidden}, 3},
        {"logits", CLD_F32, 2, {g->n_draft, g->vocab}, 4}};
    const struct cld_safetensors_pair format = {"format", "cldraft-golden-1"};
    struct cld_safetensors_writer *w = NULL;
    enum cld_status s = cld_safetensors_begin(path, specs, N, &format, 1, &w, err);
    for (size_t i = 0; i < N && !s; i++) {
        size_t n = 1;
        for (size_t k = 0; k < specs[i].n_dims; k++)
            n *= specs[i].shape[k];
        s = cld_safetensors_put(w, i, data[specs[i].id], n * cld_dtype_bytes(specs[i].dtype), err);
    }
    if (s) {
        cld_safetensors_abort(w);
        return s;
    }
    return cld_safetensors_commit(w, err);
}
