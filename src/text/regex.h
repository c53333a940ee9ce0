/* regex.h - the patterns of tokenizer files: Oniguruma's Ruby syntax, run by PCRE2.
 *
 * A pattern is translated construct by construct; where the two engines would differ (\s, \v, {n}+,
 * ...) the translation spells the meaning out, and what is not known to mean the same is refused by
 * name. Character classes such as \p{L} are those of the Unicode version that PCRE2 was built with.
 *
 * A cld_regex is immutable and shared by all threads; a cld_matcher belongs to one thread. */
#ifndef CLD_TEXT_REGEX_H
#define CLD_TEXT_REGEX_H

#include <stddef.h>

#include "base/error.h"

struct cld_regex;
struct cld_matcher;

/* CLD_E_INPUT: malformed, unsupported (the message names the construct), or able to match
 * nothing. */
enum cld_status cld_regex_new(const char *pattern, size_t n_bytes, struct cld_regex **out,
                              struct cld_error *err);
/* A pattern that matches exactly this text. */
enum cld_status cld_regex_new_literal(const char *text, size_t n_bytes, struct cld_regex **out,
                                      struct cld_error *err);
void cld_regex_free(struct cld_regex *r);

enum cld_status cld_matcher_new(struct cld_matcher **out, struct cld_error *err);
void cld_matcher_free(struct cld_matcher *m);

/* The leftmost match in text[from..n), well-formed UTF-8; lookbehind sees text[0..from), lookahead
 * ends at n. No match: *begin = *end = n. */
enum cld_status cld_regex_find(const struct cld_regex *r, struct cld_matcher *m, const char *text,
                               size_t n, size_t from, size_t *begin, size_t *end,
                               struct cld_error *err);

#endif
