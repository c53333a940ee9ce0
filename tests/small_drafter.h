/* small_drafter.h - a drafter that trains, on the first CPU device, for tests of what is around it.
 */
#ifndef SMALL_DRAFTER_H
#define SMALL_DRAFTER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/random.h"
#include "model/drafter.h"
#include "must.h"

static const struct cld_drafter_config small_config = {.n_layers = 2,
                                                       .hidden = 24,
                                                       .n_heads = 4,
                                                       .n_kv_heads = 2,
                                                       .head_dim = 8,
                                                       .intermediate = 40,
                                                       .vocab = 61,
                                                       .n_taps = 2,
                                                       .block_size = 4,
                                                       .mask_token = 60,
                                                       .rms_norm_eps = 1e-6,
                                                       .rope_theta = 10000,
                                                       .sliding = {true, false},
                                                       .sliding_window = 9,
                                                       .sliding_causal = true};

struct small {
    struct cld_devices *devices;
    struct cld_queue *q;
    struct cld_plan *plan;
    struct cld_tensor embed, head;
    struct cld_drafter d;
};

static inline struct small *open_small(const struct cld_drafter_config *c, enum cld_dtype storage)
{
    struct small *r = calloc(1, sizeof *r);
    struct cld_device_info cpu;
    struct cld_drafter_limits limits = {32, 4, 2, 40, 0};
    struct cld_drafter_options options = {.storage = storage, .train = true};
    struct cld_queue_options queue = {.name = "test"};
    OK(cld_devices_open(&r->devices, &err));
    OK(cld_devices_find(r->devices, "cpu:0/1", &cpu, &err));
    OK(cld_queue_open(&cpu, &queue, &r->q, &err));
    r->plan = cld_plan_new();
    cld_plan_tensor(r->plan, &r->embed, storage, c->vocab, c->hidden, CLD_FOR_FROZEN, "embed");
    cld_plan_tensor(r->plan, &r->head, storage, c->vocab, c->hidden, CLD_FOR_FROZEN, "head");
    OK(cld_drafter_describe(&r->d, c, &limits, &options, r->q, &r->embed, &r->head, r->plan, &err));
    OK(cld_plan_create(r->plan, r->q, &err));
    return r;
}

static inline void close_small(struct small *r)
{
    cld_plan_free(r->plan);
    cld_queue_close(r->q);
    cld_drafter_free(&r->d);
    cld_devices_close(r->devices);
    free(r);
}

/* Any bits at all - denormals, infinities, NaN with any payload - in every parameter of an arena.
 */
static inline void fill_bits(struct small *r, const struct cld_tensor *arena, uint64_t stream)
{
    for (size_t i = 0; i < r->d.n_params; i++) {
        const struct cld_param *p = &r->d.params[i];
        size_t n = p->n_rows * p->n_cols;
        uint32_t *bits = malloc(n * sizeof *bits);
        for (size_t k = 0; k < n; k++) {
            uint64_t u = cld_random_u64(7, CLD_RANDOM_TEST, stream, i, k);
            bits[k] = (uint32_t)u;
            if (k % 4 == 1)
                bits[k] &= 0x807fffffu; /* a denormal or zero */
        }
        OK(cld_buf_write(arena->buf, (arena->offset + p->at) * sizeof *bits, bits, n * sizeof *bits,
                         &err));
        free(bits);
    }
}

/* The bits of one parameter in an arena; `size` bytes an element. Freed by the caller. */
static inline void *param_bits(const struct cld_tensor *arena, const struct cld_param *p,
                               size_t size)
{
    size_t n = p->n_rows * p->n_cols;
    void *bits = malloc(n * size);
    OK(cld_buf_read(arena->buf, (arena->offset + p->at) * size, bits, n * size, &err));
    return bits;
}

static inline void assert_arena_equal(struct small *a, const struct cld_tensor *x,
                                      const struct cld_tensor *y, size_t size)
{
    for (size_t i = 0; i < a->d.n_params; i++) {
        const struct cld_param *p = &a->d.params[i];
        void *left = param_bits(x, p, size), *right = param_bits(y, p, size);
        assert_memory_equal(left, right, p->n_rows * p->n_cols * size);
        free(left);
        free(right);
    }
}

/* Every stored weight is its master, rounded to nearest even. */
static inline void assert_rounded(struct small *r)
{
    for (size_t i = 0; i < r->d.n_params; i++) {
        const struct cld_param *p = &r->d.params[i];
        float *master = param_bits(&r->d.master, p, sizeof *master);
        uint16_t *weight = param_bits(&r->d.weights, p, sizeof *weight);
        for (size_t k = 0; k < p->n_rows * p->n_cols; k++)
            assert_int_equal(weight[k], cld_f32_to_bf16(master[k]));
        free(master);
        free(weight);
    }
}

#endif
