/* The tokenizer against golden lines of the reference library, what it refuses, and its corners. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/file.h"
#include "check/check_tokenizer.h"
#include "text/nfc.h"
#include "text/regex.h"
#include "text/tokenizer.h"

#define DATA "tests/data/tokenizer/"

static struct cld_tokenizer *load(const char *path)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_tokenizer *t = NULL;
    if (cld_tokenizer_load(path, &t, &err))
        fail_msg("%s", err.what);
    return t;
}

static void check_golden(const char *dir, const char *const *files, size_t n, size_t at_least)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_check_counts counts = {0, 0};
    if (cld_check_tokenizer(dir, files, n, stdout, &counts, &err))
        fail_msg("%s", err.what);
    assert_int_equal(counts.n_failed, 0);
    assert_true(counts.n_passed >= at_least);
}

static void golden_lines_are_exact(void **state)
{
    (void)state;
    static const char *const names[] = {"tiny", "llama3", "added", "gpt2", "steps"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *dir = cld_format(DATA "%s", names[i]);
        char *file = cld_format("%s/text.jsonl", dir);
        check_golden(dir, (const char *const *)&file, 1, 50);
        free(file);
        free(dir);
    }
}

/* The published tokenizer is too large to be kept here; it is used where it is at hand. */
static void published_tokenizer_is_exact(void **state)
{
    (void)state;
    const char *root = getenv("CLD_GOLDEN_DIR") ? getenv("CLD_GOLDEN_DIR") : "../shared";
    char *packed = cld_format("%s/tokenizers/qwen3/tokenizer.json.gz", root);
    if (!cld_file_exists(packed)) {
        print_message("skipped: no %s (CLD_GOLDEN_DIR names the folder)\n", packed);
        free(packed);
        skip();
    }
    char dir[] = "/tmp/cldraft-test-XXXXXX";
    struct cld_error err = CLD_ERROR_INIT;
    assert_non_null(mkdtemp(dir));
    char *unpack = cld_format("gzip -dc '%s' > '%s/tokenizer.json'", packed, dir);
    assert_int_equal(system(unpack), 0);
    char *files[] = {cld_format("%s/cases/tokenizer/tokenize.jsonl", root),
                     cld_format("%s/cases/tokenizer/chat.jsonl", root)};
    check_golden(dir, (const char *const *)files, 2, 150);
    assert_int_equal(cld_dir_remove(dir, &err), CLD_OK);
    free(files[0]);
    free(files[1]);
    free(unpack);
    free(packed);
}

/* Lines made with the post_processor's tokens. */
static void special_tokens_are_added(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_tokenizer *t = load(DATA "llama3/tokenizer.json");
    struct cld_encoder *e = NULL;
    struct cld_tokens tokens = {0};
    char *text = NULL;
    size_t n, n_lines = 0;
    assert_int_equal(cld_encoder_new(t, &e, &err), CLD_OK);
    assert_int_equal(cld_file_read(DATA "llama3/special.jsonl", 0, &text, &n, &err), CLD_OK);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), n_lines++) {
        json_t *j = json_loads(line, 0, NULL);
        const json_t *ids = json_object_get(j, "ids");
        const char *s = json_string_value(json_object_get(j, "text"));
        assert_int_equal(cld_encode(e, s, strlen(s), true, &tokens, &err), CLD_OK);
        assert_int_equal(tokens.n, json_array_size(ids));
        for (size_t i = 0; i < tokens.n; i++)
            assert_int_equal(tokens.ids[i], json_integer_value(json_array_get(ids, i)));
        json_decref(j);
    }
    assert_int_equal(n_lines, 3);
    assert_int_equal(tokens.ids[0], cld_tokenizer_find(t, "<|begin_of_text|>"));
    free(text);
    cld_tokens_release(&tokens);
    cld_encoder_free(e);
    cld_tokenizer_free(t);
}

