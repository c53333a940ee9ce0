/* Stored features: what is put comes back, whatever is doubtful is refused, and who keeps which row
 * follows from the order of claims. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/checksum.h"
#include "base/log.h"
#include "data/feature_store.h"
#include "temp_dir.h"

enum { N_COLS = 3, N_ROWS = 3 };

static const struct cld_feature_identity identity = {.target_config = "c0ffee",
                                                     .tokenizer = "beef",
                                                     .layers = "0123",
                                                     .embedding = "4567",
                                                     .taps = "1,3",
                                                     .storage = "F32",
                                                     .type = CLD_F32,
                                                     .n_cols = N_COLS};

/* Three rows of 2, 3 and 5 tokens; the last is a held-out one. Features count up. */
static const int32_t ids[] = {7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const uint8_t mask[] = {1, 1, 1, 1, 1};
static const int32_t anchors[] = {0};
static const struct cld_document rows[N_ROWS] = {{ids, mask, 2, anchors, 1, NULL, 0, 0, false},
                                                 {ids + 2, mask, 3, anchors, 1, NULL, 1, 17, false},
                                                 {ids + 5, mask, 5, anchors, 1, NULL, 2, 17, true}};
static float features[10 * N_COLS];

/* The shard that a flush after the first put writes. */
static char *shard_of(const char *dir)
{
    return cld_format("%s/features-000000.safetensors", dir);
}

static enum cld_status open_store(const char *dir, enum cld_features_mode mode, double limit_gib,
                                  const struct cld_feature_identity *id,
                                  struct cld_feature_store **out, struct cld_error *err)
{
    struct cld_config cfg = {.path = NULL};
    cfg.features.mode = mode;
    cfg.features.dir = (char *)(uintptr_t)dir;
    cfg.features.limit_gib = limit_gib;
    return cld_feature_store_open(&cfg, id, out, err);
}

static struct cld_feature_store *must_open(const char *dir, enum cld_features_mode mode,
                                           double limit_gib)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_feature_store *f = NULL;
    if (open_store(dir, mode, limit_gib, &identity, &f, &err))
        fail_msg("%s", err.what);
    return f;
}

/* Opens DIR and reads all rows; what it says of the first failure. */
static enum cld_status read_all(const char *dir, const struct cld_feature_identity *id,
                                struct cld_error *err)
{
    struct cld_feature_store *f = NULL;
    float got[sizeof features / sizeof *features];
    size_t at = 0;
    enum cld_status s = open_store(dir, CLD_FEATURES_OFFLINE, 0, id, &f, err);
    for (size_t i = 0; i < N_ROWS && !s; i++) {
        s = cld_feature_store_read(f, &rows[i], got + at, err);
        at += rows[i].n * N_COLS;
    }
    cld_feature_store_close(f);
    if (!s)
        assert_memory_equal(got, features, sizeof features);
    return s;
}

static void claim_all(struct cld_feature_store *f, size_t number)
{
    struct cld_error err = CLD_ERROR_INIT;
    for (size_t i = 0; i < N_ROWS; i++)
        assert_int_equal(cld_feature_store_claim(f, &rows[i], number, &err), CLD_OK);
}

/* A store of the three rows in DIR/name. The caller frees the path. */
static char *make_store(const char *dir, const char *name)
{
    struct cld_error err = CLD_ERROR_INIT;
    char *path = cld_format("%s/%s", dir, name);
    struct cld_feature_store *f = must_open(path, CLD_FEATURES_HYBRID, 0);
    claim_all(f, 0);
    assert_int_equal(cld_feature_store_put(f, rows, N_ROWS, 0, features, &err), CLD_OK);
    assert_int_equal(cld_feature_store_flush(f, &err), CLD_OK);
    cld_feature_store_close(f);
    return path;
}

