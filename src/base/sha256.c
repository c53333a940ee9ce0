#include "base/sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/size.h"

void cld_sha256_begin(struct cld_sha256 *h)
{
    SHA256_Init(&h->state);
}

void cld_sha256_add(struct cld_sha256 *h, const void *bytes, size_t n_bytes)
{
    SHA256_Update(&h->state, bytes, n_bytes);
}

void cld_sha256_end(struct cld_sha256 *h, char hex[CLD_SHA256_HEX_BYTES])
{
    unsigned char bytes[SHA256_DIGEST_LENGTH];
    SHA256_Final(bytes, &h->state);
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
}

void cld_sha256_of(const void *bytes, size_t n_bytes, char hex[CLD_SHA256_HEX_BYTES])
{
    struct cld_sha256 h;
    cld_sha256_begin(&h);
    cld_sha256_add(&h, bytes, n_bytes);
    cld_sha256_end(&h, hex);
}

enum cld_status cld_sha256_file(const char *path, char hex[CLD_SHA256_HEX_BYTES], uint64_t *n_bytes,
                                struct cld_error *err)
{
    const size_t piece = 1u << 18;
    struct cld_sha256 h;
    char *buffer = NULL;
    int fd;
    enum cld_status s = cld_file_open(path, &fd, n_bytes, err);
    if (s)
        return s;
    buffer = malloc(piece);
    if (!buffer) {
        s = cld_fail_memory(err, "hashing %s", path);
        goto done;
    }
    cld_sha256_begin(&h);
    for (uint64_t at = 0; at < *n_bytes; at += piece) {
        size_t n = cld_min(piece, (size_t)(*n_bytes - at));
        if ((s = cld_file_read_at(fd, path, at, buffer, n, err)))
            goto done;
        cld_sha256_add(&h, buffer, n);
    }
    cld_sha256_end(&h, hex);
done:
    free(buffer);
    close(fd);
    return s;
}
