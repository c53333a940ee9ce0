/* Chat templates: golden lines of the published templates, refusals, recognition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "check/check_tokenizer.h"
#include "text/chat.h"

#define DATA "tests/data/tokenizer/"

static void golden_lines_are_exact(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{DATA "tiny", DATA "tiny/chat_chatml.jsonl"},
                                           {DATA "tiny", DATA "tiny/chat_qwen3.jsonl"},
                                           {DATA "llama3", DATA "llama3/chat_llama3.jsonl"}};
    for (size_t i = 0; i < 3; i++) {
        struct cld_error err = CLD_ERROR_INIT;
        struct cld_check_counts counts = {0, 0};
        if (cld_check_tokenizer(cases[i][0], &cases[i][1], 1, stdout, &counts, &err))
            fail_msg("%s", err.what);
        assert_int_equal(counts.n_failed, 0);
        assert_int_equal(counts.n_passed, 70);
    }
}

/* A checker that cannot fail proves nothing. */
static void wrong_lines_fail(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "{\"text\": \"it\", \"ids\": [256]}",
        "{\"text\": \"it\", \"ids\": [257]}",
        "{\"text\": \"it\", \"ids\": [256, 256]}",
        "{\"text\": \"it\", \"ids\": []}",
        "{\"template\": \"chatml\", \"messages\": [{\"role\": \"user\", \"content\": \"a\"}], "
        "\"rendered\": \"<|im_start|>user\\na<|im_end|>\", \"ids\": [], \"loss_mask\": []}",
        "{\"template\": \"chatml\", \"messages\": [{\"role\": \"assistant\", \"content\": \"\"}], "
        "\"rendered\": \"<|im_start|>assistant\\n<|im_end|>\\n\", \"ids\": [942, 1], "
        "\"loss_mask\": [0, 0]}",
        "{\"template\": \"vicuna\", \"messages\": [], \"rendered\": \"\", \"ids\": [], "
        "\"loss_mask\": []}",
        "not json"};
    struct cld_error err = CLD_ERROR_INIT;
    char path[] = "/tmp/cldraft-test-XXXXXX";
    const char *file = path;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    FILE *quiet = fopen("/dev/null", "w");
    assert_non_null(quiet);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct cld_check_counts counts = {0, 0};
        assert_int_equal(cld_file_write(path, lines[i], strlen(lines[i]), &err), CLD_OK);
        assert_int_equal(cld_check_tokenizer(DATA "tiny", &file, 1, quiet, &counts, &err), CLD_OK);
        assert_int_equal(counts.n_passed, i == 0);
        assert_int_equal(counts.n_failed, i != 0);
    }
    struct cld_check_counts counts = {0, 0};
    assert_int_equal(cld_file_write(path, "\n", 1, &err), CLD_OK);
    assert_int_equal(cld_check_tokenizer(DATA "tiny", &file, 1, quiet, &counts, &err), CLD_E_INPUT);
    fclose(quiet);
    unlink(path);
}

/* Renders a JSON array of messages; returns the fault. */
static enum cld_row_fault render(enum cld_chat_template t, const char *json, struct cld_chat *chat)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_row_reading reading = {0};
    struct cld_conversation c = {0};
    json_t *list = json_loads(json, JSON_ALLOW_NUL, NULL);
    assert_non_null(list);
    enum cld_status s = cld_messages_read(list, &c, &reading, &err);
    if (!s)
        s = cld_chat_render(t, c.messages, c.n, chat, &reading, &err);
    assert_int_equal(s, reading.fault ? CLD_E_INPUT : CLD_OK);
    cld_conversation_release(&c);
    json_decref(list);
    return reading.fault;
}

static void assert_rendered(enum cld_chat_template t, const char *json, const char *want,
                            const char *supervised)
{
    struct cld_chat chat = {0};
    size_t n = 0;
    assert_int_equal(render(t, json, &chat), CLD_ROW_FINE);
    assert_int_equal(chat.n_text, strlen(want));
    assert_memory_equal(chat.text, want, chat.n_text);
    for (size_t i = 0; i < chat.n_spans; i++) {
        size_t len = chat.spans[i].end - chat.spans[i].begin;
        assert_true(n + len <= strlen(supervised));
        assert_memory_equal(chat.text + chat.spans[i].begin, supervised + n, len);
        n += len;
    }
    assert_int_equal(n, strlen(supervised));
    cld_chat_release(&chat);
}

static enum cld_status history(enum cld_chat_template t, const char *json, bool drop,
                               struct cld_chat *chat, size_t *n, struct cld_error *err)
{
    struct cld_chat prefix = {0};
    struct cld_conversation c = {0};
    struct cld_row_reading reading = {0};
    json_t *list = json_loads(json, 0, NULL);
    assert_int_equal(cld_messages_read(list, &c, &reading, err), CLD_OK);
    assert_int_equal(cld_chat_render(t, c.messages, c.n, chat, &reading, err), CLD_OK);
    enum cld_status s = cld_chat_history(t, c.messages, c.n, chat, &prefix, drop, n, err);
    assert_int_equal(chat->n_turns, c.n);
    cld_conversation_release(&c);
    json_decref(list);
    cld_chat_release(&prefix);
    return s;
}

