/* The configuration: every rule has a file that breaks it, and the message must name the place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/random.h"
#include "config/config.h"
#include "config/config_table.h"
#include "config/config_value.h"
#include "ops/op_gemm.h"

static char path[64]; /* of the file that the cases write */

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/cld-test-config-%ld.ini", (long)getpid());
    return 0;
}

static int remove_path(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static void write_bytes(const char *bytes, size_t n)
{
    struct cld_error err = CLD_ERROR_INIT;
    assert_int_equal(cld_file_write(path, bytes, n, &err), CLD_OK);
}

static enum cld_status load(const char *text, struct cld_config *cfg, struct cld_error *err)
{
    write_bytes(text, strlen(text));
    return cld_config_load(path, NULL, 0, cfg, err);
}

/* `text` is refused at `line` with `what` in the message and `hint` in the hint. */
static void refused_bytes(const char *text, size_t n, int line, const char *what, const char *hint)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    char place[96];
    write_bytes(text, n);
    enum cld_status s = cld_config_load(path, NULL, 0, &cfg, &err);
    cld_config_free(&cfg);
    if (s != CLD_E_USAGE)
        fail_msg("status %d for: %s", s, text);
    snprintf(place, sizeof place, "%s:%d: ", path, line);
    if (strncmp(err.what, place, strlen(place)) || !strstr(err.what, what))
        fail_msg("wanted '%s...%s', got '%s'", place, what, err.what);
    if (!strstr(err.hint, hint))
        fail_msg("wanted the hint '%s', got '%s'", hint, err.hint);
}

static void refused(const char *text, int line, const char *what, const char *hint)
{
    refused_bytes(text, strlen(text), line, what, hint);
}

static void test_reads_values(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    assert_int_equal(load("# comment\n"
                          "; another\n"
                          "\n"
                          "[run]\r\n"
                          "dir = \"runs/a #1; b\"   # kept in quotes\r\n"
                          "seed=7 ;x\n"
                          "  [data]  \n"
                          "\ttrain\t=\t'it;s'\n"
                          "heldout = o'clock/\xc3\xbc = x\n"
                          "template = qwen3\n"
                          "synthetic = 4 , 100\n"
                          "packing = true\n"
                          "bad_row = fail\n"
                          "[target]\n"
                          "taps = 1, 3,4\n"
                          "random_weights = 0\n"
                          "[drafter]\n"
                          "heads = 3\n"
                          "mask_token = <|mask|>\n"
                          "layer_types = full_attention,sliding_attention\n"
                          "[train]\n"
                          "learning_rate = 2.5e-3\n"
                          "warmup = .5\n"
                          "schedule = wsd\n"
                          "[memory]\n"
                          "limit_gib = 1.5,2\n"
                          "[devices]\n"
                          "targets = cpu:0/2, H200\n"
                          "[log]\n"
                          "level = warning\n"
                          "[bench]\n"
                          "shapes = 1x2x3,TN:512x512x512\n"
                          "what = step,gemm",
                          &cfg, &err),
                     CLD_OK);
    assert_string_equal(cfg.run.dir, "runs/a #1; b");
    assert_int_equal(cfg.run.seed, 7);
    assert_string_equal(cfg.data.train, "it;s");
    assert_string_equal(cfg.data.heldout, "o'clock/\xc3\xbc = x");
    assert_int_equal(cfg.data.template, CLD_TEMPLATE_QWEN3);
    assert_int_equal(cfg.data.synthetic.n, 2);
    assert_int_equal(cfg.data.synthetic.v[1], 100);
    assert_true(cfg.data.packing);
    assert_int_equal(cfg.data.bad_row, CLD_BAD_ROW_FAIL);
    assert_int_equal(cfg.target.taps.n, 3);
    assert_int_equal(cfg.target.taps.v[2], 4);
    assert_int_equal(cfg.target.random_weights, 0);
    assert_int_equal(cfg.drafter.heads, 3);
    assert_int_equal(cfg.drafter.kv_heads, 0); /* open: the target's */
    assert_string_equal(cfg.drafter.mask_token, "<|mask|>");
    assert_int_equal(cfg.drafter.layer_types.n, 2);
    assert_int_equal(cfg.drafter.layer_types.v[1], CLD_LAYER_SLIDING);
    assert_true(cfg.train.learning_rate == 2.5e-3);
    assert_true(cfg.train.warmup == 0.5);
    assert_int_equal(cfg.train.schedule, CLD_SCHEDULE_WSD);
    assert_true(cfg.memory.limit_gib.n == 2 && cfg.memory.limit_gib.v[0] == 1.5);
    assert_int_equal(cfg.devices.targets.n, 2);
    assert_string_equal(cfg.devices.targets.v[0], "cpu:0/2");
    assert_string_equal(cfg.devices.targets.v[1], "H200");
    assert_int_equal(cfg.log.level, CLD_LOG_WARN);
    assert_int_equal(cfg.bench.shapes.v[0].k, 3);
    assert_int_equal(cfg.bench.shapes.v[0].kind, -1);
    assert_int_equal(cfg.bench.shapes.v[1].kind, 2);
    assert_int_equal(cfg.bench.what.v[0], CLD_BENCH_STEP);
    char place[128];
    assert_non_null(strstr(cld_config_where(&cfg, "train.schedule", place, sizeof place), ":24"));
    assert_string_equal(cld_config_where(&cfg, "train.gamma", place, sizeof place), "default");
    assert_string_equal(cld_config_where(&cfg, "train.steps", place, sizeof place), "not given");
    cld_config_free(&cfg);
    cld_config_free(&cfg); /* twice is harmless */
    cld_config_free(NULL);
}

