#include "data/feature_store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/file.h"
#include "base/log.h"
#include "base/size.h"

/* A shard is written when it has this much; with fewer bytes a crash loses less, with more there
 * are fewer files. */
static const size_t shard_bytes = (size_t)128 << 20;
/* Safetensors files have a bounded number of tensors; a record is two. */
enum { MAX_SHARD_RECORDS = CLD_SAFETENSORS_MAX_TENSORS / 4 };
static const char anew[] = "remove the file: in mode hybrid its rows are computed anew";
/* More than the headers of a shard with one record have: what the limit counts is never less than
 * the file. */
static const size_t record_overhead_bytes = 1024;

/* What was put and is in no shard yet. */
struct record {
    struct record *next;
    bool heldout;
    uint64_t row, sum;
    size_t n, n_bytes; /* tokens; bytes of ids and features */
    int32_t *ids;      /* [n], then the features */
};

enum entry_state { ENTRY_FREE, ENTRY_CLAIMED, ENTRY_IN_MEMORY, ENTRY_ON_DISK };

struct entry {
    enum entry_state state;
    bool heldout;
    uint64_t row;
    size_t n;      /* tokens */
    size_t number; /* of the micro-batch that claimed it */
    const struct record *record;
    const char *path; /* of the shard */
    uint64_t ids_at, features_at, sum;
};

struct cld_feature_store {
    struct cld_feature_identity id;
    char *dir;
    bool grows;
    size_t limit_bytes, row_bytes; /* row_bytes: of a token's features */
    int lock_fd;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t written;
    struct entry *entries; /* hash table, open addressing */
    size_t n_entries, cap_entries;
    char **paths; /* of shards; each stays until the store is closed */
    size_t n_paths, cap_paths, next_shard;
    struct record *first, *last; /* to be written */
    size_t n_waiting, waiting_bytes, n_writing;
    struct cld_feature_counts counts;
};

static const char *set_name(bool heldout)
{
    return heldout ? "heldout" : "train";
}

static enum cld_status no_memory(struct cld_error *err)
{
    return cld_fail_memory(err, "stored features");
}

/* --- the table of rows ------------------------------------------------------------------------ */

/* The row's entry, or the free one where it belongs. */
static struct entry *look_up(struct entry *entries, size_t cap, bool heldout, uint64_t row)
{
    uint64_t hash = (row * 2 + heldout) * 0x9e3779b97f4a7c15u;
    size_t at = (size_t)(hash >> 32) & (cap - 1);
    while (entries[at].state != ENTRY_FREE &&
           (entries[at].row != row || entries[at].heldout != heldout))
        at = (at + 1) & (cap - 1);
    return &entries[at];
}

static struct entry *entry_of(struct cld_feature_store *f, const struct cld_document *d)
{
    return look_up(f->entries, f->cap_entries, d->heldout, d->row);
}

/* Room for one more; entries move. */
static enum cld_status make_space(struct cld_feature_store *f, struct cld_error *err)
{
    if (f->cap_entries && f->n_entries < f->cap_entries / 2)
        return CLD_OK;
    size_t cap = cld_max(1024, cld_mul(2, f->cap_entries));
    struct entry *grown = calloc(cap, sizeof *grown);
    if (!grown)
        return no_memory(err);
    for (size_t i = 0; i < f->cap_entries; i++)
        if (f->entries[i].state != ENTRY_FREE)
            *look_up(grown, cap, f->entries[i].heldout, f->entries[i].row) = f->entries[i];
    free(f->entries);
    f->entries = grown;
    f->cap_entries = cap;
    return CLD_OK;
}

static size_t payload_bytes(const struct cld_feature_store *f, size_t n)
{
    return cld_mul(n, cld_add(f->row_bytes, sizeof(int32_t)));
}

/* --- shards ----------------------------------------------------------------------------------- */

static uint64_t sum_of(bool heldout, uint64_t row, size_t n, const int32_t *ids,
                       const void *features, size_t features_bytes)
{
    struct cld_checksum c;
    uint64_t head[3] = {heldout, row, n};
    cld_checksum_begin(&c);
    cld_checksum_add(&c, head, sizeof head);
    cld_checksum_add(&c, ids, n * sizeof *ids);
    cld_checksum_add(&c, features, features_bytes);
    return cld_checksum_end(&c);
}

