/* Objectives other than cross-entropy, against references in double: what the head's rows get as
 * their gradient and what the loss is; who predicts what in each layout; how prefixes are drawn. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "cli/cmd_common.h"
#include "data/sampler.h"
#include "model/drafter.h"
#include "ops/tensor_io.h"
#include "test_device.h"
#include "must.h"

enum { BLOCK = 5, H = 24, TAPS = 2, VOCAB = 61, TOKENS = 20, DOCS = 2, BLOCKS = 6 };
enum { DRAFT = BLOCKS * BLOCK, WIDTH = (TAPS + 1) * H };

struct rig {
    struct cld_queue *q;
    struct cld_plan *plan;
    struct cld_tensor embed, head, norm, features;
    struct cld_drafter d;
    struct cld_batch batch;
    int32_t ids[DOCS][TOKENS], anchors[DOCS][3];
    uint8_t mask[DOCS][TOKENS];
    struct cld_document docs[DOCS];
    float head_values[VOCAB * H], norm_values[H], feature_values[DOCS * TOKENS * WIDTH];
    float z[DRAFT * H], dzs[DRAFT * H];
    struct cld_score score;
};

static void fill(float *to, size_t n, uint64_t stream, float scale)
{
    for (size_t i = 0; i < n; i++)
        to[i] = scale * (float)cld_random_normal(cld_random_u64(9, CLD_RANDOM_TEST, stream, i, 0));
}

/* A drafter with this objective, at which one micro-batch has run up to the gradient of z. Some
 * tokens are not supervised, and the last block of each document passes its end. */
static struct rig *run(struct cld_drafter_objective objective, bool anchor_first, size_t loss_chunk)
{
    struct rig *r = calloc(1, sizeof *r);
    struct cld_drafter_config c = {.n_layers = 1,
                                   .hidden = H,
                                   .n_heads = 2,
                                   .n_kv_heads = 1,
                                   .head_dim = 16,
                                   .intermediate = 40,
                                   .vocab = VOCAB,
                                   .n_taps = TAPS,
                                   .block_size = BLOCK,
                                   .anchor_first = anchor_first,
                                   .mask_token = VOCAB - 1,
                                   .rms_norm_eps = 1e-5,
                                   .rope_theta = 10000};
    struct cld_batch_rules rules = {BLOCK, VOCAB - 1, 0, false, anchor_first};
    struct cld_drafter_limits limits = {DOCS * TOKENS, BLOCKS, loss_chunk, TOKENS + BLOCK, 0};
    struct cld_queue_options queue = {.name = "test"};
    struct cld_drafter_options options = {
        .storage = CLD_F32, .train = true, .features = &r->features, .objective = objective};
    options.objective.norm = &r->norm;
    options.objective.state_at = TAPS * H;
    OK(cld_queue_open(&cpu, &queue, &r->q, &err));
    r->plan = cld_plan_new();
    cld_plan_tensor(r->plan, &r->embed, CLD_F32, VOCAB, H, CLD_FOR_FROZEN, "embed");
    cld_plan_tensor(r->plan, &r->head, CLD_F32, VOCAB, H, CLD_FOR_FROZEN, "head");
    cld_plan_tensor(r->plan, &r->norm, CLD_F32, 1, H, CLD_FOR_FROZEN, "norm");
    cld_plan_tensor(r->plan, &r->features, CLD_F32, 48, WIDTH, CLD_FOR_INPUT, "features");
    OK(cld_drafter_describe(&r->d, &c, &limits, &options, r->q, &r->embed, &r->head, r->plan,
                            &err));
    OK(cld_plan_create(r->plan, r->q, &err));
    OK(cld_drafter_prepare(&r->d, &err));
    OK(cld_drafter_init(&r->d, 3, 0.15, &err));
    fill(r->head_values, VOCAB * H, 1, 1);
    OK(cld_tensor_write(&r->embed, 0, VOCAB, r->head_values, &err));
    fill(r->head_values, VOCAB * H, 2, 0.4f);
    OK(cld_tensor_write(&r->head, 0, VOCAB, r->head_values, &err));
    fill(r->norm_values, H, 3, 1);
    OK(cld_tensor_write(&r->norm, 0, 1, r->norm_values, &err));
    fill(r->feature_values, DOCS * TOKENS * WIDTH, 4, 1);
    OK(cld_tensor_write(&r->features, 0, DOCS * TOKENS, r->feature_values, &err));
    memset(r->mask, 1, sizeof r->mask);
    for (int i = 0; i < DOCS; i++) {
        for (int p = 0; p < TOKENS; p++)
            r->ids[i][p] = (int32_t)cld_random_below(
                cld_random_u64(9, CLD_RANDOM_TEST, 5, (uint64_t)i, (uint64_t)p), VOCAB - 1);
        r->mask[i][10] = 0;
        memcpy(r->anchors[i], (int32_t[]){2 + i, 8, 17}, sizeof r->anchors[i]);
        r->docs[i] = (struct cld_document){.ids = r->ids[i],
                                           .mask = r->mask[i],
                                           .n = TOKENS,
                                           .anchors = r->anchors[i],
                                           .n_anchors = 3};
    }
    OK(cld_batch_build(&r->batch, r->docs, DOCS, &rules, false, &err));
    OK(cld_drafter_forward(&r->d, &r->batch, &err));
    OK(cld_drafter_loss(&r->d, &r->batch, 1 / r->batch.sum_weight, CLD_LOSS_GRADIENT, &r->score,
                        &err));
    OK(cld_tensor_read(&r->d.z, 0, DRAFT, r->z, &err));
    OK(cld_tensor_read(&r->d.dzs, 0, r->batch.n_supervised, r->dzs, &err));
    return r;
}