static void a_checksum_does_not_depend_on_pieces(void **state)
{
    (void)state;
    unsigned char bytes[131];
    struct cld_checksum c;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 37);
    cld_checksum_begin(&c);
    cld_checksum_add(&c, bytes, sizeof bytes);
    uint64_t whole = cld_checksum_end(&c);
    for (size_t cut = 0; cut <= sizeof bytes; cut++) {
        cld_checksum_begin(&c);
        cld_checksum_add(&c, bytes, cut);
        cld_checksum_add(&c, bytes + cut, sizeof bytes - cut);
        assert_true(cld_checksum_end(&c) == whole);
    }
    for (size_t i = 0; i < sizeof bytes * 8; i++) {
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
        cld_checksum_begin(&c);
        cld_checksum_add(&c, bytes, sizeof bytes);
        assert_true(cld_checksum_end(&c) != whole);
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
    }
    /* The padding of the last block is no content. */
    cld_checksum_begin(&c);
    cld_checksum_add(&c, "\0", 1);
    uint64_t one = cld_checksum_end(&c);
    cld_checksum_begin(&c);
    cld_checksum_add(&c, "\0\0", 2);
    assert_true(cld_checksum_end(&c) != one);
}

static void what_was_put_comes_back(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    char *path = make_store(*state, "whole");
    if (read_all(path, &identity, &err))
        fail_msg("%s", err.what);
    struct cld_feature_store *f = must_open(path, CLD_FEATURES_OFFLINE, 0);
    struct cld_document other = rows[0];
    float got[5 * N_COLS];
    other.row = 1;
    assert_int_equal(cld_feature_store_find(f, &other, 0), CLD_FEATURES_ABSENT);
    assert_int_equal(cld_feature_store_read(f, &other, got, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "row 1 of the train set"));
    /* Other tokens in the row than the store has, then fewer. */
    const int32_t changed[] = {7, 80};
    other = rows[0];
    other.ids = changed;
    assert_int_equal(cld_feature_store_read(f, &other, got, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "has token 8 at 1, this run's has 80"));
    other.n = 1;
    assert_int_equal(cld_feature_store_read(f, &other, got, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "has 2 tokens, this run's has 1"));
    cld_feature_store_close(f);
    free(path);
}

static void claims_go_by_their_order(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    char *path = cld_format("%s/claims", (char *)*state);
    struct cld_feature_store *f = must_open(path, CLD_FEATURES_HYBRID, 0);
    float got[5 * N_COLS];
    claim_all(f, 4);
    claim_all(f, 5);
    assert_int_equal(cld_feature_store_find(f, &rows[1], 4), CLD_FEATURES_MINE);
    assert_int_equal(cld_feature_store_find(f, &rows[1], 5), CLD_FEATURES_COMING);
    /* The one that did not claim keeps nothing. */
    assert_int_equal(cld_feature_store_put(f, rows, N_ROWS, 5, got, &err), CLD_OK);
    assert_int_equal(cld_feature_store_find(f, &rows[1], 5), CLD_FEATURES_COMING);
    assert_int_equal(cld_feature_store_put(f, rows, N_ROWS, 4, features, &err), CLD_OK);
    assert_int_equal(cld_feature_store_find(f, &rows[1], 5), CLD_FEATURES_HERE);
    /* From memory, then from the disk. */
    for (int i = 0; i < 2; i++) {
        memset(got, 0, sizeof got);
        assert_int_equal(cld_feature_store_read(f, &rows[2], got, &err), CLD_OK);
        assert_memory_equal(got, features + 5 * N_COLS, sizeof got);
        assert_int_equal(cld_feature_store_flush(f, &err), CLD_OK);
    }
    cld_feature_store_close(f);
    free(path);
}

static void a_store_has_one_writer(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    char *path = make_store(*state, "writers"), *left = cld_format("%s/features-000009.safetensors"
                                                                   ".tmp-1",
                                                                   path);
    struct cld_feature_store *f = must_open(path, CLD_FEATURES_HYBRID, 0), *other = NULL;
    assert_int_equal(open_store(path, CLD_FEATURES_HYBRID, 0, &identity, &other, &err),
                     CLD_E_USAGE);
    cld_feature_store_close(other);
    assert_int_equal(read_all(path, &identity, &err), CLD_OK); /* readers are welcome */
    cld_feature_store_close(f);
    /* What a dead writer left is no shard, and goes. */
    assert_int_equal(cld_file_write(left, "x", 1, &err), CLD_OK);
    assert_int_equal(read_all(path, &identity, &err), CLD_OK);
    assert_true(cld_file_exists(left));
    cld_feature_store_close(must_open(path, CLD_FEATURES_HYBRID, 0));
    assert_false(cld_file_exists(left));
    free(path);
    free(left);
}

