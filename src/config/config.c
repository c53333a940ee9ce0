#define _GNU_SOURCE /* memfd_create */
#include "config/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/nearest.h"
#include "config/config_scan.h"
#include "config/config_sweep.h"
#include "config/config_table.h"
#include "config/config_value.h"

enum { ORIGIN_DEFAULT = 0, ORIGIN_SET = -1, ORIGIN_SWEPT = -2 }; /* above 0: a line of the file */

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

/* A line of [sweep] that names a key of another section. */
static enum cld_status apply_swept(struct cld_config *cfg, const char *name, const char *text,
                                   int origin, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    char *section = cld_format("%s", name), *dot = section ? strchr(section, '.') : NULL;
    char *now = NULL; /* the name of today, which results are labelled with */
    if (!section)
        return cld_fail_memory(err, "the name '%.200s'", name);
    *dot = 0;
    const struct cld_config_key *key = cld_config_key_of(section, dot + 1);
    if (!section_known(section))
        s = unknown_section(section, err);
    else if (!key)
        s = unknown_key(section, dot + 1, err);
    else if (!(now = cld_format("%s.%s", key->section, key->name)))
        s = cld_fail_memory(err, "the name '%.200s'", name);
    else
        s = cld_config_swept_set(cfg, now, text, origin, err);
    free(section);
    free(now);
    return s ? cld_fail_prefix(err, "[sweep]") : CLD_OK;
}

static enum cld_status apply(struct cld_config *cfg, const char *section, const char *name,
                             const char *value, int origin, struct cld_error *err)
{
    const struct cld_config_key *key = cld_config_key_of(section, name);
    if (!section_known(section))
        return unknown_section(section, err);
    if (!key && !strcmp(section, "sweep") && strchr(name, '.'))
        return apply_swept(cfg, name, value, origin, err);
    if (!key)
        return unknown_key(section, name, err);
    /* The scanner refuses a name that stands twice; two names of one key can only be seen here. */
    if (origin > 0 && cfg->origin[key - cld_config_keys] > 0)
        return cld_fail(err, CLD_E_USAGE, "remove the old name",
                        "%s.%s is there twice, first under another name in line %d", section,
                        key->name, cfg->origin[key - cld_config_keys]);
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
        s = cld_fail_memory(err, "'%.200s'", set);
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
        s = cld_fail_memory(err, "the data of %s", path);
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
        s = cld_fail_memory(err, "the data of %s", what);
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
    cld_config_swept_free(cfg);
    free(cfg->path);
    cfg->path = NULL;
}

/* ---- printing ---- */

static const char *place(const struct cld_config *cfg, int origin, char *to, size_t n)
{
    if (origin == ORIGIN_SET)
        snprintf(to, n, "--set");
    else if (origin == ORIGIN_SWEPT)
        snprintf(to, n, "[sweep]");
    else
        snprintf(to, n, "%s:%d", cfg->path, origin);
    return to;
}

static const char *where(const struct cld_config *cfg, const struct cld_config_key *key, char *to,
                         size_t n)
{
    int origin = cfg->origin[key - cld_config_keys];
    if (origin != ORIGIN_DEFAULT)
        return place(cfg, origin, to, n);
    snprintf(to, n, "%s", key->default_text ? "default" : "not given");
    return to;
}

