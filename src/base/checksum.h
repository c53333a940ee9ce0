/* checksum.h - a quick 64-bit checksum of bytes as they come: finds damage and mix-ups, at the
 * speed of memory; it is no defence against intent (sha256.h is).
 *
 * Any thread; a state belongs to one caller. The value depends on the bytes alone, not on the
 * pieces they come in. Little-endian machines only, like the files that hold it. */
#ifndef CLD_BASE_CHECKSUM_H
#define CLD_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#define CLD_CHECKSUM_TEXT_BYTES 17 /* 16 hexadecimal digits and a NUL */

struct cld_checksum {
    uint64_t lane[4];
    uint64_t n_bytes;
    unsigned char rest[32]; /* the last n_bytes % 32 bytes */
};

void cld_checksum_begin(struct cld_checksum *c);
void cld_checksum_add(struct cld_checksum *c, const void *bytes, size_t n_bytes);
uint64_t cld_checksum_end(struct cld_checksum *c);
void cld_checksum_text(uint64_t sum, char to[CLD_CHECKSUM_TEXT_BYTES]);

#endif
