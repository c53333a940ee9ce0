/* The command line: parsing, refusals, help and the generated pages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/args.h"
#include "cli/args_table.h"

enum { MAX_WORDS = 16 };

/* Cuts `line` at its blanks and parses it as the words after "cldraft"; they stay in `line`. */
static enum cld_status parse(char *line, struct cld_args **a, struct cld_error *err)
{
    static char program[] = "cldraft";
    char *argv[MAX_WORDS + 1] = {program};
    int argc = 1;
    for (char *word = strtok(line, " "); word && argc < MAX_WORDS; word = strtok(NULL, " "))
        argv[argc++] = word;
    *err = (struct cld_error)CLD_ERROR_INIT;
    return cld_args_parse(argc, argv, a, err);
}

static void test_accepts(void **state)
{
    (void)state;
    struct cld_error err;
    struct cld_args *a;
    char train[] = "-v train --set a.b=1 x.ini --resume=runs/x --set=c.d=--2 --print-config";
    assert_int_equal(parse(train, &a, &err), CLD_OK);
    assert_int_equal(cld_args_wish(a), CLD_ARGS_RUN);
    assert_true(cld_args_has_command(a));
    assert_int_equal(cld_args_command(a), CLD_CMD_TRAIN);
    assert_int_equal(cld_args_n(a), 1);
    assert_string_equal(cld_args_at(a, 0), "x.ini");
    assert_null(cld_args_at(a, 1));
    assert_string_equal(cld_args_value(a, "resume"), "runs/x");
    assert_string_equal(cld_args_value(a, "set"), "c.d=--2");
    assert_string_equal(cld_args_nth(a, "set", 0), "a.b=1");
    assert_string_equal(cld_args_nth(a, "set", 1), "c.d=--2");
    assert_null(cld_args_nth(a, "set", 2));
    size_t n;
    const char *const *all = cld_args_all(a, "set", &n);
    assert_int_equal(n, 2);
    assert_string_equal(all[0], "a.b=1");
    assert_true(cld_args_flag(a, "print-config"));
    assert_true(cld_args_flag(a, "verbose"));
    assert_false(cld_args_flag(a, "quiet"));
    assert_int_equal(cld_args_log_level(a, CLD_LOG_ERROR), CLD_LOG_DEBUG);
    cld_args_free(a);

    char cases[] = "check-case --precision bf16 a -- --b -";
    assert_int_equal(parse(cases, &a, &err), CLD_OK);
    assert_int_equal(cld_args_n(a), 3);
    assert_string_equal(cld_args_at(a, 1), "--b");
    assert_string_equal(cld_args_at(a, 2), "-");
    assert_string_equal(cld_args_value(a, "precision"), "bf16");
    assert_null(cld_args_value(a, "attention"));
    assert_int_equal(cld_args_log_level(a, CLD_LOG_ERROR), CLD_LOG_ERROR);
    cld_args_free(a);

    char kernels[] = "check-kernels --seed 18446744073709551615 -q --device --op=norm";
    assert_int_equal(parse(kernels, &a, &err), CLD_E_USAGE); /* --device has no value */
    char seeds[] = "check-kernels --seed 1 --seed 18446744073709551615 -q";
    assert_int_equal(parse(seeds, &a, &err), CLD_OK);
    assert_true(cld_args_number(a, "seed", 5) == UINT64_MAX); /* the last one */
    assert_int_equal(cld_args_log_level(a, CLD_LOG_INFO), CLD_LOG_WARN);
    cld_args_free(a);
    char none[] = "check-kernels";
    assert_int_equal(parse(none, &a, &err), CLD_OK);
    assert_true(cld_args_number(a, "seed", 5) == 5);
    cld_args_free(a);
    cld_args_free(NULL);
}

static void test_wishes(void **state)
{
    (void)state;
    struct cld_error err;
    struct cld_args *a;
    char help[] = "--help", command_help[] = "train --help", letter[] = "eval -h",
         version[] = "--version", both[] = "-hv";
    assert_int_equal(parse(help, &a, &err), CLD_OK);
    assert_int_equal(cld_args_wish(a), CLD_ARGS_HELP);
    assert_false(cld_args_has_command(a));
    cld_args_free(a);
    assert_int_equal(parse(command_help, &a, &err), CLD_OK); /* though CONFIG is missing */
    assert_int_equal(cld_args_wish(a), CLD_ARGS_HELP);
    assert_int_equal(cld_args_command(a), CLD_CMD_TRAIN);
    cld_args_free(a);
    assert_int_equal(parse(letter, &a, &err), CLD_OK);
    assert_int_equal(cld_args_wish(a), CLD_ARGS_HELP);
    cld_args_free(a);
    assert_int_equal(parse(version, &a, &err), CLD_OK);
    assert_int_equal(cld_args_wish(a), CLD_ARGS_VERSION);
    cld_args_free(a);
    assert_int_equal(parse(both, &a, &err), CLD_OK);
    assert_int_equal(cld_args_wish(a), CLD_ARGS_HELP);
    assert_true(cld_args_flag(a, "verbose"));
    cld_args_free(a);
}

