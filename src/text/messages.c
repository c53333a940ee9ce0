#include "text/messages.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/utf8.h"
#include "formats/json_lenient.h"
#include "formats/json_read.h"

const char *cld_role_name(enum cld_role role)
{
    static const char *const names[] = {"system", "user", "assistant", "tool"};
    return names[role];
}

void cld_conversation_release(struct cld_conversation *c)
{
    if (!c)
        return;
    free(c->messages);
    free(c->joined);
    *c = (struct cld_conversation){0};
}

enum cld_status cld_row_parse(const char *text, size_t n, json_t **out, struct cld_row_reading *r,
                              struct cld_error *err)
{
    json_error_t where;
    size_t valid = cld_utf8_valid(text, n);
    *out = NULL;
    r->fault = CLD_ROW_FINE;
    r->key[0] = '\0';
    if (valid < n)
        return cld_row_refuse(r, CLD_ROW_NOT_UTF8, NULL, err,
                              "not UTF-8: byte 0x%02X at column %zu", (unsigned char)text[valid],
                              valid + 1);
    json_t *row = cld_json_lenient(text, n, &r->repaired, &where);
    if (!row)
        return cld_row_refuse(r, CLD_ROW_BAD_JSON, NULL, err, "broken JSON at column %d: %s",
                              where.column, where.text);
    if (json_is_object(row)) {
        *out = row;
        return CLD_OK;
    }
    enum cld_status s = cld_row_refuse(r, CLD_ROW_BAD_SHAPE, NULL, err,
                                       "a row must be an object, it is %s", cld_json_kind(row));
    json_decref(row);
    return s;
}

/* ---- a message ---- */

static enum cld_status bad(enum cld_row_fault fault, const char *key, struct cld_row_reading *r,
                           struct cld_error *err, size_t index, const char *what, const char *shown)
{
    return cld_row_refuse(r, fault, key, err, "message %zu: %s%.60s", index, what, shown);
}

static bool role_of(const char *name, bool share_gpt, enum cld_role *role)
{
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, cld_role_name((enum cld_role)i))) {
            *role = (enum cld_role)i;
            return true;
        }
    if (!share_gpt || (strcmp(name, "human") && strcmp(name, "gpt")))
        return false;
    *role = name[0] == 'h' ? CLD_USER : CLD_ASSISTANT;
    return true;
}

/* A key that is there and not null. */
static const json_t *given(const json_t *m, const char *key)
{
    const json_t *v = json_object_get(m, key);
    return json_is_null(v) ? NULL : v;
}

/* Role and content, in either spelling; both spellings are refused. */
static enum cld_status read_role(const json_t *m, size_t index, struct cld_message *out,
                                 struct cld_row_reading *r, struct cld_error *err)
{
    bool share_gpt = given(m, "from") && !given(m, "role");
    const char *content_key = share_gpt ? "value" : "content";
    const json_t *role = json_object_get(m, share_gpt ? "from" : "role");
    const json_t *content = json_object_get(m, content_key);
    if (!json_is_string(role))
        return bad(CLD_ROW_BAD_SHAPE, "role", r, err, index, "the role must be a string, it is ",
                   cld_json_kind(role));
    if (!role_of(json_string_value(role), share_gpt, &out->role))
        return bad(CLD_ROW_UNKNOWN_ROLE, "role", r, err, index, "unknown role ",
                   json_string_value(role));
    if (given(m, "from") && given(m, "role"))
        return bad(CLD_ROW_CONTRADICTORY, "from", r, err, index, "it has both role and from", "");
    if (given(m, share_gpt ? "content" : "value"))
        return bad(CLD_ROW_CONTRADICTORY, share_gpt ? "content" : "value", r, err, index,
                   "it has both content and value, or one of the other spelling", "");
    if (!json_is_string(content))
        return bad(content ? CLD_ROW_UNSUPPORTED : CLD_ROW_BAD_SHAPE, content_key, r, err, index,
                   "the content must be a string, it is ", cld_json_kind(content));
    out->content = (struct cld_text){json_string_value(content), json_string_length(content)};
    return CLD_OK;
}

static bool equal(struct cld_text a, struct cld_text b)
{
    return a.n == b.n && !memcmp(a.at, b.at, a.n);
}

/* The text of a piece of reasoning_details; NULL: it has none that can be read. */
static const json_t *piece(const json_t *detail)
{
    const char *type = json_string_value(json_object_get(detail, "type"));
    const json_t *text = json_object_get(detail, "text");
    if (type && strcmp(type, "reasoning.text") && strcmp(type, "text"))
        return NULL;
    return json_is_string(text) ? text : NULL;
}

