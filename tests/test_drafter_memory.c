/* The table of a drafter's memory: tensors that share bytes are never needed at the same time, as
 * the table says and as the lists of operations run; overlaps that are planted are found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/drafter_memory.h"
#include "must.h"
#include "test_device.h"

struct variant {
    size_t n_layers, intermediate, n_cached;
    enum cld_dtype storage;
    bool train, recompute, soft;
};

static const struct variant variants[] = {
    {.n_layers = 3, .intermediate = 80, .storage = CLD_F32},
    {.n_layers = 2, .intermediate = 80, .storage = CLD_BF16, .n_cached = 64},
    {.n_layers = 3, .intermediate = 80, .storage = CLD_F32, .train = true},
    {.n_layers = 3, .intermediate = 80, .storage = CLD_BF16, .train = true, .soft = true},
    {.n_layers = 1, .intermediate = 80, .storage = CLD_F32, .train = true, .recompute = true},
    {.n_layers = 2, .intermediate = 80, .storage = CLD_BF16, .train = true, .recompute = true},
    {.n_layers = 4, .intermediate = 2000, .storage = CLD_F32, .train = true, .recompute = true},
    {.n_layers = 2, .intermediate = 2000, .storage = CLD_BF16, .train = true, .recompute = true},
    {.n_layers = 5,
     .intermediate = 2000,
     .storage = CLD_BF16,
     .train = true,
     .recompute = true,
     .soft = true},
};
enum { N_VARIANTS = sizeof variants / sizeof *variants, LAST_WIDE = 6 };

struct rig {
    struct cld_queue *q;
    struct cld_plan *plan;
    struct cld_tensor embed, head, norm, features;
    struct cld_drafter d;
};

static struct rig *open_rig(const struct variant *v)
{
    struct rig *r = calloc(1, sizeof *r);
    const struct cld_drafter_config c = {.n_layers = v->n_layers,
                                         .hidden = 48,
                                         .n_heads = 4,
                                         .n_kv_heads = 2,
                                         .head_dim = 24,
                                         .intermediate = v->intermediate,
                                         .vocab = 61,
                                         .n_taps = 2,
                                         .block_size = 4,
                                         .mask_token = 60,
                                         .rms_norm_eps = 1e-6,
                                         .rope_theta = 10000};
    const struct cld_drafter_limits limits = {
        .n_ctx = 80, .n_blocks = 6, .loss_chunk = 8, .n_positions = 44, .n_cached = v->n_cached};
    const struct cld_drafter_options options = {
        .storage = v->storage,
        .attention = CLD_ATTENTION_SPARSE,
        .train = v->train,
        .recompute = v->recompute,
        .features = v->soft ? &r->features : NULL,
        .objective = {.soft = v->soft, .state_at = 2 * 48, .norm = &r->norm}};
    r->q = open_queue(CLD_KERNEL_FAMILY_AUTO);
    r->plan = cld_plan_new();
    cld_plan_tensor(r->plan, &r->embed, v->storage, 61, 48, CLD_FOR_FROZEN, "embed");
    cld_plan_tensor(r->plan, &r->head, v->storage, 61, 48, CLD_FOR_FROZEN, "head");
    cld_plan_tensor(r->plan, &r->norm, v->storage, 1, 48, CLD_FOR_FROZEN, "norm");
    cld_plan_tensor(r->plan, &r->features, v->storage, 80, 3 * 48, CLD_FOR_INPUT, "features");
    OK(cld_drafter_describe(&r->d, &c, &limits, &options, r->q, &r->embed, &r->head, r->plan,
                            &err));
    return r;
}

static void close_rig(struct rig *r)
{
    cld_plan_free(r->plan);
    cld_queue_close(r->q);
    cld_drafter_free(&r->d);
    free(r);
}

static struct cld_drafter_row *row_of(struct cld_drafter *d, const struct cld_tensor *t)
{
    for (size_t i = 0; i < d->memory.n; i++)
        if (d->memory.rows[i].t == t)
            return &d->memory.rows[i];
    fail_msg("a tensor has no row");
    return NULL;
}

static size_t n_sharing(const struct cld_drafter *d)
{
    size_t n = 0;
    for (size_t i = 0; i < d->memory.n; i++)
        n += d->memory.rows[i].base != i;
    return n;
}

static void every_tensor_lies_inside_its_buffer_as_the_table_says(void **state)
{
    (void)state;
    for (size_t v = 0; v < N_VARIANTS; v++) {
        struct rig *r = open_rig(&variants[v]);
        const struct cld_drafter_row *rows = r->d.memory.rows;
        OK(cld_drafter_check_memory(&r->d, &err));
        assert_true(n_sharing(&r->d) > 0 || variants[v].n_layers == 1);
        assert_int_equal(r->d.recomputes_qk, variants[v].intermediate == 2000);
        for (size_t i = 0; i < r->d.memory.n; i++) {
            const struct cld_tensor *t = rows[i].t;
            size_t bytes = cld_dtype_bytes(t->type);
            assert_true(t->type == rows[i].type && t->n_rows == rows[i].n_rows &&
                        t->n_cols == rows[i].n_cols && t->ld >= t->n_cols);
            assert_int_equal(t->offset * bytes, rows[i].at_bytes);
            assert_true(rows[i].at_bytes + cld_drafter_row_bytes(&rows[i]) <=
                        cld_drafter_row_bytes(&rows[rows[i].base]));
        }
        close_rig(r);
    }
}

/* --- what operations do with it ----------------------------------------------------------------
 */