static void close_rig(struct rig *r)
{
    cld_plan_free(r->plan);
    cld_queue_close(r->q);
    cld_drafter_free(&r->d);
    cld_batch_free(&r->batch);
    free(r);
}

/* --- references ------------------------------------------------------------------------------- */

/* log softmax of head x at a temperature. */
static void log_softmax(const struct rig *r, const double *x, double temperature, double *out)
{
    double top = -INFINITY, sum = 0;
    for (int v = 0; v < VOCAB; v++) {
        out[v] = 0;
        for (int k = 0; k < H; k++)
            out[v] += (double)r->head_values[v * H + k] * x[k] / temperature;
        top = fmax(top, out[v]);
    }
    for (int v = 0; v < VOCAB; v++)
        sum += exp(out[v] - top);
    for (int v = 0; v < VOCAB; v++)
        out[v] -= top + log(sum);
}

/* Token `after` tokens after the anchor of a row's block, whether it counts, and its place. */
static bool label_of(const struct rig *r, size_t row, bool anchor_first, int32_t *label, size_t *at)
{
    size_t block = row / BLOCK, doc = block / 3;
    size_t after = row % BLOCK + anchor_first;
    size_t p = (size_t)r->anchors[doc][block % 3] + after;
    if (!after || p >= TOKENS || !r->mask[doc][p])
        return false;
    *label = r->ids[doc][p];
    *at = doc * TOKENS + p;
    return true;
}

/* Loss of the i-th row with a loss, as a function of its z, by the definition of the objective. */
struct row_loss {
    const struct rig *r;
    int32_t label;
    double teacher[VOCAB]; /* log p at the temperature */
    double share, temperature;
};

static double row_loss(const struct row_loss *l, const double *z)
{
    double log_q[VOCAB], hard[VOCAB], divergence = 0;
    log_softmax(l->r, z, 1, hard);
    log_softmax(l->r, z, l->temperature, log_q);
    for (int v = 0; v < VOCAB; v++)
        divergence += exp(l->teacher[v]) * (l->teacher[v] - log_q[v]);
    return -(1 - l->share) * hard[l->label] +
           l->share * l->temperature * l->temperature * divergence;
}

static void set_teacher(struct row_loss *l, size_t token)
{
    double x[H], squares = 0;
    const float *state = l->r->feature_values + token * WIDTH + TAPS * H;
    for (int k = 0; k < H; k++)
        squares += (double)state[k] * (double)state[k];
    for (int k = 0; k < H; k++)
        x[k] = (double)state[k] / sqrt(squares / H + 1e-5) * (double)l->r->norm_values[k];
    log_softmax(l->r, x, l->temperature, l->teacher);
}

/* Compares dzs with weight times the central difference of each row's loss, and the score with the
 * sum of score_weight times the loss. */
static void compare(struct rig *r, bool anchor_first, const double *weights, double share,
                    double temperature)
{
    size_t n = 0;
    double worst = 0, largest = 0, total = 0;
    for (size_t row = 0; row < DRAFT; row++) {
        struct row_loss l = {.r = r, .share = share, .temperature = temperature};
        size_t at = 0;
        if (!label_of(r, row, anchor_first, &l.label, &at)) {
            assert_int_equal(r->batch.place[row], -1);
            continue;
        }
        assert_int_equal(r->batch.place[row], n);
        assert_int_equal(r->batch.labels[n], l.label);
        /* The target's distribution of a token is at the token before. */
        set_teacher(&l, at - 1);
        double z[H];
        for (int k = 0; k < H; k++)
            z[k] = (double)r->z[row * H + (size_t)k];
        total += row_loss(&l, z);
        for (int k = 0; k < H; k++) {
            double h = 1e-5, was = z[k];
            z[k] = was + h;
            double up = row_loss(&l, z);
            z[k] = was - h;
            double want = weights[n] * (up - row_loss(&l, z)) / (2 * h);
            z[k] = was;
            worst = fmax(worst, fabs((double)r->dzs[n * H + (size_t)k] - want));
            largest = fmax(largest, fabs(want));
        }
        n++;
    }
    assert_int_equal(n, r->batch.n_supervised);
    assert_true(n > 15 && largest > 0);
    print_message("largest gradient %.3g, off by %.1e of it\n", largest, worst / largest);
    assert_true(worst < 2e-5 * largest);
    assert_true(fabs(cld_score_loss(&r->score) - total / (double)n) < 1e-5 * total / (double)n);
}

