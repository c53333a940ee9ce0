/* Checksums of tensors as they are read: whatever the pieces, and of several readers once. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "formats/safetensors.h"

#include "temp_dir.h"

enum { ROWS = 1500, COLS = 1024, SMALL = 7 }; /* 3 MB of BF16: more than a block, and not whole */

/* A file of tensors "a" [ROWS, COLS] and "b" [SMALL]; the value at `at` of each is `value`. */
static char *write_file(const char *dir, const char *name, enum cld_dtype dtype, size_t at,
                        float value)
{
    struct cld_error err = CLD_ERROR_INIT;
    char *path = cld_format("%s/%s", dir, name);
    struct cld_safetensors_spec specs[2] = {
        {.name = "a", .dtype = dtype, .n_dims = 2, .shape = {ROWS, COLS}},
        {.name = "b", .dtype = dtype, .n_dims = 1, .shape = {SMALL}}};
    struct cld_safetensors_writer *w = NULL;
    size_t bytes = cld_dtype_bytes(dtype);
    char *data = calloc(ROWS * COLS, bytes);
    for (size_t i = 0; i < ROWS * COLS; i++) {
        float f = i == at ? value : (float)(i % 97) - 40;
        uint16_t h = cld_f32_to_bf16(f);
        memcpy(data + i * bytes, dtype == CLD_F32 ? (const void *)&f : &h, bytes);
    }
    assert_int_equal(cld_safetensors_begin(path, specs, 2, NULL, 0, &w, &err), CLD_OK);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(cld_safetensors_put(w, i, data,
                                             (specs[i].n_dims == 2 ? ROWS * COLS : SMALL) * bytes,
                                             &err),
                         CLD_OK);
    assert_int_equal(cld_safetensors_commit(w, &err), CLD_OK);
    free(data);
    return path;
}

/* Reads "a" in pieces of so many rows; what _finite says. */
static enum cld_status read_rows(const char *path, size_t n, enum cld_dtype as,
                                 struct cld_tensor_sums *sums, struct cld_error *err)
{
    struct cld_safetensors *st = NULL;
    char *to = malloc(ROWS * COLS * sizeof(float));
    assert_int_equal(cld_safetensors_open(path, &st, err), CLD_OK);
    cld_safetensors_watch(st, sums);
    const struct cld_safetensor *a = cld_safetensors_find(st, "a");
    for (size_t at = 0; at < ROWS; at += n)
        assert_int_equal(
            cld_safetensors_read_rows(st, a, at, n < ROWS - at ? n : ROWS - at, as, to, err),
            CLD_OK);
    enum cld_status s = cld_safetensors_finite(st, a, err);
    cld_safetensors_close(st);
    free(to);
    return s;
}

static uint64_t sum_of(const char *path, size_t n, enum cld_dtype as)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_tensor_sums *sums = NULL;
    uint64_t sum;
    assert_int_equal(cld_tensor_sums_new(&sums, &err), CLD_OK);
    assert_int_equal(read_rows(path, n, as, sums, &err), CLD_OK);
    assert_true(cld_tensor_sums_get(sums, "a", &sum));
    cld_tensor_sums_free(sums);
    return sum;
}

static void depend_on_bytes_alone(void **state)
{
    char *path = write_file(*state, "one", CLD_BF16, SIZE_MAX, 0);
    char *other = write_file(*state, "other", CLD_BF16, ROWS * COLS - 1, 7);
    char *wide = write_file(*state, "wide", CLD_F32, SIZE_MAX, 0);
    uint64_t whole = sum_of(path, ROWS, CLD_BF16);
    assert_true(whole == sum_of(path, 1, CLD_BF16));
    assert_true(whole == sum_of(path, 511, CLD_BF16));
    assert_true(whole == sum_of(path, 700, CLD_F32)); /* what is read into does not matter */
    assert_true(whole != sum_of(other, ROWS, CLD_BF16));
    assert_true(whole != sum_of(wide, ROWS, CLD_F32));
    assert_true(sum_of(wide, ROWS, CLD_BF16) == sum_of(wide, 3, CLD_F32));
    free(path);
    free(other);
    free(wide);
}

