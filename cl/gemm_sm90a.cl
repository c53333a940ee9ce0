/* gemm_sm90a.cl - matrix product on Hopper's tensor cores: C = op(A) op(B) (+ bias) (+ R).
 *
 * A, B bf16, sums f32. A work-group of two warpgroups computes tiles of 128 x BN; warpgroup w owns
 * rows [64 w, 64 w + 64) and keeps its sums in named PTX registers. Slices of BK steps of both
 * operands come through a ring of STAGES in local memory, filled by the copy engine from the operands
 * as they lie in memory (row-major, either way round: tensor cores read both): `maps` holds the
 * descriptors of A and B that gemm_sm90a_maps wrote. The engine writes zeros outside of a matrix, so
 * m, n and k are free.
 *
 * There is no producer warp: two work-groups share a multiprocessor, each with half of its registers,
 * and 2 x 128 x (BN / 2 sums + 32) is all there is. The warpgroup that is second to finish with a
 * slice of the ring asks for its next content. Groups go on from tile to tile and the ring runs ahead
 * across tiles, so that loads are under way while results are written. */
#ifndef BN
#define BN 192 /* columns of a tile: 128 or 192 (16, 32, ... with B_ROWS) */
#endif
#ifndef BK
#define BK 16 /* steps of a slice: 16, 32 or 64 */
#endif
#ifndef STAGES
#define STAGES 4 /* slices in the ring: at most 48 KiB */
#endif
#ifndef A_ROWS
#define A_ROWS 1 /* 1: A is [m, k]; 0: [k, m] */
#endif
#ifndef B_ROWS
#define B_ROWS 1 /* 1: B is [n, k]; 0: [k, n] */
#endif
#ifndef BM
#define BM 128
#endif
#define WORKERS (2 * BM)
#ifndef PRODUCER
#define PRODUCER 1
#endif
#ifndef A_FORM
#define A_FORM A_ROWS
#endif
#ifndef B_FORM
#define B_FORM B_ROWS
#endif
#if PRODUCER
#define GROUP (WORKERS + 32)
#else
#define GROUP WORKERS
#endif

#include "common.clh"
#include "ptx.clh"
#include "gemm_tensor.clh"

#define A_BYTES (BM * BK * 2)
#define B_BYTES (BN * BK * 2)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define HALF_BYTES (64 * BK * 2)     /* 64 lines of a slice */

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

#define ROWS    1
#define COLUMNS 0
#define PANELS  2

#if BK == 16
#define ROWS_SWIZZLE 3UL
#define ROWS_ENGINE  1
#elif BK == 32
#define ROWS_SWIZZLE 2UL
#define ROWS_ENGINE  2
#else
#define ROWS_SWIZZLE 1UL
#define ROWS_ENGINE  3
#endif
#define ROWS_FIELDS (ROWS_SWIZZLE << 62 | (ulong)(8 * BK * 2 / 16) << 32 | 1UL << 16)

/* blocks of 64 columns (128 bytes) or 32 */
#define COLUMNS_FIELDS(w) ((w == 64 ? 1UL : 2UL) << 62 | (ulong)(8 * w * 2 / 16) << 32 | (ulong)(w * BK * 2 / 16) << 16)
#define COLUMNS_ENGINE(w) (w == 64 ? 3 : 2)
#if BN % 64
#define B_WIDTH 32
#else
#define B_WIDTH 64
#endif

#if A_FORM != COLUMNS
#define A_FIELDS ROWS_FIELDS
#define A_ENGINE ROWS_ENGINE
#define A_STEP   32
#define A_MAJOR  "0"
#else
#define A_FIELDS COLUMNS_FIELDS(64)
#define A_ENGINE 3
#define A_STEP   2048
#define A_MAJOR  "1"
#endif
#if B_FORM != COLUMNS
#define B_FIELDS ROWS_FIELDS
#define B_ENGINE ROWS_ENGINE
#define B_STEP   32
#define B_MAJOR  "0"
#else
#define B_FIELDS COLUMNS_FIELDS(B_WIDTH)
#if B_WIDTH == 64
#define B_ENGINE 3
#else
#define B_ENGINE 2
#endif
#define B_STEP   (B_WIDTH * 32)
#define B_MAJOR  "1"
#endif

/* --- sums: registers sG_0 .. sG_7 of 16 columns G, named in PTX so that they stay in place -------- */

