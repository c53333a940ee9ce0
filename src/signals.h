/* signals.h - SIGINT and SIGTERM: once asks the run to stop after its step, twice ends the process
 * at once (the last checkpoint stays valid). Process-wide; install from the main thread. */
#ifndef CLD_SIGNALS_H
#define CLD_SIGNALS_H

#include <stdbool.h>

void cld_signals_install(void);
bool cld_signals_stop_asked(void); /* any thread */

#endif
