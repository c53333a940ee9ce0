/* The drafter as a whole on the first CPU device: which rows see which, bit for bit; recompute;
 * repeats.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "cli/cmd_common.h"
#include "model/drafter.h"
#include "model/visibility.h"
#include "ops/tensor_io.h"
#include "test_device.h"
#include "must.h"

enum { BLOCK = 4, HIDDEN = 48, TAPS = 2, VOCAB = 61, TOKENS = 40, DOCS = 2 };

struct rig {
    struct cld_queue *q;
    struct cld_plan *plan;
    struct cld_tensor embed, head;
    struct cld_drafter d;
    struct cld_batch batch;
    int32_t ids[DOCS][TOKENS], anchors[DOCS][3];
    uint8_t mask[DOCS][TOKENS];
    struct cld_document docs[DOCS];
    float features[DOCS * TOKENS * TAPS * HIDDEN];
};

static void fill(float *to, size_t n, uint64_t stream, float scale)
{
    for (size_t i = 0; i < n; i++)
        to[i] = scale * (float)cld_random_normal(cld_random_u64(5, CLD_RANDOM_TEST, stream, i, 0));
}

static struct rig *open_rig_of(struct cld_drafter_options options, size_t intermediate)
{
    struct rig *r = calloc(1, sizeof *r);
    struct cld_drafter_config c = {.n_layers = 3,
                                   .hidden = HIDDEN,
                                   .n_heads = 4,
                                   .n_kv_heads = 2,
                                   .head_dim = 24,
                                   .intermediate = intermediate,
                                   .vocab = VOCAB,
                                   .n_taps = TAPS,
                                   .block_size = BLOCK,
                                   .mask_token = VOCAB - 1,
                                   .rms_norm_eps = 1e-6,
                                   .rope_theta = 10000,
                                   .sliding = {true, false, true},
                                   .sliding_window = 9,
                                   .sliding_causal = true};
    struct cld_drafter_limits limits = {DOCS * TOKENS, 6, 2, TOKENS + BLOCK, 0};
    enum cld_dtype storage = options.storage;
    struct cld_queue_options queue = {.name = "test"};
    float *values = malloc(VOCAB * HIDDEN * sizeof *values);
    OK(cld_queue_open(&cpu, &queue, &r->q, &err));
    r->plan = cld_plan_new();
    cld_plan_tensor(r->plan, &r->embed, storage, VOCAB, HIDDEN, CLD_FOR_FROZEN, "embed");
    cld_plan_tensor(r->plan, &r->head, storage, VOCAB, HIDDEN, CLD_FOR_FROZEN, "head");
    OK(cld_drafter_describe(&r->d, &c, &limits, &options, r->q, &r->embed, &r->head, r->plan,
                            &err));
    OK(cld_plan_create(r->plan, r->q, &err));
    OK(cld_drafter_prepare(&r->d, &err));
    OK(cld_drafter_init(&r->d, 3, 0.15, &err));
    fill(values, VOCAB * HIDDEN, 1, 1);
    OK(cld_tensor_write(&r->embed, 0, VOCAB, values, &err));
    fill(values, VOCAB * HIDDEN, 2, 0.3f);
    OK(cld_tensor_write(&r->head, 0, VOCAB, values, &err));
    free(values);
    fill(r->features, sizeof r->features / sizeof *r->features, 3, 1);
    memset(r->mask, 1, sizeof r->mask);
    for (int i = 0; i < DOCS; i++) {
        for (int p = 0; p < TOKENS; p++)
            r->ids[i][p] = (int32_t)cld_random_below(
                cld_random_u64(5, CLD_RANDOM_TEST, 4, (uint64_t)i, (uint64_t)p), VOCAB - 1);
        memcpy(r->anchors[i], (int32_t[]){2 + i, 17, 36}, sizeof r->anchors[i]);
        r->docs[i] = (struct cld_document){r->ids[i], r->mask[i], TOKENS, r->anchors[i], 3,
                                           NULL,      (size_t)i,  0,      false};
    }
    return r;
}

static struct rig *open_rig(enum cld_dtype storage, bool recompute,
                            enum cld_attention_backend attention)
{
    return open_rig_of(
        (struct cld_drafter_options){
            .storage = storage, .attention = attention, .train = true, .recompute = recompute},
        80);
}

static void close_rig(struct rig *r)
{
    cld_plan_free(r->plan);
    cld_queue_close(r->q);
    cld_drafter_free(&r->d);
    cld_batch_free(&r->batch);
    free(r);
}

/* Forward; z [n_draft, HIDDEN] into fresh memory. */
static float *outputs(struct rig *r)
{
    struct cld_batch_rules rules = {BLOCK, VOCAB - 1, 2, false, false};
    float *z = malloc(6 * BLOCK * HIDDEN * sizeof *z);
    OK(cld_batch_build(&r->batch, r->docs, DOCS, &rules, false, &err));
    OK(cld_tensor_write(&r->d.features, 0, DOCS * TOKENS, r->features, &err));
    OK(cld_drafter_forward(&r->d, &r->batch, &err));
    OK(cld_tensor_read(&r->d.z, 0, r->batch.n_draft, z, &err));
    return z;
}