static void soft_targets_have_the_gradient_of_their_loss(void **state)
{
    (void)state;
    static const double cases[][2] = {{1, 1}, {0.7, 1}, {1, 2}, {0.25, 0.5}};
    for (size_t i = 0; i < 4; i++)
        for (int anchor_first = 0; anchor_first < 2; anchor_first++) {
            struct rig *r =
                run((struct cld_drafter_objective){.soft = true,
                                                   .soft_share = (float)cases[i][0],
                                                   .soft_temperature = (float)cases[i][1]},
                    anchor_first, i % 2 ? 1 : 8);
            double weights[DRAFT];
            for (size_t k = 0; k < r->batch.n_supervised; k++)
                weights[k] = 1 / (double)r->batch.n_supervised;
            compare(r, anchor_first, weights, (double)(float)cases[i][0], cases[i][1]);
            close_rig(r);
        }
}

/* By its definition: q, s, P and w of each row, in double, from the drafter's own z. */
static void dpace_weights(const struct rig *r, bool anchor_first, double alpha, double *weights)
{
    size_t n = 0;
    for (size_t block = 0; block < BLOCKS; block++) {
        double p[BLOCK], so_far = 1;
        bool counts[BLOCK];
        for (size_t o = 0; o < BLOCK; o++) {
            double z[H], hard[VOCAB];
            size_t row = block * BLOCK + o, at;
            int32_t label = 0;
            for (int k = 0; k < H; k++)
                z[k] = (double)r->z[row * H + (size_t)k];
            log_softmax(r, z, 1, hard);
            counts[o] = label_of(r, row, anchor_first, &label, &at);
            so_far *= counts[o] ? (1 - alpha) * exp(hard[label]) + alpha : 1;
            p[o] = so_far;
        }
        for (size_t o = 0; o < BLOCK; o++) {
            double w = 0;
            for (size_t m = o; m < BLOCK; m++)
                w += counts[m] ? p[m] : 0;
            if (counts[o])
                weights[n++] = w / (double)r->batch.n_supervised;
        }
    }
}

static void dpace_weighs_rows_by_what_comes_before_and_after(void **state)
{
    (void)state;
    static const double alphas[] = {0.5, 0.1, 1};
    for (size_t i = 0; i < 3; i++)
        for (int anchor_first = 0; anchor_first < 2; anchor_first++) {
            struct rig *r =
                run((struct cld_drafter_objective){.dpace = true, .dpace_alpha = (float)alphas[i]},
                    anchor_first, i ? 1 : 8);
            double weights[DRAFT];
            dpace_weights(r, anchor_first, (double)(float)alphas[i], weights);
            compare(r, anchor_first, weights, 0, 1);
            close_rig(r);
        }
}

/* --- layouts ---------------------------------------------------------------------------------- */

static void prefixes_show_the_text_and_have_no_loss(void **state)
{
    (void)state;
    const int32_t ids[] = {10, 11, 12, 13, 14, 15, 16}, anchors[] = {0, 2, 5},
                  prefixes[] = {3, 2, 1};
    const uint8_t mask[] = {1, 1, 1, 1, 1, 0, 1};
    struct cld_document d = {
        .ids = ids, .mask = mask, .n = 7, .anchors = anchors, .n_anchors = 3, .prefixes = prefixes};
    struct cld_batch_rules rules = {5, 99, 2, false, false};
    struct cld_batch b = {0};
    size_t n = 0;
    double sum = 0;
    OK(cld_batch_build(&b, &d, 1, &rules, false, &err));
    const int32_t want_ids[] = {10, 11, 12, 99, 99, 12, 13, 99, 99, 99, 15, 99, 99, 99, 99};
    assert_memory_equal(b.draft_ids, want_ids, sizeof want_ids);
    /* Rows 3, 4 of the first block; 2 and 4 of the second (token 5 is not supervised); 1 of the
     * last. */
    const int32_t want_rows[] = {3, 4, 7, 9, 11}, want_labels[] = {13, 14, 14, 16, 16};
    const double want_weights[] = {1, exp(-0.5), 1, exp(-1), 1};
    assert_int_equal(b.n_supervised, 5);
    assert_memory_equal(b.rows, want_rows, sizeof want_rows);
    assert_memory_equal(b.labels, want_labels, sizeof want_labels);
    for (int i = 0; i < 5; i++)
        assert_true(fabs((double)b.weights[i] - want_weights[i]) < 1e-7);
    cld_batch_count(&d, 1, &rules, &n, &sum);
    assert_int_equal(n, 5);
    assert_true(sum == b.sum_weight);
    /* Prefixes go with their anchors when a document is cut. */
    struct cld_document out;
    struct cld_cutter cut = {.docs = &d, .n_docs = 1, .n_ctx = 7, .n_blocks = 2, .n_tags = 1};
    assert_int_equal(cld_cut(&cut, &out), 1);
    assert_int_equal(cld_cut(&cut, &out), 1);
    assert_int_equal(out.anchors[0], 5);
    assert_int_equal(out.prefixes[0], 1);
    cld_batch_free(&b);
}

