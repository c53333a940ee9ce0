/* config.json in every spelling, what is refused, rotary tables, the rule of taps. */
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

/* A qwen3 config.json with these members besides. */
#define QWEN3(members) "{\"model_type\":\"qwen3\"," members "," BASE "}"
#define ROPE(now, old) QWEN3("\"rope_parameters\":{" now "},\"rope_scaling\":{" old "}")

static void reads_rope_in_every_spelling(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        enum cld_rope_type type;
        double theta, factor;
    } good[] = {
        {QWEN3("\"hidden_act\":\"silu\""), CLD_ROPE_DEFAULT, 10000, 0},
        {QWEN3("\"rope_theta\":1000000"), CLD_ROPE_DEFAULT, 1e6, 0},
        {QWEN3("\"rope_theta\":1e6,\"rope_scaling\":null"), CLD_ROPE_DEFAULT, 1e6, 0},
        {QWEN3("\"rope_theta\":1e6,\"rope_parameters\":{\"rope_theta\":1000000}"), CLD_ROPE_DEFAULT,
         1e6, 0},
        {QWEN3("\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}"), CLD_ROPE_LINEAR, 10000, 4},
        {QWEN3("\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6,"
               "\"rope_type\":\"default\"}}"),
         CLD_ROPE_DEFAULT, 1e6, 0},
        {QWEN3(
             "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6,"
             "\"rope_type\":\"linear\",\"factor\":2},\"sliding_attention\":{\"rope_theta\":1e4}}"),
         CLD_ROPE_LINEAR, 1e6, 2},
        {ROPE("\"rope_type\":\"linear\",\"factor\":2.0,\"rope_theta\":5e5",
              "\"type\":\"linear\",\"factor\":2"),
         CLD_ROPE_LINEAR, 5e5, 2},
        {ROPE("\"rope_theta\":5e5", ""), CLD_ROPE_DEFAULT, 5e5, 0},
        {QWEN3("\"partial_rotary_factor\":1.0,\"rope_parameters\":{\"factor\":1.0,"
               "\"partial_rotary_factor\":1}"),
         CLD_ROPE_DEFAULT, 10000, 0},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct cld_error err = CLD_ERROR_INIT;
        struct cld_model_config c;
        if (read_text(good[i].json, &c, &err))
            fail_msg("case %zu: %s", i, err.what);
        if (c.rope.type != good[i].type || c.rope.theta != good[i].theta ||
            c.rope.factor != good[i].factor)
            fail_msg("case %zu: type %d, theta %g, factor %g", i, (int)c.rope.type, c.rope.theta,
                     c.rope.factor);
    }
}