static enum cld_status malformed(const char *path, const char *what, struct cld_error *err)
{
    return cld_fail(err, CLD_E_INPUT, anew,
                    "%s: '%s' is no record of features as docs/formats.md has them", path, what);
}

/* "train.17.features" and what belongs to it become an entry. */
static enum cld_status add_entry(struct cld_feature_store *f, const struct cld_safetensors *st,
                                 const struct cld_safetensor *t, const char *path,
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    const struct cld_safetensor *ids = NULL;
    struct entry e = {.state = ENTRY_ON_DISK, .path = path};
    char key[64], name[80];
    bool canonical = false;
    for (int heldout = 0; heldout < 2 && !canonical; heldout++) {
        const char *set = set_name(heldout);
        size_t n = strlen(set);
        if (strncmp(t->name, set, n) || t->name[n] != '.')
            continue;
        e.heldout = heldout;
        e.row = strtoull(t->name + n + 1, NULL, 10);
        snprintf(key, sizeof key, "%s.%" PRIu64, set, e.row);
        snprintf(name, sizeof name, "%s.features", key);
        canonical = !strcmp(name, t->name);
    }
    const char *sum = canonical ? cld_safetensors_metadata(st, key) : NULL;
    char *end = NULL;
    if (sum)
        e.sum = strtoull(sum, &end, 16);
    if (!sum || strlen(sum) != CLD_CHECKSUM_TEXT_BYTES - 1 || *end || t->n_dims != 2 ||
        !t->shape[0])
        return malformed(path, t->name, err);
    e.n = t->shape[0];
    snprintf(name, sizeof name, "%s.ids", key);
    size_t shape[2] = {e.n, f->id.n_cols};
    if ((s = cld_safetensors_expect(st, t->name, CLD_DTYPE_BIT(f->id.type), 2, shape, &t, err)) ||
        (s = cld_safetensors_expect(st, name, CLD_DTYPE_BIT(CLD_I32), 1, shape, &ids, err)) ||
        (s = make_space(f, err)))
        return s;
    e.ids_at = ids->offset_bytes;
    e.features_at = t->offset_bytes;
    struct entry *there = look_up(f->entries, f->cap_entries, e.heldout, e.row);
    if (there->state == ENTRY_ON_DISK)
        return cld_fail(err, CLD_E_INPUT, "remove one of them",
                        "%s and %s both have row %" PRIu64 " of the %s set", there->path, path,
                        e.row, set_name(e.heldout));
    if (there->state == ENTRY_FREE) {
        f->n_entries++;
        f->counts.n_rows++;
        f->counts.n_bytes =
            cld_add(f->counts.n_bytes, cld_add(payload_bytes(f, e.n), record_overhead_bytes));
    }
    *there = e;
    return CLD_OK;
}

/* Takes over `path`. The lock is held, or no other user exists yet. */
static enum cld_status keep_path(struct cld_feature_store *f, char *path, struct cld_error *err)
{
    if (f->n_paths == f->cap_paths) {
        size_t cap = cld_max(64, cld_mul(2, f->cap_paths));
        char **grown = realloc(f->paths, cld_mul(cap, sizeof *grown));
        if (!grown) {
            free(path);
            return no_memory(err);
        }
        f->paths = grown;
        f->cap_paths = cap;
    }
    f->paths[f->n_paths++] = path;
    return CLD_OK;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && !strcmp(text + n - n_end, end);
}

/* Enters all records of a shard. As keep_path. */
static enum cld_status read_shard(struct cld_feature_store *f, const char *path,
                                  struct cld_error *err)
{
    struct cld_safetensors *st = NULL;
    enum cld_status s = cld_safetensors_open(path, &st, err);
    size_t n_records = 0;
    if (s)
        snprintf(err->hint, sizeof err->hint, "%s", anew);
    else
        s = cld_feature_identity_check(&f->id, st, path, err);
    for (size_t i = 0; !s && i < cld_safetensors_n(st); i++) {
        const struct cld_safetensor *t = cld_safetensors_at(st, i);
        if (ends_with(t->name, ".features")) {
            s = add_entry(f, st, t, path, err);
            n_records++;
        } else if (!ends_with(t->name, ".ids")) {
            s = malformed(path, t->name, err);
        }
    }
    if (!s && cld_safetensors_n(st) != 2 * n_records)
        s = malformed(path, "the list of tensors", err);
    cld_safetensors_close(st);
    return s;
}

