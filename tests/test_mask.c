/* Spans and tile lists against a direct transcription of the rule, pair by pair. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "ops/mask.h"

static uint64_t n_drawn;

static int below(int n)
{
    return (int)cld_random_below(cld_random_u64(7, CLD_RANDOM_TEST, 0, n_drawn++, 0), (uint64_t)n);
}

/* Samples of a micro-batch as a trainer has them: segment of each token, anchors (negative:
 * padding). */
struct batch {
    int n_samples, n_tokens, n_anchors, block_size, window;
    bool causal;
    int *segment; /* [n_samples][n_tokens] */
    int *anchor;  /* [n_samples][n_anchors] */
};

/* May draft row q of a sample see key kv of the same sample? Keys are n_tokens tokens, then the
 * draft rows. This is the rule as it is defined, on purpose without ranges. */
static bool allow(const struct batch *b, int sample, int q, int kv)
{
    const int *segment = b->segment + sample * b->n_tokens;
    int block = q / b->block_size, offset = q % b->block_size;
    int anchor = b->anchor[sample * b->n_anchors + block];
    if (anchor < 0)
        return false;
    if (kv < b->n_tokens)
        return kv < anchor && segment[kv] == segment[anchor] &&
               (!b->window || kv >= anchor + offset - (b->window - 1));
    int own = kv - b->n_tokens;
    return own / b->block_size == block &&
           (!b->window || !b->causal || own % b->block_size <= offset);
}

static int sample_of_key(const struct batch *b, int key, int *kv)
{
    int n_ctx = b->n_samples * b->n_tokens, n_rows = b->n_anchors * b->block_size;
    if (key < n_ctx) {
        *kv = key % b->n_tokens;
        return key / b->n_tokens;
    }
    *kv = b->n_tokens + (key - n_ctx) % n_rows;
    return (key - n_ctx) / n_rows;
}

static struct batch random_batch(bool padding)
{
    struct batch b = {1 + below(3),  1 + below(60), 1 + below(9), 2 + below(15), 0,
                      below(2) == 0, NULL,          NULL};
    if (below(2))
        b.window = b.block_size + below(20); /* a window is at least a block */
    b.segment = calloc((size_t)(b.n_samples * b.n_tokens), sizeof *b.segment);
    b.anchor = calloc((size_t)(b.n_samples * b.n_anchors), sizeof *b.anchor);
    for (int i = 0, change = 1 + below(30); i < b.n_samples * b.n_tokens; i++)
        b.segment[i] = i % b.n_tokens == 0 ? 0 : b.segment[i - 1] + (below(change) == 0);
    for (int i = 0; i < b.n_samples * b.n_anchors; i++)
        b.anchor[i] = padding && below(4) == 0 ? -1 : below(b.n_tokens);
    return b;
}

/* Blocks as cld_mask_draft takes them. */
static struct cld_block *blocks_of(const struct batch *b)
{
    struct cld_block *blocks = calloc((size_t)(b->n_samples * b->n_anchors), sizeof *blocks);
    for (int s = 0; s < b->n_samples; s++)
        for (int i = 0; i < b->n_anchors; i++) {
            int anchor = b->anchor[s * b->n_anchors + i], doc = anchor;
            const int *segment = b->segment + s * b->n_tokens;
            while (doc > 0 && segment[doc - 1] == segment[anchor])
                doc--;
            blocks[s * b->n_anchors + i] =
                anchor < 0 ? (struct cld_block){0, -1}
                           : (struct cld_block){s * b->n_tokens + doc, s * b->n_tokens + anchor};
        }
    return blocks;
}

static bool in_span(const struct cld_span *s, int key)
{
    return (s->lo <= key && key < s->hi) || (s->own_lo <= key && key < s->own_hi);
}