static bool block_equal(const float *a, const float *b, int block)
{
    size_t n = BLOCK * HIDDEN;
    return !memcmp(a + (size_t)block * n, b + (size_t)block * n, n * sizeof *a);
}

static float *feature(struct rig *r, int doc, int token)
{
    return r->features + ((size_t)doc * TOKENS + (size_t)token) * TAPS * HIDDEN;
}

static void blocks_see_their_own_past_only(void **state)
{
    (void)state;
    struct rig *r = open_rig(CLD_F32, false, CLD_ATTENTION_SPARSE);
    float *before = outputs(r), *after;
    /* Features at the anchor of block 1 (document 0, anchor 17) and after it. */
    for (int p = 17; p < 36; p++)
        feature(r, 0, p)[p % (TAPS * HIDDEN)] += 1;
    after = outputs(r);
    assert_true(block_equal(before, after, 0));
    assert_true(block_equal(before, after, 1));
    assert_false(block_equal(before, after, 2)); /* anchor 36 sees them */
    for (int b = 3; b < 6; b++)
        assert_true(block_equal(before, after, b)); /* another document */
    free(before);
    free(after);
    /* The token just before the anchor of block 1. */
    before = outputs(r);
    feature(r, 0, 16)[5] += 1;
    after = outputs(r);
    assert_true(block_equal(before, after, 0));
    assert_false(block_equal(before, after, 1));
    free(before);
    /* Tokens after an anchor are labels, not inputs; the anchor's own token is input. */
    before = after;
    for (int p = 18; p < 36; p++)
        r->ids[0][p] = (r->ids[0][p] + 1) % (VOCAB - 1);
    after = outputs(r);
    for (int b = 0; b < 6; b++)
        assert_true(block_equal(before, after, b));
    free(after);
    r->ids[0][17] = (r->ids[0][17] + 1) % (VOCAB - 1);
    after = outputs(r);
    assert_false(block_equal(before, after, 1));
    for (int b = 0; b < 6; b++)
        assert_true(b == 1 || block_equal(before, after, b));
    free(before);
    free(after);
    close_rig(r);
}

/* A mask that is off by one is seen before a step. */
static void a_block_that_sees_its_anchors_state_is_found(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct rig *r = open_rig(bf16 ? CLD_BF16 : CLD_F32, false, CLD_ATTENTION_SPARSE);
        struct cld_batch_rules rules = {BLOCK, VOCAB - 1, 2, false, false};
        struct cld_error why = CLD_ERROR_INIT;
        OK(cld_batch_build(&r->batch, r->docs, 1, &rules, false, &err));
        r->batch.n_blocks = 2; /* the last one at 17 of 40 */
        r->batch.n_draft = 2 * BLOCK;
        OK(cld_drafter_check_visibility(&r->d, &r->batch, &err));
        r->batch.blocks[1].anchor++;
        assert_int_equal(cld_drafter_check_visibility(&r->d, &r->batch, &why), CLD_E_NUMERIC);
        assert_non_null(
            strstr(why.what, "block at position 17 changes with the target's state at"));
        r->batch.blocks[1].anchor = 0;
        assert_int_equal(cld_drafter_check_visibility(&r->d, &r->batch, &why), CLD_E_NUMERIC);
        assert_non_null(strstr(why.what, "does not change with the target's states before"));
        close_rig(r);
    }
}

/* Loss and gradients of one micro-batch; returns the gradient arena on the host. */
static float *gradients(struct rig *r, double *loss)
{
    struct cld_score score = {0};
    float *z = outputs(r), *g = malloc(r->d.n_elems * sizeof *g);
    free(z);
    OK(cld_buf_fill(r->d.grads.buf, 0, cld_buf_bytes(r->d.grads.buf), 0, &err));
    OK(cld_drafter_loss(&r->d, &r->batch, 1 / r->batch.sum_weight, CLD_LOSS_GRADIENT, &score,
                        &err));
    OK(cld_drafter_backward(&r->d, &r->batch, &err));
    OK(cld_drafter_check_tiles(&r->d, &err));
    OK(cld_tensor_read(&r->d.grads, 0, 1, g, &err));
    *loss = cld_score_loss(&score);
    return g;
}

