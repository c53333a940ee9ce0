/* old_names.h - names that users write or that files hold, and that have another name today.
 *
 * One table. A reader asks here if its own list does not have a name, so that
 * configurations, command lines and files of earlier versions go on working. Help, completion and
 * docs show the names of today alone. Any thread. */
#ifndef CLD_BASE_OLD_NAMES_H
#define CLD_BASE_OLD_NAMES_H

#include <stdbool.h>

enum cld_name_kind {                  /* and the scope of a name of this kind */
                     CLD_NAME_KEY,    /* a key of the configuration; its section */
                     CLD_NAME_VALUE,  /* a name among the values of a key; "section.key" */
                     CLD_NAME_OPTION, /* an option; its command */
                     CLD_NAME_METRIC, /* a key of metrics.jsonl; "" */
                     CLD_NAME_RESULT, /* a key of a benchmark's result; "" */
                     CLD_NAME_TUNING, /* a key of a row of tuned parameters; "" */
                     CLD_NAME_DEVICE  /* a key of devices.json; "" */
};

enum { CLD_NAME_BYTES = 64 };

/* If `name` is an old one: writes the name of today to `to`, logs a notice unless this name has had
 * one, and returns true. */
bool cld_old_name(enum cld_name_kind kind, const char *scope, const char *name,
                  char to[CLD_NAME_BYTES]);

#endif
