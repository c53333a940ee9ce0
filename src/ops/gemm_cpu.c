/* gemm_cpu.c - GEMM on CPU devices: one launch of cl/gemm_cpu.cl. Its comment describes how
 * a piece of work goes; here is how large everything is. PoCL reports as local memory what a
 * core's L2 holds. */
#include <stdio.h>

#include "base/size.h"
#include "ops/gemm_backend.h"
#include "ops/tunable_kernel.h"

enum {
    depth_unit = 4, /* steps that are laid out together */
    local_least_bytes = 32 * 1024,
    local_slack_bytes = 1024, /* what alignment may take */
};

/* Parameters in the order of the table below. */
enum { p_rows, p_vectors, p_depth, p_together, p_strips, p_pieces };

static bool is_wide(const struct cld_device_info *d)
{
    return d->float_width >= 16;
}

/* 24 of 32 or 12 of 16 vector registers hold sums; no L2 of a core is much larger than 1 MiB. */
static struct cld_tuned_row defaults(const struct cld_device_info *d)
{
    bool wide = is_wide(d);
    return (struct cld_tuned_row){{[p_rows] = wide ? 12 : 6,
                                   [p_vectors] = wide ? 2 : 1,
                                   [p_depth] = 256,
                                   [p_together] = 4,
                                   [p_strips] = 1024,
                                   [p_pieces] = 4}};
}

/* A block's sums, a step of its panel and an element of its strip are in registers. */
static const char *objection(const struct cld_device_info *d, const struct cld_tuned_row *row,
                             char *to, size_t n_bytes)
{
    size_t a_vector = is_wide(d) ? 1 : 2, n_registers = is_wide(d) ? 32 : 16;
    size_t wanted = (row->v[p_rows] + 1) * row->v[p_vectors] * a_vector + 1;
    if (wanted <= n_registers)
        return NULL;
    snprintf(to, n_bytes, "registers: %zu of %zu", wanted, n_registers);
    return to;
}

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

/* The cost of a piece, in multiplications of one step of k: its block of C, and laying out its rows
 * and columns, where an element costs half a vector of multiplications. */
static double piece_cost(const struct plan *p, size_t n_ranges, size_t n_groups)
{
    double rows = (double)(cld_div_up(p->n_blocks, n_ranges) * p->mr);
    double columns = (double)(cld_div_up(p->n_panels, n_groups) * p->nr);
    return rows * columns + (double)p->nr / 2 * (rows + columns);
}

/* Cuts C into pieces for n_cores: as few ranges as the cache allows, and more ranges and groups if
 * cores would be idle. Slow cores get fewer pieces, so a few more pieces than cores help. */
static void cut(struct plan *p, size_t n_cores, size_t max_pieces, size_t max_blocks)
{
    size_t min_ranges = cld_div_up(p->n_blocks, max_blocks);
    double best = 0;
    for (size_t r = min_ranges; r <= cld_min(p->n_blocks, min_ranges + n_cores); r++)
        for (size_t g = 1; g <= p->n_panels && (g == 1 || r * g <= max_pieces * n_cores); g++) {
            double cost = (double)cld_div_up(r * g, n_cores) * piece_cost(p, r, g) *
                          (1 + 0.05 * (double)n_cores / (double)(r * g));
            if (best == 0 || cost < best) {
                best = cost;
                p->n_ranges = r;
                p->n_groups = g;
            }
        }
}

static struct plan make_plan(const struct cld_queue *q, struct cld_gemm_size size,
                             const struct cld_tuned_row *row)
{
    const struct cld_device_info *d = cld_queue_device(q);
    struct plan p = {.size = size, .mr = row->v[p_rows], .nr = 16 * row->v[p_vectors]};
    p.n_blocks = cld_div_up(p.size.m, p.mr);
    p.n_panels = cld_div_up(p.size.n, p.nr);
    size_t local = d->local_bytes - local_slack_bytes;
    size_t depth = cld_min(row->v[p_depth], local / 2 / strip_bytes(p.nr, depth_unit) * depth_unit);
    p.n_slices = cld_max(1, cld_div_up(p.size.k, depth));
    p.kc = cld_round_up(cld_div_up(cld_max(p.size.k, 1), p.n_slices), depth_unit);
    p.n_together = cld_min(cld_max(local / 4 / strip_bytes(p.nr, p.kc), 1), row->v[p_together]);
    p.panels_bytes = cld_mul(p.n_together, strip_bytes(p.nr, p.kc));
    size_t strips = cld_min(local - p.panels_bytes, row->v[p_strips] * 1024);
    cut(&p, d->n_compute_units, row->v[p_pieces], cld_max(strips / strip_bytes(p.mr, p.kc), 1));
    p.strips_bytes = cld_mul(cld_div_up(p.n_blocks, p.n_ranges), strip_bytes(p.mr, p.kc));
    return p;
}

static const struct cld_tuned_row *row_of(const struct cld_queue *q, enum cld_gemm_class class)
{
    return cld_queue_row(q, &cld_tuned_gemm_cpu, class);
}

