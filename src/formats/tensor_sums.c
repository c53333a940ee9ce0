#include "formats/tensor_sums.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/grow.h"
#include "formats/safetensors.h"

/* The sum of a tensor is that of the sums of its blocks, so that threads may share the work. */
enum { BLOCK_BYTES = 1 << 20, MOST_THREADS = 4, LEAST_BLOCKS = 8 };

struct entry {
    char *name;
    const void *reader; /* that sums it */
    uint64_t at, n_bytes, sum;
    struct cld_checksum whole, block; /* of blocks' sums; of a block that is not full */
    size_t not_finite;                /* SIZE_MAX: none */
    bool done;
};

struct cld_tensor_sums {
    pthread_mutex_t lock; /* guards the list; an entry that is not done is its reader's */
    struct entry **entries;
    size_t n, cap;
};

enum cld_status cld_tensor_sums_new(struct cld_tensor_sums **out, struct cld_error *err)
{
    if (!(*out = calloc(1, sizeof **out)))
        return cld_fail_memory(err, "checksums");
    pthread_mutex_init(&(*out)->lock, NULL);
    return CLD_OK;
}

void cld_tensor_sums_free(struct cld_tensor_sums *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        free(s->entries[i]->name);
        free(s->entries[i]);
    }
    free(s->entries);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static struct entry *find(struct cld_tensor_sums *s, const char *name)
{
    for (size_t i = s->n; i-- > 0;) /* the last one is asked for most */
        if (!strcmp(s->entries[i]->name, name))
            return s->entries[i];
    return NULL;
}

static enum cld_status begin(struct cld_tensor_sums *s, const void *reader,
                             const struct cld_safetensor *t, struct entry **out,
                             struct cld_error *err)
{
    enum cld_status status = cld_grow(&s->entries, &s->cap, s->n + 1, sizeof *s->entries, err);
    struct entry *e = status ? NULL : calloc(1, sizeof *e);
    if (!e || !(e->name = strdup(t->name))) {
        free(e);
        return status ? status : cld_fail_memory(err, "checksums");
    }
    e->reader = reader;
    e->n_bytes = t->n_bytes;
    e->not_finite = SIZE_MAX;
    cld_checksum_begin(&e->whole);
    cld_checksum_begin(&e->block);
    cld_checksum_add(&e->whole, t->name, strlen(t->name) + 1);
    cld_checksum_add(&e->whole, t->dtype_name, strlen(t->dtype_name) + 1);
    cld_checksum_add(&e->whole, t->shape, t->n_dims * sizeof *t->shape);
    *out = s->entries[s->n++] = e;
    return CLD_OK;
}

/* --- blocks ----------------------------------------------------------------------------------- */

/* Whether any of n words of 16 bits has all bits of `exponent`; of 32 bits, by their upper half. */
static bool any_not_finite(const uint16_t *words, size_t n, size_t step, uint16_t exponent)
{
    unsigned any = 0;
    for (size_t i = step - 1; i < n; i += step)
        any |= (words[i] & exponent) == exponent;
    return any;
}

/* The first element of these bytes that is not finite, SIZE_MAX: none. Types without infinities
 * have none. */
static size_t first_not_finite(const struct cld_safetensor *t, const char *bytes, size_t n_bytes)
{
    bool floats = t->readable && (CLD_DTYPES_FLOAT & CLD_DTYPE_BIT(t->dtype));
    uint16_t exponent = t->dtype == CLD_F16 ? 0x7c00 : 0x7f80, word[256];
    size_t step = t->dtype == CLD_F32 ? 2 : 1, n_words = n_bytes / sizeof *word;
    for (size_t at = 0; floats && at < n_words; at += 256) {
        size_t n = cld_min(256, n_words - at);
        memcpy(word, bytes + at * sizeof *word, n * sizeof *word); /* they need not be aligned */
        if (!any_not_finite(word, n, step, exponent))
            continue;
        for (size_t i = step - 1; i < n; i += step)
            if ((word[i] & exponent) == exponent)
                return (at + i) / step;
    }
    return SIZE_MAX;
}

/* Blocks i, i + n_threads, ... of those at `bytes`. */
struct share {
    const struct cld_safetensor *t;
    const char *bytes;
    size_t first, step, n_blocks;
    uint64_t *sums;
    size_t *not_finite; /* of each block, an element of the block */
};

static void *sum_share(void *arg)
{
    const struct share *w = arg;
    for (size_t i = w->first; i < w->n_blocks; i += w->step) {
        struct cld_checksum c;
        cld_checksum_begin(&c);
        cld_checksum_add(&c, w->bytes + i * BLOCK_BYTES, BLOCK_BYTES);
        w->sums[i] = cld_checksum_end(&c);
        w->not_finite[i] = first_not_finite(w->t, w->bytes + i * BLOCK_BYTES, BLOCK_BYTES);
    }
    return NULL;
}

static void note_not_finite(struct entry *e, const struct cld_safetensor *t, size_t element)
{
    size_t elem_bytes = t->n_elems ? t->n_bytes / t->n_elems : 1;
    if (element != SIZE_MAX && e->not_finite == SIZE_MAX)
        e->not_finite = (size_t)e->at / elem_bytes + element;
}

