/* Hidden states as other programs write them become stored features: the same bits, of the rows and
 * layers that they say; what does not fit is refused by both its numbers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "data/feature_store.h"
#include "data/feed.h"
#include "formats/safetensors.h"
#include "model/identify_features.h"
#include "model/target.h"
#include "train/features_import.h"
#include "temp_dir.h"
#include "ops/tensor_io.h"
#include "test_device.h"
#include "must.h"

enum { ROWS = 3, LAYERS = 6, MAX_TOKENS = 64 };

struct rig {
    char *dir, *store, *soft_store, *rows;
    struct cld_config cfg, soft;
    size_t hidden;
    int32_t ids[ROWS][MAX_TOKENS];
    size_t n[ROWS];
    float *states[ROWS]; /* [n, LAYERS, hidden]: outputs of all layers */
};
static struct rig *r;

static char *fresh_dir(void)
{
    void *path = NULL;
    assert_int_equal(make_temp_dir(&path), 0);
    return path;
}

static void drop_dir(char *dir)
{
    void *path = dir;
    assert_int_equal(remove_temp_dir(&path), 0);
}

static void configure(const char *store, const char *objective, struct cld_config *cfg)
{
    char train[300], dir[300], what[64];
    snprintf(train, sizeof train, "data.train=%s", r->rows);
    snprintf(dir, sizeof dir, "features.dir=%s", store);
    snprintf(what, sizeof what, "train.objective=%s", objective);
    const char *const sets[] = {train,
                                dir,
                                what,
                                "runtime.precision=fp32",
                                "data.max_length=64",
                                "data.heldout=none",
                                "features.mode=offline"};
    OK(cld_config_load("configs/tiny.ini", sets, sizeof sets / sizeof *sets, cfg, &err));
}

/* Outputs of all layers of the tiny target. */
static void run_target(size_t row)
{
    struct cld_model_config config;
    struct cld_target t;
    int taps[LAYERS], positions[MAX_TOKENS], doc[MAX_TOKENS] = {0};
    struct cld_queue *q = open_queue(CLD_KERNEL_FAMILY_CPU);
    struct cld_plan *plan = cld_plan_new();
    for (int i = 0; i < LAYERS; i++)
        taps[i] = i;
    for (int i = 0; i < MAX_TOKENS; i++)
        positions[i] = i;
    const struct cld_target_options options = {
        .n_tokens = MAX_TOKENS, .n_positions = MAX_TOKENS, .taps = taps, .n_taps = LAYERS};
    OK(cld_model_config_read("examples/tiny", &config, &err));
    assert_int_equal(config.n_layers, LAYERS);
    r->hidden = config.hidden;
    OK(cld_target_describe(&t, &config, &options, q, plan, &err));
    OK(cld_plan_create(plan, q, &err));
    OK(cld_target_load(&t, "examples/tiny", &err));
    OK(cld_target_forward(&t, r->ids[row], positions, doc, r->n[row], &err));
    r->states[row] = malloc(r->n[row] * LAYERS * r->hidden * sizeof(float));
    OK(cld_tensor_read(&t.taps, 0, r->n[row], r->states[row], &err));
    cld_plan_free(plan);
    cld_queue_close(q);
    cld_target_free(&t);
}

/* hs_I of a row, with the states of these layers (outputs), as `type`; token `wrong` is another. */
static void write_file(const char *dir, size_t row, const size_t *layers, size_t n_layers,
                       enum cld_dtype type, size_t wrong)
{
    size_t n = r->n[row], h = r->hidden;
    char path[300];
    struct cld_safetensors_spec specs[2] = {{"hidden_states", type, 3, {n, n_layers, h}, 0},
                                            {"token_ids", CLD_I64, 1, {n}, 1}};
    struct cld_safetensors_writer *w = NULL;
    float *states = calloc(n * n_layers * h, sizeof *states);
    uint16_t *halves = calloc(n * n_layers * h, sizeof *halves);
    int64_t *ids = calloc(n, sizeof *ids);
    for (size_t p = 0; p < n; p++) {
        ids[p] = r->ids[row][p] + (p == wrong);
        for (size_t i = 0; i < n_layers; i++)
            memcpy(states + (p * n_layers + i) * h, r->states[row] + (p * LAYERS + layers[i]) * h,
                   h * sizeof *states);
    }
    for (size_t i = 0; i < n * n_layers * h; i++)
        halves[i] = cld_f32_to_bf16(states[i]);
    snprintf(path, sizeof path, "%s/hs_%zu.safetensors", dir, row);
    OK(cld_safetensors_begin(path, specs, 2, NULL, 0, &w, &err));
    for (size_t i = 0; i < 2; i++) {
        const void *from = specs[i].id        ? (const void *)ids
                           : type == CLD_BF16 ? (const void *)halves
                                              : states;
        size_t elems = specs[i].id ? n : n * n_layers * h;
        OK(cld_safetensors_put(w, i, from, elems * cld_dtype_bytes(specs[i].dtype), &err));
    }
    OK(cld_safetensors_commit(w, &err));
    free(states);
    free(halves);
    free(ids);
}

