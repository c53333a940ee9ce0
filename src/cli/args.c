#include "cli/args.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/nearest.h"
#include "base/old_names.h"
#include "base/size.h"
#include "cli/args_table.h"

struct given {
    const struct cld_option *option;
    const char *value; /* NULL: a flag */
};

struct cld_args {
    const struct cld_command *command; /* NULL: none was named */
    size_t n_args, n_given;
    const char **args;   /* positional */
    struct given *given; /* options, in the order of the command line */
    const char **all;    /* for cld_args_all */
};

/* ---- what commands ask ---- */

size_t cld_args_n(const struct cld_args *a)
{
    return a->n_args;
}

const char *cld_args_at(const struct cld_args *a, size_t i)
{
    return i < a->n_args ? a->args[i] : NULL;
}

static const struct given *last_given(const struct cld_args *a, const char *name)
{
    for (size_t i = a->n_given; i-- > 0;)
        if (!strcmp(a->given[i].option->name, name))
            return &a->given[i];
    return NULL;
}

const char *cld_args_value(const struct cld_args *a, const char *name)
{
    const struct given *g = last_given(a, name);
    return g ? g->value : NULL;
}

uint64_t cld_args_number(const struct cld_args *a, const char *name, uint64_t otherwise)
{
    const char *value = cld_args_value(a, name);
    return value ? strtoull(value, NULL, 10) : otherwise; /* its form was checked by the parser */
}

const char *cld_args_nth(const struct cld_args *a, const char *name, size_t i)
{
    for (size_t j = 0; j < a->n_given; j++)
        if (!strcmp(a->given[j].option->name, name) && !i--)
            return a->given[j].value;
    return NULL;
}

const char *const *cld_args_all(const struct cld_args *a, const char *name, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < a->n_given; i++)
        if (!strcmp(a->given[i].option->name, name))
            a->all[(*n)++] = a->given[i].value;
    return a->all;
}

bool cld_args_flag(const struct cld_args *a, const char *name)
{
    return last_given(a, name) != NULL;
}

enum cld_log_level cld_args_log_level(const struct cld_args *a, enum cld_log_level configured)
{
    if (cld_args_flag(a, "verbose"))
        return CLD_LOG_DEBUG;
    return cld_args_flag(a, "quiet") ? CLD_LOG_WARN : configured;
}

/* ---- what main asks ---- */

enum cld_args_wish cld_args_wish(const struct cld_args *a)
{
    if (cld_args_flag(a, "help"))
        return CLD_ARGS_HELP;
    return cld_args_flag(a, "version") ? CLD_ARGS_VERSION : CLD_ARGS_RUN;
}

bool cld_args_has_command(const struct cld_args *a)
{
    return a->command != NULL;
}

enum cld_command_id cld_args_command(const struct cld_args *a)
{
    return (enum cld_command_id)(a->command - cld_commands);
}

/* ---- parsing ---- */

static const struct cld_command *find_command(const char *name)
{
    for (const struct cld_command *c = cld_commands; c->name; c++)
        if (!strcmp(c->name, name))
            return c;
    return NULL;
}

/* Calls of next_option walk over the global options, then over those of the command. */
static const struct cld_option *next_option(const struct cld_args *a, size_t *i)
{
    size_t n_global = 0;
    while (cld_global_options[n_global])
        n_global++;
    size_t at = (*i)++;
    if (at < n_global)
        return cld_global_options[at];
    return a->command ? a->command->options[at - n_global] : NULL;
}

static const struct cld_option *find_letter(const struct cld_args *a, char letter)
{
    const struct cld_option *o;
    for (size_t i = 0; (o = next_option(a, &i));)
        if (o->letter == letter)
            return o;
    return NULL;
}

static const struct cld_option *find_name(const struct cld_args *a, const char *name)
{
    const struct cld_option *o;
    for (size_t i = 0; (o = next_option(a, &i));)
        if (!strcmp(o->name, name))
            return o;
    return NULL;
}

