/* gemm_sm90a.cl - matrix product on Hopper's tensor cores: C = A^T B (+ bias) (+ R).
 *
 * A [k, m], B [k, n] bf16, sums f32; the host turns operands that lie the other way. A work-group
 * is a warpgroup that multiplies and a warp that fetches. It computes tiles of 64 x BN, one after
 * another; slices of 16 steps of both operands come through a ring of STAGES in local memory, which
 * runs ahead across tiles, so that loads are under way while results are written. The copy engine
 * reads blocks of 16 steps by 64 lines of 128 bytes by descriptors that each group makes, and gives
 * zeros outside of a matrix, so m, n and k are free. Sums are named PTX registers, or the
 * assembler would move them and serialise the products.
 *
 * Why 64 rows: three such groups share a multiprocessor, which takes 16 warps of 128 registers; a
 * group has 48 KiB of local memory at most, so three of them keep 120 KiB of slices in flight where
 * two larger ones keep 80. Why across k: lines of 128 bytes; along k a slice would be lines of 32,
 * at half the rate.
 *
 * A last strip of at most 64 columns is computed by narrow tiles, after all others. */
#ifndef BN
#define BN 192 /* columns of a tile: 128 or 192 */
#endif
#ifndef STAGES
#define STAGES 5 /* slices in the ring */
#endif
#ifndef SWIGLU
#define SWIGLU 0 /* 1: B's columns are gate's and up's in turns of 8: C is silu(gate) * up, turned */
#endif
#define BM      64
#define BK      16
#define WORKERS 128
#define GROUP   (WORKERS + 32)

#include "common.clh"
#include "ptx.clh"
#include "gemm_tensor.clh"

#define BLOCK_BYTES (64 * BK * 2) /* 64 lines of a slice; A's share of it */
#define STAGE_BYTES (BLOCK_BYTES * (1 + BN / 64))
#define NARROW      64 /* columns of a narrow tile */

/* Descriptor of a slice in local memory, without its address: swizzled over 128 bytes, 1024 bytes
 * to the next 8 steps, a block to the next 64 lines. Lengths count 16 bytes. */
#define BLOCK_FIELDS (1UL << 62 | 64UL << 32 | (ulong)(BLOCK_BYTES / 16) << 16)

/* --- sums: sG_0 to sG_7 are a lane's share of the 16 columns G of its tile ------------------- */

#define NAMES(g)                                                                                   \
    "s" #g "_0, s" #g "_1, s" #g "_2, s" #g "_3, s" #g "_4, s" #g "_5, s" #g "_6, s" #g "_7"
#define DECLARE(g) PTX(".reg .f32 s" #g "_<8>;");
#define READ(g, v)                                                                                 \
    PTX("mov.f32 %0, s" #g "_0; mov.f32 %1, s" #g "_1; mov.f32 %2, s" #g "_2; "                    \
        "mov.f32 %3, s" #g "_3; mov.f32 %4, s" #g "_4; mov.f32 %5, s" #g "_5; "                    \
        "mov.f32 %6, s" #g "_6; mov.f32 %7, s" #g "_7;"                                            \
        : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]),      \
          "=f"(v[7]))

#define NAMES_64  NAMES(0) ", " NAMES(1) ", " NAMES(2) ", " NAMES(3)
#define NAMES_128 NAMES_64 ", " NAMES(4) ", " NAMES(5) ", " NAMES(6) ", " NAMES(7)
#if BN == 128
#define EACH(X)  X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define NAMES_BN NAMES_128
#define SHAPE_BN "m64n128k16"
#else
#define EACH(X)  X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define NAMES_BN NAMES_128 ", " NAMES(8) ", " NAMES(9) ", " NAMES(10) ", " NAMES(11)
#define SHAPE_BN "m64n192k16"
#endif

