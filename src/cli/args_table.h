/* args_table.h - the table of subcommands and options, for the files args*.c alone. Read-only. */
#ifndef CLD_CLI_ARGS_TABLE_H
#define CLD_CLI_ARGS_TABLE_H

#include <stdbool.h>

#include "cli/cmd.h"

enum { CLD_COMMAND_MAX_OPTIONS = 20 };

struct cld_option {
    const char *name;         /* without dashes */
    char letter;              /* -v; 0: none */
    const char *value;        /* what its value is called in help; NULL: a flag */
    const char *const *names; /* the values allowed, ends with NULL; NULL: any */
    bool number;              /* takes a whole number */
    bool repeats;             /* may be given several times, all count */
    bool needed;              /* the command cannot do without */
    const char *help;
};

struct cld_command {
    const char *name;
    const char *arguments; /* "CONFIG", as the usage line shows them */
    size_t min_args, max_args;
    const char *summary;                                           /* one line */
    const char *help;                                              /* more, or "" */
    const struct cld_option *options[CLD_COMMAND_MAX_OPTIONS + 1]; /* ends with NULL */
};

struct cld_exit_code {
    enum cld_status status;
    const char *meaning;
};

extern const struct cld_exit_code cld_exit_codes[]; /* ends with a NULL meaning */
extern const char *const cld_help_topics[];     /* besides the commands' names; ends with NULL */
extern const struct cld_command cld_commands[]; /* by enum cld_command_id; ends with a NULL name */
extern const struct cld_option *const cld_global_options[]; /* ends with NULL */

#endif