static void names_sizes_and_decoding(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_tokenizer *t = load(DATA "tiny/tokenizer.json");
    struct cld_encoder *e = NULL;
    struct cld_tokens tokens = {0};
    static const char text[] = "<|im_start|>user\nItem: 12 lamps, na\xc3\xafve \xf0\x9f\x99\x82"
                               "\x00<|im_end|>";
    char *back = NULL;
    size_t n;
    assert_int_equal(cld_tokenizer_n_tokens(t), 945);
    assert_int_equal(cld_tokenizer_max_id(t), 944);
    assert_int_equal(cld_tokenizer_find(t, "<|mask|>"), 944);
    assert_int_equal(cld_tokenizer_find(t, "it"), 256);
    assert_int_equal(cld_tokenizer_find(t, "<|nothing|>"), -1);
    assert_int_equal(cld_encoder_new(t, &e, &err), CLD_OK);
    assert_int_equal(cld_encode(e, text, sizeof text - 1, false, &tokens, &err), CLD_OK);
    assert_int_equal(tokens.begins[0], 0);
    assert_int_equal(tokens.begins[tokens.n - 1], sizeof text - 1 - strlen("<|im_end|>"));
    assert_int_equal(cld_decode(t, tokens.ids, tokens.n, &back, &n, &err), CLD_OK);
    assert_int_equal(n, sizeof text - 1);
    assert_memory_equal(back, text, n);
    free(back);
    int32_t unknown = 945;
    assert_int_equal(cld_decode(t, &unknown, 1, &back, &n, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "945"));
    cld_tokens_release(&tokens);
    cld_encoder_free(e);
    cld_tokenizer_free(t);
}

static void malformed_utf8_is_refused(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_tokenizer *t = load(DATA "tiny/tokenizer.json");
    struct cld_encoder *e = NULL;
    struct cld_tokens tokens = {0};
    static const char *const bad[] = {"\x80",         "a\xff",
                                      "\xc3",         "\xc0\xaf",
                                      "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                      "\xe2\x82",     "\xf8\x88\x80\x80\x80"};
    assert_int_equal(cld_encoder_new(t, &e, &err), CLD_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(cld_encode(e, bad[i], strlen(bad[i]), false, &tokens, &err), CLD_E_INPUT);
    cld_tokens_release(&tokens);
    cld_encoder_free(e);
    cld_tokenizer_free(t);
}

/* Without a place to split, the whole text is one word; and text is cut the same however long it
 * is. */
static void long_words_come_back(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_tokenizer *t = load(DATA "tiny/tokenizer.json");
    struct cld_encoder *e = NULL;
    struct cld_tokens tokens = {0};
    enum { N = 1 << 20 };
    char *text = malloc(N), *back = NULL;
    size_t n;
    assert_non_null(text);
    assert_int_equal(cld_encoder_new(t, &e, &err), CLD_OK);
    for (int kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < N; i++)
            text[i] = kind == 0 ? 'a' : kind == 1 ? ' ' : (char)('a' + i * i % 26);
        assert_int_equal(cld_encode(e, text, N, false, &tokens, &err), CLD_OK);
        assert_int_equal(cld_decode(t, tokens.ids, tokens.n, &back, &n, &err), CLD_OK);
        assert_int_equal(n, N);
        assert_memory_equal(back, text, N);
        free(back);
    }
    free(text);
    cld_tokens_release(&tokens);
    cld_encoder_free(e);
    cld_tokenizer_free(t);
}

/* ---- threads ---- */

struct worker {
    const struct cld_tokenizer *t;
    uint64_t sum;
};

static void *encode_much(void *arg)
{
    struct worker *w = arg;
    struct cld_error err;
    struct cld_encoder *e = NULL;
    struct cld_tokens tokens = {0};
    char text[64];
    if (cld_encoder_new(w->t, &e, &err))
        return NULL;
    for (int i = 0; i < 5000; i++) {
        int n = snprintf(text, sizeof text, "item %d costs %d.%d<|im_end|>", i, i % 77, i % 9);
        if (cld_encode(e, text, (size_t)n, false, &tokens, &err))
            return NULL;
        for (size_t k = 0; k < tokens.n; k++)
            w->sum = w->sum * 31 + (uint64_t)tokens.ids[k];
    }
    cld_tokens_release(&tokens);
    cld_encoder_free(e);
    return w;
}

static void threads_share_a_tokenizer(void **state)
{
    (void)state;
    struct cld_tokenizer *t = load(DATA "tiny/tokenizer.json");
    struct worker workers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){t, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_much, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *done = NULL;
        pthread_join(threads[i], &done);
        assert_ptr_equal(done, &workers[i]);
        assert_true(workers[i].sum == workers[0].sum);
    }
    cld_tokenizer_free(t);
}

