/* gemm_cpu.c - matrix products on CPU devices: one launch of cl/gemm_cpu.cl. */
#include <stdio.h>
#include <stdlib.h>

#include "gemm_backend.h"
#include "size.h"

static size_t env(const char *name, size_t d) { const char *e = getenv(name); return e ? strtoul(e, NULL, 10) : d; }

enum {
    depth_most = 192,          /* steps of a slice: a panel of it and a strip of A fit an L1 */
    depth_unit = 4,            /* steps that are laid out together */
    strips_most = 1024 * 1024, /* bytes of A laid out; no L2 of a core is much larger */
    strip_spare = 2,           /* floats behind a strip, as in gemm_pack.clh */
};

struct plan {
    struct cld_gemm_size size;
    size_t mr, nr;             /* rows and columns of a register block */
    size_t n_blocks, n_panels; /* of C */
    size_t n_slices, kc;       /* slices of k and their steps */
    size_t n_ranges, n_groups; /* pieces of work: ranges of rows by groups of panels */
    size_t strips_bytes, panel_bytes;
};

static size_t strip_bytes(const struct plan *p)
{
    return cld_mul(p->mr * p->kc + strip_spare, sizeof(float));
}

/* What a piece costs, in products of one step of k: its block of C, and laying out its rows and
 * columns, an element of which costs as much as half a vector. */
static double piece_cost(const struct plan *p, size_t n_ranges, size_t n_groups)
{
    double rows = (double)(cld_div_up(p->n_blocks, n_ranges) * p->mr);
    double columns = (double)(cld_div_up(p->n_panels, n_groups) * p->nr);
    return rows * columns + (double)p->nr / 2 * (rows + columns);
}

/* Cuts C in pieces for n_cores: as few ranges as the cache allows, or more of both kinds where cores
 * would stand idle. Pieces are handed out in turns; several turns even out what a core loses to
 * others, so a few more are worth a little. */
static void cut(struct plan *p, size_t n_cores, size_t blocks_most)
{
    size_t least = cld_div_up(p->n_blocks, blocks_most);
    double best = 0;
    for (size_t r = least; r <= cld_min(p->n_blocks, least + n_cores); r++)
        for (size_t g = 1; g <= p->n_panels && (g == 1 || r * g <= 4 * n_cores); g++) {
            double cost = (double)cld_div_up(r * g, n_cores) * piece_cost(p, r, g) *
                          (1 + 0.05 * (double)n_cores / (double)(r * g));
            if (best == 0 || cost < best) {
                best = cost;
                p->n_ranges = r;
                p->n_groups = g;
            }
        }
}

static struct plan make_plan(const struct cld_queue *q, const struct cld_gemm *g)
{
    const struct cld_device_info *d = cld_queue_device(q);
    struct plan p = {.size = cld_gemm_size(g)};
    bool wide = d->float_width >= 16;
    p.mr = wide ? 12 : 6;
    p.nr = wide ? 32 : 16;
    p.n_blocks = cld_div_up(p.size.m, p.mr);
    p.n_panels = cld_div_up(p.size.n, p.nr);
    p.n_slices = cld_max(1, cld_div_up(p.size.k, env("KC", depth_most)));
    p.kc = cld_round_up(cld_div_up(p.size.k, p.n_slices), depth_unit);
    p.panel_bytes = cld_mul(p.kc * p.nr, sizeof(float));
    size_t room = cld_min(d->local_bytes / 4 * 3, strips_most);
    cut(&p, d->n_compute_units, cld_max(room / strip_bytes(&p), 1));
    p.strips_bytes = cld_mul(cld_div_up(p.n_blocks, p.n_ranges), strip_bytes(&p));
    return p;
}

/* The sums between slices. */
static size_t scratch_bytes(const struct cld_queue *q, const struct cld_gemm *g)
{
    struct plan p = make_plan(q, g);
    return p.n_slices < 2 ? 0 : cld_mul3(cld_mul(p.n_blocks, p.mr), cld_mul(p.n_panels, p.nr),
                                         sizeof(float));
}

static bool supports(const struct cld_queue *q, const struct cld_gemm *g)
{
    (void)g;
    return cld_queue_device(q)->local_bytes >= 32 * 1024;
}

static const char *name(const struct cld_queue *q)
{
    return cld_queue_device(q)->float_width >= 16 ? "portable (cpu, 12x32 register blocks)"
                                                  : "portable (cpu, 6x16 register blocks)";
}

static enum cld_status run(struct cld_queue *q, const struct cld_gemm *g, struct cld_buf *scratch,
                           struct cld_error *err)
{
    char options[192], out[64];
    struct plan p = make_plan(q, g);
    const struct cld_tensor *a = g->a, *b = g->b;
    if (!p.size.k)
        return cld_gemm_sum(q, g, 0, NULL, err);
    cld_gemm_out_options(g, out, sizeof out);
    snprintf(options, sizeof options, "-DMR=%zu -DNV=%zu -DA_ROWS=%d -DTA=%s -DB_ROWS=%d -DTB=%s %s",
             p.mr, p.nr / 16, g->kind != CLD_GEMM_TN, cld_tensor_elem(a), g->kind == CLD_GEMM_NT,
             cld_tensor_elem(b), out);
    struct cld_kernel_spec spec = {"gemm_cpu.cl", "gemm_cpu", options, 1};
    return CLD_RUN(q, &spec, cld_mul(p.n_ranges, p.n_groups), err, CLD_U64(p.size.m),
                   CLD_U64(p.size.n), CLD_U64(p.size.k), CLD_U64(p.kc), CLD_U64(p.n_ranges),
                   CLD_U64(p.n_groups), CLD_BUF(a->buf), CLD_U64(a->offset), CLD_U64(a->ld),
                   CLD_BUF(b->buf), CLD_U64(b->offset), CLD_U64(b->ld), CLD_GEMM_OUT_ARGS(g),
                   CLD_BUF(scratch), CLD_LOCAL(p.strips_bytes), CLD_LOCAL(p.panel_bytes));
}

const struct cld_gemm_ops cld_gemm_cpu = {CLD_GEMM_PORTABLE, "32 KiB of local memory", name,
                                          supports, scratch_bytes, run};