/* reasoning_details [{"type": "reasoning.text", "text"}, ...] as one text. */
static enum cld_status join(const json_t *list, size_t index, struct cld_conversation *c,
                            struct cld_text *out, struct cld_row_reading *r, struct cld_error *err)
{
    size_t n = 0, at = 0;
    char *grown;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *text = piece(json_array_get(list, i));
        if (!text)
            return bad(CLD_ROW_UNSUPPORTED, "reasoning_details", r, err, index,
                       "reasoning_details holds a piece that is no text", "");
        n = cld_add(n, json_string_length(text));
    }
    if (json_array_size(list) == 1) { /* nothing to join */
        *out = (struct cld_text){json_string_value(piece(json_array_get(list, 0))), n};
        return CLD_OK;
    }
    if (c->joined)
        return bad(CLD_ROW_UNSUPPORTED, "reasoning_details", r, err, index,
                   "reasoning_details is in several pieces in more than one message", "");
    if (!(grown = malloc(cld_add(n, 1))))
        return cld_fail_memory(err, "a text of %zu bytes", n);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *text = piece(json_array_get(list, i));
        memcpy(grown + at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    c->joined = grown;
    *out = (struct cld_text){grown, n};
    return CLD_OK;
}

/* Thinking under any of its names, which must say the same. */
static enum cld_status read_reasoning(const json_t *m, size_t index, struct cld_conversation *c,
                                      struct cld_message *out, struct cld_row_reading *r,
                                      struct cld_error *err)
{
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking",
                                        "thinking_content", "reasoning_details"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *v = given(m, names[i]);
        struct cld_text text = {0};
        enum cld_status s = CLD_OK;
        if (!v || (json_is_array(v) && !json_array_size(v)))
            continue;
        if (json_is_string(v))
            text = (struct cld_text){json_string_value(v), json_string_length(v)};
        else if (json_is_array(v) && i == 4)
            s = join(v, index, c, &text, r, err);
        else
            s = cld_row_refuse(r, CLD_ROW_UNSUPPORTED, names[i], err,
                               "message %zu: %s must be a string, it is %s", index, names[i],
                               cld_json_kind(v));
        if (s)
            return s;
        if (out->reasoning.at && !equal(out->reasoning, text))
            return cld_row_refuse(r, CLD_ROW_CONTRADICTORY, names[i], err,
                                  "message %zu: %s and %s say different things", index,
                                  out->reasoning_key, names[i]);
        out->reasoning = text;
        out->reasoning_key = names[i];
    }
    if (out->reasoning.n && out->role != CLD_ASSISTANT)
        return cld_row_refuse(r, CLD_ROW_UNSUPPORTED, out->reasoning_key, err,
                              "message %zu: %s on a turn of role %s", index, out->reasoning_key,
                              cld_role_name(out->role));
    if (out->role != CLD_ASSISTANT) /* an empty one */
        out->reasoning = (struct cld_text){0};
    return CLD_OK;
}

/* 0 or 1, as a number or a Boolean; -1: something else. */
static int zero_or_one(const json_t *v)
{
    if (json_is_boolean(v))
        return json_is_true(v);
    double number = json_is_number(v) ? json_number_value(v) : -1;
    return number == 0 ? 0 : number == 1 ? 1 : -1;
}

/* Is the turn learned? `key` and `v` say so, unless an earlier key said otherwise. */
static enum cld_status set_mask(const char *key, const json_t *v, size_t index,
                                struct cld_message *out, struct cld_row_reading *r,
                                struct cld_error *err)
{
    int on = zero_or_one(v);
    if (on < 0 && json_is_number(v))
        return cld_row_refuse(r, CLD_ROW_UNSUPPORTED, key, err,
                              "message %zu: %s is %g, an answer is learned (1) or not (0)", index,
                              key, json_number_value(v));
    if (on < 0)
        return cld_row_refuse(r, CLD_ROW_UNSUPPORTED, key, err,
                              "message %zu: %s must be 0 or 1, false or true, it is %s", index, key,
                              cld_json_kind(v));
    if (on && out->role != CLD_ASSISTANT)
        return cld_row_refuse(r, CLD_ROW_UNSUPPORTED, key, err,
                              "message %zu: %s is %s on a turn of role %s, only answers are "
                              "learned",
                              index, key, json_is_boolean(v) ? "true" : "1",
                              cld_role_name(out->role));
    if (out->mask_key && out->excluded == (on == 1) && out->role == CLD_ASSISTANT)
        return cld_row_refuse(r, CLD_ROW_CONTRADICTORY, key, err,
                              "message %zu: %s and %s say different things", index, out->mask_key,
                              key);
    out->mask_key = key;
    out->excluded = !on;
    return CLD_OK;
}