/* ---- refusals ---- */

/* The tiny tokenizer with one member replaced: `path` names it ("model", "dropout"), `value` is
 * JSON. */
static void refuses(const char *object, const char *key, const char *value, const char *said)
{
    struct cld_error err = CLD_ERROR_INIT;
    json_t *root = json_load_file(DATA "tiny/tokenizer.json", 0, NULL);
    json_t *at = object ? json_object_get(root, object) : root;
    json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
    struct cld_tokenizer *t = NULL;
    char path[] = "/tmp/cldraft-test-XXXXXX";
    assert_non_null(root);
    assert_non_null(v);
    if (json_is_array(at))
        json_array_append_new(at, v);
    else
        json_object_set_new(at, key, v);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(json_dumpfd(root, fd, 0), 0);
    close(fd);
    enum cld_status s = cld_tokenizer_load(path, &t, &err);
    unlink(path);
    json_decref(root);
    if (!said) {
        if (s)
            fail_msg("%s", err.what);
        cld_tokenizer_free(t);
        return;
    }
    assert_int_equal(s, CLD_E_INPUT);
    assert_null(t);
    if (!strstr(err.what, said))
        fail_msg("\"%s\" does not say \"%s\"", err.what, said);
}

static void what_is_not_supported_is_refused_by_name(void **state)
{
    (void)state;
    refuses(NULL, "surprise", "1", "surprise");
    refuses(NULL, "version", "\"2.0\"", "2.0");
    refuses(NULL, "truncation", "{\"max_length\": 5}", "truncation");
    refuses(NULL, "padding", "{}", "padding");
    refuses(NULL, "normalizer", "{\"type\": \"NFKC\"}", "NFKC");
    refuses(NULL, "normalizer",
            "{\"type\": \"Sequence\", \"normalizers\": "
            "[{\"type\": \"Lowercase\"}]}",
            "Lowercase");
    refuses(NULL, "decoder", "{\"type\": \"WordPiece\"}", "WordPiece");
    refuses(NULL, "post_processor", "{\"type\": \"BertProcessing\"}", "BertProcessing");
    refuses(NULL, "pre_tokenizer", "null", "pre_tokenizer");
    refuses(NULL, "pre_tokenizer", "{\"type\": \"Metaspace\"}", "Metaspace");
    refuses(NULL, "pre_tokenizer",
            "{\"type\": \"Sequence\", \"pretokenizers\": "
            "[{\"type\": \"Punctuation\"}, {\"type\": \"ByteLevel\"}]}",
            "Punctuation");
    refuses(NULL, "pre_tokenizer",
            "{\"type\": \"Sequence\", \"pretokenizers\": "
            "[{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": "
            "\"MergedWithNext\", \"invert\": false}, {\"type\": \"ByteLevel\"}]}",
            "MergedWithNext");
    refuses(NULL, "pre_tokenizer", "{\"type\": \"ByteLevel\", \"trim\": true}", "trim");
    refuses("model", "type", "\"Unigram\"", "Unigram");
    refuses("model", "dropout", "0.1", "dropout");
    refuses("model", "continuing_subword_prefix", "\"##\"", "continuing_subword_prefix");
    refuses("model", "end_of_word_suffix", "\"</w>\"", "end_of_word_suffix");
    refuses("model", "vocab", "{\"a\": -1}", "\"a\"");
    refuses("model", "vocab", "{\"a\": 0, \"b\": 0}", "id 0");
    refuses("model", "merges", "[\"q\"]", "entry 0");
    refuses("model", "merges", "[[\"it\", \"it\"]]", "itit");
    refuses("added_tokens", NULL, "{\"id\": 950, \"content\": \"<gap>\"}", "945");
    refuses("added_tokens", NULL, "{\"id\": 945, \"content\": \"it\"}", "256");
    refuses("added_tokens", NULL, "{\"id\": 945, \"content\": \"\"}", "empty");
    refuses("added_tokens", NULL, "{\"id\": 945, \"content\": \"x\", \"single_word\": true}",
            "single_word");
    refuses("added_tokens", NULL, "{\"id\": 944, \"content\": \"<|mask|>\"}", "twice");
    refuses("added_tokens", NULL, "{\"id\": 945, \"content\": \"x\", \"bold\": 1}", "bold");
    /* neutral values and the next free id pass */
    refuses("model", "dropout", "0.0", NULL);
    refuses("model", "unk_token", "\"<unk>\"", NULL);
    refuses("model", "merges", "[\"#version: 0.2\", \"i t\"]", NULL);
    refuses("added_tokens", NULL, "{\"id\": 945, \"content\": \"<new>\"}", NULL);
    refuses(NULL, "decoder", "null", NULL);
}