static const size_t own[] = {1, 3, 4, 5}; /* taps 1, 3, 4 and the last layer */
static const size_t said[] = {2, 4, 5};   /* as the writer counts them */

static void write_all(void)
{
    for (size_t i = 0; i < ROWS; i++)
        write_file(r->dir, i, own, 4, CLD_F32, SIZE_MAX);
}

static enum cld_status import(const struct cld_config *cfg, const size_t *layers, size_t n,
                              bool unchecked, struct cld_features_imported *got,
                              struct cld_error *err)
{
    const struct cld_features_import x = {
        .dir = r->dir, .layers = layers, .n_layers = n, .unchecked = unchecked, .device = &cpu};
    return cld_features_import(cfg, &x, got, err);
}

static void imported_features_are_those_of_the_files(void **state)
{
    (void)state;
    struct cld_features_imported got;
    write_all();
    for (int soft = 0; soft < 2; soft++) {
        const struct cld_config *cfg = soft ? &r->soft : &r->cfg;
        struct cld_feed *feed = NULL;
        struct cld_setup setup;
        struct cld_feature_identity id;
        struct cld_feature_store *store = NULL;
        int64_t mask = -1;
        size_t n_states = soft ? 4 : 3;
        OK(import(cfg, said, 3, false, &got, &err));
        assert_int_equal(got.n_imported, ROWS);
        assert_int_equal(got.n_missing, 0);
        OK(import(cfg, said, 3, true, &got, &err)); /* again: nothing is left to do */
        assert_int_equal(got.n_imported, 0);
        assert_int_equal(got.n_there, ROWS);
        /* As an offline run opens it. */
        OK(cld_feed_open(cfg, &feed, &err));
        OK(cld_feed_mask_token(feed, &mask, &err));
        OK(cld_setup_read(cfg, mask, &setup, &err));
        assert_int_equal(setup.n_features, n_states);
        OK(cld_feature_identity_make(cfg, &setup, cld_feed_tokenizer_hash(feed), &id, &err));
        OK(cld_feature_store_open(cfg, &id, &store, &err));
        for (size_t i = 0; i < ROWS; i++) {
            struct cld_document d = {.ids = r->ids[i], .n = r->n[i], .row = i};
            float *features = malloc(r->n[i] * n_states * r->hidden * sizeof *features);
            OK(cld_feature_store_read(store, &d, features, &err));
            for (size_t p = 0; p < r->n[i]; p++)
                for (size_t k = 0; k < n_states; k++)
                    assert_memory_equal(features + (p * n_states + k) * r->hidden,
                                        r->states[i] + (p * LAYERS + own[k]) * r->hidden,
                                        r->hidden * sizeof *features);
            free(features);
        }
        cld_feature_store_close(store);
        cld_feed_close(feed);
    }
}

static void layers_that_are_not_the_taps(void **state)
{
    (void)state;
    struct cld_features_imported got;
    const size_t unshifted[] = {1, 3, 4}, order[] = {4, 2, 5}, fewer[] = {2, 4};
    write_all();
    FAILS(import(&r->cfg, unshifted, 3, true, &got, &err), CLD_E_USAGE,
          "--layers has layer 1, the output of layer 0, where target.taps has 1");
    FAILS(import(&r->cfg, order, 3, true, &got, &err), CLD_E_USAGE,
          "--layers has layer 4, the output of layer 3, where target.taps has 1");
    FAILS(import(&r->cfg, fewer, 2, true, &got, &err), CLD_E_USAGE,
          "--layers has 2 layers, target.taps has 3");
}