static enum cld_status scan(struct cld_feature_store *f, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char **names = NULL;
    size_t n = 0;
    if (!cld_dir_exists(f->dir))
        return cld_fail(err, CLD_E_INPUT, "fill it by a run with features.mode = hybrid",
                        "%s: there is no such directory of features", f->dir);
    if ((s = cld_dir_list(f->dir, &names, &n, err)))
        return s;
    for (size_t i = 0; i < n && !s; i++) {
        size_t number = 0;
        char *path = cld_format("%s/%s", f->dir, names[i]);
        if (!path) {
            s = no_memory(err);
        } else if (f->grows && strstr(names[i], ".safetensors.tmp-")) {
            unlink(path); /* the lock says that its writer is dead */
            free(path);
        } else if (!ends_with(names[i], ".safetensors")) {
            free(path);
        } else if (!(s = keep_path(f, path, err)) && !(s = read_shard(f, path, err)) &&
                   sscanf(names[i], "features-%zu.", &number) == 1) {
            f->next_shard = cld_max(f->next_shard, cld_add(number, 1));
        }
    }
    cld_dir_list_free(names, n);
    return s;
}

/* --- opening ---------------------------------------------------------------------------------- */

static enum cld_status take_lock(struct cld_feature_store *f, struct cld_error *err)
{
    enum cld_status s = cld_dir_make(f->dir, err);
    char *path = s ? NULL : cld_format("%s/lock", f->dir);
    if (s)
        return s;
    if (!path)
        return no_memory(err);
    f->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (f->lock_fd < 0)
        s = cld_fail(err, CLD_E_IO, "choose a directory that you may write to",
                     "%s: cannot open: %s", path, strerror(errno));
    else if (flock(f->lock_fd, LOCK_EX | LOCK_NB))
        s = cld_fail(err, CLD_E_USAGE,
                     "wait for it, read with features.mode = offline, or choose "
                     "another features.dir",
                     "%s: another run writes features there", f->dir);
    free(path);
    return s;
}

enum cld_status cld_feature_store_open(const struct cld_config *cfg,
                                       const struct cld_feature_identity *id,
                                       struct cld_feature_store **out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_feature_store *f = *out = calloc(1, sizeof *f);
    if (!f)
        return no_memory(err);
    f->lock_fd = -1;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->written, NULL);
    f->id = *id;
    f->grows = cfg->features.mode == CLD_FEATURES_HYBRID;
    f->limit_bytes =
        cfg->features.limit_gib > 0 ? cld_config_gib(cfg->features.limit_gib) : SIZE_MAX;
    f->row_bytes = cld_mul(id->n_cols, cld_dtype_bytes(id->type));
    if (!(f->dir = cld_format("%s", cfg->features.dir)))
        return no_memory(err);
    if ((s = make_space(f, err)) || (f->grows && (s = take_lock(f, err))))
        return s;
    return scan(f, err);
}

static void free_records(struct record *r)
{
    while (r) {
        struct record *next = r->next;
        free(r->ids);
        free(r);
        r = next;
    }
}

void cld_feature_store_close(struct cld_feature_store *f)
{
    if (!f)
        return;
    free_records(f->first);
    for (size_t i = 0; i < f->n_paths; i++)
        free(f->paths[i]);
    free(f->paths);
    free(f->entries);
    free(f->dir);
    if (f->lock_fd >= 0)
        close(f->lock_fd);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->written);
    free(f);
}

struct cld_feature_counts cld_feature_store_counts(struct cld_feature_store *f)
{
    pthread_mutex_lock(&f->lock);
    struct cld_feature_counts n = f->counts;
    pthread_mutex_unlock(&f->lock);
    return n;
}

