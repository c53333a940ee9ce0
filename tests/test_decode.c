/* Decoding on the first CPU device, in both kernel families: blocks of incremental decoding against
 * the training layout, cropping, the same text with and without a drafter, sampled distributions.
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
#include "model/decode.h"
#include "ops/tensor_io.h"
#include "must.h"

enum { BLOCK = 4, HIDDEN = 48, TAPS = 2, TOKENS = 64 };

static struct cld_devices *devices;
static struct cld_device_info cpu;

/* A random target and a random drafter on it. */
struct rig {
    struct cld_queue *q;
    struct cld_plan *plan;
    struct cld_target target;
    struct cld_drafter drafter;
    struct cld_decoder decoder;
    struct cld_batch_rules rules;
    size_t vocab;
};

struct kind {
    enum cld_kernel_family family;
    enum cld_dtype storage;
    bool causal;
    size_t vocab;
    bool alone;     /* no drafter decodes */
    size_t n_texts; /* in the KV cache; 0: one */
};

static struct rig *open_rig(const struct kind *k)
{
    static const int taps[TAPS] = {0, 2};
    struct rig *r = calloc(1, sizeof *r);
    struct cld_model_config config = {.model_type = "qwen3",
                                      .n_layers = 4,
                                      .hidden = HIDDEN,
                                      .n_heads = 4,
                                      .n_kv_heads = 2,
                                      .head_dim = 16,
                                      .intermediate = 72,
                                      .vocab = k->vocab,
                                      .max_positions = 4 * TOKENS,
                                      .rms_norm_eps = 1e-6,
                                      .rope = {.theta = 10000},
                                      .qk_norm = true,
                                      .bos = -1,
                                      .pad = -1};
    struct cld_drafter_config draft = {.n_layers = 3,
                                       .hidden = HIDDEN,
                                       .n_heads = 4,
                                       .n_kv_heads = 2,
                                       .head_dim = 24,
                                       .intermediate = 80,
                                       .vocab = k->vocab,
                                       .n_taps = TAPS,
                                       .block_size = BLOCK,
                                       .mask_token = (int32_t)k->vocab - 1,
                                       .rms_norm_eps = 1e-6,
                                       .rope_theta = 10000,
                                       .sliding = {true, false, true},
                                       .sliding_window = 9,
                                       .sliding_causal = k->causal};
    size_t n_cached = cld_decode_cached(TOKENS, TOKENS, BLOCK);
    struct cld_target_options target = {.storage = k->storage,
                                        .n_tokens = TOKENS,
                                        .n_positions = n_cached,
                                        .taps = taps,
                                        .n_taps = TAPS,
                                        .n_logits = TOKENS,
                                        .n_cached = n_cached,
                                        .n_texts = k->n_texts};
    struct cld_drafter_limits limits = {TOKENS, 8, 2, n_cached + BLOCK, n_cached};
    struct cld_drafter_options options = {.storage = k->storage, .features = &r->target.taps};
    struct cld_queue_options queue = {.name = "test", .family = k->family};
    r->vocab = k->vocab;
    r->rules = (struct cld_batch_rules){BLOCK, draft.mask_token, 0, false, false};
    OK(cld_queue_open(&cpu, &queue, &r->q, &err));
    r->plan = cld_plan_new();
    OK(cld_target_describe(&r->target, &config, &target, r->q, r->plan, &err));
    OK(cld_drafter_describe(&r->drafter, &draft, &limits, &options, r->q, &r->target.embed,
                            &r->target.head, r->plan, &err));
    cld_decoder_describe(&r->decoder, &r->target, k->alone ? NULL : &r->drafter, &r->rules,
                         r->plan);
    OK(cld_plan_create(r->plan, r->q, &err));
    OK(cld_target_random(&r->target, 11, &err));
    OK(cld_drafter_prepare(&r->drafter, &err));
    OK(cld_drafter_init(&r->drafter, 3, 0.15, &err));
    return r;
}

