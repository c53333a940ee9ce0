/* tokenizer.h - text to token ids and back, as a Hugging Face tokenizer.json defines it.
 *
 * Byte-level BPE: normaliser NFC or none; pre_tokenizer ByteLevel, alone or after Split and
 * Digits; added tokens; merges as strings or pairs, ignore_merges; post_processor
 * TemplateProcessing, ByteLevel or a Sequence of them. Anything else in the file is refused by
 * name, never ignored.
 *
 * Threads: a cld_tokenizer is immutable once loaded and shared by all threads. A cld_encoder
 * (word cache and scratch memory, about 5 MB) belongs to one thread; make one a thread. The
 * tokenizer must outlive its encoders. */
#ifndef CLD_TEXT_TOKENIZER_H
#define CLD_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct cld_tokenizer;
struct cld_encoder;

/* `path` is the tokenizer.json itself. CLD_E_INPUT: missing, malformed or not supported. */
enum cld_status cld_tokenizer_load(const char *path, struct cld_tokenizer **out,
                                   struct cld_error *err);
void cld_tokenizer_free(struct cld_tokenizer *t);

/* Tokens that the file defines, added ones included, and the largest of their ids. An embedding
 * needs more rows than the largest id; how many it has is for the model's config to say. */
size_t cld_tokenizer_n_tokens(const struct cld_tokenizer *t);
int32_t cld_tokenizer_max_id(const struct cld_tokenizer *t);

/* The id of an added token by its content, or of a vocabulary entry by its spelling in the file;
 * -1 if there is none. For names such as "<|mask|>". */
int32_t cld_tokenizer_find(const struct cld_tokenizer *t, const char *token);

enum cld_status cld_encoder_new(const struct cld_tokenizer *t, struct cld_encoder **out,
                                struct cld_error *err);
void cld_encoder_free(struct cld_encoder *e);

/* Token ids, and where each token begins as a byte offset of the text it came from (for text that
 * normalisation rewrote: nfc.h). Zero-initialise; owned by the caller, reused from call to call. */
struct cld_tokens {
    int32_t *ids;   /* [n] */
    size_t *begins; /* [n], ascending */
    size_t n, cap_ids, cap_begins;
};
void cld_tokens_release(struct cld_tokens *tokens);

/* Replaces what `out` holds. With `special` the post_processor's tokens (a BOS, say) are added;
 * chat templates write theirs themselves, so their text is encoded without.
 * CLD_E_INPUT: not well-formed UTF-8, or a byte that the vocabulary has no token for. */
enum cld_status cld_encode(struct cld_encoder *e, const char *text, size_t n_bytes, bool special,
                           struct cld_tokens *out, struct cld_error *err);

/* The bytes of ids[0..n), added tokens as their content, as a malloc'd array with a NUL after it.
 * Not necessarily UTF-8: a token may hold a part of a character. CLD_E_INPUT: an unknown id. */
enum cld_status cld_decode(const struct cld_tokenizer *t, const int32_t *ids, size_t n, char **out,
                           size_t *n_bytes, struct cld_error *err);

#endif
