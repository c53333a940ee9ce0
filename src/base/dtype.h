/* dtype.h - element types of tensors in files, on the host and on devices; bf16 conversions.
 * Pure functions, any thread. */
#ifndef CLD_BASE_DTYPE_H
#define CLD_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum cld_dtype { CLD_F32, CLD_BF16, CLD_F16, CLD_I32, CLD_I64, CLD_U8 };

static inline size_t cld_dtype_bytes(enum cld_dtype t)
{
    switch (t) {
    case CLD_F32:
    case CLD_I32:
        return 4;
    case CLD_BF16:
    case CLD_F16:
        return 2;
    case CLD_I64:
        return 8;
    case CLD_U8:
        return 1;
    }
    return 0;
}

/* "F32", "BF16", ...: the names of the safetensors format. */
static inline const char *cld_dtype_name(enum cld_dtype t)
{
    static const char *const names[] = {"F32", "BF16", "F16", "I32", "I64", "U8"};
    return names[t];
}

static inline float cld_bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Round to nearest, ties to even; NaN stays a (quiet) NaN. The kernels do exactly the same. */
static inline uint16_t cld_f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float cld_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mag = h & 0x7fffu, u;
    if (mag >= 0x7c00u) { /* infinity, NaN */
        u = sign | 0x7f800000u | ((mag & 0x3ffu) << 13);
    } else if (mag >= 0x400u) {
        u = sign | ((mag << 13) + 0x38000000u);
    } else { /* zero and subnormals: the significand times 2^-24 */
        float f = (float)mag * 5.9604644775390625e-8f;
        memcpy(&u, &f, sizeof u);
        u |= sign;
    }
    float r;
    memcpy(&r, &u, sizeof r);
    return r;
}

#endif
