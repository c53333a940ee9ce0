/* gemm_sm90a.cl - matrix product on Hopper's tensor cores: C = A^T B (+ bias) (+ R).
 *
 * A [k, m], B [k, n] bf16, sums f32; the host turns operands that lie the other way. A work-group is a
 * warpgroup that multiplies and a warp that fetches. It computes tiles of 64 x BN, one after another;
 * slices of 16 steps of both operands come through a ring of STAGES in local memory, which runs ahead
 * across tiles, so that loads are under way while results are written. The copy engine reads blocks of
 * 16 steps by 64 lines of 128 bytes by descriptors that gemm_sm90a_maps makes, and gives zeros outside
 * of a matrix, so m, n and k are free. Sums are named PTX registers, or the assembler would move them
 * and serialise the products.
 *
 * Why 64 rows: three such groups share a multiprocessor, which takes 16 warps of 128 registers; a group
 * has 48 KiB of local memory at most, so three of them keep 120 KiB of slices in flight where two larger
 * ones keep 80. Why across k: lines of 128 bytes; along k a slice would be lines of 32, at half the rate.
 *
 * Work comes in units: whole tiles, and behind them tiles whose k is cut in n_parts, so that the last
 * round fills the device. The sums of parts go to `parts` and gemm_sm90a_sum ends those tiles. */
#ifndef BN
#define BN 192 /* columns of a tile: 128 or 192 */
#endif
#ifndef STAGES
#define STAGES 5 /* slices in the ring */
#endif
#ifndef LOOKS
#define LOOKS 32 /* how often a group looks whether the others began the round, at most */
#endif

#define BM 64
#define BK 16
#define WORKERS 128
#define GROUP (WORKERS + 32)

#include "common.clh"
#include "ptx.clh"
#include "gemm_tensor.clh"

#define BLOCK_BYTES (64 * BK * 2) /* 64 lines of a slice; A's share of it */
#define STAGE_BYTES (BLOCK_BYTES * (1 + BN / 64))

/* Descriptor of a slice in local memory, without its address: swizzled over 128 bytes, 1024 bytes to the
 * next 8 steps, a block to the next 64 lines. Lengths count 16 bytes. */
#define BLOCK_FIELDS (1UL << 62 | 64UL << 32 | (ulong)(BLOCK_BYTES / 16) << 16)

/* --- sums: sG_0 to sG_7 are a lane's share of the 16 columns G of its tile ------------------------ */

#define NAMES(g)                                                                                  \
    "s" #g "_0, s" #g "_1, s" #g "_2, s" #g "_3, s" #g "_4, s" #g "_5, s" #g "_6, s" #g "_7"
#define DECLARE(g) PTX(".reg .f32 s" #g "_<8>;");
#define READ(g, v)                                                                                \
    PTX("mov.f32 %0, s" #g "_0; mov.f32 %1, s" #g "_1; mov.f32 %2, s" #g "_2; "                   \
        "mov.f32 %3, s" #g "_3; mov.f32 %4, s" #g "_4; mov.f32 %5, s" #g "_5; "                   \
        "mov.f32 %6, s" #g "_6; mov.f32 %7, s" #g "_7;"                                           \
        : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]),     \
          "=f"(v[7]))

#define NAMES_128                                                                                 \
    NAMES(0) ", " NAMES(1) ", " NAMES(2) ", " NAMES(3) ", " NAMES(4) ", " NAMES(5) ", " NAMES(6)  \
        ", " NAMES(7)
#if BN == 128
#define EACH(X)   X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define ALL_NAMES NAMES_128
#define SHAPE     "m64n128k16"
#else
#define EACH(X)   X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define ALL_NAMES NAMES_128 ", " NAMES(8) ", " NAMES(9) ", " NAMES(10) ", " NAMES(11)
#define SHAPE     "m64n192k16"
#endif

/* sums = (keep ? sums : 0) + the slices of A and B. */
static inline void multiply(ulong a, ulong b, uint keep)
{
    PTX("//WG wgmma.fence.sync.aligned;\n"
        "{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n"
        "//WG wgmma.mma_async.sync.aligned." SHAPE ".f32.bf16.bf16 {" ALL_NAMES
        "}, %0, %1, p, 1, 1, 1, 1;\n}\n"
        "//WG wgmma.commit_group.sync.aligned;" ::"l"(a),
        "l"(b), "r"(keep)
        : "memory");
}

/* Waits until at most N products are under way. */
#define WAIT_PRODUCTS(N) PTX("//WG wgmma.wait_group.sync.aligned " #N ";" ::: "memory")

/* --- units ------------------------------------------------------------------------------------------ */

#define WORK_PARAMETERS uint n_whole, uint n_units, uint n_parts, uint part_steps, uint n_steps
#define WORK_ARGUMENTS  n_whole, n_units, n_parts, part_steps, n_steps

struct unit {
    uint tile, begin, end; /* slices [begin, end) of a tile */
};

