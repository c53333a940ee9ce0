/* Every key of a row has an effect or is refused by name: chats, prompts, messages, ready ids. */
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
#include "base/log.h"
#include "data/prompts.h"
#include "data/ready_row.h"
#include "data/row_file.h"
#include "data/row_paths.h"
#include "formats/json_lenient.h"
#include "text/messages.h"

#define CHAT                                                                                       \
    "\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "          \
    "\"content\": \"a\"}]"
#define TURN(beside)                                                                               \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": "                        \
    "\"assistant\", \"content\": \"a\", " beside "}]}"
#define ASKED(beside)                                                                              \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"q\", " beside "}, "                       \
    "{\"role\": \"assistant\", \"content\": \"a\"}]}"

/* Reads a row's chat; the reading has fault and key. */
static void read_chat(const char *text, unsigned place, struct cld_conversation *c,
                      struct cld_row_reading *r, json_t **row)
{
    struct cld_error err = CLD_ERROR_INIT;
    enum cld_status s = cld_row_parse(text, strlen(text), row, r, &err);
    if (!s)
        s = cld_conversation_read(*row, place, c, r, &err);
    if (s != (r->fault ? CLD_E_INPUT : CLD_OK) || (r->key[0] && !strstr(err.what, r->key)))
        fail_msg("%s: status %d, fault %d, key %s, %s", text, s, r->fault, r->key, err.what);
}

