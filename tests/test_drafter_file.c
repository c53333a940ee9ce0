/* Drafters on disk: config.json in all spellings, weights by exact names and shapes. */
#include "model/drafter_layout.h"

#include <jansson.h>
#include <stdio.h>

#include "base/file.h"
#include "small_drafter.h"
#include "temp_dir.h"

/* --- config.json ------------------------------------------------------------------------------ */

/* Of the shape of the published drafter for Qwen3-8B, in its older spelling. */
static const char published[] =
    "{'architectures': ['DFlashDraftModel'], 'auto_map': {'AutoModel': 'dflash.DFlashDraftModel'},"
    " 'model_type': 'qwen3', 'block_size': 16, 'dflash_config': {'mask_token_id': 151669,"
    " 'target_layer_ids': [1, 9, 17, 25, 33]}, 'num_target_layers': 36, 'num_hidden_layers': 5,"
    " 'hidden_size': 4096, 'intermediate_size': 12288, 'num_attention_heads': 32,"
    " 'num_key_value_heads': 8, 'head_dim': 128, 'hidden_act': 'silu', 'rms_norm_eps': 1e-06,"
    " 'rope_theta': 1000000, 'rope_scaling': null, 'max_position_embeddings': 40960,"
    " 'layer_types': ['full_attention', 'full_attention', 'full_attention', 'full_attention',"
    " 'full_attention'], 'sliding_window': null, 'use_sliding_window': false,"
    " 'max_window_layers': 5, 'attention_bias': false, 'attention_dropout': 0.0,"
    " 'initializer_range': 0.02, 'vocab_size': 151936, 'tie_word_embeddings': false,"
    " 'bos_token_id': 151643, 'eos_token_id': 151645, 'dtype': 'bfloat16', 'use_cache': true}";

/* JSON with ' for ". */
static json_t *parse(const char *text)
{
    char *copy = strdup(text);
    for (char *c = copy; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    json_t *o = json_loads(copy, JSON_DECODE_ANY, NULL);
    assert_non_null(o);
    free(copy);
    return o;
}

/* Members of `patch` replace those of `o`, objects member by member; null takes a member away. */
static void apply(json_t *o, json_t *patch)
{
    const char *key;
    json_t *v;
    json_object_foreach (patch, key, v) {
        if (json_is_null(v))
            json_object_del(o, key);
        else if (json_is_object(v) && json_is_object(json_object_get(o, key)))
            apply(json_object_get(o, key), v);
        else
            json_object_set(o, key, v);
    }
}

static enum cld_status read_patched(const char *dir, const char *patch, struct cld_drafter_file *f,
                                    struct cld_error *err)
{
    json_t *o = parse(published), *p = parse(patch);
    apply(o, p);
    char *path = cld_format("%s/config.json", dir);
    assert_int_equal(json_dump_file(o, path, 0), 0);
    free(path);
    json_decref(o);
    json_decref(p);
    return cld_drafter_config_read(dir, f, err);
}

static void a_published_config(void **state)
{
    struct cld_drafter_file f;
    const int taps[] = {1, 9, 17, 25, 33};
    OK(read_patched(*state, "{}", &f, &err));
    const struct cld_drafter_config *c = &f.config;
    assert_int_equal(c->n_layers, 5);
    assert_int_equal(c->hidden, 4096);
    assert_int_equal(c->n_heads, 32);
    assert_int_equal(c->n_kv_heads, 8);
    assert_int_equal(c->head_dim, 128);
    assert_int_equal(c->intermediate, 12288);
    assert_int_equal(c->vocab, 151936);
    assert_int_equal(c->block_size, 16);
    assert_int_equal(c->mask_token, 151669);
    assert_int_equal(c->n_taps, 5);
    assert_memory_equal(f.taps, taps, sizeof taps);
    assert_true(c->rms_norm_eps == 1e-6 && c->rope_theta == 1e6);
    assert_false(c->sliding[0] || c->sliding[4]);
    assert_int_equal(c->sliding_window, 0);
    assert_int_equal(f.n_target_layers, 36);
    assert_int_equal(f.max_positions, 40960);
    assert_int_equal(f.bos, 151643);
    assert_int_equal(f.eos, 151645);
    assert_int_equal(f.pad, -1);
    assert_false(f.tied);
}

#define SLIDING                                                                                    \
    "'layer_types': ['sliding_attention', 'sliding_attention', 'full_attention',"                  \
    " 'sliding_attention', 'full_attention'], 'sliding_window': 2048, 'use_sliding_window': true"
#define ALL_SLIDING                                                                                \
    "'layer_types': ['sliding_attention', 'sliding_attention', 'sliding_attention',"               \
    " 'sliding_attention', 'sliding_attention'], 'sliding_window': 2048,"                          \
    " 'use_sliding_window': true"

static void other_spellings(void **state)
{
    static const char *const same[] = {
        "{'block_size': null, 'dflash_config': {'block_size': 16}}",
        "{'dflash_config': {'block_size': 16, 'num_target_layers': 36}}",
        "{'num_target_layers': null, 'dflash_config': {'num_target_layers': 36}}",
        "{'mask_token_id': 151669, 'target_layer_ids': [1, 9, 17, 25, 33], 'dflash_config': null}",
        "{'rope_theta': null, 'rope_parameters': {'rope_theta': 1e6, 'rope_type': 'default'}}",
        "{'rope_parameters': {'rope_theta': 1000000.0, 'rope_type': 'default'}}",
        "{'rope_scaling': {'type': 'default'}}",
        "{'layer_types': null}",
        "{'is_causal': false}",
        "{'dflash_config': {'causal': false, 'use_swa': false, 'sample_from_anchor': false,"
        " 'input_embedding_scale': 1.0, 'final_logit_softcapping': null}}",
    };
    struct cld_drafter_file want, got;
    OK(read_patched(*state, "{}", &want, &err));
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        OK(read_patched(*state, same[i], &got, &err));
        got.config.sliding_causal = want.config.sliding_causal; /* of no meaning here */
        assert_memory_equal(&got, &want, sizeof got);
    }
}

