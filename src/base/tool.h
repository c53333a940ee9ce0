/* tool.h - running another program to its end. Any thread. */
#ifndef CLD_BASE_TOOL_H
#define CLD_BASE_TOOL_H

#include "base/error.h"

/* Runs argv[0], found by PATH, with the arguments up to a NULL. CLD_E_INPUT if it cannot be started
 * (`hint` says how to get it), or if it ends with another status than 0: with what it wrote. */
enum cld_status cld_tool_run(const char *const *argv, const char *hint, struct cld_error *err);

#endif