/* sums = (keep ? sums : 0) + the slices of A and B at these descriptors. */
#define MULTIPLY(shape, names, a, b, keep)                                                         \
    PTX("//WG wgmma.fence.sync.aligned;\n"                                                         \
        "{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n"                                                \
        "//WG wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" names                        \
        "}, %0, %1, p, 1, 1, 1, 1;\n}\n"                                                           \
        "//WG wgmma.commit_group.sync.aligned;" ::"l"(a),                                          \
        "l"(b), "r"(keep)                                                                          \
        : "memory")

/* Waits until at most N products are under way. */
#define WAIT_WGMMA(N) PTX("//WG wgmma.wait_group.sync.aligned " #N ";" ::: "memory")

/* --- descriptors ----------------------------------------------------------------------------- */

#define REPLACE(field, type, constraint, ord, value)                                               \
    PTX("//WG tensormap.replace.tile." field ".global.b1024." type " [%0], " ord "%1;" ::"l"(map), \
        constraint(value)                                                                          \
        : "memory")
#define REPLACE_CODE(field, code)                                                                  \
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

/* --- the ring -------------------------------------------------------------------------------- */

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

/* The work: tiles in the order of tile_begin, then the narrow ones. */
struct work {
    uint down, across; /* tiles of BN columns */
    uint n_narrow;     /* tiles behind them */
    uint n_steps;      /* slices of a tile */
};

static inline struct work make_work(ulong m, ulong n, ulong k)
{
    uint down = (uint)((m + BM - 1) / BM), rest = (uint)(n % BN), narrow = rest && rest <= NARROW;
    return (struct work){down, (uint)((n + BN - 1) / BN) - narrow, narrow * down,
                         (uint)((k + BK - 1) / BK)};
}

static inline uint2 work_begin(struct work w, uint tile)
{
    uint n_whole = w.down * w.across;
    return tile < n_whole ? tile_begin(tile, w.down, w.across)
                          : (uint2)((tile - n_whole) * BM, w.across * BN);
}

/* Asks for slice t of the tile that begins at `begin` and has n_blocks of 64 columns. */
static inline void fetch(uint to, uint full, uint2 begin, uint n_blocks, uint t,
                         __global const uchar *maps)
{
    barrier_expect(full, BLOCK_BYTES * (1 + n_blocks));
    copy_box(to, maps, begin.x, t * BK, full);
    for (uint i = 0; i < n_blocks; i++)
        copy_box(to + (1 + i) * BLOCK_BYTES, maps + 128, begin.y + 64 * i, t * BK, full);
}

/* What the fetching warp does, by one lane: all slices of all tiles of this group, as room comes. */
static inline void fetch_all(struct ring ring, struct work w, __global const uchar *maps)
{
    struct place p = {0, 1}; /* at first every slot is empty: the phase before counts as over */
    CLD_SHARE(tile, w.down * w.across + w.n_narrow) {
        uint2 begin = work_begin(w, (uint)tile);
        uint n_blocks = tile < w.down * w.across ? BN / 64 : NARROW / 64;
        for (uint t = 0; t < w.n_steps; t++) {
            barrier_wait(ring.empty + 8 * p.slot, p.parity);
            fetch(ring.at + p.slot * STAGE_BYTES, ring.full + 8 * p.slot, begin, n_blocks, t, maps);
            next_slot(&p);
        }
    }
}

/* --- the product ----------------------------------------------------------------------------- */

/* What the warpgroup does for a tile: its sums. A slot is empty once the product after its own
 * runs. */
static inline void sum_tile(struct ring ring, struct place *p, uint n_steps, int narrow)
{
    uint before = 0;
    for (uint t = 0; t < n_steps; t++) {
        barrier_wait(ring.full + 8 * p->slot, p->parity);
        uint at = ring.at + p->slot * STAGE_BYTES;
        ulong a = BLOCK_FIELDS | at >> 4, b = BLOCK_FIELDS | (at + BLOCK_BYTES) >> 4;
        if (narrow)
            MULTIPLY("m64n64k16", NAMES_64, a, b, t);
        else
            MULTIPLY(SHAPE_BN, NAMES_BN, a, b, t);
        WAIT_WGMMA(1);
        if (t > 0 && get_local_id(0) == 0)
            barrier_arrive(ring.empty + 8 * before);
        before = p->slot;
        next_slot(p);
    }
    WAIT_WGMMA(0);
    if (get_local_id(0) == 0)
        barrier_arrive(ring.empty + 8 * before);
}

