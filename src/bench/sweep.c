#include "bench/sweep.h"

#include <stdlib.h>
#include <string.h>

#include "base/old_names.h"
#include "base/size.h"
#include "config/config_sweep.h"
#include "config/config_table.h"

/* --- keys that move together ------------------------------------------------------------------ */

/* The name without the blanks around it, as the index of a swept key. */
static enum cld_status find_key(const struct cld_sweep *s, const char *who, const char *text,
                                size_t n, size_t *key, struct cld_error *err)
{
    while (n && *text == ' ') {
        text++;
        n--;
    }
    while (n && text[n - 1] == ' ')
        n--;
    char name[2 * CLD_NAME_BYTES];
    snprintf(name, sizeof name, "%.*s", (int)cld_min(n, sizeof name - 1), text);
    const struct cld_config_key *wanted = cld_config_key_named(name);
    for (*key = 0; wanted && *key < s->n_keys; ++*key)
        if (cld_config_key_named(s->names[*key]) == wanted)
            return CLD_OK;
    return cld_fail(err, CLD_E_USAGE, "name keys that [sweep] gives values to",
                    "%s: '%.*s' is not swept", who, (int)cld_min(n, 80), text);
}

static enum cld_status join(struct cld_sweep *s, size_t key, size_t leader, struct cld_error *err)
{
    size_t n = s->values[key].n, want = s->values[leader].n;
    if (n != want)
        return cld_fail(err, CLD_E_USAGE, "give zipped keys the same number of values",
                        "sweep.zip: %s has %zu values, %s has %zu", s->names[leader], want,
                        s->names[key], n);
    s->leader[key] = leader;
    return CLD_OK;
}

/* One group of `zip`: text[0..n), names with commas between. */
static enum cld_status zip_group(struct cld_sweep *s, const char *text, size_t n, bool *seen,
                                 struct cld_error *err)
{
    const char *end = text + n;
    size_t first = s->n_keys, members[64], n_members = 0;
    while (text <= end) {
        const char *comma = memchr(text, ',', (size_t)(end - text));
        const char *stop = comma ? comma : end;
        size_t key;
        enum cld_status status = find_key(s, "sweep.zip", text, (size_t)(stop - text), &key, err);
        if (status)
            return status;
        if (seen[key] || n_members == 64)
            return cld_fail(err, CLD_E_USAGE, "name each key once", "sweep.zip: %s is there twice",
                            s->names[key]);
        seen[key] = true;
        members[n_members++] = key;
        first = cld_min(first, key);
        text = stop + 1;
    }
    for (size_t i = 0; i < n_members; i++) {
        enum cld_status status = join(s, members[i], first, err);
        if (status)
            return status;
    }
    return CLD_OK;
}

static enum cld_status zip(struct cld_sweep *s, const char *groups, struct cld_error *err)
{
    enum cld_status status = CLD_OK;
    bool *seen = calloc(cld_max(1, s->n_keys), sizeof *seen);
    if (!seen)
        return cld_fail_memory(err, "a sweep");
    if (!strcmp(groups, "all"))
        for (size_t i = 0; i < s->n_keys && !status; i++)
            status = join(s, i, 0, err);
    else
        for (const char *at = groups; at && !status;) {
            const char *bar = strchr(at, '|');
            status = zip_group(s, at, bar ? (size_t)(bar - at) : strlen(at), seen, err);
            at = bar ? bar + 1 : NULL;
        }
    free(seen);
    return status;
}

/* --- points ----------------------------------------------------------------------------------- */

static enum cld_status count_points(struct cld_sweep *s, struct cld_error *err)
{
    s->n_points = 1;
    for (size_t i = 0; i < s->n_keys; i++)
        if (s->leader[i] == i)
            s->n_points = cld_mul(s->n_points, s->values[i].n);
    if (s->n_points > s->cfg->sweep.max_points)
        return cld_fail(err, CLD_E_USAGE, "name fewer values, zip keys, or raise sweep.max_points",
                        "the sweep has %zu points, sweep.max_points is %zu", s->n_points,
                        s->cfg->sweep.max_points);
    return CLD_OK;
}

enum cld_status cld_sweep_open(const struct cld_config *cfg, struct cld_sweep *out,
                               struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = cfg->swept.n;
    *out = (struct cld_sweep){.cfg = cfg};
    out->names = calloc(cld_max(1, n), sizeof *out->names);
    out->values = calloc(cld_max(1, n), sizeof *out->values);
    out->leader = calloc(cld_max(1, n), sizeof *out->leader);
    if (!out->names || !out->values || !out->leader)
        return cld_fail_memory(err, "a sweep");
    out->n_keys = n;
    for (size_t i = 0; i < n; i++) {
        out->names[i] = cfg->swept.v[i].name;
        out->leader[i] = i;
        if ((s = cld_config_expand(out->names[i], cfg->swept.v[i].text, &out->values[i], err)))
            return s;
    }
    size_t x = 0;
    if (cfg->sweep.x && (s = find_key(out, "sweep.x", cfg->sweep.x, strlen(cfg->sweep.x), &x, err)))
        return s;
    out->x = cfg->sweep.x ? out->names[x] : NULL;
    if (cfg->sweep.zip && (s = zip(out, cfg->sweep.zip, err)))
        return s;
    return count_points(out, err);
}

void cld_sweep_close(struct cld_sweep *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_keys; i++)
        cld_config_values_free(&s->values[i]);
    free(s->names);
    free(s->values);
    free(s->leader);
    *s = (struct cld_sweep){0};
}

void cld_sweep_point(const struct cld_sweep *s, size_t i, const char **values)
{
    for (size_t k = s->n_keys; k-- > 0;) {
        if (s->leader[k] != k)
            continue;
        size_t at = i % s->values[k].n;
        i /= s->values[k].n;
        for (size_t j = k; j < s->n_keys; j++)
            if (s->leader[j] == k)
                values[j] = s->values[j].v[at];
    }
}

const char *cld_sweep_text(const struct cld_sweep *s, size_t i, char *to, size_t n_bytes)
{
    size_t at = 0;
    *to = 0;
    const char **values = calloc(cld_max(1, s->n_keys), sizeof *values);
    if (!values)
        return to;
    cld_sweep_point(s, i, values);
    for (size_t k = 0; k < s->n_keys && at < n_bytes; k++)
        at += (size_t)snprintf(to + at, n_bytes - at, "%s%s=%s", k ? " " : "", s->names[k],
                               values[k]);
    free(values);
    return to;
}
