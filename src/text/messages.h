/* messages.h - the conversation of a data row: a JSON array of messages, checked.
 *
 * Two spellings: {"role", "content"} and ShareGPT's {"from", "value"} (human and user, gpt and
 * assistant, system, tool). Which keys may stand beside them: row_keys.h. Strings are borrowed from
 * the JSON document. Any thread. */
#ifndef CLD_TEXT_MESSAGES_H
#define CLD_TEXT_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "base/error.h"
#include "config/thinking.h"
#include "text/row_keys.h"

enum cld_role { CLD_SYSTEM, CLD_USER, CLD_ASSISTANT, CLD_TOOL, CLD_N_ROLES };

struct cld_text {
    const char *at; /* NULL: not there */
    size_t n;
};

struct cld_message {
    enum cld_role role;
    struct cld_text content;
    struct cld_text reasoning; /* an assistant's thinking, given beside its content */
    const char *reasoning_key; /* the key that holds it */
    const char *mask_key;      /* the key that says whether it is learned; NULL: none does */
    bool excluded;             /* an answer that is context only */
};

/* All that a row says about a chat. */
struct cld_conversation {
    struct cld_message *messages; /* [n], owned */
    size_t n;
    char *joined;               /* owned: reasoning that stood in pieces */
    enum cld_thinking thinking; /* what the row asks for; auto: it does not say */
};
void cld_conversation_release(struct cld_conversation *c);

const char *cld_role_name(enum cld_role role);

/* A line of data as an object. *out is dropped with json_decref; NULL on failure. CLD_E_INPUT: the
 * reading says why. */
enum cld_status cld_row_parse(const char *text, size_t n, json_t **out, struct cld_row_reading *r,
                              struct cld_error *err);

/* A list of messages alone. CLD_E_INPUT as above. `out` is released by the caller whatever the
 * result was. */
enum cld_status cld_messages_read(const json_t *list, struct cld_conversation *out,
                                  struct cld_row_reading *r, struct cld_error *err);

/* The chat of a row: its messages or conversations, a system text that stands beside them as the
 * first message, which answers are learned, and whether it asks for thinking. `place` is
 * CLD_KEY_OF_CHAT or CLD_KEY_OF_PROMPT. As above. */
enum cld_status cld_conversation_read(const json_t *row, unsigned place,
                                      struct cld_conversation *out, struct cld_row_reading *r,
                                      struct cld_error *err);

#endif