/* What tile (qt, kt) must be: 0 not listed, 1 listed, 2 listed and full. */
static int tile_state(const struct cld_span *spans, int n_q, int n_keys, int q_tile, int k_tile,
                      int qt, int kt)
{
    int n_seen = 0, n_pairs = 0;
    for (int q = qt * q_tile; q < (qt + 1) * q_tile && q < n_q; q++)
        for (int k = kt * k_tile; k < (kt + 1) * k_tile; k++) {
            n_pairs++;
            n_seen += k < n_keys && in_span(&spans[q], k);
        }
    return n_seen == 0 ? 0 : n_seen == n_pairs ? 2 : 1;
}

/* Every tile's state in both lists, which are in order, and their number. */
static void check_tiles(const struct cld_tiles *t, const struct cld_span *spans, int n_q,
                        int n_keys)
{
    int32_t at = 0;
    assert_int_equal(t->n_q_tiles, (n_q + (int)t->q_tile - 1) / (int)t->q_tile);
    assert_int_equal(t->n_k_tiles, (n_keys + (int)t->k_tile - 1) / (int)t->k_tile);
    assert_int_equal(t->fwd_ptr[0], 0);
    assert_int_equal(t->bwd_ptr[0], 0);
    for (int qt = 0; qt < (int)t->n_q_tiles; qt++) {
        for (int kt = 0; kt < (int)t->n_k_tiles; kt++) {
            int state = tile_state(spans, n_q, n_keys, (int)t->q_tile, (int)t->k_tile, qt, kt);
            if (state)
                assert_int_equal(t->fwd[at++], kt * 2 + (state == 2));
        }
        assert_int_equal(t->fwd_ptr[qt + 1], at);
    }
    assert_int_equal(t->n_listed, at);
    at = 0;
    for (int kt = 0; kt < (int)t->n_k_tiles; kt++) {
        for (int qt = 0; qt < (int)t->n_q_tiles; qt++) {
            int state = tile_state(spans, n_q, n_keys, (int)t->q_tile, (int)t->k_tile, qt, kt);
            if (state)
                assert_int_equal(t->bwd[at++], qt * 2 + (state == 2));
        }
        assert_int_equal(t->bwd_ptr[kt + 1], at);
    }
    assert_int_equal(t->n_listed, at);
}

static void build_and_check(const struct cld_span *spans, int n_q, int n_keys, struct cld_tiles *t)
{
    struct cld_error err = CLD_ERROR_INIT;
    size_t q_tile = (size_t)(1 + below(24)), k_tile = (size_t)(1 + below(24));
    assert_int_equal(cld_tiles_build(spans, (size_t)n_q, (size_t)n_keys, q_tile, k_tile, t, &err),
                     CLD_OK);
    check_tiles(t, spans, n_q, n_keys);
    assert_true(t->n_listed <= cld_tiles_max((size_t)n_q, (size_t)n_keys, q_tile, k_tile));
}

/* Random micro-batches: exactly the visible pairs of the rule, and tiles that cover them. */
static void test_draft(void **state)
{
    struct cld_tiles tiles = {0}; /* its memory is used again and again */
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct batch b = random_batch(round % 3 == 0);
        int n_blocks = b.n_samples * b.n_anchors, n_q = n_blocks * b.block_size;
        int n_ctx = b.n_samples * b.n_tokens, n_keys = n_ctx + n_q;
        struct cld_block *blocks = blocks_of(&b);
        struct cld_span *spans = calloc((size_t)n_q, sizeof *spans);
        cld_mask_draft(blocks, (size_t)n_blocks, (size_t)b.block_size, (size_t)n_ctx,
                       (size_t)b.window, b.causal, spans);
        for (int q = 0; q < n_q; q++)
            for (int key = 0; key < n_keys; key++) {
                int rows = b.n_anchors * b.block_size, kv, sample = sample_of_key(&b, key, &kv);
                bool want = sample == q / rows && allow(&b, sample, q % rows, kv);
                assert_int_equal(in_span(&spans[q], key), want);
            }
        build_and_check(spans, n_q, n_keys, &tiles);
        free(spans);
        free(blocks);
        free(b.segment);
        free(b.anchor);
    }
    cld_tiles_free(&tiles);
}

