/* fill.cl - every element one value, or normal values that are a function of keys and element.
 *
 * The generator is Philox 2x32 with 10 rounds (Salmon, Moraes, Dror, Shaw 2011): the counter is the
 * number of the element (row * n_cols + column, wherever it is stored), high word mixed with
 * key_high; the two words that come out give a normal value by Box and Muller's transform. */
#include "common.clh"
#include "wide.clh"

#ifndef T
#define T f32 /* storage */
#endif

__kernel void fill(__global CLD_ELEM(T) *t, ulong t_at, ulong t_ld, ulong n_rows, ulong n_cols,
                   float value)
{
    CLD_EACH(r, j, n_rows, n_cols)
        STOREW(T, (floatw)(value), t + t_at + r * t_ld, j, n_cols - j);
}

__kernel void fill_normal(__global CLD_ELEM(T) *t, ulong t_at, ulong t_ld, ulong n_rows,
                          ulong n_cols, uint key, uint key_high, float std)
{
    CLD_EACH(r, j, n_rows, n_cols) {
        const ulong element = r * n_cols + j;
        uintw lo = (uintw)((uint)element) + as_uintw(IOTA);
        uintw hi = (uintw)((uint)(element >> 32));
        hi -= as_uintw(lo < (uintw)((uint)element)); /* carry: true is -1 */
        hi ^= key_high;
        for (uint i = 0, k = key; i < 10; i++, k += 0x9e3779b9u) {
            uintw high = mul_hi(lo, (uintw)(0xd256d193u));
            lo *= 0xd256d193u;
            uintw mixed = high ^ k ^ hi;
            hi = lo;
            lo = mixed;
        }
        floatw u = convert_floatw(lo) * 0x1p-32f + 0x1p-33f; /* (0, 1] */
        floatw turn = convert_floatw(hi >> 8) * 0x1p-24f;    /* [0, 1) */
        floatw v = std * (sqrt(-2.0f * log(u)) * cospi(2.0f * turn));
        STOREW(T, v, t + t_at + r * t_ld, j, n_cols - j);
    }
}
