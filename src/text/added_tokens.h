/* added_tokens.h - the added_tokens of a tokenizer file: texts that become one token wherever they
 * stand, found before BPE sees anything.
 *
 * Tokens with normalized = false are looked for in the text as given, the others in the pieces that
 * remain, after normalisation; so there are two sets of them. Immutable, shared by all threads. */
#ifndef CLD_TEXT_ADDED_TOKENS_H
#define CLD_TEXT_ADDED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct cld_added_token {
    char *text;
    size_t n_bytes;
    int32_t id;
    bool lstrip, rstrip; /* the token takes the white space before (after) it along */
};

struct cld_added_set;

/* Copies tokens[0..n). */
enum cld_status cld_added_set_new(const struct cld_added_token *tokens, size_t n,
                                  struct cld_added_set **out, struct cld_error *err);
void cld_added_set_free(struct cld_added_set *set);

/* A walk over a text; zero-initialise. After a hit, text[gap_begin..begin) holds no token (it is
 * empty if begin <= gap_begin) and text[begin..end) is the token `id`. */
struct cld_added_scan {
    size_t at; /* where the search goes on */
    size_t gap_begin, begin, end;
    int32_t id;
};

/* The next token, leftmost and then longest. False at the end: text[gap_begin..n) is the rest. */
bool cld_added_next(const struct cld_added_set *set, const char *text, size_t n,
                    struct cld_added_scan *scan);

#endif
