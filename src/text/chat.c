#include "text/chat.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/grow.h"
#include "base/sha256.h"
#include "base/size.h"
#include "base/utf8.h"
#include "formats/json_read.h"

static const char *const names[] = {"chatml", "qwen3", "llama3"};

enum cld_status cld_chat_template_named(const char *name, enum cld_chat_template *out,
                                        struct cld_error *err)
{
    for (int i = 0; i < 3; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum cld_chat_template)i;
            return CLD_OK;
        }
    return cld_fail(err, CLD_E_USAGE, "templates: chatml, qwen3, llama3",
                    "chat template \"%.60s\" is not known", name);
}

const char *cld_chat_template_name(enum cld_chat_template t)
{
    return names[t];
}

/* ---- rendering ---- */

void cld_chat_release(struct cld_chat *chat)
{
    if (!chat)
        return;
    free(chat->text);
    free(chat->spans);
    free(chat->turns);
    *chat = (struct cld_chat){0};
}

/* The writer remembers the first failure, so that templates read as templates. */
struct writer {
    struct cld_chat *chat;
    enum cld_status status;
    struct cld_error *err;
};

static void put(struct writer *w, const char *s, size_t n)
{
    struct cld_chat *c = w->chat;
    if (!w->status)
        w->status = cld_grow(&c->text, &c->cap_text, cld_add(c->n_text, n), 1, w->err);
    if (w->status)
        return;
    memcpy(c->text + c->n_text, s, n);
    c->n_text += n;
}

static void put_string(struct writer *w, const char *s)
{
    put(w, s, strlen(s));
}

static void put_text(struct writer *w, struct cld_text t)
{
    put(w, t.at, t.n);
}

/* From `begin` to here is the supervised part of an answer; nothing of it, if it is excluded. */
static void put_span(struct writer *w, const struct cld_message *m, size_t begin)
{
    struct cld_chat *c = w->chat;
    if (!w->status)
        w->status = cld_grow(&c->spans, &c->cap_spans, c->n_spans + 1, sizeof *c->spans, w->err);
    if (!w->status)
        c->spans[c->n_spans++] = (struct cld_chat_span){begin, m->excluded ? begin : c->n_text};
}

/* From `begin` to here is the message's turn. */
static void put_turn_of(struct writer *w, const struct cld_message *m, size_t begin)
{
    struct cld_chat *c = w->chat;
    if (!w->status)
        w->status = cld_grow(&c->turns, &c->cap_turns, c->n_turns + 1, sizeof *c->turns, w->err);
    if (!w->status)
        c->turns[c->n_turns++] = (struct cld_chat_turn){begin, c->n_text, m->role};
}

static struct cld_text strip_newlines(struct cld_text t, bool left, bool right)
{
    while (left && t.n && t.at[0] == '\n')
        t = (struct cld_text){t.at + 1, t.n - 1};
    while (right && t.n && t.at[t.n - 1] == '\n')
        t.n--;
    return t;
}

static bool starts_with(struct cld_text t, const char *s)
{
    return t.n >= strlen(s) && !memcmp(t.at, s, strlen(s));
}

static bool ends_with(struct cld_text t, const char *s)
{
    return t.n >= strlen(s) && !memcmp(t.at + t.n - strlen(s), s, strlen(s));
}

/* Offset of the first (or last) occurrence of s, or SIZE_MAX. */
static size_t find(struct cld_text t, const char *s, bool last)
{
    size_t n = strlen(s), found = SIZE_MAX;
    for (size_t i = 0; i + n <= t.n; i++)
        if (t.at[i] == s[0] && !memcmp(t.at + i, s, n)) {
            found = i;
            if (!last)
                break;
        }
    return found;
}

static struct cld_text slice(struct cld_text t, size_t begin, size_t end)
{
    return (struct cld_text){t.at + begin, end - begin};
}

/* <|im_start|>ROLE\n, content and end mark, as both chatml and qwen3 have them. */
static void put_turn(struct writer *w, const struct cld_message *m)
{
    put_string(w, "<|im_start|>");
    put_string(w, cld_role_name(m->role));
    put_string(w, "\n");
    size_t begin = w->chat->n_text;
    put_text(w, m->content);
    put_string(w, "<|im_end|>");
    if (m->role == CLD_ASSISTANT)
        put_span(w, m, begin);
    put_string(w, "\n");
}

/* Qwen3: the last user message that is no tool response, or the last message if there is none. */
static size_t last_query(const struct cld_message *m, size_t n)
{
    for (size_t i = n; i-- > 0;)
        if (m[i].role == CLD_USER && !(starts_with(m[i].content, "<tool_response>") &&
                                       ends_with(m[i].content, "</tool_response>")))
            return i;
    return n - 1;
}

