#include "check/check_gemm.h"

#include <math.h>

#include "ops/gemm_tensor.h"
#include "ops/probe.h"

enum residual { no_residual, other_residual, same_residual };

struct gemm {
    enum cld_gemm_kind kind;
    enum cld_gemm_backend backend;
    size_t m, n, k;
    enum cld_dtype a, b, c, r;
    bool bias;
    enum residual residual;
    size_t pad, skew; /* of every tensor, see struct cld_check */
};

static const char *const kind_names[] = {"NT", "NN", "TN"};
static const char *const backend_names[] = {"", "", " clblast", " sm80", " sm90a"};

/* Tensor cores take F32 operands rounded, and their sums lose a little more. */
static bool rounds(const struct gemm *p)
{
    return p->backend == CLD_GEMM_SM80 || p->backend == CLD_GEMM_SM90A;
}

/* The tensors of a case, for the body that cld_check_twice runs. */
struct operands {
    struct cld_gemm g;
    struct cld_buf *scratch;
};

static enum cld_status body(struct cld_check *c, void *arg, struct cld_error *err)
{
    struct operands *o = arg;
    return cld_gemm(c->q, &o->g, o->scratch, err);
}

static double rounded(double v)
{
    return cld_bf16_to_f32(cld_f32_to_bf16((float)v));
}

/* What the product reads of an operand, as [n_rows, n_cols], whichever way it lies in the
 * tensor. */
static void operand(const struct gemm *p, const struct cld_check_tensor *t, bool transposed,
                    size_t n_rows, size_t n_cols, double *to)
{
    for (size_t i = 0; i < n_rows; i++)
        for (size_t j = 0; j < n_cols; j++) {
            double v = t->value[transposed ? j * n_rows + i : i * n_cols + j];
            *to++ = rounds(p) ? rounded(v) : v;
        }
}

/* row [n] += x times another */
static void add_scaled(double *restrict row, double x, const double *restrict other, size_t n)
{
    for (size_t j = 0; j < n; j++)
        row[j] += x * other[j];
}

/* want [m, n] in double from a [m, k] and b [k, n]. `start` is R or NULL. */
static void reference(const struct gemm *p, const double *a, const double *b,
                      const struct cld_check_tensor *bias, const struct cld_check_tensor *start,
                      double *want)
{
    for (size_t i = 0; i < p->m; i++, want += p->n) {
        for (size_t j = 0; j < p->n; j++)
            want[j] = (bias ? bias->value[j] : 0) + (start ? start->value[i * p->n + j] : 0);
        for (size_t l = 0; l < p->k; l++)
            add_scaled(want, a[i * p->k + l], b + l * p->n, p->n);
    }
}

/* The result, and what is added to it: a bias, a residual of its own, or the result's old values.
 */
static enum cld_status declare_results(struct cld_check *c, const struct gemm *p,
                                       struct cld_check_tensor **out,
                                       struct cld_check_tensor **bias, struct cld_check_tensor **r,
                                       struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if ((p->bias && (s = cld_check_input(c, "bias", p->r, 1, p->n, 3, bias, err))) ||
        (p->residual == other_residual &&
         (s = cld_check_input(c, "r", p->r, p->m, p->n, 3, r, err))))
        return s;
    if (p->residual != same_residual)
        return cld_check_output(c, "c", p->c, p->m, p->n, out, err);
    if ((s = cld_check_input(c, "c", p->c, p->m, p->n, 3, out, err)))
        return s;
    (*out)->output = true;
    *r = *out;
    return CLD_OK;
}

