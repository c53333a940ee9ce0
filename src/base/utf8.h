/* utf8.h - strict UTF-8: overlong forms, surrogates and values past U+10FFFF are malformed.
 *
 * Pure functions, any thread. */
#ifndef CLD_BASE_UTF8_H
#define CLD_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Decodes one character of s[0..n). Returns its bytes (1 to 4), or 0 if it is malformed or n is
 * 0. */
static inline size_t cld_utf8_get(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s;
    if (!n)
        return 0;
    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    size_t len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (p[0] < 0xc2 || p[0] > 0xf4 || n < len)
        return 0;
    uint32_t c = p[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3fu);
    }
    if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 0;
    *cp = c;
    return len;
}

/* Writes cp, a valid scalar value, to `to` (4 bytes); returns its bytes. */
static inline size_t cld_utf8_put(uint32_t cp, char *to)
{
    if (cp < 0x80) {
        to[0] = (char)cp;
        return 1;
    }
    size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i; i--, cp >>= 6)
        to[i] = (char)(0x80 | (cp & 0x3f));
    to[0] = (char)((0xf00u >> len) | cp);
    return len;
}

/* Bytes of the ASCII characters at the start of s[0..n). */
static inline size_t cld_ascii_run(const char *s, size_t n)
{
    size_t i = 0;
    for (uint64_t word; n - i >= 8; i += 8) {
        memcpy(&word, s + i, 8);
        if (word & 0x8080808080808080u)
            break;
    }
    while (i < n && !((unsigned char)s[i] & 0x80))
        i++;
    return i;
}

/* Bytes of the longest well-formed start of s[0..n); n if all of it is well formed. */
static inline size_t cld_utf8_valid(const char *s, size_t n)
{
    size_t i = 0;
    for (;;) {
        i += cld_ascii_run(s + i, n - i);
        uint32_t cp;
        size_t len = cld_utf8_get(s + i, n - i, &cp);
        if (!len)
            return i; /* the end, or what is malformed */
        i += len;
    }
}

/* The White_Space property of Unicode, which has been the same since version 6.3. */
static inline bool cld_white_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

#endif