static void close_rig(struct rig *r)
{
    cld_plan_free(r->plan);
    cld_queue_close(r->q);
    cld_decoder_free(&r->decoder);
    cld_target_free(&r->target);
    cld_drafter_free(&r->drafter);
    free(r);
}

static void random_text(const struct rig *r, uint64_t stream, int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)cld_random_below(cld_random_u64(5, CLD_RANDOM_TEST, stream, i, 0),
                                           r->vocab - 1);
}

static enum cld_status extend(struct rig *r, const int32_t *ids, size_t n, struct cld_error *err)
{
    struct cld_target_run run = {0, n};
    return cld_target_extend(&r->target, ids, &run, 1, err);
}

/* Of n rows from `first` on, at most BLOCK + 1. */
static enum cld_status logits(struct rig *r, size_t first, size_t n, struct cld_error *err)
{
    int32_t rows[BLOCK + 1];
    for (size_t i = 0; i < n; i++)
        rows[i] = (int32_t)(first + i);
    return cld_target_logits(&r->target, rows, n, err);
}

static float *read_rows(const struct cld_tensor *t, size_t n)
{
    float *v = malloc(cld_max(1, n * t->n_cols) * sizeof *v);
    OK(cld_tensor_read(t, 0, n, v, &err));
    return v;
}

/* --- the training layout against incremental decoding ------------------------------------------
 */

enum { N_ANCHORS = 6 };
/* First a prompt of 13 tokens; then cycles that give 1, 4, 2, 3, 4 tokens: blocks that are thrown
 * away whole and ones that are accepted whole. */
static const int32_t anchors[N_ANCHORS] = {13, 14, 18, 20, 23, 27};

/* Logits [N_ANCHORS * BLOCK, V] of all blocks in one batch; taps [27, TAPS * HIDDEN] in *taps. */
static float *of_training(struct rig *r, const int32_t *ids, float **taps)
{
    uint8_t mask[TOKENS] = {0};
    int32_t doc[TOKENS] = {0};
    struct cld_document d = {
        .ids = ids, .mask = mask, .n = TOKENS, .anchors = anchors, .n_anchors = N_ANCHORS};
    struct cld_batch b = {0};
    size_t n_rows = N_ANCHORS * BLOCK;
    float *all = malloc(n_rows * r->vocab * sizeof *all);
    OK(cld_batch_build(&b, &d, 1, &r->rules, false, &err));
    OK(cld_target_forward(&r->target, b.ctx_ids, b.positions, doc, b.n_ctx, &err));
    *taps = read_rows(&r->target.taps, 27);
    OK(cld_drafter_forward(&r->drafter, &b, &err));
    for (size_t i = 0; i < N_ANCHORS; i++) {
        OK(cld_drafter_logits(&r->drafter, i * BLOCK, BLOCK, &err));
        OK(cld_tensor_read(&r->drafter.logits, 0, BLOCK, all + i * BLOCK * r->vocab, &err));
    }
    cld_batch_free(&b);
    return all;
}

static float *of_decoding(struct rig *r, const int32_t *ids, float *taps)
{
    struct cld_batch b = {0};
    size_t n_cached = 0, n_out = BLOCK * r->vocab;
    float *all = malloc(N_ANCHORS * n_out * sizeof *all);
    cld_target_crop(&r->target, 0, 0);
    for (size_t i = 0; i < N_ANCHORS; i++) {
        size_t n = (size_t)anchors[i];
        int32_t block[BLOCK];
        if (i) { /* the last cycle's block: the accepted tokens, then the others */
            for (size_t o = 0; o < BLOCK; o++)
                block[o] = n_cached + o < n ? ids[n_cached + o] : (int32_t)(i + o) % 5;
            OK(extend(r, block, BLOCK, &err));
            cld_target_crop(&r->target, 0, n);
        } else {
            OK(extend(r, ids, n, &err));
        }
        OK(cld_tensor_read(&r->target.taps, 0, n - n_cached, taps + n_cached * TAPS * HIDDEN,
                           &err));
        r->drafter.n_cached = n_cached;
        OK(cld_batch_continue(&b, ids, n_cached, n, &r->rules, &err));
        OK(cld_drafter_forward(&r->drafter, &b, &err));
        OK(cld_drafter_logits(&r->drafter, 0, BLOCK, &err));
        OK(cld_tensor_read(&r->drafter.logits, 0, BLOCK, all + i * n_out, &err));
        n_cached = n;
    }
    r->drafter.n_cached = 0;
    OK(cld_drafter_check_tiles(&r->drafter, &err));
    cld_batch_free(&b);
    return all;
}