static enum cld_status check_gemm_once(struct cld_check *c, const struct gemm *p,
                                       struct cld_error *err)
{
    static const char *const residual_names[] = {"", " +R", " +=C"};
    enum cld_status s = CLD_OK;
    struct cld_check_tensor *a, *b, *out, *bias = NULL, *r = NULL;
    struct operands o = {.scratch = NULL};
    double *want, *from_a, *from_b;
    bool tn = p->kind == CLD_GEMM_TN, nt = p->kind == CLD_GEMM_NT;
    cld_check_begin(c, "gemm%s %s %zux%zux%zu %s*%s->%s%s%s ld+%zu at+%zu",
                    backend_names[p->backend], kind_names[p->kind], p->m, p->n, p->k,
                    cld_dtype_name(p->a), cld_dtype_name(p->b), cld_dtype_name(p->c),
                    p->bias ? " +bias" : "", residual_names[p->residual], p->pad, p->skew);
    c->pad = p->pad;
    c->skew = p->skew;
    if (c->skip ||
        (s = cld_check_input(c, "a", p->a, tn ? p->k : p->m, tn ? p->m : p->k, 1, &a, err)) ||
        (s = cld_check_input(c, "b", p->b, nt ? p->n : p->k, nt ? p->k : p->n, 1, &b, err)) ||
        (s = declare_results(c, p, &out, &bias, &r, err)))
        goto done;
    o.g = (struct cld_gemm){.kind = p->kind,
                            .backend = p->backend,
                            .a = &a->t,
                            .b = &b->t,
                            .c = &out->t,
                            .bias = bias ? &bias->t : NULL,
                            .residual = r ? &r->t : NULL,
                            .round_to_bf16 = rounds(p)};
    if ((s = cld_buf_create(c->q, "scratch", cld_gemm_scratch_bytes(c->q, &o.g), &o.scratch, err)))
        goto done;
    if ((s = cld_check_doubles(c, p->m * p->n, &want, err)) ||
        (s = cld_check_doubles(c, p->m * p->k, &from_a, err)) ||
        (s = cld_check_doubles(c, p->k * p->n, &from_b, err)))
        goto done;
    operand(p, a, tn, p->m, p->k, from_a);
    operand(p, b, nt, p->k, p->n, from_b);
    reference(p, from_a, from_b, bias, r, want);
    if (!(s = cld_check_twice(c, body, &o, err)))
        s = cld_check_compare(c, out, want,
                              p->c == CLD_BF16 ? CLD_BOUND_BF16
                              : rounds(p)      ? CLD_BOUND_F32_TENSOR
                                               : CLD_BOUND_F32_LONG,
                              err);
    if (!s)
        cld_check_end(c);
done:
    cld_buf_free(o.scratch);
    return s;
}

/* Around the blocks, tiles and slices of all back-ends (6x16, 12x32, 64x64, 128x128, 64x192; k 16,
 * 256), primes, empty sums, one and long k. m or n may be 0: then nothing happens. */
static const size_t shapes[][3] = {
    {0, 5, 7},     {5, 0, 7},     {1, 1, 0},      {3, 37, 0},     {1, 1, 1},       {5, 15, 1},
    {6, 16, 2},    {7, 17, 3},    {11, 31, 15},   {12, 32, 16},   {13, 33, 17},    {23, 47, 5},
    {63, 65, 31},  {64, 64, 64},  {65, 63, 33},   {127, 129, 97}, {128, 128, 128}, {129, 127, 129},
    {1, 945, 192}, {257, 1, 67},  {1, 17, 3001},  {5, 37, 1543},  {64, 72, 2048},  {193, 257, 769},
    {31, 67, 255}, {73, 99, 256}, {29, 161, 257}, {1301, 19, 70}, {2047, 2049, 9},
};

static const size_t timed_shape[] = {512, 512, 512};

enum { n_shapes = sizeof shapes / sizeof *shapes };

/* The product of each kind that is timed, in the storage of the run. */
static enum cld_status check_timed(struct cld_check *c, enum cld_gemm_backend backend,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (int kind = CLD_GEMM_NT; kind <= CLD_GEMM_TN && !s; kind++) {
        const struct gemm p = {.kind = (enum cld_gemm_kind)kind,
                               .backend = backend,
                               .m = timed_shape[0],
                               .n = timed_shape[1],
                               .k = timed_shape[2],
                               .a = c->storage,
                               .b = c->storage,
                               .c = c->storage,
                               .r = c->storage};
        s = check_gemm_once(c, &p, err);
    }
    return s;
}

