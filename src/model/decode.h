/* decode.h - decoding of one text by a target, with a drafter or without.
 *
 * With a drafter (DFlash, arXiv 2602.06036): the target reads the prompt and chooses the next
 * token. Then, cycle by cycle, the drafter fills a block after the last token: its own rows, or one
 * more if it is anchor-first. Its context is the target's taps of all tokens before. It drafts the
 * first maximum of each row, at any temperature. The target runs over the whole block in one pass
 * and chooses a token after each row. Drafted tokens are accepted as long as they equal the
 * target's choice; the target's own choice after them, the bonus, is added. The rest of the block
 * is removed from the KV cache.
 *
 * The target's choice at position p is a pure function of its logits there, the seed, the text's
 * number and p. So the text is the target's own, sampled or greedy, whatever the drafter does, up
 * to the rounding of passes with different numbers of rows.
 *
 * Thread: the owner of the queue of both; describe anywhere. */
#ifndef CLD_MODEL_DECODE_H
#define CLD_MODEL_DECODE_H

#include "model/drafter.h"
#include "model/token_sampler.h"

enum { CLD_MAX_BLOCK = 64 };

/* Ways to the same text. */
enum cld_decode_way {
    CLD_DECODE_DRAFTED,
    CLD_DECODE_BY_TOKEN, /* the target alone, one row a pass: the usual baseline */
    CLD_DECODE_BY_BLOCK  /* the target alone through passes of a whole block, one accepted token
                            each: the cost of verification with a useless drafter */
};

/* Added up over texts. A cycle is a pass of the target after the prompt's. */
struct cld_decode_stats {
    size_t n_texts, n_cycles;
    size_t n_tokens; /* of all cycles, bonus included, without that of the prompt's pass */
    /* By offset in the block: cycles in which all drafted tokens before were accepted and the text
     * did not end, and those in which this one was accepted too. */
    size_t offered[CLD_MAX_BLOCK], accepted[CLD_MAX_BLOCK];
    size_t by_tokens[CLD_MAX_BLOCK + 1]; /* cycles that gave so many tokens */
    double ms;                           /* of all cycles, host clock */
};
void cld_decode_stats_add(struct cld_decode_stats *to, const struct cld_decode_stats *from);
double cld_decode_tokens_per_cycle(const struct cld_decode_stats *s); /* 0 without cycles */
double cld_decode_tokens_per_s(const struct cld_decode_stats *s);

struct cld_decoder {
    struct cld_target *target;    /* borrowed, with n_logits and n_cached */
    struct cld_drafter *drafter;  /* borrowed, with n_cached; NULL: none */
    struct cld_batch_rules block; /* block size, mask token, layout */
    struct cld_token_sampler sampler;
    uint64_t text_number;
    int32_t *ids; /* the text: prompt, then new tokens */
    size_t n_prompt, n, cap_ids;
    struct cld_batch batch; /* the drafter's */
};

/* Declares what the decoder itself needs on the device. `drafter` NULL: only the target decodes,
 * and only the block size of `block` counts, for passes by block. */
void cld_decoder_describe(struct cld_decoder *d, struct cld_target *target,
                          struct cld_drafter *drafter, const struct cld_batch_rules *block,
                          struct cld_plan *plan);
void cld_decoder_free(struct cld_decoder *d); /* NULL-safe; host memory only */

/* Tokens in the KV cache of a text of n_prompt and n_new tokens, at most: the last block may pass
 * the end. */
static inline size_t cld_decode_cached(size_t n_prompt, size_t n_new, size_t block_size)
{
    return cld_add(cld_add(n_prompt, n_new), block_size);
}

/* Builds and launches every kernel variant that texts of these sizes need, on made-up tokens:
 * passes over prompts of the longest length, of half of it, and so on, and over all numbers of rows
 * that a cycle may have. Set the weights before. */
enum cld_status cld_decoder_warm_up(struct cld_decoder *d, size_t n_prompt, struct cld_error *err);

/* Continues `prompt` (at least one token); the text is in d->ids [d->n] afterwards. `number` is the
 * text's own, for its random numbers. Adds to *stats. CLD_E_INPUT if the text would pass the KV
 * cache, CLD_E_NUMERIC if a logit is NaN. */
enum cld_status cld_decode_text(struct cld_decoder *d, const struct cld_decode_rules *rules,
                                enum cld_decode_way way, const int32_t *prompt, size_t n_prompt,
                                uint64_t number, struct cld_decode_stats *stats,
                                struct cld_error *err);

#endif