#define NAMES(g)                                                                                  \
    "s" #g "_0, s" #g "_1, s" #g "_2, s" #g "_3, s" #g "_4, s" #g "_5, s" #g "_6, s" #g "_7"
#define DECLARE(g) PTX(".reg .f32 s" #g "_<8>;");
#define READ(g, v)                                                                                \
    PTX("mov.f32 %0, s" #g "_0; mov.f32 %1, s" #g "_1; mov.f32 %2, s" #g "_2; "          \
                 "mov.f32 %3, s" #g "_3; mov.f32 %4, s" #g "_4; mov.f32 %5, s" #g "_5; "          \
                 "mov.f32 %6, s" #g "_6; mov.f32 %7, s" #g "_7;"                                  \
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]),        \
                   "=f"(v[6]), "=f"(v[7]))
#if BN == 128
#define EACH(X)  X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define ALL_NAMES                                                                                 \
    NAMES(0) ", " NAMES(1) ", " NAMES(2) ", " NAMES(3) ", " NAMES(4) ", " NAMES(5) ", " NAMES(6)  \
        ", " NAMES(7)
#elif BN == 160
#define EACH(X)  X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9)
#define ALL_NAMES                                                                                 \
    NAMES(0) ", " NAMES(1) ", " NAMES(2) ", " NAMES(3) ", " NAMES(4) ", " NAMES(5) ", " NAMES(6)  \
        ", " NAMES(7) ", " NAMES(8) ", " NAMES(9)
#elif BN == 176
#define EACH(X)  X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10)
#define ALL_NAMES                                                                                 \
    NAMES(0) ", " NAMES(1) ", " NAMES(2) ", " NAMES(3) ", " NAMES(4) ", " NAMES(5) ", " NAMES(6)  \
        ", " NAMES(7) ", " NAMES(8) ", " NAMES(9) ", " NAMES(10)
#else
#define EACH(X)  X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define ALL_NAMES                                                                                 \
    NAMES(0) ", " NAMES(1) ", " NAMES(2) ", " NAMES(3) ", " NAMES(4) ", " NAMES(5) ", " NAMES(6)  \
        ", " NAMES(7) ", " NAMES(8) ", " NAMES(9) ", " NAMES(10) ", " NAMES(11)
#endif

/* s = (keep ? s : 0) + 64 x 16 slice at a times BN x 16 slice at b. */
static inline void multiply(ulong a, ulong b, uint keep)
{
    PTX("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n"
                 "//WG wgmma.mma_async.sync.aligned.m64n" TEXT(BN) "k16.f32.bf16.bf16 {" ALL_NAMES
                 "}, %0, %1, p, 1, 1, " A_MAJOR ", " B_MAJOR ";\n}" ::"l"(a),
                 "l"(b), "r"(keep)
                 : "memory");
}

/* --- the ring ----------------------------------------------------------------------------------------- */

struct source { __global const uchar *maps, *a, *b; ulong a_panel, b_panel; };

/* Asks for slice `step` of the tile that begins at `begin`. */
static inline void fetch(uint to, uint bar, const struct source *x, uint2 begin, uint step)
{
    barrier_expect(bar, STAGE_BYTES);
#if A_FORM == PANELS
    copy_bytes(to, x->a + step / BK * x->a_panel + begin.x * (2 * BK), A_BYTES, bar);
#elif A_FORM == ROWS
    copy_box(to, x->maps, step, begin.x, bar);
#else
#pragma unroll
    for (uint i = 0; i < BM / 64; i++)
        copy_box(to + i * HALF_BYTES, x->maps, begin.x + 64 * i, step, bar);
#endif
#if B_FORM == PANELS
    copy_bytes(to + A_BYTES, x->b + step / BK * x->b_panel + begin.y * (2 * BK), B_BYTES, bar);
#elif B_FORM == ROWS
    copy_box(to + A_BYTES, x->maps + 128, step, begin.y, bar);
#else
#pragma unroll
    for (uint i = 0; i < BN / B_WIDTH; i++)
        copy_box(to + A_BYTES + i * B_WIDTH * BK * 2, x->maps + 128, begin.y + B_WIDTH * i, step, bar);
#endif
}

#define PUT(g)                                                                                    \
    {                                                                                             \
        float v[8];                                                                               \
        READ(g, v);                                                                               \
        put((float4)(v[0], v[1], v[4], v[5]), row, column + 16 * g, m, n, OUT_ARGUMENTS);         \
        put((float4)(v[2], v[3], v[6], v[7]), row + 8, column + 16 * g, m, n, OUT_ARGUMENTS);     \
    }

