/* cmd.h - the command line: one table of subcommands and options is the source of
 * parsing, help and docs. A subcommand lives in its own file cmd_NAME.c and exports one function.
 *
 * Main thread only. Option values are borrowed from argv. */
#ifndef CLD_CLI_CMD_H
#define CLD_CLI_CMD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"

/* The order of cld_commands (args_table.h). */
enum cld_command_id {
    CLD_CMD_DEVICES,
    CLD_CMD_PLAN,
    CLD_CMD_TRAIN,
    CLD_CMD_STATUS,
    CLD_CMD_REPORT,
    CLD_CMD_EVAL,
    CLD_CMD_GENERATE,
    CLD_CMD_EXPORT,
    CLD_CMD_IMPORT,
    CLD_CMD_CHECK_KERNELS,
    CLD_CMD_CHECK_CASE,
    CLD_CMD_CHECK_TARGET,
    CLD_CMD_CHECK_TOKENIZER,
    CLD_CMD_BENCH,
    CLD_CMD_SPIRV,
    CLD_CMD_COMPLETION,
    CLD_CMD_MAN,
    CLD_CMD_HELP
};

struct cld_args; /* a parsed command line */

/* Positional arguments after the subcommand. */
size_t cld_args_n(const struct cld_args *a);
const char *cld_args_at(const struct cld_args *a, size_t i);

/* Value of --NAME, the last one given; NULL if it was not given. `name` without dashes. */
const char *cld_args_value(const struct cld_args *a, const char *name);
/* The same for an option that takes a whole number; `otherwise` if it was not given. */
uint64_t cld_args_number(const struct cld_args *a, const char *name, uint64_t otherwise);
/* i-th value of a repeatable option such as --set; NULL past the end. */
const char *cld_args_nth(const struct cld_args *a, const char *name, size_t i);
/* All values of a repeatable option, as cld_config_load takes them. The array is `a`'s and holds
 * until the next call. */
const char *const *cld_args_all(const struct cld_args *a, const char *name, size_t *n);
bool cld_args_flag(const struct cld_args *a, const char *name);

/* The log level to use where the configuration asks for `configured`: -v and -q win. */
enum cld_log_level cld_args_log_level(const struct cld_args *a, enum cld_log_level configured);

typedef enum cld_status cld_cmd_fn(const struct cld_args *a, struct cld_error *err);

cld_cmd_fn cld_cmd_devices, cld_cmd_plan, cld_cmd_train, cld_cmd_status, cld_cmd_report,
    cld_cmd_eval, cld_cmd_generate, cld_cmd_export, cld_cmd_import, cld_cmd_check_kernels,
    cld_cmd_check_case, cld_cmd_check_target, cld_cmd_check_tokenizer, cld_cmd_bench, cld_cmd_spirv,
    cld_cmd_help, cld_cmd_completion, cld_cmd_man;

#endif
