/* export_check.c - what a serving program would compute otherwise than it was trained. How they
 * read a drafter is described at the top of drafter_file.h. */
#include "model/export.h"

static enum cld_status check_taps(const struct cld_export *x, struct cld_error *err)
{
    const struct cld_drafter_file *f = &x->file;
    size_t n = x->target.n_layers;
    if (f->n_target_layers && f->n_target_layers != n)
        return cld_fail(err, CLD_E_USAGE, "give the target of the run with --target",
                        "the drafter is of a target of %zu layers, this one has %zu",
                        f->n_target_layers, n);
    for (size_t i = 0; i < f->config.n_taps; i++) {
        if (f->taps[i] < 0)
            return cld_fail(err, CLD_E_USAGE, "train with taps of layers",
                            "tap %d, the embedding, is served by neither SGLang nor vLLM",
                            f->taps[i]);
        if (i && f->taps[i] <= f->taps[i - 1])
            return cld_fail(err, CLD_E_USAGE, "train with ascending taps",
                            "tap %d after tap %d: programs collect features in the order of layers",
                            f->taps[i], f->taps[i - 1]);
        /* Programs use the input of layer v + 1; after the last layer some give the normalised
         * state, some nothing. */
        if ((size_t)f->taps[i] + 1 >= n)
            return cld_fail(err, CLD_E_USAGE, "train with taps below the last layer",
                            "tap %d is the last of %zu layers, whose state programs serve after "
                            "the final norm, or not at all",
                            f->taps[i], n);
    }
    return CLD_OK;
}

static enum cld_status check_tokens(const struct cld_export *x, struct cld_error *err)
{
    const struct cld_drafter_config *c = &x->file.config;
    const struct cld_model_config *t = &x->target;
    bool special = c->mask_token == t->pad;
    for (size_t i = 0; i < t->n_eos; i++)
        special |= c->mask_token == t->eos[i];
    if (c->vocab != t->vocab || c->hidden != t->hidden)
        return cld_fail(err, CLD_E_USAGE, "give the target of the run with --target",
                        "the drafter has a vocabulary of %zu and width %zu, the target has %zu and "
                        "%zu: its embedding and head cannot be shared",
                        c->vocab, c->hidden, t->vocab, t->hidden);
    if (special)
        return cld_fail(
            err, CLD_E_USAGE, "train with a reserved token as drafter.mask_token",
            "mask token %d is the target's pad or eos token, which programs treat specially",
            (int)c->mask_token);
    return CLD_OK;
}

enum cld_status cld_export_check(const struct cld_export *x, struct cld_error *err)
{
    const struct cld_drafter_config *c = &x->file.config;
    bool slides = false, full = false, sglang = x->runtime != CLD_EXPORT_VLLM;
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < c->n_layers; i++) {
        slides |= c->sliding[i];
        full |= !c->sliding[i];
    }
    if ((s = check_taps(x, err)) || (s = check_tokens(x, err)))
        return s;
    /* A program without this key takes row k for the token at k: almost no draft token is accepted,
     * and there is no error. */
    if (c->anchor_first && (x->format != CLD_EXPORT_SPECULATORS || x->runtime != CLD_EXPORT_VLLM))
        return cld_fail(
            err, CLD_E_USAGE,
            "use --format speculators --runtime vllm, or train with "
            "drafter.layout = dflash",
            "the drafter is anchor-first, which only vLLM reads, by sample_from_anchor in "
            "the layout of speculators: others would serve row k as another token");
    if (x->format == CLD_EXPORT_SPECULATORS && x->runtime == CLD_EXPORT_SGLANG)
        return cld_fail(err, CLD_E_USAGE, "use --format hf",
                        "SGLang does not read the layout of speculators");
    /* Its one word on causality counts for all layers. */
    if (x->format == CLD_EXPORT_SPECULATORS && slides && full && c->sliding_causal)
        return cld_fail(err, CLD_E_USAGE, "use --format hf",
                        "layout speculators cannot say that sliding layers are causal inside a "
                        "block and full ones are not: programs would treat all layers alike");
    if (x->format == CLD_EXPORT_HF && slides && !c->sliding_causal && sglang)
        return cld_fail(
            err, CLD_E_USAGE,
            "export for --runtime vllm alone, or train with drafter.sliding_causal = yes",
            "sliding layers were trained bidirectional inside a block, SGLang serves "
            "them causal");
    return CLD_OK;
}
