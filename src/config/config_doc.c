/* Help and docs/config.md, from the table. */
#include <string.h>

#include "config/config.h"
#include "config/config_table.h"
#include "config/config_value.h"
#include "formats/roff.h"
#include "formats/wrap.h"

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

static void write_section(const char *section, FILE *to)
{
    int n = fprintf(to, "\n[%s]  ", section) - 1;
    cld_write_wrapped(cld_config_section_help(section), (size_t)n, (size_t)n, to);
}

void cld_config_write_help(FILE *to)
{
    fputs("The configuration is an INI file. Each entry shows a key, its values and its default.\n"
          "Paths are relative to the current directory. --set SECTION.KEY=VALUE overrides a key.\n",
          to);
    for (const struct cld_config_key *k = cld_config_keys; k->section; k++) {
        if (opens_section(k))
            write_section(k->section, to);
        fprintf(to, "  %s = ", k->name);
        cld_config_value_describe(k, to);
        if (k->default_text)
            fprintf(to, "  (default %s)\n", k->default_text);
        else
            fputs("  (no default)\n", to);
        cld_write_wrapped(k->help, 0, 6, to);
    }
}

void cld_config_write_markdown(FILE *to)
{
    fputs("# Configuration\n\n"
          "One INI file describes a run. `--set SECTION.KEY=VALUE` overrides a key; the last\n"
          "`--set` of a key wins. `cldraft train CONFIG --print-config` prints all values and\n"
          "where they come from.\n\n"
          "This page is generated (`cldraft help --markdown config`).\n\n"
          "* Lines are `key = value` below a `[section]`. Each section and each key occurs once.\n"
          "  Names are lower-case. `#` or `;` starts a comment, at the start of a line or after a\n"
          "  blank.\n"
          "* A value that contains `#` or `;`, or ends with a backslash, needs double quotes.\n"
          "  Commas separate the items of a list. A line has at most 1000 bytes and does not\n"
          "  continue on the next line.\n"
          "* Paths are relative to the current directory, not to the file.\n"
          "* Unknown names, wrong types, numbers out of range and duplicates are errors with file\n"
          "  and line (exit code 2).\n\n"
          "The last column says what a resumed run may change. A changed *fixed* key alters the\n"
          "mathematics and is refused; *free* keys may change.\n",
          to);
    for (const struct cld_config_key *k = cld_config_keys; k->section; k++) {
        if (opens_section(k))
            fprintf(to,
                    "\n## [%s]\n\n%s\n\n| key | values | default | meaning | resume |\n"
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