static void prefixes_fall_off_by_a_tenth(void **state)
{
    (void)state;
    enum { N = 40000, SIZE = 8 };
    double all = 0, p = 1;
    size_t seen[SIZE] = {0};
    for (uint64_t i = 0; i < N; i++) {
        int32_t l = cld_sample_prefix(1, 0, i, 3, 100, SIZE);
        assert_in_range(l, 2, SIZE - 1);
        seen[l]++;
        assert_int_equal(l, cld_sample_prefix(1, 0, i, 3, 100, SIZE));
    }
    for (int l = 2; l < SIZE; l++, p *= 0.9)
        all += p;
    p = 1;
    for (int l = 2; l < SIZE; l++, p *= 0.9)
        /* six standard deviations */
        assert_true(fabs((double)seen[l] - N * p / all) < 6 * sqrt(N * p / all));
    /* Never past the last token, and with a block of two nothing is drawn. */
    for (uint64_t i = 0; i < 100; i++) {
        assert_in_range(cld_sample_prefix(1, 0, i, 95, 100, SIZE), 2, 4);
        assert_int_equal(cld_sample_prefix(1, 0, i, 98, 100, SIZE), 1);
        assert_int_equal(cld_sample_prefix(1, 0, i, 3, 100, 2), 1);
    }
}

static void anchor_first_shifts_the_labels(void **state)
{
    (void)state;
    const int32_t ids[] = {10, 11, 12, 13, 14}, anchors[] = {1, 3};
    const uint8_t mask[] = {0, 1, 1, 1, 1};
    struct cld_document d = {.ids = ids, .mask = mask, .n = 5, .anchors = anchors, .n_anchors = 2};
    struct cld_batch_rules rules = {3, 99, 2, false, true};
    struct cld_batch b = {0};
    struct cld_score s = {0};
    OK(cld_batch_build(&b, &d, 1, &rules, false, &err));
    const int32_t want_ids[] = {11, 99, 99, 13, 99, 99}, want_rows[] = {0, 1, 2, 3},
                  want_labels[] = {12, 13, 14, 14}, want_before[] = {1, 2, 3, 3},
                  hit[] = {1, 1, 0, 1};
    const float ce[] = {0, 0, 0, 0};
    assert_memory_equal(b.draft_ids, want_ids, sizeof want_ids);
    assert_int_equal(b.n_supervised, 4);
    assert_memory_equal(b.rows, want_rows, sizeof want_rows);
    assert_memory_equal(b.labels, want_labels, sizeof want_labels);
    assert_memory_equal(b.before, want_before, sizeof want_before);
    assert_true(b.weights[0] == 1 && fabs((double)b.weights[2] - exp(-1)) < 1e-7);
    assert_int_equal(b.positions[5], 1); /* a row stands where it stands in the other layout */
    /* Positions of a score are distances of labels: the first drafted token is 1 in both. */
    cld_score_add(&s, &b, ce, hit);
    assert_int_equal(s.position_n[0], 0);
    assert_int_equal(s.position_n[1], 2);
    assert_int_equal(s.position_hits[3], 0);
    assert_true(cld_score_accepted(&s) == 1.5);
    cld_batch_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(soft_targets_have_the_gradient_of_their_loss),
        cmocka_unit_test(dpace_weighs_rows_by_what_comes_before_and_after),
        cmocka_unit_test(prefixes_show_the_text_and_have_no_loss),
        cmocka_unit_test(prefixes_fall_off_by_a_tenth),
        cmocka_unit_test(anchor_first_shifts_the_labels),
    };
    return cmocka_run_group_tests(tests, find_cpu, close_devices);
}