static void put_qwen3_assistant(struct writer *w, const struct cld_message *m, bool after_query,
                                bool last)
{
    static const char close[] = "</think>", open[] = "<think>";
    struct cld_text content = m->content, reasoning = {"", 0};
    if (m->reasoning.at) {
        reasoning = m->reasoning;
    } else if (find(content, close, false) != SIZE_MAX) {
        size_t end = find(content, close, false);
        size_t answer = find(content, close, true) + strlen(close);
        reasoning = strip_newlines(slice(content, 0, end), false, true);
        size_t begin = find(reasoning, open, true);
        if (begin != SIZE_MAX)
            reasoning = slice(reasoning, begin + strlen(open), reasoning.n);
        reasoning = strip_newlines(reasoning, true, false);
        content = strip_newlines(slice(content, answer, content.n), true, false);
    }
    put_string(w, "<|im_start|>assistant\n");
    size_t begin = w->chat->n_text;
    if (after_query && (last || reasoning.n)) {
        reasoning = strip_newlines(reasoning, true, true);
        put_string(w, "<think>\n");
        put_text(w, reasoning);
        put_string(w, "\n</think>\n\n");
        /* An empty block was given only if the content spells it out; else the template put it. */
        if (!reasoning.n && !starts_with(m->content, "<think>\n\n</think>"))
            begin = w->chat->n_text;
        content = strip_newlines(content, true, false);
    }
    put_text(w, content);
    put_string(w, "<|im_end|>");
    put_span(w, m, begin);
    put_string(w, "\n");
}

static void put_qwen3(struct writer *w, const struct cld_message *m, size_t n)
{
    size_t query = last_query(m, n);
    for (size_t i = 0; i < n; i++) {
        size_t begin = w->chat->n_text;
        if (m[i].role == CLD_ASSISTANT) {
            put_qwen3_assistant(w, &m[i], i > query, i + 1 == n);
        } else if (m[i].role == CLD_TOOL) { /* consecutive ones share a user turn */
            if (!i || m[i - 1].role != CLD_TOOL)
                put_string(w, "<|im_start|>user");
            put_string(w, "\n<tool_response>\n");
            put_text(w, m[i].content);
            put_string(w, "\n</tool_response>");
            if (i + 1 == n || m[i + 1].role != CLD_TOOL)
                put_string(w, "<|im_end|>\n");
        } else {
            put_turn(w, &m[i]);
        }
        put_turn_of(w, &m[i], begin);
    }
}

/* The white space that Python's str.strip() takes: White_Space and four separators. */
static bool stripped(uint32_t cp)
{
    return cld_white_space(cp) || (cp >= 0x1c && cp <= 0x1f);
}

static struct cld_text trim(struct cld_text t)
{
    uint32_t cp = 0;
    for (size_t len; (len = cld_utf8_get(t.at, t.n, &cp)) && stripped(cp);)
        t = slice(t, len, t.n);
    while (t.n) {
        size_t begin = t.n - 1;
        while (begin && ((unsigned char)t.at[begin] & 0xc0) == 0x80)
            begin--;
        if (!cld_utf8_get(t.at + begin, t.n - begin, &cp) || !stripped(cp))
            break;
        t.n = begin;
    }
    return t;
}

static void put_llama3(struct writer *w, const struct cld_message *m, size_t n)
{
    put_string(w, "<|begin_of_text|>");
    for (size_t i = 0; i < n; i++) {
        size_t turn = w->chat->n_text;
        put_string(w, "<|start_header_id|>");
        put_string(w, cld_role_name(m[i].role));
        put_string(w, "<|end_header_id|>\n\n");
        size_t begin = w->chat->n_text;
        put_text(w, trim(m[i].content));
        put_string(w, "<|eot_id|>");
        if (m[i].role == CLD_ASSISTANT)
            put_span(w, &m[i], begin);
        put_turn_of(w, &m[i], turn);
    }
}

bool cld_chat_has_thinking(enum cld_chat_template t)
{
    return t == CLD_CHAT_QWEN3;
}

/* What a template has no place for. */
static enum cld_status check_places(enum cld_chat_template t, const struct cld_message *m, size_t n,
                                    struct cld_row_reading *r, struct cld_error *err)
{
    for (size_t i = 0; i < n; i++) {
        bool reasoning = m[i].reasoning.n && !cld_chat_has_thinking(t);
        if (reasoning || (m[i].role == CLD_TOOL && t == CLD_CHAT_LLAMA3))
            return cld_row_refuse(r, CLD_ROW_UNSUPPORTED, reasoning ? m[i].reasoning_key : "role",
                                  err, "message %zu: template %s has no place for %s", i, names[t],
                                  reasoning ? m[i].reasoning_key : "role tool");
    }
    return CLD_OK;
}

