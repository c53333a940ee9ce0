#include "text/row_keys.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "formats/json_lenient.h"

const char *cld_row_fault_name(enum cld_row_fault fault)
{
    static const char *const names[CLD_N_ROW_FAULTS] = {
        "fine",        "not UTF-8",     "broken JSON",  "malformed row",        "unknown role",
        "unsupported", "contradictory", "unsupervised", "cut within the prompt"};
    return names[fault];
}

/* ---- the table ---- */

/* INSIDE: read, and what is in it is looked at key by key. */
enum fate { READ, INSIDE, HARMLESS, UNREAD, REFUSED };

/* Values with which a refused key means nothing. null always does. */
enum {
    EMPTY = 1,      /* "", [], {}, and the texts "[]" and "{}" */
    OFF = 2,        /* false, 0 */
    ON = 4,         /* true, 1 */
    TEXT = 8,       /* any text */
    SWITCH = 16,    /* the texts on and off */
    ZEROS = 32,     /* a list of zeros */
    NO_NUMBERS = 64 /* anything but a list of numbers */
};

#define CHAT    CLD_KEY_OF_CHAT
#define IDS     CLD_KEY_OF_IDS
#define PROMPT  CLD_KEY_OF_PROMPT
#define MESSAGE CLD_KEY_OF_MESSAGE
#define ROWS    (CHAT | IDS)
#define CHATS   (CHAT | PROMPT)
#define ALL     (CHAT | IDS | PROMPT)
#define ANY     (ALL | MESSAGE)

