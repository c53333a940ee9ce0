#include "model/export.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/size.h"
#include "model/drafter_layout.h"
#include "model/golden.h"
#include "model/setup.h"

/* Host memory that copying uses at once. */
static const size_t piece_bytes = (size_t)16 << 20;

/* --- weights ---------------------------------------------------------------------------------- */

/* A tensor to be copied: from a file, under another name perhaps. */
struct source {
    const struct cld_safetensors *st;
    const struct cld_safetensor *t;
    const char *name;
};

static enum cld_status copy_tensor(struct cld_safetensors_writer *w, size_t i,
                                   const struct source *from, uint16_t *piece,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_rows = from->t->shape[0], per_row = from->t->n_elems / n_rows;
    size_t step = cld_max(1, piece_bytes / sizeof *piece / per_row);
    for (size_t at = 0; at < n_rows && !s; at += step) {
        size_t n = cld_min(step, n_rows - at);
        if (!(s = cld_safetensors_read_rows(from->st, from->t, at, n, CLD_BF16, piece, err)))
            s = cld_safetensors_put(w, i, piece, n * per_row * sizeof *piece, err);
    }
    return s;
}

static enum cld_status copy_tensors(const struct source *sources, size_t n, const char *path,
                                    const char *origin, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_safetensors_pair metadata[] = {{"format", "pt"}, {CLD_ORIGIN_KEY, origin}};
    struct cld_safetensors_writer *w = NULL;
    struct cld_safetensors_spec *specs = calloc(cld_max(1, n), sizeof *specs);
    size_t room = piece_bytes;
    for (size_t i = 0; i < n; i++)
        room = cld_max(room,
                       cld_mul(sources[i].t->n_elems / sources[i].t->shape[0], sizeof(uint16_t)));
    uint16_t *piece = malloc(room);
    if (!specs || !piece) {
        s = cld_fail_memory(err, "the %zu tensors of %s", n, path);
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        specs[i] = (struct cld_safetensors_spec){
            .name = sources[i].name, .dtype = CLD_BF16, .n_dims = sources[i].t->n_dims, .id = i};
        memcpy(specs[i].shape, sources[i].t->shape, sizeof specs[i].shape);
    }
    if ((s = cld_safetensors_begin(path, specs, n, metadata, origin[0] ? 2 : 1, &w, err)))
        goto done;
    for (size_t i = 0; i < n && !s; i++)
        s = copy_tensor(w, i, &sources[specs[i].id], piece, err);
    if (!s) {
        s = cld_safetensors_commit(w, err);
        w = NULL;
    }
done:
    cld_safetensors_abort(w);
    free(specs);
    free(piece);
    return s;
}

static enum cld_status find_source(const struct cld_safetensors *st, const char *there,
                                   const char *name, const struct cld_drafter_config *c,
                                   struct source *out, struct cld_error *err)
{
    size_t shape[2] = {c->vocab, c->hidden};
    *out = (struct source){.st = st, .name = name};
    return cld_safetensors_expect(st, there, CLD_DTYPES_FLOAT, 2, shape, &out->t, err);
}

static enum cld_status write_weights(const struct cld_export *x, const char *path,
                                     struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const char *const embed = "model.embed_tokens.weight";
    struct cld_safetensors *own = NULL, *target = NULL;
    struct source *sources = NULL;
    size_t n = 0;
    if ((s = cld_safetensors_open(x->weights, &own, err)))
        goto done;
    if (!(sources = calloc(cld_safetensors_n(own) + 2, sizeof *sources))) {
        s = cld_fail_memory(err, "a list of tensors");
        goto done;
    }
    for (; n < cld_safetensors_n(own); n++) {
        const struct cld_safetensor *t = cld_safetensors_at(own, n);
        sources[n] = (struct source){own, t, t->name};
    }
    if (x->format == CLD_EXPORT_SPECULATORS) {
        if ((s = cld_safetensors_open(x->target_dir, &target, err)) ||
            (s = find_source(target, embed, "embed_tokens.weight", &x->file.config, &sources[n++],
                             err)) ||
            (s = find_source(target, x->target.tied ? embed : "lm_head.weight", "lm_head.weight",
                             &x->file.config, &sources[n++], err)))
            goto done;
    }
    s = copy_tensors(sources, n, path, x->origin, err);
done:
    cld_safetensors_close(own);
    cld_safetensors_close(target);
    free(sources);
    return s;
}

/* --- the card --------------------------------------------------------------------------------- */

static size_t put_commands(const struct cld_export *x, char *to, size_t n_to)
{
    size_t block = x->file.config.block_size, n_drafted = block - !x->file.config.anchor_first;
    int n = 0;
    if (x->format == CLD_EXPORT_HF && x->runtime != CLD_EXPORT_VLLM)
        n = snprintf(to, n_to,
                     "SGLang counts the known token (%zu):\n\n"
                     "    python -m sglang.launch_server --model-path %s \\\n"
                     "        --speculative-algorithm DFLASH \\\n"
                     "        --speculative-draft-model-path %s \\\n"
                     "        --speculative-num-draft-tokens %zu\n\n",
                     block, x->target_dir, x->out, block);
    size_t at = n > 0 ? cld_min((size_t)n, n_to - 1) : 0;
    if (x->runtime != CLD_EXPORT_SGLANG)
        n = snprintf(to + at, n_to - at,
                     "vLLM counts drafted tokens alone (%zu):\n\n"
                     "    vllm serve %s --speculative-config \\\n"
                     "        '{\"method\": \"dflash\", \"model\": \"%s\", "
                     "\"num_speculative_tokens\": %zu}'\n\n",
                     n_drafted, x->target_dir, x->out, n_drafted);
    return at;
}