static void blocks_are_those_of_the_training_layout(void **state)
{
    (void)state;
    static const struct {
        struct kind k;
        double limit;
    } cases[] = {
        {{CLD_KERNEL_FAMILY_CPU, CLD_F32, true, 61, false, 0}, 1e-4},
        {{CLD_KERNEL_FAMILY_CPU, CLD_F32, false, 61, false, 0}, 1e-4},
        {{CLD_KERNEL_FAMILY_GPU, CLD_F32, true, 61, false, 0}, 1e-4},
        {{CLD_KERNEL_FAMILY_GPU, CLD_F32, false, 61, false, 0}, 1e-4},
        {{CLD_KERNEL_FAMILY_GPU, CLD_BF16, true, 61, false, 0}, 3e-2},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct rig *r = open_rig(&cases[c].k);
        int32_t ids[TOKENS];
        float *want_taps, taps[27 * TAPS * HIDDEN];
        random_text(r, 1, ids, TOKENS);
        float *want = of_training(r, ids, &want_taps), *got = of_decoding(r, ids, taps);
        size_t n_out = BLOCK * r->vocab;
        double worst_taps = cld_relative_error(taps, want_taps, 27 * TAPS * HIDDEN), worst = 0;
        for (size_t i = 0; i < N_ANCHORS; i++)
            worst = fmax(worst, cld_relative_error(got + i * n_out, want + i * n_out, n_out));
        print_message("family %d, %s, %s: logits %.1e, taps %.1e\n", cases[c].k.family,
                      cld_dtype_name(cases[c].k.storage), cases[c].k.causal ? "causal" : "open",
                      worst, worst_taps);
        assert_true(worst <= cases[c].limit);
        assert_true(worst_taps <= cases[c].limit);
        /* It does see what it should: another context gives other logits. */
        random_text(r, 2, ids, 3);
        free(got);
        got = of_decoding(r, ids, taps);
        assert_true(cld_relative_error(got, want, n_out) > 100 * cases[c].limit ||
                    cases[c].k.storage != CLD_F32);
        assert_true(cld_relative_error(got, want, n_out) > 2 * worst);
        free(want);
        free(got);
        free(want_taps);
        close_rig(r);
    }
}

static void what_was_cropped_leaves_no_trace(void **state)
{
    (void)state;
    for (int family = CLD_KERNEL_FAMILY_CPU; family <= CLD_KERNEL_FAMILY_GPU; family++) {
        struct rig *r =
            open_rig(&(struct kind){(enum cld_kernel_family)family, CLD_F32, true, 61, false, 0});
        int32_t ids[TOKENS];
        float *rows[2][2];
        random_text(r, 3, ids, TOKENS);
        for (int junk = 0; junk < 2; junk++) {
            cld_target_crop(&r->target, 0, 0);
            OK(extend(r, ids, 20, &err));
            if (junk) {
                OK(extend(r, ids + 40, 7, &err));
                cld_target_crop(&r->target, 0, 20);
                cld_target_crop(&r->target, 0, 60); /* crops nothing */
                assert_int_equal(r->target.n_cached[0], 20);
            }
            OK(extend(r, ids + 20, 5, &err));
            OK(logits(r, 0, 5, &err));
            rows[junk][0] = read_rows(&r->target.logits, 5);
            rows[junk][1] = read_rows(&r->target.taps, 5);
        }
        assert_memory_equal(rows[0][0], rows[1][0], 5 * r->vocab * sizeof(float));
        assert_memory_equal(rows[0][1], rows[1][1], 5 * TAPS * HIDDEN * sizeof(float));
        /* Without the crop they would differ. */
        cld_target_crop(&r->target, 0, 0);
        OK(extend(r, ids, 20, &err));
        OK(extend(r, ids + 40, 7, &err));
        OK(extend(r, ids + 20, 5, &err));
        OK(logits(r, 0, 5, &err));
        float *other = read_rows(&r->target.logits, 5);
        assert_memory_not_equal(rows[0][0], other, 5 * r->vocab * sizeof(float));
        free(other);
        for (int i = 0; i < 4; i++)
            free(rows[i / 2][i % 2]);
        close_rig(r);
    }
}