/* The first row that fits name and place decides. */
static const struct row_key {
    const char *name; /* a * in it stands for any text */
    unsigned places;
    enum fate fate;
    unsigned passes;
    const char *why;
} keys[] = {
    /* The chat, or its tokens. */
    {"messages", ALL, INSIDE, 0, ""},
    {"conversations", ALL, INSIDE, 0, ""},
    {"input_ids", IDS, READ, 0, ""},
    {"cldraft", ROWS, READ, 0, ""},
    {"system", CHATS, READ, 0, ""},
    {"system_prompt", CHATS, READ, 0, ""},
    {"system_message", CHATS, READ, 0, ""},
    {"enable_thinking", CHATS, READ, 0, ""},
    {"chat_template_kwargs", CHATS, READ, 0, ""},
    {"loss_mask", ROWS, READ, 0, ""},

    /* Beside ready tokens: what is learned of them, and which documents they are. */
    {"labels", IDS, READ, 0, ""},
    {"completion_mask", IDS, READ, 0, ""},
    {"assistant_mask", IDS, READ, 0, ""},
    {"assistant_masks", IDS, READ, 0, ""},
    {"attention_mask", IDS, READ, 0, ""},
    {"position_ids", IDS, READ, 0, ""},
    {"seq_lens", IDS, READ, 0, ""},
    {"sequence_lengths", IDS, READ, 0, ""},
    {"cu_seqlens", IDS, READ, 0, ""},
    {"cu_seq_lens", IDS, READ, 0, ""},
    {"cu_seq_lens_q", IDS, READ, 0, ""},
    {"cu_seq_lens_k", IDS, READ, 0, ""},
    {"seq_start_id", IDS, READ, 0, ""},
    {"seq_idx", IDS, READ, 0, ""},
    {"segment_ids", IDS, READ, 0, ""},
    {"document_ids", IDS, READ, 0, ""},
    {"token_type_ids", IDS, REFUSED, EMPTY | ZEROS, "text has one type of tokens"},
    {"special_tokens_mask", IDS, HARMLESS, 0, ""},
    {"max_length_q", IDS, HARMLESS, 0, ""},
    {"max_length_k", IDS, HARMLESS, 0, ""},
    {"max_seqlen", IDS, HARMLESS, 0, ""},
    /* What the tokens were made from; they are complete without it. */
    {"system", IDS, UNREAD, 0, ""},
    {"system_prompt", IDS, UNREAD, 0, ""},
    {"system_message", IDS, UNREAD, 0, ""},
    {"enable_thinking", IDS, UNREAD, 0, ""},
    {"chat_template_kwargs", IDS, UNREAD, 0, ""},
    {"tools", IDS, UNREAD, 0, ""},
    {"functions", IDS, UNREAD, 0, ""},

    /* A message. */
    {"role", MESSAGE, READ, 0, ""},
    {"content", MESSAGE, READ, 0, ""},
    {"from", MESSAGE, READ, 0, ""},
    {"value", MESSAGE, READ, 0, ""},
    {"reasoning_content", MESSAGE, READ, 0, ""},
    {"reasoning", MESSAGE, READ, 0, ""},
    {"thinking", MESSAGE, READ, 0, ""},
    {"thinking_content", MESSAGE, READ, 0, ""},
    {"reasoning_details", MESSAGE, READ, 0, ""},
    {"loss_mask", MESSAGE, READ, 0, ""},
    {"train", MESSAGE, READ, 0, ""},
    {"trainable", MESSAGE, READ, 0, ""},
    {"training", MESSAGE, READ, 0, ""},
    {"learn", MESSAGE, READ, 0, ""},
    {"loss", MESSAGE, READ, 0, ""},
    {"weight", MESSAGE, READ, 0, ""},
    {"loss_weight", MESSAGE, READ, 0, ""},
    {"loss_scale", MESSAGE, READ, 0, ""},
    {"tool_calls", MESSAGE, REFUSED, EMPTY, "calls of tools cannot be rendered"},
    {"function_call", MESSAGE, REFUSED, EMPTY, "calls of functions cannot be rendered"},
    {"refusal", MESSAGE, REFUSED, EMPTY, "it has no place in a template"},
    {"prefix", MESSAGE, REFUSED, EMPTY | OFF, "an answer that has begun cannot be continued"},
    {"partial", MESSAGE, REFUSED, EMPTY | OFF, "an answer that has begun cannot be continued"},
    {"recipient", MESSAGE, REFUSED, EMPTY, "it has no place in a template"},
    {"channel", MESSAGE, REFUSED, EMPTY, "it has no place in a template"},

    /* How an answer is made. Rows to be learned only say how theirs were. */
    {"id", PROMPT, READ, 0, ""},
    {"max_tokens", PROMPT, READ, 0, ""},
    {"max_new_tokens", PROMPT, READ, 0, ""},
    {"max_completion_tokens", PROMPT, READ, 0, ""},
    {"temperature", PROMPT, READ, 0, ""},
    {"top_p", PROMPT, READ, 0, ""},
    {"seed", PROMPT, READ, 0, ""},
    {"n", PROMPT, REFUSED, ON, "a prompt gets one answer"},
    {"best_of", PROMPT, REFUSED, ON, "a prompt gets one answer"},
    {"num_return_sequences", PROMPT, REFUSED, ON, "a prompt gets one answer"},
    {"stop", PROMPT, REFUSED, EMPTY, "an answer ends with the target's end tokens"},
    {"stop_*", PROMPT, REFUSED, EMPTY, "an answer ends with the target's end tokens"},
    {"top_k", PROMPT, REFUSED, OFF, "sampling has temperature and top_p alone"},
    {"min_p", PROMPT, REFUSED, OFF, "sampling has temperature and top_p alone"},
    {"repetition_penalty", PROMPT, REFUSED, ON, "sampling has temperature and top_p alone"},
    {"*_penalty", PROMPT, REFUSED, OFF, "sampling has temperature and top_p alone"},
    {"do_sample", PROMPT, REFUSED, 0, "generate.temperature says so"},
    {"sampling_params", PROMPT, REFUSED, EMPTY, "set [generate]"},
    {"generation_config", PROMPT, REFUSED, EMPTY, "set [generate]"},
    {"logit_bias", PROMPT, REFUSED, EMPTY, "logits are the target's own"},
    {"min_tokens", PROMPT, REFUSED, OFF, "an answer ends with the target's end tokens"},
    {"min_new_tokens", PROMPT, REFUSED, OFF, "an answer ends with the target's end tokens"},
    {"ignore_eos", PROMPT, REFUSED, OFF, "an answer ends with the target's end tokens"},
    {"response_format", PROMPT, REFUSED, EMPTY, "answers are free text"},
    {"guided_*", PROMPT, REFUSED, EMPTY, "answers are free text"},
    {"add_generation_prompt", PROMPT, REFUSED, ON, "a prompt ends where the answer begins"},
    {"add_generation_prompt", ROWS, REFUSED, EMPTY | OFF, "a row ends with its last message"},
    {"continue_final_message", ANY, REFUSED, EMPTY | OFF,
     "an answer that has begun cannot be continued"},
    {"input_ids", PROMPT, HARMLESS, 0, ""}, /* the answer is made anew */
    {"loss_mask", PROMPT, HARMLESS, 0, ""},
    {"cldraft", PROMPT, HARMLESS, 0, ""},
    {"temperature", ROWS, HARMLESS, 0, ""},
    {"top_p", ROWS, HARMLESS, 0, ""},
    {"max_tokens", ROWS, HARMLESS, 0, ""},

    /* Preferences, and other answers than those of the chat. */
    {"chosen", ALL, REFUSED, EMPTY, "a row has one chat"},
    {"rejected", ALL, REFUSED, EMPTY, "a row has one chat"},
    {"prompt", ALL, REFUSED, EMPTY | TEXT, "a row has one chat"},
    {"completion", ALL, REFUSED, EMPTY | TEXT, "a row has one chat"},
    {"conversation", ALL, REFUSED, EMPTY, "a row has one chat"},
    {"prefix", ALL, REFUSED, EMPTY | OFF, "an answer that has begun cannot be continued"},
    {"suffix", ALL, REFUSED, EMPTY | OFF, "nothing stands after an answer"},

    /* Names that begin like those below and mean nothing. */
    {"system_fingerprint", ANY, HARMLESS, 0, ""},
    {"used_in_training", ALL, HARMLESS, 0, ""},
    {"reasoning", ALL, REFUSED, EMPTY | OFF | SWITCH, "thinking belongs to a message"},
    {"reasoning_tokens", ALL, HARMLESS, 0, ""},
    {"reasoning_details", ALL, REFUSED, EMPTY | OFF, "thinking belongs to a message"},
    {"reasoning_content", ALL, REFUSED, EMPTY | OFF, "thinking belongs to a message"},
    {"reasoning_effort", ANY, REFUSED, EMPTY, "no built-in template has it"},
    {"labels", CHATS, REFUSED, EMPTY | NO_NUMBERS, "labels of tokens need input_ids"},
    {"label_ids", ALL, REFUSED, EMPTY, "labels of tokens are read from labels"},
    {"doc_ids", ALL, REFUSED, EMPTY, "documents are read from seq_idx or document_ids"},

    /* Keys and kinds of keys that mean something and cannot be honoured. */
    {"tools", CHATS, REFUSED, EMPTY | OFF, "no built-in template renders tools"},
    {"*tools", ANY, REFUSED, EMPTY | OFF, "no built-in template renders tools"},
    {"tool_choice", ALL, HARMLESS, 0, ""}, /* without tools */
    {"parallel_tool_calls", ALL, HARMLESS, 0, ""},
    {"tool_call_id", MESSAGE, HARMLESS, 0, ""},
    {"tool_name", MESSAGE, HARMLESS, 0, ""},
    {"tool_*", ALL, REFUSED, EMPTY | OFF, "no built-in template renders tools"},
    {"functions", ANY, REFUSED, EMPTY | OFF, "no built-in template renders tools"},
    {"function_*", ALL, REFUSED, EMPTY | OFF, "no built-in template renders tools"},
    {"document", ANY, REFUSED, EMPTY | OFF, "no built-in template renders documents"},
    {"documents", ANY, REFUSED, EMPTY | OFF, "no built-in template renders documents"},
    {"attachments", ANY, REFUSED, EMPTY | OFF, "only text is read"},
    {"*image*", ANY, REFUSED, EMPTY | OFF, "only text is read"},
    {"*video*", ANY, REFUSED, EMPTY | OFF, "only text is read"},
    {"*audio*", ANY, REFUSED, EMPTY | OFF, "only text is read"},
    {"pixel_*", ANY, REFUSED, EMPTY, "only text is read"},
    {"*_embeds", ANY, REFUSED, EMPTY, "only tokens are read"},
    {"chat_template*", ALL, REFUSED, EMPTY, "data.template is the template of all rows"},
    {"template", ALL, UNREAD, 0, ""},
    {"system_*", ALL, REFUSED, EMPTY, "a system text is read from system"},
    {"*thinking*", ALL, REFUSED, EMPTY | OFF, "a row says so with enable_thinking"},
    {"mask", ANY, REFUSED, EMPTY, "say with loss_mask what is learned"},
    {"*_mask", ALL, REFUSED, EMPTY, "say with loss_mask what is learned"},
    {"*_masks", ALL, REFUSED, EMPTY, "say with loss_mask what is learned"},
    {"loss*", ALL, REFUSED, EMPTY, "say with loss_mask what is learned"},
    {"mask_*", ALL, REFUSED, EMPTY | OFF, "say with loss_mask what is learned"},
    {"train_on*", ALL, REFUSED, EMPTY | OFF, "say with loss_mask what is learned"},
    {"*_to_train", ALL, REFUSED, EMPTY, "say with loss_mask what is learned"},
    {"train", ALL, REFUSED, ON, "rows are learned whole; a message may have it"},
    {"trainable", ALL, REFUSED, ON, "rows are learned whole; a message may have it"},
    {"weight", ALL, REFUSED, ON, "all rows count alike"},
    {"sample_weight", ALL, REFUSED, ON, "all rows count alike"},
    {"weights", ALL, REFUSED, EMPTY, "all tokens of answers count alike"},
    {"*_weights", ALL, REFUSED, EMPTY, "all tokens of answers count alike"},
    {"attention_mask*", CHATS, REFUSED, EMPTY, "it needs input_ids"},
    {"position_ids*", CHATS, REFUSED, EMPTY, "it needs input_ids"},
    {"seq_len*", ALL, REFUSED, EMPTY, "documents are read from seq_lens, beside input_ids"},
    {"cu_seq*", ALL, REFUSED, EMPTY, "documents are read from cu_seqlens, beside input_ids"},
    {"seq_idx*", ALL, REFUSED, EMPTY, "it needs input_ids"},

    /* Metadata of public data sets. */
    {"id", ROWS | MESSAGE, HARMLESS, 0, ""},
    {"*_id", IDS, REFUSED, EMPTY | NO_NUMBERS,
     "numbers of tokens or documents are not known by it"},
    {"*_id", ANY, HARMLESS, 0, ""},
    {"uuid", ANY, HARMLESS, 0, ""},
    {"idx", ANY, HARMLESS, 0, ""},
    {"index", ANY, HARMLESS, 0, ""},
    {"hash", ANY, HARMLESS, 0, ""},
    {"row", ALL, HARMLESS, 0, ""},
    {"source", ANY, HARMLESS, 0, ""},
    {"finish", ALL, HARMLESS, 0, ""},
    {"finish_reason", ANY, HARMLESS, 0, ""},
    {"stop_reason", ANY, HARMLESS, 0, ""},
    {"dataset", ALL, HARMLESS, 0, ""},
    {"dataset_name", ALL, HARMLESS, 0, ""},
    {"split", ALL, HARMLESS, 0, ""},
    {"subset", ALL, HARMLESS, 0, ""},
    {"category", ALL, HARMLESS, 0, ""},
    {"domain", ALL, HARMLESS, 0, ""},
    {"task", ALL, HARMLESS, 0, ""},
    {"type", ALL, HARMLESS, 0, ""},
    {"tag", ALL, HARMLESS, 0, ""},
    {"tags", ALL, HARMLESS, 0, ""},
    {"title", ALL, HARMLESS, 0, ""},
    {"topic", ALL, HARMLESS, 0, ""},
    {"url", ALL, HARMLESS, 0, ""},
    {"license", ALL, HARMLESS, 0, ""},
    {"generator", ALL, HARMLESS, 0, ""},
    {"version", ALL, HARMLESS, 0, ""},
    {"language", ANY, HARMLESS, 0, ""},
    {"lang", ANY, HARMLESS, 0, ""},
    {"model", ANY, HARMLESS, 0, ""},
    {"model_name", ANY, HARMLESS, 0, ""},
    {"created", ANY, HARMLESS, 0, ""},
    {"created_*", ANY, HARMLESS, 0, ""},
    {"create_time", ANY, HARMLESS, 0, ""},
    {"update_time", ANY, HARMLESS, 0, ""},
    {"timestamp", ANY, HARMLESS, 0, ""},
    {"date", ANY, HARMLESS, 0, ""},
    {"metadata", ANY, HARMLESS, 0, ""},
    {"meta", ANY, HARMLESS, 0, ""},
    {"score*", ANY, HARMLESS, 0, ""},
    {"*_score", ANY, HARMLESS, 0, ""},
    {"*_scores", ANY, HARMLESS, 0, ""},
    {"rating*", ANY, HARMLESS, 0, ""},
    {"*_rating", ANY, HARMLESS, 0, ""},
    {"rank", ANY, HARMLESS, 0, ""},
    {"quality", ANY, HARMLESS, 0, ""},
    {"difficulty", ALL, HARMLESS, 0, ""},
    {"reward", ALL, HARMLESS, 0, ""},
    {"num_*", ALL, HARMLESS, 0, ""},
    {"*_tokens", ANY, HARMLESS, 0, ""},
    {"token_count", ANY, HARMLESS, 0, ""},
    {"length", ALL, HARMLESS, 0, ""},
    {"usage", ANY, HARMLESS, 0, ""},
    {"text", ALL, HARMLESS, 0, ""},
    {"turn", ANY, HARMLESS, 0, ""},
    {"turn_identifier", MESSAGE, HARMLESS, 0, ""},
    {"toxic", ANY, HARMLESS, 0, ""},
    {"redacted", ANY, HARMLESS, 0, ""},
    {"country", ANY, HARMLESS, 0, ""},
    {"state", ANY, HARMLESS, 0, ""},
    {"hashed_ip", ANY, HARMLESS, 0, ""},
    {"header", ANY, HARMLESS, 0, ""},
    {"name", ANY, HARMLESS, 0, ""}, /* no built-in template writes it */
    {"user", ANY, HARMLESS, 0, ""},
    {"logprobs", ANY, HARMLESS, 0, ""},
    {"annotations", MESSAGE, HARMLESS, 0, ""},
    {"cache_control", MESSAGE, HARMLESS, 0, ""},
    {"end_turn", MESSAGE, HARMLESS, 0, ""},
    {"stream", PROMPT, HARMLESS, 0, ""},
};

