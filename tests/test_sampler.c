/* Order of rows, packing and anchors: permutations, budgets, uniformity, resumability. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "data/sampler.h"

static void an_epoch_is_a_permutation(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 17, 256, 257, 1000};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        uint64_t n = sizes[k];
        unsigned char *seen = calloc(n, 1);
        size_t n_same_epoch = 0, n_same_seed = 0;
        assert_non_null(seen);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t r = cld_sample_order(42, 3, n, i);
            assert_true(r < n);
            assert_int_equal(seen[r]++, 0);
            n_same_epoch += r == cld_sample_order(42, 4, n, i);
            n_same_seed += r == cld_sample_order(43, 3, n, i);
        }
        if (n >= 256) { /* two random permutations agree in one place on average */
            assert_true(n_same_epoch < 12);
            assert_true(n_same_seed < 12);
        }
        free(seen);
    }
}

/* Every row is as likely to come first: 4000 draws of 8, 500 each on average, 6 sigma is 126. */
static void the_order_is_fair(void **state)
{
    (void)state;
    size_t first[8] = {0};
    for (uint64_t epoch = 0; epoch < 4000; epoch++)
        first[cld_sample_order(7, epoch, 8, 0)]++;
    for (size_t i = 0; i < 8; i++)
        assert_in_range(first[i], 374, 626);
}

static void anchors_follow_the_rule(void **state)
{
    (void)state;
    static const uint8_t mask[] = {1, 1, 0, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1};
    static const int32_t all[] = {0, 6, 7, 8, 11};
    int32_t out[sizeof mask], again[sizeof mask];
    size_t n = sizeof mask;
    assert_int_equal(cld_sample_anchors(1, 2, 3, mask, n, SIZE_MAX, out), 5);
    assert_memory_equal(out, all, sizeof all);
    assert_int_equal(cld_sample_anchors(1, 2, 3, mask, 0, 4, out), 0);
    assert_int_equal(cld_sample_anchors(1, 2, 3, mask, 1, 4, out), 0); /* no next position */
    assert_int_equal(cld_sample_anchors(1, 2, 3, mask, n, 0, out), 0);
    size_t taken[sizeof mask] = {0}, pairs = 0;
    for (uint64_t row = 0; row < 5000; row++) {
        assert_int_equal(cld_sample_anchors(1, 2, row, mask, n, 2, out), 2);
        assert_int_equal(cld_sample_anchors(1, 2, row, mask, n, 2, again), 2);
        assert_memory_equal(out, again, 2 * sizeof *out);
        assert_true(out[0] < out[1]);
        taken[out[0]]++;
        taken[out[1]]++;
        pairs += out[0] == 0 && out[1] == 11;
    }
    for (size_t i = 0; i < 5; i++) /* 2 of 5: 2000 each, 6 sigma is 208 */
        assert_in_range(taken[all[i]], 1792, 2208);
    assert_in_range(pairs, 373, 627); /* one pair of ten */
    /* another seed, epoch or row draws otherwise */
    uint8_t ones[200];
    int32_t a[10], b[10];
    memset(ones, 1, sizeof ones);
    assert_int_equal(cld_sample_anchors(1, 2, 3, ones, 200, 10, a), 10);
    assert_int_equal(cld_sample_anchors(2, 2, 3, ones, 200, 10, b), 10);
    assert_memory_not_equal(a, b, sizeof a);
    cld_sample_anchors(1, 3, 3, ones, 200, 10, b);
    assert_memory_not_equal(a, b, sizeof a);
    cld_sample_anchors(1, 2, 4, ones, 200, 10, b);
    assert_memory_not_equal(a, b, sizeof a);
}

/* Rows of 2 to 21 tokens whose ids tell the row. */
static struct cld_dataset *varied(size_t n_rows)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_dataset *d = NULL;
    struct cld_dataset_options options = {
        .max_length = 32, .n_vocab = 1000, .history = CLD_HISTORY_FAIL, .bad_row_fatal = true};
    char path[] = "/tmp/cldraft-test-XXXXXX";
    const char *paths = path;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *out = fdopen(fd, "w");
    assert_non_null(out);
    for (size_t r = 0; r < n_rows; r++) {
        size_t n = 2 + r * 7 % 20;
        fprintf(out, "{\"input_ids\": [%zu", r);
        for (size_t i = 1; i < n; i++)
            fprintf(out, ", %zu", r);
        fprintf(out, "], \"loss_mask\": [1");
        for (size_t i = 1; i < n; i++)
            fprintf(out, ", 1");
        fprintf(out, "]}\n");
    }
    fclose(out);
    if (cld_dataset_load(&paths, 1, &options, &d, &err))
        fail_msg("%s", err.what);
    unlink(path);
    return d;
}