/* The limit counts headers generously: with a limit for two rows, two are stored. */
static void a_full_store_takes_no_more(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    char *path = cld_format("%s/full", (char *)*state), *text = NULL;
    const size_t limit_bytes = 2 * 1024 + 5 * (N_COLS * sizeof(float) + sizeof(int32_t));
    size_t n_bytes = 0;
    struct cld_feature_store *f =
        must_open(path, CLD_FEATURES_HYBRID, (double)limit_bytes / 0x1p30);
    claim_all(f, 0);
    assert_int_equal(cld_feature_store_find(f, &rows[1], 0), CLD_FEATURES_MINE);
    assert_int_equal(cld_feature_store_find(f, &rows[2], 0), CLD_FEATURES_ABSENT);
    assert_int_equal(cld_feature_store_put(f, rows, N_ROWS, 0, features, &err), CLD_OK);
    assert_int_equal(cld_feature_store_flush(f, &err), CLD_OK);
    assert_int_equal(cld_feature_store_counts(f).n_rows, 2);
    cld_feature_store_close(f);
    char *shard = shard_of(path);
    assert_int_equal(cld_file_read(shard, 0, &text, &n_bytes, &err), CLD_OK);
    assert_true(n_bytes <= limit_bytes);
    free(shard);
    free(text);
    free(path);
}

static void another_origin_is_refused_by_name(void **state)
{
    char *path = make_store(*state, "origin");
    const struct {
        const char *key, *there, *here;
        size_t offset;
    } fields[] = {
        {"target_config", "c0ffee", "x", offsetof(struct cld_feature_identity, target_config)},
        {"tokenizer", "beef", "x", offsetof(struct cld_feature_identity, tokenizer)},
        {"target_layers", "0123", "x", offsetof(struct cld_feature_identity, layers)},
        {"target_embedding", "4567", "x", offsetof(struct cld_feature_identity, embedding)},
        {"taps", "1,3", "x", offsetof(struct cld_feature_identity, taps)},
        {"storage", "F32", "x", offsetof(struct cld_feature_identity, storage)},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        struct cld_error err = CLD_ERROR_INIT;
        struct cld_feature_identity other = identity;
        char words[96];
        strcpy((char *)&other + fields[i].offset, fields[i].here);
        assert_int_equal(read_all(path, &other, &err), CLD_E_INPUT);
        snprintf(words, sizeof words, "its %s is %s, this run's is %s", fields[i].key,
                 fields[i].there, fields[i].here);
        if (!strstr(err.what, words))
            fail_msg("'%s' is not in: %s", words, err.what);
    }
    /* A target without layers, and ready ids: the rest is compared. */
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_feature_identity open = identity;
    open.layers[0] = open.tokenizer[0] = 0;
    assert_int_equal(read_all(path, &open, &err), CLD_OK);
    free(path);
}

/* Not by cld_file_write: nothing here need survive a crash. */
static void overwrite(const char *path, const char *bytes, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void damage_is_never_used(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    char *path = make_store(*state, "damaged"), *shard = shard_of(path), *text = NULL;
    size_t n = 0;
    assert_int_equal(cld_file_read(shard, 0, &text, &n, &err), CLD_OK);
    for (size_t i = 0; i < n; i++) { /* every byte, one bit of it */
        text[i] ^= 1;
        overwrite(shard, text, n);
        if (read_all(path, &identity, &err) != CLD_E_INPUT)
            fail_msg("byte %zu of %zu may be wrong without an error", i, n);
        text[i] ^= 1;
    }
    for (size_t i = 0; i < n; i += 7) { /* cut */
        overwrite(shard, text, i);
        assert_int_equal(read_all(path, &identity, &err), CLD_E_INPUT);
    }
    overwrite(shard, text, n);
    assert_int_equal(read_all(path, &identity, &err), CLD_OK);
    free(text);
    free(shard);
    free(path);
}

static int set_up(void **state)
{
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        features[i] = (float)i;
    cld_log_set_level(CLD_LOG_ERROR);
    return make_temp_dir(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checksum_does_not_depend_on_pieces),
        cmocka_unit_test(what_was_put_comes_back),
        cmocka_unit_test(claims_go_by_their_order),
        cmocka_unit_test(a_store_has_one_writer),
        cmocka_unit_test(a_full_store_takes_no_more),
        cmocka_unit_test(another_origin_is_refused_by_name),
        cmocka_unit_test(damage_is_never_used),
    };
    return cmocka_run_group_tests(tests, set_up, remove_temp_dir);
}
