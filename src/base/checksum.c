#include "base/checksum.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Odd numbers without a pattern: digits of the golden ratio and of sqrt(2), made odd. */
static const uint64_t factor = 0x9e3779b97f4a7c15u, begin_at = 0x6a09e667f3bcc909u;

static uint64_t turn(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

/* One to one in `word` for a given state and in the state for a given word: a single change is
 * never lost. */
static uint64_t mix(uint64_t state, uint64_t word)
{
    return turn(state ^ word, 29) * factor;
}

/* Four lanes that do not wait for each other. */
static void add_blocks(uint64_t lane[4], const unsigned char *p, size_t n_blocks)
{
    uint64_t a = lane[0], b = lane[1], c = lane[2], d = lane[3];
    for (size_t i = 0; i < n_blocks; i++, p += 32) {
        uint64_t w[4];
        memcpy(w, p, sizeof w);
        a = mix(a, w[0]);
        b = mix(b, w[1]);
        c = mix(c, w[2]);
        d = mix(d, w[3]);
    }
    lane[0] = a;
    lane[1] = b;
    lane[2] = c;
    lane[3] = d;
}

void cld_checksum_begin(struct cld_checksum *c)
{
    memset(c, 0, sizeof *c);
    for (uint64_t i = 0; i < 4; i++)
        c->lane[i] = begin_at + i * factor;
}

void cld_checksum_add(struct cld_checksum *c, const void *bytes, size_t n_bytes)
{
    const unsigned char *p = bytes;
    size_t held = c->n_bytes % sizeof c->rest;
    c->n_bytes += n_bytes;
    if (held) {
        size_t n = sizeof c->rest - held < n_bytes ? sizeof c->rest - held : n_bytes;
        memcpy(c->rest + held, p, n);
        p += n;
        n_bytes -= n;
        if (held + n < sizeof c->rest)
            return;
        add_blocks(c->lane, c->rest, 1);
    }
    size_t n_blocks = n_bytes / sizeof c->rest;
    add_blocks(c->lane, p, n_blocks);
    if (n_bytes % sizeof c->rest)
        memcpy(c->rest, p + n_blocks * sizeof c->rest, n_bytes % sizeof c->rest);
}

uint64_t cld_checksum_end(struct cld_checksum *c)
{
    size_t held = c->n_bytes % sizeof c->rest;
    if (held) {
        memset(c->rest + held, 0, sizeof c->rest - held);
        add_blocks(c->lane, c->rest, 1);
    }
    uint64_t sum = mix(begin_at, c->n_bytes);
    for (int i = 0; i < 4; i++)
        sum = mix(sum ^ sum >> 31, c->lane[i]);
    return sum ^ sum >> 32;
}

void cld_checksum_text(uint64_t sum, char to[CLD_CHECKSUM_TEXT_BYTES])
{
    snprintf(to, CLD_CHECKSUM_TEXT_BYTES, "%016" PRIx64, sum);
}