/* More columns of a tile than small shapes choose on Hopper: 256 and 192. */
static const size_t wide_shapes[][3] = {{2500, 1480, 72}, {1400, 2296, 136}};

/* One product of each kind for every shape; what else varies goes round with the shape, so that
 * each meets many of them without a product of all lists. */
static enum cld_status check_list(struct cld_check *c, enum cld_gemm_backend backend,
                                  const size_t (*list)[3], size_t n, struct cld_error *err)
{
    enum cld_dtype other = c->storage;
    for (size_t i = 0; i < n; i++)
        for (int kind = CLD_GEMM_NT; kind <= CLD_GEMM_TN; kind++)
            for (int round = 0; round < 2; round++) {
                size_t transpose = i + (size_t)kind + 3 * (size_t)round;
                struct gemm p = {
                    .kind = (enum cld_gemm_kind)kind,
                    .backend = backend,
                    .m = list[i][0],
                    .n = list[i][1],
                    .k = list[i][2],
                    .a = transpose % 3 == 1 ? CLD_F32 : other,
                    .b = transpose % 3 == 2 ? CLD_F32 : other,
                    .c = transpose % 3 == 2 ? CLD_F32 : other,
                    .r = other,
                    .bias = round && transpose % 2,
                    .residual = round ? (enum residual)(transpose / 2 % 3) : no_residual,
                    .pad = round ? 4 * (transpose % 2) + transpose % 5 : 0,
                    .skew = round ? 4 * (transpose % 5) + transpose % 2 : 0,
                };
                enum cld_status s = check_gemm_once(c, &p, err);
                if (s)
                    return s;
            }
    return CLD_OK;
}

static enum cld_status check_shapes(struct cld_check *c, enum cld_gemm_backend backend, size_t n,
                                    struct cld_error *err)
{
    enum cld_status s = cld_check_takes(c, true) ? check_timed(c, backend, err) : CLD_OK;
    return s || !cld_check_takes(c, false) ? s : check_list(c, backend, shapes, n, err);
}

/* SwiGLU of a GEMM's results, columns of gate and up interleaved by 8. */
static enum cld_status check_swiglu(struct cld_check *c, enum cld_gemm_backend backend, size_t m,
                                    size_t n, size_t k, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct gemm p = {.kind = CLD_GEMM_NT, .backend = backend, .m = m, .n = n, .k = k};
    struct cld_check_tensor *a, *b, *out;
    struct operands o = {.scratch = NULL};
    double *z, *want, *from_a, *from_b;
    cld_check_begin(c, "gemm%s with swiglu %zux%zux%zu", backend_names[backend], m, n, k);
    if (c->skip || (s = cld_check_input(c, "a", CLD_BF16, m, k, 1, &a, err)) ||
        (s = cld_check_output(c, "y", CLD_BF16, m, n / 2, &out, err)) ||
        (s = cld_check_doubles(c, m * (n / 2), &want, err)) ||
        (s = cld_check_doubles(c, m * n, &z, err)) ||
        (s = cld_check_doubles(c, m * k, &from_a, err)) ||
        (s = cld_check_doubles(c, k * n, &from_b, err)) ||
        (s = cld_check_input(c, "b", CLD_BF16, n, k, 0.3, &b, err)))
        return s;
    o.g = (struct cld_gemm){
        .kind = p.kind, .backend = backend, .a = &a->t, .b = &b->t, .c = &out->t, .swiglu = true};
    if ((s = cld_buf_create(c->q, "scratch", cld_gemm_scratch_bytes(c->q, &o.g), &o.scratch, err)))
        goto done;
    operand(&p, a, false, m, k, from_a);
    operand(&p, b, true, k, n, from_b);
    reference(&p, from_a, from_b, NULL, NULL, z);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n / 2; j++) {
            const double *unit = z + i * n + j / 8 * 16 + j % 8;
            want[i * (n / 2) + j] = unit[0] / (1 + exp(-unit[0])) * unit[8];
        }
    s = cld_check_twice(c, body, &o, err);
    if (!s && !(s = cld_check_compare(c, out, want, CLD_BOUND_BF16, err)))
        cld_check_end(c);