/* A token sees its document up to itself. */
static void test_causal(void **state)
{
    struct cld_tiles tiles = {0};
    (void)state;
    for (int round = 0; round < 100; round++) {
        int n = 1 + below(130);
        int32_t *doc = calloc((size_t)n, sizeof *doc);
        struct cld_span *spans = calloc((size_t)n, sizeof *spans);
        for (int i = 0; i < n; i++)
            doc[i] = i == 0 || below(20) == 0 ? i : doc[i - 1];
        cld_mask_causal(doc, (size_t)n, spans);
        for (int q = 0; q < n; q++)
            for (int key = 0; key < n; key++)
                assert_int_equal(in_span(&spans[q], key), key <= q && doc[key] == doc[q]);
        build_and_check(spans, n, n, &tiles);
        free(doc);
        free(spans);
    }
    cld_tiles_free(&tiles);
}

/* Any two ranges, in any order, overlapping, touching or empty: lists and full flags stay exact. */
static void test_any_spans(void **state)
{
    struct cld_tiles tiles = {0};
    (void)state;
    for (int round = 0; round < 500; round++) {
        int n_q = 1 + below(40), n_keys = 1 + below(60);
        struct cld_span *spans = calloc((size_t)n_q, sizeof *spans);
        for (int i = 0; i < n_q; i++) {
            int a = below(n_keys + 1), b = below(n_keys + 1), c = below(3) ? below(n_keys + 1) : b;
            spans[i] = (struct cld_span){a, b, c, below(n_keys + 1)};
            if (below(4) == 0 && i > 0)
                spans[i] = spans[i - 1];
            if (below(4) == 0)
                spans[i] = (struct cld_span){0, n_keys, 0, 0};
        }
        build_and_check(spans, n_q, n_keys, &tiles);
        free(spans);
    }
    cld_tiles_free(&tiles);
}

static void test_nothing(void **state)
{
    struct cld_tiles tiles = {0};
    struct cld_error err = CLD_ERROR_INIT;
    const struct cld_span blind[3] = {{0, 0, 0, 0}, {5, 2, 7, 7}, {0, 0, 0, 0}};
    (void)state;
    assert_int_equal(cld_tiles_build(NULL, 0, 0, 16, 32, &tiles, &err), CLD_OK);
    check_tiles(&tiles, NULL, 0, 0);
    assert_int_equal(cld_tiles_build(NULL, 0, 100, 16, 32, &tiles, &err), CLD_OK);
    check_tiles(&tiles, NULL, 0, 100);
    assert_int_equal(cld_tiles_build(blind, 3, 0, 16, 32, &tiles, &err), CLD_OK);
    check_tiles(&tiles, blind, 3, 0);
    assert_int_equal(cld_tiles_build(blind, 3, 40, 2, 8, &tiles, &err), CLD_OK);
    check_tiles(&tiles, blind, 3, 40);
    cld_tiles_free(&tiles);
    cld_tiles_free(&tiles);
    cld_tiles_free(NULL);
}

/* A span that names a key that is not there would make kernels read outside. */
static void test_span_outside(void **state)
{
    struct cld_tiles tiles = {0};
    const struct cld_span bad[3] = {{0, 41, 0, 0}, {0, 0, 30, 41}, {-1, 3, 0, 0}};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct cld_error err = CLD_ERROR_INIT;
        assert_int_equal(cld_tiles_build(&bad[i], 1, 40, 16, 32, &tiles, &err), CLD_E_INTERNAL);
        assert_non_null(strstr(err.what, "row 0 sees keys"));
    }
    cld_tiles_free(&tiles);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draft),        cmocka_unit_test(test_causal),
        cmocka_unit_test(test_any_spans),    cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_span_outside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