static void keys_of_chats(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum cld_row_fault fault;
        const char *key;
    } cases[] = {
        {"{" CHAT "}", CLD_ROW_FINE, ""},
        {"{" CHAT ", \"conversations\": null, \"tools\": \"[]\", \"images\": [], \"system\": \"\"}",
         CLD_ROW_FINE, ""},
        {"{" CHAT ", \"id\": 3, \"prompt_id\": \"x\", \"dataset\": \"d\", \"avg_rating\": 3.5, "
         "\"metadata\": {\"a\": [1]}, \"prompt\": \"q\", \"temperature\": 0.7, \"reasoning\": "
         "\"off\", \"labels\": {\"toxic\": 0}, \"used_in_training\": \"yes\"}",
         CLD_ROW_FINE, ""},
        {"{" CHAT ", \"conversations\": []}", CLD_ROW_BAD_SHAPE, ""},
        {"{\"text\": \"a\"}", CLD_ROW_BAD_SHAPE, ""},
        {"{" CHAT ", \"tools\": [{}]}", CLD_ROW_UNSUPPORTED, "tools"},
        {"{" CHAT ", \"available_tools\": [{}]}", CLD_ROW_UNSUPPORTED, "available_tools"},
        {"{" CHAT ", \"images\": [\"a.png\"]}", CLD_ROW_UNSUPPORTED, "images"},
        {"{" CHAT ", \"image_path\": \"a.png\"}", CLD_ROW_UNSUPPORTED, "image_path"},
        {"{" CHAT ", \"videos\": [\"a\"]}", CLD_ROW_UNSUPPORTED, "videos"},
        {"{" CHAT ", \"audio\": \"a\"}", CLD_ROW_UNSUPPORTED, "audio"},
        {"{" CHAT ", \"documents\": [{}]}", CLD_ROW_UNSUPPORTED, "documents"},
        {"{" CHAT ", \"chosen\": [{}]}", CLD_ROW_UNSUPPORTED, "chosen"},
        {"{" CHAT ", \"rejected\": [{}]}", CLD_ROW_UNSUPPORTED, "rejected"},
        {"{" CHAT ", \"continue_final_message\": true}", CLD_ROW_UNSUPPORTED,
         "continue_final_message"},
        {"{" CHAT ", \"continue_final_message\": false}", CLD_ROW_FINE, ""},
        {"{" CHAT ", \"add_generation_prompt\": true}", CLD_ROW_UNSUPPORTED,
         "add_generation_prompt"},
        {"{" CHAT ", \"assistant_masks\": [0, 1]}", CLD_ROW_UNSUPPORTED, "assistant_masks"},
        {"{" CHAT ", \"attention_mask\": [1, 1]}", CLD_ROW_UNSUPPORTED, "attention_mask"},
        {"{" CHAT ", \"position_ids\": [0, 1]}", CLD_ROW_UNSUPPORTED, "position_ids"},
        {"{" CHAT ", \"seq_lens\": [2]}", CLD_ROW_UNSUPPORTED, "seq_lens"},
        {"{" CHAT ", \"labels\": [1, -100]}", CLD_ROW_UNSUPPORTED, "labels"},
        {"{" CHAT ", \"weight\": 1}", CLD_ROW_FINE, ""},
        {"{" CHAT ", \"weight\": 0.5}", CLD_ROW_UNSUPPORTED, "weight"},
        {"{" CHAT ", \"train\": false}", CLD_ROW_UNSUPPORTED, "train"},
        {"{" CHAT ", \"train_on_inputs\": true}", CLD_ROW_UNSUPPORTED, "train_on_inputs"},
        {"{" CHAT ", \"prefix\": true}", CLD_ROW_UNSUPPORTED, "prefix"},
        {"{" CHAT ", \"system\": 3}", CLD_ROW_UNSUPPORTED, "system"},
        {"{" CHAT ", \"system\": \"x\", \"system_prompt\": \"y\"}", CLD_ROW_CONTRADICTORY,
         "system_prompt"},
        {"{" CHAT ", \"enable_thinking\": 1}", CLD_ROW_UNSUPPORTED, "enable_thinking"},
        {"{" CHAT ", \"chat_template_kwargs\": {\"x\": 1}}", CLD_ROW_UNSUPPORTED,
         "chat_template_kwargs"},
        {"{" CHAT ", \"chat_template_kwargs\": {\"python_tools\": []}}", CLD_ROW_FINE, ""},
        {"{" CHAT ", \"enable_thinking\": true, \"chat_template_kwargs\": {\"enable_thinking\": "
         "false}}",
         CLD_ROW_CONTRADICTORY, "enable_thinking"},
        {"{" CHAT ", \"loss_mask\": [0]}", CLD_ROW_BAD_SHAPE, "loss_mask"},
        {"{" CHAT ", \"loss_mask\": [1, 1]}", CLD_ROW_UNSUPPORTED, "loss_mask"},
        {"{" CHAT ", \"loss_mask\": 1}", CLD_ROW_BAD_SHAPE, "loss_mask"},
        {"{" CHAT ", \"score\": NaN, \"id\": 123456789012345678901234567890}", CLD_ROW_FINE, ""},
        {"{" CHAT ", \"system\": NaN}", CLD_ROW_UNSUPPORTED, "system"},
        {"{" CHAT ", \"loss_mask\": [0, NaN]}", CLD_ROW_UNSUPPORTED, "loss_mask"},
        {TURN("\"name\": \"x\", \"timestamp\": 3, \"tool_calls\": []"), CLD_ROW_FINE, ""},
        {TURN("\"tool_calls\": [{}]"), CLD_ROW_UNSUPPORTED, "tool_calls"},
        {TURN("\"unheard_of\": 3"), CLD_ROW_UNSUPPORTED, "unheard_of"},
        {TURN("\"unheard_of\": null"), CLD_ROW_FINE, ""},
        {TURN("\"train\": 0.5"), CLD_ROW_UNSUPPORTED, "train"},
        {TURN("\"weight\": 0.25"), CLD_ROW_UNSUPPORTED, "weight"},
        {TURN("\"weight\": NaN"), CLD_ROW_UNSUPPORTED, "weight"},
        {TURN("\"train\": \"no\""), CLD_ROW_UNSUPPORTED, "train"},
        {TURN("\"train\": true, \"weight\": 0"), CLD_ROW_CONTRADICTORY, "weight"},
        {TURN("\"train\": true, \"weight\": 1.0"), CLD_ROW_FINE, ""},
        {TURN("\"prefix\": true"), CLD_ROW_UNSUPPORTED, "prefix"},
        {TURN("\"reasoning\": \"x\", \"thinking\": \"x\""), CLD_ROW_FINE, ""},
        {TURN("\"reasoning\": \"x\", \"thinking\": \"y\""), CLD_ROW_CONTRADICTORY, "thinking"},
        {TURN("\"reasoning_details\": [{\"type\": \"reasoning.encrypted\", \"data\": \"x\"}]"),
         CLD_ROW_UNSUPPORTED, "reasoning_details"},
        {TURN("\"value\": \"b\""), CLD_ROW_CONTRADICTORY, "value"},
        {TURN("\"from\": \"gpt\""), CLD_ROW_CONTRADICTORY, "from"},
        {ASKED("\"train\": true"), CLD_ROW_UNSUPPORTED, "train"},
        {ASKED("\"weight\": 0"), CLD_ROW_FINE, ""},
        {ASKED("\"reasoning\": \"x\""), CLD_ROW_UNSUPPORTED, "reasoning"},
        {ASKED("\"images\": [\"x\"]"), CLD_ROW_UNSUPPORTED, "images"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cld_row_reading r = {0};
        struct cld_conversation c = {0};
        json_t *row = NULL;
        read_chat(cases[i].text, CLD_KEY_OF_CHAT, &c, &r, &row);
        if (r.fault != cases[i].fault || strcmp(r.key, cases[i].key))
            fail_msg("%s: fault %d, key %s", cases[i].text, r.fault, r.key);
        cld_conversation_release(&c);
        json_decref(row);
    }
}