static void causality_of_sliding_layers(void **state)
{
    static const struct {
        const char *patch;
        bool causal;
    } cases[] = {
        {"{" SLIDING "}", true},
        {"{" SLIDING ", 'dflash_config': {'swa_window_size': 2048}}", true},
        {"{" SLIDING ", 'dflash_config': {'sliding_causal': true}}", true},
        {"{" SLIDING ", 'dflash_config': {'sliding_causal': false}}", false},
        {"{" SLIDING ", 'is_causal': false}", false},
        {"{" SLIDING ", 'dflash_config': {'causal': false}}", false},
        {"{" SLIDING ", 'is_causal': false, 'dflash_config': {'sliding_causal': false}}", false},
        {"{" ALL_SLIDING ", 'is_causal': true}", true},
        {"{" ALL_SLIDING ", 'dflash_config': {'causal': true, 'use_swa': true}}", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cld_drafter_file f;
        OK(read_patched(*state, cases[i].patch, &f, &err));
        assert_int_equal(f.config.sliding_causal, cases[i].causal);
        assert_int_equal(f.config.sliding_window, 2048);
        assert_true(f.config.sliding[0] && f.config.sliding[3]);
    }
}

static void bad_configs(void **state)
{
    static const struct {
        const char *patch, *words;
    } cases[] = {
        {"{'block_size': null}", "missing key 'block_size'"},
        {"{'dflash_config': {'mask_token_id': null}}", "missing key 'mask_token_id'"},
        {"{'dflash_config': {'target_layer_ids': null}}", "missing key 'target_layer_ids'"},
        {"{'dflash_config': null}", "missing key 'mask_token_id'"},
        {"{'dflash_config': 3}", "not an object for key 'dflash_config'"},
        {"{'num_hidden_layers': null}", "missing key 'num_hidden_layers'"},
        {"{'hidden_size': null}", "missing key 'hidden_size'"},
        {"{'num_attention_heads': null}", "missing key 'num_attention_heads'"},
        {"{'num_key_value_heads': null}", "missing key 'num_key_value_heads'"},
        {"{'head_dim': null}", "missing key 'head_dim'"},
        {"{'intermediate_size': null}", "missing key 'intermediate_size'"},
        {"{'vocab_size': null}", "missing key 'vocab_size'"},
        {"{'rms_norm_eps': null}", "missing key 'rms_norm_eps'"},
        {"{'rope_theta': null}", "missing key 'rope_theta'"},
        {"{'rope_theta': null, 'rope_parameters': {}}", "missing key 'rope_theta'"},
        {"{'hidden_size': '4096'}", "hidden_size"},
        {"{'hidden_size': 4096.0}", "hidden_size"},
        {"{'num_hidden_layers': 65}", "num_hidden_layers"},
        {"{'num_hidden_layers': 4}", "not as many as layers in key 'layer_types'"},
        {"{'num_key_value_heads': 5}", "5 KV heads"},
        {"{'head_dim': 100}", "head_dim 100"},
        {"{'block_size': 65}", "block_size 65"},
        {"{'dflash_config': {'block_size': 8}}", "differ in key 'block_size'"},
        {"{'mask_token_id': 5}", "differ in key 'mask_token_id'"},
        {"{'target_layer_ids': [1]}", "differ in key 'target_layer_ids'"},
        {"{'dflash_config': {'num_target_layers': 35}}", "differ in key 'num_target_layers'"},
        {"{'dflash_config': {'mask_token_id': 151936}}", "out of range 'mask_token_id'"},
        {"{'dflash_config': {'mask_token_id': -1}}", "mask_token_id"},
        {"{'dflash_config': {'mask_token_id': 4294967297}}", "mask_token_id"},
        {"{'dflash_config': {'target_layer_ids': []}}", "target_layer_ids"},
        {"{'dflash_config': {'target_layer_ids': 3}}", "target_layer_ids"},
        {"{'dflash_config': {'target_layer_ids': [1, 9, 9]}}", "do not ascend"},
        {"{'dflash_config': {'target_layer_ids': [9, 1]}}", "do not ascend"},
        {"{'dflash_config': {'target_layer_ids': [1, 36]}}", "no layer of the target"},
        {"{'dflash_config': {'target_layer_ids': [1, 2.5]}}", "no layer of the target"},
        {"{'rope_parameters': {'rope_theta': 10000}}", "differs from the top level"},
        {"{'rope_scaling': {'rope_type': 'llama3', 'factor': 8}}", "rope_type 'llama3'"},
        {"{'rope_parameters': {'rope_theta': 1e6, 'rope_type': 'yarn'}}", "rope_type 'yarn'"},
        {"{'rope_parameters': {'partial_rotary_factor': 0.5}}", "partial_rotary_factor"},
        {"{'layer_types': ['full_attention']}", "layer_types"},
        {"{'layer_types': null, 'use_sliding_window': true}", "layer_types"},
        {"{'layer_types': ['full_attention', 'full_attention', 'full_attention',"
         " 'full_attention', 'linear_attention']}",
         "layer type 'linear_attention'"},
        {"{" ALL_SLIDING ", 'sliding_window': null, 'use_sliding_window': null}",
         "missing key 'sliding_window'"},
        {"{" SLIDING ", 'use_sliding_window': false}", "use_sliding_window"},
        {"{" SLIDING ", 'sliding_window': 15}", "window 15"},
        {"{" SLIDING ", 'dflash_config': {'swa_window_size': 4096}}", "swa_window_size"},
        {"{" SLIDING ", 'is_causal': true}", "true in key 'is_causal'"},
        {"{'dflash_config': {'causal': true}}", "true in key 'causal'"},
        {"{'dflash_config': {'use_swa': true}}", "true in key 'use_swa'"},
        {"{" SLIDING ", 'is_causal': false, 'dflash_config': {'sliding_causal': true}}",
         "sliding_causal"},
        {"{" ALL_SLIDING ", 'is_causal': true, 'dflash_config': {'causal': false}}", "is_causal"},
        {"{'hidden_act': 'gelu'}", "hidden_act"},
        {"{'attention_bias': true}", "attention_bias"},
        {"{'speculators_model_type': 'dflash'}", "transformer_layer_config"},
        {"{'quantization_config': {'bits': 4}}", "quantization_config"},
        {"{'sample_from_anchor': true, 'dflash_config': {'sample_from_anchor': false}}",
         "sample_from_anchor"},
        {"{'dflash_config': {'shift_label': true}}", "shift_label"},
        {"{'dflash_config': {'projector_type': 'gru'}}", "projector_type"},
        {"{'dflash_config': {'conv_kernel': 3}}", "conv_kernel"},
        {"{'dflash_config': {'tap_scale': 0.5}}", "tap_scale"},
        {"{'dflash_config': {'tap_norm': true}}", "tap_norm"},
        {"{'query_scaling': 2}", "query_scaling"},
        {"{'rope_parameters': {'rope_theta': 1000000, 'factor': 4.0}}", "factor"},
        {"{'rope_parameters': {'full_attention': {'rope_theta': 10000}}}", "rope_theta"},
        {"{'input_embedding_scale': 64.0}", "input_embedding_scale"},
        {"{'final_logit_softcapping': 30.0}", "final_logit_softcapping"},
        {"{'tie_word_embeddings': 'no'}", "tie_word_embeddings"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cld_drafter_file f;
        FAILS(read_patched(*state, cases[i].patch, &f, &err), CLD_E_INPUT, cases[i].words);
    }
}

static void no_config(void **state)
{
    struct cld_drafter_file f;
    char *path = cld_format("%s/config.json", (char *)*state);
    FAILS(cld_drafter_config_read(*state, &f, &err), CLD_E_INPUT, "config.json");
    OK(cld_file_write(path, "[1]", 3, &err));
    FAILS(cld_drafter_config_read(*state, &f, &err), CLD_E_INPUT, "not a JSON object");
    OK(cld_file_write(path, "{\n\"a\": 1,\n\"a\": 2}", 18, &err));
    FAILS(cld_drafter_config_read(*state, &f, &err), CLD_E_INPUT, "config.json:3");
    free(path);
}

static struct cld_drafter_file small_file(void)
{
    struct cld_drafter_file f;
    const struct cld_model_config target = {.n_layers = 6,
                                            .max_positions = 512,
                                            .tied = true,
                                            .bos = 1,
                                            .eos = {2},
                                            .n_eos = 1,
                                            .pad = -1};
    cld_drafter_file_make(&f, &small_config, (const int[]){1, 3}, &target, 0.03);
    return f;
}

/* What is written reads back as it was, whichever layers slide. */
static void config_round_trip(void **state)
{
    for (int k = 0; k < 4; k++) {
        struct cld_drafter_file f = small_file(), back;
        f.config.sliding_causal = k != 1;
        f.config.rope_theta = k == 2 ? 12345.678 : 1e6;
        f.config.rms_norm_eps = k == 2 ? 1.0 / 3 : 1e-6;
        if (k == 3) {
            f.config.sliding[0] = false;
            f.config.sliding_window = 0;
            f.n_target_layers = 0;
        }
        OK(cld_drafter_config_write(*state, &f, &err));
        OK(cld_drafter_config_read(*state, &back, &err));
        assert_memory_equal(&back, &f, sizeof f);
    }
}

static void config_says_both_spellings(void **state)
{
    char *path = cld_format("%s/config.json", (char *)*state);
    static const char *const keys[] = {"architectures",
                                       "model_type",
                                       "block_size",
                                       "dflash_config",
                                       "num_target_layers",
                                       "num_hidden_layers",
                                       "hidden_size",
                                       "intermediate_size",
                                       "num_attention_heads",
                                       "num_key_value_heads",
                                       "head_dim",
                                       "hidden_act",
                                       "rms_norm_eps",
                                       "rope_theta",
                                       "rope_scaling",
                                       "rope_parameters",
                                       "max_position_embeddings",
                                       "layer_types",
                                       "sliding_window",
                                       "use_sliding_window",
                                       "max_window_layers",
                                       "attention_bias",
                                       "attention_dropout",
                                       "initializer_range",
                                       "vocab_size",
                                       "tie_word_embeddings",
                                       "bos_token_id",
                                       "eos_token_id",
                                       "pad_token_id",
                                       "dtype",
                                       "torch_dtype",
                                       "use_cache"};
    struct cld_drafter_file f = small_file();
    OK(cld_drafter_config_write(*state, &f, &err));
    json_t *o = json_load_file(path, 0, NULL);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!json_object_get(o, keys[i]))
            fail_msg("no key %s", keys[i]);
    assert_null(json_object_get(o, "is_causal"));
    json_t *want = parse("{'block_size': 4, 'mask_token_id': 60, 'target_layer_ids': [1, 3],"
                         " 'num_target_layers': 6, 'sliding_causal': true,"
                         " 'sample_from_anchor': false}");
    assert_true(json_equal(json_object_get(o, "dflash_config"), want));
    json_decref(want);
    want = parse("{'rope_theta': 10000, 'rope_type': 'default'}");
    assert_true(json_equal(json_object_get(o, "rope_parameters"), want));
    assert_int_equal(json_integer_value(json_object_get(o, "sliding_window")), 9);
    json_decref(want);
    json_decref(o);

    f.config.sliding_causal = false; /* the one word that vLLM reads */
    OK(cld_drafter_config_write(*state, &f, &err));
    o = json_load_file(path, 0, NULL);
    assert_true(json_is_false(json_object_get(o, "is_causal")));
    assert_null(json_object_get(json_object_get(o, "dflash_config"), "causal"));
    json_decref(o);
    free(path);
}

static void differences_have_names(void **state)
{
    (void)state;
    struct cld_drafter_config a = small_config, b = a;
    OK(cld_drafter_config_same(&a, &b, "here", &err));
    b.block_size = 8;
    FAILS(cld_drafter_config_same(&a, &b, "here", &err), CLD_E_INPUT,
          "here: a drafter with block size 8, wanted is 4");
    b = a;
    b.rope_theta = 10001;
    FAILS(cld_drafter_config_same(&a, &b, "here", &err), CLD_E_INPUT, "rope_theta 10001");
    b = a;
    b.sliding[1] = true;
    FAILS(cld_drafter_config_same(&a, &b, "here", &err), CLD_E_INPUT, "layer 1 slides");
    b = a;
    b.sliding_causal = false;
    FAILS(cld_drafter_config_same(&a, &b, "here", &err), CLD_E_INPUT, "bidirectional");
}

/* --- weights ---------------------------------------------------------------------------------- */

static void fill_values(struct small *r)
{
    for (size_t i = 0; i < r->d.n_params; i++) {
        const struct cld_param *p = &r->d.params[i];
        size_t n = p->n_rows * p->n_cols;
        float *v = malloc(n * sizeof *v);
        for (size_t k = 0; k < n; k++)
            v[k] = (float)cld_random_normal(cld_random_u64(9, CLD_RANDOM_TEST, i, k, 0));
        OK(cld_drafter_set(&r->d, p, v, &err));
        free(v);
    }
}

static void weights_round_trip(void **state)
{
    char *file = cld_format("%s/model.safetensors", (char *)*state);
    struct small *a = open_small(&small_config, CLD_BF16), *b = open_small(&small_config, CLD_BF16);
    struct small *c = open_small(&small_config, CLD_F32);
    fill_values(a);
    OK(cld_drafter_write(&a->d, NULL, file, &err));
    OK(cld_drafter_load(&b->d, *state, &err)); /* a directory */
    OK(cld_drafter_load(&c->d, file, &err));   /* a file */
    assert_arena_equal(a, &a->d.weights, &b->d.weights, sizeof(uint16_t));
    assert_arena_equal(a, &b->d.master, &c->d.master, sizeof(float));
    assert_rounded(b);

    /* As others see it: names, types, shapes, metadata; nothing else. */
    struct cld_safetensors *st;
    const struct cld_safetensor *t;
    OK(cld_safetensors_open(file, &st, &err));
    assert_int_equal(cld_safetensors_n(st), 3 + 11 * 2);
    assert_string_equal(cld_safetensors_metadata(st, "format"), "pt");
    OK(cld_safetensors_expect(st, "fc.weight", CLD_DTYPE_BIT(CLD_BF16), 2, (const size_t[]){24, 48},
                              &t, &err));
    OK(cld_safetensors_expect(st, "layers.1.self_attn.k_norm.weight", CLD_DTYPE_BIT(CLD_BF16), 1,
                              (const size_t[]){8}, &t, &err));
    OK(cld_safetensors_expect(st, "layers.0.mlp.down_proj.weight", CLD_DTYPE_BIT(CLD_BF16), 2,
                              (const size_t[]){24, 40}, &t, &err));
    cld_safetensors_close(st);

    /* drafter.safetensors, as in a checkpoint, comes first. */
    char *ours = cld_format("%s/drafter.safetensors", (char *)*state);
    OK(cld_drafter_write(&c->d, NULL, ours, &err));
    OK(cld_file_write(file, "broken", 6, &err));
    OK(cld_drafter_load(&b->d, *state, &err));
    free(ours);
    free(file);
    close_small(a);
    close_small(b);
    close_small(c);
}

/* Writes a file with the drafter's tensors, with one change, and loads it. */
static enum cld_status load_changed(struct small *r, const char *path, const char *name,
                                    const char *new_name, size_t n_cols, enum cld_dtype type,
                                    struct cld_error *why)
{
    struct cld_safetensors_spec specs[32];
    struct cld_safetensors_writer *w;
    size_t n = 0;
    static const char zeros[1 << 16];
    for (size_t i = 0; i < r->d.n_params; i++) {
        const struct cld_param *p = &r->d.params[i];
        bool it = !strcmp(p->name, name);
        if (it && !new_name)
            continue;
        specs[n] = (struct cld_safetensors_spec){.name = it ? new_name : p->name,
                                                 .dtype = it ? type : CLD_BF16,
                                                 .n_dims = p->is_vector ? 1 : 2};
        specs[n].shape[0] = p->is_vector ? p->n_cols : p->n_rows;
        specs[n].shape[1] = p->n_cols;
        if (it && n_cols)
            specs[n].shape[specs[n].n_dims - 1] = n_cols;
        n++;
    }
    OK(cld_safetensors_begin(path, specs, n, NULL, 0, &w, &err));
    for (size_t i = 0; i < n; i++) {
        size_t n_bytes = cld_dtype_bytes(specs[i].dtype) * specs[i].shape[0] *
                         (specs[i].n_dims == 2 ? specs[i].shape[1] : 1);
        assert_true(n_bytes <= sizeof zeros);
        OK(cld_safetensors_put(w, i, zeros, n_bytes, &err));
    }
    OK(cld_safetensors_commit(w, &err));
    return cld_drafter_load(&r->d, path, why);
}

/* Writes the weights of `r` under the names of another trainer; spares are an embedding and a head.
 */
static void write_renamed(struct small *r, const char *path, const char *const (*names)[2],
                          const char *prefix, bool spares)
{
    struct cld_safetensors_spec specs[40];
    struct cld_safetensors_writer *w;
    char texts[40][96];
    size_t n = 0;
    for (size_t i = 0; i < r->d.n_params; i++) {
        const struct cld_param *p = &r->d.params[i];
        const char *name = p->name;
        for (size_t k = 0; names && names[k][0]; k++)
            name = !strcmp(name, names[k][0]) ? names[k][1] : name;
        snprintf(texts[n], sizeof texts[n], "%s%s", prefix, name);
        specs[n] = (struct cld_safetensors_spec){
            .name = texts[n], .dtype = CLD_F32, .n_dims = p->is_vector ? 1 : 2, .id = i};
        specs[n].shape[0] = p->is_vector ? p->n_cols : p->n_rows;
        specs[n++].shape[1] = p->n_cols;
    }
    for (int i = 0; i < 2 && spares; i++)
        specs[n++] =
            (struct cld_safetensors_spec){.name = i ? "lm_head.weight" : "embed_tokens.weight",
                                          .dtype = CLD_F32,
                                          .n_dims = 2,
                                          .shape = {r->d.config.vocab, r->d.config.hidden},
                                          .id = SIZE_MAX};
    OK(cld_safetensors_begin(path, specs, n, NULL, 0, &w, &err));
    for (size_t i = 0; i < n; i++) {
        static const float zeros[61 * 24];
        size_t id = specs[i].id;
        const struct cld_param *p = id == SIZE_MAX ? NULL : &r->d.params[id];
        float *v = p ? param_bits(&r->d.weights, p, sizeof *v) : NULL;
        size_t n_bytes = p ? p->n_rows * p->n_cols * sizeof *v : sizeof zeros;
        OK(cld_safetensors_put(w, i, p ? (void *)v : zeros, n_bytes, &err));
        free(v);
    }
    OK(cld_safetensors_commit(w, &err));
}

static void names_of_other_trainers(void **state)
{
    static const char *const torchspec[][2] = {{"fc.weight", "context_proj.weight"},
                                               {"hidden_norm.weight", "context_norm.weight"},
                                               {"norm.weight", "final_norm.weight"},
                                               {NULL, NULL}};
    char *path = cld_format("%s/model.safetensors", (char *)*state);
    struct small *a = open_small(&small_config, CLD_F32), *b = open_small(&small_config, CLD_F32);
    fill_values(a);
    for (int k = 0; k < 3; k++) {
        OK(cld_drafter_init(&b->d, 1, 0.02, &err));
        write_renamed(a, path, k == 1 ? torchspec : NULL, k == 2 ? "model." : "", k < 2);
        OK(cld_drafter_load(&b->d, *state, &err));
        assert_arena_equal(a, &a->d.weights, &b->d.weights, sizeof(float));
    }
    free(path);
    close_small(a);
    close_small(b);
}

/* --- the layout of speculators ---------------------------------------------------------------- */

/* Of the shape of Qwen3-8B's; what a Qwen3 configuration has anyway is left out, as they do. */
static const char speculators[] =
    "{'speculators_model_type': 'dflash', 'architectures': ['DFlashSpeculator'],"
    " 'transformer_layer_config': {'model_type': 'qwen3', 'num_hidden_layers': 5,"
    " 'intermediate_size': 12288, 'num_key_value_heads': 8, 'rope_theta': 1000000,"
    " 'max_position_embeddings': 40960}, 'draft_vocab_size': 151936, 'block_size': 16,"
    " 'target_hidden_size': 4096, 'aux_hidden_state_layer_ids': [2, 10, 18, 26, 34],"
    " 'mask_token_id': 151669, 'sliding_window_non_causal': false, 'sample_from_anchor': false,"
    " 'speculators_config': {'algorithm': 'dflash', 'proposal_methods':"
    " [{'proposal_type': 'greedy', 'speculative_tokens': 15}],"
    " 'default_proposal_method': 'greedy'}}";

static enum cld_status read_speculators(const char *dir, const char *patch,
                                        struct cld_drafter_file *f, struct cld_error *err)
{
    json_t *o = parse(speculators), *p = parse(patch);
    apply(o, p);
    char *path = cld_format("%s/config.json", dir);
    assert_int_equal(json_dump_file(o, path, 0), 0);
    free(path);
    json_decref(o);
    json_decref(p);
    return cld_drafter_config_read(dir, f, err);
}

static void speculators_is_the_published_drafter(void **state)
{
    struct cld_drafter_file want, got;
    OK(read_patched(*state, "{}", &want, &err));
    OK(read_speculators(*state, "{}", &got, &err));
    OK(cld_drafter_config_same(&want.config, &got.config, "speculators", &err));
    assert_memory_equal(want.taps, got.taps,
                        sizeof want.taps); /* counted from 0 here, from 1 there */
    OK(read_speculators(*state, "{'target_layer_ids': [1, 9, 17, 25, 33]}", &got, &err));
}

static void bad_speculators(void **state)
{
    static const struct {
        const char *patch, *words;
    } cases[] = {
        {"{'speculators_model_type': 'eagle3'}", "eagle3"},
        {"{'aux_hidden_state_layer_ids': null}", "aux_hidden_state_layer_ids"},
        {"{'aux_hidden_state_layer_ids': [2, 'x']}", "aux_hidden_state_layer_ids"},
        /* Taps that somebody forgot to shift. */
        {"{'target_layer_ids': [2, 10, 18, 26, 34]}", "target_layer_ids"},
        {"{'draft_vocab_size': 32000}", "draft_vocab_size is 32000"},
        {"{'target_hidden_size': 2048}", "target_hidden_size is 2048"},
        /* The block size, changed in one place only. */
        {"{'block_size': 8}", "speculative_tokens is 15, by block_size less one it is 7"},
        /* One token less than it drafts then. */
        {"{'sample_from_anchor': true}", "speculative_tokens"},
        {"{'mask_token_id': null}", "mask_token_id"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cld_drafter_file f;
        FAILS(read_speculators(*state, cases[i].patch, &f, &err), CLD_E_INPUT, cases[i].words);
    }
}

static void speculators_round_trip(void **state)
{
    for (int k = 0; k < 3; k++) { /* mixed and bidirectional, all causal, none slides */
        struct cld_drafter_file f = small_file(), back;
        f.config.sliding_causal = k == 1;
        f.config.sliding[1] = k == 1;
        f.config.sliding[0] = k != 2;
        f.config.sliding_window = k == 2 ? 0 : 9;
        OK(cld_speculators_write(*state, &f, "some/target", &err));
        OK(cld_drafter_config_read(*state, &back, &err));
        OK(cld_drafter_config_same(&f.config, &back.config, "back", &err));
        assert_memory_equal(f.taps, back.taps, sizeof f.taps);
    }
}

static void weights_that_do_not_fit(void **state)
{
    char *path = cld_format("%s/model.safetensors", (char *)*state);
    struct small *r = open_small(&small_config, CLD_F32);
    const char *norm = "layers.1.input_layernorm.weight", *wq = "layers.0.self_attn.q_proj.weight";
    fill_values(r);
    float *before = param_bits(&r->d.weights, r->d.fc, sizeof *before);
    FAILS(load_changed(r, path, norm, NULL, 0, CLD_BF16, &err), CLD_E_INPUT, norm);
    FAILS(load_changed(r, path, wq, wq, 25, CLD_BF16, &err), CLD_E_INPUT, wq);
    FAILS(load_changed(r, path, norm, norm, 0, CLD_I32, &err), CLD_E_INPUT, norm);
    FAILS(load_changed(r, path, norm, "model.norm.weight", 0, CLD_BF16, &err), CLD_E_INPUT,
          "'model.norm.weight' and 'norm.weight' are two names of one tensor");
    FAILS(load_changed(r, path, norm, "layers.2.input_layernorm.weight", 0, CLD_BF16, &err),
          CLD_E_INPUT, "layers.2.input_layernorm.weight");
    FAILS(load_changed(r, path, norm, "head.weight", 0, CLD_BF16, &err), CLD_E_INPUT,
          "'head.weight' is none of a drafter with 2 layers");
    /* A head may be there, but not in the place of something else. */
    FAILS(load_changed(r, path, norm, "lm_head.weight", 0, CLD_BF16, &err), CLD_E_INPUT, norm);
    FAILS(cld_drafter_load(&r->d, "tests/no-such", &err), CLD_E_INPUT, "tests/no-such");
    /* A refused file has changed nothing. */
    float *after = param_bits(&r->d.weights, r->d.fc, sizeof *after);
    assert_memory_equal(before, after, r->d.fc->n_rows * r->d.fc->n_cols * sizeof *after);
    OK(load_changed(r, path, norm, norm, 0, CLD_F32, &err)); /* any float type will do */
    free(after);
    after = param_bits(&r->d.weights, r->d.fc, sizeof *after);
    assert_memory_not_equal(before, after, r->d.fc->n_rows * r->d.fc->n_cols * sizeof *after);
    free(before);
    free(after);
    free(path);
    close_small(r);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, make_temp_dir, remove_temp_dir)
    const struct CMUnitTest tests[] = {
        TEST(a_published_config),
        TEST(other_spellings),
        TEST(causality_of_sliding_layers),
        TEST(bad_configs),
        TEST(no_config),
        TEST(config_round_trip),
        TEST(config_says_both_spellings),
        cmocka_unit_test(differences_have_names),
        TEST(weights_round_trip),
        TEST(names_of_other_trainers),
        TEST(speculators_is_the_published_drafter),
        TEST(bad_speculators),
        TEST(speculators_round_trip),
        TEST(weights_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
