/* nearest.h - "did you mean ...?": the known name closest to a mistyped one. Any thread. */
#ifndef CLD_BASE_NEAREST_H
#define CLD_BASE_NEAREST_H

#include <stddef.h>

/* Collects candidates one by one. Start with {.typed = what the user wrote}; after the calls of
 * _offer, `best` is the closest name, or NULL where none is close enough to be meant. */
struct cld_nearest {
    const char *typed;
    const char *best; /* borrowed from the call of _offer */
    size_t distance;
};

void cld_nearest_offer(struct cld_nearest *near, const char *name);

/* Fills `to` with "did you mean NAME?", or with `otherwise` if nothing is close. Returns `to`. */
const char *cld_nearest_hint(const struct cld_nearest *near, const char *otherwise, char *to,
                             size_t n);

#endif