/* Three texts in the KV cache at once, prompts and single tokens in the same passes, against
 * each by itself: also after one ended and another took its place. */
static void several_texts_do_not_meet(void **state)
{
    (void)state;
    static const size_t places[4] = {2, 0, 1, 0};
    for (int family = CLD_KERNEL_FAMILY_CPU; family <= CLD_KERNEL_FAMILY_GPU; family++) {
        struct kind k = {(enum cld_kernel_family)family, CLD_F32, true, 61, true, 0};
        struct rig *one = open_rig(&k);
        k.n_texts = 3;
        struct rig *r = open_rig(&k);
        int32_t ids[4][24], now[TOKENS];
        random_text(r, 8, &ids[0][0], 4 * 24);
        /* Pass by pass: tokens of each text; the fourth comes to the place of the second. */
        static const size_t n_new[4][4] = {
            {9, 14, 0, 0}, {1, 1, 11, 0}, {1, 0, 1, 17}, {1, 0, 2, 1}};
        size_t n_done[4] = {0};
        for (size_t pass = 0; pass < 4; pass++) {
            struct cld_target_run runs[4];
            int32_t rows[4];
            size_t n_runs = 0, n = 0;
            if (pass == 2)
                cld_target_crop(&r->target, places[3], 0);
            for (size_t t = 0; t < 4; t++) {
                if (!n_new[pass][t])
                    continue;
                memcpy(now + n, ids[t] + n_done[t], n_new[pass][t] * sizeof *now);
                n += n_new[pass][t];
                n_done[t] += n_new[pass][t];
                rows[n_runs] = (int32_t)n - 1;
                runs[n_runs++] = (struct cld_target_run){places[t], n_new[pass][t]};
            }
            OK(cld_target_extend(&r->target, now, runs, n_runs, &err));
            OK(cld_target_logits(&r->target, rows, n_runs, &err));
            float *got = read_rows(&r->target.logits, n_runs);
            for (size_t t = 0, i = 0; t < 4; t++) {
                if (!n_new[pass][t])
                    continue;
                cld_target_crop(&one->target, 0, 0);
                OK(extend(one, ids[t], n_done[t], &err));
                OK(logits(one, n_done[t] - 1, 1, &err));
                float *want = read_rows(&one->target.logits, 1);
                assert_true(cld_relative_error(got + i++ * r->vocab, want, r->vocab) < 1e-4);
                free(want);
            }
            free(got);
        }
        int32_t doc[1] = {0};
        FAILS(cld_target_forward(&r->target, doc, doc, doc, 1, &err), CLD_E_INTERNAL, "");
        FAILS(cld_target_extend(&r->target, now, &(struct cld_target_run){3, 1}, 1, &err),
              CLD_E_INTERNAL, "");
        close_rig(one);
        close_rig(r);
    }
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct rig *r = open_rig(&(struct kind){CLD_KERNEL_FAMILY_CPU, CLD_F32, true, 61, false, 0});
    struct cld_decode_rules rules = {.n_new = TOKENS, .top_p = 1};
    struct cld_decode_stats stats = {0};
    int32_t ids[2 * TOKENS] = {0};
    size_t n_cached = r->target.options.n_cached, n = 0;
    for (; n + TOKENS <= n_cached; n += TOKENS)
        OK(extend(r, ids, TOKENS, &err));
    FAILS(extend(r, ids, n_cached - n + 1, &err), CLD_E_INTERNAL, "");
    assert_int_equal(r->target.n_cached[0], n);
    FAILS(
        cld_decode_text(&r->decoder, &rules, CLD_DECODE_DRAFTED, ids, TOKENS + 1, 0, &stats, &err),
        CLD_E_INPUT, "");
    rules.n_new++;
    FAILS(cld_decode_text(&r->decoder, &rules, CLD_DECODE_DRAFTED, ids, TOKENS, 0, &stats, &err),
          CLD_E_INPUT, "");
    assert_int_equal(stats.n_texts, 0);
    close_rig(r);
}