static void what_a_chat_says(void **state)
{
    (void)state;
    struct cld_row_reading r = {0};
    struct cld_conversation c = {0};
    json_t *row = NULL;
    /* a system text comes first, once */
    read_chat("{" CHAT ", \"system_prompt\": \"be brief\"}", CLD_KEY_OF_CHAT, &c, &r, &row);
    assert_int_equal(c.n, 3);
    assert_int_equal(c.messages[0].role, CLD_SYSTEM);
    assert_string_equal(c.messages[0].content.at, "be brief");
    cld_conversation_release(&c);
    json_decref(row);
    read_chat("{\"system\": \"s\", \"messages\": [{\"role\": \"system\", \"content\": \"s\"}, "
              "{\"role\": \"user\", \"content\": \"q\"}]}",
              CLD_KEY_OF_CHAT, &c, &r, &row);
    assert_int_equal(r.fault, CLD_ROW_FINE);
    assert_int_equal(c.n, 2);
    assert_int_equal(c.messages[1].role, CLD_USER);
    cld_conversation_release(&c);
    json_decref(row);
    read_chat("{\"system\": \"s\", \"messages\": [{\"role\": \"system\", \"content\": \"t\"}, "
              "{\"role\": \"user\", \"content\": \"q\"}]}",
              CLD_KEY_OF_CHAT, &c, &r, &row);
    assert_int_equal(r.fault, CLD_ROW_CONTRADICTORY);
    cld_conversation_release(&c);
    json_decref(row);
    /* masks of a row count the messages of its list */
    read_chat("{" CHAT ", \"system\": \"s\", \"loss_mask\": [0, 0], \"enable_thinking\": false}",
              CLD_KEY_OF_CHAT, &c, &r, &row);
    assert_int_equal(r.fault, CLD_ROW_FINE);
    assert_true(c.messages[2].excluded);
    assert_int_equal(c.thinking, CLD_THINKING_OFF);
    cld_conversation_release(&c);
    json_decref(row);
    /* pieces of thinking are one text */
    read_chat(TURN("\"reasoning_details\": [{\"type\": \"reasoning.text\", \"text\": \"ab\"}, "
                   "{\"text\": \"c\"}]"),
              CLD_KEY_OF_CHAT, &c, &r, &row);
    assert_int_equal(c.messages[1].reasoning.n, 3);
    assert_memory_equal(c.messages[1].reasoning.at, "abc", 3);
    cld_conversation_release(&c);
    json_decref(row);
    /* keys that the user names are passed over, and counted */
    static const char *const ignored[] = {"images", "unheard_of"};
    struct cld_key_counts unread = {0};
    char text[128];
    r = (struct cld_row_reading){.unread = &unread, .ignored = ignored, .n_ignored = 2};
    read_chat("{" CHAT ", \"images\": [3], \"flavour\": 3}", CLD_KEY_OF_CHAT, &c, &r, &row);
    assert_int_equal(r.fault, CLD_ROW_FINE);
    cld_key_counts_text(&unread, text, sizeof text);
    assert_string_equal(text, "1 images, 1 flavour");
    cld_conversation_release(&c);
    json_decref(row);
}