char *cld_export_card(const struct cld_export *x)
{
    const struct cld_drafter_config *c = &x->file.config;
    char commands[8192] = "", taps[512] = "", windows[256] = "No layer slides.";
    size_t n_sliding = 0, n_drafted = c->block_size - !c->anchor_first;
    for (size_t i = 0, at = 0; i < c->n_taps && at < sizeof taps; i++)
        at += (size_t)snprintf(taps + at, sizeof taps - at, "%s%d", i ? ", " : "", x->file.taps[i]);
    for (size_t i = 0; i < c->n_layers; i++)
        n_sliding += c->sliding[i];
    if (n_sliding)
        snprintf(
            windows, sizeof windows,
            "%zu of %zu layers slide over %zu positions and are %s inside a block.%s", n_sliding,
            c->n_layers, c->sliding_window, c->sliding_causal ? "causal" : "bidirectional",
            n_sliding < c->n_layers ? " vLLM needs its V2 model runner for this mixture." : "");
    put_commands(x, commands, sizeof commands);
    return cld_format(
        "# DFlash drafter for %s\n\n"
        "A block-diffusion drafter for speculative decoding: a block of %zu tokens is one known "
        "token and %zu drafted ones.\n\n"
        "## Serving\n\n%s"
        "## What it needs\n\n"
        "- The target that it was trained for; features are the outputs of its layers %s, counted "
        "from 0, before the final norm.\n"
        "- Mask token %d. Row k of a block predicts the token at its own position.\n"
        "- %s\n"
        "- Embedding and head of the target, %zu rows%s.\n\n"
        "## Checking a runtime\n\n"
        "`golden/block.safetensors` has one block: `context_features` [%s], `draft_ids`, "
        "`positions` "
        "(of the context, then of the block), `output` after the last norm and `logits`. A runtime "
        "that serves this drafter gives these logits, to the precision of its arithmetic.\n",
        x->target_dir, n_drafted + 1, n_drafted, commands, taps, (int)c->mask_token, windows,
        c->vocab, x->format == CLD_EXPORT_SPECULATORS ? ", which are inside" : "",
        "tokens, taps x width");
}

/* --- writing and reading back ------------------------------------------------------------------
 */

static enum cld_status write_card(const struct cld_export *x, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *path = cld_format("%s/README.md", x->out), *card = cld_export_card(x);
    if (!path || !card)
        s = cld_fail_memory(err, "a card");
    else
        s = cld_file_write(path, card, strlen(card), err);
    free(path);
    free(card);
    return s;
}

static enum cld_status write_files(const struct cld_export *x, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *weights = cld_format("%s/model.safetensors", x->out);
    if (!weights)
        s = cld_fail_memory(err, "a path");
    else if (!(s = write_weights(x, weights, err)) &&
             !(s = x->format == CLD_EXPORT_SPECULATORS
                       ? cld_speculators_write(x->out, &x->file, x->target_dir, err)
                       : cld_drafter_config_write(x->out, &x->file, err)))
        s = write_card(x, err);
    free(weights);
    return s;
}

/* The same weights by the same kernels: nothing but zero is right. */
static enum cld_status compare(const struct cld_golden *want, const struct cld_golden *got,
                               const char *out, struct cld_error *err)
{
    for (size_t i = 0; i < want->n_draft * want->vocab; i++)
        if (!(want->logits[i] == got->logits[i]))
            return cld_fail(
                err, CLD_E_CHECK, "do not serve it; look at the disk",
                "%s: the logit of token %zu in row %zu is %.9g, the checkpoint's is %.9g", out,
                i % want->vocab, i / want->vocab, (double)got->logits[i], (double)want->logits[i]);
    return CLD_OK;
}

static enum cld_status write_golden(const struct cld_export *x, const struct cld_golden *g,
                                    struct cld_error *err)
{
    char *dir = cld_format("%s/golden", x->out),
         *path = cld_format("%s/golden/block.safetensors", x->out);
    enum cld_status s = CLD_OK;
    if (!dir || !path)
        s = cld_fail_memory(err, "a path");
    else if (!(s = cld_dir_make(dir, err)))
        s = cld_golden_write(g, path, err);
    free(dir);
    free(path);
    return s;
}

enum cld_status cld_export_write(const struct cld_export *x, const struct cld_device_info *device,
                                 enum cld_dtype storage, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_golden want = {0}, got = {0};
    struct cld_drafter_file back;
    struct cld_setup setup = {.drafter = x->file.config, .n_taps = x->file.config.n_taps};
    memcpy(setup.taps, x->file.taps, sizeof setup.taps);
    if ((s = cld_golden_run(x->weights, &x->file, x->target_dir, x->target.tied, device, storage,
                            &want, err)) ||
        (s = write_files(x, err)) || (s = write_golden(x, &want, err)) ||
        (s = cld_drafter_config_read(x->out, &back, err)) ||
        (s = cld_drafter_config_same(&x->file.config, &back.config, x->out, err)) ||
        (s = cld_setup_same_taps(&setup, back.taps, x->out, err)) ||
        (s = cld_golden_run(x->out, &back, x->target_dir, x->target.tied, device, storage, &got,
                            err)))
        goto done;
    s = compare(&want, &got, x->out, err);
done:
    cld_golden_free(&want);
    cld_golden_free(&got);
    return s;
}