static void broken_files_are_refused(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_tokenizer *t = NULL;
    static const char *const texts[] = {"", "{", "[]", "{\"model\": 3}", "{\"a\": 1, \"a\": 2}"};
    assert_int_equal(cld_tokenizer_load("tests/data/no/tokenizer.json", &t, &err), CLD_E_INPUT);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char path[] = "/tmp/cldraft-test-XXXXXX";
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        close(fd);
        assert_int_equal(cld_file_write(path, texts[i], strlen(texts[i]), &err), CLD_OK);
        assert_int_equal(cld_tokenizer_load(path, &t, &err), CLD_E_INPUT);
        assert_non_null(strstr(err.what, path));
        assert_null(t);
        unlink(path);
    }
}

/* A vocabulary without some byte serves texts without it. */
static void missing_bytes_are_named(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_tokenizer *t = NULL;
    struct cld_encoder *e = NULL;
    struct cld_tokens tokens = {0};
    static const char file[] =
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"model\": "
        "{\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]}}";
    char path[] = "/tmp/cldraft-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(cld_file_write(path, file, sizeof file - 1, &err), CLD_OK);
    assert_int_equal(cld_tokenizer_load(path, &t, &err), CLD_OK);
    unlink(path);
    assert_int_equal(cld_encoder_new(t, &e, &err), CLD_OK);
    assert_int_equal(cld_encode(e, "abba", 4, false, &tokens, &err), CLD_OK);
    assert_int_equal(tokens.n, 3);
    assert_int_equal(tokens.ids[0], 2);
    assert_int_equal(cld_encode(e, "abc", 3, false, &tokens, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "0x63"));
    cld_tokens_release(&tokens);
    cld_encoder_free(e);
    cld_tokenizer_free(t);
}

/* ---- parts ---- */

