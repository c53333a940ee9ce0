/* Rows from JSONL: kept, cut, skipped and refused, with their counts and messages. */
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
#include "data/dataset.h"

struct fixture {
    struct cld_tokenizer *tokenizer;
    char path[2][64];
};

static int setup(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct fixture *f = calloc(1, sizeof *f);
    if (!f || cld_tokenizer_load("tests/data/tokenizer/tiny/tokenizer.json", &f->tokenizer, &err))
        return -1;
    for (int i = 0; i < 2; i++) {
        strcpy(f->path[i], "/tmp/cldraft-test-XXXXXX");
        int fd = mkstemp(f->path[i]);
        if (fd < 0)
            return -1;
        close(fd);
    }
    cld_log_set_level(CLD_LOG_ERROR); /* skipped lines are meant here */
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    unlink(f->path[0]);
    unlink(f->path[1]);
    cld_tokenizer_free(f->tokenizer);
    free(f);
    return 0;
}

static enum cld_status load(struct fixture *f, const char *first, const char *second,
                            struct cld_dataset_options options, struct cld_dataset **out,
                            struct cld_error *err)
{
    const char *paths[] = {f->path[0], f->path[1]};
    assert_int_equal(cld_file_write(paths[0], first, strlen(first), err), CLD_OK);
    if (second)
        assert_int_equal(cld_file_write(paths[1], second, strlen(second), err), CLD_OK);
    return cld_dataset_load(paths, second ? 2 : 1, &options, out, err);
}

static struct cld_dataset_options plain(const struct fixture *f)
{
    return (struct cld_dataset_options){.tokenizer = f->tokenizer,
                                        .chat_template = CLD_CHAT_CHATML,
                                        .max_length = 100,
                                        .n_vocab = 945,
                                        .history = CLD_HISTORY_FAIL};
}

#define CHAT(q, a)                                                                                 \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"" q                                       \
    "\"}, {\"role\": \"assistant\", \"content\": \"" a "\"}]}\n"

static void rows_of_every_kind(void **state)
{
    struct fixture *f = *state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_dataset *d = NULL;
    enum cld_status s =
        load(f,
             CHAT("Hi", "it") "\n"
                              "{\"conversations\": [{\"from\": \"human\", \"value\": \"Hi\"}, "
                              "{\"from\": \"gpt\", "
                              "\"value\": \"it\"}], \"id\": \"x\"}\r\n",
             "{\"input_ids\": [5, 6, 7], \"loss_mask\": [0, 1, true]}", /* no newline at the end */
             plain(f), &d, &err);
    assert_int_equal(s, CLD_OK);
    assert_int_equal(cld_dataset_n_rows(d), 3);
    struct cld_row chat = cld_dataset_row(d, 0), share = cld_dataset_row(d, 1);
    struct cld_row ready = cld_dataset_row(d, 2);
    assert_int_equal(chat.id, 0);
    assert_int_equal(share.id, 2); /* the blank line has an id of its own */
    assert_int_equal(ready.id, 3);
    assert_int_equal(chat.n, share.n);
    assert_memory_equal(chat.ids, share.ids, chat.n * sizeof *chat.ids);
    assert_memory_equal(chat.loss_mask, share.loss_mask, chat.n);
    assert_int_equal(chat.ids[0], 942);
    assert_int_equal(chat.ids[chat.n - 3], 256);
    static const uint8_t tail[] = {0, 1, 1, 0}; /* header's newline, "it", the end mark, newline */
    assert_memory_equal(chat.loss_mask + chat.n - 4, tail, 4);
    static const int32_t ids[] = {5, 6, 7};
    static const uint8_t mask[] = {0, 1, 1};
    assert_int_equal(ready.n, 3);
    assert_memory_equal(ready.ids, ids, sizeof ids);
    assert_memory_equal(ready.loss_mask, mask, sizeof mask);
    const struct cld_dataset_counts *c = cld_dataset_counts(d);
    assert_int_equal(c->n_lines, 4);
    assert_int_equal(c->n_blank, 1);
    assert_int_equal(c->n_cut, 0);
    assert_int_equal(c->n_supervised, 6);
    assert_int_equal(c->n_tokens, 2 * chat.n + 3);
    assert_int_equal(cld_dataset_longest(d), chat.n);
    cld_dataset_free(d);
}

