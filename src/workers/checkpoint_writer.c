#include "workers/checkpoint_writer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

static void free_place(struct cld_checkpoint_place *p)
{
    free((char *)(uintptr_t)p->dir);
    free((char *)(uintptr_t)p->state);
    memset(p, 0, sizeof *p);
}

/* Writes the checkpoint that _start has set. */
static enum cld_status write_it(struct cld_checkpoint_writer *w, struct cld_error *err)
{
    double begun = cld_clock_ms();
    enum cld_status s = cld_checkpoint_write(&w->place, w->drafter, &w->image, &w->file, err);
    if (!s)
        cld_info("step %" PRId64 ": checkpoint %s/step-%" PRId64 " written (%.1f s)", w->place.step,
                 w->place.dir, w->place.step, (cld_clock_ms() - begun) * 1e-3);
    return s;
}

static void *run(void *arg)
{
    struct cld_checkpoint_writer *w = arg;
    cld_log_thread_name("checkpoint writer");
    pthread_mutex_lock(&w->lock);
    while (!w->stop || w->busy) {
        if (!w->busy) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        struct cld_error err = CLD_ERROR_INIT;
        pthread_mutex_unlock(&w->lock);
        write_it(w, &err);
        free_place(&w->place);
        pthread_mutex_lock(&w->lock);
        w->error = err;
        w->busy = false;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

enum cld_status cld_checkpoint_writer_open(struct cld_checkpoint_writer *w, struct cld_error *err)
{
    memset(w, 0, sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    if (pthread_create(&w->thread, NULL, run, w)) {
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->lock);
        return cld_fail_memory(err, "a thread that writes checkpoints");
    }
    w->open = true;
    return CLD_OK;
}

enum cld_status cld_checkpoint_writer_start(struct cld_checkpoint_writer *w, const char *dir,
                                            const struct cld_drafter *d,
                                            const struct cld_image *image,
                                            const struct cld_drafter_file *f,
                                            const struct cld_train_state *st, size_t keep,
                                            struct cld_error *err)
{
    char *text = NULL, *copy = NULL;
    enum cld_status s = cld_train_state_text(st, &text, err);
    if (s)
        return s;
    if (!(copy = cld_format("%s", dir))) {
        free(text);
        return cld_fail_memory(err, "the name of a checkpoint");
    }
    pthread_mutex_lock(&w->lock);
    w->drafter = d;
    w->image = *image;
    w->file = *f;
    w->place = (struct cld_checkpoint_place){copy, text, st->step, st->best_step, keep};
    w->busy = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return CLD_OK;
}

/* With the lock held. */
static enum cld_status take_error(struct cld_checkpoint_writer *w, struct cld_error *err)
{
    enum cld_status s = w->error.status;
    if (s)
        *err = w->error;
    w->error = (struct cld_error)CLD_ERROR_INIT;
    return s;
}

void cld_checkpoint_writer_wait_idle(struct cld_checkpoint_writer *w)
{
    if (!w->open)
        return;
    pthread_mutex_lock(&w->lock);
    while (w->busy)
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

enum cld_status cld_checkpoint_writer_wait(struct cld_checkpoint_writer *w, struct cld_error *err)
{
    cld_checkpoint_writer_wait_idle(w);
    return cld_checkpoint_writer_poll(w, err);
}

enum cld_status cld_checkpoint_writer_poll(struct cld_checkpoint_writer *w, struct cld_error *err)
{
    if (!w->open)
        return CLD_OK;
    pthread_mutex_lock(&w->lock);
    enum cld_status s = take_error(w, err);
    pthread_mutex_unlock(&w->lock);
    return s;
}

void cld_checkpoint_writer_close(struct cld_checkpoint_writer *w)
{
    if (!w->open)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    if (w->error.status)
        cld_warn("%s", w->error.what);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    w->open = false;
}
