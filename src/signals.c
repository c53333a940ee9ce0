#include "signals.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t asked;

static void on_signal(int number)
{
    (void)number;
    static const char text[] = "\nstopping after this step; again to leave at once\n";
    if (asked)
        _exit(130);
    asked = 1;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        return; /* nothing that a handler could do about it */
}

void cld_signals_install(void)
{
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_signal;
    sigemptyset(&a.sa_mask);
    a.sa_flags = SA_RESTART;
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

bool cld_signals_stop_asked(void)
{
    return asked != 0;
}