/* Whole blocks from a block's first byte on, at most so many at once. */
static void add_blocks(struct entry *e, const struct cld_safetensor *t, const char *bytes,
                       size_t n_blocks)
{
    enum { AT_ONCE = 128 };
    uint64_t sums[AT_ONCE];
    size_t not_finite[AT_ONCE];
    for (size_t at = 0; at < n_blocks; at += AT_ONCE) {
        size_t n = cld_min(AT_ONCE, n_blocks - at), n_threads = n < LEAST_BLOCKS ? 1 : MOST_THREADS;
        struct share shares[MOST_THREADS];
        pthread_t threads[MOST_THREADS];
        bool runs[MOST_THREADS] = {false};
        for (size_t i = n_threads; i-- > 0;) {
            shares[i] =
                (struct share){t, bytes + at * BLOCK_BYTES, i, n_threads, n, sums, not_finite};
            runs[i] = i && !pthread_create(&threads[i], NULL, sum_share, &shares[i]);
            if (!runs[i])
                sum_share(&shares[i]);
        }
        for (size_t i = 1; i < n_threads; i++)
            if (runs[i])
                pthread_join(threads[i], NULL);
        cld_checksum_add(&e->whole, sums, n * sizeof *sums);
        for (size_t i = 0; i < n; i++) {
            note_not_finite(e, t, not_finite[i]);
            e->at += BLOCK_BYTES;
        }
    }
}

/* Bytes of one block; the last one of a tensor need not be full. */
static void add_part(struct entry *e, const struct cld_safetensor *t, const char *bytes, size_t n)
{
    note_not_finite(e, t, first_not_finite(t, bytes, n));
    cld_checksum_add(&e->block, bytes, n);
    e->at += n;
    if (e->at % BLOCK_BYTES && e->at < e->n_bytes)
        return;
    uint64_t sum = cld_checksum_end(&e->block);
    cld_checksum_add(&e->whole, &sum, sizeof sum);
    cld_checksum_begin(&e->block);
}

enum cld_status cld_tensor_sums_see(struct cld_tensor_sums *s, const void *reader,
                                    const struct cld_safetensor *t, uint64_t at, const void *bytes,
                                    size_t n, struct cld_error *err)
{
    enum cld_status status = CLD_OK;
    const char *from = bytes;
    pthread_mutex_lock(&s->lock);
    struct entry *e = find(s, t->name);
    if (!e && !at)
        status = begin(s, reader, t, &e, err);
    bool mine = !status && e && e->reader == reader && !e->done && e->at == at;
    pthread_mutex_unlock(&s->lock);
    while (mine && n) {
        size_t n_left = BLOCK_BYTES - (size_t)(e->at % BLOCK_BYTES), n_now = cld_min(n, n_left);
        if (n_left == BLOCK_BYTES && n >= BLOCK_BYTES)
            add_blocks(e, t, from, (n_now = n / BLOCK_BYTES * BLOCK_BYTES) / BLOCK_BYTES);
        else
            add_part(e, t, from, n_now);
        from += n_now;
        n -= n_now;
    }
    if (mine && e->at == e->n_bytes) {
        pthread_mutex_lock(&s->lock);
        e->sum = cld_checksum_end(&e->whole);
        e->done = true;
        pthread_mutex_unlock(&s->lock);
    }
    return status;
}

bool cld_tensor_sums_get(struct cld_tensor_sums *s, const char *name, uint64_t *sum)
{
    pthread_mutex_lock(&s->lock);
    const struct entry *e = find(s, name);
    bool done = e && e->done;
    *sum = done ? e->sum : 0;
    pthread_mutex_unlock(&s->lock);
    return done;
}

static int by_name(const void *a, const void *b)
{
    const struct entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

bool cld_tensor_sums_of(struct cld_tensor_sums *s, const char *prefix, uint64_t *sum)
{
    struct cld_checksum c;
    size_t n = 0, n_prefix = strlen(prefix);
    pthread_mutex_lock(&s->lock);
    struct entry **found = malloc(cld_max(1, s->n) * sizeof *found);
    for (size_t i = 0; i < s->n && found; i++)
        if (s->entries[i]->done && !strncmp(s->entries[i]->name, prefix, n_prefix))
            found[n++] = s->entries[i];
    if (n)
        qsort(found, n, sizeof *found, by_name);
    cld_checksum_begin(&c);
    for (size_t i = 0; i < n; i++)
        cld_checksum_add(&c, &found[i]->sum, sizeof found[i]->sum); /* it covers the name */
    pthread_mutex_unlock(&s->lock);
    free(found);
    *sum = cld_checksum_end(&c);
    return n > 0;
}

bool cld_tensor_sums_not_finite(struct cld_tensor_sums *s, const char *name, size_t *element)
{
    pthread_mutex_lock(&s->lock);
    const struct entry *e = find(s, name);
    *element = e && e->done ? e->not_finite : SIZE_MAX;
    pthread_mutex_unlock(&s->lock);
    return *element != SIZE_MAX;
}
