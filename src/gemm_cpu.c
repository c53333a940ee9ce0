/* gemm_cpu.c - matrix products on CPU devices: cl/gemm_pack.cl, then cl/gemm_cpu.cl. */
#include <stdio.h>
#include <stdlib.h>

#include "gemm_backend.h"
#include "size.h"

/* Bits of an operand's flags in gemm_pack.cl. */
enum { is_bf16 = 1, by_rows = 2 };

static size_t env(const char *name, size_t d) { const char *e = getenv(name); return e ? strtoul(e, NULL, 10) : d; }

/* One operand as the kernels see it: `lines` (rows of op(A), columns of op(B)) of k elements. */
struct operand {
    const struct cld_tensor *t;
    size_t n_lines, width; /* width: lines of a block */
    bool rows;             /* a line lies along a row of t */
    bool pack;
    size_t at; /* where its strips begin in the scratch, in elements */
};

struct plan {
    struct cld_gemm_size size;
    size_t mr, nv;
    struct operand a, b;
    size_t kc;                /* steps of a slice of k */
    size_t sums_at, n_scratch; /* elements */
    size_t n_down, n_across;  /* pieces of work */
};

static size_t n_blocks(const struct operand *o)
{
    return cld_div_up(o->n_lines, o->width);
}

static struct plan make_plan(const struct cld_queue *q, const struct cld_gemm *g)
{
    struct plan p = {.size = cld_gemm_size(g)};
    bool wide = cld_queue_device(q)->float_width >= 16;
    size_t m = p.size.m, n = p.size.n, k = p.size.k;
    p.mr = env("MR", wide ? 12 : 6);
    p.nv = env("NV", wide ? 2 : 1);
    p.a = (struct operand){g->a, m, p.mr, g->kind != CLD_GEMM_TN, false, 0};
    p.b = (struct operand){g->b, n, 16 * p.nv, g->kind == CLD_GEMM_NT, false, 0};
    p.a.pack = g->a->type != CLD_F32 || m < p.mr || env("PA", 1);
    p.b.pack = g->b->type != CLD_F32 || p.b.rows || n < p.b.width || env("PB", 1);
    size_t slices = cld_max(1, cld_div_up(k, env("KC", 512)));
    p.kc = cld_div_up(k, slices);
    if (p.a.pack)
        p.n_scratch = cld_mul3(n_blocks(&p.a), p.a.width, k);
    if (p.b.pack) {
        p.b.at = p.n_scratch;
        p.n_scratch = cld_add(p.n_scratch, cld_mul3(n_blocks(&p.b), p.b.width, k));
    }
    p.sums_at = p.n_scratch;
    if (slices > 1)
        p.n_scratch = cld_add(p.n_scratch, cld_mul3(n_blocks(&p.a), n_blocks(&p.b),
                                                    p.a.width * p.b.width));
    p.n_down = cld_div_up(n_blocks(&p.a), env("MB", 16));
    p.n_across = cld_div_up(n_blocks(&p.b), env("NB", 4));
    return p;
}

static size_t scratch_bytes(const struct cld_queue *q, const struct cld_gemm *g)
{
    return cld_mul(make_plan(q, g).n_scratch, sizeof(float));
}

static bool supports(const struct cld_queue *q, const struct cld_gemm *g)
{
    (void)q;
    (void)g;
    return true;
}

static const char *name(const struct cld_queue *q)
{
    return cld_queue_device(q)->float_width >= 16 ? "portable (cpu, 12x32 register blocks)"
                                                  : "portable (cpu, 6x16 register blocks)";
}

static size_t strips(const struct operand *o)
{
    return o->pack ? n_blocks(o) : 0;
}

static unsigned flags(const struct operand *o)
{
    return (o->t->type == CLD_BF16 ? is_bf16 : 0) | (o->rows ? by_rows : 0);
}

static enum cld_status pack(struct cld_queue *q, const struct plan *p, struct cld_buf *scratch,
                            struct cld_error *err)
{
    const struct operand *a = &p->a, *b = &p->b;
    static const struct cld_kernel_spec spec = {"gemm_pack.cl", "gemm_pack", "", 1};
    return CLD_RUN(q, &spec, strips(a) + strips(b), err, CLD_U64(p->size.k), CLD_BUF(a->t->buf),
                   CLD_U64(a->t->offset), CLD_U64(a->t->ld), CLD_I32(flags(a)),
                   CLD_U64(a->n_lines), CLD_I32(a->width), CLD_U64(strips(a)), CLD_BUF(b->t->buf),
                   CLD_U64(b->t->offset), CLD_U64(b->t->ld), CLD_I32(flags(b)),
                   CLD_U64(b->n_lines), CLD_I32(b->width), CLD_U64(strips(b)), CLD_BUF(scratch),
                   CLD_U64(a->at), CLD_U64(b->at));
}

/* How the kernel finds the blocks of an operand: buffer, begin, elements from one step of k to the
 * next, elements from one line to the next, first line of the last block. */
#define OPERAND_ARGS(o)                                                                           \
    CLD_BUF((o)->pack ? scratch : (o)->t->buf), CLD_U64((o)->pack ? (o)->at : (o)->t->offset),    \
        CLD_U64((o)->pack ? (o)->width : (o)->t->ld),                                             \
        CLD_U64((o)->pack ? p.size.k : (o)->rows ? (o)->t->ld : 1),                               \
        CLD_U64((o)->pack ? (n_blocks(o) - 1) * (o)->width : (o)->n_lines - (o)->width)

static enum cld_status run(struct cld_queue *q, const struct cld_gemm *g, struct cld_buf *scratch,
                           struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char options[96], out[64];
    struct plan p = make_plan(q, g);
    if (!p.size.k)
        return cld_gemm_sum(q, g, 0, NULL, err);
    if ((p.a.pack || p.b.pack) && (s = pack(q, &p, scratch, err)))
        return s;
    cld_gemm_out_options(g, out, sizeof out);
    snprintf(options, sizeof options, "-DMR=%zu -DNV=%zu -DA_ROWS=%d %s", p.mr, p.nv,
             p.a.rows && !p.a.pack, out);
    struct cld_kernel_spec spec = {"gemm_cpu.cl", "gemm_cpu", options, 1};
    return CLD_RUN(q, &spec, p.n_down * p.n_across, err, CLD_U64(p.size.m), CLD_U64(p.size.n),
                   CLD_U64(p.size.k), CLD_U64(p.kc), OPERAND_ARGS(&p.a), OPERAND_ARGS(&p.b),
                   CLD_GEMM_OUT_ARGS(g), CLD_BUF(scratch), CLD_U64(p.sums_at),
                   CLD_U64(p.n_down), CLD_U64(p.n_across));
}

const struct cld_gemm_ops cld_gemm_cpu = {CLD_GEMM_PORTABLE, "any product", name, supports,
                                          scratch_bytes, run};