static void bad_rows_are_counted_by_reason(void **state)
{
    struct fixture *f = *state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_dataset *d = NULL;
    char text[512];
    enum cld_status s =
        load(f,
             "{\"messages\": [\n"                                                 /* JSON */
             "{\"messages\": \"\xff\"}\n"                                         /* UTF-8 */
             "{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}\n" /* JSON */
             "3\n{}\n"                                                            /* shape */
             "{\"messages\": [], \"input_ids\": []}\n"                            /* shape */
             "{\"input_ids\": [1, 2], \"loss_mask\": [1]}\n"                      /* shape */
             "{\"input_ids\": [1, -2], \"loss_mask\": [1, 1]}\n"                  /* shape */
             "{\"input_ids\": [1, 2], \"loss_mask\": [1, 2]}\n"                   /* shape */
             "{\"input_ids\": [1, 2.0], \"loss_mask\": [1, 1]}\n"                 /* shape */
             "{\"messages\": [{\"role\": \"robot\", \"content\": \"\"}]}\n"       /* role */
             "{\"messages\": [{\"role\": \"user\", \"content\": []}]}\n"
             "{\"tools\": [{}], \"messages\": [{\"role\": \"user\", \"content\": \"\"}]}\n"
             "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n" /* unsupervised */
             "{\"input_ids\": [1, 2, 3, 4], \"loss_mask\": [1, 0, 1, 0]}\n" /* unsupervised */
             "{\"input_ids\": [], \"loss_mask\": []}\n"                     /* unsupervised */
             CHAT("Hi", "it"),
             NULL, plain(f), &d, &err);
    assert_int_equal(s, CLD_OK);
    const struct cld_dataset_counts *c = cld_dataset_counts(d);
    assert_int_equal(c->n_rows, 1);
    assert_int_equal(c->n_fault[CLD_ROW_BAD_JSON], 2);
    assert_int_equal(c->n_fault[CLD_ROW_NOT_UTF8], 1);
    assert_int_equal(c->n_fault[CLD_ROW_BAD_SHAPE], 7);
    assert_int_equal(c->n_fault[CLD_ROW_UNKNOWN_ROLE], 1);
    assert_int_equal(c->n_fault[CLD_ROW_UNSUPPORTED], 2);
    assert_int_equal(c->n_fault[CLD_ROW_UNSUPERVISED], 3);
    assert_int_equal(cld_dataset_row(d, 0).id, 16);
    cld_dataset_describe(c, text, sizeof text);
    assert_non_null(strstr(text, "1 rows of 17 lines"));
    assert_non_null(strstr(text, "7 malformed row"));
    assert_non_null(strstr(text, "3 unsupervised"));
    cld_dataset_describe(c, text, 20); /* cut, not overrun */
    assert_int_equal(strlen(text), 19);
    cld_dataset_free(d);
}

static void a_bad_row_can_be_fatal(void **state)
{
    struct fixture *f = *state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_dataset *d = NULL;
    struct cld_dataset_options options = plain(f);
    options.bad_row_fatal = true;
    assert_int_equal(load(f, CHAT("Hi", "it"), "\n{\"messages\": 3}\n", options, &d, &err),
                     CLD_E_INPUT);
    assert_null(d);
    assert_non_null(strstr(err.what, f->path[1]));
    assert_non_null(strstr(err.what, ":2: "));
    /* a row with nothing to learn is not bad */
    assert_int_equal(load(f, CHAT("Hi", "it") "{\"input_ids\": [1], \"loss_mask\": [1]}\n", NULL,
                          options, &d, &err),
                     CLD_OK);
    assert_int_equal(cld_dataset_n_rows(d), 1);
    cld_dataset_free(d);
}

static void long_rows_are_cut(void **state)
{
    struct fixture *f = *state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_dataset *d = NULL;
    struct cld_dataset_options options = plain(f);
    options.max_length = 3;
    assert_int_equal(load(f,
                          "{\"input_ids\": [1, 2, 3, 4], \"loss_mask\": [0, 1, 1, 1]}\n"
                          "{\"input_ids\": [1, 2, 3, 4], \"loss_mask\": [0, 0, 1, 1]}\n"
                          "{\"input_ids\": [1, 2, 3], \"loss_mask\": [0, 1, 1]}\n",
                          NULL, options, &d, &err),
                     CLD_OK);
    assert_int_equal(cld_dataset_n_rows(d), 2);
    assert_int_equal(cld_dataset_row(d, 0).n, 3);
    assert_int_equal(cld_dataset_row(d, 1).id, 2);
    assert_int_equal(cld_dataset_counts(d)->n_cut, 1);
    assert_int_equal(cld_dataset_counts(d)->n_fault[CLD_ROW_CUT_PROMPT], 1);
    cld_dataset_free(d);
    options.max_length = 1;
    assert_int_equal(load(f, "", NULL, options, &d, &err), CLD_E_USAGE);
}