static void test_defaults(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    assert_int_equal(load("", &cfg, &err), CLD_OK);
    assert_int_equal(cfg.run.seed, 42);
    assert_null(cfg.run.dir);
    assert_null(cfg.data.train);
    assert_int_equal(cfg.target.random_weights, -1);
    assert_int_equal(cfg.target.taps.n, 0);
    assert_int_equal(cfg.drafter.layers, 5);
    assert_int_equal(cfg.drafter.block_size, 16);
    assert_true(cfg.drafter.sliding_causal);
    assert_true(cfg.drafter.init_std == 0.02);
    assert_true(cfg.drafter.rope_theta == 0);
    assert_int_equal(cfg.train.anchors, 512);
    assert_true(cfg.train.learning_rate == 6e-4);
    assert_int_equal(cfg.train.schedule, CLD_SCHEDULE_COSINE);
    assert_true(cfg.train.warmup == 0.04 && cfg.train.min_lr_ratio == 0);
    assert_true(cfg.train.beta1 == 0.9 && cfg.train.beta2 == 0.95);
    assert_true(cfg.train.epsilon == 1e-8 && cfg.train.weight_decay == 0 && cfg.train.clip == 1);
    assert_int_equal(cfg.train.keep, 3);
    assert_int_equal(cfg.attention.backend, CLD_ATTENTION_SPARSE);
    assert_int_equal(cfg.runtime.precision, CLD_BF16);
    assert_int_equal(cfg.devices.targets.n, 0);
    assert_int_equal(cfg.devices.drafters.n, 0);
    cld_config_free(&cfg);
}

static void test_refuses_syntax(void **state)
{
    (void)state;
    refused("seed = 1\n", 1, "before any section", "[train]");
    refused("[run]\nseed = 1\nseed = 2\n", 3, "'seed' of [run] is there twice, first in line 2",
            "one of them");
    refused("[run]\nseed = 1\nSeed = 2\n", 3, "twice, first in other case in line 2", "");
    refused("[run]\nseed = 1\n[log]\n[run]\n", 4, "section [run] is there twice, first in line 1",
            "together");
    refused("[run]\n[RUN]\n", 2, "section [RUN] is there twice, first in line 1", "");
    refused("[run\n", 1, "'[' without ']'", "[section]");
    refused("[run] # c\n", 1, "text after the ']'", "own");
    refused("[run]]\n", 1, "text after the ']'", "");
    refused("[]\n", 1, "no section name", "");
    refused("[ru n]\n", 1, "'ru n' is no section name", "");
    refused("[run]\nseed\n", 2, "no '=' in 'seed'", "key = value");
    refused("[run]\n= 1\n", 2, "'' is no key name", "");
    refused("[run]\nrun:seed = 1\n", 2, "'run:seed' is no key name", "");
    refused("[run]\nse ed = 1\n", 2, "'se ed' is no key name", "");
    refused("[run]\nseed =\n", 2, "seed has no value", "default");
    refused("[run]\nseed = # 5\n", 2, "seed has no value", "");
    refused("[run]\ndir = \"\"\n", 2, "dir has no value", "");
    refused("[run]\ndir = a#b\n", 2, "'#' would cut the value", "quotes");
    refused("[run]\ndir = a;b\n", 2, "';' would cut the value", "quotes");
    refused("[run]\ndir = \"a\n", 2, "unclosed quote", "close");
    refused("[run]\ndir = 'a\" \n", 2, "unclosed quote", "close");
    refused("[run]\ndir = \"a\" b\n", 2, "text after the closing quote", "");
    refused("[run]\ndir = a\"b\n", 2, "double quote", "");
    refused("[run]\ndir = a \\\nb\n", 2, "backslash at the end", "quotes");
    refused("[run]\n# comment \\\ndir = a\n", 2, "backslash at the end", "");
    refused("[run]\ndir = a\\", 2, "backslash at the end", "");
    refused("\xef\xbb\xbf[run]\n", 1, "byte order mark", "BOM");
    refused("[run]\ndir = \xff\n", 2, "not UTF-8", "");
    refused("[run]\ndir = a\x01z\n", 2, "control characters", "");
    refused("[run]\ndir = a\tb\n", 2, "control characters", "");
    refused_bytes("[run]\nse\0ed = 1\n", 15, 2, "control characters", "");
    refused("[run]\rseed = 1\n", 1, "control characters", "");
}

