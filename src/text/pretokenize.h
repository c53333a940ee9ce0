/* pretokenize.h - the pre_tokenizer of a tokenizer file: cuts a text into the words that BPE
 * merges.
 *
 * Supported: ByteLevel, alone or last in a Sequence after any number of Split and Digits. The
 * rules are immutable and shared by all threads; the matcher and the scratch text belong to one
 * thread. */
#ifndef CLD_TEXT_PRETOKENIZE_H
#define CLD_TEXT_PRETOKENIZE_H

#include <stddef.h>

#include <jansson.h>

#include "base/error.h"
#include "text/regex.h"

struct cld_pretokenizer;

/* CLD_E_INPUT names what is not supported. */
enum cld_status cld_pretokenizer_new(const json_t *config, struct cld_pretokenizer **out,
                                     struct cld_error *err);
void cld_pretokenizer_free(struct cld_pretokenizer *p);

/* One word: n bytes at `word`. Its byte k comes from the text's byte at + max(k - n_added, 0):
 * n_added (0 or 1) is a space that ByteLevel put before it. */
struct cld_word {
    const char *bytes;
    size_t n, at, n_added;
};
typedef enum cld_status cld_word_fn(void *to, const struct cld_word *word, struct cld_error *err);

/* What a thread needs for cutting; zero-initialise, set `matcher`, free `text` at the end. */
struct cld_pretokenizer_scratch {
    struct cld_matcher *matcher;
    char *text;
    size_t cap_text;
};

/* Cuts text[0..n), well-formed UTF-8, and hands the words over in order. */
enum cld_status cld_pretokenize(const struct cld_pretokenizer *p,
                                struct cld_pretokenizer_scratch *scratch, const char *text,
                                size_t n, cld_word_fn *fn, void *to, struct cld_error *err);

#endif
