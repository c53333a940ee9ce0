/* gemm_cpu.c - matrix products on CPU devices: one launch of cl/gemm_cpu.cl. Its comment tells how
 * a piece of work goes; here is how large everything is. PoCL reports as local memory what a
 * core's L2 holds. */
#include <stdio.h>

#include "gemm_backend.h"
#include "size.h"

enum {
    depth_most = 256,                /* steps of a slice of k */
    depth_unit = 4,                  /* steps that are laid out together */
    together_most = 4,               /* panels that are laid out together */
    strips_most_bytes = 1024 * 1024, /* of A: no L2 of a core is much larger */
    local_least_bytes = 32 * 1024,
    local_slack_bytes = 1024, /* what alignment may take */
};

struct plan {
    struct cld_gemm_size size;
    size_t mr, nr;             /* rows and columns of a register block */
    size_t n_blocks, n_panels; /* of C */
    size_t n_slices, kc;       /* slices of k and their steps */
    size_t n_together;         /* panels */
    size_t n_ranges, n_groups; /* pieces of work: ranges of rows by groups of panels */
    size_t strips_bytes, panels_bytes;
};

/* PACK_STRIP of gemm_pack.clh. */
static size_t strip_bytes(size_t width, size_t n_steps)
{
    return cld_mul((width * n_steps + 2 + 15) / 16 * 16 | 16, sizeof(float));
}

/* What a piece costs, in products of one step of k: its block of C, and laying out its rows and
 * columns, where an element takes as long as half a vector of products. */
static double piece_cost(const struct plan *p, size_t n_ranges, size_t n_groups)
{
    double rows = (double)(cld_div_up(p->n_blocks, n_ranges) * p->mr);
    double columns = (double)(cld_div_up(p->n_panels, n_groups) * p->nr);
    return rows * columns + (double)p->nr / 2 * (rows + columns);
}

/* Cuts C in pieces for n_cores: as few ranges as the cache allows, and more of both kinds where
 * cores would stand idle. Cores that fall behind get fewer pieces, so more are worth a little. */
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

static bool is_wide(const struct cld_queue *q)
{
    return cld_queue_device(q)->float_width >= 16;
}

/* 24 of 32 or 12 of 16 vector registers hold sums. */
static struct plan make_plan(const struct cld_queue *q, const struct cld_gemm *g)
{
    const struct cld_device_info *d = cld_queue_device(q);
    struct plan p = {.size = cld_gemm_size(g)};
    p.mr = is_wide(q) ? 12 : 6;
    p.nr = is_wide(q) ? 32 : 16;
    p.n_blocks = cld_div_up(p.size.m, p.mr);
    p.n_panels = cld_div_up(p.size.n, p.nr);
    size_t local = d->local_bytes - local_slack_bytes;
    size_t depth = cld_min(depth_most, local / 2 / strip_bytes(p.nr, depth_unit) * depth_unit);
    p.n_slices = cld_max(1, cld_div_up(p.size.k, depth));
    p.kc = cld_round_up(cld_div_up(cld_max(p.size.k, 1), p.n_slices), depth_unit);
    p.n_together = cld_min(cld_max(local / 4 / strip_bytes(p.nr, p.kc), 1), together_most);
    p.panels_bytes = cld_mul(p.n_together, strip_bytes(p.nr, p.kc));
    size_t room = cld_min(local - p.panels_bytes, strips_most_bytes);
    cut(&p, d->n_compute_units, cld_max(room / strip_bytes(p.mr, p.kc), 1));
    p.strips_bytes = cld_mul(cld_div_up(p.n_blocks, p.n_ranges), strip_bytes(p.mr, p.kc));
    return p;
}

/* Sums between slices. */
static size_t scratch_bytes(const struct cld_queue *q, const struct cld_gemm *g)
{
    struct plan p = make_plan(q, g);
    size_t n = cld_mul(cld_mul(p.n_blocks, p.mr), cld_mul(p.n_panels, p.nr));
    return p.n_slices < 2 ? 0 : cld_mul(n, sizeof(float));
}

static bool supports(const struct cld_queue *q, const struct cld_gemm *g)
{
    (void)g;
    return cld_queue_device(q)->local_bytes >= local_least_bytes;
}

static const char *name(const struct cld_queue *q)
{
    return is_wide(q) ? "portable (cpu, 12x32 register blocks)"
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
    snprintf(options, sizeof options,
             "-DMR=%zu -DNV=%zu -DA_ROWS=%d -DTA=%s -DB_ROWS=%d -DTB=%s %s", p.mr, p.nr / 16,
             g->kind != CLD_GEMM_TN, cld_tensor_elem(a), g->kind == CLD_GEMM_NT,
             cld_tensor_elem(b), out);
    struct cld_kernel_spec spec = {"gemm_cpu.cl", "gemm_cpu", options, 1};
    return CLD_RUN(q, &spec, cld_mul(p.n_ranges, p.n_groups), err, CLD_U64(p.size.m),
                   CLD_U64(p.size.n), CLD_U64(p.size.k), CLD_U64(p.kc), CLD_U64(p.n_ranges),
                   CLD_U64(p.n_groups), CLD_U64(p.n_together), CLD_BUF(a->buf), CLD_U64(a->offset),
                   CLD_U64(a->ld), CLD_BUF(b->buf), CLD_U64(b->offset), CLD_U64(b->ld),
                   CLD_GEMM_OUT_ARGS(g), CLD_BUF(scratch), CLD_LOCAL(p.strips_bytes),
                   CLD_LOCAL(p.panels_bytes));
}

const struct cld_gemm_ops cld_gemm_cpu = {CLD_GEMM_PORTABLE, "32 KiB of local memory", name,
                                          supports, scratch_bytes, false, false, run};
