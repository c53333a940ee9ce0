/* The check of attention on the first device, in both kernel families and storages, and what a
 * check with tolerances cannot see: bits that must or must not change, and calls that must be
 * refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "check/check.h"
#include "ops/op_attention.h"
#include "test_device.h"

/* The first device as it is, with the other family, and as a GPU with small groups. */
enum { CPU, GPU, SMALL_GPU, N_QUEUES };

struct world {
    struct cld_queue *q[N_QUEUES];
};

static int setup(void **state)
{
    static struct world w;
    struct cld_error err = CLD_ERROR_INIT;
    if (find_cpu(NULL))
        return -1;
    struct cld_device_info small = cpu;
    const struct cld_queue_options options = {.name = "test", .family = CLD_KERNEL_FAMILY_GPU};
    small.max_group = 64;
    w.q[CPU] = open_queue(CLD_KERNEL_FAMILY_CPU);
    w.q[GPU] = open_queue(CLD_KERNEL_FAMILY_GPU);
    if (cld_queue_open(&small, &options, &w.q[SMALL_GPU], &err)) {
        print_error("%s\n", err.what);
        return -1;
    }
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < N_QUEUES; i++)
        cld_queue_close(w->q[i]);
    return close_devices(NULL);
}

/* Sparse and dense, both families, both storages. */
static void test_values(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_check_options options = {.op = "attention", .seed = 1};
    size_t n_passed = 0, n_failed = 0;
    (void)state;
    if (cld_check_device(&cpu, &options, &n_passed, &n_failed, &err))
        fail_msg("%s", err.what);
    assert_int_equal(n_failed, 0);
    assert_true(n_passed > 280);
}

/* --- bits ------------------------------------------------------------------------------------- */

enum { N_HEADS = 3, N_KV_HEADS = 1, HEAD_DIM = 64, BLOCK = 8, N_BLOCKS = 7, N_CTX = 100 };
enum { N_Q = N_BLOCKS * BLOCK, N_KEYS = N_CTX + N_Q };
enum { Q_COLS = N_HEADS * HEAD_DIM, K_COLS = N_KV_HEADS * HEAD_DIM };

/* Two documents, [0, 40) and [40, 100); one block without context and one that is padding. No row
 * sees tokens 33 to 39 and 77 to 99. */
static const struct cld_block blocks[N_BLOCKS] = {{0, 5},   {0, 20},  {0, 33}, {40, 40},
                                                  {40, 60}, {40, 77}, {0, -1}};

struct host {
    float q[N_Q * Q_COLS], k[N_KEYS * K_COLS], v[N_KEYS * K_COLS], d_o[N_Q * Q_COLS];
    float o[N_Q * Q_COLS], lse[N_HEADS * N_Q], d_q[N_Q * Q_COLS];
    float d_k[N_KEYS * K_COLS], d_v[N_KEYS * K_COLS];
    int32_t visited[4];
};

/* An attention of this size on a queue. */
struct rig {
    struct cld_queue *q;
    struct cld_span spans[N_Q];
    struct cld_attention_plan plan;
    struct cld_attention_mask mask;
    struct cld_buf *scratch;
    struct cld_tensor tq, tk, tv, to, tlse, td_o, td_q, td_k, td_v, tvisited;
};

#define OK(call) assert_int_equal(call, CLD_OK)

static struct cld_tensor tensor(struct rig *r, const char *name, enum cld_dtype type, size_t n_rows,
                                size_t n_cols)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_tensor t = {name, type, n_rows, n_cols, n_cols, NULL, 0};
    OK(cld_buf_create(r->q, name, cld_tensor_bytes(&t), &t.buf, &err));
    return t;
}