static void patterns_are_translated_or_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "a*",     "\\w+",    "\\bx",          "^a",      "a$",      "[[:alpha:]]",
        "[a&&b]", "a{2}+",   "a{,3}",         "(a",      "a)",      "[a",
        "\\",     "(?<n>a)", "(?i)a",         "(*UTF)a", "\\p{Xx}", "\\h",
        "\\1",    "[]a]",    "(?i:stop)",     "\\x",     "\\ud800", "\\xff",
        "[\\S]",  "\\p{L",   "(?i:\xc3\x9f)", "a|b*",    "\xff",    "\\pL"};
    static const struct {
        const char *pattern, *text;
        size_t begin, end;
    } good[] = {
        {"\\s+", "ab \xe1\xa0\x8e", 2, 3},         /* U+180E is no white space */
        {"\\s+", "a\xc2\x85\xe2\x80\xa8 b", 1, 7}, /* U+0085, U+2028 */
        {"\\S+", "  \xe1\xa0\x8e", 2, 5},
        {"[^\\s\\p{L}]+", " a-1", 2, 4},
        {"\\p{N}{1,3}", "x12345", 1, 4},
        {"(?i:'s|'t)", "it'\xc5\xbf", 2, 5}, /* the long s folds to s */
        {"a++b|\\v", "aac\x0b", 3, 4},
        {"\\x{e9}|\\u00e8", "e\xc3\xa8", 1, 3},
        {".x", "\nx\rx", 2, 4},
        {"(?<=a)b(?!c)", "bcabcab", 6, 7},
        {"\\p{Han}", "\xe3\x80\x81\xe6\x9d\xb1", 3, 6}, /* U+3001 is shared by scripts */
    };
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_regex *r = NULL;
    struct cld_matcher *m = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (!cld_regex_new(bad[i], strlen(bad[i]), &r, &err))
            fail_msg("\"%s\" was accepted", bad[i]);
        assert_int_equal(err.status, CLD_E_INPUT);
        assert_null(r);
    }
    assert_int_equal(cld_matcher_new(&m, &err), CLD_OK);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        size_t begin, end;
        if (cld_regex_new(good[i].pattern, strlen(good[i].pattern), &r, &err))
            fail_msg("%s", err.what);
        assert_int_equal(
            cld_regex_find(r, m, good[i].text, strlen(good[i].text), 0, &begin, &end, &err),
            CLD_OK);
        assert_int_equal(begin, good[i].begin);
        assert_int_equal(end, good[i].end);
        cld_regex_free(r);
    }
    cld_matcher_free(m);
}

static void normalisation_keeps_track_of_offsets(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_nfc b = {0};
    const char *out;
    const size_t *from;
    size_t n;
    static const char same[] = "plain, caf\xc3\xa9 \xe6\x9d\xb1\xe4\xba\xac \xf0\x9f\x99\x82";
    assert_int_equal(cld_nfc_run(&b, same, sizeof same - 1, &out, &n, &from, &err), CLD_OK);
    assert_ptr_equal(out, same);
    assert_null(from);
    /* e + acute composes; below (220) goes before above (230); LV + U+11A7 stays */
    static const char text[] = "xe\xcc\x81y\na\xcc\x81\xcc\xa3.\xea\xb0\x80\xe1\x86\xa7z";
    static const char want[] = "x\xc3\xa9y\n\xe1\xba\xa1\xcc\x81.\xea\xb0\x80\xe1\x86\xa7z";
    assert_int_equal(cld_nfc_run(&b, text, sizeof text - 1, &out, &n, &from, &err), CLD_OK);
    assert_int_equal(n, sizeof want - 1);
    assert_memory_equal(out, want, n);
    assert_int_equal(from[1], 1);                   /* composed: from its base */
    assert_int_equal(from[3], 4);                   /* y */
    assert_int_equal(from[5], 6);                   /* composed, from the a */
    assert_int_equal(from[n - 1], sizeof text - 2); /* z */
    /* a mark younger than Unicode 9 does not move */
    static const char young[] = "a\xe0\xa7\xbe\xcc\xa3";
    assert_int_equal(cld_nfc_run(&b, young, sizeof young - 1, &out, &n, &from, &err), CLD_OK);
    assert_null(from);
    cld_nfc_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_lines_are_exact),
        cmocka_unit_test(published_tokenizer_is_exact),
        cmocka_unit_test(special_tokens_are_added),
        cmocka_unit_test(names_sizes_and_decoding),
        cmocka_unit_test(malformed_utf8_is_refused),
        cmocka_unit_test(long_words_come_back),
        cmocka_unit_test(threads_share_a_tokenizer),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name),
        cmocka_unit_test(broken_files_are_refused),
        cmocka_unit_test(missing_bytes_are_named),
        cmocka_unit_test(patterns_are_translated_or_refused),
        cmocka_unit_test(normalisation_keeps_track_of_offsets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