static void history_that_is_rendered_anew(void **state)
{
    (void)state;
    static const char two_turns[] = "[{\"role\": \"user\", \"content\": \"q\"},"
                                    " {\"role\": \"assistant\", \"content\": \"a\"},"
                                    " {\"role\": \"user\", \"content\": \"r\"},"
                                    " {\"role\": \"assistant\", \"content\": \"b\"}]";
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_chat chat = {0};
    size_t n = 9;
    assert_int_equal(history(CLD_CHAT_CHATML, two_turns, true, &chat, &n, &err), CLD_OK);
    assert_int_equal(n, 0);
    assert_int_equal(history(CLD_CHAT_LLAMA3, two_turns, true, &chat, &n, &err), CLD_OK);
    assert_int_equal(n, 0);
    assert_int_equal(history(CLD_CHAT_QWEN3, two_turns, false, &chat, &n, &err), CLD_OK);
    assert_int_equal(n, 1); /* the first answer loses its think block when the second comes */
    assert_true(chat.spans[0].end > chat.spans[0].begin);
    assert_int_equal(history(CLD_CHAT_QWEN3, two_turns, true, &chat, &n, &err), CLD_OK);
    assert_int_equal(n, 1);
    assert_int_equal(chat.spans[0].end, chat.spans[0].begin);
    assert_true(chat.spans[1].end > chat.spans[1].begin);
    assert_int_equal(chat.turns[1].role, CLD_ASSISTANT);
    assert_memory_equal(chat.text + chat.turns[1].begin, "<|im_start|>assistant\na<|im_end|>\n",
                        chat.turns[1].end - chat.turns[1].begin);
    cld_chat_release(&chat);
}

static void supervised_is_the_body_and_its_end_mark(void **state)
{
    (void)state;
    assert_rendered(CLD_CHAT_CHATML,
                    "[{\"role\": \"user\", \"content\": \"q\"},"
                    " {\"role\": \"assistant\", \"content\": \" a\\n\"}]",
                    "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n a\n<|im_end|>\n",
                    " a\n<|im_end|>");
    assert_rendered(CLD_CHAT_QWEN3, /* an inserted think block is not supervised, a given one is */
                    "[{\"role\": \"user\", \"content\": \"q\"},"
                    " {\"role\": \"assistant\", \"content\": \"<think>\\nx\\n</think>\\n\\na\"},"
                    " {\"role\": \"assistant\", \"content\": \"b\"}]",
                    "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nx\n</think>\n\n"
                    "a<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nb<|im_end|>\n",
                    "<think>\nx\n</think>\n\na<|im_end|>b<|im_end|>");
    assert_rendered(CLD_CHAT_QWEN3, /* earlier turns lose their thinking */
                    "[{\"role\": \"assistant\", \"content\": \"<think>\\nx\\n</think>\\n\\na\"},"
                    " {\"role\": \"user\", \"content\": \"q\"}]",
                    "<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nq<|im_end|>\n",
                    "a<|im_end|>");
    assert_rendered(CLD_CHAT_QWEN3, /* tool responses share a user turn and are no query */
                    "[{\"role\": \"user\", \"content\": \"q\"},"
                    " {\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": \"r\"},"
                    " {\"role\": \"tool\", \"content\": \"1\"}, {\"role\": \"tool\", \"content\": "
                    "\"2\"}]",
                    "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nr\n</think>\n\n"
                    "a<|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n"
                    "<tool_response>\n2\n</tool_response><|im_end|>\n",
                    "<think>\nr\n</think>\n\na<|im_end|>");
    assert_rendered(CLD_CHAT_LLAMA3, /* trimmed as Python strips, U+001C and U+2003 too */
                    "[{\"role\": \"system\", \"content\": \" s\\n\"},"
                    " {\"role\": \"assistant\", \"content\": \"\\u001c\\u2003a b\\u2003\"}]",
                    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|>"
                    "<|start_header_id|>assistant<|end_header_id|>\n\na b<|eot_id|>",
                    "a b<|eot_id|>");
}

static void share_gpt_spelling(void **state)
{
    (void)state;
    assert_rendered(CLD_CHAT_CHATML,
                    "[{\"from\": \"system\", \"value\": \"s\"}, {\"from\": \"human\", \"value\": "
                    "\"q\"}, {\"from\": \"gpt\", \"value\": \"a\"}]",
                    "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nq<|im_end|>\n"
                    "<|im_start|>assistant\na<|im_end|>\n",
                    "a<|im_end|>");
}

