/* args.h - parsing the command line against the table (args_table.h), and help from it. Commands
 * read the result through cmd.h. Main thread only; everything is borrowed from argv. */
#ifndef CLD_CLI_ARGS_H
#define CLD_CLI_ARGS_H

#include <stdio.h>

#include "cli/cmd.h"

/* Parses argv[1..argc). Options stand anywhere; "--" ends them. CLD_E_USAGE says what is wrong, the
 * hint has the nearest known name or the usage line. --help and --version anywhere win over what is
 * missing. *out is freed with cld_args_free; NULL on failure. */
enum cld_status cld_args_parse(int argc, char **argv, struct cld_args **out, struct cld_error *err);
void cld_args_free(struct cld_args *a); /* NULL-safe */

enum cld_args_wish { CLD_ARGS_RUN, CLD_ARGS_HELP, CLD_ARGS_VERSION };

/* What main is to do: run the command, print help (of the command if there is one) or version. */
enum cld_args_wish cld_args_wish(const struct cld_args *a);
bool cld_args_has_command(const struct cld_args *a);
enum cld_command_id cld_args_command(const struct cld_args *a); /* only if it has one */

/* Help of one command, and the list of all. */
void cld_args_write_help(enum cld_command_id command, FILE *to);
void cld_args_write_usage(FILE *to);

/* docs/commands.md and docs/exit-codes.md. */
void cld_args_write_markdown(FILE *to);
void cld_args_write_exit_codes(FILE *to);
/* The manual page, in roff. */
void cld_args_write_man(FILE *to);

/* The program that completes command lines in a shell. */
enum cld_shell { CLD_SHELL_BASH, CLD_SHELL_ZSH, CLD_SHELL_FISH };
void cld_args_write_completion(enum cld_shell shell, FILE *to);

#endif