static enum cld_status read_masks(const json_t *m, size_t index, struct cld_message *out,
                                  struct cld_row_reading *r, struct cld_error *err)
{
    static const char *const names[] = {"loss_mask", "train",  "trainable",   "training",  "learn",
                                        "loss",      "weight", "loss_weight", "loss_scale"};
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && !s; i++) {
        const json_t *v = given(m, names[i]);
        if (v)
            s = set_mask(names[i], v, index, out, r, err);
    }
    return s;
}

static enum cld_status read_message(const json_t *m, size_t index, struct cld_conversation *c,
                                    struct cld_message *out, struct cld_row_reading *r,
                                    struct cld_error *err)
{
    char where[32];
    enum cld_status s = CLD_OK;
    if (!json_is_object(m))
        return bad(CLD_ROW_BAD_SHAPE, NULL, r, err, index, "must be an object, it is ",
                   cld_json_kind(m));
    snprintf(where, sizeof where, "message %zu: ", index);
    if ((s = cld_row_keys_check(m, CLD_KEY_OF_MESSAGE, where, r, err)) ||
        (s = read_role(m, index, out, r, err)) || (s = read_reasoning(m, index, c, out, r, err)))
        return s;
    return read_masks(m, index, out, r, err);
}

/* `first` messages are left free before those of the list. */
static enum cld_status read_list(const json_t *list, size_t first, struct cld_conversation *out,
                                 struct cld_row_reading *r, struct cld_error *err)
{
    size_t n = json_array_size(list);
    enum cld_status s = CLD_OK;
    if (!n)
        return cld_row_refuse(r, CLD_ROW_BAD_SHAPE, NULL, err,
                              "the messages must be an array, they are %s",
                              json_is_array(list) ? "empty" : cld_json_kind(list));
    if (!(out->messages = calloc(cld_add(n, first), sizeof *out->messages)))
        return cld_fail_memory(err, "a conversation");
    for (size_t i = 0; !s && i < n; i++)
        s = read_message(json_array_get(list, i), i, out, &out->messages[first + i], r, err);
    out->n = n + first;
    return s;
}

enum cld_status cld_messages_read(const json_t *list, struct cld_conversation *out,
                                  struct cld_row_reading *r, struct cld_error *err)
{
    *out = (struct cld_conversation){0};
    r->fault = CLD_ROW_FINE;
    return read_list(list, 0, out, r, err);
}

/* ---- a row ---- */

/* The system text beside the messages; *at stays NULL for none or an empty one. */
static enum cld_status find_system(const json_t *row, struct cld_text *out, const char **key,
                                   struct cld_row_reading *r, struct cld_error *err)
{
    static const char *const names[] = {"system", "system_prompt", "system_message"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *v = given(row, names[i]);
        if (!v || (json_is_string(v) && !json_string_length(v)))
            continue;
        if (!json_is_string(v))
            return cld_row_refuse(r, CLD_ROW_UNSUPPORTED, names[i], err,
                                  "%s must be a string, it is %s", names[i], cld_json_kind(v));
        struct cld_text text = {json_string_value(v), json_string_length(v)};
        if (out->at && !equal(*out, text))
            return cld_row_refuse(r, CLD_ROW_CONTRADICTORY, names[i], err,
                                  "%s and %s say different things", *key, names[i]);
        *out = text;
        *key = names[i];
    }
    return CLD_OK;
}

/* A system text stands before the messages, once. */
static enum cld_status put_system(struct cld_text system, const char *key,
                                  struct cld_conversation *c, struct cld_row_reading *r,
                                  struct cld_error *err)
{
    c->messages[0] = (struct cld_message){.role = CLD_SYSTEM, .content = system};
    for (size_t i = 1; i < c->n; i++) {
        if (c->messages[i].role != CLD_SYSTEM)
            continue;
        if (i > 1 || !equal(system, c->messages[i].content))
            return cld_row_refuse(r, CLD_ROW_CONTRADICTORY, key, err,
                                  "%s and the system turn in message %zu say different things", key,
                                  i - 1);
        c->n--;
        memmove(c->messages, c->messages + 1, c->n * sizeof *c->messages);
        return CLD_OK;
    }
    return CLD_OK;
}

