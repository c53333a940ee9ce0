/* Help and docs/config.md, from the table. */
#include <string.h>

#include "config/config.h"
#include "config/config_table.h"
#include "config/config_value.h"
#include "formats/roff.h"

static bool opens_section(const struct cld_config_key *k)
{
    return k == cld_config_keys || strcmp(k->section, k[-1].section);
}

static const char *change_text(const struct cld_config_key *k)
{
    switch (k->change) {
    case CLD_KEY_FIXED:
        return "fixed";
    case CLD_KEY_FREE:
        return "free";
    case CLD_KEY_GROWS:
        return "may grow";
    }
    return "";
}

/* Prints `text` broken into lines of at most 100 columns, each indented by `indent` blanks. */
static void print_wrapped(const char *text, int indent, FILE *to)
{
    size_t most = 100 - (size_t)indent;
    while (*text) {
        size_t n = strlen(text);
        if (n > most)
            for (n = most; n && text[n] != ' '; n--)
                ;
        if (!n)
            n = strcspn(text, " ");
        fprintf(to, "%*s%.*s\n", indent, "", (int)n, text);
        text += n;
        text += strspn(text, " ");
    }
}

void cld_config_write_help(FILE *to)
{
    fputs("An INI file. Each key: what it takes, its default, what it does.\n"
          "Paths are relative to the current directory. --set SECTION.KEY=VALUE overrides a key.\n",
          to);
    for (const struct cld_config_key *k = cld_config_keys; k->section; k++) {
        if (opens_section(k))
            fprintf(to, "\n[%s]  %s\n", k->section, cld_config_section_help(k->section));
        fprintf(to, "  %s = ", k->name);
        cld_config_value_describe(k, to);
        if (k->default_text)
            fprintf(to, "  (default %s)\n", k->default_text);
        else
            fputs("  (no default)\n", to);
        print_wrapped(k->help, 6, to);
    }
}

void cld_config_write_markdown(FILE *to)
{
    fputs("# Configuration\n\n"
          "A run is described by one INI file; `--set SECTION.KEY=VALUE` overrides a key, the\n"
          "last one wins. `cldraft train CONFIG --print-config` prints all values and where they\n"
          "are from.\n\n"
          "This page is generated (`cldraft help --markdown config`).\n\n"
          "* `key = value` below `[section]`; a section and a key stand there once; names are\n"
          "  lower-case. `#` or `;` begins a comment, at the start of a line or after a blank.\n"
          "* A value with `#`, `;` or a backslash at its end stands in double quotes. Lists are\n"
          "  separated by commas. A line has at most 1000 bytes; nothing continues on the next.\n"
          "* Paths are relative to the current directory, not to the file.\n"
          "* Whatever is not exactly right is an error with file and line (exit code 2): unknown\n"
          "  names, wrong types, numbers out of range, what is there twice.\n\n"
          "The last column tells what a resumed run may change: *fixed* keys alter the\n"
          "mathematics, so a change is refused; *free* keys do not.\n",
          to);
    for (const struct cld_config_key *k = cld_config_keys; k->section; k++) {
        if (opens_section(k))
            fprintf(to,
                    "\n## [%s]\n\n%s\n\n| key | value | default | what it does | resume |\n"
                    "| --- | --- | --- | --- | --- |\n",
                    k->section, cld_config_section_help(k->section));
        fprintf(to, "| `%s` | ", k->name);
        cld_config_value_describe(k, to);
        if (k->default_text)
            fprintf(to, " | `%s` | ", k->default_text);
        else
            fputs(" | | ", to);
        fprintf(to, "%s | %s |\n", k->help, change_text(k));
    }
}

void cld_config_write_man(FILE *to)
{
    fputs(".SH CONFIGURATION\n"
          "An INI file; \\fB\\-\\-set\\fR \\fISECTION.KEY=VALUE\\fR overrides a key.\n"
          "Paths are relative to the current directory.\n",
          to);
    for (const struct cld_config_key *k = cld_config_keys; k->section; k++) {
        if (opens_section(k)) {
            fprintf(to, ".SS [%s]\n", k->section);
            cld_roff_lines(cld_config_section_help(k->section), "", to);
        }
        fprintf(to, ".TP\n\\fB%s\\fR = ", k->name);
        cld_config_value_describe(k, to);
        if (k->default_text) {
            fputs(" (default ", to);
            cld_roff_text(k->default_text, to);
            fputc(')', to);
        }
        fputc('\n', to);
        cld_roff_lines(k->help, "", to);
    }
}

bool cld_config_key_at(size_t i, const char **section, const char **name, const char *const **words)
{
    static const char *const truths[] = {"yes", "no", NULL};
    const struct cld_config_key *k = &cld_config_keys[i];
    if (i >= cld_config_n_keys)
        return false;
    *section = k->section;
    *name = k->name;
    *words = k->type == CLD_KEY_BOOL ? truths : k->names;
    return true;
}
