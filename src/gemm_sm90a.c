/* gemm_sm90a.c - matrix products by wgmma: cl/gemm_sm90a.cl. */
#include <stdio.h>

#include "gemm_tensor.h"
#include "probe.h"
#include "ptx.h"
#include "size.h"

enum {
    tile_rows = 64,
    slice_steps = 16,
    group = 160,
    workers = 128,
    groups_a_unit = 3, /* work-groups of five warps that share a multiprocessor's registers */
    local_bytes = 48 * 1024,
    maps_bytes = 2 * 128 + 4 /* descriptors and a counter */
};

static const struct cld_ptx_change hopper = {"sm_90a", 128};

/* Whole tiles, then tiles whose k is cut in parts. All counts fit 32 bits: see make_plan. */
struct plan {
    struct cld_gemm_size size;
    struct cld_gemm_operands operands;
    size_t tile_columns, n_groups;
    size_t n_tiles, n_whole, n_parts, part_steps, n_steps;
    size_t parts_at; /* in the scratch, in floats */
    size_t n_scratch_bytes;
};

static bool supports(const struct cld_queue *q, const struct cld_gemm *g)
{
    return cld_gemm_fits_tensor_cores(g) && cld_probe_usable(q, CLD_PROBE_SM90A);
}

static const char *name(const struct cld_queue *q)
{
    (void)q;
    return "sm90a (tensor cores by wgmma, bf16, tiles of 64x192 or 64x128)";
}

/* The wide tile moves an eighth less per operation; the narrow one wastes less where n is small. */
static size_t choose_columns(size_t n)
{
    size_t wide = cld_div_up(n, 192) * 192 * 8, narrow = cld_div_up(n, 128) * 128 * 9;
    return narrow < wide ? 128 : 192;
}

/* The tiles of the last round, where they do not fill the device: cut in as many parts as makes the
 * round short. Time counts in slices of a tile; a unit takes a few more to begin and end, and the sum of
 * parts is another launch. Parts depend on the device alone, so results repeat. */
static void cut_last_round(struct plan *p)
{
    static const size_t most_parts = 16, least_steps = 16, unit_extra = 8, sum_extra = 64;
    size_t n_last = p->n_tiles % p->n_groups, best = p->n_steps + unit_extra;
    p->n_whole = p->n_tiles;
    p->n_parts = 1;
    p->part_steps = p->n_steps;
    for (size_t wanted = 2; wanted <= most_parts && n_last * wanted <= 4 * p->n_groups; wanted++) {
        size_t steps = cld_div_up(p->n_steps, wanted), n = cld_div_up(p->n_steps, steps);
        size_t time = cld_div_up(n_last * n, p->n_groups) * (steps + unit_extra) + sum_extra;
        if (!n_last || steps < least_steps || time >= best)
            continue;
        best = time;
        p->n_whole = p->n_tiles - n_last;
        p->n_parts = n;
        p->part_steps = steps;
    }
}

static struct plan make_plan(const struct cld_queue *q, const struct cld_gemm *g)
{
    struct plan p = {.size = cld_gemm_size(g)};
    p.operands = cld_gemm_plan_operands(g, maps_bytes, true);
    p.tile_columns = choose_columns(p.size.n);
    p.n_groups = groups_a_unit * cld_queue_device(q)->n_compute_units;
    p.n_tiles = cld_div_up(p.size.m, tile_rows) * cld_div_up(p.size.n, p.tile_columns);
    p.n_steps = cld_div_up(p.size.k, slice_steps);
    cut_last_round(&p);
    p.parts_at = p.operands.n_scratch_bytes / sizeof(float);
    p.n_scratch_bytes = p.operands.n_scratch_bytes;
    if (p.n_parts > 1)
        p.n_scratch_bytes = cld_add(p.n_scratch_bytes,
                                    cld_mul3((p.n_tiles - p.n_whole) * p.n_parts,
                                             tile_rows * p.tile_columns, sizeof(float)));
    return p;
}

static size_t scratch_bytes(const struct cld_queue *q, const struct cld_gemm *g)
{
    return make_plan(q, g).n_scratch_bytes;
}

/* One of the kernels of cl/gemm_sm90a.cl. */
static enum cld_status get(struct cld_queue *q, const char *kernel, const char *options,
                           size_t local, struct cld_kernel **out, struct cld_error *err)
{
    struct cld_kernel_spec spec = {"gemm_sm90a.cl", kernel, options, local};
    return cld_kernel_get_ptx(q, &spec, &hopper, out, err);
}

static enum cld_status run(struct cld_queue *q, const struct cld_gemm *g, struct cld_buf *scratch,
                           struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct plan p = make_plan(q, g);
    struct cld_kernel *maps = NULL, *product = NULL, *sum = NULL;
    char out[96], options[160];
    if (!p.size.k)
        return cld_gemm_sum(q, g, 0, NULL, err);
    /* A slice less in the ring than would fit: barriers and the driver's own part need room. */
    size_t n_stages = local_bytes / ((tile_rows + p.tile_columns) * slice_steps * 2) - 1;
    size_t n_units = p.n_whole + (p.n_tiles - p.n_whole) * p.n_parts;
    cld_gemm_tensor_out_options(g, out, sizeof out);
    snprintf(options, sizeof options, "-DBN=%zu -DSTAGES=%zu %s", p.tile_columns, n_stages, out);
    if ((s = get(q, "gemm_sm90a_maps", options, 32, &maps, err)) ||
        (s = get(q, "gemm_sm90a", options, group, &product, err)) ||
        (s = get(q, "gemm_sm90a_sum", options, workers, &sum, err)) ||
        (s = cld_gemm_copy_operands(q, &p.operands, scratch, err)) ||
        (s = CLD_LAUNCH(q, maps, 1, err, CLD_U64(p.size.m), CLD_U64(p.size.n), CLD_U64(p.size.k),
                        CLD_BUF(scratch), CLD_GEMM_OPERAND_ARGS(&p.operands.a),
                        CLD_GEMM_OPERAND_ARGS(&p.operands.b))) ||
        (s = CLD_LAUNCH(q, product, cld_min(n_units, p.n_groups), err, CLD_U64(p.size.m),
                        CLD_U64(p.size.n), CLD_I32(p.n_whole), CLD_I32(n_units), CLD_I32(p.n_parts),
                        CLD_I32(p.part_steps), CLD_I32(p.n_steps), CLD_BUF(scratch),
                        CLD_BUF(scratch), CLD_U64(p.parts_at), CLD_GEMM_OUT_ARGS(g))))
        return s;
    return CLD_LAUNCH(q, sum, (p.n_tiles - p.n_whole) * (p.tile_columns / 16), err,
                      CLD_U64(p.size.m), CLD_U64(p.size.n), CLD_I32(p.n_whole), CLD_I32(p.n_parts),
                      CLD_BUF(scratch), CLD_U64(p.parts_at), CLD_GEMM_OUT_ARGS(g));
}

const struct cld_gemm_ops cld_gemm_sm90a = {
    CLD_GEMM_SM90A, "NVIDIA tensor cores with wgmma, and bf16 operands or leave to round them", name,
    supports, scratch_bytes, run};