static void recompute_and_repeats_give_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        double loss[3];
        struct cld_drafter_options options = {.storage = i % 2 ? CLD_BF16 : CLD_F32, .train = true};
        size_t intermediate = i / 2 ? 1024 : 80; /* 1024: norm1, q and k fit into gate and up */
        struct rig *cached = open_rig_of(options, intermediate);
        options.recompute = true;
        struct rig *again = open_rig_of(options, intermediate);
        assert_int_equal(again->d.recomputes_qk, i / 2);
        float *a = gradients(cached, &loss[0]), *b = gradients(cached, &loss[1]);
        float *c = gradients(again, &loss[2]);
        size_t n_bytes = cached->d.n_elems * sizeof *a;
        assert_memory_equal(a, b, n_bytes);
        assert_memory_equal(a, c, n_bytes);
        assert_true(loss[0] == loss[1] && loss[0] == loss[2]);
        assert_true(loss[0] > 1 && isfinite(loss[0]));
        assert_true(cld_plan_bytes(again->plan) < cld_plan_bytes(cached->plan));
        free(a);
        free(b);
        free(c);
        close_rig(cached);
        close_rig(again);
    }
}

static void dense_agrees_with_sparse(void **state)
{
    (void)state;
    double loss[2];
    struct rig *sparse = open_rig(CLD_F32, false, CLD_ATTENTION_SPARSE);
    struct rig *dense = open_rig(CLD_F32, false, CLD_ATTENTION_DENSE);
    float *a = gradients(sparse, &loss[0]), *b = gradients(dense, &loss[1]);
    assert_true(fabs(loss[0] - loss[1]) < 1e-5);
    assert_true(cld_relative_error(a, b, sparse->d.n_elems) < 1e-5);
    free(a);
    free(b);
    close_rig(sparse);
    close_rig(dense);
}

/* The gradient of one weight against a central difference of the loss: a test of the whole list. */
static void gradients_match_finite_differences(void **state)
{
    (void)state;
    static const char *const names[] = {"fc.weight",
                                        "hidden_norm.weight",
                                        "layers.0.self_attn.k_proj.weight",
                                        "layers.1.self_attn.q_norm.weight",
                                        "layers.2.mlp.gate_proj.weight",
                                        "norm.weight"};
    double loss, up, down;
    struct rig *r = open_rig(CLD_F32, false, CLD_ATTENTION_SPARSE);
    float *g = gradients(r, &loss);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct cld_param *p = cld_drafter_param(&r->d, names[i]);
        size_t n = p->n_rows * p->n_cols;
        float *w = malloc(2 * n * sizeof *w), *moved = w + n;
        double norm = 0;
        assert_non_null(p);
        OK(cld_drafter_get(&r->d, p, w, &err));
        for (size_t k = 0; k < n; k++)
            norm += (double)g[p->at + k] * (double)g[p->at + k];
        norm = sqrt(norm);
        /* Along the gradient the derivative is its norm. */
        double h = 2e-2 / fmax(1, norm);
        for (int side = 0; side < 2; side++) {
            for (size_t k = 0; k < n; k++)
                moved[k] = w[k] + (float)((side ? h : -h) * (double)g[p->at + k] / norm);
            OK(cld_drafter_set(&r->d, p, moved, &err));
            free(gradients(r, side ? &up : &down));
        }
        OK(cld_drafter_set(&r->d, p, w, &err));
        if (fabs((up - down) / (2 * h) - norm) > 2e-2 * norm)
            fail_msg("%s: slope %g, gradient norm %g", names[i], (up - down) / (2 * h), norm);
        free(w);
    }
    free(g);
    close_rig(r);
}

/* Follows the progress that a pass reports: weights before it reads them, gradients when final. */
struct follower {
    struct rig *r;
    float *weights, *grads; /* [n_elems] all weights; gradients when they were reported as final */
    size_t n_told;          /* buckets so far */
};

/* These buckets come now; the others are NaN. */
static enum cld_status bring(void *arg, size_t first, struct cld_error *e)
{
    struct follower *f = arg;
    size_t at, n, n_buckets = cld_drafter_n_buckets(&f->r->d);
    enum cld_status s = CLD_OK;
    assert_true(n_buckets - first >= f->n_told);
    for (size_t b = n_buckets - f->n_told; b-- > first && !s;)
        if ((n = cld_drafter_bucket(&f->r->d, b, &at)) > 0)
            s = cld_buf_write(f->r->d.weights.buf, at * sizeof(float), f->weights + at,
                              n * sizeof(float), e);
    f->n_told = n_buckets - first;
    return s;
}