static void test_refuses_long_lines(void **state)
{
    (void)state;
    char text[1200] = "[run]\ndir = ", *value = text + strlen(text);
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    memset(value, 'x', 800);
    assert_int_equal(load(text, &cfg, &err), CLD_OK);
    assert_int_equal(strlen(cfg.run.dir), 800);
    cld_config_free(&cfg);
    memset(value, 'x', 801);
    refused(text, 2, "801 bytes; 800 is the most", "");
    memset(value, 'x', 994);
    refused(text, 2, "994 bytes; 800 is the most", "");
    memset(value, 'x', 995);
    refused(text, 2, "a line of 1001 bytes", "shorten");
}

static void test_refuses_names(void **state)
{
    (void)state;
    refused("[run]\n[trian]\n", 2, "unknown section [trian]", "did you mean 'train'?");
    refused("[Train]\n", 1, "unknown section [Train]", "did you mean 'train'?");
    refused("[zzz]\n", 1, "unknown section [zzz]", "help config");
    refused("[train]\nsteps = 1\nlearning_rte = 1\n", 3, "unknown key 'learning_rte' in [train]",
            "did you mean 'learning_rate'?");
    refused("[train]\nSteps = 1\n", 2, "unknown key 'Steps' in [train]", "did you mean 'steps'?");
    refused("[train]\ncilp = 1\n", 2, "unknown key 'cilp'", "did you mean 'clip'?");
    refused("[train]\nseed = 1\n", 2, "unknown key 'seed' in [train]", "'seed' belongs to [run]");
    refused("[runtime]\noverride.gemm = a\n", 2, "unknown key 'override.gemm' in [runtime]", "");
    refused("[train]\nxyzzy = 1\n", 2, "unknown key 'xyzzy'", "help config");
}

static void test_refuses_values(void **state)
{
    (void)state;
    static const char *const whole[] = {"abc",
                                        "12abc",
                                        "010",
                                        "0x10",
                                        "1.5",
                                        "1e3",
                                        "+1",
                                        "1 2",
                                        "--1",
                                        "-",
                                        "99999999999999999999"};
    char text[128];
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
        snprintf(text, sizeof text, "[train]\n\nsteps = %s\n", whole[i]);
        refused(text, 3, "not a whole number", "train.steps accepts: whole number, from 1 to");
    }
    refused("[train]\nsteps = 0\n", 2, "train.steps = 0: out of range", "optimizer steps");
    refused("[train]\nsteps = -5\n", 2, "out of range", "from 1");
    refused("[train]\nsteps = 1000000001\n", 2, "out of range", "from 1");
    refused("[run]\nseed = -1\n", 2, "out of range", "from 0");
    refused("[drafter]\nblock_size = 1\n", 2, "out of range", "from 2 to 64 tokens");
    refused("[drafter]\nblock_size = 65\n", 2, "out of range", "from 2 to 64 tokens");
    static const char *const real[] = {"x", "1.5e", "1,5", "0x1p3", "nan", "inf", "1.0f", "- 1"};
    for (size_t i = 0; i < sizeof real / sizeof real[0]; i++) {
        snprintf(text, sizeof text, "[train]\nwarmup = %s\n", real[i]);
        refused(text, 2, "not a number", "train.warmup accepts: number, from 0 to 1 of the steps");
    }
    refused("[train]\nwarmup = 1.01\n", 2, "out of range", "");
    refused("[train]\nwarmup = 1e999\n", 2, "out of range", "");
    refused("[train]\nlearning_rate = 0\n", 2, "out of range", "above 0");
    refused("[train]\nbeta1 = 1\n", 2, "out of range", "to below 1");
    refused("[data]\npacking = maybe\n", 2, "neither yes nor no", "yes or no");
    refused("[data]\npacking = 1\n", 2, "neither yes nor no", "yes or no");
    refused("[train]\nschedule = cosin\n", 2, "unknown name", "cosine, linear, wsd, constant");
    refused("[target]\ntaps = 1,,2\n", 2, "an empty item", "auto, or list of 1 to 32");
    refused("[target]\ntaps = 1,2,\n", 2, "an empty item", "");
    refused("[target]\ntaps = 1,x\n", 2, "target.taps = x: not a whole number", "");
    refused("[target]\ntaps = 1,1024\n", 2, "out of range", "");
    refused("[devices]\ntargets = a,\n", 2, "an empty item", "");
    refused("[data]\nsynthetic = 8\n", 2, "too few items", "list of 2");
    refused("[data]\nsynthetic = 8,8,8\n", 2, "too many items", "list of 2");
    refused("[bench]\nshapes = 512x512\n", 2, "not of the form MxNxK", "MxNxK");
    refused("[bench]\nshapes = 1x1x1x1\n", 2, "not of the form MxNxK", "");
    refused("[bench]\nshapes = TT:1x1x1\n", 2, "not of the form MxNxK", "");
    refused("[bench]\nshapes = 1x0x1\n", 2, "out of range", "");
    refused("[run]\ndir = ~/runs\n", 2, "not expanded", "");
    refused("[drafter]\nlayer_types = full\n", 2, "unknown name", "sliding_attention");
}