/* ---- ready ids ---- */

static enum cld_row_fault read_ready(const char *beside, struct cld_ready_row *out, char *key)
{
    char text[512];
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_row_reading r = {0};
    json_t *row = NULL;
    snprintf(text, sizeof text, "{\"input_ids\": [4, 5, 6, 7, 8, 9], %s}", beside);
    enum cld_status s = cld_row_parse(text, strlen(text), &row, &r, &err);
    assert_int_equal(s, CLD_OK);
    assert_true(cld_is_ready_row(row));
    s = cld_ready_row_read(row, out, &r, &err);
    assert_int_equal(s, r.fault ? CLD_E_INPUT : CLD_OK);
    if (r.key[0])
        assert_non_null(strstr(err.what, r.key));
    snprintf(key, CLD_KEY_BYTES, "%s", r.key);
    json_decref(row);
    return r.fault;
}

#define MASK "\"loss_mask\": [0, 0, 1, 1, 1, 0]"

static void keys_of_ready_ids(void **state)
{
    (void)state;
    static const struct {
        const char *beside;
        enum cld_row_fault fault;
        const char *key;    /* or, of a good row, */
        const char *wanted; /* the ids with | before documents and * after learned ones */
    } cases[] = {
        {MASK, CLD_ROW_FINE, "", "|4 5 6*7*8*9 "},
        {MASK ", \"tools\": [{}], \"length\": 6, \"messages\": []", CLD_ROW_FINE, "",
         "|4 5 6*7*8*9 "},
        {"\"labels\": [-100, -100, 6, 7, -100, -100]", CLD_ROW_FINE, "", "|4 5 6*7*8 9 "},
        {MASK ", \"labels\": [-100, -100, 6, 7, 8, -100]", CLD_ROW_FINE, "", "|4 5 6*7*8*9 "},
        {MASK ", \"labels\": [-100, -100, 6, 7, -100, -100]", CLD_ROW_CONTRADICTORY, "labels", ""},
        {"\"labels\": [-100, -100, 7, 8, 9, -100]", CLD_ROW_CONTRADICTORY, "labels", ""},
        {"\"labels\": [-100, 6]", CLD_ROW_BAD_SHAPE, "labels", ""},
        {"\"assistant_masks\": [0, 0, 0, 1, 1, 1]", CLD_ROW_FINE, "", "|4 5 6 7*8*9*"},
        {MASK ", \"completion_mask\": [0, 1, 1, 1, 1, 1]", CLD_ROW_CONTRADICTORY, "completion_mask",
         ""},
        {MASK ", \"attention_mask\": [0, 1, 1, 1, 1, 0]", CLD_ROW_FINE, "", "|5 6*7*8*"},
        {MASK ", \"attention_mask\": [0, 1, 1, 1, 0, 0]", CLD_ROW_CONTRADICTORY, "attention_mask",
         ""},
        {MASK ", \"attention_mask\": [1, 0, 1, 1, 1, 1]", CLD_ROW_UNSUPPORTED, "attention_mask",
         ""},
        {MASK ", \"attention_mask\": [1, 1, 2, 2, 2, 0]", CLD_ROW_FINE, "", "|4 5 |6*7*8*"},
        {MASK ", \"attention_mask\": [[1, 1, 1, 1, 1, 1]]", CLD_ROW_BAD_SHAPE, "attention_mask",
         ""},
        {MASK ", \"position_ids\": [0, 1, 0, 1, 2, 3]", CLD_ROW_FINE, "", "|4 5 |6*7*8*9 "},
        {MASK ", \"position_ids\": [0, 0, 1, 2, 3, 4], \"attention_mask\": [0, 1, 1, 1, 1, 1]",
         CLD_ROW_FINE, "", "|5 6*7*8*9 "},
        {MASK ", \"position_ids\": [2, 3, 4, 5, 6, 7]", CLD_ROW_UNSUPPORTED, "position_ids", ""},
        {MASK ", \"position_ids\": [0, 1, 3, 4, 5, 6]", CLD_ROW_UNSUPPORTED, "position_ids", ""},
        {MASK ", \"seq_lens\": [2, 4]", CLD_ROW_FINE, "", "|4 5 |6*7*8*9 "},
        {MASK ", \"seq_lens\": [2, 3]", CLD_ROW_BAD_SHAPE, "seq_lens", ""},
        {MASK ", \"seq_lens\": [2, 0, 4]", CLD_ROW_BAD_SHAPE, "seq_lens", ""},
        {MASK ", \"cu_seqlens\": [0, 2, 6]", CLD_ROW_FINE, "", "|4 5 |6*7*8*9 "},
        {MASK ", \"cu_seqlens\": [0, 2]", CLD_ROW_BAD_SHAPE, "cu_seqlens", ""},
        {MASK ", \"cu_seqlens\": [0, 2, 9]", CLD_ROW_BAD_SHAPE, "cu_seqlens", ""},
        {MASK ", \"seq_start_id\": [0, 2]", CLD_ROW_FINE, "", "|4 5 |6*7*8*9 "},
        {MASK ", \"seq_idx\": [0, 0, 1, 1, 1, 2]", CLD_ROW_FINE, "", "|4 5 |6*7*8*|9 "},
        {MASK ", \"seq_idx\": [0, 0, 1, 1, 0, 0]", CLD_ROW_UNSUPPORTED, "seq_idx", ""},
        {MASK ", \"seq_idx\": [0, 0, 1, 1, 1, 1], \"seq_lens\": [3, 3]", CLD_ROW_CONTRADICTORY,
         "seq_idx", ""},
        {MASK ", \"token_type_ids\": [0, 0, 0, 0, 0, 0]", CLD_ROW_FINE, "", "|4 5 6*7*8*9 "},
        {MASK ", \"token_type_ids\": [0, 0, 0, 0, 1, 1]", CLD_ROW_UNSUPPORTED, "token_type_ids",
         ""},
        {MASK ", \"pixel_values\": [1]", CLD_ROW_UNSUPPORTED, "pixel_values", ""},
        {MASK ", \"loss_weights\": [1]", CLD_ROW_UNSUPPORTED, "loss_weights", ""},
        {MASK ", \"doc_lens\": [2, 4]", CLD_ROW_UNSUPPORTED, "doc_lens", ""},
        {MASK ", \"sequence_id\": [0, 0, 1, 1, 1, 1]", CLD_ROW_UNSUPPORTED, "sequence_id", ""},
        {MASK ", \"prompt_id\": \"x\", \"prompt_length\": 3", CLD_ROW_FINE, "", "|4 5 6*7*8*9 "},
    };
    struct cld_ready_row row = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char got[128] = "", key[CLD_KEY_BYTES];
        enum cld_row_fault fault = read_ready(cases[i].beside, &row, key);
        for (size_t k = 0; k < row.n && !fault; k++)
            snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d%c",
                     row.starts[k] ? "|" : "", row.ids[k], row.mask[k] ? '*' : ' ');
        if (fault != cases[i].fault || strcmp(key, cases[i].key) || strcmp(got, cases[i].wanted))
            fail_msg("%s: fault %d, key %s, %s", cases[i].beside, fault, key, got);
    }
    cld_ready_row_release(&row);
}