const char *cld_row_key_at(size_t i)
{
    return i < sizeof keys / sizeof *keys ? keys[i].name : NULL;
}

/* A * stands for any text. */
static bool fits(const char *pattern, const char *name)
{
    while (*pattern && *pattern != '*' && *pattern == *name) {
        pattern++;
        name++;
    }
    if (*pattern != '*')
        return !*pattern && !*name;
    for (;; name++) {
        if (fits(pattern + 1, name))
            return true;
        if (!*name)
            return false;
    }
}

static const struct row_key *find(const char *name, unsigned place)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].places & place && fits(keys[i].name, name))
            return &keys[i];
    return NULL;
}

/* ---- values ---- */

static bool is_text(const json_t *v, const char *a, const char *b)
{
    const char *text = json_string_value(v);
    return text && (!strcmp(text, a) || !strcmp(text, b));
}

static bool is_list_of(const json_t *v, bool zeros)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *x = json_array_get(v, i);
        if (!json_is_number(x) || (zeros && json_number_value(x) != 0))
            return false;
    }
    return json_array_size(v) > 0;
}

static bool means_nothing(const json_t *v, unsigned passes)
{
    double number = json_number_value(v);
    if (json_is_null(v))
        return true;
    if (passes & EMPTY && ((json_is_string(v) && !json_string_length(v)) ||
                           (json_is_array(v) && !json_array_size(v)) ||
                           (json_is_object(v) && !json_object_size(v)) || is_text(v, "[]", "{}")))
        return true;
    return (passes & OFF && (json_is_false(v) || (json_is_number(v) && number == 0))) ||
           (passes & ON && (json_is_true(v) || (json_is_number(v) && number == 1))) ||
           (passes & TEXT && json_is_string(v)) || (passes & SWITCH && is_text(v, "on", "off")) ||
           (passes & ZEROS && is_list_of(v, true)) ||
           (passes & NO_NUMBERS && !is_list_of(v, false));
}

