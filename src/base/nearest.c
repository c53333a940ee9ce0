#include "base/nearest.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"

enum { LONGEST = 64 };

/* Edit distance in which a swap of two neighbours is one edit and case does not count (optimal
 * string alignment). Names beyond LONGEST are never close. */
static size_t distance(const char *a, const char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b);
    size_t d[LONGEST + 1][LONGEST + 1];
    if (n_a > LONGEST || n_b > LONGEST)
        return SIZE_MAX;
    for (size_t i = 0; i <= n_a; i++) {
        for (size_t j = 0; j <= n_b; j++) {
            if (!i || !j) {
                d[i][j] = i + j;
                continue;
            }
            int x = tolower((unsigned char)a[i - 1]), y = tolower((unsigned char)b[j - 1]);
            size_t best = cld_min(d[i - 1][j], d[i][j - 1]) + 1;
            best = cld_min(best, d[i - 1][j - 1] + (x != y));
            if (i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2]) &&
                y == tolower((unsigned char)a[i - 2]))
                best = cld_min(best, d[i - 2][j - 2] + 1);
            d[i][j] = best;
        }
    }
    return d[n_a][n_b];
}

void cld_nearest_offer(struct cld_nearest *near, const char *name)
{
    /* A third of the letters may be wrong: beyond that a guess misleads. */
    size_t worst = cld_max(2, strlen(name) / 3), d = distance(near->typed, name);
    if (d <= worst && d < strlen(name) && (!near->best || d < near->distance)) {
        near->best = name;
        near->distance = d;
    }
}

const char *cld_nearest_hint(const struct cld_nearest *near, const char *otherwise, char *to,
                             size_t n)
{
    if (near->best)
        snprintf(to, n, "did you mean '%s'?", near->best);
    else
        snprintf(to, n, "%s", otherwise);
    return to;
}