enum cld_status cld_chat_render(enum cld_chat_template t, const struct cld_message *messages,
                                size_t n, struct cld_chat *out, struct cld_row_reading *r,
                                struct cld_error *err)
{
    struct writer w = {out, CLD_OK, err};
    out->n_text = out->n_spans = out->n_turns = 0;
    r->fault = CLD_ROW_FINE;
    enum cld_status s = check_places(t, messages, n, r, err);
    if (s)
        return s;
    if (t == CLD_CHAT_QWEN3)
        put_qwen3(&w, messages, n);
    else if (t == CLD_CHAT_LLAMA3)
        put_llama3(&w, messages, n);
    else
        for (size_t i = 0; i < n; i++) {
            size_t begin = out->n_text;
            put_turn(&w, &messages[i]);
            put_turn_of(&w, &messages[i], begin);
        }
    return w.status;
}

enum cld_status cld_chat_render_prompt(enum cld_chat_template t, const struct cld_message *messages,
                                       size_t n, enum cld_thinking thinking, struct cld_chat *out,
                                       struct cld_row_reading *r, struct cld_error *err)
{
    struct writer w = {out, CLD_OK, err};
    enum cld_status s = cld_chat_render(t, messages, n, out, r, err);
    if (s)
        return s;
    if (thinking == CLD_THINKING_ON && !cld_chat_has_thinking(t))
        return cld_row_refuse(r, CLD_ROW_UNSUPPORTED, "enable_thinking", err,
                              "enable_thinking is true, template %s has no thinking", names[t]);
    put_string(&w, t == CLD_CHAT_LLAMA3 ? "<|start_header_id|>assistant<|end_header_id|>\n\n"
                                        : "<|im_start|>assistant\n");
    if (thinking == CLD_THINKING_OFF && cld_chat_has_thinking(t))
        put_string(&w, "<think>\n\n</think>\n\n");
    out->n_spans = 0;
    return w.status;
}

/* Does an answer think, under a key or in its content? */
static bool thinks(const struct cld_message *m)
{
    size_t close = find(m->content, "</think>", false);
    if (m->reasoning.n || close == SIZE_MAX)
        return m->reasoning.n > 0;
    struct cld_text before = slice(m->content, 0, close);
    size_t open = find(before, "<think>", true);
    if (open != SIZE_MAX)
        before = slice(before, open + strlen("<think>"), before.n);
    return strip_newlines(before, true, true).n > 0;
}

enum cld_status cld_chat_check_thinking(enum cld_chat_template t, const struct cld_conversation *c,
                                        struct cld_row_reading *r, struct cld_error *err)
{
    static const char *const key = "enable_thinking";
    const struct cld_message *last = &c->messages[c->n - 1];
    bool on = c->thinking == CLD_THINKING_ON;
    if (c->thinking == CLD_THINKING_AUTO)
        return CLD_OK;
    if (!cld_chat_has_thinking(t) && on)
        return cld_row_refuse(r, CLD_ROW_UNSUPPORTED, key, err,
                              "enable_thinking is true, template %s has no thinking", names[t]);
    if (!cld_chat_has_thinking(t)) {
        if (r->unread)
            cld_key_counts_add(r->unread, key);
        return CLD_OK;
    }
    if (last->role == CLD_ASSISTANT && thinks(last) != on)
        return cld_row_refuse(r, CLD_ROW_CONTRADICTORY, key, err,
                              "enable_thinking is %s and the last answer has %s thinking",
                              on ? "true" : "false", on ? "no" : "a");
    return CLD_OK;
}

enum cld_status cld_chat_history(enum cld_chat_template t, const struct cld_message *messages,
                                 size_t n_messages, struct cld_chat *chat, struct cld_chat *prefix,
                                 bool drop, size_t *n, struct cld_error *err)
{
    size_t span = 0;
    *n = 0;
    for (size_t i = 0; i < n_messages; i++) {
        struct cld_row_reading ignored = {0};
        if (messages[i].role != CLD_ASSISTANT)
            continue;
        struct cld_chat_span *its = &chat->spans[span++];
        if (messages[i].excluded)
            continue;
        /* What stood there when the target had just answered. */
        enum cld_status s = cld_chat_render(t, messages, i + 1, prefix, &ignored, err);
        if (s)
            return s;
        if (prefix->n_text <= chat->n_text && !memcmp(prefix->text, chat->text, prefix->n_text))
            continue;
        ++*n;
        if (drop)
            its->end = its->begin;
    }
    return CLD_OK;
}

void cld_chat_mask(const struct cld_chat *chat, const struct cld_tokens *tokens, uint8_t *mask)
{
    size_t span = 0;
    for (size_t i = 0; i < tokens->n; i++) {
        size_t at = tokens->begins[i];
        while (span < chat->n_spans && at >= chat->spans[span].end)
            span++;
        mask[i] = span < chat->n_spans && at >= chat->spans[span].begin;
    }
}

/* ---- recognising a model's template ---- */

