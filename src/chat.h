/* chat.h - conversations as the text a model was trained on, and which bytes of it are supervised.
 *
 * chatml   <|im_start|>ROLE\nCONTENT<|im_end|>\n for each message; roles system, user, assistant,
 *          tool. Content goes in as it is.
 * qwen3    the published template of Qwen3 without tools: a system message is the same anywhere;
 *          assistants after the last real user turn keep their thinking (reasoning_content, or what
 *          stands before </think> in the content), the last message gets an empty think block if it
 *          has none; earlier ones lose it; tool messages become <tool_response> in a user turn.
 * llama3   the published template of Llama 3 (not the 3.1 one, which adds dates): <|begin_of_text|>
 *          once, then for each message <|start_header_id|>ROLE<|end_header_id|>\n\n, the content
 *          without white space at both ends, <|eot_id|>; roles system, user, assistant.
 *
 * Supervised are each assistant's body as rendered and its end mark (<|im_end|>, <|eot_id|>); not
 * the header, an empty think block that the template inserted, or the newline after the end mark.
 *
 * A cld_chat belongs to one caller; everything else is pure. */
#ifndef CLD_CHAT_H
#define CLD_CHAT_H

#include <stdint.h>

#include "messages.h"
#include "tokenizer.h"

enum cld_chat_template { CLD_CHAT_CHATML, CLD_CHAT_QWEN3, CLD_CHAT_LLAMA3 };

/* "chatml", "qwen3" or "llama3"; CLD_E_USAGE lists the names. */
enum cld_status cld_chat_template_named(const char *name, enum cld_chat_template *out,
                                        struct cld_error *err);
const char *cld_chat_template_name(enum cld_chat_template t);

/* The built-in template that a model's directory declares: its chat_template
 * (tokenizer_config.json, or chat_template.jinja) must be, byte for byte, one that is known to
 * give the same text. CLD_E_USAGE otherwise, with the list of names to choose from; CLD_E_INPUT
 * for unreadable files. */
enum cld_status cld_chat_template_of(const char *model_dir, enum cld_chat_template *out,
                                     struct cld_error *err);

struct cld_chat_span {
    size_t begin, end; /* bytes of the text */
};

/* A rendered conversation. Zero-initialise; reused from call to call. */
struct cld_chat {
    char *text;
    size_t n_text, cap_text;
    struct cld_chat_span *spans; /* supervised, ascending */
    size_t n_spans, cap_spans;
};
void cld_chat_release(struct cld_chat *chat);

/* Replaces what `out` holds. CLD_E_INPUT with *fault CLD_ROW_UNSUPPORTED: a role or field that the
 * template has no place for. */
enum cld_status cld_chat_render(enum cld_chat_template t, const struct cld_message *messages,
                                size_t n, struct cld_chat *out, enum cld_row_fault *fault,
                                struct cld_error *err);

/* The same up to where an assistant's next body begins: what a server gives the model. Nothing is
 * supervised. */
enum cld_status cld_chat_render_prompt(enum cld_chat_template t, const struct cld_message *messages,
                                       size_t n, struct cld_chat *out, enum cld_row_fault *fault,
                                       struct cld_error *err);

/* mask[i] = 1 for tokens that begin inside a supervised span, else 0; mask has room for
 * tokens->n. */
void cld_chat_mask(const struct cld_chat *chat, const struct cld_tokens *tokens, uint8_t *mask);

#endif
