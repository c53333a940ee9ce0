/* What an export refuses because a runtime would serve it otherwise, and its card. */
#include "export.h"

#include <stdio.h>

#include "small_drafter.h"

static struct cld_export plain(void)
{
    struct cld_export x = {.from = "from",
                           .out = "some/drafter",
                           .target_dir = "some/target",
                           .target = {.n_layers = 6,
                                      .hidden = 24,
                                      .vocab = 61,
                                      .pad = 5,
                                      .eos = {7},
                                      .n_eos = 1,
                                      .bos = -1}};
    const int taps[] = {1, 3};
    cld_drafter_file_make(&x.file, &small_config, taps, &x.target, 0.02);
    return x;
}

static void what_runtimes_share_is_exported(void **state)
{
    (void)state;
    struct cld_export x = plain(); /* a layer that slides, causal, and one that does not */
    OK(cld_export_check(&x, &err));
    x.file.config.sliding[0] = false;
    x.file.config.sliding_window = 0;
    for (int format = 0; format < 2; format++) {
        x.format = (enum cld_export_format)format;
        OK(cld_export_check(&x, &err));
    }
}

static void causality_that_a_runtime_lacks(void **state)
{
    (void)state;
    struct cld_export x = plain();
    x.format = CLD_EXPORT_SPECULATORS; /* one word for all layers */
    FAILS(cld_export_check(&x, &err), CLD_E_USAGE, "all would be served alike");
    x.file.config.sliding_causal = false;
    OK(cld_export_check(&x, &err));
    x.runtime = CLD_EXPORT_SGLANG;
    FAILS(cld_export_check(&x, &err), CLD_E_USAGE, "SGLang does not read");
    x.format = CLD_EXPORT_HF;
    FAILS(cld_export_check(&x, &err), CLD_E_USAGE, "SGLang serves them causal");
    x.runtime = CLD_EXPORT_ALL;
    FAILS(cld_export_check(&x, &err), CLD_E_USAGE, "SGLang serves them causal");
    x.runtime = CLD_EXPORT_VLLM;
    OK(cld_export_check(&x, &err));
}

static void taps_that_a_runtime_lacks(void **state)
{
    static const struct {
        int taps[2];
        const char *words;
    } cases[] = {{{-1, 3}, "the embedding"},
                 {{3, 1}, "tap 1 after tap 3"},
                 {{3, 3}, "tap 3 after tap 3"},
                 {{1, 5}, "tap 5 is the last of 6 layers"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cld_export x = plain();
        memcpy(x.file.taps, cases[i].taps, sizeof cases[i].taps);
        FAILS(cld_export_check(&x, &err), CLD_E_USAGE, cases[i].words);
    }
    struct cld_export x = plain();
    x.target.n_layers = 7;
    FAILS(cld_export_check(&x, &err), CLD_E_USAGE, "a target of 6 layers, this one has 7");
}

static void tokens_that_do_not_fit(void **state)
{
    (void)state;
    struct cld_export x = plain();
    x.file.config.mask_token = 5;
    FAILS(cld_export_check(&x, &err), CLD_E_USAGE, "mask token 5");
    x.file.config.mask_token = 7;
    FAILS(cld_export_check(&x, &err), CLD_E_USAGE, "mask token 7");
    x = plain();
    x.target.vocab = 64; /* padded rows count: the head is shared whole */
    FAILS(cld_export_check(&x, &err), CLD_E_USAGE, "a vocabulary of 61 and width 24, the target has 64");
}

/* Two runtimes count a block differently; the card says each one's number. */
static void the_card_counts_for_each(void **state)
{
    static const char *const sglang = "--speculative-num-draft-tokens 4\n",
                            *const vllm = "\"num_speculative_tokens\": 3}";
    (void)state;
    for (int runtime = 0; runtime < 3; runtime++) {
        struct cld_export x = plain();
        x.runtime = (enum cld_export_runtime)runtime;
        char *card = cld_export_card(&x);
        assert_int_equal(!!strstr(card, sglang), runtime != CLD_EXPORT_VLLM);
        assert_int_equal(!!strstr(card, vllm), runtime != CLD_EXPORT_SGLANG);
        assert_non_null(strstr(card, "1 of 2 layers slide over 9 positions and are causal"));
        free(card);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_runtimes_share_is_exported),
        cmocka_unit_test(causality_that_a_runtime_lacks),
        cmocka_unit_test(taps_that_a_runtime_lacks),
        cmocka_unit_test(tokens_that_do_not_fit),
        cmocka_unit_test(the_card_counts_for_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
