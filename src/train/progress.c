#include "train/progress.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

/* On a terminal the line is drawn again at most so often. */
static const double redraw_ms = 100;

void cld_progress_begin(struct cld_progress *p, size_t first_step, size_t n_steps, size_t every)
{
    *p = (struct cld_progress){n_steps, every ? every : 1, first_step, cld_clock_ms(), 0};
}

static void write_time(char *to, size_t n_bytes, double s)
{
    unsigned long t = (unsigned long)(s + 0.5);
    if (t >= 3600)
        snprintf(to, n_bytes, "%lu:%02lu:%02lu", t / 3600, t / 60 % 60, t % 60);
    else
        snprintf(to, n_bytes, "%lu:%02lu", t / 60, t % 60);
}

static void write_bar(char *to, size_t width, double share)
{
    size_t full = (size_t)(share * (double)width);
    for (size_t i = 0; i < width; i++)
        to[i] = i < full ? '#' : '.';
    to[width] = 0;
}

void cld_progress_step(struct cld_progress *p, const struct cld_progress_line *l)
{
    bool terminal = cld_log_is_terminal(), done = l->step >= p->n_steps;
    double now = cld_clock_ms();
    if (!done && (terminal ? now - p->last_ms < redraw_ms : l->step % p->every != 0))
        return;
    p->last_ms = now;
    char bar[24] = "", left[32];
    double per_step_s = (now - p->begun_ms) * 1e-3 / (double)(l->step - p->first_step);
    write_time(left, sizeof left,
               done ? (now - p->begun_ms) * 1e-3 : per_step_s * (double)(p->n_steps - l->step));
    if (terminal)
        write_bar(bar, 20, (double)l->step / (double)p->n_steps);
    cld_log_progress(done,
                     "%s%sstep %zu/%zu  loss %.4f  accuracy %.3f  accepted length %.2f  norm %.2f  "
                     "rate %.2e  %.0f tokens/s  %s %s",
                     bar, terminal ? " " : "", l->step, p->n_steps, l->loss, l->accuracy,
                     l->accepted, l->grad_norm, l->learning_rate, l->tokens_per_s,
                     done ? "took" : "left", left);
}
