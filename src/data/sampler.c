#include "data/sampler.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/size.h"

/* A Feistel network of four rounds over the smallest even number of bits that holds n values;
 * values past n are sent through again until one falls below (at most 4 times on average). */
uint64_t cld_sample_order(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i)
{
    unsigned half = 1;
    while (half < 32 && (uint64_t)1 << 2 * half < n)
        half++;
    uint64_t low = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = i >> half, right = i & low;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t f = cld_random_u64(seed, CLD_RANDOM_ORDER, epoch, round, right);
            uint64_t mixed = left ^ (f & low);
            left = right;
            right = mixed;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

static bool is_candidate(const uint8_t *mask, size_t n, size_t p)
{
    return p + 1 < n && mask[p] && mask[p + 1];
}

/* Selection sampling: each candidate is taken with the probability that keeps every set of
 * max_anchors of them equally likely, so that they come out in order. */
size_t cld_sample_anchors(uint64_t seed, uint64_t epoch, uint64_t row_id, const uint8_t *loss_mask,
                          size_t n, size_t max_anchors, int32_t *out)
{
    size_t n_left = 0, n_out = 0;
    for (size_t p = 0; p < n; p++)
        n_left += is_candidate(loss_mask, n, p);
    size_t wanted = cld_min(max_anchors, n_left);
    for (size_t p = 0; p < n && n_out < wanted; p++) {
        if (!is_candidate(loss_mask, n, p))
            continue;
        uint64_t bits = cld_random_u64(seed, CLD_RANDOM_ANCHORS, epoch, row_id, p);
        if (cld_random_below(bits, n_left) < wanted - n_out)
            out[n_out++] = (int32_t)p;
        n_left--;
    }
    return n_out;
}

int32_t cld_sample_prefix(uint64_t seed, uint64_t epoch, uint64_t row_id, size_t anchor, size_t n,
                          size_t block_size)
{
    size_t most = cld_min(block_size, n - anchor) - 1, length = cld_min(2, most);
    double all = 0, p = 1;
    for (size_t l = length; l <= most; l++, p *= 0.9)
        all += p;
    double at =
        all * cld_random_unit(cld_random_u64(seed, CLD_RANDOM_PREFIX, epoch, row_id, anchor));
    for (p = 1; length < most && at >= p; length++, p *= 0.9)
        at -= p;
    return (int32_t)length;
}

/* ---- training rows ---- */

struct cld_sampler {
    const struct cld_dataset *data;
    uint64_t seed;
    size_t pack_length;
    size_t one; /* the row of an unpacked sample */
    /* the packed epoch at work: training rows [first, first + n_bins) of the run */
    bool packed;
    uint64_t epoch, first;
    size_t n_bins;
    size_t *rows;  /* [n_rows of the dataset] by bin, in the epoch's order within one */
    size_t *begin; /* [n_bins + 1] first entry of a bin in rows */
    /* scratch of packing */
    size_t *order, *bin; /* [n_rows] in the epoch's order: row, and the bin it went to */
    size_t *room;        /* [2 * n_leaves] tree of maxima over the bins' free tokens */
    size_t n_leaves;
};

void cld_sampler_free(struct cld_sampler *s)
{
    if (!s)
        return;
    free(s->rows);
    free(s->begin);
    free(s->order);
    free(s->bin);
    free(s->room);
    free(s);
}

static enum cld_status allocate(struct cld_sampler *s, size_t n, struct cld_error *err)
{
    s->n_leaves = 1;
    while (s->n_leaves < n)
        s->n_leaves *= 2;
    s->rows = calloc(n, sizeof *s->rows);
    s->begin = calloc(n + 1, sizeof *s->begin);
    s->order = calloc(n, sizeof *s->order);
    s->bin = calloc(n, sizeof *s->bin);
    s->room = calloc(s->n_leaves, 2 * sizeof *s->room);
    if (s->rows && s->begin && s->order && s->bin && s->room)
        return CLD_OK;
    return cld_fail_memory(err, "packing %zu rows", n);
}

enum cld_status cld_sampler_new(const struct cld_dataset *data, uint64_t seed, size_t pack_length,
                                struct cld_sampler **out, struct cld_error *err)
{
    *out = NULL;
    if (pack_length && pack_length < cld_dataset_longest(data))
        return cld_fail(err, CLD_E_USAGE, "packed rows hold data.max_length tokens",
                        "rows of %zu tokens cannot take a document of %zu", pack_length,
                        cld_dataset_longest(data));
    struct cld_sampler *s = calloc(1, sizeof *s);
    if (!s)
        return cld_fail_memory(err, "a sampler");
    s->data = data;
    s->seed = seed;
    s->pack_length = pack_length;
    enum cld_status status = pack_length ? allocate(s, cld_dataset_n_rows(data), err) : CLD_OK;
    if (status) {
        cld_sampler_free(s);
        return status;
    }
    *out = s;
    return CLD_OK;
}

/* The first bin that n tokens fit into. Unused bins are empty, so there always is one. */
static size_t first_fit(struct cld_sampler *s, size_t n)
{
    size_t i = 1;
    while (i < s->n_leaves) {
        i *= 2;
        i += s->room[i] < n;
    }
    s->room[i] -= n;
    for (size_t k = i / 2; k; k /= 2)
        s->room[k] = cld_max(s->room[2 * k], s->room[2 * k + 1]);
    return i - s->n_leaves;
}

static void pack(struct cld_sampler *s, uint64_t epoch, uint64_t first)
{
    size_t n = cld_dataset_n_rows(s->data);
    for (size_t i = 0; i < 2 * s->n_leaves; i++)
        s->room[i] = s->pack_length;
    s->n_bins = 0;
    memset(s->begin, 0, (n + 1) * sizeof *s->begin);
    for (size_t i = 0; i < n; i++) {
        s->order[i] = (size_t)cld_sample_order(s->seed, epoch, n, i);
        s->bin[i] = first_fit(s, cld_dataset_row(s->data, s->order[i]).n);
        s->n_bins = cld_max(s->n_bins, s->bin[i] + 1);
        s->begin[s->bin[i] + 1]++;
    }
    /* begin[b] walks from the end of bin b - 1 to the end of bin b while the rows are distributed.
     */
    for (size_t b = 1; b <= s->n_bins; b++)
        s->begin[b] += s->begin[b - 1];
    for (size_t i = 0; i < n; i++)
        s->rows[s->begin[s->bin[i]]++] = s->order[i];
    memmove(s->begin + 1, s->begin, s->n_bins * sizeof *s->begin);
    s->begin[0] = 0;
    s->packed = true;
    s->epoch = epoch;
    s->first = first;
}

enum cld_status cld_sampler_at(struct cld_sampler *s, uint64_t position, struct cld_sample *out,
                               struct cld_error *err)
{
    size_t n = cld_dataset_n_rows(s->data);
    if (!n)
        return cld_fail(err, CLD_E_INPUT, "check data.train: no row of it can be used",
                        "a sampler over a dataset without rows");
    if (!s->pack_length) {
        uint64_t epoch = position / n;
        s->one = (size_t)cld_sample_order(s->seed, epoch, n, position % n);
        *out = (struct cld_sample){epoch, &s->one, 1, cld_dataset_row(s->data, s->one).n};
        return CLD_OK;
    }
    if (!s->packed || position < s->first)
        pack(s, 0, 0);
    while (position >= s->first + s->n_bins)
        pack(s, s->epoch + 1, s->first + s->n_bins);
    size_t b = (size_t)(position - s->first);
    *out = (struct cld_sample){s->epoch, s->rows + s->begin[b], s->begin[b + 1] - s->begin[b], 0};
    for (size_t i = 0; i < out->n_rows; i++)
        out->n_tokens += cld_dataset_row(s->data, out->rows[i]).n;
    return CLD_OK;
}