static void refused(const char *words, bool unchecked)
{
    struct cld_config cfg;
    struct cld_features_imported got;
    char *fresh = fresh_dir();
    configure(fresh, "static", &cfg);
    FAILS(import(&cfg, said, 3, unchecked, &got, &err), CLD_E_INPUT, words);
    cld_config_free(&cfg);
    drop_dir(fresh);
}

static void files_that_are_not_what_they_should_be(void **state)
{
    (void)state;
    static const size_t shifted[] = {0, 2, 3, 5}, swapped[] = {3, 1, 4, 5};
    write_all();
    write_file(r->dir, 0, own, 3, CLD_F32, SIZE_MAX);
    refused("wanted is [40 or more, 4, ", true); /* the last state is missing */
    write_file(r->dir, 0, own, 4, CLD_BF16, SIZE_MAX);
    refused("hidden_states is BF16, runtime.precision is F32", true);
    write_file(r->dir, 0, own, 4, CLD_F32, 7);
    refused("token 7 is ", true);
    write_file(r->dir, 0, shifted, 4, CLD_F32, SIZE_MAX);
    refused("state 0 is the output of layer 0 (off by 0), by --layers and target.taps it would be "
            "that of layer 1",
            false);
    write_file(r->dir, 0, swapped, 4, CLD_F32, SIZE_MAX);
    refused("state 0 is the output of layer 3", false);
    float *one = &r->states[0][(5 * LAYERS + own[1]) * r->hidden], cached = *one;
    *one = NAN;
    write_file(r->dir, 0, own, 4, CLD_F32, SIZE_MAX);
    refused("token 5 has a value that is no number", true);
    *one = cached;
    for (size_t i = 0; i < r->n[0] * LAYERS * r->hidden; i++)
        r->states[0][i] = -r->states[0][i];
    write_file(r->dir, 0, own, 4, CLD_F32, SIZE_MAX);
    refused("state 0 is like no layer of the target", false);
    for (size_t i = 0; i < r->n[0] * LAYERS * r->hidden; i++)
        r->states[0][i] = -r->states[0][i];
    for (size_t i = 0; i < ROWS; i++) {
        char path[300];
        snprintf(path, sizeof path, "%s/hs_%zu.safetensors", r->dir, i);
        remove(path);
    }
    refused("no file for any of the 3 rows", true);
}

static int set_up(void **state)
{
    if (find_cpu(state))
        return -1;
    r = calloc(1, sizeof *r);
    r->dir = fresh_dir();
    r->store = fresh_dir();
    r->soft_store = fresh_dir();
    r->rows = malloc(300);
    snprintf(r->rows, 300, "%s/rows.jsonl", r->dir);
    FILE *f = fopen(r->rows, "w");
    for (size_t i = 0; i < ROWS; i++) {
        r->n[i] = 40 + 5 * i;
        for (size_t p = 0; p < r->n[i]; p++) {
            r->ids[i][p] = (int32_t)((i * 131 + p * p * 7) % 900);
            fprintf(f, "%s%d", p ? "," : "{\"input_ids\": [", r->ids[i][p]);
        }
        for (size_t p = 0; p < r->n[i]; p++)
            fprintf(f, "%s%d", p ? "," : "], \"loss_mask\": [", p > 9 && p < 30);
        fprintf(f, "]}\n");
    }
    fclose(f);
    for (size_t i = 0; i < ROWS; i++)
        run_target(i);
    configure(r->store, "static", &r->cfg);
    configure(r->soft_store, "soft", &r->soft);
    return 0;
}

static int tear_down(void **state)
{
    for (size_t i = 0; i < ROWS; i++)
        free(r->states[i]);
    cld_config_free(&r->cfg);
    cld_config_free(&r->soft);
    drop_dir(r->dir);
    drop_dir(r->store);
    drop_dir(r->soft_store);
    free(r->rows);
    free(r);
    return close_devices(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(imported_features_are_those_of_the_files),
        cmocka_unit_test(layers_that_are_not_the_taps),
        cmocka_unit_test(files_that_are_not_what_they_should_be),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
