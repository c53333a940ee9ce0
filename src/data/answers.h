/* answers.h - the output of generate.h: JSONL that a run goes on with.
 *
 * A line: {"row", "source", "id", "messages", "input_ids", "loss_mask", "finish", "cldraft"}; "row"
 * and "source" are the prompt's (prompts.h), "cldraft" names the template and the tokenizer of the
 * tokens. One thread at a time. */
#ifndef CLD_DATA_ANSWERS_H
#define CLD_DATA_ANSWERS_H

#include <stdbool.h>

#include "data/prompts.h"

struct cld_answers;

/* Reads what is there, cuts off a last line without an end, and opens the file for more. The names
 * of the template and the SHA-256 of the tokenizer are borrowed. CLD_E_INPUT for a line that is not
 * ours, CLD_E_IO. */
enum cld_status cld_answers_open(const char *path, const char *chat_template,
                                 const char *tokenizer_hash, struct cld_answers **out,
                                 struct cld_error *err);
/* CLD_E_IO where the last lines did not reach the disk. NULL-safe. */
enum cld_status cld_answers_close(struct cld_answers *a, struct cld_error *err);

/* Is there an answer to this prompt? CLD_E_USAGE where that of its row has another source. */
enum cld_status cld_answers_has(const struct cld_answers *a, const struct cld_prompt *p, bool *has,
                                struct cld_error *err);

/* Writes a line: the text `content` [n_bytes], UTF-8, is added to the prompt's messages; tokens are
 * ids [n]; the first p->n are the prompt. */
enum cld_status cld_answers_add(struct cld_answers *a, const struct cld_prompt *p,
                                const char *content, size_t n_bytes, const int32_t *ids, size_t n,
                                const char *finish, struct cld_error *err);

#endif