/* The option of the first n characters of `typed`. */
static const struct cld_option *find_option(const struct cld_args *a, const char *typed, size_t n)
{
    char name[CLD_NAME_BYTES], now[CLD_NAME_BYTES];
    if (n >= sizeof name)
        return NULL;
    snprintf(name, sizeof name, "%.*s", (int)n, typed);
    const struct cld_option *o = find_name(a, name);
    if (!o && a->command && cld_old_name(CLD_NAME_OPTION, a->command->name, name, now))
        o = find_name(a, now);
    return o;
}

static void usage_line(const struct cld_command *c, char *to, size_t n)
{
    size_t used = (size_t)snprintf(to, n, "usage: cldraft %s%s%s", c->name,
                                   *c->arguments ? " " : "", c->arguments);
    for (size_t i = 0; c->options[i] && used < n; i++)
        if (c->options[i]->needed)
            used += (size_t)snprintf(to + used, n - used, " --%s %s", c->options[i]->name,
                                     c->options[i]->value);
    if (c->options[0] && used < n)
        snprintf(to + used, n - used, " [options]");
}

static enum cld_status unknown_option(const struct cld_args *a, const char *typed, size_t n,
                                      struct cld_error *err)
{
    char name[64], best[80], hint[160];
    const struct cld_option *o;
    snprintf(name, sizeof name, "%.*s", (int)cld_min(n, sizeof name - 1), typed);
    struct cld_nearest near = {.typed = name};
    for (size_t i = 0; (o = next_option(a, &i));)
        cld_nearest_offer(&near, o->name);
    if (near.best) {
        snprintf(best, sizeof best, "--%s", near.best);
        near.best = best;
    }
    snprintf(name, sizeof name, "'cldraft %s --help' lists all",
             a->command ? a->command->name : "");
    cld_nearest_hint(&near, a->command ? name : "'cldraft --help' lists all", hint, sizeof hint);
    return cld_fail(err, CLD_E_USAGE, hint, "unknown option '--%.*s'%s%s", (int)cld_min(n, 200),
                    typed, a->command ? " of " : "", a->command ? a->command->name : "");
}

static enum cld_status check_value(const struct cld_option *o, const char *value,
                                   struct cld_error *err)
{
    if (o->number) {
        errno = 0;
        strtoull(value, NULL, 10);
        if (!*value || value[strspn(value, "0123456789")] || errno)
            return cld_fail(err, CLD_E_USAGE, o->help, "--%s needs a whole number, not '%.200s'",
                            o->name, value);
    }
    if (o->names) {
        char names[128] = "";
        for (size_t i = 0; o->names[i]; i++) {
            if (!strcmp(o->names[i], value))
                return CLD_OK;
            size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "one of: ", o->names[i]);
        }
        return cld_fail(err, CLD_E_USAGE, names, "--%s does not accept '%.200s'", o->name, value);
    }
    return CLD_OK;
}

static void keep(struct cld_args *a, const struct cld_option *o, const char *value)
{
    a->given[a->n_given++] = (struct given){o, value};
}

/* argv[*i] is "--name", "--name=value"; a value of its own moves *i on. */
static enum cld_status parse_long(struct cld_args *a, int argc, char **argv, int *i,
                                  struct cld_error *err)
{
    const char *name = argv[*i] + 2, *value = strchr(name, '=');
    size_t n = value ? (size_t)(value - name) : strlen(name);
    const struct cld_option *o = find_option(a, name, n);
    if (!o)
        return unknown_option(a, name, n, err);
    if (!o->value && value)
        return cld_fail(err, CLD_E_USAGE, "write the option alone, without '='",
                        "--%s accepts no value", o->name);
    if (!o->value) {
        keep(a, o, NULL);
        return CLD_OK;
    }
    if (value)
        value++;
    else if (*i + 1 < argc && strncmp(argv[*i + 1], "--", 2))
        value = argv[++*i];
    else
        return cld_fail(err, CLD_E_USAGE, o->help, "--%s needs a value: --%s %s", o->name, o->name,
                        o->value);
    keep(a, o, value);
    return check_value(o, value, err);
}

