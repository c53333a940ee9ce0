/* machines.h - which drafters train together, and on which machine each is.
 *
 * Drafters are numbered through all machines, in the order of their ranks; those of this process
 * are [first, first + n_here). A process that is alone has all of them. */
#ifndef CLD_WORKERS_MACHINES_H
#define CLD_WORKERS_MACHINES_H

#include "config/config.h"
#include "workers/link.h"

struct cld_machines {
    struct cld_link *link; /* borrowed; NULL: this process is alone */
    size_t n_drafters, first, n_here;
    size_t most_here; /* drafters of one machine, at most */
    size_t *rank_of;  /* [n_drafters] */
};

/* All processes call it, each with its number of drafters. CLD_E_USAGE if the rows of a step cannot
 * be split among them. Free with cld_machines_free whatever the result was. */
enum cld_status cld_machines_join(struct cld_machines *m, struct cld_link *link, size_t n_here,
                                  const struct cld_config *cfg, struct cld_error *err);
void cld_machines_free(struct cld_machines *m);

static inline size_t cld_machines_n_remote(const struct cld_machines *m)
{
    return m->n_drafters - m->n_here;
}

/* All processes call it before the first step: CLD_E_USAGE names what differs between this one and
 * rank 0 - version, configuration, target, tokenizer, rows or step. */
enum cld_status cld_machines_agree(const struct cld_machines *m, const struct cld_config *cfg,
                                   const char *target, const char *tokenizer, size_t n_rows,
                                   size_t step, struct cld_error *err);

/* n_bytes of each drafter: here[n_here] to all[n_drafters], in their order. All processes
 * call it, one thread of each. */
enum cld_status cld_machines_gather(const struct cld_machines *m, const void *here, size_t n_bytes,
                                    void *all, struct cld_error *err);

#endif