/* --- claims and reading ----------------------------------------------------------------------- */

enum cld_status cld_feature_store_claim(struct cld_feature_store *f, const struct cld_document *d,
                                        size_t number, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_bytes = cld_add(payload_bytes(f, d->n), record_overhead_bytes);
    if (!f->grows)
        return CLD_OK;
    pthread_mutex_lock(&f->lock);
    if (!(s = make_space(f, err))) {
        struct entry *e = entry_of(f, d);
        if (e->state == ENTRY_FREE && cld_add(f->counts.n_bytes, n_bytes) <= f->limit_bytes) {
            *e = (struct entry){.state = ENTRY_CLAIMED,
                                .heldout = d->heldout,
                                .row = d->row,
                                .n = d->n,
                                .number = number};
            f->n_entries++;
            f->counts.n_bytes += n_bytes;
        }
    }
    pthread_mutex_unlock(&f->lock);
    return s;
}

enum cld_feature_place cld_feature_store_find(struct cld_feature_store *f,
                                              const struct cld_document *d, size_t number)
{
    pthread_mutex_lock(&f->lock);
    const struct entry *e = entry_of(f, d);
    enum cld_feature_place place = CLD_FEATURES_HERE;
    if (e->state == ENTRY_FREE)
        place = CLD_FEATURES_ABSENT;
    else if (e->state == ENTRY_CLAIMED)
        place = e->number == number ? CLD_FEATURES_MINE : CLD_FEATURES_COMING;
    pthread_mutex_unlock(&f->lock);
    return place;
}

/* The tokens and features of an entry on the disk; nothing is trusted yet. */
static enum cld_status read_file(const struct cld_feature_store *f, const struct entry *e,
                                 int32_t *ids, void *to, struct cld_error *err)
{
    int fd = -1;
    uint64_t n_bytes = 0;
    enum cld_status s = cld_file_open(e->path, &fd, &n_bytes, err);
    if (!s && !(s = cld_file_read_at(fd, e->path, e->ids_at, ids, e->n * sizeof *ids, err)))
        s = cld_file_read_at(fd, e->path, e->features_at, to, cld_mul(e->n, f->row_bytes), err);
    if (fd >= 0)
        close(fd);
    return s;
}

static enum cld_status compare_tokens(const struct entry *e, const struct cld_document *d,
                                      const int32_t *ids, struct cld_error *err)
{
    const char *hint =
        "the data, its template or data.max_length changed: use another features.dir";
    const char *where = e->path ? e->path : "this run's features";
    if (e->n != d->n)
        return cld_fail(err, CLD_E_INPUT, hint,
                        "%s: row %" PRIu64 " of the %s set has %zu tokens, this run's has %zu",
                        where, e->row, set_name(e->heldout), e->n, d->n);
    for (size_t i = 0; i < d->n; i++)
        if (ids[i] != d->ids[i])
            return cld_fail(err, CLD_E_INPUT, hint,
                            "%s: row %" PRIu64
                            " of the %s set has token %d at %zu, this run's has %d",
                            where, e->row, set_name(e->heldout), (int)ids[i], i, (int)d->ids[i]);
    return CLD_OK;
}