#define SOURCE_PARAMETERS __global const uchar *maps, __global const uchar *a, ulong a_at, ulong a_panel, __global const uchar *b, ulong b_at, ulong b_panel

static inline void acquire_maps(const struct source *x)
{
#if A_FORM != PANELS
    acquire_map(x->maps);
#endif
#if B_FORM != PANELS
    acquire_map(x->maps + 128);
#endif
}

#if PRODUCER
/* The engine's side: one lane keeps the ring full, through all tiles of the group. */
static inline void produce(uint ring_at, uint full_at, uint empty_at, const struct source *x,
                           uint n_tiles, uint n_steps, uint down, uint across)
{
    uint slot = 0, parity = 1; /* the first wait for an empty slice passes at once */
    acquire_maps(x);
    for (uint tile = get_group_id(0); tile < n_tiles; tile += get_num_groups(0)) {
        uint2 begin = tile_begin(tile, down, across);
        for (uint t = 0; t < n_steps; t++) {
            barrier_wait(empty_at + 8 * slot, parity);
            fetch(ring_at + slot * STAGE_BYTES, full_at + 8 * slot, x, begin, t * BK);
            if (++slot == STAGES) {
                slot = 0;
                parity ^= 1;
            }
        }
    }
}
#else
struct place {
    uint tile, step;
    uint2 begin;
};

static inline void next_place(struct place *p, uint n_steps, uint down, uint across)
{
    if (++p->step == n_steps) {
        p->tile += get_num_groups(0);
        p->begin = tile_begin(p->tile, down, across);
        p->step = 0;
    }
}

