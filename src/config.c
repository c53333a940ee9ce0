#define _GNU_SOURCE /* memfd_create */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config_scan.h"
#include "config_table.h"
#include "config_value.h"
#include "file.h"
#include "nearest.h"

enum { ORIGIN_DEFAULT = 0, ORIGIN_SET = -1 }; /* above 0: a line of the file */

static const struct cld_config_key *find(const char *section, const char *name)
{
    for (const struct cld_config_key *k = cld_config_keys; k->section; k++)
        if (!strcmp(k->section, section) && !strcmp(k->name, name))
            return k;
    return NULL;
}

/* ---- unknown names ---- */

static enum cld_status unknown_section(const char *section, struct cld_error *err)
{
    struct cld_nearest near = {.typed = section};
    char hint[160];
    for (const struct cld_config_key *k = cld_config_keys; k->section; k++)
        cld_nearest_offer(&near, k->section);
    return cld_fail(err, CLD_E_USAGE,
                    cld_nearest_hint(&near, "'cldraft help config' lists all sections and keys",
                                     hint, sizeof hint),
                    "unknown section [%s]", section);
}

static enum cld_status unknown_key(const char *section, const char *name, struct cld_error *err)
{
    struct cld_nearest near = {.typed = name};
    const struct cld_config_key *elsewhere = NULL;
    char hint[160];
    for (const struct cld_config_key *k = cld_config_keys; k->section; k++) {
        if (!strcmp(k->section, section))
            cld_nearest_offer(&near, k->name);
        else if (!strcmp(k->name, name))
            elsewhere = k;
    }
    if (elsewhere)
        snprintf(hint, sizeof hint, "'%s' belongs to [%s]", name, elsewhere->section);
    else
        cld_nearest_hint(&near, "'cldraft help config' lists all sections and keys", hint,
                         sizeof hint);
    return cld_fail(err, CLD_E_USAGE, hint, "unknown key '%s' in [%s]", name, section);
}

static bool section_known(const char *section)
{
    return cld_config_section_help(section) != NULL;
}

/* ---- loading ---- */

static enum cld_status apply(struct cld_config *cfg, const char *section, const char *name,
                             const char *value, int origin, struct cld_error *err)
{
    const struct cld_config_key *key = find(section, name);
    if (!section_known(section))
        return unknown_section(section, err);
    if (!key)
        return unknown_key(section, name, err);
    enum cld_status s = cld_config_value_set(cfg, key, value, err);
    if (!s)
        cfg->origin[key - cld_config_keys] = origin;
    return s;
}

static enum cld_status apply_entry(struct cld_config *cfg, const struct cld_config_entry *e,
                                   struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    if (*e->key)
        s = apply(cfg, e->section, e->key, e->value, e->line, err);
    else if (!section_known(e->section))
        s = unknown_section(e->section, err);
    if (s)
        cld_fail_prefix(err, "%s:%d", cfg->path, e->line);
    return s;
}

static enum cld_status apply_set(struct cld_config *cfg, const char *set, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *section = cld_format("%s", set);
    char *dot = section ? strchr(section, '.') : NULL;
    char *equals = section ? strchr(section, '=') : NULL;
    if (!section) {
        s = cld_fail(err, CLD_E_MEMORY, "", "no memory");
    } else if (!dot || !equals || dot > equals) {
        s = cld_fail(err, CLD_E_USAGE, "write --set SECTION.KEY=VALUE", "'%.200s'", set);
    } else {
        *dot = *equals = 0;
        s = apply(cfg, section, dot + 1, equals + 1, ORIGIN_SET, err);
    }
    if (s)
        cld_fail_prefix(err, "--set");
    free(section);
    return s;
}

static enum cld_status apply_defaults(struct cld_config *cfg, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (const struct cld_config_key *k = cld_config_keys; k->section && !s; k++)
        if (k->default_text)
            s = cld_config_value_set(cfg, k, k->default_text, err);
    return s;
}