static enum cld_status note(void *arg, size_t n_done, struct cld_error *e)
{
    struct follower *f = arg;
    size_t at, n;
    enum cld_status s = CLD_OK;
    for (; f->n_told < n_done && !s; f->n_told++)
        if ((n = cld_drafter_bucket(&f->r->d, f->n_told, &at)) > 0)
            s = cld_buf_read(f->r->d.grads.buf, at * sizeof(float), f->grads + at,
                             n * sizeof(float), e);
    return s;
}

static void a_pass_reports_what_it_needs_and_has(void **state)
{
    (void)state;
    double loss[2];
    struct rig *r = open_rig(CLD_F32, false, CLD_ATTENTION_SPARSE);
    struct cld_drafter *d = &r->d;
    size_t n_bytes = d->n_elems * sizeof(float), n_buckets = cld_drafter_n_buckets(d);
    struct follower f = {r, malloc(n_bytes), calloc(1, n_bytes), 0};
    float *plain = gradients(r, &loss[0]), *followed, *z = outputs(r);
    OK(cld_tensor_read(&d->weights, 0, 1, f.weights, &err));
    OK(cld_buf_fill(d->weights.buf, 0, n_bytes, 0x7fc00000u, &err));
    d->hook_arg = &f;
    d->on_weights = bring;
    float *arrived = outputs(r);
    assert_memory_equal(z, arrived, r->batch.n_draft * HIDDEN * sizeof *z);
    assert_int_equal(f.n_told, n_buckets);
    d->on_weights = NULL;
    f.n_told = 0;
    d->on_gradients = note;
    followed = gradients(r, &loss[1]);
    assert_int_equal(f.n_told, n_buckets);
    assert_memory_equal(plain, followed, n_bytes);
    assert_memory_equal(f.grads, followed, n_bytes);
    free(f.weights);
    free(f.grads);
    free(plain);
    free(followed);
    free(z);
    free(arrived);
    close_rig(r);
}

/* Of a drafter whose parts have several buckets; it is described, never made. */
static void buckets_and_shards_tile_the_arenas(void **state)
{
    (void)state;
    struct cld_drafter d;
    struct cld_queue *q;
    struct cld_plan *plan = cld_plan_new();
    struct cld_tensor embed, head;
    struct rig *r = open_rig(CLD_F32, false, CLD_ATTENTION_SPARSE);
    struct cld_drafter_config c = r->d.config;
    struct cld_queue_options queue = {.name = "test"};
    c.hidden = 264;
    c.intermediate = 1000;
    OK(cld_queue_open(&cpu, &queue, &q, &err));
    cld_plan_tensor(plan, &embed, CLD_F32, VOCAB, c.hidden, CLD_FOR_FROZEN, "embed");
    cld_plan_tensor(plan, &head, CLD_F32, VOCAB, c.hidden, CLD_FOR_FROZEN, "head");
    OK(cld_drafter_describe(&d, &c, &r->d.limits, &r->d.options, q, &embed, &head, plan, &err));
    size_t n_buckets = cld_drafter_n_buckets(&d), n_used = 0;
    assert_int_equal(n_buckets, cld_drafter_n_buckets_of(&c));
    uint8_t *seen = calloc(d.n_elems, 1);
    for (size_t b = 0; b < n_buckets; b++) {
        size_t at, n = cld_drafter_bucket(&d, b, &at), n_parts = 0;
        assert_true(at % 64 == 0 && n % 64 == 0 && at + n <= d.n_elems);
        n_used += n > 0;
        for (size_t i = 0; i < n; i++)
            seen[at + i]++;
        d.options.n_shards = 3;
        for (size_t j = 0; j < 3; j++) {
            size_t first, shard_at, shard_n = cld_drafter_shard(&d, j, 3, &shard_at);
            size_t part = cld_drafter_bucket_part(&d, b, j, &first);
            assert_true(!part || (first == at + n_parts && first >= shard_at &&
                                  first + part <= shard_at + shard_n));
            n_parts += part;
        }
        assert_int_equal(n_parts, n);
    }
    for (size_t i = 0; i < d.n_elems; i++)
        assert_int_equal(seen[i], 1);
    assert_true(n_used > 2 * (2 * c.n_layers + 2)); /* some parts are cut */
    free(seen);
    cld_plan_free(plan);
    cld_drafter_free(&d);
    cld_queue_close(q);
    close_rig(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_see_their_own_past_only),
        cmocka_unit_test(a_block_that_sees_its_anchors_state_is_found),
        cmocka_unit_test(recompute_and_repeats_give_the_same_bits),
        cmocka_unit_test(dense_agrees_with_sparse),
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(a_pass_reports_what_it_needs_and_has),
        cmocka_unit_test(buckets_and_shards_tile_the_arenas),
    };
    return cmocka_run_group_tests(tests, find_cpu, close_devices);
}
