/* progress.h - what a person sees of a run: a bar with the time left on a terminal, a plain line
 * every log.every steps elsewhere. Main thread. */
#ifndef CLD_TRAIN_PROGRESS_H
#define CLD_TRAIN_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

struct cld_progress {
    size_t n_steps, every;
    size_t first_step; /* where this process began, for the time left */
    double begun_ms, last_ms;
};

struct cld_progress_line {
    size_t step; /* finished steps */
    double loss, accuracy, accepted, grad_norm, learning_rate, tokens_per_s;
};

void cld_progress_begin(struct cld_progress *p, size_t first_step, size_t n_steps, size_t every);
/* Prints if it is time to. */
void cld_progress_step(struct cld_progress *p, const struct cld_progress_line *l);

#endif