static struct rig *rig_open(struct cld_queue *q, enum cld_attention_backend backend, size_t window)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->q = q;
    cld_mask_draft(blocks, N_BLOCKS, BLOCK, N_CTX, window, true, r->spans);
    OK(cld_attention_plan(q, backend, N_Q, N_KEYS, N_HEADS, N_KV_HEADS, HEAD_DIM, CLD_F32, CLD_F32,
                          true, &r->plan, &err));
    OK(cld_buf_create(q, "mask", r->plan.mask_bytes, &r->mask.buf, &err));
    OK(cld_buf_create(q, "scratch", r->plan.scratch_bytes, &r->scratch, &err));
    OK(cld_attention_mask_set(q, &r->plan, r->spans, N_Q, N_KEYS, &r->mask, &err));
    r->tq = tensor(r, "q", CLD_F32, N_Q, Q_COLS);
    r->tk = tensor(r, "k", CLD_F32, N_KEYS, K_COLS);
    r->tv = tensor(r, "v", CLD_F32, N_KEYS, K_COLS);
    r->to = tensor(r, "o", CLD_F32, N_Q, Q_COLS);
    r->tlse = tensor(r, "lse", CLD_F32, N_HEADS, N_Q);
    r->td_o = tensor(r, "d_o", CLD_F32, N_Q, Q_COLS);
    r->td_q = tensor(r, "d_q", CLD_F32, N_Q, Q_COLS);
    r->td_k = tensor(r, "d_k", CLD_F32, N_KEYS, K_COLS);
    r->td_v = tensor(r, "d_v", CLD_F32, N_KEYS, K_COLS);
    r->tvisited = tensor(r, "visited", CLD_I32, 1, 4);
    return r;
}

static void rig_close(struct rig *r)
{
    const struct cld_tensor *all[] = {&r->tq,   &r->tk,   &r->tv,   &r->to,   &r->tlse,
                                      &r->td_o, &r->td_q, &r->td_k, &r->td_v, &r->tvisited};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        cld_buf_free(all[i]->buf);
    cld_buf_free(r->mask.buf);
    cld_buf_free(r->scratch);
    cld_attention_mask_free(&r->mask);
    free(r);
}

static struct cld_attention call_of(struct rig *r)
{
    return (struct cld_attention){&r->plan, &r->mask, &r->tq,       &r->tk,    &r->tv,
                                  &r->to,   &r->tlse, &r->tvisited, r->scratch};
}

static void rig_run(struct rig *r, struct host *h)
{
    struct cld_error err = CLD_ERROR_INIT;
    const struct cld_attention a = call_of(r);
    memset(h->visited, 0, sizeof h->visited);
    OK(cld_buf_write(r->tq.buf, 0, h->q, sizeof h->q, &err));
    OK(cld_buf_write(r->tk.buf, 0, h->k, sizeof h->k, &err));
    OK(cld_buf_write(r->tv.buf, 0, h->v, sizeof h->v, &err));
    OK(cld_buf_write(r->td_o.buf, 0, h->d_o, sizeof h->d_o, &err));
    OK(cld_buf_write(r->tvisited.buf, 0, h->visited, sizeof h->visited, &err));
    OK(cld_attention_forward(r->q, &a, &err));
    OK(cld_attention_backward(r->q, &a, &r->td_o, &r->td_q, &r->td_k, &r->td_v, &err));
    OK(cld_buf_read(r->to.buf, 0, h->o, sizeof h->o, &err));
    OK(cld_buf_read(r->tlse.buf, 0, h->lse, sizeof h->lse, &err));
    OK(cld_buf_read(r->td_q.buf, 0, h->d_q, sizeof h->d_q, &err));
    OK(cld_buf_read(r->td_k.buf, 0, h->d_k, sizeof h->d_k, &err));
    OK(cld_buf_read(r->td_v.buf, 0, h->d_v, sizeof h->d_v, &err));
    OK(cld_buf_read(r->tvisited.buf, 0, h->visited, sizeof h->visited, &err));
}

static void fill(float *x, size_t n, uint64_t key)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)cld_random_normal(cld_random_u64(3, CLD_RANDOM_TEST, key, i, 0));
}

static struct host *host_open(void)
{
    struct host *h = calloc(1, sizeof *h);
    assert_non_null(h);
    fill(h->q, N_Q * Q_COLS, 1);
    fill(h->k, N_KEYS * K_COLS, 2);
    fill(h->v, N_KEYS * K_COLS, 3);
    fill(h->d_o, N_Q * Q_COLS, 4);
    return h;
}

static bool sees(const struct cld_span *s, int key)
{
    return (s->lo <= key && key < s->hi) || (s->own_lo <= key && key < s->own_hi);
}

static bool row_equal(const struct host *a, const struct host *b, int row)
{
    for (int h = 0; h < N_HEADS; h++)
        if (a->lse[h * N_Q + row] != b->lse[h * N_Q + row])
            return false;
    return !memcmp(a->o + row * Q_COLS, b->o + row * Q_COLS, Q_COLS * sizeof(float)) &&
           !memcmp(a->d_q + row * Q_COLS, b->d_q + row * Q_COLS, Q_COLS * sizeof(float));
}

