#include "workers/machines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "base/size.h"

enum cld_status cld_machines_join(struct cld_machines *m, struct cld_link *link, size_t n_here,
                                  const struct cld_config *cfg, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = cld_link_n(link), batch = cfg->train.batch_rows, micro = cfg->train.micro_rows;
    size_t *counts = calloc(n, sizeof *counts);
    memset(m, 0, sizeof *m);
    m->link = link;
    m->n_here = n_here;
    if (!counts) {
        s = cld_fail_memory(err, "a list of machines");
        goto done;
    }
    if ((s = cld_link_gather(link, &n_here, sizeof n_here, counts, err)))
        goto done;
    for (size_t i = 0; i < n; i++) {
        m->first += i < cld_link_rank(link) ? counts[i] : 0;
        m->n_drafters += counts[i];
        m->most_here = cld_max(m->most_here, counts[i]);
    }
    if (!(m->rank_of = calloc(m->n_drafters, sizeof *m->rank_of))) {
        s = cld_fail_memory(err, "a list of machines");
        goto done;
    }
    for (size_t i = 0, at = 0; i < n; i++)
        for (size_t k = 0; k < counts[i]; k++)
            m->rank_of[at++] = i;
    if (batch % (m->n_drafters * micro))
        s = cld_fail(err, CLD_E_USAGE,
                     "choose train.batch_rows as a multiple of drafters times train.micro_rows",
                     "train.batch_rows %zu by train.micro_rows %zu: %zu parts for %zu drafters on "
                     "%zu machines",
                     batch, micro, batch / micro, m->n_drafters, n);
done:
    free(counts);
    return s;
}

void cld_machines_free(struct cld_machines *m)
{
    free(m->rank_of);
    memset(m, 0, sizeof *m);
}

enum { N_AGREED = 6 };

/* What must be the same everywhere, each as a short text. */
struct agreed {
    char text[N_AGREED][CLD_SHA256_HEX_BYTES];
};

static const char *const agreed_names[N_AGREED] = {
    "the version",   "the configuration",           "the target's config.json",
    "the tokenizer", "the number of training rows", "the step that it begins at"};

enum cld_status cld_machines_agree(const struct cld_machines *m, const struct cld_config *cfg,
                                   const char *target, const char *tokenizer, size_t n_rows,
                                   size_t step, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = cld_link_n(m->link);
    struct agreed mine;
    struct agreed *all = calloc(n, sizeof *all);
    char *text = NULL;
    memset(&mine, 0, sizeof mine);
    if (!all) {
        s = cld_fail_memory(err, "a list of machines");
        goto done;
    }
    if ((s = cld_config_shared_text(cfg, &text, err)))
        goto done;
    cld_sha256_of(text, strlen(text), mine.text[1]);
    snprintf(mine.text[0], sizeof mine.text[0], "%s", CLD_VERSION);
    snprintf(mine.text[2], sizeof mine.text[2], "%s", target);
    snprintf(mine.text[3], sizeof mine.text[3], "%s", tokenizer);
    snprintf(mine.text[4], sizeof mine.text[4], "%zu", n_rows);
    snprintf(mine.text[5], sizeof mine.text[5], "%zu", step);
    if ((s = cld_link_gather(m->link, &mine, sizeof mine, all, err)))
        goto done;
    for (size_t i = 0; i < n && !s; i++)
        for (size_t k = 0; k < N_AGREED && !s; k++)
            if (memcmp(all[i].text[k], all[0].text[k], sizeof all[i].text[k]))
                s = cld_fail(err, CLD_E_USAGE,
                             "only [devices], [memory], [log] and paths may differ between "
                             "machines",
                             "%s differs between machine 0 and machine %zu: %s and %s",
                             agreed_names[k], i, all[0].text[k], all[i].text[k]);
done:
    free(text);
    free(all);
    return s;
}

enum cld_status cld_machines_gather(const struct cld_machines *m, const void *here, size_t n_bytes,
                                    void *all, struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    size_t n = cld_link_n(m->link), part = cld_mul(m->most_here, n_bytes), at = 0;
    char *mine = calloc(1, part), *from = calloc(n, part);
    if (!mine || !from) {
        s = cld_fail_memory(err, "results of %zu machines", n);
        goto done;
    }
    memcpy(mine, here, m->n_here * n_bytes);
    if ((s = cld_link_gather(m->link, mine, part, from, err)))
        goto done;
    for (size_t j = 0; j < m->n_drafters; j++) {
        size_t rank = m->rank_of[j];
        at = j && m->rank_of[j - 1] == rank ? at + 1 : 0;
        memcpy((char *)all + j * n_bytes, from + rank * part + at * n_bytes, n_bytes);
    }
done:
    free(mine);
    free(from);
    return s;
}