/* ---- prompts ---- */

static void keys_of_prompts(void **state)
{
    (void)state;
    static const struct {
        const char *beside;
        const char *key; /* "": a good one, with */
        size_t n_new;
    } cases[] = {
        {"\"id\": 7", "", 100},
        {"\"max_tokens\": 5", "", 5},
        {"\"max_tokens\": 500", "max_tokens", 0},
        {"\"max_new_tokens\": 5, \"max_tokens\": 6", "max_new_tokens", 0},
        {"\"temperature\": 0.5, \"top_p\": 1, \"seed\": 42", "", 100},
        {"\"temperature\": 0.7", "temperature", 0},
        {"\"top_p\": 0.9", "top_p", 0},
        {"\"seed\": 1", "seed", 0},
        {"\"stop\": [\"x\"]", "stop", 0},
        {"\"n\": 1, \"top_k\": -1.0, \"stream\": true", "top_k", 0},
        {"\"n\": 2", "n", 0},
        {"\"frequency_penalty\": 0, \"repetition_penalty\": 1.0", "", 100},
        {"\"tools\": [{}]", "tools", 0},
        {"\"response_format\": {\"type\": \"json_object\"}", "response_format", 0},
        {"\"enable_thinking\": true", "enable_thinking", 0}, /* chatml has none */
        {"\"enable_thinking\": false", "", 100},
        {"\"continue_final_message\": true", "continue_final_message", 0},
        {"\"input_ids\": [1], \"loss_mask\": [1], \"finish\": \"stop\"", "", 100},
    };
    struct cld_error err = CLD_ERROR_INIT, why;
    struct cld_tokenizer *tokenizer = NULL;
    struct cld_prompt_rules rules = {.chat_template = CLD_CHAT_CHATML,
                                     .settings = "",
                                     .n_new = 100,
                                     .temperature = 0.5,
                                     .top_p = 1,
                                     .seed = 42};
    char path[] = "/tmp/cldraft-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(
        cld_tokenizer_load("tests/data/tokenizer/tiny/tokenizer.json", &tokenizer, &err), CLD_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[512];
        struct cld_prompts *p = NULL;
        struct cld_prompt got;
        struct cld_row_reading r;
        bool there = false;
        snprintf(line, sizeof line,
                 "{%s, \"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}", cases[i].beside);
        assert_int_equal(cld_file_write(path, line, strlen(line), &err), CLD_OK);
        assert_int_equal(cld_prompts_open(path, tokenizer, &rules, &p, &err), CLD_OK);
        assert_int_equal(cld_prompts_next(p, &got, &there, &r, &why, &err), CLD_OK);
        assert_true(there);
        if (strcmp(r.key, cases[i].key) || !!r.fault != !!cases[i].key[0] ||
            (!r.fault && got.n_new != cases[i].n_new))
            fail_msg("%s: fault %d, key %s, %zu tokens: %s", line, r.fault, r.key, got.n_new,
                     why.what);
        cld_prompt_free(&got);
        cld_prompts_close(p);
    }
    cld_tokenizer_free(tokenizer);
    unlink(path);
}