static bool key_equal(const struct host *a, const struct host *b, int key)
{
    return !memcmp(a->d_k + key * K_COLS, b->d_k + key * K_COLS, K_COLS * sizeof(float)) &&
           !memcmp(a->d_v + key * K_COLS, b->d_v + key * K_COLS, K_COLS * sizeof(float));
}

/* Other keys where the row does not look leave every bit of its results; the last key it sees does
 * not. Other d_o in a row leaves the gradients of keys it does not see. */
static void check_row(struct rig *r, const struct host *base, int row)
{
    const struct cld_span *s = &r->spans[row];
    struct host *h = host_open();
    for (int key = 0; key < N_KEYS; key++)
        if (!sees(s, key)) {
            fill(h->k + key * K_COLS, K_COLS, 1000 + (uint64_t)key);
            fill(h->v + key * K_COLS, K_COLS, 2000 + (uint64_t)key);
        }
    rig_run(r, h);
    assert_true(row_equal(base, h, row));
    memcpy(h->k, base->k, sizeof h->k);
    memcpy(h->v, base->v, sizeof h->v);
    int last = s->lo < s->hi ? s->hi - 1 : s->own_hi - 1;
    if (s->own_lo < s->own_hi) {
        fill(h->k + last * K_COLS, K_COLS, 1);
        rig_run(r, h);
        assert_false(row_equal(base, h, row));
        memcpy(h->k, base->k, sizeof h->k);
    }
    fill(h->d_o + row * Q_COLS, Q_COLS, 5);
    rig_run(r, h);
    for (int key = 0; key < N_KEYS; key++)
        assert_true(key_equal(base, h, key) == !sees(s, key));
    free(h);
}

static void check_bits(struct cld_queue *q, enum cld_attention_backend backend, size_t window)
{
    struct rig *r = rig_open(q, backend, window);
    struct host *base = host_open();
    rig_run(r, base);
    for (int pass = 0; pass < 3; pass++)
        assert_int_equal(base->visited[pass], r->mask.tiles.n_listed);
    assert_int_equal(base->visited[3], 0);
    for (int b = 0; b < N_BLOCKS; b++)
        check_row(r, base, b * BLOCK + b);
    for (int key = 0; key < N_KEYS; key++) {
        bool seen = false;
        for (int row = 0; row < N_Q; row++)
            seen = seen || sees(&r->spans[row], key);
        for (int c = 0; c < K_COLS && !seen; c++) {
            assert_true(base->d_k[key * K_COLS + c] == 0);
            assert_true(base->d_v[key * K_COLS + c] == 0);
        }
    }
    for (int i = (N_BLOCKS - 1) * BLOCK * Q_COLS; i < N_Q * Q_COLS; i++) /* the padding block */
        assert_true(base->o[i] == 0 && base->d_q[i] == 0);
    free(base);
    rig_close(r);
}

static void test_bits(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < N_QUEUES; i++) {
        check_bits(w->q[i], CLD_ATTENTION_SPARSE, 0);
        check_bits(w->q[i], CLD_ATTENTION_SPARSE, 24);
    }
    check_bits(w->q[CPU], CLD_ATTENTION_DENSE, 24);
}

/* NaN reaches every row that sees it: nothing hides it. */
static void test_nan(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < 2 * N_QUEUES; i++) {
        enum cld_attention_backend b = i % 2 ? CLD_ATTENTION_DENSE : CLD_ATTENTION_SPARSE;
        struct rig *r = rig_open(w->q[i / 2], b, 0);
        struct host *h = host_open();
        int key = 57; /* seen by block 4 and 5 */
        h->k[key * K_COLS + 9] = NAN;
        rig_run(r, h);
        for (int row = 0; row < N_Q; row++)
            for (int c = 0; c < Q_COLS; c++)
                assert_true(!!isnan(h->o[row * Q_COLS + c]) == sees(&r->spans[row], key));
        free(h);
        rig_close(r);
    }
}

/* --- refusals --------------------------------------------------------------------------------- */

