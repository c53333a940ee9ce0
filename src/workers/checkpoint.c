#include "workers/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ckptdir.h"
#include "base/file.h"
#include "base/log.h"
#include "base/manifest.h"
#include "base/size.h"

/* Room for headers, config.json, state.json and the manifest. */
static const size_t small_files_bytes = (size_t)4 << 20;

enum { MAX_OPTIMIZER = 4 };

static int n_optimizer(const struct cld_drafter *d)
{
    return d->options.ema ? MAX_OPTIMIZER : MAX_OPTIMIZER - 1;
}

/* Of the drafter's own arenas, or of the image. */
static void optimizer_parts(const struct cld_drafter *d, const struct cld_image *image,
                            struct cld_drafter_part parts[MAX_OPTIMIZER])
{
    const unsigned exact = CLD_DTYPE_BIT(CLD_F32);
    const char *const names[MAX_OPTIMIZER] = {"master.", "m.", "v.", "ema."};
    const struct cld_tensor *arenas[MAX_OPTIMIZER] = {&d->master, &d->m, &d->v, &d->ema};
    for (int i = 0; i < MAX_OPTIMIZER; i++)
        parts[i] = (struct cld_drafter_part){names[i], arenas[i], NULL, CLD_F32, exact, false};
    if (!image)
        return;
    parts[0].host = image->master;
    parts[1].host = image->m;
    parts[2].host = image->v;
    parts[3].host = image->ema;
    for (int i = 0; i < MAX_OPTIMIZER; i++)
        parts[i].arena = NULL;
}

static enum cld_status check_trains(const struct cld_drafter *d, struct cld_error *err)
{
    return d->options.train ? CLD_OK
                            : cld_fail(err, CLD_E_INTERNAL, "",
                                       "a checkpoint needs a drafter with optimizer state");
}

/* The arenas of a drafter that has shards of them are read in full, one after the other, into the
 * arena of gradients, and it takes its own part. */
static enum cld_status load_shards(struct cld_drafter *d, const char *path, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_drafter_part parts[MAX_OPTIMIZER];
    const struct cld_tensor *moments[MAX_OPTIMIZER] = {NULL, &d->m, &d->v, &d->ema};
    const size_t size = sizeof(float);
    for (int i = n_optimizer(d); i-- > 0 && !s;) {
        optimizer_parts(d, NULL, parts);
        for (int k = 0; k < n_optimizer(d); k++)
            parts[k].arena = k == i ? &d->grads : NULL;
        if ((s = cld_drafter_read_parts(d, path, parts, (size_t)n_optimizer(d), err)))
            return s;
        s = i ? cld_buf_copy(d->grads.buf, d->shard_first * size, moments[i]->buf, 0,
                             d->shard_n * size, err)
              : cld_drafter_adopt(d, err);
    }
    return s;
}

size_t cld_checkpoint_bytes(const struct cld_drafter *d)
{
    size_t elem_bytes = sizeof(uint16_t) + (size_t)n_optimizer(d) * sizeof(float);
    elem_bytes += d->options.ema ? sizeof(uint16_t) : 0;
    return cld_add(cld_mul(d->n_elems, elem_bytes), small_files_bytes);
}

/* The mean as a drafter of its own, where there is one. */
static enum cld_status write_ema(const char *dir, const struct cld_drafter *d,
                                 const struct cld_image *image, struct cld_error *err)
{
    const struct cld_drafter_part part = {
        "", image ? NULL : &d->ema, image ? image->ema : NULL, CLD_BF16, CLD_DTYPES_FLOAT, true};
    if (!d->options.ema)
        return CLD_OK;
    char *path = cld_format("%s/" CLD_EMA_FILE, dir);
    enum cld_status s = path ? cld_drafter_write_parts(d, path, &part, 1, err)
                             : cld_fail_memory(err, "a path of %s", dir);
    free(path);
    return s;
}

/* All files of a checkpoint but the manifest. */
static enum cld_status write_files(const char *dir, const struct cld_drafter *d,
                                   const struct cld_image *image, const struct cld_drafter_file *f,
                                   const char *state_text, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_drafter_part parts[MAX_OPTIMIZER];
    char *weights = cld_format("%s/drafter.safetensors", dir);
    char *optimizer = cld_format("%s/optimizer.safetensors", dir);
    char *state = cld_format("%s/state.json", dir);
    optimizer_parts(d, image, parts);
    if (!weights || !optimizer || !state) {
        s = cld_fail_memory(err, "the names of files in %s", dir);
        goto done;
    }
    if ((s = cld_drafter_write(d, image, weights, err)) || (s = write_ema(dir, d, image, err)) ||
        (s = cld_drafter_write_parts(d, optimizer, parts, (size_t)n_optimizer(d), err)) ||
        (s = cld_drafter_config_write(dir, f, err)))
        goto done;
    s = cld_file_write(state, state_text, strlen(state_text), err);
done:
    free(weights);
    free(optimizer);
    free(state);
    return s;
}

size_t cld_checkpoint_n_arrays(const struct cld_drafter *d)
{
    return (size_t)n_optimizer(d);
}