/* --- the same text -----------------------------------------------------------------------------
 */

struct text {
    int32_t ids[2 * TOKENS + BLOCK];
    size_t n;
};

static struct text decode(struct rig *r, const struct cld_decode_rules *rules,
                          enum cld_decode_way way, uint64_t number, struct cld_decode_stats *stats)
{
    int32_t prompt[TOKENS];
    struct text t;
    size_t n = 5 + number % 7;
    random_text(r, 100 + number, prompt, n);
    OK(cld_decode_text(&r->decoder, rules, way, prompt, n, number, stats, &err));
    assert_memory_equal(r->decoder.ids, prompt, n * sizeof *prompt);
    t.n = r->decoder.n;
    memcpy(t.ids, r->decoder.ids, t.n * sizeof *t.ids);
    return t;
}

static void assert_adds_up(const struct cld_decode_stats *s)
{
    size_t n_cycles = 0, n_tokens = 0, n_accepted = 0;
    for (size_t i = 0; i <= CLD_MAX_BLOCK; i++) {
        n_cycles += s->by_tokens[i];
        n_tokens += i * s->by_tokens[i];
        assert_true(!s->by_tokens[i] || (i >= 1 && i <= BLOCK));
    }
    for (size_t i = 1; i < BLOCK; i++) {
        assert_true(s->accepted[i] <= s->offered[i] &&
                    (i == 1 || s->offered[i] <= s->accepted[i - 1]));
        n_accepted += s->accepted[i];
    }
    assert_int_equal(n_cycles, s->n_cycles);
    assert_int_equal(n_tokens, s->n_tokens);
    /* Each cycle adds the accepted tokens and a bonus, except one that ends with a drafted eos
     * token.
     */
    assert_true(n_tokens <= n_accepted + n_cycles);
}

static void the_drafter_changes_nothing(void **state)
{
    (void)state;
    static const struct cld_decode_rules all_rules[] = {
        {.n_new = 24, .temperature = 0, .top_p = 1},
        {.n_new = 24, .temperature = 1, .top_p = 1, .seed = 1},
        {.n_new = 24, .temperature = 0.7, .top_p = 0.8, .seed = 2},
    };
    struct cld_decode_stats all = {0};
    for (int family = CLD_KERNEL_FAMILY_CPU; family <= CLD_KERNEL_FAMILY_GPU; family++)
        for (size_t k = 0; k < 3; k++) {
            struct rig *r = open_rig(
                &(struct kind){(enum cld_kernel_family)family, CLD_F32, true, 3, false, 0});
            struct cld_decode_stats drafted = {0}, by_block = {0}, by_token = {0};
            size_t n_differ = 0, n_all = 0;
            for (uint64_t i = 0; i < 6; i++) {
                struct text a = decode(r, &all_rules[k], CLD_DECODE_DRAFTED, i, &drafted);
                struct text b = decode(r, &all_rules[k], CLD_DECODE_BY_BLOCK, i, &by_block);
                struct text c = decode(r, &all_rules[k], CLD_DECODE_BY_TOKEN, i, &by_token);
                assert_int_equal(a.n, r->decoder.n_prompt + 24);
                assert_int_equal(a.n, b.n);
                assert_memory_equal(a.ids, b.ids, a.n * sizeof *a.ids);
                assert_int_equal(a.n, c.n);
                for (size_t j = 0; j < a.n; j++)
                    n_differ += a.ids[j] != c.ids[j];
                n_all += 24;
            }
            assert_adds_up(&drafted);
            assert_adds_up(&by_block);
            cld_decode_stats_add(&all, &drafted);
            assert_int_equal(by_block.n_cycles, 6 * 23);
            assert_int_equal(by_token.n_tokens, 6 * 23);
            assert_true(drafted.n_cycles < by_block.n_cycles);
            print_message(
                "family %d, temperature %g: %.2f tokens a cycle; %zu of %zu tokens differ "
                "token by token\n",
                family, all_rules[k].temperature, cld_decode_tokens_per_cycle(&drafted), n_differ,
                n_all);
            close_rig(r);
        }
    /* At every place of a block some tokens were accepted, and some were not. */
    for (size_t o = 1; o < BLOCK; o++)
        assert_true(all.accepted[o] > 0 && all.accepted[o] < all.offered[o]);
}

