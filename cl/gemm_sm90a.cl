/* gemm_sm90a.cl - GEMM on Hopper's tensor cores: C = op(A) op(B) (+ bias) (+ R).
 *
 * A, B bf16, sums f32. A work-group has a multiprocessor to itself: two warpgroups that multiply,
 * each 64 rows of a tile of 128 x 256, 192 or 128, and a warp that fetches. It computes tiles one
 * after another; slices of 64 steps of both operands come through a ring of STAGES in local memory,
 * which runs ahead across tiles, so that loads are under way while results are written. The copy
 * engine reads and writes by descriptors that each group makes, gives zeros outside of a matrix and
 * writes nothing there, so m, n and k are free. wgmma reads an operand along k or across it, as it
 * lies in memory: no operand is ever transposed. Sums are named PTX registers, or the assembler
 * would move them and serialise the products.
 *
 * The array `local_memory` is larger than it says: the host enlarges it in the program's text
 * (ptx.h), since OpenCL C stops at 48 KiB where the device has 227. It is never accessed by name.
 *
 * Results go through a buffer of each warp in local memory, from where the copy engine takes them;
 * a warp waits for nothing but that its buffer has been read. */
#ifndef A_ROWS
#define A_ROWS 1 /* 1: A is [m, k]; 0: [k, m] */
#endif
#ifndef B_ROWS
#define B_ROWS 1 /* 1: B is [n, k]; 0: [k, n] */
#endif
#ifndef STAGES
#define STAGES 4 /* slices in the ring */
#endif
#ifndef C_MAPPED
#define C_MAPPED 1 /* 1: C_ALIGNED, and offset and ld of C are multiples of 8 elements */
#endif
#ifndef SWIGLU
#define SWIGLU 0 /* 1: columns of gate and up are interleaved by 8, C is silu(gate) * up */
#endif
#define BM      128
#define BN      256 /* columns of a tile, at most */
#define BK      64
#define WORKERS 256
#define GROUP   (WORKERS + 128) /* registers are shared among warpgroups */
#if C_MAPPED
#define C_ALIGNED 1
#endif

#include "common.clh"
#include "ptx.clh"
#include "gemm_tensor.clh"

#define BLOCK_BYTES (64 * BK * 2) /* of 64 lines of a slice */
#define A_BYTES     (BM / 64 * BLOCK_BYTES)
#define STAGE_BYTES (A_BYTES + BN / 64 * BLOCK_BYTES)

/* Of a warp: two boxes of 16 rows by 128 bytes. */
#define BOX_ROWS     16
#define BOX_BYTES    (BOX_ROWS * 128)
#define BUFFER_BYTES (2 * BOX_BYTES)

/* Descriptor of a slice in local memory, without its address: swizzled over 128 bytes, 1024 bytes
 * from 8 lines (along k) or 8 steps (across) to the next 8; across k, a block to the next 64 lines.
 * Lengths count 16 bytes. */
#define SLICE_FIELDS (1UL << 62 | 64UL << 32 | (ulong)(BLOCK_BYTES / 16) << 16)
/* From 16 steps of a slice to the next 16. */
#define STEP_FIELDS(rows) ((rows) ? 32UL / 16 : 2048UL / 16)

/* --- sums: sG_0 to sG_7 are a lane's share of the 16 columns G of its tile ------------------- */

#define NAMES(g)                                                                                   \
    "s" #g "_0, s" #g "_1, s" #g "_2, s" #g "_3, s" #g "_4, s" #g "_5, s" #g "_6, s" #g "_7"
#define NAMES4(g0, g1, g2, g3) NAMES(g0) ", " NAMES(g1) ", " NAMES(g2) ", " NAMES(g3)
#define DECLARE(g) PTX(".reg .f32 s" #g "_<8>;");
#define DECLARE4(i, g0, g1, g2, g3) DECLARE(g0) DECLARE(g1) DECLARE(g2) DECLARE(g3)
#define READ(g, v)                                                                                 \
    PTX("mov.f32 %0, s" #g "_0; mov.f32 %1, s" #g "_1; mov.f32 %2, s" #g "_2; "                    \
        "mov.f32 %3, s" #g "_3; mov.f32 %4, s" #g "_4; mov.f32 %5, s" #g "_5; "                    \
        "mov.f32 %6, s" #g "_6; mov.f32 %7, s" #g "_7;"                                            \
        : "=f"((v)[0]), "=f"((v)[1]), "=f"((v)[2]), "=f"((v)[3]), "=f"((v)[4]), "=f"((v)[5]),      \
          "=f"((v)[6]), "=f"((v)[7]))