/* Which row wrote each pair of bytes of each buffer last. */
struct replay {
    struct cld_drafter *d;
    uint16_t **owner;
};

static size_t n_pairs(const struct cld_drafter_row *r)
{
    return cld_min(cld_drafter_row_bytes(r), (size_t)1 << 28) / 2;
}

/* The row of a tensor, or of the tensor that it is a part of; NULL: no tensor of the table. */
static struct cld_drafter_row *row_behind(struct cld_drafter *d, const struct cld_tensor *t)
{
    for (size_t i = 0; i < d->config.n_layers; i++)
        if (t == &d->layers[i].gate || t == &d->layers[i].up)
            t = &d->layers[i].gate_up;
    if (t == &d->d_q || t == &d->d_k || t == &d->d_v || t == &d->d_kv)
        t = &d->d_qkv;
    for (size_t i = 0; t && i < d->memory.n; i++)
        if (d->memory.rows[i].t == t)
            return &d->memory.rows[i];
    return NULL;
}

/* All bytes of the tensor are what was written as this tensor. */
static bool still_has(const struct replay *p, const struct cld_tensor *t)
{
    const struct cld_drafter_row *r = row_behind(p->d, t);
    uint16_t id = r ? (uint16_t)(1 + (r - p->d->memory.rows)) : 0;
    for (size_t i = 0; r && i < n_pairs(r); i++)
        if (p->owner[r->base][r->at_bytes / 2 + i] != id)
            return false;
    return true;
}

static void writes(const struct replay *p, const struct cld_tensor *t)
{
    const struct cld_drafter_row *r = row_behind(p->d, t);
    for (size_t i = 0; r && i < n_pairs(r); i++)
        p->owner[r->base][r->at_bytes / 2 + i] = (uint16_t)(1 + (r - p->d->memory.rows));
}

/* Reads all of `in`, writes all of `out`: not over `in`, unless the table says that this is done
 * element by element. */
static bool step(const struct replay *p, const struct cld_tensor *const *in, size_t n_in,
                 const struct cld_tensor *const *out, size_t n_out)
{
    bool good = true;
    for (size_t i = 0; i < n_in; i++)
        good &= still_has(p, in[i]);
    for (size_t i = 0; i < n_out; i++)
        writes(p, out[i]);
    for (size_t i = 0; i < n_in; i++) {
        bool in_place = false;
        for (size_t k = 0; k < n_out; k++) {
            const struct cld_drafter_row *r = row_behind(p->d, out[k]);
            in_place |= r && r->place == CLD_PLACE_IN_PLACE && r->over == in[i];
        }
        good &= in_place || still_has(p, in[i]);
    }
    return good;
}

static bool run(const struct replay *p, const struct cld_graph *g, size_t first, size_t n)
{
    enum { N_IN = 6, N_OUT = 3 };
    for (size_t i = first; i < first + n; i++) {
        const struct cld_tensor *in[N_IN], *out[N_OUT];
        for (size_t k = 0; k < N_IN; k++)
            in[k] = g->ops[i].in[k].t;
        for (size_t k = 0; k < N_OUT; k++)
            out[k] = g->ops[i].out[k].t;
        if (!step(p, in, N_IN, out, N_OUT))
            return false;
    }
    return true;
}

static bool run_loss(const struct replay *p)
{
    struct cld_drafter *d = p->d;
    const struct cld_tensor *const steps[][2] = {{&d->z, &d->zs},            /* gathered */
                                                 {&d->zs, &d->logits},       /* by the head */
                                                 {&d->logits, &d->d_logits}, /* cross-entropy */
                                                 {&d->d_logits, &d->dzs},    /* by the head */
                                                 {&d->dzs, &d->dz}};         /* scattered */
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (i == 2 && d->options.objective.soft)
            writes(p, &d->target_logits);
        if (!step(p, &steps[i][0], 1, &steps[i][1], 1) ||
            (i == 2 && d->options.objective.soft && !still_has(p, &d->target_logits)))
            return false;
    }
    return true;
}

