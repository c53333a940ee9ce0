/* size.h - sizes are size_t and are multiplied and added only here, checked.
 *
 * The helpers saturate to SIZE_MAX on overflow: a saturated size fails every budget and bound check
 * that follows, so callers may chain products and test once (cld_size_ok). Pure, any thread. */
#ifndef CLD_BASE_SIZE_H
#define CLD_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline size_t cld_mul(size_t a, size_t b)
{
    size_t r;
    return __builtin_mul_overflow(a, b, &r) ? SIZE_MAX : r;
}

static inline size_t cld_add(size_t a, size_t b)
{
    size_t r;
    return __builtin_add_overflow(a, b, &r) ? SIZE_MAX : r;
}

static inline size_t cld_mul3(size_t a, size_t b, size_t c)
{
    return cld_mul(cld_mul(a, b), c);
}

static inline bool cld_size_ok(size_t n)
{
    return n != SIZE_MAX;
}

static inline size_t cld_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t cld_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

static inline size_t cld_div_up(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}

/* Saturates like the others. */
static inline size_t cld_round_up(size_t a, size_t b)
{
    return cld_mul(cld_div_up(a, b), b);
}

/* Bytes as GiB, for messages. */
static inline double cld_gib(double n_bytes)
{
    return n_bytes / (1024.0 * 1024.0 * 1024.0);
}

#endif