static void seeds_and_numbers_make_texts(void **state)
{
    (void)state;
    struct rig *r = open_rig(&(struct kind){CLD_KERNEL_FAMILY_CPU, CLD_F32, true, 61, false, 0});
    struct cld_decode_rules rules = {.n_new = 16, .temperature = 1, .top_p = 1, .seed = 1};
    struct cld_decode_stats stats = {0};
    struct text a = decode(r, &rules, CLD_DECODE_DRAFTED, 0, &stats);
    struct text again = decode(r, &rules, CLD_DECODE_DRAFTED, 0, &stats);
    rules.seed = 2;
    struct text b = decode(r, &rules, CLD_DECODE_DRAFTED, 0, &stats);
    assert_int_equal(a.n, again.n);
    assert_memory_equal(a.ids, again.ids, a.n * sizeof *a.ids);
    assert_memory_not_equal(a.ids, b.ids, a.n * sizeof *a.ids);
    close_rig(r);
}

static void eos_ends_a_text(void **state)
{
    (void)state;
    struct rig *r = open_rig(&(struct kind){CLD_KERNEL_FAMILY_CPU, CLD_F32, true, 7, false, 0});
    struct cld_decode_rules rules = {.n_new = 40, .temperature = 1.5, .top_p = 1, .seed = 5};
    struct cld_decode_stats drafted = {0}, by_block = {0};
    size_t n_ended = 0;
    r->target.config.eos[0] = 1;
    r->target.config.n_eos = 1;
    for (uint64_t i = 0; i < 12; i++) {
        struct text a = decode(r, &rules, CLD_DECODE_DRAFTED, i, &drafted);
        struct text b = decode(r, &rules, CLD_DECODE_BY_BLOCK, i, &by_block);
        size_t n_prompt = r->decoder.n_prompt;
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.ids, b.ids, a.n * sizeof *a.ids);
        for (size_t j = n_prompt; j + 1 < a.n; j++)
            assert_int_not_equal(a.ids[j], 1);
        n_ended += a.ids[a.n - 1] == 1;
        assert_true(a.ids[a.n - 1] == 1 || a.n == n_prompt + 40);
    }
    assert_true(n_ended > 0);
    assert_adds_up(&drafted);
    close_rig(r);
}

static void a_target_decodes_alone(void **state)
{
    (void)state;
    struct rig *r = open_rig(&(struct kind){CLD_KERNEL_FAMILY_CPU, CLD_F32, true, 61, true, 0});
    struct rig *with = open_rig(&(struct kind){CLD_KERNEL_FAMILY_CPU, CLD_F32, true, 61, false, 0});
    struct cld_decode_rules rules = {.n_new = 12, .temperature = 1, .top_p = 1, .seed = 1};
    struct cld_decode_stats stats = {0};
    struct text a = decode(r, &rules, CLD_DECODE_BY_TOKEN, 0, &stats);
    struct text b = decode(with, &rules, CLD_DECODE_BY_TOKEN, 0, &stats);
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.ids, b.ids, a.n * sizeof *a.ids);
    close_rig(r);
    close_rig(with);
}

