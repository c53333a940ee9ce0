/* sha256.h - SHA-256 of memory, of files and of pieces as they come, in lower-case hex.
 *
 * Any thread; a state belongs to one caller. */
#ifndef CLD_BASE_SHA256_H
#define CLD_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

/* The interface of three functions: it can be held by value and cannot fail, and runs at several
 * GB/s where the processor has instructions for it. A checkpoint of a large drafter has 15 GB. */
#define OPENSSL_API_COMPAT 10100
#include <openssl/sha.h>

#include "base/error.h"

#define CLD_SHA256_HEX_BYTES 65 /* 64 digits and a NUL */

struct cld_sha256 {
    SHA256_CTX state;
};

void cld_sha256_begin(struct cld_sha256 *h);
void cld_sha256_add(struct cld_sha256 *h, const void *bytes, size_t n_bytes);
void cld_sha256_end(struct cld_sha256 *h, char hex[CLD_SHA256_HEX_BYTES]);

void cld_sha256_of(const void *bytes, size_t n_bytes, char hex[CLD_SHA256_HEX_BYTES]);

/* Of a regular file, in pieces; *n_bytes is what was hashed. CLD_E_INPUT if it cannot be read. */
enum cld_status cld_sha256_file(const char *path, char hex[CLD_SHA256_HEX_BYTES], uint64_t *n_bytes,
                                struct cld_error *err);

#endif