/* "loss_mask": [0, 0, 0, 1], one for each message of the list. */
static enum cld_status read_row_mask(const json_t *row, size_t first, struct cld_conversation *c,
                                     struct cld_row_reading *r, struct cld_error *err)
{
    const json_t *list = given(row, "loss_mask");
    enum cld_status s = CLD_OK;
    if (!list)
        return CLD_OK;
    if (!json_is_array(list) || json_array_size(list) != c->n - first)
        return cld_row_refuse(r, CLD_ROW_BAD_SHAPE, "loss_mask", err,
                              "loss_mask must have a number for each of %zu messages, it is %s of "
                              "%zu",
                              c->n - first, cld_json_kind(list), json_array_size(list));
    for (size_t i = first; i < c->n && !s; i++)
        s = set_mask("loss_mask", json_array_get(list, i - first), i - first, &c->messages[i], r,
                     err);
    return s;
}

static enum cld_status read_switch(const char *key, const json_t *v, struct cld_conversation *c,
                                   struct cld_row_reading *r, struct cld_error *err)
{
    enum cld_thinking said = json_is_true(v) ? CLD_THINKING_ON : CLD_THINKING_OFF;
    if (!v || json_is_null(v))
        return CLD_OK;
    if (!json_is_boolean(v))
        return cld_row_refuse(r, CLD_ROW_UNSUPPORTED, key, err,
                              "%s must be true or false, it is %s", key, cld_json_kind(v));
    if (c->thinking != CLD_THINKING_AUTO && c->thinking != said)
        return cld_row_refuse(r, CLD_ROW_CONTRADICTORY, key, err,
                              "enable_thinking and chat_template_kwargs say different things");
    c->thinking = said;
    return CLD_OK;
}

static bool is_empty(const json_t *v)
{
    return json_is_null(v) || json_is_false(v) || (json_is_array(v) && !json_array_size(v)) ||
           (json_is_object(v) && !json_object_size(v)) ||
           (json_is_string(v) && !json_string_length(v));
}

static enum cld_status read_thinking(const json_t *row, struct cld_conversation *c,
                                     struct cld_row_reading *r, struct cld_error *err)
{
    static const char *const name = "chat_template_kwargs";
    const json_t *extra = given(row, name);
    const char *key;
    json_t *v;
    enum cld_status s =
        read_switch("enable_thinking", json_object_get(row, "enable_thinking"), c, r, err);
    if (s || !extra || is_empty(extra))
        return s;
    if (!json_is_object(extra))
        return cld_row_refuse(r, CLD_ROW_UNSUPPORTED, name, err, "%s must be an object, it is %s",
                              name, cld_json_kind(extra));
    json_object_foreach ((json_t *)(uintptr_t)extra, key, v) {
        if (!strcmp(key, "enable_thinking"))
            s = read_switch(key, v, c, r, err);
        else if (!is_empty(v))
            s = cld_row_refuse(r, CLD_ROW_UNSUPPORTED, name, err,
                               "%s: no built-in template has \"%.40s\"", name, key);
        if (s)
            return s;
    }
    return CLD_OK;
}

enum cld_status cld_conversation_read(const json_t *row, unsigned place,
                                      struct cld_conversation *out, struct cld_row_reading *r,
                                      struct cld_error *err)
{
    const json_t *messages = given(row, "messages"), *share_gpt = given(row, "conversations");
    struct cld_text system = {0};
    const char *key = "";
    enum cld_status s = CLD_OK;
    *out = (struct cld_conversation){0};
    r->fault = CLD_ROW_FINE;
    if (!messages == !share_gpt)
        return cld_row_refuse(r, CLD_ROW_BAD_SHAPE, NULL, err,
                              "a chat has one of messages and conversations, this has %s",
                              messages ? "both" : "none");
    if ((s = cld_row_keys_check(row, place, "", r, err)) ||
        (s = find_system(row, &system, &key, r, err)) || (s = read_thinking(row, out, r, err)) ||
        (s = read_list(messages ? messages : share_gpt, system.at != NULL, out, r, err)))
        return s;
    for (size_t i = 0; i < out->n; i++) {
        const struct cld_message *m = &out->messages[i];
        if (m->reasoning.n && strstr(m->content.at, "</think>"))
            return cld_row_refuse(r, CLD_ROW_CONTRADICTORY, m->reasoning_key, err,
                                  "message %zu: %s, and its content has a thinking of its own",
                                  i - (system.at != NULL), m->reasoning_key);
    }
    if (place == CLD_KEY_OF_CHAT && (s = read_row_mask(row, system.at != NULL, out, r, err)))
        return s;
    return system.at ? put_system(system, key, out, r, err) : CLD_OK;
}