static void rows_without_packing(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_dataset *d = varied(30);
    struct cld_sampler *s = NULL;
    struct cld_sample sample;
    size_t seen[30] = {0};
    assert_int_equal(cld_sampler_new(d, 42, 0, &s, &err), CLD_OK);
    for (uint64_t p = 0; p < 60; p++) {
        assert_int_equal(cld_sampler_at(s, p, &sample, &err), CLD_OK);
        assert_int_equal(sample.epoch, p / 30);
        assert_int_equal(sample.n_rows, 1);
        assert_int_equal(sample.rows[0], cld_sample_order(42, p / 30, 30, p % 30));
        assert_int_equal(sample.n_tokens, cld_dataset_row(d, sample.rows[0]).n);
        seen[sample.rows[0]]++;
    }
    for (size_t i = 0; i < 30; i++)
        assert_int_equal(seen[i], 2);
    cld_sampler_free(s);
    cld_dataset_free(d);
}

static void packed_rows(void **state)
{
    (void)state;
    enum { N = 100, LENGTH = 40, POSITIONS = 70 };
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_dataset *d = varied(N);
    struct cld_sampler *s = NULL, *other = NULL;
    struct cld_sample sample;
    size_t seen[N] = {0}, n_tokens = 0, n_bins = 0;
    size_t first_of[POSITIONS], n_of[POSITIONS];
    assert_int_equal(cld_sampler_new(d, 42, 10, &s, &err), CLD_E_USAGE);
    assert_int_equal(cld_sampler_new(d, 42, LENGTH, &s, &err), CLD_OK);
    for (uint64_t p = 0; p < POSITIONS; p++) {
        assert_int_equal(cld_sampler_at(s, p, &sample, &err), CLD_OK);
        size_t total = 0;
        for (size_t i = 0; i < sample.n_rows; i++) {
            total += cld_dataset_row(d, sample.rows[i]).n;
            seen[sample.rows[i]] += sample.epoch == 0;
        }
        assert_true(sample.n_rows > 0 && total <= LENGTH);
        assert_int_equal(total, sample.n_tokens);
        n_tokens += sample.epoch == 0 ? total : 0;
        n_bins += sample.epoch == 0;
        first_of[p] = sample.rows[0];
        n_of[p] = sample.n_rows;
    }
    for (size_t i = 0; i < N; i++)
        assert_int_equal(seen[i], 1); /* the first epoch holds every row once */
    assert_int_equal(n_tokens, cld_dataset_counts(d)->n_tokens);
    assert_true(n_bins * LENGTH < n_tokens * 12 / 10); /* and wastes little */
    /* first fit: no document would have fitted into an earlier row */
    for (uint64_t p = 1; p < n_bins; p++) {
        struct cld_sample earlier;
        assert_int_equal(cld_sampler_at(s, p, &sample, &err), CLD_OK);
        size_t smallest = LENGTH;
        for (size_t i = 0; i < sample.n_rows; i++)
            smallest = cld_dataset_row(d, sample.rows[i]).n < smallest
                           ? cld_dataset_row(d, sample.rows[i]).n
                           : smallest;
        assert_int_equal(cld_sampler_at(s, p - 1, &earlier, &err), CLD_OK);
        assert_true(earlier.n_tokens + smallest > LENGTH);
    }
    /* another sampler that starts in the middle, and one that goes back, see the same */
    assert_int_equal(cld_sampler_new(d, 42, LENGTH, &other, &err), CLD_OK);
    for (uint64_t p = POSITIONS; p-- > 0;) {
        assert_int_equal(cld_sampler_at(other, p, &sample, &err), CLD_OK);
        assert_int_equal(sample.rows[0], first_of[p]);
        assert_int_equal(sample.n_rows, n_of[p]);
    }
    cld_sampler_free(other);
    cld_sampler_free(s);
    cld_dataset_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_epoch_is_a_permutation),
        cmocka_unit_test(the_order_is_fair),
        cmocka_unit_test(anchors_follow_the_rule),
        cmocka_unit_test(rows_without_packing),
        cmocka_unit_test(packed_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
