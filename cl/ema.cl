/* ema.cl - one step of a moving mean over an arena of n elements: mean += (x - mean) * share. */
#define GAPLESS 1
#include "common.clh"
#include "wide.clh"

__kernel void ema(__global float *mean, ulong mean_at, __global const float *x, ulong x_at, ulong n,
                  float share)
{
    CLD_EACH(r, j, 1ul, n) {
        const long left = n - j;
        floatw a = LOADW(f32, mean + mean_at, j, left), b = LOADW(f32, x + x_at, j, left);
        STOREW(f32, a + (b - a) * share, mean + mean_at, j, left);
    }
}