static void are_of_whole_tensors(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_tensor_sums *sums = NULL;
    struct cld_safetensors *one = NULL, *two = NULL;
    char *path = write_file(*state, "one", CLD_BF16, SIZE_MAX, 0);
    uint16_t *to = malloc(ROWS * COLS * sizeof *to);
    uint64_t sum, prefix;
    assert_int_equal(cld_tensor_sums_new(&sums, &err), CLD_OK);
    assert_int_equal(cld_safetensors_open(path, &one, &err), CLD_OK);
    assert_int_equal(cld_safetensors_open(path, &two, &err), CLD_OK);
    cld_safetensors_watch(one, sums);
    cld_safetensors_watch(two, sums);
    const struct cld_safetensor *a = cld_safetensors_find(one, "a"),
                                *b = cld_safetensors_find(two, "a");
    assert_int_equal(cld_safetensors_read_rows(one, a, 5, 10, CLD_BF16, to, &err), CLD_OK);
    assert_int_equal(cld_safetensors_read_rows(one, a, 0, 10, CLD_BF16, to, &err), CLD_OK);
    assert_int_equal(cld_safetensors_read(two, b, CLD_BF16, to, &err), CLD_OK); /* one has it */
    assert_false(cld_tensor_sums_get(sums, "a", &sum));
    assert_false(cld_tensor_sums_of(sums, "", &sum));
    assert_int_equal(cld_safetensors_read_rows(one, a, 10, ROWS - 10, CLD_BF16, to, &err), CLD_OK);
    assert_true(cld_tensor_sums_get(sums, "a", &sum));
    assert_true(sum == sum_of(path, ROWS, CLD_BF16));
    assert_true(cld_tensor_sums_of(sums, "", &prefix) && prefix != sum);
    assert_false(cld_tensor_sums_of(sums, "model.", &prefix));
    cld_safetensors_close(one);
    cld_safetensors_close(two);
    cld_tensor_sums_free(sums);
    free(to);
    free(path);
}

static void name_what_is_not_finite(void **state)
{
    const struct {
        enum cld_dtype dtype;
        size_t at, rows;
        float value;
        const char *says;
    } cases[] = {
        {CLD_BF16, 0, ROWS, NAN, "row 0, column 0"},
        {CLD_BF16, 3 * COLS + 5, 1, INFINITY, "row 3, column 5"},
        {CLD_BF16, ROWS * COLS - 1, 700, -INFINITY, "row 1499, column 1023"},
        {CLD_F32, 1200 * COLS + 17, ROWS, NAN, "row 1200, column 17"},
        {CLD_F32, 9, 4, 3e38f, NULL},
        {CLD_BF16, 9, 4, 3e38f, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int as = 0; as < 2; as++) {
            struct cld_error err = CLD_ERROR_INIT;
            struct cld_tensor_sums *sums = NULL;
            char *path = write_file(*state, "one", cases[i].dtype, cases[i].at, cases[i].value);
            assert_int_equal(cld_tensor_sums_new(&sums, &err), CLD_OK);
            assert_int_equal(read_rows(path, cases[i].rows, as ? CLD_F32 : CLD_BF16, sums, &err),
                             cases[i].says ? CLD_E_INPUT : CLD_OK);
            if (cases[i].says &&
                (!strstr(err.what, cases[i].says) || !strstr(err.what, "tensor a")))
                fail_msg("case %zu: %s", i, err.what);
            cld_tensor_sums_free(sums);
            free(path);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(depend_on_bytes_alone, make_temp_dir, remove_temp_dir),
        cmocka_unit_test_setup_teardown(are_of_whole_tensors, make_temp_dir, remove_temp_dir),
        cmocka_unit_test_setup_teardown(name_what_is_not_finite, make_temp_dir, remove_temp_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