static void test_missing_file(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    assert_int_equal(cld_config_load("/nonexistent/x.ini", NULL, 0, &cfg, &err), CLD_E_USAGE);
    cld_config_free(&cfg);
    assert_int_equal(err.status, CLD_E_USAGE);
    assert_non_null(strstr(err.what, "/nonexistent/x.ini: cannot open: No such file"));
    assert_int_equal(cld_config_load("/tmp", NULL, 0, &cfg, &err), CLD_E_USAGE);
    cld_config_free(&cfg);
    assert_non_null(strstr(err.what, "not a regular file"));
}

static void test_set(void **state)
{
    (void)state;
    static const char *const good[] = {"train.steps=7", "run.dir=a #b=c", "train.steps=9"};
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    char place[64];
    write_bytes("[train]\nsteps = 5\n", 18);
    assert_int_equal(cld_config_load(path, good, 3, &cfg, &err), CLD_OK);
    assert_int_equal(cfg.train.steps, 9);
    assert_string_equal(cfg.run.dir, "a #b=c");
    assert_string_equal(cld_config_where(&cfg, "train.steps", place, sizeof place), "--set");
    cld_config_free(&cfg);

    static const char *const bad[][3] = {
        {"train.steps", "--set: 'train.steps'", "SECTION.KEY=VALUE"},
        {"steps=4", "--set: 'steps=4'", "SECTION.KEY=VALUE"},
        {"steps=4.5", "--set: 'steps=4.5'", "SECTION.KEY=VALUE"},
        {"train.stesp=4", "--set: unknown key 'stesp' in [train]", "did you mean 'steps'?"},
        {"trian.steps=4", "--set: unknown section [trian]", "did you mean 'train'?"},
        {"train.steps=4x", "--set: train.steps = 4x: not a whole number", "from 1"},
        {"train.steps=", "--set: train.steps: the value is empty", ""},
        {"run.dir=a\"b", "--set: run.dir: the value has a double quote", ""},
        {"run.dir=a\nb", "--set: run.dir: the value is not UTF-8 or has control", ""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(cld_config_load(path, bad[i], 1, &cfg, &err), CLD_E_USAGE);
        cld_config_free(&cfg);
        if (strncmp(err.what, bad[i][1], strlen(bad[i][1])) || !strstr(err.hint, bad[i][2]))
            fail_msg("'%s': '%s', hint '%s'", bad[i][0], err.what, err.hint);
    }
}

/* A complete configuration for training, to which the cases add one line or two. */
#define COMPLETE                                                                                   \
    "run.dir=r", "data.train=t", "data.max_length=64", "target.dir=d", "drafter.mask_token=5",     \
        "train.steps=10", "train.batch_rows=8"
enum { N_COMPLETE = 7 };

static enum cld_status check(const char *a, const char *b, enum cld_config_use use,
                             struct cld_error *err)
{
    const char *sets[] = {COMPLETE, a, b};
    struct cld_config cfg;
    write_bytes("", 0);
    size_t n_sets = N_COMPLETE + (a != NULL) + (b != NULL);
    assert_int_equal(cld_config_load(path, sets, n_sets, &cfg, err), CLD_OK);
    enum cld_status s = cld_config_check(&cfg, use, err);
    cld_config_free(&cfg);
    return s;
}

static void test_cross_checks(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b, *what; /* `what` is NULL where all is well */
    } cases[] = {
        {NULL, NULL, NULL},
        {"data.synthetic=4,64", NULL, "--set: data.train and data.synthetic are both given"},
        {"data.train=none", NULL, "data.train is needed"},
        {"data.train=none", "data.synthetic=4,64", NULL},
        {"data.train=none", "data.synthetic=4,65", "rows of 65 tokens, data.max_length is 64"},
        {"target.taps=1,3,3", NULL, "--set: target.taps has layer 3 twice"},
        {"target.taps=3,1", NULL, "target.taps has layer 1 after layer 3"},
        {"drafter.layers=2", "drafter.layer_types=full_attention,full_attention", NULL},
        {"drafter.layer_types=full_attention,full_attention", NULL,
         "has 2 types, drafter.layers is 5"},
        {"drafter.layer_types=sliding_attention", NULL, "drafter.sliding_window is none"},
        {"drafter.layer_types=sliding_attention", "drafter.sliding_window=16", NULL},
        {"drafter.layer_types=sliding_attention", "drafter.sliding_window=15",
         "drafter.sliding_window is 15, drafter.block_size is 16"},
        {"drafter.sliding_window=64", NULL, "but no layer slides"},
        {"drafter.heads=6", "drafter.kv_heads=4", "4 does not divide drafter.heads 6"},
        {"drafter.heads=6", "drafter.kv_heads=3", NULL},
        {"drafter.head_dim=12", NULL, "not a multiple of 8"},
        {"features.mode=hybrid", NULL, "features.mode is hybrid, features.dir is none"},
        {"features.limit_gib=1", NULL, "features.mode is not hybrid"},
        {"drafter.mask_token=2147483648", NULL, "drafter.mask_token 2147483648 is no token id"},
        {"drafter.mask_token=99999999999999999999", NULL, "is no token id"},
        {"drafter.mask_token=2147483647", NULL, NULL},
        {"train.micro_rows=3", NULL, "train.micro_rows 3 does not divide train.batch_rows 8"},
        {"train.micro_rows=8", "devices.drafters=1,2", "1 parts for 2 drafters"},
        {"train.micro_rows=4", "devices.drafters=1,2", NULL},
        {"train.schedule=wsd", "train.warmup=0.9", "train.warmup 0.9 and train.wsd_decay 0.2"},
        {"train.warmup=0.9", NULL, NULL},
        {"train.micro_rows=2", "devices.drafters=1,2,3", "4 parts for 3 drafters"},
        {"train.micro_rows=2", "devices.drafters=1,1", NULL},
        {"memory.limit_gib=1,2,3", "devices.drafters=1", "3 numbers for 0 targets and 1 drafters"},
        {"memory.limit_gib=1,2", "devices.drafters=1,2", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cld_error err = CLD_ERROR_INIT;
        enum cld_status s = check(cases[i].a, cases[i].b, CLD_CONFIG_TRAIN, &err);
        if (s != (cases[i].what ? CLD_E_USAGE : CLD_OK) ||
            (cases[i].what && (!strstr(err.what, cases[i].what) || !err.hint[0])))
            fail_msg("case %zu: status %d, '%s', hint '%s'", i, s, err.what, err.hint);
    }
}

static void test_needed_keys(void **state)
{
    (void)state;
    static const char *const complete[] = {COMPLETE};
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    char name[32];
    write_bytes("", 0);
    for (size_t skip = 0; skip < N_COMPLETE; skip++) { /* leave out one at a time */
        const char *sets[N_COMPLETE];
        size_t n = 0;
        for (size_t i = 0; i < N_COMPLETE; i++)
            if (i != skip)
                sets[n++] = complete[i];
        assert_int_equal(cld_config_load(path, sets, n, &cfg, &err), CLD_OK);
        assert_int_equal(cld_config_check(&cfg, CLD_CONFIG_TRAIN, &err), CLD_E_USAGE);
        snprintf(name, sizeof name, "%.*s is needed", (int)strcspn(complete[skip], "="),
                 complete[skip]);
        assert_non_null(strstr(err.what, name));
        cld_config_free(&cfg);
    }
    assert_int_equal(cld_config_load(path, NULL, 0, &cfg, &err), CLD_OK);
    assert_int_equal(cld_config_check(&cfg, CLD_CONFIG_BENCH, &err), CLD_OK);
    assert_int_equal(cld_config_check(&cfg, CLD_CONFIG_PLAN, &err), CLD_E_USAGE);
    cld_config_free(&cfg);
    assert_int_equal(check(NULL, NULL, CLD_CONFIG_EVAL, &err), CLD_E_USAGE);
    assert_non_null(strstr(err.what, "data.heldout is needed"));
    assert_int_equal(check("data.heldout=h", NULL, CLD_CONFIG_EVAL, &err), CLD_OK);
}

/* The printed text without its comments, which differ by origin. */
static char *values_of(const struct cld_config *cfg)
{
    struct cld_error err = CLD_ERROR_INIT;
    char *text;
    assert_int_equal(cld_config_text(cfg, &text, &err), CLD_OK);
    char *to = text;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *comment = strstr(line, "  # ");
        size_t n = comment ? (size_t)(comment - line) : strlen(line);
        memmove(to, line, n);
        to += n;
        *to++ = '\n';
    }
    *to = 0;
    return text;
}