done:
    cld_buf_free(o.scratch);
    return s;
}

/* Tiles that are full and that are not, one and several of a work-group. */
static enum cld_status check_swiglus(struct cld_check *c, enum cld_gemm_backend backend,
                                     struct cld_error *err)
{
    static const size_t sizes[][3] = {{1, 16, 16},   {65, 208, 33},   {64, 192, 128},
                                      {130, 64, 17}, {257, 1040, 40}, {2500, 1488, 64}};
    enum cld_status s = CLD_OK;
    for (size_t i = 0; cld_check_takes(c, false) && i < sizeof sizes / sizeof *sizes && !s; i++)
        s = check_swiglu(c, backend, sizes[i][0], sizes[i][1], sizes[i][2], err);
    return s;
}

/* --- operands as tensor cores take them -------------------------------------------------------
 */

struct copy_case {
    size_t n, c;
    enum cld_dtype type;
    size_t pad, skew; /* of what is copied */
};

struct copy {
    struct cld_check_tensor *x, *y;
};

static enum cld_status run_copy(struct cld_check *c, void *arg, struct cld_error *err)
{
    const struct copy *o = arg;
    const struct cld_tensor *y = &o->y->t;
    const struct cld_gemm g = {.same_a = true};
    const struct cld_gemm_operands copies = {.b = {&o->x->t, false, y->offset, y->ld}};
    return cld_gemm_copy_operands(c->q, &g, &copies, y->buf, err);
}

/* Rounded, its rows at multiples of 8. */
static enum cld_status check_copy(struct cld_check *c, const struct copy_case *k,
                                  struct cld_error *err)
{
    struct copy o = {NULL, NULL};
    size_t n_cols = cld_round_up(k->c, 8);
    double *want;
    enum cld_status s = CLD_OK;
    cld_check_begin(c, "gemm operand %zux%zu %s ld+%zu at+%zu", k->n, k->c, cld_dtype_name(k->type),
                    k->pad, k->skew);
    c->pad = k->pad;
    c->skew = k->skew;
    if (c->skip || (s = cld_check_input(c, "x", k->type, k->n, k->c, 1, &o.x, err)))
        return s;
    c->pad = c->skew = 8;
    if ((s = cld_check_output(c, "y", CLD_BF16, k->n, n_cols, &o.y, err)) ||
        (s = cld_check_doubles(c, k->n * n_cols, &want, err)))
        return s;
    for (size_t i = 0; i < k->n; i++)
        for (size_t j = 0; j < k->c; j++)
            want[i * n_cols + j] = rounded(o.x->value[i * k->c + j]);
    if ((s = cld_check_twice(c, run_copy, &o, err)) ||
        (s = cld_check_compare(c, o.y, want, CLD_BOUND_EXACT, err)))
        return s;
    cld_check_end(c);
    return CLD_OK;
}

/* Around units of 8 and spans of 2048, with units that can be read at once and ones that cannot. */
static enum cld_status check_copies(struct cld_check *c, struct cld_error *err)
{
    static const struct copy_case cases[] = {
        {0, 5, CLD_BF16, 0, 0},    {1, 1, CLD_F32, 0, 0},
        {9, 72, CLD_F32, 8, 16},   {7, 136, CLD_BF16, 3, 5},
        {3, 2051, CLD_BF16, 5, 0}, {1024, 2048, CLD_F32, 0, 0}, /* timed */
    };
    enum { n = sizeof cases / sizeof *cases };
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < n && !s; i++)
        if (cld_check_takes(c, i + 1 == n))
            s = check_copy(c, &cases[i], err);
    return s;
}

