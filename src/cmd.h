/* cmd.h - the command line: one table of subcommands and options, from which parsing, help and
 * docs come. A subcommand lives in its own file cmd_NAME.c and exports one function.
 *
 * Main thread only. Option values are borrowed from argv. */
#ifndef CLD_CMD_H
#define CLD_CMD_H

#include <stdbool.h>
#include <stddef.h>

#include "error.h"

struct cld_args; /* a parsed command line */

/* Positional arguments after the subcommand. */
size_t cld_args_n(const struct cld_args *a);
const char *cld_args_at(const struct cld_args *a, size_t i);

/* Value of --NAME, the last one given; NULL if it was not given. `name` without dashes. */
const char *cld_args_value(const struct cld_args *a, const char *name);
/* i-th value of a repeatable option such as --set; NULL past the end. */
const char *cld_args_nth(const struct cld_args *a, const char *name, size_t i);
bool cld_args_flag(const struct cld_args *a, const char *name);

typedef enum cld_status cld_cmd_fn(const struct cld_args *a, struct cld_error *err);

cld_cmd_fn cld_cmd_devices, cld_cmd_plan, cld_cmd_train, cld_cmd_status, cld_cmd_eval,
    cld_cmd_export, cld_cmd_check_kernels, cld_cmd_check_case, cld_cmd_check_target,
    cld_cmd_check_tokenizer, cld_cmd_bench;

#endif