static void round_trip(struct cld_config *cfg)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config again;
    char *text;
    assert_int_equal(cld_config_text(cfg, &text, &err), CLD_OK);
    if (load(text, &again, &err))
        fail_msg("%s\n%s", err.what, text);
    char *a = values_of(cfg), *b = values_of(&again);
    assert_string_equal(a, b);
    assert_int_equal(cld_config_resume_diff(cfg, &again, &err), CLD_OK);
    free(a);
    free(b);
    free(text);
    cld_config_free(&again);
}

static void test_print_round_trip(void **state)
{
    (void)state;
    static const char *const sets[] = {"run.dir= blank ends ",
                                       "data.train='quoted'",
                                       "data.heldout=a#b;c\\",
                                       "train.learning_rate=0.1234567890123456789",
                                       "train.epsilon=1e-300",
                                       "train.gamma=3e5",
                                       "memory.limit_gib=1e-3,0.1,65535.99999999999",
                                       "target.taps=0,1,1023",
                                       "bench.shapes=1x2x3,NN:4x5x6",
                                       "drafter.layer_types=sliding_attention,full_attention",
                                       "devices.targets=cpu:0/2, some name ,7",
                                       "drafter.mask_token=<|mask|>",
                                       "target.random_weights=9007199254740991",
                                       "log.level=error",
                                       "drafter.rope_theta=1e6",
                                       "data.synthetic=2,2",
                                       "train.steps=1000000000",
                                       "runtime.override.rmsnorm=my own.spv",
                                       "runtime.modules=some/dir",
                                       "runtime.program=spirv"};
    static const char *const files[] = {"configs/tiny.ini", "configs/qwen3-8b.ini"};
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    char *text;
    write_bytes("", 0);
    assert_int_equal(cld_config_load(path, sets, sizeof sets / sizeof sets[0], &cfg, &err), CLD_OK);
    round_trip(&cfg);
    cld_config_free(&cfg);
    assert_int_equal(load("", &cfg, &err), CLD_OK);
    round_trip(&cfg);
    cld_config_free(&cfg);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(cld_config_load(files[i], NULL, 0, &cfg, &err), CLD_OK);
        round_trip(&cfg);
        cld_config_free(&cfg);
    }
    const char *const seed = "run.seed=3";
    assert_int_equal(cld_config_load("configs/tiny.ini", &seed, 1, &cfg, &err), CLD_OK);
    assert_int_equal(cld_config_text(&cfg, &text, &err), CLD_OK);
    assert_non_null(strstr(text, "\nseed = 3  # --set\n"));
    assert_non_null(strstr(text, "\nlearning_rate = 0.002  # configs/tiny.ini:"));
    assert_non_null(strstr(text, "\nepsilon = 1e-08  # default\n"));
    free(text);
    cld_config_free(&cfg);
    assert_int_equal(load("", &cfg, &err), CLD_OK);
    assert_int_equal(cld_config_text(&cfg, &text, &err), CLD_OK);
    assert_non_null(strstr(text, "\n# steps =   # not given\n"));
    free(text);
    cld_config_free(&cfg);
}