#define PUT(g)                                                                                     \
    {                                                                                              \
        float v[8];                                                                                \
        READ(g, v);                                                                                \
        put((float4)(v[0], v[1], v[4], v[5]), row, column + 16 * g, m, n, OUT_ARGUMENTS);          \
        put((float4)(v[2], v[3], v[6], v[7]), row + 8, column + 16 * g, m, n, OUT_ARGUMENTS);      \
    }

#if SWIGLU
static inline float gated(float gate, float up)
{
    return gate * native_recip(1.0f + exp2_approx(gate * -M_LOG2E_F)) * up;
}

/* Eight columns of SwiGLU for a warp's 16 rows, from `row` on. Sums of rows that do not exist are
 * zero, and so is what is made of them. */
#undef PUT
#define PUT(g)                                                                                     \
    {                                                                                              \
        float v[8];                                                                                \
        READ(g, v);                                                                                \
        const uint2 t = transpose_rows(pack_bf16(gated(v[0], v[4]), gated(v[1], v[5])),                 \
                                  pack_bf16(gated(v[2], v[6]), gated(v[3], v[7])));                \
        if (row < room && column + 8 * g < n / 2)                                                  \
            *(__global uint2 *)(c + c_at + (column + 8 * g) * c_ld + row) = t;                     \
    }
#endif

/* maps: 256 bytes a work-group at a multiple of 128, for its descriptors of A and B: a kernel of its own
 * that made them once would cost more than its work. Addresses and ld of A and B are multiples of 8
 * elements. k > 0. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
gemm_sm90a(ulong m, ulong n, ulong k, __global uchar *maps, __global const ushort *a, ulong a_at,
           ulong a_ld, __global const ushort *b, ulong b_at, ulong b_ld, OUT_PARAMETERS)
{
    __local uchar slices[STAGES * STAGE_BYTES] __attribute__((aligned(1024)));
    __local ulong full[STAGES], empty[STAGES];
    struct ring ring = {local_address(slices), local_address(full), local_address(empty)};
    struct work w = make_work(m, n, k);
    uint id = get_local_id(0);
    EACH(DECLARE)
    if (id < STAGES) {
        barrier_init(ring.full + 8 * id, 1);
        barrier_init(ring.empty + 8 * id, 1);
        barrier_init_fence();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id >= WORKERS) {
        if (id == WORKERS) {
            maps += 256 * get_group_id(0);
            make_map(maps, a + a_at, m, k, a_ld);
            make_map(maps + 128, b + b_at, n, k, b_ld);
            publish_maps();
            acquire_map(maps);
            acquire_map(maps + 128);
            fetch_all(ring, w, maps);
        }
        return;
    }
    struct place p = {0, 0};
    CLD_SHARE(tile, w.down * w.across + w.n_narrow) {
        if (tile < w.down * w.across)
            sum_tile(ring, &p, w.n_steps, 0);
        else
            sum_tile(ring, &p, w.n_steps, 1);
        uint2 begin = work_begin(w, (uint)tile);
#if SWIGLU /* a lane's in C turned */
        ulong row = begin.x + id / 32 * 16 + transposed_row();
        uint column = begin.y / 2 + id % 32 / 4;
        const ulong room = (m + 7) / 8 * 8; /* of C's rows */
#else
        ulong row = begin.x + id / 32 * 16 + id % 32 / 4;
        uint column = begin.y + id % 4 * 2;
#endif
        EACH(PUT)
    }
}
