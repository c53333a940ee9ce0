/* messages.h - the conversation of a data row: a JSON array of messages, checked.
 *
 * Two spellings: {"role", "content"} and ShareGPT's {"from", "value"} (human and user, gpt and
 * assistant, system, tool). Keys that would change what a template writes are refused by name;
 * other keys (ids, time stamps) say nothing to a template and are passed over, as templates do.
 * Strings are borrowed from the JSON document. Any thread. */
#ifndef CLD_TEXT_MESSAGES_H
#define CLD_TEXT_MESSAGES_H

#include <stddef.h>

#include <jansson.h>

#include "base/error.h"

enum cld_role { CLD_SYSTEM, CLD_USER, CLD_ASSISTANT, CLD_TOOL, CLD_N_ROLES };

struct cld_text {
    const char *at; /* NULL: not there */
    size_t n;
};

struct cld_message {
    enum cld_role role;
    struct cld_text content;
    struct cld_text reasoning; /* reasoning_content */
};

/* Why a row of data is not used, for counting. */
enum cld_row_fault {
    CLD_ROW_FINE,
    CLD_ROW_NOT_UTF8,
    CLD_ROW_BAD_JSON,
    CLD_ROW_BAD_SHAPE, /* missing or contradictory keys, wrong types, no message */
    CLD_ROW_UNKNOWN_ROLE,
    CLD_ROW_UNSUPPORTED,  /* tool calls, content that is no string, a role without a place, ... */
    CLD_ROW_UNSUPERVISED, /* no two consecutive supervised tokens */
    CLD_ROW_CUT_PROMPT,   /* the same, because max_length cut the row before its answer */
    CLD_N_ROW_FAULTS
};

/* "not UTF-8", "broken JSON", ... */
const char *cld_row_fault_name(enum cld_row_fault fault);

const char *cld_role_name(enum cld_role role);

/* A line of data as an object, without keys that would change what a template writes. *out is
 * dropped with json_decref; NULL on failure. CLD_E_INPUT: *fault tells the kind. */
enum cld_status cld_row_parse(const char *text, size_t n, json_t **out, enum cld_row_fault *fault,
                              struct cld_error *err);

/* *out [*n] is freed by the caller with free(). CLD_E_INPUT: *fault tells the kind. */
enum cld_status cld_messages_read(const json_t *list, struct cld_message **out, size_t *n,
                                  enum cld_row_fault *fault, struct cld_error *err);

#endif