static void what_is_not_supported_is_refused(void **state)
{
    (void)state;
    static const struct {
        enum cld_chat_template t;
        const char *json;
        enum cld_row_fault fault;
    } cases[] = {
        {CLD_CHAT_CHATML, "[]", CLD_ROW_BAD_SHAPE},
        {CLD_CHAT_CHATML, "{}", CLD_ROW_BAD_SHAPE},
        {CLD_CHAT_CHATML, "[3]", CLD_ROW_BAD_SHAPE},
        {CLD_CHAT_CHATML, "[{\"content\": \"a\"}]", CLD_ROW_BAD_SHAPE},
        {CLD_CHAT_CHATML, "[{\"role\": \"user\"}]", CLD_ROW_BAD_SHAPE},
        {CLD_CHAT_CHATML, "[{\"role\": \"human\", \"content\": \"a\"}]", CLD_ROW_UNKNOWN_ROLE},
        {CLD_CHAT_CHATML, "[{\"role\": \"developer\", \"content\": \"a\"}]", CLD_ROW_UNKNOWN_ROLE},
        {CLD_CHAT_CHATML, "[{\"role\": \"user\", \"content\": null}]", CLD_ROW_UNSUPPORTED},
        {CLD_CHAT_CHATML, "[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]",
         CLD_ROW_UNSUPPORTED},
        {CLD_CHAT_QWEN3, "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{}]}]",
         CLD_ROW_UNSUPPORTED},
        {CLD_CHAT_QWEN3, "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": []}]",
         CLD_ROW_FINE},
        {CLD_CHAT_QWEN3, "[{\"role\": \"user\", \"content\": \"\", \"id\": 7}]", CLD_ROW_FINE},
        {CLD_CHAT_QWEN3, "[{\"role\": \"assistant\", \"content\": \"\", \"reasoning_content\": 3}]",
         CLD_ROW_UNSUPPORTED},
        {CLD_CHAT_CHATML,
         "[{\"role\": \"assistant\", \"content\": \"\", \"reasoning_content\": \"x\"}]",
         CLD_ROW_UNSUPPORTED},
        {CLD_CHAT_LLAMA3, "[{\"role\": \"tool\", \"content\": \"\"}]", CLD_ROW_UNSUPPORTED},
    };
    struct cld_chat chat = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(render(cases[i].t, cases[i].json, &chat), cases[i].fault);
    cld_chat_release(&chat);
}

static void write_in(const char *dir, const char *name, const char *text)
{
    struct cld_error err = CLD_ERROR_INIT;
    char *path = cld_format("%s/%s", dir, name);
    assert_int_equal(cld_file_write(path, text, strlen(text), &err), CLD_OK);
    free(path);
}

static void templates_by_name_and_by_model(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    enum cld_chat_template t;
    for (int i = 0; i < 3; i++) {
        const char *name = cld_chat_template_name((enum cld_chat_template)i);
        assert_int_equal(cld_chat_template_named(name, &t, &err), CLD_OK);
        assert_int_equal(t, i);
    }
    assert_int_equal(cld_chat_template_named("vicuna", &t, &err), CLD_E_USAGE);
    assert_non_null(strstr(err.hint, "llama3"));

    static const char llama3[] =
        "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
        "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] "
        "| trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
        "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
        "'<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";
    char dir[] = "/tmp/cldraft-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    assert_int_equal(cld_chat_template_of(dir, &t, &err), CLD_E_USAGE);
    write_in(dir, "tokenizer_config.json",
             "{\"chat_template\": \"{% for m in messages %}<|im_start|>{{ m.role }}\\n"
             "{{ m.content }}<|im_end|>\\n{% endfor %}\"}");
    assert_int_equal(cld_chat_template_of(dir, &t, &err), CLD_OK);
    assert_int_equal(t, CLD_CHAT_CHATML);
    write_in(dir, "chat_template.jinja", llama3);
    assert_int_equal(cld_chat_template_of(dir, &t, &err), CLD_OK);
    assert_int_equal(t, CLD_CHAT_LLAMA3);
    write_in(dir, "chat_template.jinja", "{{ messages }}");
    assert_int_equal(cld_chat_template_of(dir, &t, &err), CLD_E_USAGE);
    assert_non_null(strstr(err.hint, "chatml"));
    assert_int_equal(cld_dir_remove(dir, &err), CLD_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_lines_are_exact),
        cmocka_unit_test(wrong_lines_fail),
        cmocka_unit_test(history_that_is_rendered_anew),
        cmocka_unit_test(supervised_is_the_body_and_its_end_mark),
        cmocka_unit_test(share_gpt_spelling),
        cmocka_unit_test(what_is_not_supported_is_refused),
        cmocka_unit_test(templates_by_name_and_by_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