/* The values of the widest kind: every list full of the longest items that a line can bring. */
static void test_print_longest(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    char reals[900] = "memory.limit_gib=", taps[400] = "target.taps=", dir[900] = "run.dir=";
    for (int i = 0; i < 32; i++) {
        snprintf(reals + strlen(reals), 64, "%s.%d", i ? "," : "", i + 1);
        snprintf(taps + strlen(taps), 64, "%s%d", i ? "," : "", 900 + i);
    }
    memset(dir + strlen(dir), '#', 800);
    const char *const sets[] = {reals, taps, dir};
    write_bytes("", 0);
    assert_int_equal(cld_config_load(path, sets, 3, &cfg, &err), CLD_OK);
    round_trip(&cfg);
    cld_config_free(&cfg);
}

static void test_resume_diff(void **state)
{
    (void)state;
    static const struct {
        const char *set, *what; /* `what` is NULL where the change is allowed */
    } cases[] = {
        {"train.steps=300", NULL},
        {"train.steps=301", NULL},
        {"train.steps=299", "train.steps is 299 (--set), but the run began with 300"},
        {"train.learning_rate=0.002", NULL},
        {"train.learning_rate=2.0e-3", NULL},
        {"train.learning_rate=0.0021", "train.learning_rate is 0.0021 (--set)"},
        {"run.seed=43", "run.seed is 43 (--set), but the run began with 42"},
        {"drafter.heads=4", "drafter.heads is 4 (--set), but the run began with target"},
        {"runtime.precision=bf16", "runtime.precision is bf16"},
        {"target.taps=1,3", "target.taps is 1,3"},
        {"log.every=1", NULL},
        {"train.evaluate_every=7", NULL},
        {"eval.rows=3", NULL},
        {"devices.drafters=1", NULL},
        {"memory.reserve_gib=0", NULL},
        {"train.micro_rows=4", NULL},
        {"attention.backend=dense", NULL},
        {"run.dir=elsewhere", NULL},
    };
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config old, now;
    assert_int_equal(cld_config_load("configs/tiny.ini", NULL, 0, &old, &err), CLD_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(cld_config_load("configs/tiny.ini", &cases[i].set, 1, &now, &err), CLD_OK);
        enum cld_status s = cld_config_resume_diff(&old, &now, &err);
        if (s != (cases[i].what ? CLD_E_USAGE : CLD_OK) ||
            (cases[i].what && !strstr(err.what, cases[i].what)))
            fail_msg("%s: status %d, '%s'", cases[i].set, s, err.what);
        cld_config_free(&now);
    }
    cld_config_free(&old);
}

static void test_shipped_files(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    if (cld_config_load("configs/tiny.ini", NULL, 0, &cfg, &err) ||
        cld_config_check(&cfg, CLD_CONFIG_TRAIN, &err))
        fail_msg("%s", err.what);
    assert_int_equal(cfg.train.steps, 300);
    assert_int_equal(cfg.drafter.layers, 2);
    assert_int_equal(cfg.drafter.block_size, 8);
    assert_int_equal(cfg.train.anchors, 32);
    assert_int_equal(cfg.data.max_length, 192);
    assert_true(cfg.train.gamma == 4 && cfg.train.learning_rate == 2e-3);
    assert_int_equal(cld_config_mask_id(&cfg), -1);
    cld_config_free(&cfg);
    if (cld_config_load("configs/qwen3-8b.ini", NULL, 0, &cfg, &err) ||
        cld_config_check(&cfg, CLD_CONFIG_TRAIN, &err) ||
        cld_config_check(&cfg, CLD_CONFIG_PLAN, &err) ||
        cld_config_check(&cfg, CLD_CONFIG_EVAL, &err))
        fail_msg("%s", err.what);
    assert_int_equal(cld_config_mask_id(&cfg), 151669);
    assert_int_equal(cfg.target.taps.n, 5);
    cld_config_free(&cfg);
}