/* ---- files ---- */

static void files_of_other_kinds(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *name; /* "": rows */
    } cases[] = {
        {"\xef\xbb\xbf{\"a\": 1}\r\n", 14, ""},
        {"\n  \n{\"a\": 1}", 13, ""},
        {"\x1f\x8b\x08\0\0", 5, "gzip"},
        {"\x28\xb5\x2f\xfd\0", 5, "zstd"},
        {"\xfd\x37zXZ\0", 6, "xz"},
        {"PAR1\0", 5, "Parquet"},
        {"\xff\xfe{\0\"\0", 6, "UTF-16"},
        {"\xfe\xff\0{\0\"", 6, "UTF-16"},
        {"{\0\"\0a\0", 6, "UTF-16"},
        {" [\n{\"a\": 1}]", 12, "JSON array"},
        {"\xef\xbb\xbf[{\"a\": 1}]", 13, "JSON array"},
        {"{\n  \"a\": 1\n}\n", 13, "several lines"},
        {"version https://git-lfs.github.com/spec/v1\n", 43, "Git LFS"},
        {"<!DOCTYPE html>\n", 16, "HTML"},
    };
    struct cld_error err = CLD_ERROR_INIT;
    char path[] = "/tmp/cldraft-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cld_row_file *f = NULL;
        char *text = NULL;
        size_t n = 0, number = 0;
        enum cld_status s = CLD_OK;
        assert_int_equal(cld_file_write(path, cases[i].bytes, cases[i].n, &err), CLD_OK);
        assert_int_equal(cld_row_file_open(path, &f, &err), CLD_OK);
        do
            s = cld_row_file_next(f, &text, &n, &number, &err);
        while (!s && text && !strspn(text, "{"));
        if (s != (cases[i].name[0] ? CLD_E_INPUT : CLD_OK) ||
            (s && !strstr(err.what, cases[i].name)) || (!s && strcmp(text, "{\"a\": 1}")))
            fail_msg("case %zu: %d, %s", i, s, s ? err.what : text);
        cld_row_file_close(f);
    }
    unlink(path);
    struct cld_row_file *f = NULL;
    assert_int_equal(cld_row_file_open("/tmp", &f, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "is a directory"));
}