/* What is said of a file that `says` both of them in its message. */
static void refuses_contradictions_with_both_values(void **state)
{
    (void)state;
    static const struct {
        const char *json, *says[3];
    } bad[] = {
        {ROPE("\"rope_type\":\"default\"",
              "\"rope_type\":\"yarn\",\"factor\":4.0,\"beta_fast\":32"),
         {"rope_scaling", "'default'", "'yarn'"}},
        {ROPE("\"rope_theta\":1e4", "\"type\":\"linear\",\"factor\":2.0"),
         {"rope_parameters", "'default'", "'linear'"}},
        {ROPE("\"rope_type\":\"linear\",\"factor\":2", "\"type\":\"linear\",\"factor\":4"),
         {"factor", "2", "4"}},
        {ROPE("\"rope_theta\":1e6", "\"rope_theta\":1e4"), {"rope_theta", "1000000", "10000"}},
        {QWEN3("\"rope_theta\":5e5,\"rope_parameters\":{\"rope_theta\":1e6}"),
         {"rope_theta", "500000", "1000000"}},
        {QWEN3("\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"default\"}"),
         {"'linear'", "'default'", "rope_type"}},
        {QWEN3("\"rope_scaling\":{\"factor\":2.0}"), {"factor", "2.0", "rope_type"}},
        {QWEN3("\"rope_parameters\":{\"rope_theta\":1e4,\"rope_type\":\"default\","
               "\"low_freq_factor\":1}"),
         {"low_freq_factor", "default", "1"}},
        {QWEN3("\"rope_parameters\":{\"rope_theta\":1e4,\"mrope_section\":[8,4,4]}"),
         {"mrope_section", "rope_parameters", ""}},
        {QWEN3("\"rope_parameters\":{\"rope_type\":\"longrope\"}"), {"longrope", "", ""}},
        {QWEN3("\"rope_parameters\":{\"rope_type\":\"dynamic\",\"factor\":2}"),
         {"dynamic", "", ""}},
        {QWEN3("\"rope_parameters\":{\"rope_type\":3}"), {"rope_type", "not a text", ""}},
        {QWEN3("\"rope_parameters\":[1]"), {"rope_parameters", "not an object", ""}},
        {QWEN3("\"rope_parameters\":{\"sliding_attention\":{\"rope_theta\":1e4}}"),
         {"full_attention", "rope_parameters", ""}},
        {QWEN3("\"rope_parameters\":{\"rope_theta\":1e4,"
               "\"full_attention\":{\"rope_theta\":1e4}}"),
         {"rope_theta", "beside", ""}},
        {QWEN3("\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e4,\"factor\":8}}"),
         {"rope_parameters.full_attention", "factor", "8"}},
        {QWEN3("\"partial_rotary_factor\":0.5"), {"partial_rotary_factor", "0.5", ""}},
        {QWEN3("\"rope_parameters\":{\"partial_rotary_factor\":0.25}"),
         {"partial_rotary_factor", "0.25", ""}},
        {QWEN3("\"original_max_position_embeddings\":4096"),
         {"original_max_position_embeddings", "4096", ""}},
        {QWEN3("\"layer_types\":[\"full_attention\"]"), {"layer_types", "1 layers", "is 4"}},
        {QWEN3("\"layer_types\":\"full_attention\""), {"layer_types", "not a list", ""}},
        {QWEN3("\"sliding_window\":128,\"max_position_embeddings\":4096"),
         {"sliding_window", "128", "4096"}},
        {QWEN3("\"architectures\":[\"MistralForCausalLM\"]"), {"qwen3", "MistralForCausalLM", ""}},
        {QWEN3("\"architectures\":[\"Qwen3MoeForCausalLM\"]"),
         {"architectures", "Qwen3MoeForCausalLM", ""}},
        {QWEN3("\"mlp_bias\":true"), {"mlp_bias", "true", "qwen3"}},
        {"{\"model_type\":\"qwen2\",\"attention_bias\":false," BASE "}",
         {"attention_bias", "false", "qwen2"}},
        {"{\"model_type\":\"llama\",\"use_qk_norm\":true," BASE "}",
         {"use_qk_norm", "true", "llama"}},
        {QWEN3("\"hidden_act\":3"), {"hidden_act", "not a text", ""}},
        {QWEN3("\"attn_logit_softcapping\":50.0"), {"attn_logit_softcapping", "50", ""}},
        {QWEN3("\"final_logit_softcapping\":1.0"), {"final_logit_softcapping", "1.0", ""}},
        {QWEN3("\"query_key_scaling\":2"), {"query_key_scaling", "2", ""}},
        {QWEN3("\"my_router_bias\":true"), {"my_router_bias", "true", ""}},
        {QWEN3("\"layer_norm_eps\":1e-5"), {"layer_norm_eps", "1e-5", ""}},
        {QWEN3("\"text_config\":{\"hidden_size\":8}"), {"text_config", "hidden_size", ""}},
        {QWEN3("\"is_causal\":false"), {"is_causal", "false", ""}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct cld_error err = CLD_ERROR_INIT;
        struct cld_model_config c;
        if (read_text(bad[i].json, &c, &err) != CLD_E_INPUT)
            fail_msg("case %zu passes", i);
        for (size_t k = 0; k < 3; k++)
            if (!strstr(err.what, bad[i].says[k]))
                fail_msg("case %zu: '%s' does not say '%s'", i, err.what, bad[i].says[k]);
    }
}

/* Keys of published files, and neutral values of others. */
static void passes_what_means_nothing(void **state)
{
    (void)state;
    static const char *const good[] = {
        QWEN3("\"architectures\":[\"Qwen3ForCausalLM\"],\"use_cache\":true"),
        QWEN3("\"sliding_window\":4096,\"use_sliding_window\":false,\"max_window_layers\":2"),
        QWEN3("\"sliding_window\":null,\"attention_dropout\":0.1,\"resid_pdrop\":0.1"),
        QWEN3("\"num_experts\":0,\"logits_scaling\":1.0,\"final_logit_softcapping\":null"),
        QWEN3("\"foo_scaling\":1,\"bar_bias\":false,\"quant\":null,\"norms\":[]"),
        QWEN3("\"use_qk_norm\":true,\"qkv_bias\":false,\"hidden_act\":\"swish\""),
        QWEN3("\"pretraining_tp\":1,\"_attn_implementation_autoset\":true,\"colour\":\"red\""),
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct cld_error err = CLD_ERROR_INIT;
        struct cld_model_config c;
        if (read_text(good[i], &c, &err))
            fail_msg("case %zu: %s", i, err.what);
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
        cmocka_unit_test(reads_rope_in_every_spelling),
        cmocka_unit_test(refuses_contradictions_with_both_values),
        cmocka_unit_test(passes_what_means_nothing),
        cmocka_unit_test(rotary_table_is_exact),
        cmocka_unit_test(llama3_scaling_keeps_short_and_divides_long_waves),
        cmocka_unit_test(taps_follow_the_rule),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
