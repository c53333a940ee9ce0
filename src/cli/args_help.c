/* Help and docs/commands.md, docs/exit-codes.md, from the table and the status enum. */
#include <ctype.h>
#include <string.h>

#include "base/nearest.h"
#include "cli/args.h"
#include "cli/args_table.h"
#include "config/config.h"
#include "formats/wrap.h"

static void write_command_line(const struct cld_command *c, FILE *to)
{
    fprintf(to, "cldraft %s%s%s", c->name, *c->arguments ? " " : "", c->arguments);
    for (size_t i = 0; c->options[i]; i++) {
        const struct cld_option *o = c->options[i];
        fprintf(to, o->needed ? " --%s%s%s" : " [--%s%s%s]", o->name, o->value ? " " : "",
                o->value ? o->value : "");
        if (o->repeats)
            fputs("...", to);
    }
}

/* "-v, --verbose", "--precision fp32|bf16": how an option is written. */
static void option_text(const struct cld_option *o, char *to, size_t n)
{
    char value[64] = "";
    for (size_t i = 0; o->names && o->names[i]; i++)
        snprintf(value + strlen(value), sizeof value - strlen(value), "%s%s", i ? "|" : "",
                 o->names[i]);
    if (o->letter)
        snprintf(to, n, "-%c, --%s", o->letter, o->name);
    else
        snprintf(to, n, "--%s%s%s", o->name, o->value ? " " : "",
                 *value     ? value
                 : o->value ? o->value
                            : "");
}

/* What is typed, then what it does from `column` on; on the next line if there is no blank before
 * it. */
static void write_entry(const char *typed, size_t column, const char *text, FILE *to)
{
    bool fits = strlen(typed) + 3 <= column;
    if (fits)
        fprintf(to, "  %-*s", (int)column - 2, typed);
    else
        fprintf(to, "  %s\n", typed);
    cld_write_wrapped(text, fits ? column : 0, column, to);
}

static void write_options(const struct cld_option *const *options, FILE *to)
{
    char text[96];
    for (size_t i = 0; options[i]; i++) {
        option_text(options[i], text, sizeof text);
        write_entry(text, 27, options[i]->help, to);
    }
}

void cld_args_write_help(enum cld_command_id command, FILE *to)
{
    const struct cld_command *c = &cld_commands[command];
    fputs("usage: ", to);
    write_command_line(c, to);
    fprintf(to, "\n\n%c%s.\n", toupper((unsigned char)c->summary[0]), c->summary + 1);
    cld_write_wrapped(c->help, 0, 0, to);
    fputs("\noptions:\n", to);
    write_options(c->options, to);
    write_options(cld_global_options, to);
}

void cld_args_write_usage(FILE *to)
{
    fputs("usage: cldraft COMMAND [ARGUMENTS] [OPTIONS]\n\n"
          "Trains drafters for speculative decoding through OpenCL.\n\ncommands:\n",
          to);
    for (const struct cld_command *c = cld_commands; c->name; c++) {
        char text[64];
        snprintf(text, sizeof text, "%s %s", c->name, c->arguments);
        write_entry(text, 33, c->summary, to);
    }
    fputs("\noptions of all commands:\n", to);
    write_options(cld_global_options, to);
    fputs("\n'cldraft COMMAND --help' explains a command, 'cldraft help config' the keys of "
          "CONFIG.\n",
          to);
}

static void write_options_markdown(const struct cld_option *const *options, FILE *to)
{
    char text[96];
    for (size_t i = 0; options[i]; i++) {
        option_text(options[i], text, sizeof text);
        fprintf(to, "* `%s`: %s\n", text, options[i]->help);
    }
}

void cld_args_write_markdown(FILE *to)
{
    fputs(
        "# Commands\n\n"
        "`cldraft COMMAND [ARGUMENTS] [OPTIONS]`. Options may be anywhere after the command, as\n"
        "`--name value` or `--name=value`; `--` ends the options. Results go to stdout, messages\n"
        "and progress to stderr. Exit codes: [exit-codes.md](exit-codes.md). This page is\n"
        "generated (`cldraft help --markdown commands`).\n\nOptions of all commands:\n\n",
        to);
    write_options_markdown(cld_global_options, to);
    for (const struct cld_command *c = cld_commands; c->name; c++) {
        fprintf(to, "\n## %s\n\n    ", c->name);
        write_command_line(c, to);
        fprintf(to, "\n\n%c%s.", toupper((unsigned char)c->summary[0]), c->summary + 1);
        fprintf(to, "%s%s\n", *c->help ? " " : "", c->help);
        if (c->options[0])
            fputc('\n', to);
        write_options_markdown(c->options, to);
    }
}

void cld_args_write_exit_codes(FILE *to)
{
    fputs("# Exit codes\n\n"
          "Every error is printed on stderr: what failed, with its numbers, and a hint that says "
          "what\n"
          "to do.\n"
          "This page is generated (`cldraft help --markdown exit-codes`).\n\n"
          "| code | name | meaning |\n| ---: | --- | --- |\n",
          to);
    for (const struct cld_exit_code *e = cld_exit_codes; e->meaning; e++)
        fprintf(to, "| %d | %s | %s |\n", e->status, cld_status_name(e->status), e->meaning);
}

enum cld_status cld_cmd_help(const struct cld_args *a, struct cld_error *err)
{
    const char *topic = cld_args_at(a, 0);
    bool markdown = cld_args_flag(a, "markdown");
    char hint[160];
    if (!topic) {
        cld_args_write_usage(stdout);
        return CLD_OK;
    }
    struct cld_nearest near = {.typed = topic};
    if (!strcmp(topic, "config")) {
        (markdown ? cld_config_write_markdown : cld_config_write_help)(stdout);
        return CLD_OK;
    }
    if (!strcmp(topic, "commands")) {
        (markdown ? cld_args_write_markdown : cld_args_write_usage)(stdout);
        return CLD_OK;
    }
    if (!strcmp(topic, "exit-codes")) {
        cld_args_write_exit_codes(stdout);
        return CLD_OK;
    }
    for (size_t i = 0; cld_commands[i].name; i++) {
        if (!strcmp(topic, cld_commands[i].name)) {
            cld_args_write_help((enum cld_command_id)i, stdout);
            return CLD_OK;
        }
        cld_nearest_offer(&near, cld_commands[i].name);
    }
    for (size_t i = 0; cld_help_topics[i]; i++)
        cld_nearest_offer(&near, cld_help_topics[i]);
    return cld_fail(err, CLD_E_USAGE,
                    cld_nearest_hint(&near, "'cldraft help' lists the commands", hint, sizeof hint),
                    "no help on '%.200s'", topic);
}
