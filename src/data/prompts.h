/* prompts.h - a file of prompts, line by line: chats whose next answer is wanted.
 *
 * A line is a row as in dataset.h with messages or conversations. What the assistant says last is
 * left out: it is what is to be answered anew. A prompt may say how it wants to be answered
 * (max_tokens, temperature, ...): that is done, or it is refused by name. One thread at a time. */
#ifndef CLD_DATA_PROMPTS_H
#define CLD_DATA_PROMPTS_H

#include "text/chat.h"

struct cld_prompt {
    size_t row;       /* number of the line, from 0 */
    char source[17];  /* of its text and of `settings`: 16 digits of a SHA-256 */
    json_t *messages; /* [{role, content}], owned by the receiver of the prompt */
    json_t *id;       /* the row's "id", NULL: none; owned like it */
    int32_t *ids;     /* [n], rendered up to where the assistant begins; owned like it */
    size_t n;
    size_t n_new; /* tokens of its answer, at most */
};
void cld_prompt_free(struct cld_prompt *p); /* frees what it holds and zeroes it; NULL-safe */

struct cld_prompts;

/* How prompts are answered. All is borrowed. */
struct cld_prompt_rules {
    enum cld_chat_template chat_template;
    enum cld_thinking thinking; /* unless a prompt says otherwise */
    const char *settings;       /* a text of whatever else decides about answers */
    size_t n_new;               /* tokens of an answer, at most */
    double temperature, top_p;
    int64_t seed;
    const char *const *ignored_keys; /* [n_ignored_keys], see row_keys.h */
    size_t n_ignored_keys;
};

/* CLD_E_INPUT. */
enum cld_status cld_prompts_open(const char *path, const struct cld_tokenizer *tokenizer,
                                 const struct cld_prompt_rules *rules, struct cld_prompts **out,
                                 struct cld_error *err);
void cld_prompts_close(struct cld_prompts *p); /* NULL-safe */

/* The next line that is not blank. *there false: there is none. The reading says why it cannot be
 * used, with the reason in *why; then it has a row and a source, and no tokens. Failures are those
 * of reading the file. */
enum cld_status cld_prompts_next(struct cld_prompts *p, struct cld_prompt *out, bool *there,
                                 struct cld_row_reading *r, struct cld_error *why,
                                 struct cld_error *err);

/* Keys of prompts that were passed over so far. */
const struct cld_key_counts *cld_prompts_unread(const struct cld_prompts *p);

#endif
