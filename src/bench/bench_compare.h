/* bench_compare.h - records beside those of an earlier run.
 *
 * A record is compared with the one of the same kind, name, swept values, shape and storage; a
 * difference counts where it is larger than the spread (most - least) of either. Thread: main. */
#ifndef CLD_BENCH_BENCH_COMPARE_H
#define CLD_BENCH_BENCH_COMPARE_H

#include <jansson.h>
#include <stddef.h>

#include "base/error.h"

struct cld_bench_baseline;

/* Reads what 'cldraft bench' wrote as json or jsonl. CLD_E_INPUT. */
enum cld_status cld_bench_baseline_open(const char *path, struct cld_bench_baseline **out,
                                        struct cld_error *err);
void cld_bench_baseline_close(struct cld_bench_baseline *b); /* NULL-safe */

/* Adds "baseline_ms" (or null), "change" (share of the baseline, or null) and "verdict" to a
 * record: same, faster, slower; unsure: one repeat has no spread; new: the baseline has no such
 * record; fails: it was measured there and is not here. CLD_E_MEMORY. */
enum cld_status cld_bench_baseline_judge(struct cld_bench_baseline *b, json_t *record,
                                         struct cld_error *err);

/* After the last record: says on stderr how many there were of each verdict, and how many the
 * baseline has besides. Returns those that are slower or fail. */
size_t cld_bench_baseline_report(const struct cld_bench_baseline *b);

#endif