/* --- distributions -----------------------------------------------------------------------------
 */

/* How far a frequency over n draws may be from p: Bernstein's inequality with a chance of 1e-12. */
static double far(double p, size_t n)
{
    const double l = log(2e12);
    return sqrt(2 * p * (1 - p) * l / (double)n) + l / (3 * (double)n);
}

static bool fits(const size_t *counts, const double *p, size_t n_cells, size_t n)
{
    for (size_t i = 0; i < n_cells; i++)
        if (fabs((double)counts[i] / (double)n - p[i]) > far(p[i], n))
            return false;
    return true;
}

static void choices_have_the_probabilities_of_the_logits(void **state)
{
    (void)state;
    enum { V = 11, N = 200000 };
    static const struct {
        double temperature, top_p;
        size_t n_nucleus;
    } cases[] = {{1, 1, V}, {0.5, 1, V}, {1, 0.69, 3}, {2, 0.9, 8}, {1, 1e-9, 1}};
    /* exp: 8 4 4 2 1 1 .5 .25 .25 0 2; sum 23 */
    const float logits[V] = {logf(8),   logf(4),    logf(4),    logf(2),   0,      0,
                             logf(.5f), logf(.25f), logf(.25f), -INFINITY, logf(2)};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct cld_nucleus c = {0};
        double p[V], sum = 0, cached = 0;
        bool in[V] = {false};
        size_t counts[V] = {0}, n_in = 0;
        for (size_t i = 0; i < V; i++)
            sum += p[i] = exp((double)logits[i] / cases[k].temperature);
        /* The nucleus by its definition: take the largest until there is enough. */
        while (n_in < V && (cached < cases[k].top_p * (1 - 1e-12) || cases[k].top_p == 1)) {
            size_t best = V;
            for (size_t i = 0; i < V; i++)
                if (!in[i] && (best == V || p[i] > p[best]))
                    best = i;
            in[best] = true;
            cached += p[best] / sum;
            n_in++;
        }
        for (size_t i = 0; i < V; i++)
            p[i] = in[i] ? p[i] / sum / cached : 0;
        OK(cld_probabilities(&c, logits, V, cases[k].temperature, cases[k].top_p, &err));
        assert_int_equal(c.n, n_in);
        assert_int_equal(c.n, cases[k].n_nucleus);
        for (size_t i = 0; i < V; i++)
            assert_true(fabs(c.p[i] - p[i]) < 1e-6);
        for (size_t i = 0; i < N; i++) {
            int32_t t =
                cld_nucleus_token(&c, cld_random_unit(cld_random_u64(9, CLD_RANDOM_TEST, k, i, 0)));
            counts[t]++;
        }
        assert_true(fits(counts, p, V, N));
        assert_int_equal(counts[9], 0);
        if (n_in > 1) { /* the bound is narrow enough to refuse another distribution */
            p[0] += 0.01;
            p[1] -= 0.01;
            assert_false(fits(counts, p, V, N));
        }
        assert_int_equal(cld_nucleus_token(&c, 0), c.at[0]);
        assert_true(c.p[cld_nucleus_token(&c, 1)] > 0);
        cld_nucleus_release(&c);
    }
}

static void broken_logits_are_refused(void **state)
{
    (void)state;
    struct cld_nucleus c = {0};
    const float nan[3] = {0, NAN, 1}, infinite[2] = {INFINITY, 0}, none[2] = {-INFINITY, -INFINITY};
    FAILS(cld_probabilities(&c, nan, 3, 1, 1, &err), CLD_E_NUMERIC, "");
    FAILS(cld_probabilities(&c, infinite, 2, 1, 1, &err), CLD_E_NUMERIC, "");
    FAILS(cld_probabilities(&c, none, 2, 1, 0.5, &err), CLD_E_NUMERIC, "");
    cld_nucleus_release(&c);
}

