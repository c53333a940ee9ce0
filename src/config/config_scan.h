/* config_scan.h - INI text to entries with line numbers, for config.c alone.
 *
 * iniparser reads the values. It keeps no line numbers, folds case, joins lines, lets the last of
 * two equal keys win and accepts much that is a mistake (unclosed quotes, text after them, cut
 * comments); so a scan of our own goes first, notes where each key stands and refuses every line
 * that iniparser would read in another way than it looks.
 *
 * Main thread only: iniparser's error callback is global to the process. */
#ifndef CLD_CONFIG_CONFIG_SCAN_H
#define CLD_CONFIG_CONFIG_SCAN_H

#include <stddef.h>

#include "base/error.h"

/* Longest value: with its key, quotes and comment it still makes a line that iniparser reads. */
enum { CLD_CONFIG_MAX_VALUE = 800 };

struct cld_config_entry {
    int line;      /* from 1 */
    char *section; /* as written */
    char *key;     /* as written; "" for the line of the section itself */
    char *value;   /* without quotes and comment; NULL for a section */
};

struct cld_config_entries {
    size_t n, capacity;
    struct cld_config_entry *v;
};

/* CLD_E_USAGE "PATH:LINE: ..." for a file that is missing, unreadable or not written strictly:
 * bad syntax, a section or key twice, a key before any section, a line too long. Names are not
 * checked against anything. Freed with cld_config_entries_free whatever the result was. */
enum cld_status cld_config_scan(const char *path, struct cld_config_entries *out,
                                struct cld_error *err);
void cld_config_entries_free(struct cld_config_entries *e);

/* Is `value` one that an INI line can hold (UTF-8, no control characters, no double quote, not
 * empty, not too long)? Otherwise CLD_E_USAGE without a place: the caller prefixes it. */
enum cld_status cld_config_value_ok(const char *value, struct cld_error *err);

#endif
