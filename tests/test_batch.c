/* Layout of a micro-batch, loss weights, cutting into passes, and the score. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "data/batch.h"

static const int32_t ids[] = {10, 11, 12, 13, 14, 15};
static const uint8_t mask[] = {0, 1, 1, 0, 1, 1};

static void lays_out_documents(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_batch b = {0};
    const int32_t a0[] = {1}, a1[] = {0, 4};
    struct cld_document docs[] = {{ids, mask, 6, a0, 1, NULL, 0, 0, false},
                                  {ids, mask, 3, NULL, 0, NULL, 1, 0, false},
                                  {ids, mask, 6, a1, 2, NULL, 2, 0, false}};
    struct cld_batch_rules rules = {4, 99, 2.0, false, false};
    assert_int_equal(cld_batch_build(&b, docs, 3, &rules, false, &err), CLD_OK);
    assert_int_equal(b.n_ctx, 12); /* the document without anchors is left out */
    assert_int_equal(b.n_blocks, 3);
    assert_int_equal(b.n_draft, 12);
    assert_int_equal(b.ctx_doc[5], 0);
    assert_int_equal(b.ctx_doc[6], 6);
    assert_int_equal(b.positions[6], 0); /* restarts */
    assert_int_equal(b.blocks[2].doc, 6);
    assert_int_equal(b.blocks[2].anchor, 10);
    assert_int_equal(b.positions[12], 1); /* first draft row: the anchor's own position */
    assert_int_equal(b.positions[12 + 11], 7);
    assert_int_equal(b.draft_ids[0], 11);
    assert_int_equal(b.draft_ids[1], 99);
    /* Block at 1: rows 1..3 predict tokens 2, 3, 4; token 3 is not supervised. */
    assert_int_equal(b.place[0], -1);
    assert_int_equal(b.place[1], 0);
    assert_int_equal(b.place[2], -1);
    assert_int_equal(b.labels[1], 14);
    assert_true(fabsf(b.weights[1] - expf(-1.0f)) < 1e-6f);
    /* Block at 4 of the last document: only token 5 is left. */
    assert_int_equal(b.labels[b.n_supervised - 1], 15);
    assert_int_equal(b.block_tag[2], 2);
    cld_batch_free(&b);
}

static void stops_at_a_gap_where_asked(void **state)
{
    (void)state;
    const int32_t anchor[] = {1};
    struct cld_document d = {ids, mask, 6, anchor, 1, NULL, 0, 0, false};
    struct cld_batch_rules rules = {5, 99, 0, false, false};
    size_t n = 0;
    double sum = 0;
    cld_batch_count(&d, 1, &rules, &n, &sum);
    assert_int_equal(n, 3); /* tokens 2, 4, 5 */
    assert_true(sum == 3);
    rules.stop_at_gap = true;
    cld_batch_count(&d, 1, &rules, &n, &sum);
    assert_int_equal(n, 1);
}

static void count_agrees_with_layout(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_batch b = {0};
    const int32_t a[] = {0, 1, 2, 4};
    struct cld_document d = {ids, mask, 6, a, 4, NULL, 0, 0, false};
    for (size_t block = 2; block <= 8; block++)
        for (int gap = 0; gap < 2; gap++) {
            struct cld_batch_rules rules = {block, 99, 3.0, gap, false};
            size_t n = 0;
            double sum = 0;
            cld_batch_count(&d, 1, &rules, &n, &sum);
            assert_int_equal(cld_batch_build(&b, &d, 1, &rules, false, &err), CLD_OK);
            assert_int_equal(b.n_supervised, n);
            assert_true(b.sum_weight == sum);
        }
    cld_batch_free(&b);
}

static void cuts_into_passes(void **state)
{
    (void)state;
    int32_t many[50];
    for (int i = 0; i < 50; i++)
        many[i] = i;
    const int32_t one[] = {0};
    struct cld_document docs[] = {{ids, mask, 6, one, 1, NULL, 0, 0, false},
                                  {ids, mask, 6, many, 25, NULL, 1, 0, false},
                                  {ids, mask, 6, one, 1, NULL, 2, 0, false}};
    struct cld_document out[3];
    struct cld_cutter c = {docs, 3, 12, 10, 2, 0, 0};
    size_t n, passes = 0, anchors = 0;
    int32_t expected_first[] = {0, 9, 19, 0};
    while ((n = cld_cut(&c, out))) {
        size_t tokens = 0, blocks = 0;
        for (size_t i = 0; i < n; i++) {
            tokens += out[i].n;
            blocks += out[i].n_anchors;
        }
        assert_true(tokens <= 12 && blocks <= 10);
        assert_int_equal(out[0].anchors[0], expected_first[passes]);
        anchors += blocks;
        assert_true(++passes < 5);
    }
    assert_int_equal(anchors, 27);
    assert_int_equal(c.at, 3);
}

static void scores_by_the_definitions(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_batch b = {0};
    struct cld_score s = {0};
    const int32_t a[] = {1, 4};
    struct cld_document d = {ids, mask, 6, a, 2, NULL, 0, 0, false};
    struct cld_batch_rules rules = {5, 99, 0, false, false};
    assert_int_equal(cld_batch_build(&b, &d, 1, &rules, false, &err), CLD_OK);
    /* Supervised: block 1 -> tokens 2, 4, 5; block 4 -> token 5. */
    const float ce[] = {1, 2, 3, 4};
    const int32_t hit[] = {1, 1, 0, 0};
    cld_score_add(&s, &b, ce, hit);
    assert_true(cld_score_loss(&s) == 2.5);
    assert_true(cld_score_accuracy(&s) == 0.5);
    /* (2 + 0) / 2: the unsupervised row did not stop it */
    assert_true(cld_score_accepted(&s) == 1.0);
    assert_int_equal(s.position_n[1], 2);
    assert_int_equal(s.position_hits[1], 1);
    struct cld_score twice = {0};
    cld_score_merge(&twice, &s);
    cld_score_merge(&twice, &s);
    assert_true(cld_score_accepted(&twice) == 1.0);
    cld_batch_free(&b);
}

static void nothing_supervised_scores_zero(void **state)
{
    (void)state;
    struct cld_score s = {0};
    assert_true(cld_score_loss(&s) == 0);
    assert_true(cld_score_accuracy(&s) == 0);
    assert_true(cld_score_accepted(&s) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lays_out_documents),
        cmocka_unit_test(stops_at_a_gap_where_asked),
        cmocka_unit_test(count_agrees_with_layout),
        cmocka_unit_test(cuts_into_passes),
        cmocka_unit_test(scores_by_the_definitions),
        cmocka_unit_test(nothing_supervised_scores_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
