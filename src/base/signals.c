#include "base/signals.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static atomic_bool asked;

static void *wait_for_signals(void *arg)
{
    static const char text[] = "\nstopping after this step; again to leave at once\n";
    const sigset_t *set = arg;
    for (int number; !sigwait(set, &number);) {
        if (asked)
            _exit(130);
        asked = true;
        if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
            continue; /* no reader: the run stops all the same */
    }
    return NULL;
}

enum cld_status cld_signals_install(struct cld_error *err)
{
    static sigset_t set; /* the thread reads it as long as the process lives */
    static bool installed;
    pthread_t thread;
    if (installed)
        return CLD_OK;
    installed = true;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    int code = pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (!code && !(code = pthread_create(&thread, NULL, wait_for_signals, &set)))
        code = pthread_detach(thread);
    return code ? cld_fail(err, CLD_E_INTERNAL, "", "cannot wait for signals: %s", strerror(code))
                : CLD_OK;
}

bool cld_signals_stop_asked(void)
{
    return asked;
}

enum cld_status cld_signals_check(struct cld_error *err)
{
    return asked ? cld_fail(err, CLD_E_INTERRUPTED, "", "stopped by a signal before the first step")
                 : CLD_OK;
}
