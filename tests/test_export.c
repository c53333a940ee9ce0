/* What an export refuses because a runtime would serve it otherwise, and its card. */
#include "model/export.h"

#include <jansson.h>
#include <stdio.h>

#include "base/file.h"
#include "model/drafter_layout.h"
#include "small_drafter.h"
#include "temp_dir.h"

static struct cld_export plain(void)
{
    struct cld_export x = {
        .from = "from",
        .out = "some/drafter",
        .target_dir = "some/target",
        .target = {
            .n_layers = 6, .hidden = 24, .vocab = 61, .pad = 5, .eos = {7}, .n_eos = 1, .bos = -1}};
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
    FAILS(cld_export_check(&x, &err), CLD_E_USAGE, "programs would treat all layers alike");
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
    FAILS(cld_export_check(&x, &err), CLD_E_USAGE,
          "a vocabulary of 61 and width 24, the target has 64");
}

/* --- readers as the runtimes have them, written from what they are known to do
 * --------------------- */

struct served {
    bool can_read;
    json_int_t block_size, mask_token, taps[CLD_MAX_TAPS];
    size_t n_taps;
    bool causal[2]; /* by layer */
};

/* In dflash_config or at the top level. */
static const json_t *either(const json_t *root, const char *key)
{
    const json_t *v = json_object_get(json_object_get(root, "dflash_config"), key);
    return v ? v : json_object_get(root, key);
}

static void read_taps(const json_t *list, json_int_t shift, struct served *out)
{
    out->n_taps = json_array_size(list);
    for (size_t i = 0; i < out->n_taps; i++)
        out->taps[i] = json_integer_value(json_array_get(list, i)) + shift;
}

static bool slides(const json_t *geometry, size_t layer)
{
    const json_t *types = json_object_get(geometry, "layer_types");
    return !strcmp(json_string_value(json_array_get(types, layer)), "sliding_attention");
}

/* SGLang: sliding layers causal, full ones not. */
static struct served as_sglang(const json_t *root)
{
    struct served s = {.can_read = either(root, "target_layer_ids") != NULL};
    if (!s.can_read)
        return s;
    s.block_size = json_integer_value(either(root, "block_size"));
    s.mask_token = json_integer_value(either(root, "mask_token_id"));
    read_taps(either(root, "target_layer_ids"), 0, &s);
    for (size_t i = 0; i < 2; i++)
        s.causal[i] = slides(root, i);
    return s;
}

/* vLLM: the same, unless there is a word on causality, which counts for all layers; for the layout
 * of speculators there always is one. */
static struct served as_vllm(const json_t *root)
{
    struct served s = {.can_read = true};
    const json_t *nested = json_object_get(root, "transformer_layer_config");
    const json_t *word = json_object_get(root, "is_causal");
    s.block_size = json_integer_value(either(root, "block_size"));
    s.mask_token = json_integer_value(either(root, "mask_token_id"));
    if (!word)
        word = json_object_get(json_object_get(root, "dflash_config"), "causal");
    if (nested)
        read_taps(json_object_get(root, "aux_hidden_state_layer_ids"), -1, &s);
    else
        read_taps(either(root, "target_layer_ids"), 0, &s);
    for (size_t i = 0; i < 2; i++)
        s.causal[i] = nested ? !json_is_true(json_object_get(root, "sliding_window_non_causal"))
                      : word ? json_is_true(word)
                             : slides(root, i);
    return s;
}

/* Would it be computed as it was trained? */
static bool is_true_to(const struct served *s, const struct cld_drafter_file *f)
{
    const struct cld_drafter_config *c = &f->config;
    bool same = s->can_read && s->block_size == (json_int_t)c->block_size &&
                s->mask_token == c->mask_token && s->n_taps == c->n_taps;
    for (size_t i = 0; same && i < c->n_taps; i++)
        same = s->taps[i] == f->taps[i];
    for (size_t i = 0; same && i < c->n_layers; i++)
        same = s->causal[i] == (c->sliding[i] && c->sliding_causal);
    return same;
}

/* What passes is served as it was trained by all that it is for; what is refused would not be by
 * one of them. */
static void exports_are_what_runtimes_serve(void **state)
{
    char *path = cld_format("%s/config.json", (char *)*state);
    size_t n_passed = 0;
    for (unsigned k = 0; k < 48; k++) {
        struct cld_export x = plain();
        struct cld_drafter_config *c = &x.file.config;
        struct cld_error why = CLD_ERROR_INIT;
        c->sliding[0] = k & 1;
        c->sliding[1] = k & 2;
        c->sliding_causal = k & 4;
        c->sliding_window = k & 3 ? 9 : 0;
        x.format = k & 8 ? CLD_EXPORT_SPECULATORS : CLD_EXPORT_HF;
        x.runtime = (enum cld_export_runtime)(k / 16);
        bool sglang = x.runtime == CLD_EXPORT_SGLANG ||
                      (x.runtime == CLD_EXPORT_ALL && x.format == CLD_EXPORT_HF);
        bool passes = !cld_export_check(&x, &why);
        if (x.format == CLD_EXPORT_HF)
            OK(cld_drafter_config_write(*state, &x.file, &err));
        else
            OK(cld_speculators_write(*state, &x.file, "no/target", &err));
        json_t *root = json_load_file(path, 0, NULL);
        struct served a = as_sglang(root), b = as_vllm(root);
        bool good = (!sglang || is_true_to(&a, &x.file)) &&
                    (x.runtime == CLD_EXPORT_SGLANG || is_true_to(&b, &x.file));
        if (good != passes)
            fail_msg("case %u: served right %d, passes %d: %s", k, good, passes, why.what);
        n_passed += passes;
        json_decref(root);
    }
    assert_in_range(n_passed, 16, 40);
    free(path);
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
        cmocka_unit_test_setup_teardown(exports_are_what_runtimes_serve, make_temp_dir,
                                        remove_temp_dir),
        cmocka_unit_test(the_card_counts_for_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