static enum cld_status plan(struct world *w, size_t n_heads, size_t n_kv_heads, size_t head_dim)
{
    struct cld_attention_plan p;
    struct cld_error err = CLD_ERROR_INIT;
    return cld_attention_plan(w->q[CPU], CLD_ATTENTION_SPARSE, 8, 8, n_heads, n_kv_heads, head_dim,
                              CLD_F32, CLD_F32, true, &p, &err);
}

static void test_plan(void **state)
{
    struct world *w = *state;
    struct cld_attention_plan p;
    struct cld_error err = CLD_ERROR_INIT;
    OK(plan(w, 4, 2, 96));
    assert_int_equal(plan(w, 4, 2, 0), CLD_E_USAGE);
    assert_int_equal(plan(w, 4, 2, 12), CLD_E_USAGE);
    assert_int_equal(plan(w, 4, 2, 264), CLD_E_USAGE);
    assert_int_equal(plan(w, 4, 3, 64), CLD_E_USAGE);
    assert_int_equal(plan(w, 4, 0, 64), CLD_E_USAGE);
    assert_int_equal(plan(w, 0, 1, 64), CLD_E_USAGE);
    assert_int_equal(plan(w, 2, 4, 64), CLD_E_USAGE);
    /* Dense is planned with all its scores, however many: the budget decides, not this. */
    OK(cld_attention_plan(w->q[CPU], CLD_ATTENTION_DENSE, 100000, 300000, 32, 8, 128, CLD_BF16,
                          CLD_F32, true, &p, &err));
    assert_true(cld_attention_dense_bytes(100000, 300000, 32) == (size_t)100000 * 300000 * 32 * 4);
    assert_true(p.scratch_bytes == (size_t)100000 * 300000 * 32 * 4 + (size_t)100000 * 32 * 4);
    OK(cld_attention_plan(w->q[CPU], CLD_ATTENTION_SPARSE, 100000, 300000, 32, 8, 128, CLD_BF16,
                          CLD_F32, true, &p, &err));
    assert_true(p.scratch_bytes == (size_t)100000 * 32 * 4);
    /* Tensor cores are asked for where instructions for them can be written down, nowhere else. */
    for (int i = CPU; i <= GPU; i++) {
        OK(cld_attention_plan(w->q[i], CLD_ATTENTION_SPARSE, 64, 128, 8, 2, 128, CLD_BF16, CLD_BF16,
                              true, &p, &err));
        if (!cld_queue_has_ptx(w->q[i]))
            assert_non_null(strstr(p.variant, i == CPU ? "sparse cpu" : "sparse gpu"));
    }
}

static void test_wrong_calls(void **state)
{
    struct world *w = *state;
    struct cld_error err = CLD_ERROR_INIT;
    struct rig *r = rig_open(w->q[CPU], CLD_ATTENTION_SPARSE, 0);
    struct cld_attention a = call_of(r);
    struct cld_tensor bad = cld_tensor_rows(&r->tk, 0, N_KEYS - 1);
    a.k = &bad;
    assert_int_equal(cld_attention_forward(r->q, &a, &err), CLD_E_INTERNAL);
    assert_non_null(strstr(err.what, "'k' is F32 [155, 64], not F32 [156, 64]"));
    a = call_of(r);
    bad = r->to;
    bad.type = CLD_BF16;
    a.o = &bad;
    assert_int_equal(cld_attention_forward(r->q, &a, &err), CLD_E_INTERNAL);
    a = call_of(r);
    a.scratch = NULL;
    assert_int_equal(cld_attention_backward(r->q, &a, &r->td_o, &r->td_q, &r->td_k, &r->td_v, &err),
                     CLD_E_INTERNAL);
    a = call_of(r);
    assert_int_equal(cld_attention_backward(r->q, &a, &r->td_o, &r->td_q, &r->td_q, &r->td_v, &err),
                     CLD_E_INTERNAL);
    r->plan.backward = false;
    assert_int_equal(cld_attention_backward(r->q, &a, &r->td_o, &r->td_q, &r->td_k, &r->td_v, &err),
                     CLD_E_INTERNAL);
    assert_int_equal(
        cld_attention_mask_set(r->q, &r->plan, r->spans, N_Q + 1, N_KEYS, &r->mask, &err),
        CLD_E_INTERNAL);
    rig_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan),   cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_bits),   cmocka_unit_test(test_nan),
        cmocka_unit_test(test_values),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
