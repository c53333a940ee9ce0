/* signals.h - SIGINT and SIGTERM: once asks the run to stop after its step, twice ends the process
 * at once (the last checkpoint stays valid). Process-wide.
 *
 * A thread waits for them, and every other thread blocks them: compilers inside OpenCL drivers
 * install handlers of their own, which delete the files of a build that is under way. */
#ifndef CLD_BASE_SIGNALS_H
#define CLD_BASE_SIGNALS_H

#include <stdbool.h>

#include "base/error.h"

/* From the main thread before any other thread begins: they inherit the mask. Later calls do
 * nothing. */
enum cld_status cld_signals_install(struct cld_error *err);
bool cld_signals_stop_asked(void); /* any thread */
/* For what comes before the first step: CLD_E_INTERRUPTED once a stop is asked for. Any thread. */
enum cld_status cld_signals_check(struct cld_error *err);

#endif