/* As cld_drafter_forward, _loss and _backward run the lists. */
static bool run_all(const struct replay *p)
{
    struct cld_drafter *d = p->d;
    const struct cld_tensor *const inputs[] = {&d->features, &d->positions, &d->draft_ids, &d->rope,
                                               &d->visited};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        writes(p, inputs[i]);
    if (!run(p, &d->forward, 0, d->forward.n) || !d->options.train)
        return still_has(p, &d->z);
    if (!run_loss(p) || !run(p, &d->backward, 0, d->tail_first))
        return false;
    for (size_t i = d->config.n_layers; i-- > 0;) {
        const struct cld_drafter_layer *l = &d->layers[i];
        if ((d->options.recompute && !run(p, &d->forward, l->fwd_first, l->fwd_n - 1)) ||
            !run(p, &d->backward, l->back_first, l->back_n))
            return false;
    }
    size_t done = d->layers[0].back_first + d->layers[0].back_n;
    return run(p, &d->backward, done, d->backward.n - done);
}

/* Whether each operation reads what was written for it. */
static bool replays(struct cld_drafter *d)
{
    struct replay p = {d, calloc(d->memory.n, sizeof *p.owner)};
    size_t most = 0; /* a planted tensor may pass the end of its buffer */
    for (size_t i = 0; i < d->memory.n; i++)
        most = cld_max(most, n_pairs(&d->memory.rows[i]));
    for (size_t i = 0; i < d->memory.n; i++)
        p.owner[i] = calloc(2 * most, sizeof **p.owner);
    bool good = run_all(&p);
    for (size_t i = 0; i < d->memory.n; i++)
        free(p.owner[i]);
    free(p.owner);
    return good;
}

static void operations_read_what_was_written_for_them(void **state)
{
    (void)state;
    for (size_t v = 0; v < N_VARIANTS; v++) {
        struct rig *r = open_rig(&variants[v]);
        if (!replays(&r->d))
            fail_msg("variant %zu overwrites what it needs", v);
        close_rig(r);
    }
}

/* --- planted -----------------------------------------------------------------------------------
 */

/* Both find that `t` may not lie over `other`. */
static void refuses(struct rig *r, const struct cld_tensor *t, const struct cld_tensor *other)
{
    struct cld_drafter_row *row = row_of(&r->d, t), *over = row_of(&r->d, other), was = *row;
    row->base = over->base;
    row->at_bytes = over->at_bytes;
    FAILS(cld_drafter_check_memory(&r->d, &err), CLD_E_INTERNAL, "share bytes");
    assert_false(replays(&r->d));
    *row = was;
    OK(cld_drafter_check_memory(&r->d, &err));
}

static void planted_overlaps_are_found(void **state)
{
    (void)state;
    struct rig *r = open_rig(&variants[LAST_WIDE]);
    struct cld_drafter *d = &r->d;
    refuses(r, &d->d_o, &d->d_qkv);
    refuses(r, &d->layers[0].lse, &d->layers[0].o);
    refuses(r, &d->layers[0].y1, &d->d_qkv);
    refuses(r, &d->zs, &d->logits);
    refuses(r, &d->layers[1].x_in, &d->layers[0].x_in);
    refuses(r, &d->z, &d->zs);
    refuses(r, &d->d_ctx, &d->ctx);
    close_rig(r);
    /* Without recompute, activations live until the backward pass. */
    r = open_rig(&variants[2]);
    refuses(r, &r->d.layers[1].y1, &r->d.layers[0].y1);
    refuses(r, &r->d.d_o, &r->d.layers[0].x_mid);
    close_rig(r);
}

static void a_life_that_is_too_long_for_its_place_is_found(void **state)
{
    (void)state;
    struct rig *r = open_rig(&variants[LAST_WIDE]);
    struct cld_drafter_row *z = row_of(&r->d, &r->d.z);
    z->last_back = CLD_STEP_LOSS; /* logits overlay it */
    FAILS(cld_drafter_check_memory(&r->d, &err), CLD_E_INTERNAL, "'logits of a chunk' and 'z'");
    z->last_back = CLD_STEP_LOSS_ROWS;
    OK(cld_drafter_check_memory(&r->d, &err));
    row_of(&r->d, &r->d.dx)->place = CLD_PLACE_OVER; /* not written by the step that reads */
    FAILS(cld_drafter_check_memory(&r->d, &err), CLD_E_INTERNAL, "'x out' and 'dx'");
    close_rig(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_lies_inside_its_buffer_as_the_table_says),
        cmocka_unit_test(operations_read_what_was_written_for_them),
        cmocka_unit_test(planted_overlaps_are_found),
        cmocka_unit_test(a_life_that_is_too_long_for_its_place_is_found),
    };
    return cmocka_run_group_tests(tests, find_cpu, close_devices);
}
