/* clock.h - monotonic milliseconds, for durations only. Any thread. */
#ifndef CLD_BASE_CLOCK_H
#define CLD_BASE_CLOCK_H

#include <time.h>

static inline double cld_clock_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Milliseconds of all processors that the process has taken: on a CPU device, work of others on the
 * machine does not count. */
static inline double cld_cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

#endif