enum { V3 = 7, N_DRAWS = 1500 };

/* Probabilities of the token after ids, by a whole forward pass. */
static void next_token(struct rig *r, const int32_t *ids, size_t n, double temperature, double *p)
{
    int32_t positions[TOKENS], doc[TOKENS] = {0};
    struct cld_nucleus c = {0};
    for (size_t i = 0; i < n; i++)
        positions[i] = (int32_t)i;
    OK(cld_target_forward(&r->target, ids, positions, doc, n, &err));
    OK(logits(r, n - 1, 1, &err));
    float *logits = read_rows(&r->target.logits, 1);
    OK(cld_probabilities(&c, logits, V3, temperature, 1, &err));
    memcpy(p, c.p, V3 * sizeof *p);
    cld_nucleus_release(&c);
    free(logits);
}

/* Marginals of the second and third new token: they come from verified blocks, the third at times
 * as a drafted token that was accepted, at times as a bonus. Numbers of texts are the draws. */
static void sampled_texts_have_the_targets_distribution(void **state)
{
    (void)state;
    struct rig *r = open_rig(&(struct kind){CLD_KERNEL_FAMILY_CPU, CLD_F32, true, V3, false, 0});
    struct cld_decode_rules rules = {.n_new = 3, .temperature = 0.6, .top_p = 1, .seed = 4};
    struct cld_decode_stats stats = {0};
    int32_t ids[8];
    double p1[V3], p2[V3], p3[V3], second[V3] = {0}, third[V3] = {0}, flat[V3];
    size_t counts[2][V3] = {{0}};
    random_text(r, 77, ids, 5);
    next_token(r, ids, 5, rules.temperature, p1);
    for (int32_t a = 0; a < V3; a++) {
        ids[5] = a;
        next_token(r, ids, 6, rules.temperature, p2);
        for (int32_t b = 0; b < V3; b++) {
            ids[6] = b;
            next_token(r, ids, 7, rules.temperature, p3);
            second[b] += p1[a] * p2[b];
            for (int32_t c = 0; c < V3; c++)
                third[c] += p1[a] * p2[b] * p3[c];
        }
    }
    for (uint64_t i = 0; i < N_DRAWS; i++) {
        OK(cld_decode_text(&r->decoder, &rules, CLD_DECODE_DRAFTED, ids, 5, i, &stats, &err));
        counts[0][r->decoder.ids[6]]++;
        counts[1][r->decoder.ids[7]]++;
    }
    assert_true(stats.accepted[1] > N_DRAWS / 50 &&
                stats.offered[1] - stats.accepted[1] > N_DRAWS / 50);
    assert_true(fits(counts[0], second, V3, N_DRAWS));
    assert_true(fits(counts[1], third, V3, N_DRAWS));
    /* The bound refuses another distribution: a flat one. */
    for (size_t i = 0; i < V3; i++)
        flat[i] = 1.0 / V3;
    assert_false(fits(counts[0], flat, V3, N_DRAWS));
    close_rig(r);
}

static int open_devices(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    if (cld_devices_open(&devices, &err) || cld_devices_find(devices, "cpu:0/1", &cpu, &err)) {
        fprintf(stderr, "%s\n", err.what);
        return -1;
    }
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    cld_devices_close(devices);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_have_the_probabilities_of_the_logits),
        cmocka_unit_test(broken_logits_are_refused),
        cmocka_unit_test(blocks_are_those_of_the_training_layout),
        cmocka_unit_test(what_was_cropped_leaves_no_trace),
        cmocka_unit_test(several_texts_do_not_meet),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(the_drafter_changes_nothing),
        cmocka_unit_test(seeds_and_numbers_make_texts),
        cmocka_unit_test(eos_ends_a_text),
        cmocka_unit_test(a_target_decodes_alone),
        cmocka_unit_test(sampled_texts_have_the_targets_distribution),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