/* Sums between slices, with the row of any class: a GEMM of fewer rows may belong to another. */
static size_t scratch_bytes(const struct cld_queue *q, const struct cld_gemm *g)
{
    size_t most = 0;
    for (int c = 0; c < CLD_N_GEMM_CLASSES; c++) {
        struct plan p = make_plan(q, cld_gemm_size(g), row_of(q, (enum cld_gemm_class)c));
        size_t n = cld_mul(cld_mul(p.n_blocks, p.mr), cld_mul(p.n_panels, p.nr));
        if (p.n_slices > 1)
            most = cld_max(most, cld_mul(n, sizeof(float)));
    }
    return most;
}

static bool supports(const struct cld_queue *q, const struct cld_gemm *g)
{
    (void)g;
    return cld_queue_device(q)->local_bytes >= local_least_bytes;
}

static const char *name(const struct cld_queue *q)
{
#define NAME(rows, columns) "portable (cpu, " #rows "x" #columns " register blocks)"
    static const char *const names[][2] = {{NAME(4, 16), NAME(4, 32)},
                                           {NAME(6, 16), NAME(6, 32)},
                                           {NAME(8, 16), NAME(8, 32)},
                                           {NAME(12, 16), NAME(12, 32)}};
#undef NAME
    const struct cld_tuned_row *row = row_of(q, CLD_GEMM_OTHER);
    size_t i = 0;
    while (cld_tuned_gemm_cpu.params[p_rows].values[i] != row->v[p_rows])
        i++;
    return names[i][row->v[p_vectors] - 1];
}

static enum cld_status build(struct cld_queue *q, const struct cld_gemm *g,
                             enum cld_gemm_class class, struct cld_kernel **out,
                             struct cld_error *err)
{
    char options[192], epilogue[64];
    const struct cld_tuned_row *row = row_of(q, class);
    cld_gemm_out_options(g, epilogue, sizeof epilogue);
    snprintf(options, sizeof options,
             "-DMR=%zu -DNV=%zu -DA_ROWS=%d -DTA=%s -DB_ROWS=%d -DTB=%s %s", row->v[p_rows],
             row->v[p_vectors], g->kind != CLD_GEMM_TN, cld_tensor_elem(g->a),
             g->kind == CLD_GEMM_NT, cld_tensor_elem(g->b), epilogue);
    struct cld_kernel_spec spec = {"gemm_cpu.cl", "gemm_cpu", options, 1};
    return cld_kernel_get(q, &spec, out, err);
}

static enum cld_status run(struct cld_queue *q, const struct cld_gemm *g, struct cld_buf *scratch,
                           struct cld_error *err)
{
    struct cld_gemm_size size = cld_gemm_size(g);
    enum cld_gemm_class class = cld_gemm_class(size);
    struct plan p = make_plan(q, size, row_of(q, class));
    const struct cld_tensor *a = g->a, *b = g->b;
    struct cld_kernel *k = NULL;
    if (!size.k)
        return cld_gemm_sum(q, g, 0, NULL, err);
    enum cld_status s = build(q, g, class, &k, err);
    return s ? s
             : CLD_LAUNCH(q, k, cld_mul(p.n_ranges, p.n_groups), err, CLD_U64(p.size.m),
                          CLD_U64(p.size.n), CLD_U64(p.size.k), CLD_U64(p.kc), CLD_U64(p.n_ranges),
                          CLD_U64(p.n_groups), CLD_U64(p.n_together), CLD_BUF(a->buf),
                          CLD_U64(a->offset), CLD_U64(a->ld), CLD_BUF(b->buf), CLD_U64(b->offset),
                          CLD_U64(b->ld), CLD_GEMM_OUT_ARGS(g), CLD_BUF(scratch),
                          CLD_LOCAL(p.strips_bytes), CLD_LOCAL(p.panels_bytes));
}

const struct cld_gemm_ops cld_gemm_cpu = {.tuned = CLD_TUNED_GEMM_CPU,
                                          .backend = CLD_GEMM_PORTABLE,
                                          .needs = "32 KiB of local memory",
                                          .name = name,
                                          .supports = supports,
                                          .scratch_bytes = scratch_bytes,
                                          .build = build,
                                          .run = run};

static bool works(const struct cld_queue *q)
{
    return supports(q, NULL) && !cld_gemm_gpu.supports(q, NULL); /* which goes before */
}

const struct cld_tunable_kernel cld_tuned_gemm_cpu = {
    .id = CLD_TUNED_GEMM_CPU,
    .name = "gemm_cpu",
    .what = "GEMM of the portable kernels for CPUs",
    .files = {"gemm_cpu.cl"},
    .classes = CLD_GEMM_CLASSES,
    .params = {[p_rows] = {"rows", "rows", {4, 6, 8, 12}, 4, "of a block of registers"},
               [p_vectors] = {"vectors", "16 columns", {1, 2}, 2, "across a block of registers"},
               [p_depth] = {"depth",
                            "steps of k",
                            {64, 128, 192, 256, 384, 512},
                            6,
                            "of a slice, at most; local memory may allow fewer"},
               [p_together] = {"together",
                               "panels",
                               {1, 2, 4, 8},
                               4,
                               "laid out together, at most; local memory may allow fewer"},
               [p_strips] = {"strips",
                             "KiB",
                             {128, 256, 512, 1024, 2048},
                             5,
                             "of A laid out together, at most"},
               [p_pieces] = {"pieces", "pieces", {1, 2, 4, 8}, 4, "of work a core, at most"}},
    .n_params = 6,
    .defaults = defaults,
    .objection = objection,
    .works = works};