/* X for each 64 columns i of a tile, the sums g0 to g3. */
#define EACH(X) X(0, 0, 1, 2, 3) X(1, 4, 5, 6, 7) X(2, 8, 9, 10, 11) X(3, 12, 13, 14, 15)
#define NAMES_128 NAMES4(0, 1, 2, 3) ", " NAMES4(4, 5, 6, 7)
#define NAMES_192 NAMES_128 ", " NAMES4(8, 9, 10, 11)
#define NAMES_256 NAMES_192 ", " NAMES4(12, 13, 14, 15)
#if A_ROWS && B_ROWS
#define ACROSS "0, 0"
#elif A_ROWS
#define ACROSS "0, 1"
#elif B_ROWS
#define ACROSS "1, 0"
#else
#define ACROSS "1, 1"
#endif

/* sums = (keep ? sums : 0) + 16 steps of A and B at these descriptors. */
#define MULTIPLY(columns, a, b, keep)                                                              \
    PTX("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n"                                                \
        "//WG wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" NAMES_##columns    \
        "}, %0, %1, p, 1, 1, " ACROSS ";\n}" ::"l"(a),                                             \
        "l"(b), "r"(keep)                                                                          \
        : "memory")
#define FENCE_WGMMA()  PTX("//WG wgmma.fence.sync.aligned;" ::: "memory")
#define COMMIT_WGMMA() PTX("//WG wgmma.commit_group.sync.aligned;" ::: "memory")

/* Waits until at most N groups of products are under way. */
#define WAIT_WGMMA(N) PTX("//WG wgmma.wait_group.sync.aligned " #N ";" ::: "memory")

/* --- descriptors ----------------------------------------------------------------------------- */

#define REPLACE(field, type, constraint, ord, value)                                               \
    PTX("//WG tensormap.replace.tile." field ".global.b1024." type " [%0], " ord "%1;" ::"l"(map), \
        constraint(value)                                                                          \
        : "memory")
#define REPLACE_CODE(field, code)                                                                  \
    PTX("//WG tensormap.replace.tile." field ".global.b1024.b32 [%0], " code ";" ::"l"(map)        \
        : "memory")

/* All fields of the descriptor of a matrix x [n_rows, n_columns] of elements of 16 bits that is
 * met in boxes of box_rows by 64 columns, swizzled over 128 bytes, with zeros outside. */
static inline void make_map(__global uchar *at, ulong x, ulong n_columns, ulong n_rows, ulong ld,
                            uint box_rows)
{
    __global ulong *map = (__global ulong *)at;
    for (uint i = 0; i < 16; i++)
        map[i] = 0;
    REPLACE("global_address", "b64", "l", "", x);
    REPLACE_CODE("rank", "1"); /* less one */
    REPLACE("box_dim", "b32", "r", "0, ", 64u);
    REPLACE("box_dim", "b32", "r", "1, ", box_rows);
    REPLACE("global_dim", "b32", "r", "0, ", (uint)n_columns);
    REPLACE("global_dim", "b32", "r", "1, ", (uint)n_rows);
    REPLACE("global_stride", "b64", "l", "0, ", 2 * ld);
    REPLACE("element_stride", "b32", "r", "0, ", 1u);
    REPLACE("element_stride", "b32", "r", "1, ", 1u);
    REPLACE_CODE("elemtype", "10"); /* bf16; C of f32 is met as pairs of them */
    REPLACE_CODE("interleave_layout", "0");
    REPLACE_CODE("swizzle_mode", "3"); /* 128 bytes */
    REPLACE_CODE("fill_mode", "0");
}

#define C_UNITS (sizeof(CLD_ELEM(TC)) / 2) /* of 16 bits in an element of C */

