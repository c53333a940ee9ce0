/* config.json in both spellings, what is refused, rotary tables, the rule of taps. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "model/model_config.h"
#include "model/setup.h"

#define BASE                                                                                       \
    "\"num_hidden_layers\":4,\"hidden_size\":64,\"num_attention_heads\":4,"                        \
    "\"num_key_value_heads\":2,\"intermediate_size\":96,\"vocab_size\":300"

static char dir[64];

static enum cld_status read_text(const char *json, struct cld_model_config *c,
                                 struct cld_error *err)
{
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(cld_file_write(path, json, strlen(json), err), CLD_OK);
    return cld_model_config_read(dir, c, err);
}

static void reads_both_spellings(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_model_config a, b;
    assert_int_equal(read_text("{\"model_type\":\"llama\"," BASE ",\"rope_parameters\":{"
                               "\"rope_type\":\"llama3\",\"rope_theta\":500000.0,\"factor\":8.0,"
                               "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                               "\"original_max_position_embeddings\":64}}",
                               &a, &err),
                     CLD_OK);
    assert_int_equal(read_text("{\"model_type\":\"llama\"," BASE ",\"rope_theta\":500000.0,"
                               "\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8.0,"
                               "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                               "\"original_max_position_embeddings\":64}}",
                               &b, &err),
                     CLD_OK);
    assert_int_equal(a.rope.type, CLD_ROPE_LLAMA3);
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(a.head_dim, 16); /* absent: hidden / heads */
    assert_false(a.qk_norm || a.qkv_bias);
}

static void knows_the_architectures(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_model_config c;
    assert_int_equal(read_text("{\"model_type\":\"qwen2\"," BASE "}", &c, &err), CLD_OK);
    assert_true(c.qkv_bias && !c.o_bias && !c.qk_norm);
    assert_int_equal(
        read_text("{\"model_type\":\"qwen3\",\"head_dim\":null,\"attention_bias\":true," BASE "}",
                  &c, &err),
        CLD_OK);
    assert_true(c.qkv_bias && c.o_bias && c.qk_norm);
    assert_int_equal(c.head_dim, 16);
}

static void refuses_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *json, *says;
    } bad[] = {
        {"{\"model_type\":\"gemma\"," BASE "}", "gemma"},
        {"{" BASE "}", "model_type"},
        {"{\"model_type\":\"qwen3\",\"rope_scaling\":{\"rope_type\":\"yarn\"}," BASE "}", "yarn"},
        {"{\"model_type\":\"qwen2\",\"use_sliding_window\":true," BASE "}", "use_sliding_window"},
        {"{\"model_type\":\"qwen3\",\"layer_types\":[\"sliding_attention\"]," BASE "}",
         "sliding_attention"},
        {"{\"model_type\":\"qwen3\",\"hidden_act\":\"gelu\"," BASE "}", "gelu"},
        {"{\"model_type\":\"qwen3\",\"num_hidden_layers\":4}", "hidden_size"},
        {"{\"model_type\":\"qwen3\",\"rms_norm_eps\":0," BASE "}", "rms_norm_eps"},
        {"{\"model_type\":\"qwen3\",\"model_type\":\"qwen3\"," BASE "}", "duplicate"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"linear\"}," BASE "}",
         "factor"},
        {"[1]", "object"},
        {"{\"model_type\":\"qwen3\",\"head_dim\":300," BASE "}", "head_dim"},
        {"{\"model_type\":\"qwen3\",\"head_dim\":21," BASE "}", "head_dim"},
        {"{\"model_type\":\"qwen3\",\"quantization_config\":{}," BASE "}", "quantization_config"},
        {"{\"model_type\":\"llama\",\"embedding_multiplier\":12," BASE "}", "embedding_multiplier"},
        {"{\"model_type\":\"llama\",\"scale_emb\":12.0," BASE "}", "scale_emb"},
        {"{\"model_type\":\"llama\",\"scale_embedding\":true," BASE "}", "scale_embedding"},
        {"{\"model_type\":\"llama\",\"logits_scaling\":8," BASE "}", "logits_scaling"},
        {"{\"model_type\":\"qwen2\",\"final_logit_softcapping\":30.0," BASE "}",
         "final_logit_softcapping"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct cld_error err = CLD_ERROR_INIT;
        struct cld_model_config c;
        assert_int_equal(read_text(bad[i].json, &c, &err), CLD_E_INPUT);
        if (!strstr(err.what, bad[i].says))
            fail_msg("case %zu: '%s' does not name '%s'", i, err.what, bad[i].says);
    }
}

static void rotary_table_is_exact(void **state)
{
    (void)state;
    struct cld_rope rope = {.type = CLD_ROPE_DEFAULT, .theta = 10000};
    float table[50 * 8];
    cld_rope_table(&rope, 8, 50, table);
    assert_true(table[0] == 1 && table[4] == 0);
    for (int i = 0; i < 4; i++) {
        double angle = 49 * pow(10000, -i / 4.0);
        assert_true(fabs(table[49 * 8 + i] - cos(angle)) < 1e-7);
        assert_true(fabs(table[49 * 8 + 4 + i] - sin(angle)) < 1e-7);
    }
    rope = (struct cld_rope){.type = CLD_ROPE_LINEAR, .theta = 10000, .factor = 2};
    float half[50 * 8];
    cld_rope_table(&rope, 8, 50, half);
    assert_true(fabsf(half[48 * 8 + 1] - table[24 * 8 + 1]) < 1e-6f);
}

static void llama3_scaling_keeps_short_and_divides_long_waves(void **state)
{
    (void)state;
    struct cld_rope plain = {.type = CLD_ROPE_DEFAULT, .theta = 500000};
    struct cld_rope scaled = {CLD_ROPE_LLAMA3, 500000, 8, 1, 4, 8192, false};
    float a[9 * 128], b[9 * 128];
    cld_rope_table(&plain, 128, 9, a);
    cld_rope_table(&scaled, 128, 9, b);
    assert_true(a[8 * 128] == b[8 * 128]);                           /* shortest wave: kept */
    assert_true(fabsf(a[1 * 128 + 127] - b[8 * 128 + 127]) < 1e-7f); /* longest: divided by 8 */
}

static void taps_follow_the_rule(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    int taps[8];
    static const struct {
        size_t layers;
        int want[5];
    } known[] = {{36, {1, 9, 17, 25, 33}},
                 {64, {1, 16, 31, 46, 61}},
                 {32, {1, 8, 15, 22, 29}},
                 {40, {1, 10, 19, 28, 37}},
                 {24, {1, 6, 11, 16, 21}}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_int_equal(cld_auto_taps(known[i].layers, 5, taps, &err), CLD_OK);
        assert_memory_equal(taps, known[i].want, sizeof known[i].want);
    }
    assert_int_equal(cld_auto_taps(36, 1, taps, &err), CLD_OK);
    assert_int_equal(taps[0], 18);
    assert_int_equal(cld_auto_taps(4, 2, taps, &err), CLD_E_USAGE); /* both would be layer 1 */
}

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/cldraft-test-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    return cld_dir_remove(dir, &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_both_spellings),
        cmocka_unit_test(knows_the_architectures),
        cmocka_unit_test(refuses_by_name),
        cmocka_unit_test(rotary_table_is_exact),
        cmocka_unit_test(llama3_scaling_keeps_short_and_divides_long_waves),
        cmocka_unit_test(taps_follow_the_rule),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
