#include "text/messages.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "formats/json_read.h"

const char *cld_row_fault_name(enum cld_row_fault fault)
{
    static const char *const names[CLD_N_ROW_FAULTS] = {
        "fine",         "not UTF-8",   "broken JSON",  "malformed row",
        "unknown role", "unsupported", "unsupervised", "cut within the prompt"};
    return names[fault];
}

const char *cld_role_name(enum cld_role role)
{
    static const char *const names[] = {"system", "user", "assistant", "tool"};
    return names[role];
}

static enum cld_status bad(enum cld_row_fault kind, enum cld_row_fault *fault,
                           struct cld_error *err, size_t index, const char *what, const char *shown)
{
    *fault = kind;
    return cld_fail(err, CLD_E_INPUT, "correct the row; docs/data.md describes the formats",
                    "message %zu: %s%.60s", index, what, shown);
}

static enum cld_status check_row(const json_t *line, enum cld_row_fault *fault,
                                 struct cld_error *err)
{
    static const char *const refused[] = {"tools", "functions", "chat_template_kwargs"};
    *fault = CLD_ROW_BAD_SHAPE;
    if (!json_is_object(line))
        return cld_fail(err, CLD_E_INPUT, "correct the row; docs/data.md describes the formats",
                        "a row must be an object, it is %s", cld_json_kind(line));
    *fault = CLD_ROW_UNSUPPORTED;
    for (size_t i = 0; i < 3; i++) {
        const json_t *v = json_object_get(line, refused[i]);
        if (v && !json_is_null(v) && !(json_is_array(v) && !json_array_size(v)) &&
            !(json_is_object(v) && !json_object_size(v)))
            return cld_fail(err, CLD_E_INPUT, "correct the row; docs/data.md describes the formats",
                            "\"%s\" is not supported", refused[i]);
    }
    *fault = CLD_ROW_FINE;
    return CLD_OK;
}

enum cld_status cld_row_parse(const char *text, size_t n, json_t **out, enum cld_row_fault *fault,
                              struct cld_error *err)
{
    json_error_t where;
    size_t valid = cld_utf8_valid(text, n);
    *out = NULL;
    *fault = CLD_ROW_NOT_UTF8;
    if (valid < n)
        return cld_fail(err, CLD_E_INPUT, "save the file as UTF-8",
                        "not UTF-8: byte 0x%02X at column %zu", (unsigned char)text[valid],
                        valid + 1);
    *fault = CLD_ROW_BAD_JSON;
    *out = json_loadb(text, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
    if (!*out)
        return cld_fail(err, CLD_E_INPUT, "correct the row; docs/data.md describes the formats",
                        "broken JSON at column %d: %s", where.column, where.text);
    enum cld_status s = check_row(*out, fault, err);
    if (s) {
        json_decref(*out);
        *out = NULL;
    }
    return s;
}

/* Keys that a template would act upon: refused unless they are empty. */
static enum cld_status check_keys(const json_t *m, size_t index, enum cld_row_fault *fault,
                                  struct cld_error *err)
{
    static const char *const refused[] = {"tool_calls", "function_call", "tools", "images",
                                          "weight"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const json_t *v = json_object_get(m, refused[i]);
        if (v && !json_is_null(v) && !(json_is_array(v) && !json_array_size(v)))
            return bad(CLD_ROW_UNSUPPORTED, fault, err, index, "not supported: ", refused[i]);
    }
    return CLD_OK;
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

static enum cld_status read_message(const json_t *m, size_t index, struct cld_message *out,
                                    enum cld_row_fault *fault, struct cld_error *err)
{
    if (!json_is_object(m))
        return bad(CLD_ROW_BAD_SHAPE, fault, err, index, "must be an object, it is ",
                   cld_json_kind(m));
    bool share_gpt = json_object_get(m, "from") && !json_object_get(m, "role");
    const json_t *role = json_object_get(m, share_gpt ? "from" : "role");
    const json_t *content = json_object_get(m, share_gpt ? "value" : "content");
    const json_t *reasoning = json_object_get(m, "reasoning_content");
    if (!json_is_string(role))
        return bad(CLD_ROW_BAD_SHAPE, fault, err, index, "the role must be a string, it is ",
                   cld_json_kind(role));
    if (!role_of(json_string_value(role), share_gpt, &out->role))
        return bad(CLD_ROW_UNKNOWN_ROLE, fault, err, index, "unknown role ",
                   json_string_value(role));
    enum cld_status s = check_keys(m, index, fault, err);
    if (s)
        return s;
    if (!json_is_string(content))
        return bad(content ? CLD_ROW_UNSUPPORTED : CLD_ROW_BAD_SHAPE, fault, err, index,
                   "the content must be a string, it is ", cld_json_kind(content));
    out->content = (struct cld_text){json_string_value(content), json_string_length(content)};
    if (reasoning && !json_is_null(reasoning)) {
        if (!json_is_string(reasoning))
            return bad(CLD_ROW_UNSUPPORTED, fault, err, index,
                       "reasoning_content must be a string, it is ", cld_json_kind(reasoning));
        out->reasoning =
            (struct cld_text){json_string_value(reasoning), json_string_length(reasoning)};
    }
    return CLD_OK;
}

enum cld_status cld_messages_read(const json_t *list, struct cld_message **out, size_t *n,
                                  enum cld_row_fault *fault, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    *out = NULL;
    *n = 0;
    *fault = CLD_ROW_FINE;
    if (!json_is_array(list) || !json_array_size(list)) {
        *fault = CLD_ROW_BAD_SHAPE;
        return cld_fail(err, CLD_E_INPUT, "correct the row; docs/data.md describes the formats",
                        "the messages must be an array, they are %s",
                        json_is_array(list) ? "empty" : cld_json_kind(list));
    }
    struct cld_message *messages = calloc(json_array_size(list), sizeof *messages);
    if (!messages)
        return cld_fail_memory(err, "a conversation");
    for (size_t i = 0; !s && i < json_array_size(list); i++)
        s = read_message(json_array_get(list, i), i, &messages[i], fault, err);
    if (s) {
        free(messages);
        return s;
    }
    *out = messages;
    *n = json_array_size(list);
    return CLD_OK;
}