/* ---- a row ---- */

enum cld_status cld_row_refuse(struct cld_row_reading *r, enum cld_row_fault fault, const char *key,
                               struct cld_error *err, const char *fmt, ...)
{
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    r->fault = fault;
    snprintf(r->key, sizeof r->key, "%s", key ? key : "");
    return cld_fail(err, CLD_E_INPUT, "correct the row; docs/data.md describes the formats", "%s",
                    what);
}

static bool is_ignored(const struct cld_row_reading *r, const char *name)
{
    for (size_t i = 0; i < r->n_ignored; i++)
        if (!strcmp(r->ignored[i], name))
            return true;
    return false;
}

static enum cld_status check_key(const char *name, const json_t *v, unsigned place,
                                 const char *where, struct cld_row_reading *r,
                                 struct cld_error *err)
{
    const struct row_key *k = find(name, place);
    /* Unknown numbers beside ready ids are about the tokens. */
    bool refuses = place == MESSAGE || (place == IDS && is_list_of(v, false));
    enum fate fate = k ? k->fate : refuses ? REFUSED : UNREAD;
    if (fate == HARMLESS || fate == INSIDE || json_is_null(v))
        return CLD_OK;
    if (fate != READ && is_ignored(r, name))
        fate = UNREAD;
    if (fate == REFUSED && !means_nothing(v, k ? k->passes : EMPTY))
        return cld_row_refuse(
            r, CLD_ROW_UNSUPPORTED, name, err, "%s\"%.*s\" is not supported%s%s%s", where,
            CLD_KEY_BYTES, name, k ? ": " : "", k ? k->why : "",
            k ? "" : ": it is no known key; data.ignore_keys can name keys without a meaning");
    if (fate == READ && r->repaired && cld_json_is_lost(v))
        return cld_row_refuse(r, CLD_ROW_UNSUPPORTED, name, err,
                              "%s\"%.*s\" holds NaN, Infinity or a number that is too long", where,
                              CLD_KEY_BYTES, name);
    if (fate == UNREAD && r->unread)
        cld_key_counts_add(r->unread, name);
    return CLD_OK;
}