/* The enums of config.h follow the names of the table. */
static void enum_value(const char *set, size_t offset, int value)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    int got;
    assert_int_equal(cld_config_load(path, &set, 1, &cfg, &err), CLD_OK);
    memcpy(&got, (const char *)&cfg + offset, sizeof got);
    cld_config_free(&cfg);
    if (got != value)
        fail_msg("%s is %d, not %d", set, got, value);
}

static void test_enum_order(void **state)
{
    (void)state;
    write_bytes("", 0);
#define VALUE(key, name, value) enum_value(#key "=" #name, offsetof(struct cld_config, key), value)
    VALUE(data.template, none, CLD_TEMPLATE_NONE);
    VALUE(data.template, chatml, CLD_TEMPLATE_CHATML);
    VALUE(data.template, qwen3, CLD_TEMPLATE_QWEN3);
    VALUE(data.template, llama3, CLD_TEMPLATE_LLAMA3);
    VALUE(data.bad_row, skip, CLD_BAD_ROW_SKIP);
    VALUE(data.bad_row, fail, CLD_BAD_ROW_FAIL);
    VALUE(train.schedule, cosine, CLD_SCHEDULE_COSINE);
    VALUE(train.schedule, linear, CLD_SCHEDULE_LINEAR);
    VALUE(train.schedule, wsd, CLD_SCHEDULE_WSD);
    VALUE(train.schedule, constant, CLD_SCHEDULE_CONSTANT);
    VALUE(attention.backend, sparse, CLD_ATTENTION_SPARSE);
    VALUE(attention.backend, dense, CLD_ATTENTION_DENSE);
    VALUE(runtime.program, auto, CLD_PROGRAM_AUTO);
    VALUE(runtime.program, source, CLD_PROGRAM_SOURCE);
    VALUE(runtime.program, spirv, CLD_PROGRAM_SPIRV);
    VALUE(runtime.precision, bf16, CLD_BF16);
    VALUE(runtime.precision, fp32, CLD_F32);
    VALUE(log.level, debug, CLD_LOG_DEBUG);
    VALUE(log.level, info, CLD_LOG_INFO);
    VALUE(log.level, warning, CLD_LOG_WARN);
    VALUE(log.level, error, CLD_LOG_ERROR);
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_config cfg;
    const char *sets[] = {
        "bench.what=gemm,attention,loss,elementwise,target,step,pipeline,transfer,build",
        "drafter.layer_types=full_attention,sliding_attention", "bench.gemm=auto,portable,clblast",
        "bench.storage=fp32,bf16"};
    assert_int_equal(cld_config_load(path, sets, sizeof sets / sizeof *sets, &cfg, &err), CLD_OK);
    assert_int_equal(cfg.bench.gemm.v[CLD_GEMM_AUTO], CLD_GEMM_AUTO);
    assert_int_equal(cfg.bench.gemm.v[CLD_GEMM_PORTABLE], CLD_GEMM_PORTABLE);
    assert_int_equal(cfg.bench.gemm.v[CLD_GEMM_CLBLAST], CLD_GEMM_CLBLAST);
    assert_int_equal(cfg.bench.storage.v[CLD_F32], CLD_F32);
    assert_int_equal(cfg.bench.storage.v[CLD_BF16], CLD_BF16);
    assert_int_equal(cfg.bench.what.v[CLD_BENCH_GEMM], CLD_BENCH_GEMM);
    assert_int_equal(cfg.bench.what.v[CLD_BENCH_ATTENTION], CLD_BENCH_ATTENTION);
    assert_int_equal(cfg.bench.what.v[CLD_BENCH_LOSS], CLD_BENCH_LOSS);
    assert_int_equal(cfg.bench.what.v[CLD_BENCH_ELEMENTWISE], CLD_BENCH_ELEMENTWISE);
    assert_int_equal(cfg.bench.what.v[CLD_BENCH_TARGET], CLD_BENCH_TARGET);
    assert_int_equal(cfg.bench.what.v[CLD_BENCH_STEP], CLD_BENCH_STEP);
    assert_int_equal(cfg.bench.what.v[CLD_BENCH_PIPELINE], CLD_BENCH_PIPELINE);
    assert_int_equal(cfg.bench.what.v[CLD_BENCH_TRANSFER], CLD_BENCH_TRANSFER);
    assert_int_equal(cfg.bench.what.v[CLD_BENCH_BUILD], CLD_BENCH_BUILD);
    assert_int_equal(cfg.bench.what.n, CLD_N_BENCH_WHAT);
    assert_string_equal(cld_config_value_name("bench.what", CLD_BENCH_BUILD), "build");
    assert_int_equal(cfg.drafter.layer_types.v[0], CLD_LAYER_FULL);
    assert_int_equal(cfg.drafter.layer_types.v[1], CLD_LAYER_SLIDING);
    cld_config_free(&cfg);
}

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < cld_config_n_keys; i++) {
        const struct cld_config_key *k = &cld_config_keys[i];
        assert_non_null(cld_config_section_help(k->section));
        assert_true(k->help && k->help[0]);
        assert_null(strchr(k->help, '|')); /* would break the page's tables */
        bool number = k->type == CLD_KEY_SIZE || k->type == CLD_KEY_SIZES ||
                      k->type == CLD_KEY_REAL || k->type == CLD_KEY_REALS || k->type == CLD_KEY_INT;
        if (number)
            assert_true(k->min >= 0 && k->max > k->min);
        bool named = k->type == CLD_KEY_ENUM || k->type == CLD_KEY_ENUMS;
        assert_true(named == (k->names != NULL));
        bool list = k->type >= CLD_KEY_SIZES;
        assert_true(list == (k->max_n > 0) && k->min_n <= k->max_n);
        /* An open number must be outside of the range, or it would look like a given one. */
        if ((k->word || !k->default_text) && (k->type == CLD_KEY_SIZE || k->type == CLD_KEY_REAL))
            assert_true(k->min > 0 || k->above_min);
        for (size_t j = 0; j < i; j++)
            assert_true(strcmp(k->section, cld_config_keys[j].section) ||
                        strcmp(k->name, cld_config_keys[j].name));
        for (size_t j = i + 1; j < cld_config_n_keys; j++) /* no two rows for one field */
            assert_true(k->offset != cld_config_keys[j].offset);
    }
}

