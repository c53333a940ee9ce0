#include "workers/feature_source.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/size.h"

/* Whether an earlier document of the item has the same row, as at the border of two epochs. */
static bool is_repeated(const struct cld_item *it, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (it->docs[k].n_anchors && it->docs[k].row == it->docs[i].row &&
            it->docs[k].heldout == it->docs[i].heldout)
            return true;
    return false;
}

/* A row that an earlier item claimed is put before that item is used up, and items are used in
 * ascending order: the wait ends (ring.h has the argument). */
static enum cld_status wait_for(struct cld_feature_store *f, struct cld_sync *sync,
                                const struct cld_document *d, size_t number, struct cld_error *err)
{
    bool going = true;
    pthread_mutex_lock(&sync->lock);
    while (going && cld_feature_store_find(f, d, number) == CLD_FEATURES_COMING)
        going = cld_sync_wait(sync);
    pthread_mutex_unlock(&sync->lock);
    return going ? CLD_OK : cld_sync_gave_up(err);
}

/* Whether the target must run. */
static bool needs_target(struct cld_feature_store *f, const struct cld_item *it)
{
    for (size_t i = 0; i < it->n_docs; i++) {
        enum cld_feature_place place = cld_feature_store_find(f, &it->docs[i], it->number);
        if (it->docs[i].n_anchors && (place == CLD_FEATURES_ABSENT || place == CLD_FEATURES_MINE))
            return true;
    }
    return false;
}

static enum cld_status compute(struct cld_worker *w, const struct cld_batch *b, void *to,
                               struct cld_error *err)
{
    enum cld_status s = cld_worker_features(w, b, err);
    return s ? s : cld_worker_read_features(w, b->n_ctx, to, err);
}

/* Stored rows replace what the target computed for them: a row has the same bits in every
 * micro-batch, also in a resumed run. */
static enum cld_status take_stored(struct cld_feature_store *f, struct cld_sync *sync,
                                   const struct cld_worker *w, const struct cld_item *it,
                                   const bool *is_new, void *features, struct cld_error *err)
{
    char *to = features;
    enum cld_status s = CLD_OK;
    for (size_t i = 0; i < it->n_docs && !s; i++) {
        const struct cld_document *d = &it->docs[i];
        if (!d->n_anchors)
            continue;
        if (!is_new[i] && !(s = wait_for(f, sync, d, it->number, err)) &&
            cld_feature_store_find(f, d, it->number) == CLD_FEATURES_HERE)
            s = cld_feature_store_read(f, d, to, err);
        to += cld_mul(d->n, cld_worker_feature_bytes(w));
    }
    return s;
}

static void tell_waiting(struct cld_sync *sync)
{
    pthread_mutex_lock(&sync->lock);
    pthread_cond_broadcast(&sync->changed);
    pthread_mutex_unlock(&sync->lock);
}

enum cld_status cld_features_read(struct cld_feature_store *f, const struct cld_worker *w,
                                  const struct cld_item *it, void *to, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *at = to;
    for (size_t i = 0; i < it->n_docs && !s; i++) {
        const struct cld_document *d = &it->docs[i];
        if (d->n_anchors && !(s = cld_feature_store_read(f, d, at, err)))
            at += cld_mul(d->n, cld_worker_feature_bytes(w));
    }
    return s;
}

enum cld_status cld_features_fill(struct cld_feature_store *f, struct cld_sync *sync,
                                  struct cld_worker *w, const struct cld_item *it,
                                  const struct cld_batch *b, void *to, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (w->role == CLD_ROLE_READER)
        return cld_features_read(f, w, it, to, err);
    bool *is_new = calloc(cld_max(1, it->n_docs), sizeof *is_new);
    if (!is_new)
        return cld_fail_memory(err, "a micro-batch");
    if (needs_target(f, it)) {
        for (size_t i = 0; i < it->n_docs; i++)
            is_new[i] = !is_repeated(it, i) &&
                        cld_feature_store_find(f, &it->docs[i], it->number) == CLD_FEATURES_MINE;
        if ((s = compute(w, b, to, err)) ||
            (s = cld_feature_store_put(f, it->docs, it->n_docs, it->number, to, err)))
            goto done;
        tell_waiting(sync);
    }
    s = take_stored(f, sync, w, it, is_new, to, err);
done:
    free(is_new);
    return s;
}

void cld_features_describe(const struct cld_config *cfg, char *to, size_t n)
{
    switch (cfg->features.mode) {
    case CLD_FEATURES_ONLINE:
        snprintf(to, n, "online");
        break;
    case CLD_FEATURES_OFFLINE:
        snprintf(to, n, "offline, from %s", cfg->features.dir);
        break;
    case CLD_FEATURES_HYBRID:
        snprintf(to, n, "hybrid, in %s", cfg->features.dir);
        break;
    }
}