enum cld_status cld_row_keys_check(const json_t *object, unsigned place, const char *where,
                                   struct cld_row_reading *r, struct cld_error *err)
{
    const char *name;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)object, name, v) {
        enum cld_status s = check_key(name, v, place, where, r, err);
        if (s)
            return s;
    }
    return CLD_OK;
}

/* ---- counts ---- */

void cld_key_counts_add(struct cld_key_counts *c, const char *name)
{
    size_t i = 0;
    while (i < c->n && strncmp(c->at[i].name, name, CLD_KEY_BYTES - 1))
        i++;
    if (i == CLD_MAX_KEY_COUNTS) {
        c->n_other++;
        return;
    }
    if (i == c->n)
        snprintf(c->at[c->n++].name, CLD_KEY_BYTES, "%s", name);
    c->at[i].n++;
}

void cld_key_counts_text(const struct cld_key_counts *c, char *to, size_t n_to)
{
    size_t n = 0;
    *to = '\0';
    for (size_t i = 0; i < c->n && n < n_to; i++)
        n += (size_t)snprintf(to + n, n_to - n, "%s%zu %s", i ? ", " : "", c->at[i].n,
                              c->at[i].name);
    if (c->n_other && n < n_to)
        snprintf(to + n, n_to - n, ", %zu of others", c->n_other);
}