static inline struct unit unit_at(uint i, WORK_PARAMETERS)
{
    if (i < n_whole)
        return (struct unit){i, 0, n_steps};
    uint part = (i - n_whole) % n_parts;
    return (struct unit){n_whole + (i - n_whole) / n_parts, part * part_steps,
                         min((part + 1) * part_steps, n_steps)};
}

/* --- the ring ---------------------------------------------------------------------------------------- */

struct ring {
    uint at;    /* of the slices */
    uint full;  /* barriers: the content of a slice has arrived */
    uint empty; /* barriers: its content has been used */
};

struct place {
    uint slot, parity;
};

static inline void next_slot(struct place *p)
{
    if (++p->slot == STAGES)
        *p = (struct place){0, p->parity ^ 1};
}

/* Asks for slice t of the tile that begins at (row, column). */
static inline void fetch(uint to, uint full, uint row, uint column, uint t,
                         __global const uchar *maps)
{
    barrier_expect(full, STAGE_BYTES);
    copy_box(to, maps, row, t * BK, full);
#pragma unroll
    for (uint i = 0; i < BN / 64; i++)
        copy_box(to + (1 + i) * BLOCK_BYTES, maps + 128, column + 64 * i, t * BK, full);
}

/* Groups that read the same lines at about the same time find them in L2. They drift apart over
 * rounds; so a group that begins a unit says so, and looks a few times whether all others that have one
 * in this round did. No result depends on it, and no group waits for long. */
static inline void fall_in(volatile __global uint *n_begun, uint i, uint n_units)
{
    uint round_end = min((i / (uint)get_num_groups(0) + 1) * (uint)get_num_groups(0), n_units);
    atomic_inc(n_begun);
    for (uint look = 0; look < LOOKS && *n_begun < round_end; look++)
        ;
}

/* What the fetching warp does, by one lane: all slices of all units of this group, as room comes. */
static inline void fetch_all(struct ring ring, __global uchar *maps, uint down, uint across,
                             WORK_PARAMETERS)
{
    struct place p = {0, 1}; /* at first every slot is empty: the phase before counts as over */
    acquire_map(maps);
    acquire_map(maps + 128);
    CLD_SHARE(i, n_units) {
        struct unit u = unit_at((uint)i, WORK_ARGUMENTS);
        uint2 begin = tile_begin(u.tile, down, across);
        if (LOOKS)
            fall_in((volatile __global uint *)(maps + 256), (uint)i, n_units);
        for (uint t = u.begin; t < u.end; t++) {
            barrier_wait(ring.empty + 8 * p.slot, p.parity);
            fetch(ring.at + p.slot * STAGE_BYTES, ring.full + 8 * p.slot, begin.x, begin.y, t, maps);
            next_slot(&p);
        }
    }
}

/* --- the product ------------------------------------------------------------------------------------- */

#define PUT(g)                                                                                    \
    {                                                                                             \
        float v[8];                                                                               \
        READ(g, v);                                                                               \
        put((float4)(v[0], v[1], v[4], v[5]), row, column + 16 * g, m, n, OUT_ARGUMENTS);         \
        put((float4)(v[2], v[3], v[6], v[7]), row + 8, column + 16 * g, m, n, OUT_ARGUMENTS);     \
    }

/* parts: [part of a tile][16 columns][8][lane of the warpgroup] */
#define KEEP(g)                                                                                   \
    {                                                                                             \
        float v[8];                                                                               \
        READ(g, v);                                                                               \
        _Pragma("unroll") for (uint e = 0; e < 8; e++)                                            \
            parts[((i - n_whole) * (BN / 16) + g) * (8 * WORKERS) + e * WORKERS + id] = v[e];      \
    }

/* First row and column of a lane's share of a tile. */
static inline uint2 share_begin(uint2 begin, uint id)
{
    return begin + (uint2)(id / 32 * 16 + id % 32 / 4, id % 4 * 2);
}