enum cld_status cld_feature_store_read(struct cld_feature_store *f, const struct cld_document *d,
                                       void *to, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int32_t *ids = NULL;
    pthread_mutex_lock(&f->lock);
    const struct entry e = *entry_of(f, d);
    if (e.state == ENTRY_IN_MEMORY) { /* its shard may be written and the record freed any time */
        if (!(s = compare_tokens(&e, d, e.record->ids, err)))
            memcpy(to, e.record->ids + e.n, cld_mul(e.n, f->row_bytes));
    }
    f->counts.n_read++;
    pthread_mutex_unlock(&f->lock);
    if (s || e.state == ENTRY_IN_MEMORY)
        return s;
    if (e.state != ENTRY_ON_DISK)
        return cld_fail(err, CLD_E_INPUT, "compute what is missing with features.mode = hybrid",
                        "%s has no features of row %" PRIu64 " of the %s set", f->dir, d->row,
                        set_name(d->heldout));
    if (e.n != d->n)
        return compare_tokens(&e, d, NULL, err);
    if (!(ids = malloc(cld_mul(e.n, sizeof *ids))))
        return no_memory(err);
    if ((s = read_file(f, &e, ids, to, err)))
        goto done;
    uint64_t sum = sum_of(e.heldout, e.row, e.n, ids, to, cld_mul(e.n, f->row_bytes));
    if (sum != e.sum)
        s = cld_fail(err, CLD_E_INPUT, anew,
                     "%s: row %" PRIu64 " of the %s set is damaged: its checksum is %016" PRIx64
                     ", the shard says %016" PRIx64,
                     e.path, e.row, set_name(e.heldout), sum, e.sum);
    else
        s = compare_tokens(&e, d, ids, err);
done:
    free(ids);
    return s;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* The names, checksums and pointers of a shard to be written. */
struct layout {
    struct cld_safetensors_spec *specs;   /* [2 n] id 2i: ids of record i; 2i + 1: its features */
    struct cld_safetensors_pair *pairs;   /* [CLD_FEATURE_N_PAIRS + n] */
    const struct record **records;        /* [n] */
    char (*names)[2][64], (*keys)[2][48]; /* [n] */
};

static void free_layout(struct layout *l)
{
    free(l->specs);
    free(l->pairs);
    free(l->records);
    free(l->names);
    free(l->keys);
}

static enum cld_status lay_out(const struct cld_feature_store *f, const struct record *first,
                               size_t n, struct layout *l, struct cld_error *err)
{
    memset(l, 0, sizeof *l);
    l->specs = calloc(n, 2 * sizeof *l->specs);
    l->pairs = calloc(n + CLD_FEATURE_N_PAIRS, sizeof *l->pairs);
    l->records = calloc(n, sizeof *l->records);
    l->names = calloc(n, sizeof *l->names);
    l->keys = calloc(n, sizeof *l->keys);
    if (!l->specs || !l->pairs || !l->records || !l->names || !l->keys)
        return no_memory(err);
    cld_feature_identity_pairs(&f->id, l->pairs);
    const struct record *r = first;
    for (size_t i = 0; i < n; i++, r = r->next) {
        l->records[i] = r;
        snprintf(l->keys[i][0], sizeof l->keys[i][0], "%s.%" PRIu64, set_name(r->heldout), r->row);
        cld_checksum_text(r->sum, l->keys[i][1]);
        l->pairs[CLD_FEATURE_N_PAIRS + i] =
            (struct cld_safetensors_pair){l->keys[i][0], l->keys[i][1]};
        snprintf(l->names[i][0], sizeof l->names[i][0], "%s.ids", l->keys[i][0]);
        snprintf(l->names[i][1], sizeof l->names[i][1], "%s.features", l->keys[i][0]);
        l->specs[2 * i] = (struct cld_safetensors_spec){
            .name = l->names[i][0], .dtype = CLD_I32, .n_dims = 1, .shape = {r->n}, .id = 2 * i};
        l->specs[2 * i + 1] = (struct cld_safetensors_spec){.name = l->names[i][1],
                                                            .dtype = f->id.type,
                                                            .n_dims = 2,
                                                            .shape = {r->n, f->id.n_cols},
                                                            .id = 2 * i + 1};
    }
    return CLD_OK;
}

static enum cld_status write_file(const struct cld_feature_store *f, const char *path,
                                  struct layout *l, size_t n, struct cld_error *err)
{
    struct cld_safetensors_writer *w = NULL;
    enum cld_status s =
        cld_safetensors_begin(path, l->specs, 2 * n, l->pairs, CLD_FEATURE_N_PAIRS + n, &w, err);
    for (size_t i = 0; i < 2 * n && !s; i++) {
        size_t id = l->specs[i].id;
        const struct record *r = l->records[id / 2];
        s = id % 2 ? cld_safetensors_put(w, i, r->ids + r->n, cld_mul(r->n, f->row_bytes), err)
                   : cld_safetensors_put(w, i, r->ids, r->n * sizeof *r->ids, err);
    }
    if (!s)
        return cld_safetensors_commit(w, err);
    cld_safetensors_abort(w);
    return s;
}

/* Writes what is waiting as one shard. The lock is held, but for the writing itself; others may put
 * and read meanwhile. */
static enum cld_status write_shard(struct cld_feature_store *f, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct layout l;
    struct record *first = f->first;
    size_t n = f->n_waiting;
    char *path = cld_format("%s/features-%06zu.safetensors", f->dir, f->next_shard);
    if (!path)
        return no_memory(err);
    if ((s = keep_path(f, path, err)))
        return s;
    f->first = f->last = NULL;
    f->n_waiting = f->waiting_bytes = 0;
    f->next_shard++;
    f->n_writing++;
    pthread_mutex_unlock(&f->lock);
    if (!(s = lay_out(f, first, n, &l, err)))
        s = write_file(f, path, &l, n, err);
    free_layout(&l);
    pthread_mutex_lock(&f->lock);
    /* Back from the disk, as any later run will see it. After a failure there are no more reads,
     * but the entries still point to the records. */
    if (!s)
        s = read_shard(f, path, err);
    if (!s) {
        free_records(first);
    } else {
        for (f->last = first; f->last->next;)
            f->last = f->last->next;
        f->last->next = f->first;
        f->first = first;
    }
    f->n_writing--;
    pthread_cond_broadcast(&f->written);
    return s;
}

static struct record *make_record(const struct cld_feature_store *f, const struct cld_document *d,
                                  const char *features)
{
    struct record *r = calloc(1, sizeof *r);
    size_t features_bytes = cld_mul(d->n, f->row_bytes);
    if (!r)
        return NULL;
    r->heldout = d->heldout;
    r->row = d->row;
    r->n = d->n;
    r->n_bytes = payload_bytes(f, d->n);
    if (!(r->ids = malloc(r->n_bytes))) {
        free(r);
        return NULL;
    }
    memcpy(r->ids, d->ids, d->n * sizeof *r->ids);
    memcpy(r->ids + d->n, features, features_bytes);
    r->sum = sum_of(r->heldout, r->row, r->n, r->ids, r->ids + r->n, features_bytes);
    return r;
}

static bool has_record(const struct record *r, const struct cld_document *d)
{
    for (; r; r = r->next)
        if (r->row == d->row && r->heldout == d->heldout)
            return true;
    return false;
}

enum cld_status cld_feature_store_put(struct cld_feature_store *f, const struct cld_document *docs,
                                      size_t n_docs, size_t number, const void *features,
                                      struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct record *first = NULL, **end = &first, *last = NULL;
    const char *at = features;
    for (size_t i = 0; i < n_docs; i++) {
        if (!docs[i].n_anchors)
            continue;
        if (cld_feature_store_find(f, &docs[i], number) == CLD_FEATURES_MINE &&
            !has_record(first, &docs[i])) {
            if (!(*end = make_record(f, &docs[i], at))) {
                free_records(first);
                return no_memory(err);
            }
            last = *end;
            end = &last->next;
        }
        at += cld_mul(docs[i].n, f->row_bytes);
    }
    if (!first)
        return CLD_OK;
    pthread_mutex_lock(&f->lock);
    for (struct record *r = first; r; r = r->next) {
        struct entry *e = look_up(f->entries, f->cap_entries, r->heldout, r->row);
        e->state = ENTRY_IN_MEMORY;
        e->record = r;
        f->n_waiting++;
        f->waiting_bytes += r->n_bytes;
        f->counts.n_put++;
        f->counts.n_rows++;
    }
    if (f->last)
        f->last->next = first;
    else
        f->first = first;
    f->last = last;
    if (f->waiting_bytes >= shard_bytes || f->n_waiting >= MAX_SHARD_RECORDS)
        s = write_shard(f, err);
    pthread_mutex_unlock(&f->lock);
    return s;
}

enum cld_status cld_feature_store_flush(struct cld_feature_store *f, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    pthread_mutex_lock(&f->lock);
    if (f->first)
        s = write_shard(f, err);
    while (!s && f->n_writing)
        pthread_cond_wait(&f->written, &f->lock);
    pthread_mutex_unlock(&f->lock);
    return s;
}
