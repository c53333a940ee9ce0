/* sweep.h - the points of a sweep: every combination of the values in [sweep], but for keys that
 * are zipped, which move together.
 *
 * Keys keep the order of the configuration; the last one changes fastest. Without [sweep] there is
 * one point without keys. Thread: any; read-only once open. */
#ifndef CLD_BENCH_SWEEP_H
#define CLD_BENCH_SWEEP_H

#include "config/config.h"

struct cld_sweep {
    const struct cld_config *cfg; /* borrowed; names are its */
    size_t n_keys, n_points;
    const char **names;           /* [n_keys] */
    const char *x;                /* one of them; NULL: sweep.x names none */
    struct cld_text_list *values; /* [n_keys] */
    size_t *leader; /* [n_keys] the first key of those it moves with: itself if none */
};

/* CLD_E_USAGE: sweep.zip names what is not swept, or keys with different numbers of values; more
 * points than sweep.max_points. Freed with cld_sweep_close whatever the result was. */
enum cld_status cld_sweep_open(const struct cld_config *cfg, struct cld_sweep *out,
                               struct cld_error *err);
void cld_sweep_close(struct cld_sweep *s); /* NULL-safe */

/* Values of all keys at point i, into values[n_keys]; borrowed from the sweep. */
void cld_sweep_point(const struct cld_sweep *s, size_t i, const char **values);

/* "train.anchors=64 data.max_length=1024", cut to n_bytes; "" without keys. Returns `to`. */
const char *cld_sweep_text(const struct cld_sweep *s, size_t i, char *to, size_t n_bytes);

#endif