/* maps: as gemm_sm90a_maps leaves it. parts: needed where there are more units than whole tiles. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
gemm_sm90a(ulong m, ulong n, WORK_PARAMETERS, __global uchar *maps, __global float *parts,
           ulong parts_at, OUT_PARAMETERS)
{
    __local uchar slices[STAGES * STAGE_BYTES] __attribute__((aligned(1024)));
    __local ulong full[STAGES], empty[STAGES];
    struct ring ring = {local_address(slices), local_address(full), local_address(empty)};
    uint id = get_local_id(0);
    uint down = (uint)((m + BM - 1) / BM), across = (uint)((n + BN - 1) / BN);
    EACH(DECLARE)
    parts += parts_at;
    if (id < STAGES) {
        barrier_init(ring.full + 8 * id, 1);
        barrier_init(ring.empty + 8 * id, 1);
        barrier_init_fence();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id >= WORKERS) {
        if (id == WORKERS)
            fetch_all(ring, maps, down, across, WORK_ARGUMENTS);
        return;
    }
    struct place p = {0, 0};
    CLD_SHARE(i, n_units) {
        struct unit u = unit_at((uint)i, WORK_ARGUMENTS);
        uint before = 0;
        for (uint t = u.begin; t < u.end; t++) {
            barrier_wait(ring.full + 8 * p.slot, p.parity);
            uint at = ring.at + p.slot * STAGE_BYTES;
            multiply(BLOCK_FIELDS | at >> 4, BLOCK_FIELDS | (at + BLOCK_BYTES) >> 4, t - u.begin);
            WAIT_PRODUCTS(1);
            if (t > u.begin && id == 0)
                barrier_arrive(ring.empty + 8 * before);
            before = p.slot;
            next_slot(&p);
        }
        WAIT_PRODUCTS(0);
        if (id == 0)
            barrier_arrive(ring.empty + 8 * before);
        if (i < n_whole) {
            uint2 at = share_begin(tile_begin(u.tile, down, across), id);
            ulong row = at.x;
            uint column = at.y;
            EACH(PUT)
        } else {
            EACH(KEEP)
        }
    }
}

/* Ends the tiles that came in parts, summed in order; a piece of work is 16 columns of one. */
__kernel __attribute__((reqd_work_group_size(WORKERS, 1, 1))) void
gemm_sm90a_sum(ulong m, ulong n, uint n_whole, uint n_parts, __global const float *parts,
               ulong parts_at, OUT_PARAMETERS)
{
    uint id = get_local_id(0);
    uint down = (uint)((m + BM - 1) / BM), across = (uint)((n + BN - 1) / BN);
    parts += parts_at;
    CLD_SHARE(piece, (ulong)(down * across - n_whole) * (BN / 16)) {
        ulong tile = piece / (BN / 16);
        uint g = piece % (BN / 16);
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (uint part = 0; part < n_parts; part++)
#pragma unroll
            for (uint e = 0; e < 8; e++)
                v[e] += parts[((tile * n_parts + part) * (BN / 16) + g) * (8 * WORKERS) +
                              e * WORKERS + id];
        uint2 at = share_begin(tile_begin(n_whole + (uint)tile, down, across), id);
        uint column = at.y + 16 * g;
        put((float4)(v[0], v[1], v[4], v[5]), at.x, column, m, n, OUT_ARGUMENTS);
        put((float4)(v[2], v[3], v[6], v[7]), at.x + 8, column, m, n, OUT_ARGUMENTS);
    }
}

/* --- descriptors ------------------------------------------------------------------------------------- */

#define REPLACE(field, type, constraint, ord, value)                                              \
    PTX("//WG tensormap.replace.tile." field ".global.b1024." type " [%0], " ord "%1;" ::"l"(map), \
        constraint(value)                                                                         \
        : "memory")
#define REPLACE_CODE(field, code)                                                                 \
    PTX("//WG tensormap.replace.tile." field ".global.b1024.b32 [%0], " code ";" ::"l"(map)        \
        : "memory")

/* All fields of the descriptor of a bf16 matrix x [n_rows, n_columns] that is read in boxes of
 * BK rows by 64 columns, swizzled over 128 bytes, with zeros outside. */
static inline void make_map(__global uchar *at, __global const ushort *x, ulong n_columns,
                            ulong n_rows, ulong ld)
{
    __global ulong *map = (__global ulong *)at;
    for (uint i = 0; i < 16; i++)
        map[i] = 0;
    REPLACE("global_address", "b64", "l", "", x);
    REPLACE_CODE("rank", "1"); /* less one */
    REPLACE("box_dim", "b32", "r", "0, ", 64u);
    REPLACE("box_dim", "b32", "r", "1, ", (uint)BK);
    REPLACE("global_dim", "b32", "r", "0, ", (uint)n_columns);
    REPLACE("global_dim", "b32", "r", "1, ", (uint)n_rows);
    REPLACE("global_stride", "b64", "l", "0, ", 2 * ld);
    REPLACE("element_stride", "b32", "r", "0, ", 1u);
    REPLACE("element_stride", "b32", "r", "1, ", 1u);
    REPLACE_CODE("elemtype", "10"); /* bf16 */
    REPLACE_CODE("interleave_layout", "0");
    REPLACE_CODE("swizzle_mode", "3"); /* 128 bytes */
    REPLACE_CODE("fill_mode", "0");
}

/* maps: 260 bytes at a multiple of 128: the descriptors of A and B, and a count that begins at 0.
 * Addresses and ld of A and B are multiples of 8 elements. */
__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void
gemm_sm90a_maps(ulong m, ulong n, ulong k, __global uchar *maps, __global const ushort *a, ulong a_at,
                ulong a_ld, __global const ushort *b, ulong b_at, ulong b_ld)
{
    if (get_local_id(0) == 0 && get_group_id(0) == 0) {
        make_map(maps, a + a_at, m, k, a_ld);
        make_map(maps + 128, b + b_at, n, k, b_ld);
        *(__global uint *)(maps + 256) = 0;
        PTX("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
    }
}
