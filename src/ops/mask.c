#include "ops/mask.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"

/* --- spans ------------------------------------------------------------------------------------ */

static const struct cld_span nothing = {0, 0, 0, 0};

static int32_t max32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static int32_t min32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

void cld_mask_draft(const struct cld_block *blocks, size_t n_blocks, size_t block_size,
                    size_t n_ctx, size_t window, bool causal, struct cld_span *spans)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const struct cld_block *at = &blocks[b];
        int32_t own = (int32_t)(n_ctx + b * block_size);
        for (size_t o = 0; o < block_size; o++) {
            struct cld_span *s = &spans[b * block_size + o];
            if (at->anchor < 0) {
                *s = nothing;
                continue;
            }
            *s = (struct cld_span){at->doc, at->anchor, own, own + (int32_t)block_size};
            if (window) {
                int64_t oldest = (int64_t)at->anchor + (int64_t)o - (int64_t)(window - 1);
                if (oldest > s->lo)
                    s->lo = (int32_t)(oldest < s->hi ? oldest : s->hi);
                if (causal)
                    s->own_hi = own + (int32_t)o + 1;
            }
        }
    }
}

void cld_mask_causal(const int32_t *doc, size_t n, struct cld_span *spans)
{
    for (size_t i = 0; i < n; i++)
        spans[i] = (struct cld_span){doc[i], (int32_t)i + 1, 0, 0};
}

/* --- tile lists ------------------------------------------------------------------------------- */

/* Tiles [from, to) that a range of keys touches, or covers. */
struct tile_range {
    int32_t from, to;
};

/* Both ranges of a span as ranges that neither overlap nor touch; returns how many are not empty.
 * Ranges that touch are one: only then can a tile be covered by the two together. */
static size_t disjoint(const struct cld_span *s, struct tile_range out[2])
{
    size_t n = 0;
    struct tile_range a = {s->lo, s->hi}, b = {s->own_lo, s->own_hi};
    if (a.from < a.to)
        out[n++] = a;
    if (b.from < b.to)
        out[n++] = b;
    if (n == 2 && max32(a.from, b.from) <= min32(a.to, b.to)) {
        out[0] = (struct tile_range){min32(a.from, b.from), max32(a.to, b.to)};
        n = 1;
    }
    return n;
}

size_t cld_tiles_max(size_t n_q, size_t n_keys, size_t q_tile, size_t k_tile)
{
    return cld_mul(cld_div_up(n_q, q_tile), cld_div_up(n_keys, k_tile));
}

static bool resize(int32_t **p, size_t n)
{
    int32_t *grown = realloc(*p, cld_mul(cld_max(n, 1), sizeof **p));
    if (grown)
        *p = grown;
    return grown;
}

/* Work space of one build. */
struct builder {
    const struct cld_span *spans;
    size_t n_q, n_keys;
    struct cld_tiles *out;
    struct tile_range *touched; /* [2 * q_tile], of the query tile at work */
    int32_t *covered;           /* [n_k_tiles + 1]: differences of how many rows see all of it */
    size_t cap_listed;
};

static enum cld_status check_span(const struct cld_span *s, size_t row, size_t n_keys,
                                  struct cld_error *err)
{
    bool context = s->lo >= s->hi || (s->lo >= 0 && (size_t)s->hi <= n_keys);
    bool own = s->own_lo >= s->own_hi || (s->own_lo >= 0 && (size_t)s->own_hi <= n_keys);
    if (context && own)
        return CLD_OK;
    return cld_fail(err, CLD_E_INTERNAL, "",
                    "attention mask: row %zu sees keys [%d, %d) and [%d, %d) of %zu", row, s->lo,
                    s->hi, s->own_lo, s->own_hi, n_keys);
}

/* Lists tiles [r.from, r.to) for the query tile at work, which has n_rows rows. */
static enum cld_status list_range(struct builder *b, struct tile_range r, int32_t n_rows,
                                  struct cld_error *err)
{
    struct cld_tiles *t = b->out;
    int32_t n_covering = 0;
    size_t need = t->n_listed + (size_t)(r.to - r.from);
    if (need > INT32_MAX)
        return cld_fail(err, CLD_E_MEMORY, "use fewer rows in a micro-batch",
                        "attention mask: more than %d tiles are visible", INT32_MAX);
    if (need > b->cap_listed) {
        b->cap_listed = cld_max(need, 2 * b->cap_listed);
        if (!resize(&t->fwd, b->cap_listed))
            return cld_fail_memory(err, "%zu attention tiles", need);
    }
    for (int32_t i = r.from; i < r.to; i++) {
        n_covering += b->covered[i];
        b->covered[i] = 0;
        t->fwd[t->n_listed++] = i * 2 + (n_covering == n_rows);
    }
    b->covered[r.to] = 0;
    return CLD_OK;
}

