/* random.h - counter-based random numbers: a value is a pure function of its keys.
 *
 * Nothing here has state, so results do not depend on which thread is faster, and a run resumes
 * exactly. Keys name a purpose and its coordinates, for example (seed, PURPOSE_ANCHORS, epoch,
 * row). Any thread. */
#ifndef CLD_BASE_RANDOM_H
#define CLD_BASE_RANDOM_H

#include <stdint.h>

enum cld_random_purpose {
    CLD_RANDOM_ORDER = 1,   /* order of rows in an epoch */
    CLD_RANDOM_ANCHORS = 2, /* anchors of a row */
    CLD_RANDOM_INIT = 3,    /* initial weights */
    CLD_RANDOM_TARGET = 4,  /* generated target weights */
    CLD_RANDOM_DATA = 5,    /* synthetic rows */
    CLD_RANDOM_TEST = 6,    /* inputs of checks and benchmarks */
    CLD_RANDOM_DECODE = 7,  /* tokens of sampled decoding */
    CLD_RANDOM_PREFIX = 8   /* prefixes of blocks */
};

/* The finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection that mixes all bits. */
static inline uint64_t cld_mix64(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* One 64-bit value for these keys. */
static inline uint64_t cld_random_u64(uint64_t seed, enum cld_random_purpose purpose, uint64_t a,
                                      uint64_t b, uint64_t c)
{
    uint64_t h = cld_mix64(seed ^ ((uint64_t)purpose << 56));
    h = cld_mix64(h ^ a);
    h = cld_mix64(h ^ b);
    return cld_mix64(h ^ c);
}

/* Uniform in [0, 1) with 53 bits. */
static inline double cld_random_unit(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1p-53;
}

/* Uniform in [0, n), n > 0, without modulo bias worth speaking of (the high product word). */
static inline uint64_t cld_random_below(uint64_t bits, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)bits * n) >> 64);
}

/* Standard normal value from one 64-bit word (Box-Muller on its two halves). */
double cld_random_normal(uint64_t bits);

#endif