/* What lane i of the fetching warp does: the descriptor of A, B or C. */
static inline void make_maps(uint i, __global uchar *maps, ulong m, ulong n, ulong k, uint columns,
                             __global const ushort *a, ulong a_ld, __global const ushort *b,
                             ulong b_ld, __global const CLD_ELEM(TC) * c, ulong c_ld)
{
    const ulong x = i == 0 ? (ulong)a : i == 1 ? (ulong)b : (ulong)c;
    const ulong n_c = (SWIGLU ? n / 2 : n) * C_UNITS;
    const ulong n_columns = i == 0 ? (A_ROWS ? k : m) : i == 1 ? (B_ROWS ? k : n) : n_c;
    const ulong n_rows = i == 0 ? (A_ROWS ? m : k) : i == 1 ? (B_ROWS ? n : k) : m;
    const ulong ld = i == 0 ? a_ld : i == 1 ? b_ld : c_ld * C_UNITS;
    const uint box_rows = i == 0 ? (A_ROWS ? BM : BK) : i == 1 ? (B_ROWS ? columns : BK) : BOX_ROWS;
    make_map(maps + 128 * i, x, n_columns, n_rows, ld, box_rows);
    publish_maps();
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

struct work {
    uint down, across; /* tiles */
    uint columns;      /* of a tile */
    uint n_steps;      /* slices of a tile */
};

static inline struct work make_work(ulong m, ulong n, ulong k, uint columns)
{
    return (struct work){(uint)((m + BM - 1) / BM), (uint)((n + columns - 1) / columns), columns,
                         (uint)((k + BK - 1) / BK)};
}

/* Asks for n_lines of a slice of an operand: lines from `line` on, steps from `step` on. */
static inline void fetch(int rows, uint to, uint n_lines, uint line, uint step,
                         __global const uchar *map, uint full)
{
    if (rows)
        copy_box(to, map, step, line, full);
    else
        for (uint i = 0; i < n_lines / 64; i++)
            copy_box(to + i * BLOCK_BYTES, map, line + 64 * i, step, full);
}

/* What the fetching warp does, by one lane: all slices of all tiles of this group, as places get
 * free. */
static inline void fetch_all(struct ring ring, struct work w, __global const uchar *maps)
{
    struct place p = {0, 1}; /* at first every slot is empty: the phase before counts as over */
    CLD_SHARE(tile, w.down * w.across) {
        uint2 begin = tile_begin((uint)tile, w.down, w.across, w.columns);
        for (uint t = 0; t < w.n_steps; t++) {
            uint to = ring.at + p.slot * STAGE_BYTES, full = ring.full + 8 * p.slot;
            barrier_wait(ring.empty + 8 * p.slot, p.parity);
            barrier_expect(full, A_BYTES + w.columns / 64 * BLOCK_BYTES);
            fetch(A_ROWS, to, BM, begin.x, t * BK, maps, full);
            fetch(B_ROWS, to + A_BYTES, w.columns, begin.y, t * BK, maps + 128, full);
            next_slot(&p);
        }
    }
}

/* --- the product ----------------------------------------------------------------------------- */

/* The slice at `at` times its share of rows, of tiles of this many columns. */
#define MULTIPLY_SLICE(columns, a, b, keep)                                                        \
    MULTIPLY(columns, a, b, keep);                                                                 \
    MULTIPLY(columns, a + STEP_FIELDS(A_ROWS), b + STEP_FIELDS(B_ROWS), 1);                        \
    MULTIPLY(columns, a + 2 * STEP_FIELDS(A_ROWS), b + 2 * STEP_FIELDS(B_ROWS), 1);                \
    MULTIPLY(columns, a + 3 * STEP_FIELDS(A_ROWS), b + 3 * STEP_FIELDS(B_ROWS), 1)

/* All slices of a tile. A slot is empty once the products after its own run. */
#define SUM_TILE(columns)                                                                          \
    for (uint t = 0; t < n_steps; t++) {                                                           \
        barrier_wait(ring.full + 8 * p->slot, p->parity);                                          \
        uint at = ring.at + p->slot * STAGE_BYTES;                                                 \
        ulong a = SLICE_FIELDS | (at + warpgroup * BLOCK_BYTES) >> 4;                              \
        ulong b = SLICE_FIELDS | (at + A_BYTES) >> 4;                                              \
        FENCE_WGMMA();                                                                             \
        MULTIPLY_SLICE(columns, a, b, t);                                                          \
        COMMIT_WGMMA();                                                                            \
        WAIT_WGMMA(1);                                                                             \
        if (t > 0 && first)                                                                        \
            barrier_arrive(ring.empty + 8 * before);                                               \
        before = p->slot;                                                                          \
        next_slot(p);                                                                              \
    }

/* What a warpgroup does for a tile: its sums. */
static inline void sum_tile(struct ring ring, struct place *p, uint n_steps, uint columns)
{
    const uint warpgroup = get_local_id(0) / 128, first = get_local_id(0) % 128 == 0;
    uint before = 0;
    if (columns == 256)
        SUM_TILE(256)
    else if (columns == 192)
        SUM_TILE(192)
    else
        SUM_TILE(128)
    WAIT_WGMMA(0);
    if (first)
        barrier_arrive(ring.empty + 8 * before);
}

/* --- results --------------------------------------------------------------------------------- */

/* Calls of functions that take sums would put them into memory. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* A lane has of 64 columns of its warp's 16 rows v[8 g], .. for each 16 columns g: two neighbouring
 * columns of a row, the same 8 rows below, and both again 8 columns to the right. */

#if C_MAPPED
#define PAIR_f32(p)  (*(__global const float2 *)(p))
#define PAIR_bf16(p) pair_bf16(*(__global const uint *)(p))
static inline float2 pair_bf16(uint v)
{
    return (float2)(as_float(v << 16), as_float(v & 0xffff0000));
}

/* v += bias + R for 32 columns, all of R asked for before the first use. */
ALWAYS_INLINE void add_inputs(float *v, ulong row, uint column, ulong m, ulong n, OUT_PARAMETERS)
{
    float2 x[8];
    if (bias) {
#pragma unroll
        for (uint i = 0; i < 4; i++)
            x[i] = column + 8 * i < n ? CLD_CAT(PAIR_, TBIAS)(bias + bias_at + column + 8 * i) : 0;
#pragma unroll
        for (uint i = 0; i < 8; i++) {
            v[2 * i] += x[i / 2].x;
            v[2 * i + 1] += x[i / 2].y;
        }
    }
    if (r) {
#pragma unroll
        for (uint i = 0; i < 8; i++) {
            const ulong to_row = row + i % 2 * 8;
            const uint to_column = column + i / 2 * 8;
            x[i] = to_row < m && to_column < n
                       ? CLD_CAT(PAIR_, TR)(r + r_at + to_row * r_ld + to_column)
                       : 0;
        }
#pragma unroll
        for (uint i = 0; i < 8; i++) {
            v[2 * i] += x[i].x;
            v[2 * i + 1] += x[i].y;
        }
    }
}

/* The next box of this warp's buffer may be written: at most the other's store is under way. */
static inline void box_begin(void)
{
    if (get_local_id(0) % 32 == 0)
        WAIT_STORES_READ(1);
    warp_barrier();
}

/* It has been written, and goes to (column, row) of C, columns in units of 16 bits. */
static inline void box_end(uint box, __global const uchar *maps, uint column, uint row)
{
    writes_fence();
    warp_barrier();
    if (get_local_id(0) % 32 == 0) {
        store_box(box, maps + 256, column, row);
        commit_stores();
    }
}

static inline float gated(float gate, float up)
{
    return gate * native_recip(1.0f + exp2_approx(gate * -M_LOG2E_F)) * up;
}

/* 16 columns of a box of bf16, from 8-column block `block` on. */
static inline void put_blocks(uint box, uint block, uint4 v)
{
    const uint lane = get_local_id(0) % 32;
    store_matrices(box + lane % 16 * 128 + ((block + lane / 16) ^ lane % 8) * 16, v);
}

/* Columns [64 i, 64 i + 64) of the tile at `begin`. */
ALWAYS_INLINE void put_columns(float *v, uint i, uint buffer, uint2 begin, ulong m, ulong n,
                               __global const uchar *maps, OUT_PARAMETERS)
{
    const uint id = get_local_id(0), lane = id % 32;
    const uint row0 = begin.x + id / 32 * BOX_ROWS, column0 = begin.y + 64 * i;
#if SWIGLU
    const uint box = buffer + i / 2 % 2 * BOX_BYTES;
    if (i % 2 == 0)
        box_begin();
#pragma unroll
    for (uint g = 0; g < 4; g += 2) {
        const float *x = v + 8 * g, *y = x + 8;
        put_blocks(box, i % 2 * 4 + g,
                   (uint4)(pack_bf16(gated(x[0], x[4]), gated(x[1], x[5])),
                           pack_bf16(gated(x[2], x[6]), gated(x[3], x[7])),
                           pack_bf16(gated(y[0], y[4]), gated(y[1], y[5])),
                           pack_bf16(gated(y[2], y[6]), gated(y[3], y[7]))));
    }
    if (i % 2)
        box_end(box, maps, begin.y / 2 + i / 2 * 64, row0);
#else
    if (bias || r) {
        const ulong row = row0 + lane / 4;
        const uint column = column0 + lane % 4 * 2;
        add_inputs(v, row, column, m, n, OUT_ARGUMENTS);
        add_inputs(v + 16, row, column + 32, m, n, OUT_ARGUMENTS);
    }
#if CLD_IS_BF16(TC)
    const uint box = buffer + i % 2 * BOX_BYTES;
    box_begin();
#pragma unroll
    for (uint g = 0; g < 4; g++)
        put_blocks(box, 2 * g,
                   (uint4)(pack_bf16(v[8 * g], v[8 * g + 1]), pack_bf16(v[8 * g + 2], v[8 * g + 3]),
                           pack_bf16(v[8 * g + 4], v[8 * g + 5]),
                           pack_bf16(v[8 * g + 6], v[8 * g + 7])));
    box_end(box, maps, column0, row0);
#else
#pragma unroll
    for (uint side = 0; side < 2; side++) {
        const uint box = buffer + side * BOX_BYTES;
        box_begin();
#pragma unroll
        for (uint j = 0; j < 8; j++) { /* pairs of 8 columns j / 2 and rows 8 (j % 2) */
            const uint row = lane / 4 + j % 2 * 8, unit = j / 2 * 2 + lane % 4 / 2;
            store8(box + row * 128 + (unit ^ row % 8) * 16 + lane % 2 * 8, v[16 * side + 2 * j],
                   v[16 * side + 2 * j + 1]);
        }
        box_end(box, maps, (column0 + 32 * side) * 2, row0);
    }
#endif
#endif
}
#else
ALWAYS_INLINE void put_columns(float *v, uint i, uint buffer, uint2 begin, ulong m, ulong n,
                               __global const uchar *maps, OUT_PARAMETERS)
{
    const uint id = get_local_id(0);
    const ulong row = begin.x + id / 32 * 16 + id % 32 / 4;
    const uint column = begin.y + 64 * i + id % 4 * 2;
#pragma unroll
    for (uint g = 0; g < 4; g++) {
        const float *x = v + 8 * g;
        put((float4)(x[0], x[1], x[4], x[5]), row, column + 16 * g, m, n, OUT_ARGUMENTS);
        put((float4)(x[2], x[3], x[6], x[7]), row + 8, column + 16 * g, m, n, OUT_ARGUMENTS);
    }
}
#endif

#define PUT(i, g0, g1, g2, g3)                                                                     \
    if (64 * i < w.columns) {                                                                      \
        float v[32];                                                                               \
        READ(g0, v);                                                                               \
        READ(g1, v + 8);                                                                           \
        READ(g2, v + 16);                                                                          \
        READ(g3, v + 24);                                                                          \
        put_columns(v, i, buffer, begin, m, n, maps, OUT_ARGUMENTS);                               \
    }

/* columns: of a tile: 256, 192 or 128, not 192 with SWIGLU. maps: 384 bytes a work-group at a
 * multiple of 128, for its descriptors: a kernel of its own that made them once would cost more than
 * its work. Addresses and ld of A and B are multiples of 8 elements. k > 0. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
gemm_sm90a(ulong m, ulong n, ulong k, ulong columns, __global uchar *maps,
           __global const ushort *a, ulong a_at, ulong a_ld, __global const ushort *b, ulong b_at,
           ulong b_ld, OUT_PARAMETERS)
{
    __local uchar local_memory[1024] __attribute__((aligned(1024)));
    __local ulong full[STAGES], empty[STAGES];
    struct ring ring = {local_address(local_memory), local_address(full), local_address(empty)};
    struct work w = make_work(m, n, k, (uint)columns);
    const uint id = get_local_id(0);
    EACH(DECLARE4)
    maps += 384 * get_group_id(0);
    if (id < STAGES) {
        barrier_init(ring.full + 8 * id, 1);
        barrier_init(ring.empty + 8 * id, WORKERS / 128);
        barrier_init_fence();
    }
    if (id >= WORKERS && id < WORKERS + 2 + C_MAPPED)
        make_maps(id - WORKERS, maps, m, n, k, w.columns, a + a_at, a_ld, b + b_at, b_ld,
                  c + c_at, c_ld);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (id >= WORKERS) {
        LESS_REGISTERS(40);
        if (id == WORKERS) {
            acquire_map(maps);
            acquire_map(maps + 128);
            fetch_all(ring, w, maps);
        }
        return;
    }
    MORE_REGISTERS(232);
    struct place p = {0, 0};
    const uint buffer = ring.at + STAGES * STAGE_BYTES + id / 32 * BUFFER_BYTES;
    if (C_MAPPED && id % 32 == 0)
        acquire_map(maps + 256);
    CLD_SHARE(tile, w.down * w.across) {
        sum_tile(ring, &p, w.n_steps, w.columns);
        const uint2 begin = tile_begin((uint)tile, w.down, w.across, w.columns);
        EACH(PUT)
    }
    if (C_MAPPED && id % 32 == 0)
        WAIT_STORES(0);
}
