#include "data/answers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/grow.h"
#include "base/log.h"

struct source {
    char text[17]; /* "": none */
};

struct cld_answers {
    char *path;
    const char *template, *tokenizer_hash;
    FILE *file;
    struct source *sources; /* [n_rows] by row of the prompts */
    size_t n_rows, cap_rows;
};

static enum cld_status note(struct cld_answers *a, size_t row, const char *source,
                            struct cld_error *err)
{
    enum cld_status s =
        cld_grow(&a->sources, &a->cap_rows, cld_add(row, 1), sizeof *a->sources, err);
    if (s)
        return s;
    for (; a->n_rows <= row; a->n_rows++)
        a->sources[a->n_rows].text[0] = 0;
    snprintf(a->sources[row].text, sizeof a->sources[row].text, "%s", source);
    return CLD_OK;
}

static enum cld_status read_line(struct cld_answers *a, size_t number, const char *text, size_t n,
                                 struct cld_error *err)
{
    json_t *line = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
    json_int_t row = json_integer_value(json_object_get(line, "row"));
    const char *source = json_string_value(json_object_get(line, "source"));
    enum cld_status s = !source || strlen(source) != 16 || row < 0 || row > INT32_MAX
                            ? cld_fail(err, CLD_E_INPUT, "name another output file",
                                       "%s:%zu is no line of 'cldraft generate'", a->path, number)
                            : note(a, (size_t)row, source, err);
    json_decref(line);
    return s;
}

/* *end is where the last whole line ends. */
static enum cld_status read_all(struct cld_answers *a, off_t *end, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *text = NULL;
    size_t cap = 0, number = 0;
    ssize_t n = 0;
    *end = 0;
    while (!s && (n = getline(&text, &cap, a->file)) > 0 && text[n - 1] == '\n') {
        *end += n;
        s = read_line(a, ++number, text, (size_t)n, err);
    }
    if (!s && n > 0)
        cld_warn("%s: the last line has no end and is cut off", a->path);
    free(text);
    return s;
}

enum cld_status cld_answers_open(const char *path, const char *chat_template,
                                 const char *tokenizer_hash, struct cld_answers **out,
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_answers *a = calloc(1, sizeof *a);
    off_t end = 0;
    *out = NULL;
    if (!a || !(a->path = strdup(path)))
        s = cld_fail_memory(err, "answers");
    else if (!(a->file = fopen(path, "a+b")))
        s = cld_fail(err, CLD_E_IO, cld_io_hint(errno), "%s: cannot open for writing: %s", path,
                     strerror(errno));
    else if (!(s = read_all(a, &end, err)) && ftruncate(fileno(a->file), end))
        s = cld_fail(err, CLD_E_IO, cld_io_hint(errno), "%s: cannot cut at byte %lld: %s", path,
                     (long long)end, strerror(errno));
    if (!s) {
        a->template = chat_template;
        a->tokenizer_hash = tokenizer_hash;
        *out = a;
        a = NULL;
    }
    struct cld_error closing = CLD_ERROR_INIT;
    (void)cld_answers_close(a, &closing);
    return s;
}

enum cld_status cld_answers_close(struct cld_answers *a, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (!a)
        return CLD_OK;
    if (a->file) {
        bool bad = fflush(a->file) || fsync(fileno(a->file));
        bad |= fclose(a->file) != 0;
        if (bad)
            s = cld_fail(err, CLD_E_IO, cld_io_hint(errno), "%s: cannot write: %s", a->path,
                         strerror(errno));
    }
    free(a->path);
    free(a->sources);
    free(a);
    return s;
}

enum cld_status cld_answers_has(const struct cld_answers *a, const struct cld_prompt *p, bool *has,
                                struct cld_error *err)
{
    *has = p->row < a->n_rows && a->sources[p->row].text[0];
    if (!*has || !strcmp(a->sources[p->row].text, p->source))
        return CLD_OK;
    return cld_fail(err, CLD_E_USAGE, "name another output file",
                    "%s answers another prompt in row %zu, or was made with other settings",
                    a->path, p->row);
}

static json_t *numbers(const int32_t *ids, size_t n_prompt, size_t n, bool mask)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n && list; i++)
        if (json_array_append_new(list, json_integer(mask ? i >= n_prompt : ids[i]))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

enum cld_status cld_answers_add(struct cld_answers *a, const struct cld_prompt *p,
                                const char *content, size_t n_bytes, const int32_t *ids, size_t n,
                                const char *finish, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    json_t *messages = json_copy(p->messages);
    bool failed =
        !messages || json_array_append_new(messages, json_pack("{s:s, s:s%}", "role", "assistant",
                                                               "content", content, n_bytes));
    json_t *line = failed
                       ? NULL
                       : json_pack("{s:I, s:s, s:O?, s:O, s:o, s:o, s:s, s:{s:s, s:s%}}", "row",
                                   (json_int_t)p->row, "source", p->source, "id", p->id, "messages",
                                   messages, "input_ids", numbers(ids, p->n, n, false), "loss_mask",
                                   numbers(ids, p->n, n, true), "finish", finish, "cldraft",
                                   "template", a->template, "tokenizer", a->tokenizer_hash,
                                   strnlen(a->tokenizer_hash, 16));
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    if (!text)
        s = cld_fail_memory(err, "an answer of %zu tokens", n);
    else if (fputs(text, a->file) == EOF || fputc('\n', a->file) == EOF || fflush(a->file))
        s = cld_fail(err, CLD_E_IO, cld_io_hint(errno), "%s: cannot write: %s", a->path,
                     strerror(errno));
    else
        s = note(a, p->row, p->source, err);
    free(text);
    json_decref(line);
    json_decref(messages);
    return s;
}