/* --- what the table runs -----------------------------------------------------------------------
 */

enum cld_status cld_check_gemm(struct cld_check *c, struct cld_error *err)
{
    enum cld_status s = check_shapes(c, CLD_GEMM_PORTABLE, n_shapes, err);
    bool copies = c->storage == CLD_BF16 && cld_queue_class(c->q) == CLD_CLASS_GPU &&
                  cld_queue_device(c->q)->max_group >= 256; /* of cl/gemm_operand.cl */
    return s || !copies ? s : check_copies(c, err);
}

enum cld_status cld_check_gemm_clblast(struct cld_check *c, struct cld_error *err)
{
    /* The same library for both families, and slow to build: once is enough, with the family that
     * the device has by itself. */
    enum cld_device_class own = cld_queue_device(c->q)->host_memory ? CLD_CLASS_CPU : CLD_CLASS_GPU;
    bool once = c->storage == CLD_F32 && cld_queue_class(c->q) == own;
    return once ? check_shapes(c, CLD_GEMM_CLBLAST, n_shapes - 1, err) : CLD_OK;
}

enum cld_status cld_check_gemm_tensor(struct cld_check *c, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    bool sm80 = cld_probe_usable(c->q, CLD_PROBE_SM80);
    bool sm90a = cld_probe_usable(c->q, CLD_PROBE_SM90A);
    if (!sm80 && !sm90a)
        cld_check_unsupported(c, "tensor cores are used through inline PTX, in kernels from source "
                                 "on NVIDIA's driver");
    if (sm80)
        s = check_shapes(c, CLD_GEMM_SM80, n_shapes, err);
    if (!s && sm90a)
        s = check_shapes(c, CLD_GEMM_SM90A, n_shapes, err);
    if (!s && sm90a && cld_check_takes(c, false))
        s = check_list(c, CLD_GEMM_SM90A, wide_shapes, sizeof wide_shapes / sizeof *wide_shapes,
                       err);
    if (!s && sm90a && c->storage == CLD_BF16)
        s = check_swiglus(c, CLD_GEMM_SM90A, err);
    return s;
}

enum cld_status cld_check_gemm_sm90a(struct cld_check *c, struct cld_error *err)
{
    return check_shapes(c, CLD_GEMM_SM90A, n_shapes, err);
}

/* Each shape as it is, and added to what is there, from odd places. */
static enum cld_status check_quickly(struct cld_check *c, enum cld_gemm_backend backend,
                                     struct cld_error *err)
{
    static const size_t few[][3] = {{1, 1, 1},     {7, 17, 3},      {13, 33, 1543},
                                    {129, 67, 97}, {131, 37, 1030}, {193, 257, 263}};
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < sizeof few / sizeof *few; i++)
        for (int kind = CLD_GEMM_NT; kind <= CLD_GEMM_TN; kind++)
            for (int round = 0; round < 2 && !s; round++) {
                enum cld_dtype out = kind == CLD_GEMM_TN ? CLD_F32 : c->storage;
                const struct gemm p = {.kind = (enum cld_gemm_kind)kind,
                                       .backend = backend,
                                       .m = few[i][0],
                                       .n = few[i][1],
                                       .k = few[i][2],
                                       .a = c->storage,
                                       .b = c->storage,
                                       .c = out,
                                       .r = out,
                                       .residual = round ? same_residual : no_residual,
                                       .pad = round ? 3 : 0,
                                       .skew = round ? 5 : 0};
                s = check_gemm_once(c, &p, err);
            }
    return s;
}

enum cld_status cld_check_gemm_quick(struct cld_check *c, struct cld_error *err)
{
    return check_quickly(c, CLD_GEMM_PORTABLE, err);
}

enum cld_status cld_check_gemm_sm90a_quick(struct cld_check *c, struct cld_error *err)
{
    return check_quickly(c, CLD_GEMM_SM90A, err);
}
