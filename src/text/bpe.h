/* bpe.h - byte-level BPE: the vocabulary, and the merging of one word.
 *
 * A model is immutable and shared by all threads. A cld_bpe_work (word cache and scratch arrays)
 * belongs to one thread; its memory is bounded but for words of more than a few thousand bytes,
 * where the scratch arrays grow with the word. */
#ifndef CLD_TEXT_BPE_H
#define CLD_TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "base/error.h"

struct cld_bpe;
struct cld_bpe_work;

/* From the "model" object of a tokenizer file. CLD_E_INPUT names what is not supported. */
enum cld_status cld_bpe_new(const json_t *model, struct cld_bpe **out, struct cld_error *err);
void cld_bpe_free(struct cld_bpe *b);

enum cld_status cld_bpe_work_new(struct cld_bpe_work **out, struct cld_error *err);
void cld_bpe_work_free(struct cld_bpe_work *w);

/* The tokens of word[0..n). *ids [*n_ids] is borrowed from `w` until its next use.
 * CLD_E_INPUT: the vocabulary has no token for one of the bytes. */
enum cld_status cld_bpe_word(const struct cld_bpe *b, struct cld_bpe_work *w, const char *word,
                             size_t n, const int32_t **ids, size_t *n_ids, struct cld_error *err);

size_t cld_bpe_n_tokens(const struct cld_bpe *b);
int32_t cld_bpe_max_id(const struct cld_bpe *b);
/* Bytes of text that a token of a word stands for. */
size_t cld_bpe_token_bytes(const struct cld_bpe *b, int32_t id);

/* The id of a token in the file's spelling (U+0120 for a space), or -1. */
int32_t cld_bpe_find(const struct cld_bpe *b, const char *token, size_t n);
/* The spelling of a token, borrowed; NULL if no token has this id. */
const char *cld_bpe_spelling(const struct cld_bpe *b, int32_t id, size_t *n);

/* The bytes that a spelling stands for go to `to` (n bytes); returns how many, or SIZE_MAX if
 * the spelling has characters outside the byte alphabet. */
size_t cld_bpe_spelling_bytes(const char *spelling, size_t n, char *to);

#endif