enum cld_status cld_checkpoint_write(const struct cld_checkpoint_place *place,
                                     const struct cld_drafter *d, const struct cld_image *image,
                                     const struct cld_drafter_file *f, struct cld_error *err)
{
    struct cld_ckptdir *c = NULL;
    struct cld_error why = CLD_ERROR_INIT;
    const char *dir = place->dir;
    char name[32];
    snprintf(name, sizeof name, "step-%" PRId64, place->step);
    enum cld_status s = check_trains(d, err);
    if (s || (s = cld_ckptdir_begin(dir, name, cld_checkpoint_bytes(d), &c, err)))
        return s;
    if ((s = write_files(cld_ckptdir_path(c), d, image, f, place->state, err))) {
        cld_ckptdir_abort(c);
        return s;
    }
    if ((s = cld_ckptdir_commit(c, err)))
        return s;
    if (place->best_step == place->step && (s = cld_ckptdir_mark_best(dir, place->step, err)))
        return s;
    /* Pruning goes by number: what was just written must be the newest. */
    if (cld_ckptdir_rewind(dir, place->step, place->best_step, &why) ||
        cld_ckptdir_prune(dir, place->keep, place->best_step, &why))
        cld_warn("older checkpoints stay: %s", why.what);
    return CLD_OK;
}

enum cld_status cld_checkpoint_save(const char *dir, const struct cld_drafter *d,
                                    const struct cld_image *image, const struct cld_drafter_file *f,
                                    const struct cld_train_state *st, size_t keep,
                                    struct cld_error *err)
{
    char *text = NULL;
    enum cld_status s = cld_train_state_text(st, &text, err);
    const struct cld_checkpoint_place place = {dir, text, st->step, st->best_step, keep};
    if (!s)
        s = cld_checkpoint_write(&place, d, image, f, err);
    free(text);
    return s;
}

static bool has_file(const char *dir, const char *name)
{
    char *path = cld_format("%s/%s", dir, name);
    bool has = path && cld_file_exists(path);
    free(path);
    return has;
}

enum cld_status cld_checkpoint_find(const char *path, bool set_bad_aside, char **resolved,
                                    struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    int64_t step;
    char *parent = NULL;
    *resolved = NULL;
    if (has_file(path, "state.json") && has_file(path, "optimizer.safetensors")) {
        if ((s = cld_manifest_verify(path, err)))
            goto done;
        if (!(*resolved = cld_format("%s", path)))
            s = cld_fail_memory(err, "a path of %s", path);
        goto done;
    }
    parent = cld_format("%s/checkpoints", path);
    if (!parent) {
        s = cld_fail_memory(err, "a path of %s", path);
        goto done;
    }
    s = cld_ckptdir_latest(cld_dir_exists(parent) ? parent : path, set_bad_aside, resolved, &step,
                           err);
    if (!s && !*resolved)
        s = cld_fail(err, CLD_E_INPUT,
                     "name a checkpoint (step-N), a run directory or its checkpoints directory",
                     "%s: there is no whole checkpoint", path);
done:
    free(parent);
    return s;
}

enum cld_status cld_drafter_find(const char *path, char **out, struct cld_error *err)
{
    if (!has_file(path, "config.json"))
        return cld_checkpoint_find(path, false, out, err);
    *out = cld_format("%s", path);
    return *out ? CLD_OK : cld_fail_memory(err, "a path of %s", path);
}

enum cld_status cld_checkpoint_state(const char *resolved, struct cld_train_state *st,
                                     struct cld_error *err)
{
    char *path = cld_format("%s/state.json", resolved);
    if (!path) {
        memset(st, 0, sizeof *st);
        return cld_fail_memory(err, "a path of %s", resolved);
    }
    enum cld_status s = cld_train_state_read(path, st, err);
    free(path);
    return s;
}

enum cld_status cld_checkpoint_load(const char *resolved, struct cld_drafter *d,
                                    struct cld_error *err)
{
    struct cld_drafter_part parts[MAX_OPTIMIZER];
    struct cld_drafter_file f;
    char *path = cld_format("%s/optimizer.safetensors", resolved);
    enum cld_status s = CLD_OK;
    if (!path)
        return cld_fail_memory(err, "a path of %s", resolved);
    if ((s = check_trains(d, err)) || (s = cld_drafter_config_read(resolved, &f, err)) ||
        (s = cld_drafter_config_same(&d->config, &f.config, resolved, err)))
        goto done;
    if (cld_drafter_is_sharded(d)) {
        s = load_shards(d, path, err);
        goto done;
    }
    optimizer_parts(d, NULL, parts);
    if ((s = cld_drafter_read_parts(d, path, parts, (size_t)n_optimizer(d), err)))
        goto done;
    for (size_t i = 0; i < d->n_params && !s; i++)
        s = cld_drafter_round(d, &d->params[i], err);
done:
    free(path);
    return s;
}

enum cld_status cld_checkpoint_ema(const char *dir, char **out, struct cld_error *err)
{
    *out = cld_format("%s/" CLD_EMA_FILE, dir);
    if (!*out)
        return cld_fail_memory(err, "a path of %s", dir);
    return has_file(dir, CLD_EMA_FILE)
               ? CLD_OK
               : cld_fail(err, CLD_E_INPUT,
                          "name a checkpoint of a run with train.ema, or take the "
                          "trained weights",
                          "%s has no mean of weights (" CLD_EMA_FILE ")", dir);
}