static void lists_and_patterns_of_files(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_row_paths p = {0}, q = {0};
    char dir[] = "/tmp/cldraft-test-XXXXXX", list[256], item[128];
    assert_non_null(mkdtemp(dir));
    for (const char *name = "abc"; *name; name++) {
        snprintf(item, sizeof item, "%s/%c.jsonl", dir, *name);
        assert_int_equal(cld_file_write(item, "x", 1, &err), CLD_OK);
    }
    snprintf(list, sizeof list, "%s/c.jsonl , %s/[ab].jsonl", dir, dir);
    assert_int_equal(cld_row_paths_add(&p, "data.train", list, &err), CLD_OK);
    assert_int_equal(p.n, 3);
    assert_non_null(strstr(p.v[0], "c.jsonl"));
    assert_non_null(strstr(p.v[1], "a.jsonl"));
    snprintf(list, sizeof list, "%s/../%s/b.jsonl", dir, strrchr(dir, '/') + 1);
    assert_int_equal(cld_row_paths_add(&q, "data.heldout", list, &err), CLD_OK);
    assert_non_null(cld_row_paths_shared(&p, &q)); /* by another name */
    assert_int_equal(cld_row_paths_add(&p, "data.train", list, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "twice"));
    snprintf(list, sizeof list, "%s/d*.jsonl", dir);
    assert_int_equal(cld_row_paths_add(&q, "data.heldout", list, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "no file matches"));
    assert_int_equal(cld_row_paths_add(&q, "data.heldout", "a,,b", &err), CLD_E_USAGE);
    snprintf(item, sizeof item, "%s/a,b.jsonl", dir); /* a comma in a name */
    assert_int_equal(cld_file_write(item, "x", 1, &err), CLD_OK);
    cld_row_paths_free(&q);
    assert_int_equal(cld_row_paths_add(&q, "data.heldout", item, &err), CLD_OK);
    assert_int_equal(q.n, 1);
    cld_row_paths_free(&p);
    cld_row_paths_free(&q);
    assert_int_equal(cld_dir_remove(dir, &err), CLD_OK);
}

static void numbers_that_json_does_not_have(void **state)
{
    (void)state;
    static const char text[] = "{\"a\": [NaN, -Infinity, 1e999, 3], \"b\": \"NaN 1e999 \\\" NaN\", "
                               "\"c\": 12345678901234567890123, \"d\": -1.5}";
    json_error_t where;
    bool repaired = false;
    json_t *v = cld_json_lenient(text, strlen(text), &repaired, &where);
    assert_non_null(v);
    assert_true(repaired);
    assert_true(cld_json_is_lost(json_object_get(v, "a")));
    assert_false(cld_json_is_lost(json_object_get(v, "b")));
    assert_string_equal(json_string_value(json_object_get(v, "b")), "NaN 1e999 \" NaN");
    assert_string_equal(cld_json_lost_text(json_object_get(v, "c")), "12345678901234567890123");
    assert_string_equal(cld_json_lost_text(json_array_get(json_object_get(v, "a"), 2)), "1e999");
    assert_true(json_real_value(json_object_get(v, "d")) == -1.5);
    json_decref(v);
    static const char *const broken[] = {"{\"a\": Nan}", "{\"a\": NaNo}", "{\"a\": 01}",
                                         "{\"a\": }",    "{\"a\": NaN",   "{\"a\": 1, \"a\": NaN}"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        assert_null(cld_json_lenient(broken[i], strlen(broken[i]), &repaired, &where));
}

/* docs/data.md names every key of the table. */
static void the_docs_have_every_key(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(cld_file_read("docs/data.md", 0, &text, &n, &err), CLD_OK);
    for (size_t i = 0; cld_row_key_at(i); i++) {
        char quoted[64];
        snprintf(quoted, sizeof quoted, "`%s`", cld_row_key_at(i));
        if (!strstr(text, quoted))
            fail_msg("docs/data.md does not name %s", quoted);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_chats),
        cmocka_unit_test(what_a_chat_says),
        cmocka_unit_test(keys_of_ready_ids),
        cmocka_unit_test(keys_of_prompts),
        cmocka_unit_test(files_of_other_kinds),
        cmocka_unit_test(lists_and_patterns_of_files),
        cmocka_unit_test(numbers_that_json_does_not_have),
        cmocka_unit_test(the_docs_have_every_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