/* Appends the list of query tile `tile`: the union of its rows' ranges, in order. The work is
 * proportional to its rows and to what is listed, never to all keys. */
static enum cld_status list_query_tile(struct builder *b, size_t tile, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_tiles *t = b->out;
    int32_t k_tile = (int32_t)t->k_tile;
    size_t first = tile * t->q_tile, n_rows = cld_min(t->q_tile, b->n_q - first), n = 0;
    for (size_t r = first; r < first + n_rows; r++) {
        struct tile_range keys[2];
        if ((s = check_span(&b->spans[r], r, b->n_keys, err)))
            return s;
        size_t n_ranges = disjoint(&b->spans[r], keys);
        for (size_t i = 0; i < n_ranges; i++) {
            struct tile_range seen = {keys[i].from / k_tile, (keys[i].to - 1) / k_tile + 1};
            /* The last tile may have fewer keys; it is never full (kernels rely on it). */
            struct tile_range whole = {(keys[i].from - 1 + k_tile) / k_tile, keys[i].to / k_tile};
            if (whole.from < whole.to) {
                b->covered[whole.from]++;
                b->covered[whole.to]--;
            }
            size_t at = n++; /* sorted by insertion: rows of a block come in order already */
            for (; at > 0 && b->touched[at - 1].from > seen.from; at--)
                b->touched[at] = b->touched[at - 1];
            b->touched[at] = seen;
        }
    }
    for (size_t i = 0; i < n && !s;) {
        struct tile_range u = b->touched[i++];
        while (i < n && b->touched[i].from <= u.to)
            u.to = max32(u.to, b->touched[i++].to);
        s = list_range(b, u, (int32_t)n_rows, err);
    }
    t->fwd_ptr[tile + 1] = (int32_t)t->n_listed;
    return s;
}

/* The same entries by key tile: a counting sort, so query tiles come ascending. */
static void transpose(struct cld_tiles *t)
{
    memset(t->bwd_ptr, 0, (t->n_k_tiles + 1) * sizeof *t->bwd_ptr);
    for (size_t i = 0; i < t->n_listed; i++)
        t->bwd_ptr[t->fwd[i] / 2 + 1]++;
    for (size_t k = 0; k < t->n_k_tiles; k++)
        t->bwd_ptr[k + 1] += t->bwd_ptr[k];
    for (size_t q = 0; q < t->n_q_tiles; q++)
        for (int32_t i = t->fwd_ptr[q]; i < t->fwd_ptr[q + 1]; i++)
            t->bwd[t->bwd_ptr[t->fwd[i] / 2]++] = (int32_t)q * 2 + t->fwd[i] % 2;
    /* Each start has moved to its end, which is the next one's start. */
    memmove(t->bwd_ptr + 1, t->bwd_ptr, t->n_k_tiles * sizeof *t->bwd_ptr);
    t->bwd_ptr[0] = 0;
}

enum cld_status cld_tiles_build(const struct cld_span *spans, size_t n_q, size_t n_keys,
                                size_t q_tile, size_t k_tile, struct cld_tiles *out,
                                struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct builder b = {.spans = spans, .n_q = n_q, .n_keys = n_keys, .out = out};
    if (n_q > INT32_MAX / 2 || n_keys > INT32_MAX / 2 || !q_tile || !k_tile)
        return cld_fail(err, CLD_E_INTERNAL, "",
                        "attention mask of %zu rows and %zu keys in tiles "
                        "of %zu and %zu",
                        n_q, n_keys, q_tile, k_tile);
    out->q_tile = q_tile;
    out->k_tile = k_tile;
    out->n_q_tiles = cld_div_up(n_q, q_tile);
    out->n_k_tiles = cld_div_up(n_keys, k_tile);
    out->n_listed = 0;
    b.touched = calloc(2 * q_tile, sizeof *b.touched);
    b.covered = calloc(out->n_k_tiles + 1, sizeof *b.covered);
    if (!b.touched || !b.covered || !resize(&out->fwd_ptr, out->n_q_tiles + 1) ||
        !resize(&out->bwd_ptr, out->n_k_tiles + 1)) {
        s = cld_fail_memory(err, "the attention tiles of %zu rows", n_q);
        goto done;
    }
    out->fwd_ptr[0] = 0;
    for (size_t i = 0; i < out->n_q_tiles; i++)
        if ((s = list_query_tile(&b, i, err)))
            goto done;
    if (!resize(&out->fwd, out->n_listed) || !resize(&out->bwd, out->n_listed)) {
        s = cld_fail_memory(err, "%zu attention tiles", out->n_listed);
        goto done;
    }
    transpose(out);
done:
    free(b.touched);
    free(b.covered);
    return s;
}

void cld_tiles_free(struct cld_tiles *t)
{
    if (!t)
        return;
    free(t->fwd_ptr);
    free(t->fwd);
    free(t->bwd_ptr);
    free(t->bwd);
    memset(t, 0, sizeof *t);
}