static void ids_beyond_the_target_are_fatal(void **state)
{
    struct fixture *f = *state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_dataset *d = NULL;
    struct cld_dataset_options options = plain(f);
    assert_int_equal(
        load(f, "{\"input_ids\": [1, 945], \"loss_mask\": [1, 1]}\n", NULL, options, &d, &err),
        CLD_E_INPUT);
    assert_non_null(strstr(err.what, "945"));
    assert_non_null(strstr(err.what, ":1: "));
    options.n_vocab = 900; /* the chat's marks lie beyond */
    assert_int_equal(load(f, CHAT("Hi", "it"), NULL, options, &d, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "942"));
    assert_null(d);
}

static void nothing_left_is_an_error(void **state)
{
    struct fixture *f = *state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_dataset *d = NULL;
    struct cld_dataset_options options = plain(f);
    assert_int_equal(load(f, "", NULL, options, &d, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "empty dataset"));
    assert_int_equal(
        load(f, "{}\n{}\n", "{\"input_ids\": [1], \"loss_mask\": [1]}\n", options, &d, &err),
        CLD_E_INPUT);
    assert_non_null(strstr(err.what, "2 malformed row"));
    assert_non_null(strstr(err.what, "1 unsupervised"));
    const char *missing = "/nonexistent/rows.jsonl";
    assert_int_equal(cld_dataset_load(&missing, 1, &options, &d, &err), CLD_E_INPUT);
    const char *folder = "/tmp";
    assert_int_equal(cld_dataset_load(&folder, 1, &options, &d, &err), CLD_E_INPUT);
    options.tokenizer = NULL;
    assert_int_equal(load(f, CHAT("Hi", "it"), NULL, options, &d, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "no tokenizer"));
    assert_int_equal(
        load(f, "{\"input_ids\": [1, 2], \"loss_mask\": [1, 1]}\n", NULL, options, &d, &err),
        CLD_OK);
    cld_dataset_free(d);
}

static void synthetic_rows(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_dataset *a = NULL, *b = NULL, *c = NULL;
    assert_int_equal(cld_dataset_synthetic(3, 1, 50, 1, &a, &err), CLD_E_USAGE);
    assert_int_equal(cld_dataset_synthetic(0, 8, 50, 1, &a, &err), CLD_E_USAGE);
    assert_int_equal(cld_dataset_synthetic(3, 80, 50, 1, &a, &err), CLD_OK);
    assert_int_equal(cld_dataset_synthetic(3, 80, 50, 1, &b, &err), CLD_OK);
    assert_int_equal(cld_dataset_synthetic(3, 80, 50, 2, &c, &err), CLD_OK);
    assert_int_equal(cld_dataset_n_rows(a), 3);
    struct cld_row x = cld_dataset_row(a, 2), y = cld_dataset_row(b, 2), z = cld_dataset_row(c, 2);
    assert_int_equal(x.n, 80);
    assert_memory_equal(x.ids, y.ids, 80 * sizeof *x.ids);
    assert_memory_not_equal(x.ids, z.ids, 80 * sizeof *x.ids);
    for (size_t i = 0; i < 80; i++) {
        assert_in_range(x.ids[i], 0, 49);
        assert_int_equal(x.loss_mask[i], i >= 16);
    }
    cld_dataset_free(a);
    cld_dataset_free(b);
    cld_dataset_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_every_kind),
        cmocka_unit_test(bad_rows_are_counted_by_reason),
        cmocka_unit_test(a_bad_row_can_be_fatal),
        cmocka_unit_test(long_rows_are_cut),
        cmocka_unit_test(ids_beyond_the_target_are_fatal),
        cmocka_unit_test(nothing_left_is_an_error),
        cmocka_unit_test(synthetic_rows),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