/* "-v" and "-vq": letters are flags. */
static enum cld_status parse_letters(struct cld_args *a, const char *letters, struct cld_error *err)
{
    for (const char *c = letters; *c; c++) {
        const struct cld_option *o = find_letter(a, *c);
        if (!o)
            return cld_fail(err, CLD_E_USAGE,
                            "'cldraft --help' lists all; '--' goes before a name "
                            "that begins with '-'",
                            "unknown option '-%c'", *c);
        keep(a, o, NULL);
    }
    return CLD_OK;
}

static enum cld_status parse_command(struct cld_args *a, const char *name, struct cld_error *err)
{
    struct cld_nearest near = {.typed = name};
    char hint[160];
    if ((a->command = find_command(name)))
        return CLD_OK;
    for (const struct cld_command *c = cld_commands; c->name; c++)
        cld_nearest_offer(&near, c->name);
    return cld_fail(err, CLD_E_USAGE,
                    cld_nearest_hint(&near, "'cldraft --help' lists all", hint, sizeof hint),
                    "unknown command '%.200s'", name);
}

/* The command comes first among the words, so that its options are known when they come. Options
 * before it can only be global flags, which take no value. */
static enum cld_status parse_words(struct cld_args *a, int argc, char **argv, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    bool options = true;
    for (int i = 1; i < argc && !s; i++) {
        const char *word = argv[i];
        if (options && !strcmp(word, "--"))
            options = false;
        else if (options && !strncmp(word, "--", 2))
            s = parse_long(a, argc, argv, &i, err);
        else if (options && word[0] == '-' && word[1])
            s = parse_letters(a, word + 1, err);
        else if (!a->command)
            s = parse_command(a, word, err);
        else
            a->args[a->n_args++] = word;
    }
    return s;
}

/* Is everything there that the command needs? */
static enum cld_status check_complete(const struct cld_args *a, struct cld_error *err)
{
    char usage[sizeof err->hint];
    const struct cld_command *c = a->command;
    if (!c)
        return cld_fail(err, CLD_E_USAGE, "'cldraft --help' lists all", "no command given");
    usage_line(c, usage, sizeof usage);
    if (a->n_args < c->min_args)
        return cld_fail(err, CLD_E_USAGE, usage, "%s: an argument is missing", c->name);
    if (a->n_args > c->max_args)
        return cld_fail(err, CLD_E_USAGE, usage, "%s: too many arguments, from '%.200s' on",
                        c->name, a->args[c->max_args]);
    for (size_t i = 0; c->options[i]; i++)
        if (c->options[i]->needed && !cld_args_flag(a, c->options[i]->name))
            return cld_fail(err, CLD_E_USAGE, usage, "%s: --%s is missing", c->name,
                            c->options[i]->name);
    if (cld_args_flag(a, "verbose") && cld_args_flag(a, "quiet"))
        return cld_fail(err, CLD_E_USAGE, "use one of them",
                        "--verbose and --quiet are both given");
    return CLD_OK;
}

enum cld_status cld_args_parse(int argc, char **argv, struct cld_args **out, struct cld_error *err)
{
    enum cld_status s;
    size_t n = 0; /* a word is an argument or holds options, one for each of its letters */
    for (int i = 1; i < argc; i++)
        n = cld_add(n, cld_add(strlen(argv[i]), 1));
    struct cld_args *a = calloc(1, sizeof *a);
    *out = NULL;
    if (a) {
        a->args = calloc(cld_add(n, 1), sizeof *a->args);
        a->given = calloc(cld_add(n, 1), sizeof *a->given);
        a->all = calloc(cld_add(n, 1), sizeof *a->all);
    }
    if (!a || !a->args || !a->given || !a->all)
        s = cld_fail_memory(err, "the command line");
    else
        s = parse_words(a, argc, argv, err);
    if (!s && cld_args_wish(a) == CLD_ARGS_RUN)
        s = check_complete(a, err);
    if (s)
        cld_args_free(a);
    else
        *out = a;
    return s;
}

void cld_args_free(struct cld_args *a)
{
    if (!a)
        return;
    free(a->args);
    free(a->given);
    free(a->all);
    free(a);
}