/* SHA-256 of template texts that render as the built-in ones do, without tools: Qwen3 as of April
 * 2025 and as revised in July, two plain ChatML loops (with and without a generation prompt), and
 * Llama 3. */
static const struct {
    const char *sha256;
    enum cld_chat_template t;
} published[] = {
    {"87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5", CLD_CHAT_QWEN3},
    {"a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8", CLD_CHAT_QWEN3},
    {"94d754f89b5c462771bdd267b01a769ab6c028d5e077e0ade4e9f837c248e31d", CLD_CHAT_CHATML},
    {"6815c2d84ae019a02f6b8c82948ed300a987c03b5d0bc8d47fa659c0c0ee10ec", CLD_CHAT_CHATML},
    {"ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122", CLD_CHAT_LLAMA3},
};

/* The template in the JSON file `path`: a text, or of a list of named ones the one named default.
 * Nothing, if the file or its key is missing. */
static enum cld_status declared_in(const char *path, char **out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *text = NULL;
    json_t *root = NULL;
    json_error_t where;
    size_t n;
    if (!cld_file_exists(path))
        return CLD_OK;
    if ((s = cld_file_read(path, (size_t)64 << 20, &text, &n, err)))
        return s;
    if (!(root = json_loadb(text, n, 0, &where))) {
        s = cld_fail(err, CLD_E_INPUT, "fetch or copy the file again", "%s:%d:%d: %s", path,
                     where.line, where.column, where.text);
        goto done;
    }
    const json_t *found = json_object_get(root, "chat_template");
    bool is_list = json_is_array(found);
    for (size_t i = 0; is_list && i < json_array_size(found); i++) {
        const json_t *item = json_array_get(found, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && !strcmp(name, "default")) {
            found = json_object_get(item, "template");
            break;
        }
    }
    if (found && !json_is_null(found) && !json_is_string(found))
        s = cld_fail(err, CLD_E_INPUT, "give one of them as chat_template, a text",
                     "%s: chat_template is %s%s", path, cld_json_kind(found),
                     is_list ? " of templates, none of them a text with the name default" : "");
    else if (json_string_length(found) && !(*out = strdup(json_string_value(found))))
        s = cld_fail_memory(err, "a chat template");
done:
    json_decref(root);
    free(text);
    return s;
}

/* The text of the declared template, malloc'd; NULL if there is none. The file of its own counts
 * before the key of tokenizer_config.json, and that before the file of older processors. */
static enum cld_status declared(const char *model_dir, char **out, struct cld_error *err)
{
    static const char *const files[] = {"tokenizer_config.json", "chat_template.json"};
    enum cld_status s = CLD_OK;
    char *path = cld_format("%s/chat_template.jinja", model_dir);
    size_t n;
    *out = NULL;
    if (path && cld_file_exists(path))
        s = cld_file_read(path, (size_t)16 << 20, out, &n, err);
    for (size_t i = 0; i < 2 && path && !s && !*out; i++) {
        free(path);
        if ((path = cld_format("%s/%s", model_dir, files[i])))
            s = declared_in(path, out, err);
    }
    if (!path)
        s = cld_fail_memory(err, "a path");
    free(path);
    return s;
}

/* Templates are read with line ends of one byte, and without a newline at their end. */
static void normalise(char *text)
{
    size_t n = 0;
    for (const char *p = text; *p; p++)
        if (*p != '\r' || p[1] != '\n')
            text[n++] = *p;
    n -= n && text[n - 1] == '\n';
    text[n] = '\0';
}

enum cld_status cld_chat_declared(const char *model_dir, char hash[65], bool *is_known,
                                  enum cld_chat_template *out, struct cld_error *err)
{
    char *text = NULL, same[65] = "";
    enum cld_status s = declared(model_dir, &text, err);
    hash[0] = '\0';
    *is_known = false;
    if (text) {
        cld_sha256_of(text, strlen(text), hash);
        normalise(text);
        cld_sha256_of(text, strlen(text), same);
    }
    free(text);
    for (size_t i = 0; i < sizeof published / sizeof *published && !s; i++)
        if (!strcmp(hash, published[i].sha256) || !strcmp(same, published[i].sha256)) {
            *out = published[i].t;
            *is_known = true;
        }
    return s;
}

enum cld_status cld_chat_template_of(const char *model_dir, enum cld_chat_template *out,
                                     struct cld_error *err)
{
    char hash[CLD_SHA256_HEX_BYTES] = "";
    bool is_known = false;
    enum cld_status s = cld_chat_declared(model_dir, hash, &is_known, out, err);
    if (s || is_known)
        return s;
    return cld_fail(
        err, CLD_E_USAGE, "set data.template to chatml, qwen3 or llama3", "%s: %s", model_dir,
        hash[0] ? "its chat template is none of the known ones" : "it declares no chat template");
}