static inline void refill(uint slot, uint ring_at, uint full_at, uint empty_at, const struct source *x, struct place *ahead,
        uint n_tiles, uint n_steps, uint down, uint across)
{
    if (get_local_id(0) % 128 == 0 && ahead->tile < n_tiles && barrier_arrive_last(empty_at + 8 * slot))
        fetch(ring_at + slot * STAGE_BYTES, full_at + 8 * slot, x, ahead->begin, ahead->step * BK);
    next_place(ahead, n_steps, down, across);
}
#endif

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
gemm_sm90a(ulong m, ulong n, ulong k, SOURCE_PARAMETERS, OUT_PARAMETERS)
{
    __local uchar ring[STAGES * STAGE_BYTES] __attribute__((aligned(1024)));
    __local ulong full[STAGES];  /* barriers: the content of a slice has arrived */
    __local ulong empty[STAGES]; /* both warpgroups are done with it */
    EACH(DECLARE)
    uint id = get_local_id(0), part = id / 128;
    uint ring_at = local_address(ring), full_at = local_address(full);
    uint empty_at = local_address(empty);
    uint down = (uint)((m + BM - 1) / BM), across = (uint)((n + BN - 1) / BN);
    uint n_tiles = down * across, n_steps = (uint)((k + BK - 1) / BK);
    struct source x = {maps, a + a_at, b + b_at, a_panel, b_panel};
    if (id < STAGES) {
        barrier_init(full_at + 8 * id, 1);
        barrier_init(empty_at + 8 * id, BM / 64);
        barrier_init_fence();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#if PRODUCER
    if (id >= WORKERS) {
        if (id == WORKERS)
            produce(ring_at, full_at, empty_at, &x, n_tiles, n_steps, down, across);
        return;
    }
#else
    if (id % 128 == 0)
        acquire_maps(&x);
    struct place ahead = {get_group_id(0), 0, tile_begin(get_group_id(0), down, across)};
    for (uint i = 0; i < STAGES; i++) {
        if (id == 0 && ahead.tile < n_tiles)
            fetch(ring_at + i * STAGE_BYTES, full_at + 8 * i, &x, ahead.begin, ahead.step * BK);
        next_place(&ahead, n_steps, down, across);
    }
#endif
    uint slot = 0, parity = 0, before = 0;
    for (uint tile = get_group_id(0); tile < n_tiles; tile += get_num_groups(0)) {
        for (uint t = 0; t < n_steps; t++) {
            barrier_wait(full_at + 8 * slot, parity);
            uint at = ring_at + slot * STAGE_BYTES;
            ulong a_d = A_FIELDS | (at + part * HALF_BYTES) >> 4, b_d = B_FIELDS | (at + A_BYTES) >> 4;
            PTX("//WG wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (uint i = 0; i < BK / 16; i++)
                multiply(a_d + i * A_STEP / 16, b_d + i * B_STEP / 16, t + i);
            PTX("//WG wgmma.commit_group.sync.aligned;" ::: "memory");
            PTX("//WG wgmma.wait_group.sync.aligned 1;" ::: "memory");
#if PRODUCER
            if (t > 0 && id % 128 == 0)
                barrier_arrive(empty_at + 8 * before);
#else
            if (t > 0)
                refill(before, ring_at, full_at, empty_at, &x, &ahead, n_tiles, n_steps, down, across);
#endif
            before = slot;
            if (++slot == STAGES) {
                slot = 0;
                parity ^= 1;
            }
        }
        PTX("//WG wgmma.wait_group.sync.aligned 0;" ::: "memory");
#if PRODUCER
        if (id % 128 == 0)
            barrier_arrive(empty_at + 8 * before);
#else
        refill(before, ring_at, full_at, empty_at, &x, &ahead, n_tiles, n_steps, down, across);
#endif
        uint2 begin = tile_begin(tile, down, across);
        ulong row = begin.x + part * 64 + id % 128 / 32 * 16 + id % 32 / 4;
        uint column = begin.y + id % 4 * 2;
        EACH(PUT)
    }
}

/* --- descriptors ---------------------------------------------------------------------------------------- */

#define REPLACE(field, type, constraint, ord, value)                                              \
    PTX("//WG tensormap.replace.tile." field ".global.b1024." type " [%0], " ord "%1;"   \
                 ::"l"(map), constraint(value) : "memory")
#define REPLACE_CODE(field, code)                                                                 \
    PTX("//WG tensormap.replace.tile." field ".global.b1024.b32 [%0], " code ";"         \
                 ::"l"(map) : "memory")

/* All fields of a descriptor of 128 bytes: a bf16 matrix [n_rows, n_columns] read in boxes. */
#define MAKE_MAP(at, x, n_columns, n_rows, ld, box_columns, box_rows, engine)                     \
    {                                                                                             \
        __global ulong *map = (__global ulong *)(at);                                             \
        for (uint i = 0; i < 16; i++)                                                             \
            map[i] = 0;                                                                           \
        REPLACE("global_address", "b64", "l", "", (x));                                           \
        REPLACE_CODE("rank", "1");                                                                \
        REPLACE("box_dim", "b32", "r", "0, ", (uint)(box_columns));                               \
        REPLACE("box_dim", "b32", "r", "1, ", (uint)(box_rows));                                  \
        REPLACE("global_dim", "b32", "r", "0, ", (uint)(n_columns));                              \
        REPLACE("global_dim", "b32", "r", "1, ", (uint)(n_rows));                                 \
        REPLACE("global_stride", "b64", "l", "0, ", 2 * (ulong)(ld));                             \
        REPLACE("element_stride", "b32", "r", "0, ", 1u);                                         \
        REPLACE("element_stride", "b32", "r", "1, ", 1u);                                         \
        REPLACE_CODE("elemtype", "10");                                                           \
        REPLACE_CODE("interleave_layout", "0");                                                   \
        REPLACE_CODE("swizzle_mode", TEXT(engine));                                               \
        REPLACE_CODE("fill_mode", "0");                                                           \
    }

/* maps: [2, 128] bytes at a multiple of 128. Addresses and ld of both are multiples of 8 elements. */
__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void
gemm_sm90a_maps(ulong m, ulong n, ulong k, __global uchar *maps, __global const ushort *a, ulong a_at,
                ulong a_ld, __global const ushort *b, ulong b_at, ulong b_ld)
{
    if (get_local_id(0) == 0 && get_group_id(0) == 0) {
#if A_FORM == ROWS
        MAKE_MAP(maps, a + a_at, k, m, a_ld, BK, BM, A_ENGINE)
#elif A_FORM == COLUMNS
        MAKE_MAP(maps, a + a_at, m, k, a_ld, 64, BK, A_ENGINE)
#endif
#if B_FORM == ROWS
        MAKE_MAP(maps + 128, b + b_at, k, n, b_ld, BK, BN, B_ENGINE)
#elif B_FORM == COLUMNS
        MAKE_MAP(maps + 128, b + b_at, n, k, b_ld, B_WIDTH, BK, B_ENGINE)
#endif
        PTX("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
    }
}
