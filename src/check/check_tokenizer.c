#include "check/check_tokenizer.h"

#include <errno.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/grow.h"
#include "formats/json_read.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct checker {
    struct cld_encoder *encoder;
    struct cld_tokens tokens;
    struct cld_chat chat;
    uint8_t *mask;
    size_t cap_mask;
    char why[512]; /* the line fails for this; empty: it passes */
};

/* "[..., a, b, >c<, d]" around the first difference would be hard to read for long lists: the index
 * and both values say it. */
static void compare_numbers(struct checker *c, const char *what, const json_t *want, size_t n,
                            int64_t (*get)(const struct checker *c, size_t i))
{
    size_t n_want = json_array_size(want);
    for (size_t i = 0; i < n && i < n_want; i++) {
        const json_t *w = json_array_get(want, i);
        if (json_is_integer(w) && json_integer_value(w) == get(c, i))
            continue;
        snprintf(c->why, sizeof c->why, "%s[%zu] is %lld, %lld was wanted", what, i,
                 (long long)get(c, i), (long long)json_integer_value(w));
        return;
    }
    if (n != n_want)
        snprintf(c->why, sizeof c->why, "%zu %s, %zu were wanted", n, what, n_want);
}

static int64_t id_at(const struct checker *c, size_t i)
{
    return c->tokens.ids[i];
}

static int64_t mask_at(const struct checker *c, size_t i)
{
    return c->mask[i];
}

static enum cld_status check_text(struct checker *c, const json_t *line, struct cld_error *err)
{
    const char *text;
    size_t n;
    const json_t *ids;
    enum cld_status s;
    if ((s = cld_json_string(line, "line", "text", &text, &n, err)) ||
        (s = cld_json_array(line, "line", "ids", &ids, err)) ||
        (s = cld_encode(c->encoder, text, n, false, &c->tokens, err)))
        return s;
    compare_numbers(c, "ids", ids, c->tokens.n, id_at);
    return CLD_OK;
}

static void compare_rendered(struct checker *c, const char *want, size_t n)
{
    size_t i = 0;
    while (i < n && i < c->chat.n_text && want[i] == c->chat.text[i])
        i++;
    if (i < n || i < c->chat.n_text)
        snprintf(c->why, sizeof c->why,
                 "rendered text differs at byte %zu: \"%.*s\" instead of "
                 "\"%.*s\"",
                 i, (int)cld_min(c->chat.n_text - i, 40), c->chat.text + i, (int)cld_min(n - i, 40),
                 want + i);
}

static enum cld_status check_chat(struct checker *c, const json_t *line, struct cld_error *err)
{
    const char *name, *rendered;
    size_t n_name, n_rendered;
    const json_t *ids, *mask;
    enum cld_chat_template t;
    struct cld_row_reading reading = {0};
    struct cld_conversation chat = {0};
    enum cld_status s;
    if ((s = cld_json_string(line, "line", "template", &name, &n_name, err)) ||
        (s = cld_json_string(line, "line", "rendered", &rendered, &n_rendered, err)) ||
        (s = cld_json_array(line, "line", "ids", &ids, err)) ||
        (s = cld_json_array(line, "line", "loss_mask", &mask, err)) ||
        (s = cld_chat_template_named(name, &t, err)) ||
        (s = cld_messages_read(json_object_get(line, "messages"), &chat, &reading, err)) ||
        (s = cld_chat_render(t, chat.messages, chat.n, &c->chat, &reading, err)) ||
        (s = cld_encode(c->encoder, c->chat.text, c->chat.n_text, false, &c->tokens, err)) ||
        (s = cld_grow(&c->mask, &c->cap_mask, c->tokens.n, 1, err)))
        goto done;
    cld_chat_mask(&c->chat, &c->tokens, c->mask);
    compare_rendered(c, rendered, n_rendered);
    if (!c->why[0])
        compare_numbers(c, "ids", ids, c->tokens.n, id_at);
    if (!c->why[0])
        compare_numbers(c, "loss_mask", mask, c->tokens.n, mask_at);
done:
    cld_conversation_release(&chat);
    return s;
}

/* One line; what is wrong with it is left in c->why. Only lack of memory is an error. */
static enum cld_status check_line(struct checker *c, const char *text, size_t n,
                                  struct cld_error *err)
{
    json_error_t where;
    c->why[0] = 0;
    json_t *line = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    if (!line) {
        snprintf(c->why, sizeof c->why, "broken JSON: %s", where.text);
        return CLD_OK;
    }
    enum cld_status s =
        json_object_get(line, "template") ? check_chat(c, line, err) : check_text(c, line, err);
    json_decref(line);
    if (s && s != CLD_E_MEMORY) {
        snprintf(c->why, sizeof c->why, "%.500s", err->what);
        s = CLD_OK;
    }
    return s;
}

static enum cld_status check_file(struct checker *c, const char *path, FILE *out,
                                  struct cld_check_counts *counts, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *text = NULL;
    size_t capacity = 0, number = 0;
    struct cld_check_counts of_file = {0, 0};
    ssize_t n;
    FILE *in = fopen(path, "rb");
    if (!in)
        return cld_fail(err, CLD_E_INPUT, "check the path and its permissions",
                        "%s: cannot open: %s", path, strerror(errno));
    while ((n = getline(&text, &capacity, in)) >= 0) {
        number++;
        if (strspn(text, " \t\r\n") == (size_t)n)
            continue;
        if ((s = check_line(c, text, (size_t)n, err)))
            goto done;
        if (c->why[0])
            fprintf(out, "%s:%zu: failed: %s\n", path, number, c->why);
        of_file.n_failed += c->why[0] != 0;
        of_file.n_passed += c->why[0] == 0;
    }
    if (ferror(in)) {
        s = cld_fail(err, CLD_E_INPUT, "check that the file is whole and the disk works",
                     "%s: read failed: %s", path, strerror(errno));
        goto done;
    }
    fprintf(out, "%s: %zu of %zu lines exact\n", path, of_file.n_passed,
            of_file.n_passed + of_file.n_failed);
    counts->n_passed += of_file.n_passed;
    counts->n_failed += of_file.n_failed;
done:
    free(text);
    fclose(in);
    return s;
}

enum cld_status cld_check_tokenizer(const char *dir, const char *const *files, size_t n_files,
                                    FILE *out, struct cld_check_counts *counts,
                                    struct cld_error *err)
{
    struct checker c = {0};
    struct cld_tokenizer *tokenizer = NULL;
    size_t before = counts->n_passed + counts->n_failed;
    enum cld_status s;
    char *path = cld_format("%s/tokenizer.json", dir);
    if (!path)
        return cld_fail_memory(err, "a path");
    if ((s = cld_tokenizer_load(path, &tokenizer, err)) ||
        (s = cld_encoder_new(tokenizer, &c.encoder, err)))
        goto done;
    for (size_t i = 0; !s && i < n_files; i++)
        s = check_file(&c, files[i], out, counts, err);
    if (!s && counts->n_passed + counts->n_failed == before)
        s = cld_fail(err, CLD_E_INPUT, "golden lines are JSON objects, one a line",
                     "no golden line in %zu files", n_files);
done:
    free(c.mask);
    cld_chat_release(&c.chat);
    cld_tokens_release(&c.tokens);
    cld_encoder_free(c.encoder);
    cld_tokenizer_free(tokenizer);
    free(path);
    return s;
}
