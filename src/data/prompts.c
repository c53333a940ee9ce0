#include "data/prompts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "base/size.h"

struct cld_prompts {
    char *path;
    FILE *in;
    enum cld_chat_template template;
    const char *settings;
    struct cld_encoder *encoder;
    struct cld_chat chat;     /* of the line at work */
    struct cld_tokens tokens; /* too */
    char *text;               /* and its text */
    size_t cap_text, n_lines;
};

void cld_prompt_free(struct cld_prompt *p)
{
    if (!p)
        return;
    json_decref(p->messages);
    json_decref(p->id);
    free(p->ids);
    memset(p, 0, sizeof *p);
}

void cld_prompts_close(struct cld_prompts *p)
{
    if (!p)
        return;
    if (p->in)
        fclose(p->in);
    cld_encoder_free(p->encoder);
    cld_chat_release(&p->chat);
    cld_tokens_release(&p->tokens);
    free(p->text);
    free(p->path);
    free(p);
}

enum cld_status cld_prompts_open(const char *path, const struct cld_tokenizer *tokenizer,
                                 enum cld_chat_template t, const char *settings,
                                 struct cld_prompts **out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_prompts *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p || !(p->path = strdup(path))) {
        s = cld_fail_memory(err, "prompts");
    } else if (!(p->in = fopen(path, "rb"))) {
        s = cld_fail(err, CLD_E_INPUT, "check the path and its permissions", "%s: cannot open: %s",
                     path, strerror(errno));
    } else if (!(s = cld_encoder_new(tokenizer, &p->encoder, err))) {
        p->template = t;
        p->settings = settings;
        *out = p;
        p = NULL;
    }
    cld_prompts_close(p);
    return s;
}

static json_t *message_json(const struct cld_message *m)
{
    json_t *o = json_pack("{s:s, s:s%}", "role", cld_role_name(m->role), "content", m->content.at,
                          m->content.n);
    if (o && m->reasoning.at &&
        json_object_set_new(o, "reasoning_content",
                            json_stringn(m->reasoning.at, m->reasoning.n))) {
        json_decref(o);
        o = NULL;
    }
    return o;
}

static enum cld_status keep(struct cld_prompts *p, const struct cld_message *messages, size_t n,
                            struct cld_prompt *out, struct cld_error *err)
{
    size_t n_bytes = cld_mul(p->tokens.n, sizeof *out->ids);
    out->messages = json_array();
    out->ids = malloc(cld_max(1, n_bytes));
    for (size_t i = 0; i < n && out->messages; i++)
        if (json_array_append_new(out->messages, message_json(&messages[i]))) {
            json_decref(out->messages);
            out->messages = NULL;
        }
    if (!out->messages || !out->ids)
        return cld_fail_memory(err, "a prompt");
    memcpy(out->ids, p->tokens.ids, n_bytes);
    out->n = p->tokens.n;
    return CLD_OK;
}

/* Renders, encodes and keeps the messages without what the assistant says last. */
static enum cld_status use_messages(struct cld_prompts *p, const struct cld_message *messages,
                                    size_t n, struct cld_prompt *out, enum cld_row_fault *fault,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    while (n && messages[n - 1].role == CLD_ASSISTANT)
        n--;
    *fault = CLD_ROW_BAD_SHAPE;
    if (!n)
        return cld_fail(err, CLD_E_INPUT, "end the messages with one of the user",
                        "nothing is asked");
    if ((s = cld_chat_render_prompt(p->template, messages, n, &p->chat, fault, err)))
        return s;
    *fault = CLD_ROW_UNSUPPORTED; /* a byte without a token, or a pattern that gave up */
    if ((s = cld_encode(p->encoder, p->chat.text, p->chat.n_text, false, &p->tokens, err)))
        return s;
    *fault = CLD_ROW_FINE;
    return keep(p, messages, n, out, err);
}

static enum cld_status use_row(struct cld_prompts *p, const json_t *line, struct cld_prompt *out,
                               enum cld_row_fault *fault, struct cld_error *err)
{
    struct cld_message *messages = NULL;
    size_t n = 0;
    const json_t *list = json_object_get(line, "messages");
    const json_t *share_gpt = json_object_get(line, "conversations");
    *fault = CLD_ROW_BAD_SHAPE;
    if (!list == !share_gpt)
        return cld_fail(err, CLD_E_INPUT, "correct the row; docs/data.md describes the formats",
                        "a prompt has one of messages and conversations");
    out->id = json_incref(json_object_get(line, "id"));
    enum cld_status s = cld_messages_read(list ? list : share_gpt, &messages, &n, fault, err);
    if (!s)
        s = use_messages(p, messages, n, out, fault, err);
    free(messages);
    return s;
}

static void hash(const struct cld_prompts *p, size_t n, char source[17])
{
    char hex[CLD_SHA256_HEX_BYTES];
    struct cld_sha256 h;
    cld_sha256_begin(&h);
    cld_sha256_add(&h, p->text, n);
    cld_sha256_add(&h, p->settings, strlen(p->settings));
    cld_sha256_end(&h, hex);
    memcpy(source, hex, 16);
    source[16] = 0;
}

enum cld_status cld_prompts_next(struct cld_prompts *p, struct cld_prompt *out, bool *there,
                                 enum cld_row_fault *fault, struct cld_error *why,
                                 struct cld_error *err)
{
    ssize_t got;
    memset(out, 0, sizeof *out);
    *fault = CLD_ROW_FINE;
    *why = (struct cld_error)CLD_ERROR_INIT;
    do {
        *there = (got = getline(&p->text, &p->cap_text, p->in)) >= 0;
        p->n_lines += *there;
    } while (*there && strspn(p->text, " \t\r\n") == (size_t)got);
    if (!*there)
        return ferror(p->in)
                   ? cld_fail(err, CLD_E_INPUT, "check that the file is whole and the disk works",
                              "%s: read failed: %s", p->path, strerror(errno))
                   : CLD_OK;
    size_t n = (size_t)got;
    while (n && (p->text[n - 1] == '\n' || p->text[n - 1] == '\r'))
        n--;
    json_t *line = NULL;
    out->row = p->n_lines - 1;
    hash(p, n, out->source);
    enum cld_status s = cld_row_parse(p->text, n, &line, fault, why);
    if (!s)
        s = use_row(p, line, out, fault, why);
    json_decref(line);
    if (!s)
        return CLD_OK;
    cld_fail_prefix(why, "%s:%zu", p->path, p->n_lines);
    if (*fault && s == CLD_E_INPUT)
        return CLD_OK;
    *err = *why;
    return s;
}