static void test_gib(void **state)
{
    (void)state;
    assert_true(cld_config_gib(0) == 0);
    assert_true(cld_config_gib(1.5) == (size_t)3 << 29);
    assert_true(cld_config_gib(1e30) == SIZE_MAX);
}

/* A valid file with bytes changed, taken out and put in: it loads or is refused with a place, and
 * what loads can be printed and read back. */
static void test_mutations(void **state)
{
    (void)state;
    static const char bytes[] = "=[]#;\"'\\\n\r\t ,.-0129eEax\xc3\xff\x01";
    struct cld_error err = CLD_ERROR_INIT;
    char *valid;
    size_t n_valid, n_loaded = 0, n_refused = 0;
    assert_int_equal(cld_file_read("configs/qwen3-8b.ini", 0, &valid, &n_valid, &err), CLD_OK);
    char *text = malloc(n_valid + 16);
    assert_non_null(text);
    for (uint64_t round = 0; round < 1500; round++) {
        size_t n = n_valid;
        memcpy(text, valid, n);
        for (uint64_t change = 0; change <= round % 3; change++) {
            uint64_t bits = cld_random_u64(1, CLD_RANDOM_TEST, round, change, 0);
            size_t at = cld_random_below(bits, n);
            char c = bytes[cld_random_below(cld_mix64(bits), sizeof bytes)]; /* with its NUL */
            if (bits % 3 == 0) {
                text[at] = c;
            } else if (bits % 3 == 1) {
                memmove(text + at, text + at + 1, n - at - 1);
                n--;
            } else {
                memmove(text + at + 1, text + at, n - at);
                text[at] = c;
                n++;
            }
        }
        struct cld_config cfg;
        write_bytes(text, n);
        enum cld_status s = cld_config_load(path, NULL, 0, &cfg, &err);
        if (s) {
            assert_int_equal(s, CLD_E_USAGE);
            assert_true(!strncmp(err.what, path, strlen(path)) && err.what[strlen(path)] == ':');
            assert_true(atoi(err.what + strlen(path) + 1) > 0);
            n_refused++;
        } else {
            round_trip(&cfg);
            n_loaded++;
        }
        cld_config_free(&cfg);
    }
    assert_true(n_loaded > 100 && n_refused > 100); /* else the mutations test one side alone */
    free(text);
    free(valid);
}

/* docs/config.md is what the table says. CLD_UPDATE_DOCS=1 writes it anew. */
static void test_documentation(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    char *generated = NULL, *committed = NULL;
    size_t n, n_committed;
    FILE *to = open_memstream(&generated, &n);
    assert_non_null(to);
    cld_config_write_markdown(to);
    assert_int_equal(fclose(to), 0);
    if (getenv("CLD_UPDATE_DOCS"))
        assert_int_equal(cld_file_write("docs/config.md", generated, n, &err), CLD_OK);
    assert_int_equal(cld_file_read("docs/config.md", 0, &committed, &n_committed, &err), CLD_OK);
    assert_string_equal(generated, committed);
    free(generated);
    free(committed);
    to = open_memstream(&generated, &n);
    assert_non_null(to);
    cld_config_write_help(to);
    assert_int_equal(fclose(to), 0);
    assert_non_null(strstr(generated, "\n  clip = number, from 0 to 1000000  (default 1.0)\n"));
    for (const char *line = generated; *line; line += strcspn(line, "\n") + 1)
        if (!strncmp(line, "      ", 6))
            assert_true(strcspn(line, "\n") <= 100);
    free(generated);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_values),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_refuses_syntax),
        cmocka_unit_test(test_refuses_long_lines),
        cmocka_unit_test(test_refuses_names),
        cmocka_unit_test(test_refuses_values),
        cmocka_unit_test(test_missing_file),
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_cross_checks),
        cmocka_unit_test(test_needed_keys),
        cmocka_unit_test(test_print_round_trip),
        cmocka_unit_test(test_print_longest),
        cmocka_unit_test(test_resume_diff),
        cmocka_unit_test(test_shipped_files),
        cmocka_unit_test(test_enum_order),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_gib),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_documentation),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