enum cld_status cld_config_load(const char *path, const char *const *sets, size_t n_sets,
                                struct cld_config *cfg, struct cld_error *err)
{
    struct cld_config_entries entries = {0};
    enum cld_status s;
    memset(cfg, 0, sizeof *cfg);
    for (const struct cld_config_key *k = cld_config_keys; k->section; k++)
        cld_config_value_open(cfg, k);
    cfg->path = cld_format("%s", path);
    if (!cfg->path) {
        s = cld_fail(err, CLD_E_MEMORY, "", "%s: no memory", path);
        goto done;
    }
    if ((s = apply_defaults(cfg, err)) || (s = cld_config_scan(path, &entries, err)))
        goto done;
    for (size_t i = 0; i < entries.n && !s; i++)
        s = apply_entry(cfg, &entries.v[i], err);
    for (size_t i = 0; i < n_sets && !s; i++)
        s = apply_set(cfg, sets[i], err);
done:
    cld_config_entries_free(&entries);
    return s;
}

enum cld_status cld_config_parse(const char *text, const char *what, struct cld_config *cfg,
                                 struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_bytes = strlen(text);
    char path[64];
    memset(cfg, 0, sizeof *cfg);
    /* The scanner reads files, so the text becomes one that exists in memory only. */
    int fd = memfd_create("cldraft-config", MFD_CLOEXEC);
    if (fd < 0 || write(fd, text, n_bytes) != (ssize_t)n_bytes) {
        s = cld_fail(err, CLD_E_MEMORY, "", "%s: no host memory", what);
        goto done;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if ((s = cld_config_load(path, NULL, 0, cfg, err)))
        cld_fail_prefix(err, "%s", what);
done:
    if (fd >= 0)
        close(fd);
    return s;
}

void cld_config_free(struct cld_config *cfg)
{
    if (!cfg)
        return;
    for (const struct cld_config_key *k = cld_config_keys; k->section; k++)
        cld_config_value_free(cfg, k);
    free(cfg->path);
    cfg->path = NULL;
}

/* ---- printing ---- */

static const char *where(const struct cld_config *cfg, const struct cld_config_key *key, char *to,
                         size_t n)
{
    int origin = cfg->origin[key - cld_config_keys];
    if (origin == ORIGIN_DEFAULT)
        snprintf(to, n, "%s", key->default_text ? "default" : "not given");
    else if (origin == ORIGIN_SET)
        snprintf(to, n, "--set");
    else
        snprintf(to, n, "%s:%d", cfg->path, origin);
    return to;
}

const char *cld_config_where(const struct cld_config *cfg, const char *name, char *to, size_t n)
{
    for (const struct cld_config_key *k = cld_config_keys; k->section; k++) {
        size_t n_section = strlen(k->section);
        if (!strncmp(name, k->section, n_section) && name[n_section] == '.' &&
            !strcmp(name + n_section + 1, k->name))
            return where(cfg, k, to, n);
    }
    snprintf(to, n, "unknown key");
    return to;
}

/* The value as it goes into the file: in quotes where it would be read otherwise without. */
static void quote(const char *value, FILE *to)
{
    size_t n = strlen(value);
    bool bare = n && *value != '\'' && *value != ' ' && value[n - 1] != ' ' &&
                !value[strcspn(value, "#;\\")];
    fprintf(to, bare ? "%s" : "\"%s\"", value);
}

/* malloc'd text of a value; NULL when out of memory. */
static char *value_text(const struct cld_config *cfg, const struct cld_config_key *key)
{
    char *text = NULL;
    size_t n;
    FILE *to = open_memstream(&text, &n);
    if (!to)
        return NULL;
    cld_config_value_print(cfg, key, to);
    if (fclose(to)) {
        free(text);
        return NULL;
    }
    return text;
}

enum cld_status cld_config_text(const struct cld_config *cfg, char **out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_bytes;
    *out = NULL;
    FILE *to = open_memstream(out, &n_bytes);
    if (!to)
        return cld_fail(err, CLD_E_MEMORY, "", "no memory for the configuration's text");
    fprintf(to, "# The configuration as cldraft %s read it, and where each value is from.\n",
            CLD_VERSION);
    for (const struct cld_config_key *k = cld_config_keys; k->section && !s; k++) {
        char origin[4096], *value = value_text(cfg, k);
        if (!value) {
            s = cld_fail(err, CLD_E_MEMORY, "", "no memory for %s.%s", k->section, k->name);
            break;
        }
        if (k == cld_config_keys || strcmp(k->section, k[-1].section))
            fprintf(to, "\n[%s]\n", k->section);
        /* A key that is open and has no word for it can only be left out. */
        fprintf(to, "%s%s = ", *value ? "" : "# ", k->name);
        if (*value)
            quote(value, to);
        /* Cut from the left: a long path must not make the line too long to be read. */
        where(cfg, k, origin, sizeof origin);
        size_t n = strlen(origin), most = 120;
        fprintf(to, "  # %s%s\n", n > most ? "..." : "", n > most ? origin + n - most : origin);
        free(value);
    }
    if (fclose(to) && !s)
        s = cld_fail(err, CLD_E_MEMORY, "", "no memory for the configuration's text");
    if (s) {
        free(*out);
        *out = NULL;
    }
    return s;
}

/* ---- resuming ---- */

static enum cld_status diff_key(const struct cld_config *old, const struct cld_config *now,
                                const struct cld_config_key *k, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char origin[256], *a = value_text(old, k), *b = value_text(now, k);
    if (!a || !b) {
        s = cld_fail(err, CLD_E_MEMORY, "", "no memory for %s.%s", k->section, k->name);
    } else if (strcmp(a, b)) {
        size_t n_old, n_now;
        bool grows = k->change == CLD_KEY_GROWS && sscanf(a, "%zu", &n_old) == 1 &&
                     sscanf(b, "%zu", &n_now) == 1 && n_now > n_old;
        if (!grows)
            s = cld_fail(err, CLD_E_USAGE,
                         k->change == CLD_KEY_GROWS
                             ? "it may only become larger; to do otherwise, start a new run"
                             : "set it back, or start a new run in another run.dir",
                         "%s.%s is %s (%s), but the run began with %s", k->section, k->name,
                         *b ? b : "not given", where(now, k, origin, sizeof origin),
                         *a ? a : "none given");
    }
    free(a);
    free(b);
    return s;
}

enum cld_status cld_config_resume_diff(const struct cld_config *old, const struct cld_config *now,
                                       struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    for (const struct cld_config_key *k = cld_config_keys; k->section && !s; k++)
        if (k->change != CLD_KEY_FREE)
            s = diff_key(old, now, k, err);
    return s;
}

/* ---- several machines ---- */

static bool is_shared(const struct cld_config_key *k)
{
    static const char *const own[] = {"devices", "memory", "log"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(k->section, own[i]))
            return false;
    return k->type != CLD_KEY_PATH;
}

enum cld_status cld_config_shared_text(const struct cld_config *cfg, char **out,
                                       struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_bytes;
    *out = NULL;
    FILE *to = open_memstream(out, &n_bytes);
    for (const struct cld_config_key *k = cld_config_keys; to && k->section && !s; k++) {
        if (!is_shared(k))
            continue;
        fprintf(to, "%s.%s = ", k->section, k->name);
        cld_config_value_print(cfg, k, to);
        fputc('\n', to);
    }
    if (!to || fclose(to)) {
        free(*out);
        *out = NULL;
        s = cld_fail(err, CLD_E_MEMORY, "", "no memory for the configuration's text");
    }
    return s;
}

/* ---- small conversions ---- */

int64_t cld_config_mask_id(const struct cld_config *cfg)
{
    const char *text = cfg->drafter.mask_token;
    if (!text || !*text || text[strspn(text, "0123456789")] || strlen(text) > 18)
        return -1;
    return strtoll(text, NULL, 10);
}

size_t cld_config_gib(double gib)
{
    double bytes = floor(gib * 0x1p30);
    return bytes < 0x1p63 ? (size_t)bytes : SIZE_MAX;
}