static void test_refuses(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        /* words, in the message, in the hint */
        {"", "no command given", "cldraft --help"},
        {"trian", "unknown command 'trian'", "did you mean 'train'?"},
        {"xyzzy", "unknown command 'xyzzy'", "cldraft --help"},
        {"train", "train: an argument is missing", "usage: cldraft train CONFIG [options]"},
        {"train a b", "too many arguments, from 'b' on", "usage: cldraft train CONFIG"},
        {"export a", "export: an argument is missing", "usage: cldraft export CHECKPOINT OUT_DIR"},
        {"devices x", "too many arguments, from 'x'", "usage: cldraft devices [options]"},
        {"check-case", "an argument is missing", "usage: cldraft check-case FILE... [options]"},
        {"train a --sett x=1", "unknown option '--sett' of train", "did you mean '--set'?"},
        {"train a --xyzzy", "unknown option '--xyzzy' of train", "'cldraft train --help'"},
        {"train a --watch", "unknown option '--watch' of train", ""},
        {"--verson", "unknown option '--verson'", "did you mean '--version'?"},
        {"--xyzzy", "unknown option '--xyzzy'", "'cldraft --help'"},
        {"train a -x", "unknown option '-x'", "--"},
        {"train a -vx", "unknown option '-x'", ""},
        {"train a --set", "--set needs a value", ""},
        {"train a --set --resume b", "--set needs a value", ""},
        {"train a --print-config=yes", "--print-config accepts no value", ""},
        {"train a -v -q", "--verbose and --quiet", ""},
        {"eval a", "eval: --drafter is missing", "usage: cldraft eval CONFIG --drafter DIR"},
        {"check-case a --precision fp16", "--precision does not accept 'fp16'",
         "one of: fp32, bf16"},
        {"check-case a --attention=", "--attention does not accept ''", "one of: sparse, dense"},
        {"check-kernels --seed x", "--seed needs a whole number, not 'x'", "seed"},
        {"check-kernels --seed -1", "--seed needs a whole number, not '-1'", ""},
        {"check-kernels --seed 18446744073709551616", "--seed needs a whole number", ""},
        {"check-kernels --seed=", "--seed needs a whole number, not ''", ""},
        {"bench a --format xml", "--format does not accept 'xml'", "one of: md, csv, json, jsonl"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cld_error err;
        struct cld_args *a;
        char line[128];
        snprintf(line, sizeof line, "%s", cases[i][0]);
        enum cld_status s = parse(line, &a, &err);
        if (s != CLD_E_USAGE || a || !strstr(err.what, cases[i][1]) ||
            !strstr(err.hint, cases[i][2]))
            fail_msg("'%s': status %d, '%s', hint '%s'", cases[i][0], s, err.what, err.hint);
    }
}

static void write_commands_help(FILE *to)
{
    for (size_t i = 0; cld_commands[i].name; i++)
        cld_args_write_help((enum cld_command_id)i, to);
}

/* What a writer writes, malloc'd. */
static char *text_of(void (*writer)(FILE *))
{
    char *text = NULL;
    size_t n;
    FILE *to = open_memstream(&text, &n);
    assert_non_null(to);
    writer(to);
    assert_int_equal(fclose(to), 0);
    return text;
}

/* Lines become one line, with one blank where they were broken. */
static void join_lines(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        bool is_blank = *from == ' ' || *from == '\n';
        if (!is_blank || (to > text && to[-1] != ' '))
            *to++ = is_blank ? ' ' : *from;
    }
    *to = 0;
}

static void test_help(void **state)
{
    (void)state;
    char *usage = text_of(cld_args_write_usage), *help = text_of(write_commands_help);
    for (const char *line = help; *line; line += strcspn(line, "\n") + 1)
        if (strncmp(line, "usage:", 6))
            assert_in_range(strcspn(line, "\n"), 0, 100);
    assert_non_null(strstr(help, "usage: cldraft train CONFIG [--set S.K=V]... [--resume DIR] "
                                 "[--print-config]\n"));
    assert_non_null(
        strstr(help, "usage: cldraft eval CONFIG --drafter DIR [--json] [--set S.K=V]...\n"));
    assert_non_null(strstr(help, "  --precision fp32|bf16  "));
    assert_non_null(strstr(help, "  -v, --verbose  "));
    join_lines(help);
    for (size_t i = 0; cld_commands[i].name; i++) {
        assert_non_null(strstr(usage, cld_commands[i].name));
        for (size_t j = 0; cld_commands[i].options[j]; j++) {
            assert_true(j < CLD_COMMAND_MAX_OPTIONS);
            assert_non_null(strstr(help, cld_commands[i].options[j]->help));
        }
    }
    assert_string_equal(cld_commands[CLD_CMD_HELP].name, "help"); /* the last: none is missing */
    assert_null(cld_commands[CLD_CMD_HELP + 1].name);
    free(usage);
    free(help);
}

/* The committed page is what the table says. CLD_UPDATE_DOCS=1 writes it anew. */
static void page_is_current(const char *path, void (*writer)(FILE *))
{
    struct cld_error err = CLD_ERROR_INIT;
    char *generated = text_of(writer), *committed = NULL;
    size_t n;
    if (getenv("CLD_UPDATE_DOCS"))
        assert_int_equal(cld_file_write(path, generated, strlen(generated), &err), CLD_OK);
    assert_int_equal(cld_file_read(path, 0, &committed, &n, &err), CLD_OK);
    assert_string_equal(generated, committed);
    free(generated);
    free(committed);
}

static void test_documentation(void **state)
{
    (void)state;
    page_is_current("docs/commands.md", cld_args_write_markdown);
    page_is_current("docs/exit-codes.md", cld_args_write_exit_codes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),       cmocka_unit_test(test_wishes),
        cmocka_unit_test(test_refuses),       cmocka_unit_test(test_help),
        cmocka_unit_test(test_documentation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