const char *cld_config_where(const struct cld_config *cfg, const char *name, char *to, size_t n)
{
    const struct cld_config_key *k = cld_config_key_named(name);
    if (k)
        return where(cfg, k, to, n);
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

/* Cut from the left: a long path must not make the line too long to be read. */
static void put_origin(const char *origin, FILE *to)
{
    size_t n = strlen(origin), most = 120;
    fprintf(to, "  # %s%s\n", n > most ? "..." : "", n > most ? origin + n - most : origin);
}

static void put_swept(const struct cld_config *cfg, FILE *to)
{
    char origin[4096];
    for (size_t i = 0; i < cfg->swept.n; i++) {
        fprintf(to, "%s = ", cfg->swept.v[i].name);
        quote(cfg->swept.v[i].text, to);
        put_origin(place(cfg, cfg->swept.v[i].origin, origin, sizeof origin), to);
    }
}

enum cld_status cld_config_text(const struct cld_config *cfg, char **out, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n_bytes;
    *out = NULL;
    FILE *to = open_memstream(out, &n_bytes);
    if (!to)
        return cld_fail_memory(err, "the configuration's text");
    fprintf(to, "# The configuration as cldraft %s read it, and where each value is from.\n",
            CLD_VERSION);
    for (const struct cld_config_key *k = cld_config_keys; k->section && !s; k++) {
        char origin[4096], *value = value_text(cfg, k);
        if (!value) {
            s = cld_fail_memory(err, "%s.%s", k->section, k->name);
            break;
        }
        if (k == cld_config_keys || strcmp(k->section, k[-1].section))
            fprintf(to, "\n[%s]\n", k->section);
        /* A key that is open and has no word for it can only be left out. */
        fprintf(to, "%s%s = ", *value ? "" : "# ", k->name);
        if (*value)
            quote(value, to);
        put_origin(where(cfg, k, origin, sizeof origin), to);
        free(value);
        if (!strcmp(k->section, "sweep") && (!k[1].section || strcmp(k[1].section, "sweep")))
            put_swept(cfg, to);
    }
    if (fclose(to) && !s)
        s = cld_fail_memory(err, "the configuration's text");
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
        s = cld_fail_memory(err, "%s.%s", k->section, k->name);
    } else if (strcmp(a, b)) {
        size_t n_old, n_now;
        bool grows = k->change == CLD_KEY_GROWS && sscanf(a, "%zu", &n_old) == 1 &&
                     sscanf(b, "%zu", &n_now) == 1 && n_now > n_old;
        if (!grows)
            s = cld_fail(err, CLD_E_USAGE,
                         k->change == CLD_KEY_GROWS
                             ? "only a larger value is allowed; for another one, start a new run"
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

/* ---- points of a sweep ---- */

enum cld_status cld_config_with(const struct cld_config *base, const char *const *names,
                                const char *const *values, size_t n, struct cld_config *out,
                                struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    memset(out, 0, sizeof *out);
    for (const struct cld_config_key *k = cld_config_keys; k->section; k++)
        cld_config_value_open(out, k);
    if (!(out->path = cld_format("%s", base->path)))
        return cld_fail_memory(err, "a configuration");
    for (const struct cld_config_key *k = cld_config_keys; k->section && !s; k++) {
        char *text = value_text(base, k);
        if (!text)
            s = cld_fail_memory(err, "%s.%s", k->section, k->name);
        else if (*text)
            s = cld_config_value_set(out, k, text, err);
        out->origin[k - cld_config_keys] = base->origin[k - cld_config_keys];
        free(text);
    }
    for (size_t i = 0; i < n && !s; i++) {
        const struct cld_config_key *k = cld_config_key_named(names[i]);
        if (!k)
            return cld_fail(err, CLD_E_INTERNAL, "", "no key '%s'", names[i]);
        if (!(s = cld_config_value_set(out, k, values[i], err)))
            out->origin[k - cld_config_keys] = ORIGIN_SWEPT;
    }
    return s;
}

static bool counts(const struct cld_config_key *k)
{
    static const char *const without[][2] = {
        {"log", NULL}, {"sweep", NULL}, {"run", "dir"}, {"bench", "what"}};
    for (size_t i = 0; i < sizeof without / sizeof *without; i++)
        if (!strcmp(k->section, without[i][0]) &&
            (!without[i][1] || !strcmp(k->name, without[i][1])))
            return false;
    return true;
}

enum cld_status cld_config_given_text(const struct cld_config *cfg, char **out,
                                      struct cld_error *err)
{
    size_t n_bytes;
    const char *blank = "";
    *out = NULL;
    FILE *to = open_memstream(out, &n_bytes);
    for (const struct cld_config_key *k = cld_config_keys; to && k->section; k++) {
        if (!counts(k) || cfg->origin[k - cld_config_keys] == ORIGIN_DEFAULT)
            continue;
        fprintf(to, "%s%s.%s=", blank, k->section, k->name);
        cld_config_value_print(cfg, k, to);
        blank = " ";
    }
    if (to && !fclose(to))
        return CLD_OK;
    free(*out);
    *out = NULL;
    return cld_fail_memory(err, "the configuration's text");
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
        s = cld_fail_memory(err, "the configuration's text");
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
