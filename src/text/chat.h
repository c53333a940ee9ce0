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
#ifndef CLD_TEXT_CHAT_H
#define CLD_TEXT_CHAT_H

#include <stdbool.h>
#include <stdint.h>

#include "text/messages.h"
#include "text/tokenizer.h"

enum cld_chat_template { CLD_CHAT_CHATML, CLD_CHAT_QWEN3, CLD_CHAT_LLAMA3 };

/* "chatml", "qwen3" or "llama3"; CLD_E_USAGE lists the names. */
enum cld_status cld_chat_template_named(const char *name, enum cld_chat_template *out,
                                        struct cld_error *err);
const char *cld_chat_template_name(enum cld_chat_template t);

/* The built-in template that a model's directory declares: its chat_template (chat_template.jinja,
 * else that of tokenizer_config.json, else chat_template.json) must be one that is known to give
 * the same text; a newline at its end does not count. CLD_E_USAGE otherwise, with the list of names
 * to choose from; CLD_E_INPUT for unreadable files. */
enum cld_status cld_chat_template_of(const char *model_dir, enum cld_chat_template *out,
                                     struct cld_error *err);

struct cld_chat_span {
    size_t begin, end; /* bytes of the text */
};

/* A message's turn: header, content, end mark. Text between turns is the template's own. */
struct cld_chat_turn {
    size_t begin, end; /* bytes of the text */
    enum cld_role role;
};

/* A rendered conversation. Zero-initialise; reused from call to call. */
struct cld_chat {
    char *text;
    size_t n_text, cap_text;
    struct cld_chat_span *spans; /* supervised, ascending */
    size_t n_spans, cap_spans;
    struct cld_chat_turn *turns; /* one for each message, ascending */
    size_t n_turns, cap_turns;
};
void cld_chat_release(struct cld_chat *chat);

/* Replaces what `out` holds. CLD_E_INPUT with CLD_ROW_UNSUPPORTED in the reading: a role or field
 * that the template has no place for. */
enum cld_status cld_chat_render(enum cld_chat_template t, const struct cld_message *messages,
                                size_t n, struct cld_chat *out, struct cld_row_reading *r,
                                struct cld_error *err);

/* Can a prompt of this template ask for thinking, or for none? */
bool cld_chat_has_thinking(enum cld_chat_template t);

/* The messages, then the text up to where the answer begins: what a server gives the model. Nothing
 * is supervised. Thinking off: with the empty think block of a template that has one; auto: as the
 * template by itself, which asks for thinking. CLD_E_INPUT as above, also for thinking that the
 * template does not have. */
enum cld_status cld_chat_render_prompt(enum cld_chat_template t, const struct cld_message *messages,
                                       size_t n, enum cld_thinking thinking, struct cld_chat *out,
                                       struct cld_row_reading *r, struct cld_error *err);

/* A row to be learned says whether it asks for thinking: its last answer must be like that, and the
 * template must have it. CLD_E_INPUT otherwise. */
enum cld_status cld_chat_check_thinking(enum cld_chat_template t, const struct cld_conversation *c,
                                        struct cld_row_reading *r, struct cld_error *err);

/* Which answers does the template write otherwise once later messages follow, so that the target
 * did not write what stands here? `chat` is the rendering of all messages, `prefix` is scratch;
 * spans of such answers get `end` = `begin`, which supervises nothing, where `drop`. *n: how many
 * there are. As _render otherwise. */
enum cld_status cld_chat_history(enum cld_chat_template t, const struct cld_message *messages,
                                 size_t n_messages, struct cld_chat *chat, struct cld_chat *prefix,
                                 bool drop, size_t *n, struct cld_error *err);

/* SHA-256 of the template that a model's directory declares, "" where it declares none, in
 * hexadecimal; and whether it is a known one, and which. CLD_E_INPUT for unreadable files. */
enum cld_status cld_chat_declared(const char *model_dir, char hash[65], bool *is_known,
                                  enum cld_chat_template *out, struct cld_error *err);

/* mask[i] = 1 for tokens that begin inside a supervised span, else 0; [tokens->n].
 */
void cld_chat_mask(const struct cld_chat *chat, const struct cld_tokens *tokens, uint8_t *mask);

#endif
