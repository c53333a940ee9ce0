#include "data/prompts.h"

#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "base/size.h"
#include "data/row_file.h"
#include "formats/json_lenient.h"
#include "formats/json_read.h"

struct cld_prompts {
    struct cld_prompt_rules rules;
    char *path;
    struct cld_row_file *in;
    struct cld_encoder *encoder;
    struct cld_chat chat;     /* of the line at work */
    struct cld_tokens tokens; /* too */
    struct cld_key_counts unread;
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
    cld_row_file_close(p->in);
    cld_encoder_free(p->encoder);
    cld_chat_release(&p->chat);
    cld_tokens_release(&p->tokens);
    free(p->path);
    free(p);
}

enum cld_status cld_prompts_open(const char *path, const struct cld_tokenizer *tokenizer,
                                 const struct cld_prompt_rules *rules, struct cld_prompts **out,
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_prompts *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p || !(p->path = strdup(path))) {
        s = cld_fail_memory(err, "prompts");
    } else if (!(s = cld_row_file_open(path, &p->in, err)) &&
               !(s = cld_encoder_new(tokenizer, &p->encoder, err))) {
        p->rules = *rules;
        *out = p;
        p = NULL;
    }
    cld_prompts_close(p);
    return s;
}

const struct cld_key_counts *cld_prompts_unread(const struct cld_prompts *p)
{
    return &p->unread;
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
static enum cld_status use_messages(struct cld_prompts *p, const struct cld_conversation *c,
                                    struct cld_prompt *out, struct cld_row_reading *r,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    enum cld_thinking thinking = c->thinking ? c->thinking : p->rules.thinking;
    size_t n = c->n;
    while (n && c->messages[n - 1].role == CLD_ASSISTANT)
        n--;
    if (!n)
        return cld_row_refuse(r, CLD_ROW_BAD_SHAPE, NULL, err, "nothing is asked");
    if ((s = cld_chat_render_prompt(p->rules.chat_template, c->messages, n, thinking, &p->chat, r,
                                    err)))
        return s;
    if ((s = cld_encode(p->encoder, p->chat.text, p->chat.n_text, false, &p->tokens, err))) {
        r->fault = CLD_ROW_UNSUPPORTED; /* a byte without a token, or a pattern that gave up */
        return s;
    }
    return keep(p, c->messages, n, out, err);
}

/* A prompt may ask for a shorter answer. */
static enum cld_status read_length(const json_t *line, size_t most, size_t *n_new,
                                   struct cld_row_reading *r, struct cld_error *err)
{
    static const char *const names[] = {"max_tokens", "max_new_tokens", "max_completion_tokens"};
    *n_new = most;
    for (size_t i = 0; i < 3; i++) {
        const json_t *v = json_object_get(line, names[i]);
        json_int_t wanted = json_integer_value(v);
        if (!v || json_is_null(v))
            continue;
        if (!json_is_integer(v) || wanted < 1)
            return cld_row_refuse(r, CLD_ROW_BAD_SHAPE, names[i], err,
                                  "%s must be a whole number above 0, it is %s", names[i],
                                  cld_json_kind(v));
        if ((uint64_t)wanted > most)
            return cld_row_refuse(r, CLD_ROW_UNSUPPORTED, names[i], err,
                                  "%s is %lld, generate.new_tokens is %zu", names[i],
                                  (long long)wanted, most);
        if (*n_new != most && *n_new != (size_t)wanted)
            return cld_row_refuse(r, CLD_ROW_CONTRADICTORY, names[i], err,
                                  "%s is %lld, another key says %zu", names[i], (long long)wanted,
                                  *n_new);
        *n_new = (size_t)wanted;
    }
    return CLD_OK;
}

/* How an answer is sampled is the same for all prompts: one that wants it otherwise is refused. */
static enum cld_status check_sampling(const struct cld_prompts *p, const json_t *line,
                                      struct cld_row_reading *r, struct cld_error *err)
{
    const struct {
        const char *key, *setting;
        double value;
    } all[] = {{"temperature", "generate.temperature", p->rules.temperature},
               {"top_p", "generate.top_p", p->rules.top_p},
               {"seed", "run.seed", (double)p->rules.seed}};
    for (size_t i = 0; i < 3; i++) {
        const json_t *v = json_object_get(line, all[i].key);
        if (!v || json_is_null(v))
            continue;
        if (!json_is_number(v))
            return cld_row_refuse(r, CLD_ROW_BAD_SHAPE, all[i].key, err,
                                  "%s must be a number, it is %s", all[i].key, cld_json_kind(v));
        if (json_number_value(v) != all[i].value)
            return cld_row_refuse(r, CLD_ROW_UNSUPPORTED, all[i].key, err, "%s is %g, %s is %g",
                                  all[i].key, json_number_value(v), all[i].setting, all[i].value);
    }
    return CLD_OK;
}

/* The row's id, a number that is too long as its digits. */
static json_t *id_of(const json_t *line)
{
    json_t *id = json_object_get(line, "id");
    const char *digits = cld_json_lost_text(id);
    return digits ? json_string(digits) : json_incref(id);
}

static enum cld_status use_row(struct cld_prompts *p, const json_t *line, struct cld_prompt *out,
                               struct cld_row_reading *r, struct cld_error *err)
{
    struct cld_conversation c = {0};
    enum cld_status s = cld_conversation_read(line, CLD_KEY_OF_PROMPT, &c, r, err);
    if (s || (s = read_length(line, p->rules.n_new, &out->n_new, r, err)) ||
        (s = check_sampling(p, line, r, err)))
        goto done;
    out->id = id_of(line);
    s = use_messages(p, &c, out, r, err);
done:
    cld_conversation_release(&c);
    return s;
}

static void hash(const struct cld_prompts *p, const char *text, size_t n, char source[17])
{
    char hex[CLD_SHA256_HEX_BYTES];
    struct cld_sha256 h;
    cld_sha256_begin(&h);
    cld_sha256_add(&h, text, n);
    cld_sha256_add(&h, p->rules.settings, strlen(p->rules.settings));
    cld_sha256_end(&h, hex);
    memcpy(source, hex, 16);
    source[16] = 0;
}

enum cld_status cld_prompts_next(struct cld_prompts *p, struct cld_prompt *out, bool *there,
                                 struct cld_row_reading *r, struct cld_error *why,
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *text = NULL;
    size_t n = 0, number = 0;
    json_t *line = NULL;
    memset(out, 0, sizeof *out);
    *r = (struct cld_row_reading){.unread = &p->unread,
                                  .ignored = p->rules.ignored_keys,
                                  .n_ignored = p->rules.n_ignored_keys};
    *why = (struct cld_error)CLD_ERROR_INIT;
    do
        s = cld_row_file_next(p->in, &text, &n, &number, err);
    while (!s && text && strspn(text, " \t\r\n") == n);
    *there = text && !s;
    if (!*there)
        return s;
    out->row = number - 1;
    hash(p, text, n, out->source);
    s = cld_row_parse(text, n, &line, r, why);
    if (!s)
        s = use_row(p, line, out, r, why);
    json_decref(line);
    if (!s)
        return CLD_OK;
    cld_fail_prefix(why, "%s:%zu", p->path, number);
    if (r->fault && s == CLD_E_INPUT)
        return CLD_OK;
    *err = *why;
    return s;
}
